"""Functions in child processes: for long computations, and for tasks that must be killed on timeout."""

import atexit
import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import resource_tracker
from typing import Any

from forebay.client.payloads import Encoded
from forebay.client.worker.child import serve
from forebay.client.worker.pipe import SAID_TO_ALL, Answered, Asked, Said, Told
from forebay.core.errors import ForebayError

Report = Callable[[Told], None]
"""Sends on what a task reports while it runs; raises if that can't be done."""

START = "spawn"
"""Not fork: a child would inherit the worker's threads and connections in the middle of their work."""


class Died(Exception):
    """The process ended before the function did."""


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

    def __init__(self, children: Children, asked: Asked, report: Report) -> None:
        self._children = children
        self._asked = asked
        self._report = report
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
            return child.call(self._asked, self._report)
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
        self._process: Any = context.Process(target=serve, args=(theirs, end), daemon=True)
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

    def call(self, asked: Asked, report: Report) -> Any:
        try:
            self._pipe.send(asked)
            while isinstance(said := self._pipe.recv(), Told):
                self._pipe.send(_answered(report, said))
            assert isinstance(said, Said)
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


def _answered(report: Report, told: Told) -> Answered:
    """Send on what a task reports; return what the child is to raise, if anything."""
    try:
        report(told)
    except ForebayError as error:
        return Answered(error.code, str(error), dict(error.details))
    except Exception as error:  # the worker is about to end
        return Answered("disconnected", f"it can't be told any more: {error}")
    return Answered()
