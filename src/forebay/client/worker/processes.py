"""Functions in child processes: for long computations, and for tasks that must be killed on timeout."""

import atexit
import importlib
import multiprocessing
import os
import signal
import socket
import threading
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from forebay.client.payloads import Encoded, encode
from forebay.client.tasks.app import is_in_worker
from forebay.client.tasks.task import GiveUp, RetryLater
from forebay.core.errors import Invalid

START = "spawn"
"""Not fork: a child would inherit the worker's threads and connections in the middle of their work."""


SAID_TO_ALL = (signal.SIGINT, signal.SIGTERM)
"""Terminals and systemd send these to the whole process group; the worker alone acts on them."""
Asked = tuple[tuple[str, str], tuple[Any, ...], dict[str, Any], str | None]
"""A call as sent to the child: module and name of the task, its arguments, and the server it pushes to."""


class Died(Exception):
    """The process ended before the function did."""


class Raised(Exception):
    """An exception of the function, as text: not every exception can be pickled."""

    def __init__(self, told: str, *, gives_up: bool) -> None:
        super().__init__(told)
        self.gives_up = gives_up


class Said(NamedTuple):
    """A child's reply to a call."""

    kind: str
    """``returned``, ``raised``, ``later``, ``gave up``, or ``gave up on`` an error in the task's list."""
    value: Any
    """The result as JSON, or the exception as text."""
    delay_ms: int | None = None
    trace: str = ""

    def error(self) -> Exception:
        made: Exception
        if self.kind == "later":
            return RetryLater(self.value, delay_ms=self.delay_ms)
        if self.kind == "gave up":
            made = GiveUp(self.value)
        else:
            made = Raised(self.value, gives_up=self.kind == "gave up on")
        if self.trace:
            made.add_note(f"In the process of the task:\n{self.trace.rstrip()}")
        return made


class Children:
    """A pool of child processes. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[Child] = []
        self._is_closed = False

    def take(self) -> "Child":
        """Return an idle or new process for the caller's exclusive use."""
        while True:
            with self._lock:
                if not self._idle:
                    break
                child = self._idle.pop()
            if child.is_alive:
                return child
            child.close()
        return Child()

    def give_back(self, child: "Child") -> None:
        with self._lock:
            if child.is_alive and not self._is_closed:
                self._idle.append(child)
                return
        child.close()

    def close(self) -> None:
        """End the idle processes; the others end when they are given back."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for child in idle:
            child.close()


class Call:
    """A call in a child process: ``go`` blocks its thread, ``kill`` ends it from another one."""

    def __init__(
        self,
        children: Children,
        place: tuple[str, str],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        server: str | None = None,
    ) -> None:
        """``place`` is the module and the name of the task; ``server`` is where it pushes to."""
        self._children = children
        self._asked = place, tuple(args), dict(kwargs), server
        self._lock = threading.Lock()
        self._child: Child | None = None
        """The process while the call runs. The lock keeps ``kill`` from hitting the next call's process."""
        self._is_killed = False

    def go(self) -> Any:
        """Return the task's result as JSON; raise what the child reports."""
        child = self._children.take()
        try:
            with self._lock:
                if self._is_killed:
                    raise Died("it was killed before the task began")
                self._child = child
            return child.call(self._asked)
        finally:
            with self._lock:
                self._child = None
            self._children.give_back(child)

    def kill(self) -> None:
        with self._lock:
            self._is_killed = True
            if self._child is not None:
                self._child.kill()


class Child:
    """One process. Calls block; killing it from another thread ends the running call."""

    def __init__(self) -> None:
        context: Any = multiprocessing.get_context(START)
        self._pipe, theirs = context.Pipe()
        end, self._lifeline = context.Pipe(duplex=False)
        self._process: Any = context.Process(target=_serve, args=(theirs, end), daemon=True)
        resource_tracker.ensure_running()  # started here, because its start would unblock the signals
        # Blocked until the child has its handlers: a signal in between would kill it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SAID_TO_ALL)
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._is_killed = False
        # At exit multiprocessing sends SIGTERM to its children and joins them; ours ignore SIGTERM.
        atexit.register(self._exit)
        self._made_in = os.getpid()
        theirs.close()
        end.close()

    def call(self, asked: Asked) -> Any:
        try:
            self._pipe.send(asked)
            said: Said = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            raise Died(f"the process ended with {self._process.exitcode} before the task did") from None
        if said.kind == "returned":
            return Encoded(said.value)
        raise said.error()

    @property
    def is_alive(self) -> bool:
        return not self._is_killed and bool(self._process.is_alive())

    def kill(self) -> None:
        self._is_killed = True
        self._process.kill()
        # Grandchildren may hold the other end of the pipe open, and ``recv`` would wait for them.
        with socket.socket(fileno=os.dup(self._pipe.fileno())) as pipe, suppress(OSError):
            pipe.shutdown(socket.SHUT_RDWR)

    def _exit(self) -> None:
        """Kill the child at exit, but not from a fork of this program."""
        if os.getpid() == self._made_in:
            self._process.kill()

    def close(self) -> None:
        atexit.unregister(self._exit)
        self._is_killed = True
        self._process.kill()
        self._process.join()
        self._process.close()
        self._pipe.close()
        self._lifeline.close()


def _serve(pipe: Connection, lifeline: Connection) -> None:
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
        pipe.send(_answer(asked))


def _pass(number: int, frame: object) -> None:
    pass


def _die_with(lifeline: Connection) -> None:
    """Exit as soon as the worker does, whatever runs here: another worker will get the job."""
    try:
        lifeline.recv()
    except (EOFError, OSError):
        os._exit(1)


def _answer(asked: Asked) -> Said:
    place, args, kwargs, server = asked
    give_up_on: tuple[type[BaseException], ...] = ()
    try:
        task = _found(*place)
        task.app.server = server
        give_up_on = task.give_up_on
        returned = task.function(*args, **kwargs)
    except RetryLater as error:
        return Said("later", str(error), delay_ms=error.delay_ms)
    except GiveUp as error:
        return Said("gave up", str(error), trace=_trace(error))
    except BaseException as error:
        told = "".join(traceback.format_exception_only(error)).strip()
        return Said("gave up on" if isinstance(error, give_up_on) else "raised", told, trace=_trace(error))
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
