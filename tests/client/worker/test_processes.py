"""Tasks in processes of their own. A child imports this file, and finds the tasks in it."""

import asyncio
import dataclasses
import datetime
import enum
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest

from forebay.client.tasks.app import App
from forebay.client.tasks.task import Failed, GiveUp, RetryLater
from forebay.client.types import Message
from forebay.client.worker.current import current
from forebay.client.worker.pipe import Asked
from forebay.client.worker.processes import Call, Children, Died
from forebay.core.errors import Conflict
from tests.client.worker.working import Process, play, until, until_state, working
from tests.serving import PATIENCE_S, Server

app = App("processes", queue="processes")


class Colour(enum.Enum):
    RED = "red"


class Point(msgspec.Struct):
    x: int


@dataclasses.dataclass
class Pair:
    left: str


class Model(pydantic.BaseModel):
    name: str


@app.task(process=True)
def where() -> int:
    return os.getpid()


@app.task(process=True)
def typed(
    point: Point, pair: Pair, model: Model, at: datetime.datetime, colour: Colour, several: set[int]
) -> list[str]:
    return [type(each).__name__ for each in (point, pair, model, at, colour, several)]


@app.task(process=True)
def made() -> Point:
    return Point(1)


@app.task(process=True, retry=1)
def bad() -> None:
    raise ValueError("no such user")


@app.task(process=True, retry=5)
def gives_up() -> None:
    raise GiveUp("never")


@app.task(process=True, retry=5, give_up_on=[LookupError])
def gives_up_on() -> None:
    raise KeyError("never")


@app.task(process=True)
def later() -> None:
    raise RetryLater("not now", delay_ms=3_600_000)


@app.task(process=True, retry=1, timeout=0.5)
def endless() -> None:
    while True:
        pass


@app.task(process=True, retry=1)
def exits() -> None:
    sys.exit(3)


@app.task(process=True, retry=1)
def no_json() -> Any:
    return lambda: None


@app.task(process=True)
def slow(file: str) -> None:
    Path(file).write_text(str(os.getpid()))
    time.sleep(30)


@app.task(process=True)
def server_of_mine() -> str | None:
    return app.server


@app.task(process=True, retry=1, timeout=3)
def forks(file: str) -> None:
    if not os.fork():
        Path(file).write_text(str(os.getpid()))
        time.sleep(60)
        os._exit(0)
    time.sleep(60)


@app.task(process=True, retry=1)
def terminates() -> int:
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    started.terminate()
    return started.wait()


@app.task(process=True, retry=2, headers={"trace": "abc"})
def reports() -> list[Any]:
    job = current()
    for percent in range(10_000):
        job.progress(percent // 200, "halfway")
    job.log("one")
    job.log("two", level="warn")
    if job.attempt == 1:
        raise ValueError("once")
    return [job.id, job.attempt, job.task.name, job.message.headers, job.message.queue]


@app.task(process=True)
def reports_nonsense() -> list[str]:
    found = []
    for wrong in (1_000, "half"):
        try:
            current().progress(wrong)  # type: ignore[arg-type]
        except Exception as error:
            found.append(type(error).__name__)
    return found


@app.task(process=True)
def reports_in_a_loop() -> None:
    async def told() -> None:
        await current().aprogress(7)
        await current().alog("in a loop")

    asyncio.run(told())


@app.task(process=True)
def leaves_its_job_behind() -> None:
    late.append(current())


@app.task(process=True)
def reports_for_the_last_one() -> str:
    try:
        late[-1].log("never")
    except RuntimeError as error:
        return str(error)
    return "it could"


late: list[Any] = []
"""What a task left behind in its process."""


@app.task(process=True)
def reports_and_goes_on(file: str) -> None:
    current().progress(1)
    Path(file).write_text(str(os.getpid()))
    while True:
        with suppress(Conflict):  # it is cancelled
            current().progress(int(time.monotonic() * 1000) % 100)


@app.task(process=True)
def pushes_later(queue: str, count: int) -> None:
    for number in range(count):
        app.client.push_later(queue, number)
        noted.push_later(number)


@app.task(queue="processes-noted")
def noted(number: int) -> None: ...


def _runs(pid: str) -> bool:
    """Whether a process is there, and not only waits to be forgotten."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture(autouse=True)
def _of_this_server(server: Server) -> None:
    app.server = server.tcp


def test_a_process_is_another_one_and_is_used_again() -> None:
    async def life() -> None:
        async with working(app, concurrency=1):
            first, second = [await (await where.apush()).aresult() for _ in range(2)]
            assert first == second != os.getpid()

    play(life())


def test_arguments_and_results_of_a_process_have_their_types() -> None:
    async def life() -> None:
        async with working(app):
            at = datetime.datetime.now(datetime.UTC)
            job = await typed.apush(Point(1), Pair("a"), Model(name="ada"), at, Colour.RED, {1})
            assert await job.aresult() == ["Point", "Pair", "Model", "datetime", "Colour", "set"]
            assert await (await made.apush()).aresult() == Point(1)

    play(life())


def test_what_a_process_raises_fails_the_job_and_the_process_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def life() -> None:
        async with working(app, concurrency=1):
            before = await (await where.apush()).aresult()
            job = await bad.apush()
            with pytest.raises(Failed, match=r"dead: ValueError: no such user$"):
                await job.aresult()
            (attempt,) = await app.aclient.attempts(job.id)
            assert attempt.error_type == "ValueError"
            assert "in bad\n    raise ValueError" in (attempt.traceback or "")
            assert await (await where.apush()).aresult() == before

    play(life())
    (logged,) = [record.exc_text for record in caplog.records if "failed" in record.message]
    assert "in bad\n    raise ValueError" in (logged or "")


@pytest.mark.parametrize(
    ("task", "said"),
    [(gives_up, "dead: GiveUp: never"), (gives_up_on, "dead: KeyError: 'never'")],
    ids=["raised", "declared"],
)
def test_a_process_can_give_up(task: Any, said: str) -> None:
    async def life() -> None:
        async with working(app):
            job = await task.apush()
            assert await until_state(app, job.id, "dead", "delayed") == "dead"
            with pytest.raises(Failed, match=said):
                await job.aresult()

    play(life())


def test_what_a_process_pushes_later_is_there_when_its_job_has_ended(queue: str) -> None:
    async def life() -> None:
        async with working(app, queues=["processes"], concurrency=1):
            await (await pushes_later.apush(queue, 3_000)).aresult()
            for each in (queue, "processes-noted"):
                found = (await app.aclient.queue(each)).partitions
                assert [partition.end for partition in found] == [3_000]

    play(life())


def test_a_process_can_ask_to_be_tried_later() -> None:
    async def life() -> None:
        async with working(app):
            job = await later.apush()
            await until_state(app, job.id, "delayed")
            seen = await app.aclient.message(job.id)
            assert (seen.due_at or 0) - time.time() * 1000 > 3_500_000
            await job.acancel()

    play(life())


def test_a_process_that_takes_too_long_is_killed() -> None:
    async def life() -> None:
        async with working(app):
            with pytest.raises(Failed, match=r"endless took longer than 0\.5 s"):
                await (await endless.apush()).aresult()
            assert await (await where.apush()).aresult()

    play(life())


def test_a_process_that_ends_fails_the_job_and_another_takes_its_place() -> None:
    async def life() -> None:
        async with working(app):
            with pytest.raises(Failed, match="3"):
                await (await exits.apush()).aresult()
            assert await (await where.apush()).aresult()

    play(life())


def test_a_result_that_can_not_be_sent_between_processes_says_so() -> None:
    async def life() -> None:
        async with working(app, concurrency=1):
            before = await (await where.apush()).aresult()
            with pytest.raises(Failed, match="JSON"):
                await (await no_json.apush()).aresult()
            assert await (await where.apush()).aresult() == before

    play(life())


def test_a_process_whose_job_was_cancelled_is_killed(tmp_path: Path, quick_extends: None) -> None:
    async def life() -> None:
        file = tmp_path / "pid"
        async with working(app):
            job = await slow.apush(str(file))
            await until(lambda: file.exists() and file.read_text())
            await job.acancel()
            await until(lambda: not _runs(file.read_text()))

    play(life())


def test_a_process_pushes_to_the_server_of_its_worker(server: Server) -> None:
    async def life() -> None:
        async with working(app):
            assert await (await server_of_mine.apush()).aresult() == server.tcp

    play(life())


def test_a_process_that_forked_and_takes_too_long_ends_its_job(tmp_path: Path) -> None:
    """What it forked holds on to the pipe to the worker."""
    file = tmp_path / "pid"

    async def life() -> None:
        async with working(app):
            with pytest.raises(Failed, match="forks took longer than 3 s"):
                await (await forks.apush(str(file))).aresult()

    try:
        play(life())
    finally:
        os.kill(int(file.read_text()), signal.SIGKILL)


def test_what_a_process_starts_can_be_terminated() -> None:
    async def life() -> None:
        async with working(app):
            assert await (await terminates.apush()).aresult() == -signal.SIGTERM

    play(life())


def test_a_copy_of_the_program_that_ends_leaves_the_processes_to_the_program() -> None:
    program = f"""
import os
from forebay.client.types import Message
from forebay.client.worker.pipe import Asked
from forebay.client.worker.processes import Call, Children
children = Children()
message = Message(1, None, "jobs", "default", "default", 0, 0, 0, 0, "", 0)
call = lambda: Call(children, Asked(({__name__!r}, "where"), (), {{}}, None, message), print).go()
before = call()
if not os.fork():
    raise SystemExit
os.wait()
assert call() == before
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_S, stderr=subprocess.DEVNULL)


def test_a_call_that_is_killed_before_it_began_leaves_its_process_to_the_next_one() -> None:
    children = Children()
    message = Message(1, None, "jobs", "default", "default", 0, 0, 0, 0, "", 0)
    asked = Asked((__name__, "where"), (), {}, None, message)
    first = Call(children, asked, print).go()
    killed = Call(children, asked, print)
    killed.kill()
    with pytest.raises(Died):
        killed.go()
    assert Call(children, asked, print).go() == first
    children.close()
    assert not _runs(first.decode())


def test_a_process_that_is_given_back_when_all_is_closed_ends() -> None:
    children = Children()
    child = children.take()
    children.close()
    children.give_back(child)
    assert not child.is_alive


def test_a_program_that_did_not_close_its_processes_ends() -> None:
    program = f"""
from forebay.client.types import Message
from forebay.client.worker.pipe import Asked
from forebay.client.worker.processes import Call, Children
message = Message(1, None, "jobs", "default", "default", 0, 0, 0, 0, "", 0)
Call(Children(), Asked(({__name__!r}, "where"), (), {{}}, None, message), print).go()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_S)


def test_a_process_ends_when_its_worker_is_killed(server: Server, tmp_path: Path) -> None:
    source = Path(__file__).read_text().replace('queue="processes"', 'queue="orphans"')
    theirs = App("processes", server=server.tcp, queue="orphans")
    task: Any = theirs.task(name="slow")(lambda file: None)
    with Process(tmp_path, source, server.tcp) as worker:
        file = tmp_path / "pid"
        task.push(str(file))
        worker.wait_for("pid")
        worker.tell(signal.SIGKILL)
        worker.wait()
        until_s = time.monotonic() + PATIENCE_S
        while _runs(file.read_text()) and time.monotonic() < until_s:
            time.sleep(0.02)
        assert not _runs(file.read_text())
    theirs.close()


def test_a_process_knows_its_job_and_reports_like_any_other() -> None:
    async def life() -> None:
        async with working(app):
            job = await reports.apush()
            told = await job.aresult()
            assert told == [job.id, 2, "reports", {"trace": "abc"}, "processes"]
            progress = await job.aprogress()
            assert (progress.progress, progress.message) == (49, "halfway")
            logs = await app.aclient.logs(job.id)
            assert [(each.level, each.message) for each in logs] == 2 * [("info", "one"), ("warn", "two")]

    play(life())


def test_a_process_is_told_when_a_report_is_refused() -> None:
    async def life() -> None:
        async with working(app):
            assert await (await reports_nonsense.apush()).aresult() == ["Invalid", "Invalid"]

    play(life())


def test_a_process_reports_from_an_event_loop_of_its_own() -> None:
    async def life() -> None:
        async with working(app):
            job = await reports_in_a_loop.apush()
            await job.aresult()
            assert (await job.aprogress()).progress == 7
            assert [each.message for each in await app.aclient.logs(job.id)] == ["in a loop"]

    play(life())


def test_what_is_reported_after_the_task_has_ended_is_refused_and_disturbs_no_other() -> None:
    async def life() -> None:
        async with working(app, concurrency=1):
            before = await leaves_its_job_behind.apush()
            await before.aresult()
            assert await (await reports_for_the_last_one.apush()).aresult() == "the task has ended"
            assert await app.aclient.logs(before.id) == []

    play(life())


def test_a_process_that_reports_all_the_time_is_killed_when_its_job_is_cancelled(
    tmp_path: Path, quick_extends: None
) -> None:
    async def life() -> None:
        async with working(app):
            job = await reports_and_goes_on.apush(str(tmp_path / "pid"))
            await until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
            await job.acancel()
            await until(lambda: not _runs((tmp_path / "pid").read_text()))
            assert await job.astate() == "cancelled"

    play(life())
