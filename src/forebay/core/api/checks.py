"""Input checks that several commands share: attributes, backoff, partitions, rates."""

from forebay.core.bounds import (
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
from forebay.core.errors import Busy, Invalid
from forebay.core.state import PLAIN, Attributes, Backoff, Queue, Rate
from forebay.core.words import BACKOFF_KINDS, FAILURE_POLICIES, LIST

RATE_MAX = 1 << 40
"""Upper bound of a rate, per period and as burst."""


def check_rate(field: str, rate: Rate) -> None:
    """Raise unless a rate is valid."""
    check_range(field, rate.limit, 1, RATE_MAX)
    check_range(f"{field}.per_ms", rate.per_ms, 1, DELAY_MS_MAX)
    check_range(f"{field}.burst", rate.burst, 0, RATE_MAX)


def check_partitions(limits: Limits, queue: Queue | None, names: set[str]) -> None:
    """Raise unless the queue has these partitions, or may create them."""
    known = queue.partitions if queue else {}
    new = names - known.keys()
    for name in new:
        check_name("partition", name)
    if new and len(known) + len(new) > limits.partitions_max:
        raise Busy(f"a queue has at most {limits.partitions_max} partitions")


ATTEMPTS_MAX = 1_000_000
KEPT_MAX = 1 << 52
"""Largest ``keep_count`` of a message."""


def check_backoff(backoff: Backoff) -> None:
    """Raise unless a backoff is valid."""
    if backoff.kind not in BACKOFF_KINDS:
        raise Invalid("backoff", f"of kind {', '.join(BACKOFF_KINDS)}")
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


def check_labels(attributes: Attributes) -> None:
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
    """Return the attributes; raise unless they are valid. ``PLAIN`` itself if all are defaults."""
    if attributes is PLAIN or attributes == PLAIN:
        return PLAIN
    if attributes.priority:
        check_range("priority", attributes.priority, -PRIORITY_MAX, PRIORITY_MAX)
    if attributes.delay_ms:
        check_range("delay_ms", attributes.delay_ms, 0, DELAY_MS_MAX)
    if attributes.ttl_ms:
        check_range("ttl_ms", attributes.ttl_ms, 0, DELAY_MS_MAX)
    if attributes.timeout_ms:
        check_range("timeout_ms", attributes.timeout_ms, 0, limits.lease_ms_max)
    if attributes.stall_ms:
        check_range("stall_ms", attributes.stall_ms, 0, limits.lease_ms_max)
    if attributes.cleanup is not None:
        check_range("keep_ms", attributes.cleanup.keep_ms, 0, DELAY_MS_MAX)
        check_range("keep_count", attributes.cleanup.keep_count, 0, KEPT_MAX)
    if attributes.max_attempts is not None:
        check_range("max_attempts", attributes.max_attempts, 0, ATTEMPTS_MAX)
    if attributes.backoff is not None:
        check_backoff(attributes.backoff)
    if attributes.headers or attributes.tags:
        check_labels(attributes)
    if attributes.task:
        check_name("task", attributes.task)
    if attributes.on_failed not in FAILURE_POLICIES:
        raise Invalid("on_failed", f"one of {', '.join(FAILURE_POLICIES)}")
    if attributes.ttl_ms and attributes.ttl_ms <= attributes.delay_ms:
        raise Invalid("ttl_ms", "more than the delay, or the message could never be delivered")
    return attributes
