"""Backoff between retries."""

from math import isfinite
from random import uniform
from typing import Any

from msgspec import Struct

from forebay.core.errors import Invalid

FIRST_S = 0.05
LONGEST_S = 2.0


class Within(Struct, frozen=True):
    """How patient one request is, where it differs from its client."""

    timeout_s: float | None = None
    retry_s: float | None = None

    def __post_init__(self) -> None:
        if self.timeout_s is not None:
            check_timeout(self.timeout_s)
        if self.retry_s is not None:
            check_retry(self.retry_s)


def check_timeout(timeout_s: Any) -> None:
    """Raise unless this can be the timeout of a response.

    >>> check_timeout(0)
    Traceback (most recent call last):
    forebay.core.errors.Invalid: timeout_s must be a number of seconds above 0
    """
    if not _is_number(timeout_s) or timeout_s <= 0:
        raise Invalid("timeout_s", "a number of seconds above 0")


def check_retry(retry_s: Any) -> None:
    """Raise unless a request can be retried for so long."""
    if not _is_number(retry_s) or retry_s < 0:
        raise Invalid("retry_s", "a number of seconds, 0 or more")


def _is_number(value: Any) -> bool:
    """Return whether a value is a number of seconds that a clock can count.

    >>> [_is_number(value) for value in (1, 0.5, True, "5", float("nan"), 10**400)]
    [True, True, False, False, False, False]
    """
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    except OverflowError:
        return False


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
