"""Queue options: validation, and what follows from them."""

from msgspec import ValidationError, convert
from msgspec.structs import fields

from forebay.core.api.checks import ATTEMPTS_MAX, check_backoff, check_rate
from forebay.core.api.commands import Configure
from forebay.core.bounds import DELAY_MS_MAX, NOTES_MS_MAX, Limits, check_name, check_range
from forebay.core.errors import Conflict, Invalid
from forebay.core.records.codec import PackedQueue
from forebay.core.shard.limiters import is_limited
from forebay.core.state import Backoff, Queue, QueueOptions, Rate, Retention
from forebay.core.words import BY_MESSAGE, BY_PARTITION, FAIL, FSYNC, MEMORY, OS, REQUEUE

DAY_MS = 86_400_000
RETENTION_MS_MAX = 3_650 * DAY_MS
RETENTION_BYTES_MAX = 1 << 60
SIZE_MAX = 1 << 52
LIMITS_MAX = 10
"""Named limits per queue."""
OPTION_TYPES = {each.name: each.type for each in fields(QueueOptions)}
CHOICES = {
    "on_lease_expiry": (FAIL, REQUEUE),
    "ordering": (BY_MESSAGE, BY_PARTITION),
    "durability": (FSYNC, OS, MEMORY),
}
"""Options that are one of a few words."""


def check_options(limits: Limits, queue: Queue | None, command: Configure) -> dict[str, object]:
    """Return the options that a command sets; raise unless all are valid."""
    options = command.options
    ranges = {
        "lease_ms": (1, limits.lease_ms_max),
        "completed_retention_ms": (0, RETENTION_MS_MAX),
        "completed_retention_bytes": (0, RETENTION_BYTES_MAX),
        "completed_retention_count": (0, SIZE_MAX),
        "result_retention_ms": (0, NOTES_MS_MAX),
        "max_attempts": (0, ATTEMPTS_MAX),
        "max_deliveries": (0, ATTEMPTS_MAX),
        "delayed_processing_ms": (0, DELAY_MS_MAX),
        "window_buffer_ms": (0, DELAY_MS_MAX),
        "max_wait_ms": (0, DELAY_MS_MAX),
        "retention_ms": (0, RETENTION_MS_MAX),
        "partition_retention_ms": (0, RETENTION_MS_MAX),
        "group_idle_ms": (0, RETENTION_MS_MAX),
        "max_size": (0, SIZE_MAX),
        "dedup_window_ms": (0, 30 * DAY_MS),
        "concurrency": (0, SIZE_MAX),
        "partition_concurrency": (0, SIZE_MAX),
    }
    for field, value in options.items():
        _check_type(field, value)
    for field in Retention.__struct_fields__:
        if field in options and options[field] is None and command.partition is None:
            raise Invalid(field, "a number; only that of a partition can be null, which is the queue's")
    for field, (low, high) in ranges.items():
        value = options.get(field)
        if isinstance(value, int):
            check_range(field, value, low, high)
    for field, value in options.items():
        match value:
            case Rate():
                check_rate(field, value)
            case Backoff():
                check_backoff(value)
            case tuple():
                _check_limits(value)
    for field, words in CHOICES.items():
        if options.get(field, words[0]) not in words:
            raise Invalid(field, f"{', '.join(words[:-1])} or {words[-1]}")
    if "ordering" in options:
        check_change(queue, str(options["ordering"]))
    if "durability" in options:
        check_level(queue, str(options["durability"]))
    return options


def _check_type(field: str, value: object) -> None:
    """Raise unless a value has the type of an option; of retention, None means that of the queue."""
    if value is None and field in Retention.__struct_fields__:
        return
    try:
        convert(value, OPTION_TYPES[field])
    except ValidationError as error:
        raise Invalid(field, f"what the option takes: {error}") from None


def _check_limits(names: tuple[str, ...]) -> None:
    """Raise unless these can be the named limits of a queue."""
    if len(set(names)) < len(names) or len(names) > LIMITS_MAX:
        raise Invalid("limits", f"a list of at most {LIMITS_MAX} different names")
    for name in names:
        check_name("limits", name)


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
    if queue is not None and (durability == MEMORY) == queue.stored:
        raise Conflict(f"a queue is {MEMORY} from its creation on, or never")


def check_change(queue: Queue | None, ordering: str) -> None:
    """Raise unless the ordering of a queue may change to this."""
    if queue is None or queue.options.ordering == ordering:
        return
    if any(partition.log.end for partition in queue.partitions.values()):
        raise Conflict(f"queue {queue.name} has had messages: its ordering can't change any more")
