"""Backoff between retries."""

from random import uniform

from msgspec import Struct

FIRST_S = 0.05
LONGEST_S = 2.0


class Within(Struct, frozen=True):
    """How patient one request is, where it differs from its client."""

    timeout_s: float | None = None
    retry_s: float | None = None


class Patience:
    """How long a request is retried, and the pause before each retry. The time counts from the first
    failure."""

    __slots__ = ("_retry_s", "_until", "failures")

    def __init__(self, retry_s: float) -> None:
        self._retry_s = retry_s
        self._until = 0.0
        self.failures = 0

    def pause_s(self, now: float, least_s: float = 0.0) -> float | None:
        """Return the pause after another failure; None if a retry would come too late."""
        pause_s = max(wait_s(self.failures), least_s)
        self.failures += 1
        self._until = self._until or now + self._retry_s
        return None if now + pause_s > self._until else pause_s


def wait_s(attempt: int) -> float:
    """Return the seconds to wait after this many earlier failures, with jitter so that clients spread out."""
    return min(FIRST_S * 2.0 ** min(attempt, 10), LONGEST_S) * uniform(0.5, 1.0)
