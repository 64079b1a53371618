"""Retry: after how many failures a message is dead, and how long it waits before the next try."""

import struct
from zlib import crc32

from forebay.core.errors import Invalid
from forebay.core.limits import (
    BACKOFF_STEPS_MAX,
    DELAY_MS_MAX,
    HEADER_BYTES_MAX,
    HEADERS_MAX,
    PRIORITY_MAX,
    Limits,
    check_name,
    check_range,
    check_text,
)
from forebay.core.model import (
    EXPONENTIAL,
    FAIL,
    FIXED,
    IGNORE,
    LIST,
    NONE,
    PLAIN,
    WAIT,
    Attributes,
    Backoff,
    QueueOptions,
)

KINDS = (NONE, FIXED, EXPONENTIAL, LIST)
POLICIES = (FAIL, IGNORE, WAIT)
"""What may become of a message when one that it depends on fails."""
BASE_MS = 1_000
"""The first wait of a backoff that does not say."""
DOUBLINGS = 10
"""How often an exponential backoff doubles when nobody says where it ends."""
ATTEMPTS_MAX = 1_000_000
_SEED = struct.Struct("<QI")


def attempts(attributes: Attributes, options: QueueOptions) -> int:
    """Failures that make a message dead; 0 if none do."""
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


def check_backoff(backoff: Backoff) -> None:
    """Raise unless this is a backoff."""
    if backoff.kind not in KINDS:
        raise Invalid("backoff", f"of kind {', '.join(KINDS)}")
    check_range("backoff.base_ms", backoff.base_ms, 0, DELAY_MS_MAX)
    check_range("backoff.cap_ms", backoff.cap_ms, 0, DELAY_MS_MAX)
    if not 0 <= backoff.jitter <= 1:
        raise Invalid("backoff.jitter", "between 0 and 1: the part of the wait that may be left out")
    if backoff.kind == LIST:
        steps = backoff.steps
        if not 1 <= len(steps) <= BACKOFF_STEPS_MAX:
            raise Invalid(
                "backoff", f"a list of 1 to {BACKOFF_STEPS_MAX} waits in ms; this one has {len(steps)}"
            )
        if min(steps) < 0 or max(steps) > DELAY_MS_MAX:
            raise Invalid("backoff", f"a list of waits between 0 and {DELAY_MS_MAX} ms")
    elif backoff.steps:
        raise Invalid("backoff", "of kind list if it has steps")


def _check_labels(attributes: Attributes) -> None:
    """Raise unless messages may have these headers and tags."""
    if len(attributes.headers) > HEADERS_MAX:
        raise Invalid("headers", f"at most {HEADERS_MAX}")
    for name, value in attributes.headers:
        check_name("headers", name)
        check_text("headers", value)
    if sum(len(name.encode()) + len(value.encode()) for name, value in attributes.headers) > HEADER_BYTES_MAX:
        raise Invalid("headers", f"at most {HEADER_BYTES_MAX} bytes of names and values")
    if len(attributes.tags) > HEADERS_MAX or len(set(attributes.tags)) < len(attributes.tags):
        raise Invalid("tags", f"a list of at most {HEADERS_MAX}, each once")
    for tag in attributes.tags:
        check_name("tags", tag)


def check_attributes(limits: Limits, attributes: Attributes) -> Attributes:
    """Raise unless messages may have these; ``PLAIN`` itself if there are none."""
    if attributes is PLAIN or attributes == PLAIN:
        return PLAIN
    if attributes.priority:
        check_range("priority", attributes.priority, -PRIORITY_MAX, PRIORITY_MAX)
    if attributes.delay_ms:
        check_range("delay", attributes.delay_ms, 0, DELAY_MS_MAX)
    if attributes.ttl_ms:
        check_range("ttl", attributes.ttl_ms, 0, DELAY_MS_MAX)
    if attributes.timeout_ms:
        check_range("timeout", attributes.timeout_ms, 0, limits.lease_ms_max)
    if attributes.max_attempts is not None:
        check_range("max_attempts", attributes.max_attempts, 0, ATTEMPTS_MAX)
    if attributes.backoff is not None:
        check_backoff(attributes.backoff)
    if attributes.headers or attributes.tags:
        _check_labels(attributes)
    if attributes.on_failed not in POLICIES:
        raise Invalid("on_failed", f"one of {', '.join(POLICIES)}")
    if attributes.ttl_ms and attributes.ttl_ms <= attributes.delay_ms:
        raise Invalid("ttl", "more than delay, or the message could never be delivered")
    return attributes
