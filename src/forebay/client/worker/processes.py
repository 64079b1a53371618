"""Functions in child processes: for long computations, and for tasks that must be killed on timeout."""

import atexit
import itertools
import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import resource_tracker
from multiprocessing.reduction import ForkingPickler
from typing import Any

from forebay.client.later import FLUSH_S
from forebay.client.payloads import Encoded
from forebay.client.worker.child import serve
from forebay.client.worker.pipe import SAID_TO_ALL, Answered, Asked, Flushed, Said, Told
from forebay.core.errors import ForebayError

Report = Callable[[Told], None]
"""Sends on what a task reports while it runs; raises if that can't be done."""

START = "spawn"
"""Not fork: a child would inherit the worker's threads and connections in the middle of their work."""
FLUSHED_S = 2 * FLUSH_S
"""How long a process may take, after its task, to send what that pushed later; it gives up before."""

_numbers = itertools.count(1)


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
        self.has_said = False
        """Whether the task has ended. Its process may still send what it pushed later."""

    def go(self) -> Any:
        """Return the task's result as JSON; raise what the child reports."""
        number = next(_numbers)
        packed = ForkingPickler.dumps(self._asked._replace(call=number))
        child = self._children.take()
        # Whatever else ends the call may leave something in the pipe, which the next call would get.
        is_clean = False
        try:
            with self._lock:
                if self._is_killed:
                    is_clean = True
                    raise Died("it was killed before the task began")
                self._child = child
            said = child.call(number, packed, self._report)
            self.has_said = True
            try:
                is_clean = child.until_flushed(number)
            except Died:
                if said.kind == "returned":
                    raise  # what it pushed later may be lost: it is to be pushed again
        finally:
            with self._lock:
                self._child = None
            if is_clean:
                self._children.give_back(child)
            else:
                child.close()
        if said.kind == "returned":
            return Encoded(said.value)
        raise said.error()

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

    def call(self, number: int, packed: bytes | memoryview, report: Report) -> Said:
        """Return the reply to a call; after an error the process can't be used any more."""
        try:
            self._pipe.send_bytes(packed)
            while isinstance(told := self._received(number), Told):
                self._pipe.send(_answered(report, told))
        except (EOFError, OSError):
            raise self._died("before the task did") from None
        if not isinstance(told, Said):
            raise Died(f"the process sent {type(told).__name__} out of turn")
        return told

    def until_flushed(self, number: int) -> bool:
        """Wait until the process has sent what the task pushed later; return whether it can be used again."""
        try:
            if not self._pipe.poll(FLUSHED_S):
                raise Died(f"the process did not send what the task pushed later within {FLUSHED_S:g} s")
            flushed = self._received(number)
        except (EOFError, OSError):
            raise self._died("before it sent what the task pushed later") from None
        return isinstance(flushed, Flushed) and flushed.goes_on

    def _received(self, number: int) -> Any:
        """Return the next message of a call."""
        try:
            got = self._pipe.recv()
        except (EOFError, OSError):
            raise
        except Exception as error:
            raise Died(f"the process sent what can't be read: {error!r}") from None
        if not isinstance(got, Told | Said | Flushed) or got.call != number:
            raise Died("the process sent what belongs to another call")
        return got

    def _died(self, when: str) -> Died:
        self._process.join()
        return Died(f"the process ended with {self._process.exitcode} {when}")

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
        return Answered(told.call, error.code, str(error), dict(error.details))
    except Exception as error:  # the run is interrupted, or the worker is about to end
        return Answered(told.call, "disconnected", f"it can't be told any more: {error}")
    return Answered(told.call)
