"""Messages that a consumer can't handle yet: they come again, uncounted, until one can or the time is over.

The time counts from the first deferral, which the error of a message tells. The error goes with the message
into its leases and records, so it survives restarts, and all consumers see the same; a failure replaces it.
"""

import re
from datetime import UTC, datetime

from forebay.core.words import DEFERRED_SINCE

FIRST_MS, LONGEST_MS = 1_000, 5_000
"""Shortest and longest delay. In between it is as long as the message has been deferred: it doubles. The
next consumer may again be one that can't handle it, so a longer one starves a message beside one that can."""
_TOLD = re.compile(DEFERRED_SINCE + r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3})Z: ")


def since(error: str) -> int | None:
    """Return when the message with this error was deferred first; None if it is not deferred."""
    told = _TOLD.match(error)
    if told is None:
        return None
    try:
        at = datetime.fromisoformat(told[1]).replace(tzinfo=UTC)
    except ValueError:  # a consumer's own error that looks like one of ours
        return None
    return round(at.timestamp() * 1000)


def own(error: str) -> str:
    """Return the error that a consumer gave, so that it is not taken for one of ours.

    >>> own("no user"), own("deferred since 2023-11-14T22:13:20.123Z: mine")
    ('no user', 'failed: deferred since 2023-11-14T22:13:20.123Z: mine')
    """
    return f"failed: {error}" if error.startswith(DEFERRED_SINCE) else error


def told(at: int, why: str) -> str:
    """Return the error of a message that is deferred since an instant.

    >>> told(1_700_000_000_123, "no such task"), since(told(1_700_000_000_123, "no such task"))
    ('deferred since 2023-11-14T22:13:20.123Z: no such task', 1700000000123)
    """
    shown = datetime.fromtimestamp(at // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{DEFERRED_SINCE}{shown}.{at % 1000:03}Z: {why}"


def wait_ms(spent_ms: int, defer_ms: int) -> int | None:
    """Return the delay of a message that has been deferred for some time; None if that is long enough.

    >>> [wait_ms(spent_ms, 60_000) for spent_ms in (0, 1_000, 2_000, 4_000, 45_000, 60_000)]
    [1000, 1000, 2000, 4000, 5000, None]
    """
    if spent_ms >= defer_ms:
        return None
    return min(max(spent_ms, FIRST_MS), LONGEST_MS, defer_ms - spent_ms)
