"""Functions in threads. Unlike an executor, many results are handed to the event loop with one wake-up."""

import asyncio
import contextvars
import ctypes
import dis
import sys
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

LOCKING = ("logging", "importlib")
"""Modules that take locks without ``with``: an exception there could leave a lock held forever."""
AGAIN_S, AGAIN_S_MAX = 0.001, 0.05
"""Delay before the next try to interrupt a thread that is in such a module: first and longest."""


class Interrupted(BaseException):
    """Raised inside a function in a thread to end it: no ``except Exception`` catches it."""


class Threaded:
    """A call in a thread, which can be interrupted."""

    def __init__(self, function: Callable[[], Any], future: "asyncio.Future[Any]") -> None:
        self._function = function
        self._context = contextvars.copy_context()
        self.future = future
        self._lock = threading.Lock()
        self._ident = 0
        """The thread's id while the function runs, else 0."""
        self._sent = False
        self._is_over = False
        self._over: asyncio.Future[None] | None = None
        self.error: BaseException | None = None
        self.value: Any = None

    def go(self) -> None:
        """Run the function in this thread."""
        try:
            try:
                with self._lock:
                    self._ident = threading.get_ident()
                    if self._sent:
                        raise Interrupted
                self.value = self._context.run(self._function)
            finally:
                self._end()
        except Interrupted:
            self.error = TimeoutError("it was interrupted")
        except Exception as error:
            self.error = error
        except BaseException as error:
            # Set on a future, a SystemExit or KeyboardInterrupt would end the worker.
            self.error = RuntimeError(f"{type(error).__name__}: {error}")

    def _end(self) -> None:
        """Clear a pending interrupt, so that it does not hit the next function in this thread."""
        with self._lock:
            self._ident = 0
        if self._sent:
            _take_back()

    async def until_over(self) -> None:
        """Wait until the function has ended, ignoring its result."""
        while not self._is_over:
            self._over = self._over or asyncio.get_running_loop().create_future()
            await asyncio.wait([self._over])
        if self.future.done() and not self.future.cancelled():
            self.future.exception()

    def tell(self) -> None:
        """Resolve the future. Called on the event loop."""
        self._is_over = True
        if self._over is not None:
            self._over.set_result(None)
        if self.future.done():
            return
        if self.error is None:
            self.future.set_result(self.value)
        elif isinstance(self.error, StopIteration):
            self.future.set_exception(RuntimeError("the function raised StopIteration"))
        else:
            self.future.set_exception(self.error)

    def interrupt(self, again_s: float = AGAIN_S) -> None:
        """Interrupt the function. Called on the event loop."""
        with self._lock:
            if self._sent:
                return
            # Raised now, the exception could hit between acquiring a lock and the block that releases it.
            if self._ident and _is_locking(self._ident):
                later_s = min(2 * again_s, AGAIN_S_MAX)
                self.future.get_loop().call_later(again_s, self.interrupt, later_s)
                return
            self._sent = True
            if self._ident:
                _send(self._ident)


def _is_locking(ident: int) -> bool:
    """Return whether a thread may be acquiring or releasing a lock outside of any try block."""
    frame = sys._current_frames().get(ident)
    if frame is None or str(frame.f_globals.get("__name__")).partition(".")[0] not in LOCKING:
        return False
    tries = dis._parse_exception_table(frame.f_code)  # type: ignore[attr-defined]
    return not any(each.start <= frame.f_lasti < each.end for each in tries)


def _send(ident: int) -> None:
    """Raise ``Interrupted`` in a thread at its next bytecode; replaces a pending one."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(Interrupted))


def _take_back() -> None:
    """Let a pending interrupt of this thread happen here, and catch it.

    Clearing it is not enough: Python 3.11 resets its flag for pending exceptions only when one is raised.
    Until then every thread checks at each step, and one with a profiler makes no progress.
    """
    try:
        _send(threading.get_ident())
        while True:
            pass
    except Interrupted:
        return


class Threads:
    """Threads that run functions for an event loop."""

    def __init__(self, count: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._count = count
        self._busy = 0
        """Functions queued or running."""
        self._threads: list[threading.Thread] = []
        self._given: SimpleQueue[Threaded | None] = SimpleQueue()
        self._ended: deque[Threaded] = deque()
        self._is_planned = False

    def run(self, function: Callable[[], Any]) -> Threaded:
        """Queue a function; its future is resolved when it has ended."""
        threaded = Threaded(function, self._loop.create_future())
        self._given.put(threaded)
        self._busy += 1
        if len(self._threads) < min(self._busy, self._count):
            thread = threading.Thread(target=self._work, name=f"forebay-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return threaded

    def _work(self) -> None:
        while True:
            threaded = self._given.get()
            if threaded is None:
                return
            threaded.go()
            self._ended.append(threaded)
            if not self._is_planned:
                self._is_planned = True
                try:
                    self._loop.call_soon_threadsafe(self._tell)
                except RuntimeError:  # the loop is closed: there is no one to notify
                    return

    def _tell(self) -> None:
        # Cleared before the loop below: a result appended during it plans another call, so none is missed.
        self._is_planned = False
        while self._ended:
            self._busy -= 1
            self._ended.popleft().tell()

    def close(self) -> None:
        """End the idle threads; the others end after their function."""
        for _ in self._threads:
            self._given.put(None)
