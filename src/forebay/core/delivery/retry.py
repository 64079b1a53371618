"""Retry policy: how many failures make a message dead, and how long the backoff is."""

import struct
from zlib import crc32

from forebay.core.state import Attributes, Backoff, QueueOptions
from forebay.core.words import LIST

_SEED = struct.Struct("<QI")


def attempts(attributes: Attributes, options: QueueOptions) -> int:
    """Return the failures that make a message dead; 0 for no limit."""
    if attributes.max_attempts is not None:
        return attributes.max_attempts
    if attributes.backoff is not None and attributes.backoff.kind == LIST:
        return len(attributes.backoff.steps) + 1
    return options.max_attempts


def wait_ms(backoff: Backoff, failures: int, offset: int) -> int:
    """How long a message waits after so many failures; the same however often it is asked.

    >>> [wait_ms(Backoff(), failures, 7) for failures in (1, 2, 3, 4, 5)]
    [1000, 2000, 4000, 8000, 16000]
    """
    match backoff.kind:
        case "none":
            return 0
        case "list":
            wait = backoff.steps[min(failures, len(backoff.steps)) - 1]
        case "fixed":
            wait = backoff.base_ms
        case _:
            # The exponent is cut off where no cap can be higher, so that the number stays small.
            wait = min(backoff.base_ms << min(failures - 1, 42), backoff.cap_ms)
    if backoff.jitter:
        part = crc32(_SEED.pack(offset & (1 << 64) - 1, failures)) / (1 << 32)
        wait -= int(wait * backoff.jitter * part)
    return wait
