"""What tasks may do to a worker: nothing that ends it, and nothing that holds up other jobs."""

import asyncio
import contextvars
import threading
import time
from contextlib import suppress
from typing import Any

import pytest

from forebay.client.tasks.app import App
from forebay.client.tasks.task import Failed, GiveUp, Job, RetryLater
from forebay.client.worker.run import current
from forebay.core.errors import Invalid
from tests.client.worker.simulated import Simulated
from tests.client.worker.working import PATIENCE_S, play, until, until_state, working


async def _ends(app: App, bad: Any, fine: Any, state: str = "dead", **options: Any) -> None:
    """A bad job ends in some way, and the worker does the next one."""
    async with working(app, concurrency=1, **options):
        job: Job[Any] = await bad.apush()
        await until_state(app, job.id, state)
        assert await (await fine.apush()).aresult() == "fine"


def _fine(app: App) -> Any:
    @app.task
    async def fine() -> str:
        return "fine"

    return fine


def test_a_task_that_raises_cancelled_error_fails_and_the_worker_goes_on(app: App) -> None:
    @app.task(retry=1)
    async def bad() -> None:
        raise asyncio.CancelledError

    play(_ends(app, bad, _fine(app)))


def test_a_task_that_awaits_something_cancelled_fails_and_the_worker_goes_on(app: App) -> None:
    @app.task(retry=1)
    async def bad() -> None:
        inner = asyncio.create_task(asyncio.sleep(10))
        await asyncio.sleep(0)
        inner.cancel()
        await inner

    play(_ends(app, bad, _fine(app)))


def test_a_task_that_exits_fails_and_the_worker_goes_on(app: App) -> None:
    @app.task(retry=1)
    async def bad() -> None:
        raise SystemExit(3)

    play(_ends(app, bad, _fine(app)))


def test_a_task_that_exits_in_its_thread_fails_and_the_worker_goes_on(app: App) -> None:
    @app.task(retry=1)
    def bad() -> None:
        raise SystemExit(3)

    play(_ends(app, bad, _fine(app)))


def test_an_error_that_is_no_exception_fails_the_job_only(app: App) -> None:
    class Odd(BaseException):
        pass

    @app.task(retry=1)
    async def bad() -> None:
        raise Odd

    play(_ends(app, bad, _fine(app)))


def test_an_error_that_can_not_be_told_fails_the_job_only(app: App) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError("no words")

    @app.task(retry=1)
    async def bad() -> None:
        raise Mute

    play(_ends(app, bad, _fine(app)))


def test_an_error_that_is_no_text_of_json_fails_the_job(app: App) -> None:
    @app.task(retry=1)
    async def bad() -> None:
        raise ValueError("half of a pair: \ud800")

    play(_ends(app, bad, _fine(app)))


def test_a_result_that_is_too_large_fails_the_job(app: App) -> None:
    runs: list[int] = []

    @app.task(retry=5)
    async def bad() -> str:
        runs.append(1)
        return "x" * (1 << 20)

    play(_ends(app, bad, _fine(app)))
    assert runs == [1]  # it would be too large again


def test_a_result_that_is_too_large_does_not_hold_up_others_of_its_lease(app: App) -> None:
    @app.task(retry=1)
    async def made(size: int) -> str:
        return "x" * size

    async def life() -> None:
        ids = await made.apush_many([1 << 20, 1])
        async with working(app):
            await until_state(app, ids[1], "completed")
            await until_state(app, ids[0], "dead")

    play(life())


def test_a_result_that_is_no_json_fails_the_job(app: App) -> None:
    runs: list[int] = []

    @app.task(retry=5)
    async def bad() -> object:
        runs.append(1)
        return object()

    play(_ends(app, bad, _fine(app)))
    assert runs == [1]


@pytest.mark.parametrize("delay_ms", [-1, 1.5, 1 << 60])
def test_a_delay_that_is_none_fails_the_job(app: App, delay_ms: Any) -> None:
    @app.task(retry=1)
    async def bad() -> None:
        raise RetryLater(delay_ms=delay_ms)

    play(_ends(app, bad, _fine(app)))


def test_a_thread_task_that_holds_on_to_its_interruption_ends_all_the_same(app: App) -> None:
    @app.task(retry=1, timeout=0.1)
    def bad() -> str:
        try:
            while True:
                time.sleep(0.01)
        except BaseException:
            return "caught"

    async def life() -> None:
        async with working(app, concurrency=1):
            job = await bad.apush()
            await until_state(app, job.id, "dead", "completed")
            assert await (await fine.apush()).aresult() == "fine"

    fine = _fine(app)
    play(life())


def test_a_thread_task_that_makes_another_error_of_its_interruption_fails(app: App) -> None:
    @app.task(retry=1, timeout=0.1)
    def bad() -> None:
        try:
            while True:
                time.sleep(0.01)
        finally:
            raise ValueError("on the way out")

    play(_ends(app, bad, _fine(app)))


def test_a_task_that_makes_another_error_of_its_cancellation_leaves_no_trace_in_the_next(
    simulated: Simulated,
) -> None:
    app = simulated.app()
    begun = asyncio.Event()

    @app.task(retry=1)
    async def stubborn() -> None:
        begun.set()
        try:
            await asyncio.sleep(30)
        except BaseException:
            raise ValueError("on the way out") from None

    @app.task(retry=1)
    async def grouped() -> None:
        async def fails() -> None:
            raise ValueError("in a group")

        async with asyncio.TaskGroup() as group:
            group.create_task(fails())
            group.create_task(asyncio.sleep(10))

    async def life() -> None:
        async with working(app, concurrency=1):
            job = await stubborn.apush()
            await begun.wait()
            await job.acancel()
            after = await grouped.apush()
            await until_state(app, after.id, "dead")

    simulated.play(life())


def test_a_context_variable_of_one_job_is_not_there_in_the_next(app: App) -> None:
    who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")

    @app.task
    async def known(name: str) -> str:
        before = who.get()
        who.set(name)
        return before

    async def life() -> None:
        async with working(app, concurrency=1):
            assert await (await known.apush("ada")).aresult() == "nobody"
            assert await (await known.apush("alan")).aresult() == "nobody"

    play(life())


def test_the_blocking_way_to_tell_progress_is_refused_where_it_would_wait_for_itself(app: App) -> None:
    said: list[str] = []

    @app.task(retry=1)
    async def wrong() -> None:
        try:
            current().progress(50)
        except RuntimeError:
            said.append("refused")

    async def life() -> None:
        async with working(app):
            await (await wrong.apush()).aresult()

    # A worker that blocks for ever can't be stopped from inside its loop: it gets a thread of its own.
    thread = threading.Thread(target=lambda: asyncio.run(life()), daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert said == ["refused"]


def test_a_failed_job_says_why_when_its_result_is_asked_for(app: App) -> None:
    @app.task(retry=1)
    async def bad() -> None:
        raise ValueError("no such user")

    async def life() -> None:
        async with working(app):
            job = await bad.apush()
            with pytest.raises(Failed, match="ValueError: no such user"):
                await job.aresult()

    play(life())


@pytest.mark.parametrize("fails", [False, True], ids=["done", "failed"])
def test_a_job_that_ends_after_it_was_cancelled_does_not_take_its_neighbours_along(
    app: App, fails: bool
) -> None:
    begun: list[str] = []
    go_on, slow_may_end = asyncio.Event(), asyncio.Event()

    @app.task
    async def quick() -> None:
        begun.append("quick")
        await go_on.wait()
        if fails:
            raise ValueError("too late")

    @app.task
    async def slow() -> str:
        begun.append("slow")
        await slow_may_end.wait()
        return "done"

    async def life() -> None:
        first, second = await quick.apush(), await slow.apush()
        async with working(app, lease_ms=20_000) as worker:
            await until(lambda: len(begun) == 2)
            await first.acancel()
            go_on.set()
            await until(lambda: worker._holding.count < 2)
            slow_may_end.set()
            assert await second.aresult() == "done"
            assert begun.count("slow") == 1

    play(life())


def test_who_gave_up_is_told_why(app: App) -> None:
    @app.task
    async def bad() -> None:
        raise GiveUp("no such user")

    async def life() -> None:
        async with working(app):
            with pytest.raises(Failed, match="no such user"):
                await (await bad.apush()).aresult()

    play(life())


def test_a_task_that_cancels_itself_fails_and_nobody_else_does(app: App) -> None:
    may_end = asyncio.Event()

    @app.task(retry=1)
    async def bad() -> None:
        current = asyncio.current_task()
        assert current is not None
        current.cancel()
        await asyncio.sleep(10)

    @app.task(retry=1)
    async def swallows() -> str:
        current = asyncio.current_task()
        assert current is not None
        current.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(10)
        return "swallowed"

    @app.task
    async def other() -> str:
        await may_end.wait()
        return "done"

    async def life() -> None:
        async with working(app, concurrency=2):
            beside = await other.apush()
            assert await (await swallows.apush()).aresult() == "swallowed"
            for _ in range(2):
                with pytest.raises(Failed, match="CancelledError"):
                    await (await bad.apush()).aresult()
            may_end.set()
            assert await beside.aresult() == "done"

    play(life())


def test_values_that_can_not_be_compared_or_told_end_no_worker(app: App) -> None:
    class Odd(RetryLater):
        def __eq__(self, other: object) -> bool:
            raise ValueError("not with me")

        def __str__(self) -> str:
            raise ValueError("not by me")

    left: contextvars.ContextVar[Any] = contextvars.ContextVar("left", default=None)

    @app.task(retry=1)
    async def bad() -> None:
        left.set(Odd())
        raise Odd

    play(_ends(app, bad, _fine(app)))


def test_a_task_that_cancels_its_runner_after_its_end_ends_no_worker(app: App) -> None:
    @app.task
    async def now() -> str:
        current = asyncio.current_task()
        assert current is not None
        current.cancel()
        return "now"

    @app.task
    async def later() -> str:
        current = asyncio.current_task()
        assert current is not None
        asyncio.get_running_loop().call_later(0.05, current.cancel)
        return "later"

    fine = _fine(app)

    async def life() -> None:
        async with working(app, concurrency=2) as worker:
            for task in (now, later):
                await task.apush()
            await asyncio.sleep(0.2)
            jobs = [await fine.apush() for _ in range(10)]
            assert [await each.aresult() for each in jobs] == ["fine"] * 10
            assert (worker._woken, len(worker._runners)) == (0, 2)

    play(life())


def test_errors_that_are_made_badly_fail_the_job(app: App) -> None:
    class Unmade(RetryLater):
        def __init__(self) -> None: ...

    @app.task(retry=1)
    async def bad() -> None:
        raise Unmade

    @app.task(retry=1)
    async def generator_exit() -> None:
        raise GeneratorExit

    fine = _fine(app)
    play(_ends(app, bad, fine))
    play(_ends(app, generator_exit, fine))
    with pytest.raises(Invalid, match="give_up_on must be a class of errors"):
        app.task(name="other", give_up_on=[ValueError("no class")])  # type: ignore[list-item]


def test_a_runner_that_is_cancelled_just_when_a_job_comes_ends_no_worker(app: App) -> None:
    fine = _fine(app)

    async def life() -> None:
        async with working(app, concurrency=1) as worker:
            await until(lambda: worker._idle)
            (runner,) = worker._runners
            runner.cancel()
            worker._idle.pop()  # as a job does that comes before the runner has noticed
            assert await (await fine.apush()).aresult() == "fine"

    play(life())
