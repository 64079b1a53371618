"""How long a push is tried: somebody waits for the page that makes it, and nobody waits for a worker."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from forebay.client.aio.client import Client
from forebay.client.errors import Disconnected
from forebay.client.tasks.app import CLIENT_RETRY_S, PUSH_RETRY_S, PUSH_TIMEOUT_S, App
from forebay.client.tasks.flow import chain
from tests.client.worker.simulated import Simulated
from tests.client.worker.working import Way, working

NOWHERE = os.path.join(os.sep, "nowhere", "socket")


async def _until_given_up(push: Callable[[], Awaitable[Any]]) -> float:
    """How long a push was tried, in the time of the simulation."""
    begun = asyncio.get_running_loop().time()
    with pytest.raises(Disconnected):
        await push()
    return asyncio.get_running_loop().time() - begun


def _task(app: App) -> Any:
    @app.task
    async def job(number: int = 0) -> None: ...

    return job


def test_without_a_server_a_push_gives_up_soon(simulated: Simulated) -> None:
    job = _task(App("impatient", server=NOWHERE))

    async def life() -> None:
        assert 0 < await _until_given_up(job.apush) <= PUSH_RETRY_S
        assert 0 < await _until_given_up(lambda: job.apush_many([1, 2])) <= PUSH_RETRY_S
        assert 0 < await _until_given_up(chain(job.call(), job.then()).apush) <= PUSH_RETRY_S

    simulated.play(life())


def test_pushes_that_wait_for_others_give_up_as_soon(simulated: Simulated) -> None:
    job = _task(App("impatient", server=NOWHERE))

    async def after(pause_s: float) -> float:
        await asyncio.sleep(pause_s)
        return await _until_given_up(job.apush)

    async def life() -> None:
        for taken_s in await asyncio.gather(*(after(each / 4) for each in range(20))):
            assert taken_s <= PUSH_RETRY_S

    simulated.play(life())


def test_a_server_that_does_not_answer_is_waited_for_no_longer_than_said(simulated: Simulated) -> None:
    async def life() -> None:
        async with Way(simulated.address) as way:
            job = _task(App("impatient", server=way.address))
            await job.apush()
            way.hold()
            taken_s = await _until_given_up(job.apush)
            assert PUSH_TIMEOUT_S <= taken_s <= 2 * PUSH_TIMEOUT_S + PUSH_RETRY_S
            assert await _until_given_up(job.options(timeout_s=0.5, retry_s=0).apush) == 0.5

    simulated.play(life())


def test_pushes_behind_others_wait_for_a_silent_server_no_longer_than_said(simulated: Simulated) -> None:
    async def life() -> None:
        async with Way(simulated.address) as way:
            job = _task(App("impatient", server=way.address))
            await job.apush()
            way.hold()

            async def after(pause_s: float) -> float:
                await asyncio.sleep(pause_s)
                return await _until_given_up(job.apush)

            for taken_s in await asyncio.gather(*(after(each / 4) for each in range(60))):
                assert taken_s <= 2 * PUSH_TIMEOUT_S + PUSH_RETRY_S + 0.001

    simulated.play(life())


def test_a_connection_that_is_silent_as_a_whole_is_given_up_by_the_client(simulated: Simulated) -> None:
    async def life() -> None:
        async with Way(simulated.address) as way, Client(way.address, timeout_s=30, retry_s=0) as client:
            await client.ping()
            way.hold()
            first = asyncio.create_task(client.kv.add("n"))
            await asyncio.sleep(20)
            second = asyncio.create_task(client.kv.add("n"))
            with pytest.raises(Disconnected, match=r"did not answer within 3 s"):
                await client.push("jobs", 1, timeout_s=3)
            assert not first.done()
            with pytest.raises(Disconnected, match=r"did not answer within 30 s"):
                await first
            with pytest.raises(Disconnected, match=r"this client gave up its connection .* for 30 s"):
                await second

    simulated.play(life())


def test_without_a_server_a_look_gives_up_as_soon(simulated: Simulated) -> None:
    job = _task(App("impatient", server=NOWHERE)).job(1)

    async def life() -> None:
        assert 0 < await _until_given_up(job.astate) <= PUSH_RETRY_S
        assert 0 < await _until_given_up(job.aresult) <= PUSH_RETRY_S

    simulated.play(life())


def test_a_server_that_does_not_answer_a_look_is_waited_for_as_long_as_by_a_push(
    simulated: Simulated,
) -> None:
    async def life() -> None:
        async with Way(simulated.address) as way:
            task = _task(App("impatient", server=way.address))
            job = await task.apush()
            await job.astate()
            way.hold()
            for look in (job.astate, lambda: job.aresult(wait_s=0), job.aprogress, job.acancel):
                assert await _until_given_up(look) <= 2 * PUSH_TIMEOUT_S + PUSH_RETRY_S

    simulated.play(life())


def test_an_app_and_a_push_can_say_how_long(simulated: Simulated) -> None:
    job = _task(App("patient", server=NOWHERE, retry_s=60))

    async def life() -> None:
        assert 50 < await _until_given_up(job.apush) <= 60
        assert 50 < await _until_given_up(lambda: job.app.aclient.state(1)) <= 60
        assert await _until_given_up(job.options(retry_s=0).apush) == 0
        assert await _until_given_up(job.options(retry_s=0).call(1).apush) == 0
        assert await _until_given_up(lambda: job.options(retry_s=0).apush_many([1])) == 0
        assert await _until_given_up(lambda: job.app.aclient.push("jobs", 1, retry_s=0)) == 0

    simulated.play(life())


def test_what_a_worker_runs_keeps_its_patience(simulated: Simulated) -> None:
    app = simulated.app()
    other = _task(App("other", server=NOWHERE))

    @app.task
    async def pushing() -> float:
        return await _until_given_up(other.apush)

    async def life() -> None:
        async with working(app):
            taken_s = await (await pushing.apush()).aresult()
            assert PUSH_RETRY_S < taken_s <= CLIENT_RETRY_S
        assert await _until_given_up(other.apush) <= PUSH_RETRY_S

    simulated.play(life())


def test_a_look_of_a_web_page_beside_a_worker_gives_up_soon_and_one_in_a_job_does_not(
    simulated: Simulated,
) -> None:
    async def life() -> None:
        async with Way(simulated.address) as way:
            app = App("both", server=way.address)
            seen: list[float] = []

            @app.task
            async def looking() -> None:
                way.refuses = True
                way.cut()
                seen.append(await _until_given_up(app.job(1).astate))
                way.refuses = False

            await looking.apush()
            async with working(app):
                while not seen:
                    await asyncio.sleep(1)
                way.refuses = True
                way.cut()
                assert await _until_given_up(app.job(1).astate) <= PUSH_RETRY_S
                way.refuses = False
            assert PUSH_RETRY_S < seen[0] <= CLIENT_RETRY_S

    simulated.play(life())


def test_a_page_that_streams_goes_on_after_a_restart_of_the_server(simulated: Simulated) -> None:
    async def life() -> None:
        async with Way(simulated.address) as way:
            app = App("films", server=way.address)
            task = _task(app)
            job = await task.options(delay_ms=30_000).apush()

            async def states() -> list[str]:
                return [update.state async for update in job.aupdates()]

            streaming = asyncio.create_task(states())
            await asyncio.sleep(5)
            way.refuses = True
            way.cut()
            await asyncio.sleep(8)
            way.refuses = False
            async with working(app):
                assert (await streaming)[-1] == "completed"

    simulated.play(life())


def test_a_push_that_is_told_to_be_quick_comes_through_when_there_is_a_server(simulated: Simulated) -> None:
    app = simulated.app()
    job = _task(app)

    async def life() -> None:
        quick = job.options(timeout_s=5, retry_s=0, priority=4)
        assert (await app.aclient.message((await quick.apush(1)).id)).priority == 4
        assert len(await quick.apush_many([1, 2])) == 2

    simulated.play(life())
