"""The clock of a server under test: it stands still or runs, and jumps when a test says so."""

from collections.abc import Callable
from typing import Protocol

BEGIN = 1_893_456_000_000
"""Default start of every server's clock: 2030-01-01 00:00 UTC, a Tuesday."""


class Instant(Protocol):
    """A point in time, such as a ``datetime`` with a time zone."""

    def timestamp(self) -> float: ...


def ms_of(at: int | Instant) -> int:
    """Return a time in milliseconds since 1970."""
    return at if isinstance(at, int) else round(at.timestamp() * 1000)


def span(*, days: float, hours: float, minutes: float, seconds: float, ms: float) -> int:
    """Return a duration in milliseconds.

    >>> span(days=0, hours=1, minutes=0, seconds=0, ms=5)
    3600005
    """
    if min(days, hours, minutes, seconds, ms) < 0:
        raise ValueError("time goes forward only")
    return round((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000 + ms)


class Clock:
    """A controllable clock in milliseconds since 1970."""

    def __init__(self, at: int, read: Callable[[], float], *, going: bool) -> None:
        """``read`` returns real seconds, from any origin."""
        self._at = at
        self._read = read
        self._since: float | None = read() if going else None
        """When it began to run, in real seconds; None while it stands still."""

    @property
    def is_still(self) -> bool:
        return self._since is None

    def now(self) -> int:
        since = self._since
        return self._at if since is None else self._at + int((self._read() - since) * 1000)

    def move_to(self, at: int) -> None:
        """Jump forward; never back."""
        self._at += max(at - self.now(), 0)

    def go_on(self) -> None:
        if self._since is None:
            self._since = self._read()

    def stand_still(self) -> None:
        self._at, self._since = self.now(), None
