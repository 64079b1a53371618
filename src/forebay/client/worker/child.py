"""The inside of a child process: serves calls of tasks, and reports what they tell to the worker."""

import asyncio
import importlib
import os
import signal
import threading
import traceback
from multiprocessing.connection import Connection
from typing import Any

from forebay.client.later import flush_all
from forebay.client.payloads import encode
from forebay.client.tasks.app import is_in_worker
from forebay.client.tasks.task import GiveUp, RetryLater, Task
from forebay.client.worker.current import Run, _current
from forebay.client.worker.pipe import SAID_TO_ALL, Answered, Asked, Said, Told
from forebay.core.errors import Invalid


class Line:
    """Reports of one call. Threads of the task may share it; one report is on its way at a time."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()
        self._is_open = True

    def tell(self, kind: str, *given: Any) -> None:
        """Report something. It is stored when this returns, as in a thread of the worker."""
        with self._lock:
            if not self._is_open:
                raise RuntimeError("the task has ended")
            self._pipe.send(Told(kind, given))
            answered: Answered = self._pipe.recv()
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

    def progress(self, percent: int, message: str | None = None) -> None:
        # A loop that computes reports far more often than its percentage changes.
        if (percent, message) != self._told:
            self._line.tell("progress", percent, message)
            self._told = percent, message

    async def aprogress(self, percent: int, message: str | None = None) -> None:
        await asyncio.to_thread(self.progress, percent, message)

    def log(self, line: str, *, level: str = "info") -> None:
        self._line.tell("log", line, level)

    async def alog(self, line: str, *, level: str = "info") -> None:
        await asyncio.to_thread(self.log, line, level=level)


def serve(pipe: Connection, lifeline: Connection) -> None:
    """Serve calls until the worker is gone."""
    for number in SAID_TO_ALL:
        signal.signal(number, _pass)  # not SIG_IGN, which a task's own child processes would inherit
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SAID_TO_ALL)
    threading.Thread(target=_die_with, args=(lifeline,), daemon=True).start()
    is_in_worker.set(True)
    while True:
        try:
            asked: Asked = pipe.recv()
        except (EOFError, OSError):
            return
        line = Line(pipe)
        said = _answer(asked, line)
        line.close()
        flush_all()  # the worker kills this process whenever it likes after the answer
        pipe.send(said)


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
        task.app.server = asked.server
        give_up_on = task.give_up_on
        _current.set(ChildRun(task, asked, line))
        returned = task.function(*asked.args, **asked.kwargs)
    except RetryLater as error:
        return Said("later", str(error), delay_ms=error.delay_ms)
    except GiveUp as error:
        return Said("gave up", str(error), trace=_trace(error))
    except BaseException as error:
        told = "".join(traceback.format_exception_only(error)).strip()
        kind = "gave up on" if isinstance(error, give_up_on) else "raised"
        return Said(kind, told, trace=_trace(error), type=type(error).__name__)
    try:
        return Said("returned", bytes(encode(returned)))
    except Invalid as error:
        return Said("gave up", f"it is done, and what it returned is not {error.accepted}")


def _trace(error: BaseException) -> str:
    """Return the traceback within the task, without our own frame."""
    return "".join(traceback.format_tb((error.__traceback__ and error.__traceback__.tb_next) or None))


def _found(module: str, name: str) -> Any:
    """Find a task by the module of its function and its name, in any app of that module."""
    for value in vars(importlib.import_module(module)).values():
        if getattr(value, "name", None) == name and hasattr(value, "signature"):
            return value
        tasks = getattr(value, "tasks", None)
        if isinstance(tasks, dict) and name in tasks:
            return tasks[name]
    raise LookupError(f"there is no task {name} in {module}")
