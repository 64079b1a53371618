"""The inside of a child process: serves calls of tasks, and reports what they tell to the worker."""

import asyncio
import importlib
import os
import signal
import threading
import traceback
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

from forebay.client.errors import Disconnected
from forebay.client.later import flush_all
from forebay.client.payloads import encode
from forebay.client.tasks.app import is_in_worker
from forebay.client.tasks.task import GiveUp, RetryLater, Task
from forebay.client.worker.current import Run, _current
from forebay.client.worker.failures import kind_of, said, told
from forebay.client.worker.pipe import SAID_TO_ALL, Answered, Asked, Flushed, Said, Told
from forebay.client.worker.progress import whole
from forebay.core.errors import Invalid

AT_ONCE_BYTES = 16_000
"""Reports of so many bytes are written in one step, with their length: all of one is sent, or nothing."""


class Line:
    """Reports of one call. Threads of the task may share it; one report is on its way at a time."""

    def __init__(self, pipe: Connection, call: int) -> None:
        self._pipe, self._call = pipe, call
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._is_open = True
        self.is_torn = False
        """Whether the worker may have got a part of a report: it would take what comes next for the rest."""
        self.is_broken = False
        """Whether a report has no answer: a signal handler, or another thread, raised an error within it."""

    def tell(self, kind: str, *given: str | int | float | None) -> None:
        """Report something. When this returns, the worker has taken it as it takes a report of a thread."""
        if os.getpid() != self._process:
            raise RuntimeError("only the process of the task can report: it shares its pipe with this one")
        packed = ForkingPickler.dumps(Told(self._call, kind, given))
        with self._lock:
            if not self._is_open:
                raise RuntimeError("the task has ended")
            if self.is_broken:
                raise Disconnected("an earlier report was interrupted, and the worker can't be told any more")
            # An error can come between any two steps, so each state is set before what it is about.
            self.is_broken, self.is_torn = True, len(packed) > AT_ONCE_BYTES
            self._pipe.send_bytes(packed)
            self.is_torn = False
            answered: Answered = self._pipe.recv()
            self.is_broken = answered.call != self._call
            if self.is_broken:
                raise Disconnected("the worker answered another call")
        problem = answered.problem()
        if problem is not None:
            raise problem

    def close(self) -> None:
        """Refuse what threads report after the task has ended: the pipe belongs to the next call then."""
        with self._lock:
            self._is_open = False


class ChildRun(Run):
    """A running job in its own process."""

    def __init__(self, task: Task[Any, Any, Any], asked: Asked, line: Line) -> None:
        self.task, self.message = task, asked.about
        self.args, self.kwargs = asked.args, asked.kwargs
        self.interrupted, self.runner = "", None
        self._line = line
        self._told: tuple[int, str | None] | None = None

    def progress(self, percent: float, message: str | None = None) -> None:
        told = _plain("progress", whole(percent)), _plain("message", message)
        # A loop that computes reports far more often than its percentage changes.
        if told != self._told:
            self._line.tell("progress", *told)
            self._told = told

    async def aprogress(self, percent: float, message: str | None = None) -> None:
        await asyncio.to_thread(self.progress, percent, message)

    def log(self, line: str, *, level: str = "info") -> None:
        self._line.tell("log", _plain("message", line), _plain("level", level))

    async def alog(self, line: str, *, level: str = "info") -> None:
        await asyncio.to_thread(self.log, line, level=level)


def serve(pipe: Connection, lifeline: Connection) -> None:
    """Serve calls until the worker is gone."""
    for number in SAID_TO_ALL:
        signal.signal(number, _pass)  # not SIG_IGN, which a task's own child processes would inherit
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SAID_TO_ALL)
    threading.Thread(target=_die_with, args=(lifeline,), daemon=True).start()
    is_in_worker.set(True)
    here = os.getpid()
    while True:
        try:
            asked: Asked = pipe.recv()
        except (EOFError, OSError):
            return
        line = Line(pipe, asked.call)
        answer = _answer(asked, line)._replace(call=asked.call)
        if os.getpid() != here:  # a task forked, and its copy came back from the function, too
            flush_all()
            os._exit(0)
        line.close()
        if line.is_torn:  # nothing that is sent now can be read
            flush_all()
            os._exit(1)
        pipe.send(answer)
        flush_all()  # after the answer: it is no part of the task's time
        pipe.send(
            Flushed(asked.call, goes_on=not line.is_broken)
        )  # from now on the worker may kill this process
        if line.is_broken:
            return


def _pass(number: int, frame: object) -> None:
    pass


def _die_with(lifeline: Connection) -> None:
    """Exit as soon as the worker does, whatever runs here: another worker will get the job."""
    try:
        lifeline.recv()
    except (EOFError, OSError):
        os._exit(1)


def _answer(asked: Asked, line: Line) -> Said:
    give_up_on: tuple[type[BaseException], ...] = ()
    try:
        task = _found(*asked.place)
        task.app.server, task.app.access = asked.server, asked.access
        give_up_on = task.give_up_on
        _current.set(ChildRun(task, asked, line))
        returned = task.function(*asked.args, **asked.kwargs)
        return _returned(returned)
    except RetryLater as error:
        return Said("later", said(error), delay_ms=_whole(getattr(error, "delay_ms", None)))
    except GiveUp as error:
        return Said("gave up", said(error), trace=_trace(error))
    except BaseException as error:
        kind = "gave up on" if isinstance(error, give_up_on) else "raised"
        return Said(kind, _told(error), trace=_trace(error), type=kind_of(error))


def _returned(returned: Any) -> Said:
    try:
        return Said("returned", bytes(encode(returned)))
    except Invalid as error:
        return Said("gave up", f"it is done, and what it returned is not {error.accepted}")


def _told(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception_only(error)).strip()
    except Exception:
        return told(error)


def _whole(number: Any) -> int | None:
    return int.__int__(number) if isinstance(number, int) else None


def _plain(field: str, value: Any) -> Any:
    """Return a value as one of a built-in type: the worker need not know the code of any other.

    >>> from http import HTTPStatus
    >>> _plain("progress", HTTPStatus.CONTINUE), _plain("level", "info")
    (100, 'info')
    """
    if value is None or type(value) in (str, int, bool, float):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    raise Invalid(field, f"text or a number, and is of type {type(value).__name__}")


def _trace(error: BaseException) -> str:
    """Return the traceback with what caused it, without our own frame."""
    within = (error.__traceback__ and error.__traceback__.tb_next) or None
    try:
        return "".join(traceback.format_exception(type(error), error, within))
    except Exception:  # its text can't be told
        return "".join(traceback.format_tb(within))


def _found(module: str, name: str) -> Any:
    """Find a task by the module of its function and its name, in any app of that module."""
    for value in vars(importlib.import_module(module)).values():
        if getattr(value, "name", None) == name and hasattr(value, "signature"):
            return value
        tasks = getattr(value, "tasks", None)
        if isinstance(tasks, dict) and name in tasks:
            return tasks[name]
    raise LookupError(f"there is no task {name} in {module}")
