"""Progress and states of one job as a stream."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Any

import pytest

from forebay import testing
from forebay.client.aio.client import LOOK_S, Client
from forebay.client.tasks.app import App
from forebay.client.types import Update
from forebay.client.worker.current import current
from forebay.core.errors import NotFound
from tests.client.worker.simulated import Simulated
from tests.client.worker.working import play, working
from tests.serving import Server


async def _heard(updates: Any) -> list[tuple[str, int]]:
    return [(each.state, each.progress) async for each in updates]


def test_a_job_is_followed_from_its_push_to_its_end(simulated: Simulated) -> None:
    app = simulated.app()

    @app.task
    async def render(film: str) -> str:
        for percent in (10, 50):
            await asyncio.sleep(40)
            await current().aprogress(percent, f"{percent} of {film}")
        await asyncio.sleep(40)
        return film

    async def life() -> None:
        job = await render.apush("Metropolis")
        other = await render.options(delay_ms=1_000).apush("Nosferatu")
        following = asyncio.create_task(_heard(job.aupdates()))
        await asyncio.sleep(5)
        async with working(app):
            last = [each async for each in other.aupdates()][-1]
            assert last == Update(other.id, "completed", 50, "50 of Nosferatu", done=True, result="Nosferatu")
            assert await following == [
                ("waiting", 0),
                ("active", 0),
                ("active", 10),
                ("active", 50),
                ("completed", 50),
            ]

    simulated.play(life())


def test_failures_and_the_last_of_them_are_told(simulated: Simulated) -> None:
    app = simulated.app()

    @app.task(retry=2)
    async def broken() -> None:
        await asyncio.sleep(1)
        raise ValueError("no film")

    async def life() -> None:
        job = await broken.apush()
        async with working(app):
            found = [each async for each in job.aupdates()]
        states = [each.state for each in found]
        assert states[-1] == "dead"
        assert "delayed" in states
        assert [each.done for each in found] == [False] * (len(found) - 1) + [True]
        assert found[-1].error == "ValueError: no film"

    simulated.play(life())


def test_of_a_job_that_has_ended_the_end_is_told(simulated: Simulated) -> None:
    app = simulated.app()
    job_of = app.task(name="job")(lambda: None)

    async def life() -> None:
        job = await job_of.apush()
        await job.acancel()
        assert await _heard(job.aupdates()) == [("cancelled", 0)]
        with pytest.raises(NotFound):
            await _heard(app.job(12345).aupdates())

    simulated.play(life())


async def _states(app: App, id: int) -> list[tuple[str, float]]:
    """The states of a message, each with when it was told."""
    loop = asyncio.get_running_loop()
    found = []
    with suppress(NotFound):
        async for each in app.aclient.updates(id):
            found.append((each.state, loop.time()))
    return found


@asynccontextmanager
async def _traffic(app: App) -> AsyncIterator[None]:
    """Have other messages of the queue come and go, ten times a second."""

    async def come_and_go() -> None:
        while True:
            await app.aclient.push("jobs", "other", priority=9)
            batch = await app.aclient.pop("jobs")
            assert batch.payloads == ["other"]
            await app.aclient.ack(batch)
            await asyncio.sleep(0.1)

    traffic = asyncio.create_task(come_and_go())
    try:
        yield
    finally:
        traffic.cancel()


CHANGES: dict[str, tuple[dict[str, Any], Callable[[Client, int], Awaitable[Any]], str]] = {
    "promoted": ({"delay_ms": 60_000}, lambda client, id: client.promote(id), "waiting"),
    "delayed": ({}, lambda client, id: client.delay(id, 60_000), "delayed"),
    "becomes due": ({"delay_ms": 10_000}, lambda client, id: asyncio.sleep(5), "waiting"),
    "expires": ({"ttl_ms": 10_000}, lambda client, id: asyncio.sleep(5), "expired"),
}


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("what", CHANGES)
def test_a_change_without_an_event_is_found_within_two_seconds(
    what: str, busy: bool, simulated: Simulated
) -> None:
    app = simulated.app()
    options, change, state = CHANGES[what]

    async def life() -> None:
        await app.aclient.push("jobs", "first", priority=9)
        await app.aclient.ack(await app.aclient.pop("jobs"))
        async with _traffic(app) if busy else nullcontext():
            id = (await app.aclient.push("jobs", "followed", **options)).id
            following = asyncio.create_task(_states(app, id))
            await asyncio.sleep(5)
            await change(app.aclient, id)
            changed_at = asyncio.get_running_loop().time()
            await asyncio.sleep(LOOK_S + 0.5)
            await app.aclient.cancel(id)
            _, (found, at), *_ = await following
            assert found == state
            assert at <= changed_at + LOOK_S + 0.1

    simulated.play(life())


def test_when_the_queue_is_deleted_updates_end(simulated: Simulated) -> None:
    app = simulated.app()

    async def life() -> None:
        id = (await app.aclient.push("jobs", "followed")).id
        following = asyncio.create_task(_states(app, id))
        await asyncio.sleep(1)
        await app.aclient.delete_queue("jobs")
        begun = asyncio.get_running_loop().time()
        assert [state for state, _ in await following] == ["waiting"]
        assert asyncio.get_running_loop().time() < begun + 0.5

    simulated.play(life())


def test_of_a_message_that_is_no_longer_kept_the_result_is_told_while_that_is(simulated: Simulated) -> None:
    app = simulated.app()

    async def life() -> None:
        id = (await app.aclient.push("jobs", 6)).id
        await app.aclient.ack(await app.aclient.pop("jobs"), results=[42])
        await app.aclient.purge("jobs")
        with pytest.raises(NotFound):
            await app.aclient.message(id)
        found = [each async for each in app.aclient.updates(id)]
        assert found == [Update(id, "completed", done=True, result=42)]

    simulated.play(life())


def test_updates_come_to_threads_too(app: App, server: Server) -> None:
    @app.task
    async def job() -> set[int]:
        await current().aprogress(30)
        return {7}

    async def life() -> None:
        async with working(app):
            found = await asyncio.to_thread(lambda: list(job.push().updates()))
        assert (found[-1].state, found[-1].progress, found[-1].result) == ("completed", 30, {7})

    play(life())


def test_inline_a_job_has_ended_when_it_is_pushed() -> None:
    app = App("inline")

    @app.task
    def job() -> set[int]:
        current().progress(30)
        return {7}

    with testing.inline(app):
        pushed = job.push()
        assert list(pushed.updates()) == [Update(pushed.id, "completed", 30, done=True, result={7})]
        assert [each.result for each in pushed.updates(type=Any)] == [[7]]

        async def life() -> None:
            assert await _heard(pushed.aupdates()) == [("completed", 30)]

        asyncio.run(life())
