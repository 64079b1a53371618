"""Processes of tasks whose reports go wrong: no call ever gets what belongs to another one."""

import enum
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from forebay.client import later
from forebay.client.errors import Disconnected
from forebay.client.tasks.app import App
from forebay.client.tasks.task import RetryLater
from forebay.client.types import Message
from forebay.client.worker import child
from forebay.client.worker.current import CANCELLED, current
from forebay.client.worker.pipe import Asked, Raised, Told
from forebay.client.worker.processes import Call, Children, Died
from tests.client.worker.working import PATIENCE_S, Way, play, until, until_state, working
from tests.serving import Server

app = App("steps", queue="steps")


class TwoArguments(Exception):
    """Pickles, and can't be made again."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)


class Level(enum.StrEnum):
    WARN = "warn"


class Rung(Exception): ...


class Unsayable(RetryLater):
    def __str__(self) -> str:
        raise ValueError("no text")


@app.task(process=True)
def where() -> int:
    return os.getpid()


@app.task(process=True)
def logs_an_object() -> list[Any]:
    job = current()
    found: list[Any] = [os.getpid()]
    for given in ({"line": TwoArguments(1, "boom")}, {"line": "fine", "level": Level.WARN}):
        try:
            job.log(**given)
        except Exception as error:
            found.append(type(error).__name__)
    return found


def ring(*_: object) -> None:
    raise Rung


@app.task(process=True)
def is_rung() -> list[Any]:
    signal.signal(signal.SIGALRM, ring)
    told = str(os.getpid())
    try:
        current().log(told)
    except Rung:
        told += " rung"
    try:
        current().log("another")
    except Disconnected:
        told += " refused"
    return [told]


class Half:
    """A pipe that is interrupted in the middle of a message."""

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe

    def send_bytes(self, packed: bytes) -> None:
        os.write(self._pipe.fileno(), b"\0\0")
        raise Rung


@app.task(process=True)
def sends_half_a_report() -> str:
    line: Any = current()._line  # type: ignore[attr-defined]
    line._pipe = Half(line._pipe)
    try:
        current().log("never" * 10_000)
    except Rung:
        return "caught"
    return "sent"


@app.task(process=True)
def sends(what: str) -> None:
    line: Any = current()._line  # type: ignore[attr-defined]
    unfit = {
        "of another call": Told(line._call - 1, "log", ("late", "info")),
        "unreadable": TwoArguments(1, ""),
    }
    line._pipe.send(unfit[what])
    time.sleep(PATIENCE_S)


@app.task(process=True)
def returns_twice() -> int:
    forked = os.fork()
    if forked:
        os.waitpid(forked, 0)
    return os.getpid()


@app.task(process=True)
def reports_from_a_fork() -> int:
    forked = os.fork()
    if not forked:
        try:
            current().log("from the fork")
        except RuntimeError:
            os._exit(7)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1])


@app.task(process=True)
def dies_before_it_flushed(fails: bool) -> None:
    child.flush_all = lambda: os._exit(3)  # type: ignore[attr-defined]
    if fails:
        raise ValueError("failed before")


@app.task(process=True)
def asks_for_later() -> None:
    Path(os.environ["STEPS"]).write_text(str(os.getpid()))
    raise Unsayable(delay_ms=3_600_000)


@app.task(process=True, retry=1, timeout=2)
def pushes_to_a_full_queue() -> str:
    later.FLUSH_S = 4.0  # longer than the task may take
    app.client.push_later("steps-full", 2)
    return "done"


@app.task(process=True, retry=1, timeout=2)
def reports_much() -> None:
    while True:
        current().progress(int(time.monotonic() * 1000) % 100, "x" * 600)


@app.task(process=True, retry=1)
def reports_on() -> None:
    while True:
        current().progress(int(time.monotonic() * 1000) % 100, "x" * 600)


@pytest.fixture(autouse=True)
def _of_this_server(server: Server) -> None:
    app.server = server.tcp


def call(children: Children, task: str, *args: Any, report: Any = print) -> Any:
    message = Message(1, None, "jobs", "default", "default", 0, 0, 0, 0, "", 0)
    return Call(children, Asked((__name__, task), args, {}, None, message), report).go()


@pytest.fixture
def children() -> Any:
    children = Children()
    yield children
    children.close()


def test_an_object_is_refused_as_a_report_and_the_process_goes_on() -> None:
    async def life() -> None:
        async with working(app, concurrency=1):
            job = await logs_an_object.apush()
            process, *found = await job.aresult()
            assert found == ["Invalid"]
            assert [(each.level, each.message) for each in await app.aclient.logs(job.id)] == [
                ("warn", "fine")
            ]
            assert await (await where.apush()).aresult() == process

    play(life())


def _sleeps(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def test_a_report_that_is_interrupted_is_the_last_one_of_its_process(children: Children) -> None:
    rung: list[int] = []

    def ring_it(told: Told) -> None:
        rung.append(int(told.given[0]))
        while not _sleeps(rung[0]):  # until it waits for the answer
            pass
        os.kill(rung[0], signal.SIGALRM)

    before = int(call(children, "where").decode())
    assert call(children, "is_rung", report=ring_it) == f'["{before} rung refused"]'.encode()
    assert rung == [before]
    assert int(call(children, "where").decode()) != before


def test_a_process_that_sent_half_a_report_is_not_believed_any_more(children: Children) -> None:
    before = call(children, "where")
    with pytest.raises(Died, match="ended with 1 before the task did"):
        call(children, "sends_half_a_report")
    assert call(children, "where") != before


@pytest.mark.parametrize(
    ("what", "said"), [("of another call", "belongs to another call"), ("unreadable", "can't be read")]
)
def test_a_process_that_is_out_of_step_is_killed(children: Children, what: str, said: str) -> None:
    before = call(children, "where")
    told: list[Told] = []
    with pytest.raises(Died, match=said):
        call(children, "sends", what, report=told.append)
    assert not told
    assert call(children, "where") != before


def test_arguments_that_can_not_be_sent_cost_no_process(children: Children) -> None:
    before = call(children, "where")
    with pytest.raises((AttributeError, TypeError)):
        call(children, "where", lambda: None)
    assert call(children, "where") == before


def test_a_copy_of_a_process_that_comes_back_from_the_task_answers_nothing(children: Children) -> None:
    before = call(children, "where")
    assert call(children, "returns_twice") == before
    assert call(children, "where") == before


def test_a_copy_of_a_process_can_not_report(children: Children) -> None:
    told: list[Told] = []
    assert call(children, "reports_from_a_fork", report=told.append) == b"7"
    assert not told


@pytest.mark.parametrize(
    ("fails", "error", "said"), [(False, Died, "before it sent"), (True, Raised, "failed before")]
)
def test_a_task_is_done_when_what_it_pushed_later_is_sent(
    children: Children, fails: bool, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        call(children, "dies_before_it_flushed", fails)
    assert call(children, "where")


def test_a_queue_that_takes_no_pushes_does_not_cost_a_task_its_time() -> None:
    async def life() -> None:
        await app.aclient.configure("steps-full", max_size=1)
        await app.aclient.push("steps-full", 1)
        async with working(app, concurrency=1):
            await (await where.apush()).aresult()  # starts the process, which may take long
            assert await (await pushes_to_a_full_queue.apush()).aresult() == "done"

    play(life())


def test_an_error_without_a_text_is_told_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPS", str(tmp_path / "pid"))

    async def life() -> None:
        async with working(app, concurrency=1):
            job = await asks_for_later.apush()
            await until_state(app, job.id, "delayed")
            seen = await app.aclient.message(job.id)
            assert (seen.due_at or 0) - time.time() * 1000 > 3_500_000
            assert await (await where.apush()).aresult() == int((tmp_path / "pid").read_text())
            await job.acancel()

    play(life())


@pytest.mark.parametrize("why", ["timeout", "cancelled"])
def test_a_task_that_is_ended_while_its_report_is_unanswered_frees_its_slot(server: Server, why: str) -> None:
    async def life() -> None:
        async with Way(server.tcp) as way:
            app.server = way.address
            async with working(app, concurrency=1, drain_s=0, lease_ms=600_000) as worker:
                await (await where.apush()).aresult()  # starts the process, which may take long
                way.holds = lambda data: b'"SETPROGRESS"' in data
                await (reports_much if why == "timeout" else reports_on).apush()
                await until(lambda: way.holds is None)
                if why == "cancelled":
                    for run in worker._holding.runs():
                        run.interrupt(CANCELLED)
                await until(lambda: not worker._holding.runs(), PATIENCE_S / 2)
                way.let_go()

    play(life(), 2 * PATIENCE_S)
