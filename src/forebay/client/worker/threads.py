"""Functions in threads. Unlike an executor, what many threads have done is told to the loop at once."""

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
"""Modules that hold on to locks without a ``with``: who is interrupted there would never let go of one that
all others need."""
AGAIN_S, AGAIN_S_MAX = 0.001, 0.05
"""How soon it is tried again to interrupt one that is in such a module: at first, and later."""


class Interrupted(BaseException):
    """Raised inside a function in a thread that has to end: no ``except Exception`` holds it up."""


class Threaded:
    """A function on its way through a thread. It can be made to end while it runs."""

    def __init__(self, function: Callable[[], Any], future: "asyncio.Future[Any]") -> None:
        self._function = function
        self._context = contextvars.copy_context()
        self.future = future
        self._lock = threading.Lock()
        self._ident = 0
        """The thread, as long as the function runs."""
        self._sent = False
        self._is_over = False
        self._over: asyncio.Future[None] | None = None
        self.error: BaseException | None = None
        self.value: Any = None

    def go(self) -> None:
        """Run it, in this thread."""
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
            # Futures would have it end the worker.
            self.error = RuntimeError(f"{type(error).__name__}: {error}")

    def _end(self) -> None:
        """Have nothing raised any more that was sent and has not come: the next function must not get it."""
        with self._lock:
            self._ident = 0
        if self._sent:
            _take_back()

    async def until_over(self) -> None:
        """Wait until it has ended, though nobody waits for what comes of it any more."""
        while not self._is_over:
            self._over = self._over or asyncio.get_running_loop().create_future()
            await asyncio.wait([self._over])
        if self.future.done() and not self.future.cancelled():
            self.future.exception()

    def tell(self) -> None:
        """It has ended; called in the loop."""
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
        """Have it end soon; called in the loop."""
        with self._lock:
            if self._sent:
                return
            if self._ident and _is_locking(self._ident):
                later_s = min(2 * again_s, AGAIN_S_MAX)
                self.future.get_loop().call_later(again_s, self.interrupt, later_s)
                return
            self._sent = True
            if self._ident:
                _send(self._ident)


def _is_locking(ident: int) -> bool:
    """Whether a thread may be about to take a lock, or to let go of one, where no ``finally`` sees to it."""
    frame = sys._current_frames().get(ident)
    if frame is None or str(frame.f_globals.get("__name__")).partition(".")[0] not in LOCKING:
        return False
    tries = dis._parse_exception_table(frame.f_code)  # type: ignore[attr-defined]
    return not any(each.start <= frame.f_lasti < each.end for each in tries)


def _send(ident: int) -> None:
    """Have ``Interrupted`` raised in a thread, at its next step in Python; it replaces one sent before."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(Interrupted))


def _take_back() -> None:
    """Catch what was sent to this thread, if it has not come yet.

    Clearing it would not do: Python 3.11 forgets that somebody is to be interrupted only when somebody was.
    Until then every thread looks at each step whether it is meant, and one with a profiler never goes on.
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
        """Functions that were given, and have not ended."""
        self._threads: list[threading.Thread] = []
        self._given: SimpleQueue[Threaded | None] = SimpleQueue()
        self._ended: deque[Threaded] = deque()
        self._is_planned = False

    def run(self, function: Callable[[], Any]) -> Threaded:
        """Have a function run; its future is done when it has ended, whatever way."""
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
                except RuntimeError:  # the loop is closed: nobody waits for it any more
                    return

    def _tell(self) -> None:
        self._is_planned = False
        while self._ended:
            self._busy -= 1
            self._ended.popleft().tell()

    def close(self) -> None:
        """Have threads end that have nothing to do; the others do when their functions have ended."""
        for _ in self._threads:
            self._given.put(None)
