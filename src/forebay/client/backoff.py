"""Backoff between retries."""

from random import uniform

FIRST_S = 0.05
LONGEST_S = 2.0


def wait_s(attempt: int) -> float:
    """Return the seconds to wait after this many earlier failures, with jitter so that clients spread out."""
    return min(FIRST_S * 2.0 ** min(attempt, 10), LONGEST_S) * uniform(0.5, 1.0)
