"""Queue options: validation, and what follows from them."""

from msgspec import UNSET

from forebay.core.api.checks import ATTEMPTS_MAX, check_backoff, check_rate
from forebay.core.api.commands import Configure
from forebay.core.bounds import DELAY_MS_MAX, Limits, check_name, check_range
from forebay.core.errors import Conflict, Invalid
from forebay.core.records.codec import PackedQueue
from forebay.core.shard.limiters import is_limited
from forebay.core.state import Backoff, Queue, QueueOptions, Retention
from forebay.core.words import BY_MESSAGE, BY_PARTITION, FAIL, FSYNC, MEMORY, OS, REQUEUE

DAY_MS = 86_400_000
RETENTION_MS_MAX = 3_650 * DAY_MS
RETENTION_BYTES_MAX = 1 << 60
SIZE_MAX = 1 << 52
LIMITS_MAX = 10
"""Named limits per queue."""


def check_options(limits: Limits, queue: Queue | None, command: Configure) -> dict[str, object]:
    """Return the options that a command sets; raise unless all are valid."""
    ranges = {
        "lease_ms": (command.lease_ms, 1, limits.lease_ms_max),
        "completed_retention_ms": (command.completed_retention_ms, 0, RETENTION_MS_MAX),
        "completed_retention_bytes": (command.completed_retention_bytes, 0, RETENTION_BYTES_MAX),
        "max_attempts": (command.max_attempts, 0, ATTEMPTS_MAX),
        "max_deliveries": (command.max_deliveries, 0, ATTEMPTS_MAX),
        "delayed_processing_ms": (command.delayed_processing_ms, 0, DELAY_MS_MAX),
        "window_buffer_ms": (command.window_buffer_ms, 0, DELAY_MS_MAX),
        "max_wait_ms": (command.max_wait_ms, 0, DELAY_MS_MAX),
        "retention_ms": (command.retention_ms, 0, RETENTION_MS_MAX),
        "partition_retention_ms": (command.partition_retention_ms, 0, RETENTION_MS_MAX),
        "group_idle_ms": (command.group_idle_ms, 0, RETENTION_MS_MAX),
        "max_size": (command.max_size, 0, SIZE_MAX),
        "dedup_window_ms": (command.dedup_window_ms, 0, 30 * DAY_MS),
        "concurrency": (command.concurrency, 0, SIZE_MAX),
        "partition_concurrency": (command.partition_concurrency, 0, SIZE_MAX),
    }
    changes: dict[str, object] = {}
    for field in Retention.__struct_fields__:
        if getattr(command, field) is None:
            if command.partition is None:
                raise Invalid(field, "a number; only that of a partition can be null, which is the queue's")
            changes[field] = None
    for field, (value, low, high) in ranges.items():
        if isinstance(value, int):
            check_range(field, value, low, high)
            changes[field] = value
    for field in ("rate_limit", "byte_limit", "partition_rate_limit"):
        rate = getattr(command, field)
        if rate is not UNSET:
            changes[field] = check_rate(field, rate) if rate is not None else None
    if command.limits is not UNSET:
        if len(set(command.limits)) < len(command.limits) or len(command.limits) > LIMITS_MAX:
            raise Invalid("limits", f"a list of at most {LIMITS_MAX} different names")
        for name in command.limits:
            check_name("limits", name)
        changes["limits"] = command.limits
    if isinstance(command.backoff, Backoff):
        check_backoff(command.backoff)
        changes["backoff"] = command.backoff
    if isinstance(command.dead_letters, bool):
        changes["dead_letters"] = command.dead_letters
    if isinstance(command.require_lease, bool):
        changes["require_lease"] = command.require_lease
    if isinstance(command.on_lease_expiry, str):
        if command.on_lease_expiry not in (FAIL, REQUEUE):
            raise Invalid("on_lease_expiry", f"{FAIL} or {REQUEUE}")
        changes["on_lease_expiry"] = command.on_lease_expiry
    if isinstance(command.ordering, str):
        if command.ordering not in (BY_MESSAGE, BY_PARTITION):
            raise Invalid("ordering", f"{BY_MESSAGE} or {BY_PARTITION}")
        check_change(queue, command.ordering)
        changes["ordering"] = command.ordering
    if isinstance(command.durability, str):
        check_level(queue, command.durability)
        changes["durability"] = command.durability
    return changes


def set_kept(queue: Queue, kept: PackedQueue) -> None:
    """Set a queue's fields from its record."""
    queue.groups_made, queue.paused_until = kept.groups_made, kept.paused_until
    queue.closing_at = kept.closing_at
    set_options(queue, kept.options)


def set_options(queue: Queue, options: QueueOptions) -> None:
    """Set a queue's options, and the fields derived from them."""
    queue.options = options
    queue.stored = options.durability != MEMORY
    queue.ordered = options.ordering == BY_PARTITION
    queue.limited = is_limited(options)
    queue.gated = bool(options.delayed_processing_ms or options.window_buffer_ms or options.max_wait_ms)


def check_level(queue: Queue | None, durability: str) -> None:
    """Raise unless the queue may have this durability."""
    if durability not in (FSYNC, OS, MEMORY):
        raise Invalid("durability", f"{FSYNC}, {OS} or {MEMORY}")
    if queue is not None and (durability == MEMORY) == queue.stored:
        raise Conflict(f"a queue is {MEMORY} from its creation on, or never")


def check_change(queue: Queue | None, ordering: str) -> None:
    """Raise unless the ordering of a queue may change to this."""
    if queue is None or queue.options.ordering == ordering:
        return
    if any(partition.log.end for partition in queue.partitions.values()):
        raise Conflict(f"queue {queue.name} has had messages: its ordering can't change any more")
