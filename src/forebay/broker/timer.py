"""One timer for everything that becomes due."""

from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable

from forebay.core.bounds import NEVER

LONGEST_MS = 3_600_000
"""Longest delay; a timer that fires early is set again."""


class Timer:
    """Fires at the earliest time it was set for."""

    def __init__(self, loop: AbstractEventLoop, clock: Callable[[], int], ring: Callable[[], None]) -> None:
        self._loop = loop
        self._clock = clock
        self._ring = ring
        self._handle: TimerHandle | None = None
        self._at = NEVER

    def set(self, due_at: int) -> None:
        if due_at < self._at:
            self.cancel()
            self._at = due_at
            delay_ms = min(max(due_at - self._clock(), 0), LONGEST_MS)
            self._handle = self._loop.call_later(delay_ms / 1000, self._rings)

    def cancel(self) -> None:
        """Disarm the timer until it is set again."""
        if self._handle is not None:
            self._handle.cancel()
        self._handle, self._at = None, NEVER

    def _rings(self) -> None:
        self._handle, self._at = None, NEVER
        self._ring()
