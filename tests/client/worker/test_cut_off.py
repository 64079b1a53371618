"""A worker that loses its server: what runs is settled after all, unless its lease is over.

Time is simulated: leases of less than a second outlast any stall of the machine.
"""

import asyncio
import logging
from contextlib import AsyncExitStack
from typing import Any

import pytest

from forebay.client.aio.client import Client
from forebay.client.tasks.app import App
from forebay.client.tasks.flow import chain
from forebay.client.tasks.task import GiveUp
from forebay.client.worker.worker import Worker
from forebay.wire.operations.flows import PushFlow
from tests.client.worker.simulated import Simulated
from tests.client.worker.working import Way, until, until_state, working

LEASE_MS = 600


@pytest.fixture
def app(simulated: Simulated) -> App:
    return simulated.app()


def _far(app: App, way: Way) -> App:
    """The same app on the other side of a way."""
    far = App(app.name, server=way.address, queue=app.queue)
    far.tasks = app.tasks
    return far


def test_a_worker_logs_once_that_it_is_cut_off_and_that_it_is_back(
    app: App, simulated: Simulated, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task
    async def quick() -> None: ...

    async def life() -> None:
        async with Way(simulated.address) as way, working(_far(app, way)):
            await (await quick.apush()).aresult(8)
            way.refuses = True
            way.cut()
            await asyncio.sleep(1)
            way.refuses = False
            await (await quick.apush()).aresult(8)
        await app.aclose()

    with caplog.at_level(logging.INFO, "forebay.client"):
        simulated.play(life())
    told = [each.getMessage().split(" ")[0] for each in caplog.records if each.name == "forebay.client"]
    assert told == ["disconnected", "connected"]


def test_a_job_that_ends_while_the_way_is_cut_is_settled_later_and_not_run_again(
    app: App, simulated: Simulated
) -> None:
    begun = 0
    may_end = asyncio.Event()

    @app.task
    async def gated() -> str:
        nonlocal begun
        begun += 1
        await may_end.wait()
        return "done"

    async def life() -> None:
        async with Way(simulated.address) as way, working(_far(app, way), lease_ms=20_000):
            job = await gated.apush()
            await until(lambda: begun)
            way.refuses = True
            way.cut()
            may_end.set()
            await asyncio.sleep(0.2)
            way.refuses = False
            assert await job.aresult(8) == "done"
            assert begun == 1
        await app.aclose()

    simulated.play(life())


@pytest.mark.parametrize("cmd", ["ACK", "NACK", "DISCARD"])
def test_an_answer_that_gets_lost_does_not_end_other_jobs_of_the_lease(
    app: App, simulated: Simulated, cmd: str
) -> None:
    begun: list[str] = []
    quick_may_end, slow_may_end = asyncio.Event(), asyncio.Event()

    @app.task(retry=1)
    async def quick() -> None:
        begun.append("quick")
        await quick_may_end.wait()
        if cmd == "NACK":
            raise ValueError
        if cmd == "DISCARD":
            raise GiveUp

    @app.task
    async def slow() -> str:
        begun.append("slow")
        await slow_may_end.wait()
        return "done"

    async def life() -> None:
        first, second = await quick.apush(), await slow.apush()
        async with Way(simulated.address) as way, working(_far(app, way), lease_ms=20_000) as worker:
            await until(lambda: len(begun) == 2)
            way.holds = lambda data: f'"{cmd}"'.encode() in data
            quick_may_end.set()
            await until_state(app, first.id, "completed", "dead")
            way.cut()
            way.let_go()
            await until(lambda: worker._holding.count < 2)
            await asyncio.sleep(0.1)
            slow_may_end.set()
            assert await second.aresult(5) == "done"
            assert begun == ["quick", "slow"]
        await app.aclose()

    simulated.play(life())


def test_a_job_whose_lease_is_over_is_interrupted_while_the_way_is_blocked(
    app: App, simulated: Simulated
) -> None:
    spans: list[list[float]] = []

    @app.task(retry=0)
    async def slow() -> None:
        now = asyncio.get_running_loop().time
        span = [now(), 0.0]
        spans.append(span)
        try:
            await asyncio.sleep(1.5)
        finally:
            span[1] = now()

    async def life() -> None:
        async with Way(simulated.address) as way, working(_far(app, way), lease_ms=LEASE_MS):
            job = await slow.options(backoff=0).apush()
            await until(lambda: spans)
            way.hold()
            async with working(app, lease_ms=LEASE_MS):
                await until_state(app, job.id, "completed")
                way.let_go()

    simulated.play(life())
    assert len(spans) == 2
    assert spans[0][1] <= spans[1][0]


def test_a_job_is_interrupted_before_its_lease_is_over_and_not_after(app: App, simulated: Simulated) -> None:
    """Another worker has it the moment it is over."""
    ended: list[float] = []

    @app.task(retry=0)
    async def slow() -> None:
        try:
            await asyncio.sleep(30)
        finally:
            ended.append(asyncio.get_running_loop().time())

    async def life() -> None:
        async with Way(simulated.address) as way, working(_far(app, way), lease_ms=LEASE_MS) as worker:
            await slow.apush()
            await until(lambda: worker._holding.leases())
            (lease,) = worker._holding.leases()
            await asyncio.sleep(LEASE_MS / 1000)  # it has been extended meanwhile
            way.hold()
            until_before = lease.until
            await until(lambda: ended)
            spare_s = 2 * worker._holding._tick_s  # it is over a little earlier for the worker
            assert ended[0] <= max(lease.until, until_before) + spare_s
            way.cut()
            way.let_go()

    simulated.play(life())


def test_no_job_goes_on_after_its_lease_because_the_keeper_asks_what_was_cancelled(
    app: App, simulated: Simulated
) -> None:
    spans: dict[str, list[list[float]]] = {"cancelled": [], "kept": []}

    @app.task(retry=0)
    async def slow(name: str) -> None:
        now = asyncio.get_running_loop().time
        span = [now(), 0.0]
        spans[name].append(span)
        try:
            await asyncio.sleep(1.8 if name == "kept" else 20)
        finally:
            span[1] = now()

    async def life() -> None:
        first = await slow.options(backoff=0).apush("cancelled")
        second = await slow.options(backoff=0).apush("kept")
        async with Way(simulated.address) as way, working(_far(app, way), lease_ms=LEASE_MS):
            await until(lambda: all(spans.values()))
            blocked = asyncio.Event()

            def at_question(data: bytes) -> bool:
                found = b'"EXTEND"' in data and b'"ids"' in data
                if found:
                    blocked.set()
                return found

            way.holds = at_question
            await first.acancel()
            await blocked.wait()
            async with working(app, lease_ms=LEASE_MS):
                await until_state(app, second.id, "completed")
                way.let_go()

    simulated.play(life())
    before, after = spans["kept"]
    assert before[1] <= after[0]


def test_a_lease_that_was_confirmed_too_late_is_not_worked_on(app: App, simulated: Simulated) -> None:
    """A worker waited for a job, asks whether its lease lives, and hears so when it does not any more."""
    begun: list[str] = []
    may_end = asyncio.Event()

    def made(name: str) -> App:
        made = App(app.name, server=simulated.address, queue=app.queue)

        @made.task(retry=0)
        async def slow() -> None:
            begun.append(name)
            await may_end.wait()

        return made

    async def life() -> None:
        async with Way(simulated.address) as way, AsyncExitStack() as stack:
            far = made("far")
            far.server = way.address
            await stack.enter_async_context(working(far, lease_ms=LEASE_MS))
            await asyncio.sleep(LEASE_MS / 4000 + 0.2)  # it waits for a job, and has for a while
            answered = asyncio.Event()

            def at_extend(data: bytes) -> bool:
                found = b'"EXTEND"' in data
                if found:
                    answered.set()
                return found

            way.holds = at_extend
            near = made("near")
            await near.tasks["slow"].options(backoff=0).apush()
            await answered.wait()
            await stack.enter_async_context(working(near, lease_ms=LEASE_MS))
            await until(lambda: begun)
            assert begun == ["near"]
            way.let_go()
            await asyncio.sleep(LEASE_MS / 1000)
            assert begun == ["near"]
            may_end.set()

    simulated.play(life())


def test_a_job_does_not_begin_after_its_lease_because_results_came_late(
    app: App, simulated: Simulated
) -> None:
    begun: list[str] = []

    @app.task
    async def one() -> int:
        return 1

    def made(name: str) -> App:
        made = App(app.name, server=simulated.address, queue=f"{app.queue}-last")

        @made.task(retry=0)
        async def last(before: int) -> int:
            begun.append(name)
            await asyncio.sleep(0.5)
            return before + 1

        return made

    async def life() -> None:
        async with Way(simulated.address) as way, AsyncExitStack() as stack:
            far, near = made("far"), made("near")
            far.server = way.address
            await stack.enter_async_context(working(far, lease_ms=LEASE_MS))
            asked = asyncio.Event()

            def at_children(data: bytes) -> bool:
                found = b'"MESSAGE"' in data
                if found:
                    asked.set()
                return found

            way.holds = at_children
            await stack.enter_async_context(working(app, lease_ms=LEASE_MS))
            flow: Any = chain(one.call(), near.tasks["last"].options(backoff=0).then())
            job = await flow.apush()
            await asked.wait()
            await stack.enter_async_context(working(near, lease_ms=LEASE_MS))
            await until(lambda: begun)
            way.let_go()
            assert await job.aresult(8) == 2
            assert begun == ["near"]

    simulated.play(life())


def test_a_lost_connection_amid_the_question_for_results_is_no_failure_of_the_job(
    app: App, simulated: Simulated
) -> None:
    @app.task
    async def one() -> int:
        return 1

    last_app = App(app.name, server=simulated.address, queue=f"{app.queue}-last")

    @last_app.task(retry=1)
    async def last(before: int) -> int:
        return before + 1

    async def life() -> None:
        async with Way(simulated.address) as way, AsyncExitStack() as stack:
            last_app.server = way.address
            await stack.enter_async_context(working(last_app, lease_ms=5_000))
            asked = asyncio.Event()

            def at_children(data: bytes) -> bool:
                found = b'"MESSAGE"' in data
                if found:
                    asked.set()
                return found

            way.holds = at_children
            await stack.enter_async_context(working(app))
            flow: Any = chain(one.call(), last.then())
            near = App(app.name, server=simulated.address)
            job = near.job((await near.aclient._ask(PushFlow(**flow._fields()))).id)
            await asked.wait()
            way.cut()
            way.let_go()
            assert await job.aresult(8) == 2
            await near.aclose()

    simulated.play(life())


def test_giving_back_late_does_not_take_a_job_from_who_has_it_now(app: App, simulated: Simulated) -> None:
    begun: list[str] = []
    may_end = asyncio.Event()

    def made(name: str) -> App:
        made = App(app.name, server=simulated.address, queue=app.queue)

        @made.task(retry=0)
        async def slow(number: int) -> None:
            begun.append(f"{name} {number}")
            await may_end.wait()

        return made

    async def life() -> None:
        async with Way(simulated.address) as way, Client(simulated.address) as client:
            far, near = made("far"), made("near")
            far.server = way.address
            worker = Worker(far, concurrency=1, prefetch=1, lease_ms=LEASE_MS, drain_s=0.1)
            running = asyncio.create_task(worker.run())
            slow: Any = near.tasks["slow"].options(backoff=0)
            await slow.apush(1)
            second = await slow.apush(2)
            await until(lambda: begun and worker._ready)
            way.hold()
            worker.stop()
            async with working(near, lease_ms=LEASE_MS):
                await until(lambda: "near 2" in begun)
                way.let_go()
                await asyncio.wait([running], timeout=5)
                may_end.set()
                await until_state(near, second.id, "completed")
            assert begun.count("near 2") == 1
            assert await client.state(second.id) == "completed"

    simulated.play(life())


def test_a_job_that_is_done_when_its_lease_is_lost_is_held_no_longer(app: App, simulated: Simulated) -> None:
    begun: list[str] = []
    may_end = {"first": asyncio.Event(), "second": asyncio.Event()}

    @app.task(retry=0)
    async def gated(name: str) -> None:
        begun.append(name)
        await may_end[name].wait()

    async def life() -> None:
        async with Way(simulated.address) as way, working(_far(app, way), lease_ms=LEASE_MS) as worker:
            await gated.apush("first")
            await until(lambda: begun)
            await gated.apush("second")
            await until(lambda: len(begun) == 2)
            way.hold()
            may_end["first"].set()  # its ack is on its way: the next one has to wait
            await asyncio.sleep(0.05)
            may_end["second"].set()
            await asyncio.sleep(LEASE_MS / 1000 * 1.5)
            way.cut()
            await until(lambda: worker._holding.count == 0, 3)

    simulated.play(life())


def test_a_worker_whose_server_does_not_answer_any_more_stops_soon(app: App, simulated: Simulated) -> None:
    @app.task
    async def quick() -> str:
        return "done"

    async def life() -> None:
        async with Way(simulated.address) as way, working(_far(app, way)) as worker:
            assert await (await quick.apush()).aresult() == "done"  # and now it waits for the next one
            await until(lambda: worker._holding.count == 0)
            way.hold()

    simulated.play(life())
