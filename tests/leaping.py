"""An event loop whose time is simulated: it leaps to the next timer when nothing else is left to do.

A wait of an hour takes no time, and no lease or timeout ends because the machine stalls: only timers move
time.
Connections inside the loop must be Unix sockets. There a write has reached the other side when it returns, so
"nothing to read" means that nothing is on its way; over TCP it may still be in the kernel.
"""

import asyncio
import selectors
import threading
from typing import Any

THREAD_S = 0.001
"""How long the loop waits for a thread before it looks again whether the thread runs."""


class _Leaping(selectors.DefaultSelector):
    """Waits for nothing but threads."""

    loop: "LeapingLoop"

    def select(self, timeout: float | None = None) -> Any:
        if self.loop.has_threads():
            return super().select(THREAD_S if timeout is None else min(timeout, THREAD_S))
        ready = super().select(0)
        if not ready and timeout != 0:
            assert timeout is not None, "nothing would ever happen any more"
            self.loop.at += timeout
        return ready


class LeapingLoop(asyncio.SelectorEventLoop):
    """``threads`` begin the names of threads that the loop waits for in real time."""

    def __init__(self, at: float = 0.0, threads: str | None = None) -> None:
        selector = _Leaping()
        selector.loop = self
        self.at = at
        self._threads = threads
        super().__init__(selector)

    def time(self) -> float:
        return self.at

    def has_threads(self) -> bool:
        wanted = self._threads
        return wanted is not None and any(each.name.startswith(wanted) for each in threading.enumerate())
