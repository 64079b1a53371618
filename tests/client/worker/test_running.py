"""Tasks as they run: arguments, results, retries, time limits, cancellation, progress."""

import asyncio
import dataclasses
import datetime
import enum
import itertools
import logging
import threading
import time
import uuid
from collections.abc import Iterable
from typing import Any

import msgspec
import pydantic
import pytest

from forebay.client.tasks.app import App
from forebay.client.tasks.task import Failed, GiveUp, NotDone, Retry, RetryLater
from forebay.client.worker.run import Run, current
from forebay.client.worker.worker import Worker
from forebay.core.errors import Invalid
from tests.client.worker.simulated import Simulated
from tests.client.worker.working import PATIENCE_S, play, until, until_state, working
from tests.serving import Server


class Point(msgspec.Struct):
    x: int
    y: int = 0


@dataclasses.dataclass
class Pair:
    left: str
    right: int


class Model(pydantic.BaseModel):
    name: str


class Colour(enum.Enum):
    RED = "red"


VALUES: list[tuple[Any, Any]] = [
    (Point, Point(1, 2)),
    (Pair, Pair("a", 1)),
    (Model, Model(name="ada")),
    (datetime.datetime, datetime.datetime(2026, 1, 2, 3, 4, tzinfo=datetime.UTC)),
    (uuid.UUID, uuid.UUID(int=7)),
    (Colour, Colour.RED),
    (list[Point], [Point(1), Point(2)]),
    (list[Model], [Model(name="ada")]),
    (Point | None, None),
    (set[int], {1, 2}),
    (bytes, b"\x00\xff"),
    (float, 1.0),
    (dict[int, str], {1: "a"}),
    (Iterable[int], [1, 2]),
    (msgspec.Raw, msgspec.Raw(b'{"a":1}')),
]


@pytest.mark.parametrize(("kind", "value"), VALUES, ids=lambda each: getattr(each, "__name__", "value")[:20])
def test_an_argument_is_what_the_function_says_it_takes(app: App, kind: Any, value: Any) -> None:
    got: list[Any] = []

    def take(here: Any, *, named: Any) -> None:
        got.append((here, named))

    take.__annotations__ = {"here": kind, "named": kind}
    task = app.task(take)

    async def life() -> None:
        async with working(app):
            await (await task.apush(value, named=value)).aresult()

    play(life())
    assert got == [(value, value)]
    assert [type(each) for each in got[0]] == [type(value)] * 2


@pytest.mark.parametrize(("kind", "value"), VALUES, ids=lambda each: getattr(each, "__name__", "value")[:20])
def test_a_result_is_what_the_function_says_it_returns(app: App, kind: Any, value: Any) -> None:
    def give() -> Any:
        return value

    give.__annotations__ = {"return": kind}
    task = app.task(give)

    async def life() -> None:
        async with working(app):
            result = await (await task.apush()).aresult()
            assert (result, type(result)) == (value, type(value))

    play(life())


def test_arguments_that_are_not_those_of_the_function_are_refused_before_they_are_pushed(app: App) -> None:
    @app.task
    async def add(left: int, right: int) -> int:
        return left + right

    with pytest.raises(Invalid, match="arguments"):
        add.call(1)  # type: ignore[call-arg]
    with pytest.raises(Invalid, match="arguments"):
        add.then(1, 2)


def test_bytes_arrive_as_bytes_where_the_function_says_so_and_as_base64_elsewhere(app: App) -> None:
    @app.task
    async def kinds(one: bytes, several: list[bytes], any: Any) -> list[Any]:
        return [one == b"\x00\xff", several == [b"a", b"b"], any]

    async def life() -> None:
        async with working(app):
            job = await kinds.apush(b"\x00\xff", [b"a", b"b"], b"\x00\xff")
            assert await job.aresult() == [True, True, "AP8="]

    play(life())


def test_arguments_by_any_name_have_the_type_that_the_function_says(app: App) -> None:
    @app.task
    async def kinds(place: int, /, named: bytes, loose: Any = None, **others: bytes) -> list[Any]:
        return [place, named == b"\xff", loose, others == {"place": b"\xfe", "more": b"\xfd"}]

    async def life() -> None:
        async with working(app):
            given = {"place": b"\xfe", "more": b"\xfd"}
            job = await kinds.apush(1, named=b"\xff", loose=b"\xff", **given)
            assert await job.aresult() == [1, True, "/w==", True]

    play(life())


def test_arguments_of_another_type_fail_the_job(app: App) -> None:
    @app.task(retry=1)
    async def take(point: Point) -> None:
        raise AssertionError

    async def life() -> None:
        async with working(app):
            id = (
                await app.aclient.push(app.queue, {"task": "take", "args": ["no point"]}, max_attempts=1)
            ).id
            with pytest.raises(Failed, match="Expected `object`"):
                await app.job(id).aresult()

    play(life())


@pytest.mark.parametrize("value", [None, 0, "", [], {"a": [1, None]}, 1.5, True])
def test_a_result_comes_back_as_it_was(app: App, value: Any) -> None:
    @app.task
    async def in_loop() -> Any:
        return value

    @app.task
    def in_thread() -> Any:
        return value

    async def life() -> None:
        async with working(app):
            assert await (await in_loop.apush()).aresult() == value
            assert await (await in_thread.apush()).aresult() == value

    play(life())


def test_a_result_can_be_asked_for_as_another_type(app: App) -> None:
    @app.task
    async def made() -> Point:
        return Point(3, 4)

    async def life() -> None:
        async with working(app):
            job = await made.apush()
            assert await job.aresult() == Point(3, 4)
            assert await job.aresult(type=dict[str, float]) == {"x": 3.0, "y": 4.0}
            assert await job.aresult(type=Any) == {"x": 3, "y": 4}

    play(life())


def test_the_result_of_what_has_not_ended_is_not_done(app: App) -> None:
    @app.task
    async def never() -> None:
        pass

    async def life() -> None:
        job = await never.apush()
        with pytest.raises(NotDone):
            await job.aresult(0.01)
        await app.aclose()

    play(life())


def test_a_task_that_is_called_runs_here_and_now(app: App) -> None:
    @app.task
    def add(left: int, right: int = 1) -> int:
        return left + right

    @app.task
    async def twice(number: int) -> int:
        return 2 * number

    assert add(1) == 2
    assert play(twice(2)) == 4


# Again.


def test_a_job_that_fails_is_tried_as_often_as_it_says_and_then_dead(app: App) -> None:
    attempts: list[int] = []

    @app.task(retry=Retry(max_attempts=3, base_ms=1))
    async def bad() -> None:
        attempts.append(current().attempt)
        raise ValueError("again and again")

    async def life() -> None:
        async with working(app):
            job = await bad.apush()
            with pytest.raises(Failed, match="again and again"):
                await job.aresult()
            assert attempts == [1, 2, 3]
            assert [each.id for each in (await app.aclient.dead(app.queue)).messages] == [job.id]

    play(life())


def test_a_dead_job_tells_type_traceback_and_worker_of_each_attempt(app: App) -> None:
    def deep(attempt: int) -> None:
        raise [KeyError, ValueError][attempt - 1]("no user")

    @app.task(retry=Retry(max_attempts=2, base_ms=1))
    async def bad() -> None:
        deep(current().attempt)

    async def life() -> None:
        async with working(app, name="mailer-1"):
            job = await bad.apush()
            with pytest.raises(Failed):
                await job.aresult()
            found = await app.aclient.attempts(job.id)
            assert [(each.deliveries, each.error_type, each.error) for each in found] == [
                (1, "KeyError", "KeyError: 'no user'"),
                (2, "ValueError", "ValueError: no user"),
            ]
            assert {each.worker for each in found} == {"mailer-1"}
            for each in found:
                assert (each.traceback or "").endswith(each.error)
                assert "in deep" in (each.traceback or "")

    play(life())


def test_a_failed_job_waits_for_its_backoff(app: App) -> None:
    @app.task(retry=Retry(base_ms=60_000, jitter=0.0))
    async def bad() -> None:
        raise ValueError

    async def life() -> None:
        async with working(app):
            job = await bad.apush()
            await until_state(app, job.id, "delayed")
            seen = await app.aclient.message(job.id)
            assert seen.failures == 1
            assert 50_000 < (seen.due_at or 0) - time.time() * 1000 <= 60_000

    play(life())


def test_a_job_that_asks_to_be_tried_later_is_tried_then(app: App) -> None:
    @app.task
    async def later() -> None:
        raise RetryLater("the moon is wrong", delay_ms=3_600_000)

    async def life() -> None:
        async with working(app):
            job = await later.apush()
            await until_state(app, job.id, "delayed")
            seen = await app.aclient.message(job.id)
            assert seen.error == "the moon is wrong"
            assert (seen.due_at or 0) - time.time() * 1000 > 3_500_000

    play(life())


@pytest.mark.parametrize("how", ["raised", "declared"])
@pytest.mark.parametrize("threaded", [False, True], ids=["loop", "thread"])
def test_who_gives_up_is_dead_at_once(app: App, how: str, threaded: bool) -> None:
    runs: list[int] = []

    def fail() -> None:
        runs.append(1)
        raise GiveUp("never") if how == "raised" else KeyError("never")

    async def afail() -> None:
        fail()

    task: Any = app.task(retry=5, give_up_on=[LookupError])(fail if threaded else afail)

    async def life() -> None:
        async with working(app):
            job = await task.apush()
            await until_state(app, job.id, "dead")
            assert runs == [1]
            (dead,) = (await app.aclient.dead(app.queue)).messages
            assert "never" in (dead.error or "")

    play(life())


def test_an_unknown_task_and_what_is_no_task_fail_and_say_so(app: App) -> None:
    app.task(name="known")(lambda: None)

    async def life() -> None:
        async with working(app, unknown_for_s=0):
            for payload, said, attempts in (
                ({"task": "other"}, "knows no task other", 9),
                ([1, 2], "this is no task", 9),  # that will not get better, and is given up
                ({"task": "known", "args": [1]}, "the task known of this worker takes other arguments", 9),
                (
                    {"task": "known", "kwargs": {"a": 1}},
                    "the task known of this worker takes other arguments",
                    9,
                ),
            ):
                id = (await app.aclient.push(app.queue, payload, max_attempts=attempts)).id
                with pytest.raises(Failed, match=said):
                    await app.job(id).aresult()

    play(life())


def test_an_app_has_a_queue_of_its_own_name() -> None:
    assert App("mailer").task(name="send")(lambda: None).queue == "mailer"
    assert App("mailer", queue="mails").task(name="send")(lambda: None).queue == "mails"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cron": "nonsense"}, r"cron must be .* \(task send\)"),
        ({"cron": "0 3 * * *", "timezone": "Europe/Roma"}, r"timezone must be .* \(task send\)"),
        ({"timezone": "Europe/Rome"}, "timezone must be left out"),
        ({"timeout": 0}, "timeout must be more than 0"),
        ({"retry": "5"}, "retry must be a number"),
        ({"max_atempts": 5}, "max_attempts was meant"),
        ({"bogus": 5}, "bogus must be left out"),
    ],
    ids=str,
)
def test_what_is_wrong_with_a_task_is_said_when_it_is_declared(options: dict[str, Any], said: str) -> None:
    app = App("mailer")
    with pytest.raises(Invalid, match=said):
        app.task(name="send", **options)(lambda: None)


def test_one_error_to_give_up_on_needs_no_list() -> None:
    task: Any = App("mailer").task(name="send", give_up_on=KeyError)(lambda: None)
    assert task.give_up_on == (KeyError,)


def test_a_worker_that_can_not_begin_says_so_at_once(app: App) -> None:
    app.task(name="send")(lambda: None)
    app.queue_options[app.queue] = {"nonsense": 1}

    async def life() -> None:
        with pytest.raises(Invalid, match="nonsense"):
            async with Worker(app):
                raise AssertionError("it began")

    play(life())


# Time.


def test_a_coroutine_that_takes_too_long_is_ended(app: App) -> None:
    ended: list[str] = []

    @app.task(timeout=0.05, retry=1)
    async def slow() -> None:
        try:
            await asyncio.sleep(30)
        finally:
            ended.append("slow")

    async def life() -> None:
        async with working(app):
            with pytest.raises(Failed, match=r"slow took longer than 0\.05 s"):
                await (await slow.apush()).aresult()

    play(life())
    assert ended == ["slow"]


def test_a_thread_that_takes_too_long_is_ended(app: App) -> None:
    ended: list[str] = []

    @app.task(timeout=0.05, retry=1)
    def slow() -> None:
        try:
            while True:
                time.sleep(0.01)
        finally:
            ended.append("slow")

    async def life() -> None:
        async with working(app, concurrency=1):
            with pytest.raises(Failed, match=r"slow took longer than 0\.05 s"):
                await (await slow.apush()).aresult()
            assert ended == ["slow"]

    play(life())


def test_a_timeout_that_a_task_raises_is_its_own(app: App) -> None:
    @app.task(timeout=10, retry=1)
    async def bad() -> None:
        raise TimeoutError("of mine")

    async def life() -> None:
        async with working(app):
            with pytest.raises(Failed, match="of mine"):
                await (await bad.apush()).aresult()

    play(life())


def test_a_lease_is_kept_for_as_long_as_a_job_runs(simulated: Simulated) -> None:
    app = simulated.app()
    runs: list[int] = []

    @app.task
    async def slow() -> str:
        runs.append(current().attempt)
        await asyncio.sleep(50)
        return "done"

    async def life() -> None:
        async with working(app, lease_ms=5_000), working(app, lease_ms=5_000):
            assert await (await slow.apush()).aresult(60) == "done"
        assert runs == [1]

    simulated.play(life())


# Cancelled.


def test_a_coroutine_that_was_cancelled_ends_when_its_lease_is_extended(simulated: Simulated) -> None:
    app = simulated.app()
    begun, ended = asyncio.Event(), asyncio.Event()

    @app.task
    async def slow() -> None:
        begun.set()
        try:
            await asyncio.sleep(30)
        finally:
            ended.set()

    async def life() -> None:
        async with working(app, lease_ms=20_000) as worker:
            job = await slow.apush()
            await begun.wait()
            (lease,) = worker._holding.leases()
            await job.acancel()
            await ended.wait()
            assert asyncio.get_running_loop().time() < lease.until
            assert await job.astate() == "cancelled"

    simulated.play(life())


@pytest.mark.parametrize("requeued", [False, True])
def test_a_job_that_learns_of_its_end_from_its_own_report_is_no_failure(
    simulated: Simulated, caplog: pytest.LogCaptureFixture, requeued: bool
) -> None:
    app = simulated.app()
    begun, cancelled, told = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @app.task
    async def reports() -> None:
        begun.set()
        await cancelled.wait()
        told.set()
        await current().aprogress(50)
        raise AssertionError("the report was taken")

    @app.task
    async def next_one() -> int:
        await asyncio.sleep(1)
        return current().attempt

    async def life() -> None:
        job, behind = await reports.apush(), await next_one.apush()
        async with working(app, lease_ms=20_000, concurrency=1, prefetch=1):
            await begun.wait()
            if requeued:  # another worker may have it now
                await app.aclient.delay(job.id, 60_000)
            else:
                await job.acancel()
            cancelled.set()
            await told.wait()
            await until(lambda: any(record.name == "forebay.worker" for record in caplog.records))
            assert await job.astate() == ("delayed" if requeued else "cancelled")
            assert await app.aclient.attempts(job.id) == []
            assert await behind.aresult(60) == 1

    with caplog.at_level(logging.WARNING, "forebay.worker"):
        simulated.play(life())
    (line,) = (record.getMessage() for record in caplog.records if record.name == "forebay.worker")
    assert line.endswith("reports: lost" if requeued else "reports: cancelled")


def test_a_thread_that_was_cancelled_ends_and_others_of_its_lease_go_on(
    app: App, quick_extends: None
) -> None:
    begun: list[str] = []
    ended: list[str] = []
    may_end = threading.Event()

    @app.task
    def slow(name: str) -> str:
        begun.append(name)
        try:
            while not may_end.is_set():
                time.sleep(0.01)
        finally:
            ended.append(name)
        return name

    async def life() -> None:
        first, second = await slow.apush("a"), await slow.apush("b")
        async with working(app):
            await until(lambda: len(begun) == 2)
            await first.acancel()
            await until(lambda: ended)
            may_end.set()
            assert await second.aresult() == "b"
            assert await first.astate() == "cancelled"
            assert sorted(ended) == ["a", "b"]

    play(life())


def test_what_is_cancelled_before_it_began_does_not_begin(simulated: Simulated) -> None:
    app = simulated.app()
    begun: list[str] = []
    may_end = asyncio.Event()

    @app.task
    async def gated(name: str) -> None:
        begun.append(name)
        await may_end.wait()

    async def life() -> None:
        await gated.apush("a")
        second = await gated.apush("b")
        async with working(app, concurrency=1, prefetch=2) as worker:
            await until(lambda: begun and worker._ready)
            await second.acancel()
            await until(lambda: worker._holding.count == 1)
            may_end.set()
        assert begun == ["a"]

    simulated.play(life())


# What is told.


def test_progress_and_log_lines_are_told_from_coroutines_and_threads(app: App) -> None:
    @app.task
    async def in_loop() -> None:
        await current().aprogress(40, "halfway, nearly")
        await current().alog("a line", level="warn")

    @app.task
    def in_thread() -> None:
        current().progress(40, "halfway, nearly")
        current().log("a line", level="warn")

    async def life() -> None:
        async with working(app):
            for task in (in_loop, in_thread):
                job: Any = await task.apush()
                await job.aresult()
                told = await job.aprogress()
                assert (told.progress, told.message) == (40, "halfway, nearly")
                (line,) = await app.aclient.logs(job.id)
                assert (line.message, line.level) == ("a line", "warn")

    play(life())


def test_nothing_is_current_outside_of_a_task() -> None:
    with pytest.raises(RuntimeError, match="no task runs here"):
        current()


def test_middlewares_are_around_every_run_the_first_outermost(app: App) -> None:
    said: list[str] = []

    def around(name: str) -> None:
        @app.middleware
        async def middleware(run: Run, go_on: Any) -> Any:
            said.append(f"{name} before {run.task.name}")
            try:
                return f"{name}({await go_on()})"
            finally:
                said.append(f"{name} after")

    around("outer")
    around("inner")

    @app.task
    async def in_loop() -> str:
        return "done"

    @app.task(retry=1)
    def in_thread() -> str:
        raise ValueError("of the task")

    async def life() -> None:
        async with working(app):
            assert await (await in_loop.apush()).aresult() == "outer(inner(done))"
            with pytest.raises(Failed, match="of the task"):
                await (await in_thread.apush()).aresult()

    play(life())
    assert said[:4] == ["outer before in_loop", "inner before in_loop", "inner after", "outer after"]
    assert len(said) == 8


def test_a_middleware_that_raises_fails_the_job(app: App) -> None:
    @app.middleware
    async def refuses(run: Run, go_on: Any) -> Any:
        raise PermissionError("not today")

    @app.task(retry=1)
    async def never() -> None:
        raise AssertionError

    async def life() -> None:
        async with working(app):
            with pytest.raises(Failed, match="PermissionError: not today"):
                await (await never.apush()).aresult()

    play(life())


def test_hooks_are_called_when_a_worker_starts_and_when_it_has_stopped(app: App) -> None:
    said: list[str] = []

    @app.on_start
    def first() -> None:
        said.append("start")

    @app.on_start
    async def second() -> None:
        said.append("start later")

    @app.on_stop
    async def last() -> None:
        said.append("stop")

    @app.task
    async def job() -> None:
        said.append("job")

    async def life() -> None:
        async with working(app):
            await (await job.apush()).aresult()

    play(life())
    assert said == ["start", "start later", "job", "stop"]


def test_what_a_worker_logs_has_fields(app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.task(retry=1)
    async def bad() -> None:
        raise ValueError("no")

    async def life() -> int:
        async with working(app):
            job = await bad.apush()
            await until_state(app, job.id, "dead")
            return job.id

    with caplog.at_level(logging.INFO, "forebay.worker"):
        id = play(life())
    fields: list[Any] = [each.fields for each in caplog.records if hasattr(each, "fields")]
    assert fields == [{"task": "bad", "id": id, "queue": app.queue, "attempt": 1, "error": "ValueError: no"}]


def test_starts_and_ends_of_jobs_are_logged_at_debug_with_their_ids(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task
    async def good() -> None: ...

    async def life() -> int:
        async with working(app):
            job = await good.apush()
            await job.aresult()
            return job.id

    with caplog.at_level(logging.DEBUG, "forebay.worker"):
        id = play(life())
    told = [(each.getMessage(), each.fields) for each in caplog.records if hasattr(each, "fields")]
    about = {"task": "good", "id": id, "queue": app.queue, "attempt": 1}
    assert [text for text, _ in told] == [f"job {id} good starts", f"job {id} good done"]
    assert told[0][1] == about
    assert told[1][1].pop("ms") >= 0
    assert told[1][1] == about


# How many.


def test_no_more_run_at_once_than_may(app: App) -> None:
    running, most = 0, 0

    @app.task
    async def busy() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1

    async def life() -> None:
        ids = await busy.apush_many([()] * 30)
        async with working(app, concurrency=3):
            await app.job(ids[-1]).aresult()

    play(life())
    assert most == 3


def test_a_worker_with_slow_jobs_leaves_the_others_to_other_workers(app: App) -> None:
    begun: list[int] = []
    may_end = asyncio.Event()

    @app.task
    async def slow(number: int) -> None:
        begun.append(number)
        await may_end.wait()

    async def life() -> None:
        await slow.apush_many(range(4))
        async with working(app, concurrency=2):
            await until(lambda: len(begun) == 2)
            await asyncio.sleep(0.1)
            async with working(app, concurrency=2):
                await until(lambda: len(begun) == 4)
                may_end.set()

    play(life())


@pytest.mark.parametrize("prefetch", [None, 0, 2])
@pytest.mark.parametrize("concurrency", [2, 3, 16])
def test_jobs_that_come_one_by_one_run_at_once_as_long_as_there_is_a_free_slot(
    simulated: Simulated, concurrency: int, prefetch: int | None
) -> None:
    app = simulated.app()

    @app.task
    async def long() -> None:
        await asyncio.sleep(60)

    async def life() -> None:
        async with working(app, concurrency=concurrency, prefetch=prefetch):
            jobs = []
            for _ in range(concurrency):
                jobs.append(await long.apush())
                await asyncio.sleep(1)
            assert [await job.astate() for job in jobs] == ["active"] * concurrency
            for job in jobs:
                await job.aresult(wait_s=90)

    simulated.play(life())


def test_threads_run_side_by_side(app: App) -> None:
    meet = threading.Barrier(8, timeout=PATIENCE_S)

    @app.task(retry=1)
    def met() -> None:
        meet.wait()

    async def life() -> None:
        ids = await met.apush_many([()] * 8)
        async with working(app, concurrency=8):
            for id in ids:
                await app.job(id).aresult()

    play(life())


def test_jobs_of_a_queue_in_strict_order_run_one_after_the_other_and_a_retry_holds_back_the_rest(
    app: App,
) -> None:
    app.queue_options[app.queue] = {"ordering": "partition", "backoff": 10}
    seen: list[tuple[str, int]] = []

    @app.task(retry=3)
    async def step(at: int) -> None:
        seen.append(("begin", at))
        await asyncio.sleep(0.01)
        if at == 1 and seen.count(("begin", 1)) == 1:
            raise ValueError("once")
        seen.append(("end", at))

    async def life() -> None:
        await app.declare()  # the order of a queue is settled before its first message
        async with working(app, concurrency=8):
            jobs = [await step.apush(at) for at in range(4)]
            await jobs[-1].aresult()

    play(life())
    assert [at for what, at in seen if what == "begin"] == [0, 1, 1, 2, 3]
    assert [at for what, at in seen if what == "end"] == [0, 1, 2, 3]
    assert all(before[0] != "begin" or before[1] == after[1] for before, after in itertools.pairwise(seen))


def test_a_worker_of_many_queues_takes_no_more_than_it_can_run(app: App, server: Server) -> None:
    may_end = asyncio.Event()
    many = App(app.name, server=server.tcp)

    async def wait() -> None:
        await may_end.wait()

    tasks = [many.task(name=f"wait-{at}", queue=f"{app.queue}-{at}")(wait) for at in range(4)]

    async def life() -> None:
        jobs = [await task.apush() for task in tasks]
        async with working(many, concurrency=1, prefetch=0) as worker:
            await until(lambda: worker._holding.count == 1 and len(worker._idle) == 0)
            states = sorted([await job.astate() for job in jobs])
            while states != ["active", "waiting", "waiting", "waiting"]:
                states = sorted([await job.astate() for job in jobs])
            may_end.set()
            for job in jobs:
                await job.aresult()

    play(life())
