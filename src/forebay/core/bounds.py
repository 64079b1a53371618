"""Named limits on everything a caller can make large, and the checks of single fields."""

import re

from msgspec import Struct

from forebay.core.errors import Invalid

QUEUE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,256}", re.ASCII)
NAME_BYTES_MAX = 255
"""UTF-8 bytes of a tenant's, a partition's or a group's name."""
ERROR_CHARS_MAX = 2_000
"""Characters kept of a nack's error."""
NOTES_MAX = 20_000
"""Notes of each kind that a queue keeps: the newest."""
RESULTS_MAX = 100_000
"""Results that a queue keeps: the newest."""
AWAITED_MAX = 1_000_000
"""Results that a queue keeps because other messages waited for them: the newest. Each takes 40 bytes."""
AWAITED_BYTES_MAX = 1024 * 1024 * 1024
"""Bytes of such results, if they are stored."""
ATTEMPTS_MAX = 100_000
"""Failed attempts that a group keeps: the newest. One may be that of many messages."""
ATTEMPTS_SHOWN_MAX = 100
"""Failed attempts of a message per reply: the newest."""
ERROR_TYPE_CHARS_MAX = 200
TRACEBACK_CHARS_MAX = 8_000
WORKER_CHARS_MAX = 128
NOTES_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of notes of each kind."""
NOTES_MS_MAX = 7 * 86_400_000
"""Maximum age."""
PROGRESS_MAX = 10_000
"""Messages of a partition whose progress is kept: the latest reports."""
DEPENDENCIES_MAX = 100_000
"""Dependencies of one message."""
TOLD_AT_ONCE = 2_000
"""Rows of dependents to notify when a queue is removed: about 100 ms."""
DEPENDENCY_RUNS_MAX = 1_000
"""Ranges of consecutive ids among the dependencies."""
REMEMBERED_MAX = 1_000_000
"""Idempotency keys and throttled keys that a queue remembers: the newest."""
KNOWN_MS_MAX = 30 * 24 * 3_600_000
"""How long an idempotency key may be remembered."""
TRANSACTIONS_MAX = 1_000_000
"""Transaction ids that a partition remembers."""
UNDELIVERED_KEYS_MAX = 10
"""Keys that get the payload of one message if it dies."""
TIED_BYTES_MAX = 64 * 1024 * 1024
"""Payload bytes kept for keys_if_undelivered, per queue."""
TOKENS_MAX = 1_000
"""Tokens of one tenant."""
STAGES_MAX = 10_000
"""Stages of a queue."""
STAGED_BYTES_MAX = 64 * 1024 * 1024 * 1024
"""Staged payload bytes of a queue."""
KEYED_BYTES_MAX = 64 * 1024 * 1024
"""Staged payload bytes with unique keys: all in memory."""
STAGED_PARTS_MAX = 100_000
"""Staged bodies of a queue: adopting that many takes a second."""
KEYED_MAX = 200_000
"""Staged messages in parts with unique keys: adopting that many takes a second."""
STAGED_MS_MAX = 7 * 86_400_000
"""Maximum lifetime of a stage."""
QUERIES_MAX = 10_000
"""Queries whose adoptions a queue remembers: the most recent."""
ADOPTIONS_MAX = 100
"""Adoptions of one query that are remembered: the newest."""
HEADERS_MAX = 64
"""Headers of one message, and tags."""
HEADER_BYTES_MAX = 8 * 1024
"""UTF-8 bytes of the headers of one message, names and values together."""
FLOW_MAX = 1_000
"""Messages of one flow."""
OPERATIONS_MAX = 1_000
"""Commands of one transaction."""
NAMED_LIMITS_MAX = 10_000
"""Named limits of a tenant."""
CRON_BYTES_MAX = 256 * 1024 * 1024
"""Payload bytes of the crons of one tenant: all in memory."""
CRONS_MAX = 100_000
"""Crons of one tenant."""
KV_BYTES_MAX = 256 * 1024 * 1024
"""Approximate bytes of a tenant's keys and values: all in memory."""
KV_LISTED_MAX = 1_000
"""Keys that one command reads."""
KV_WRITES_MAX = 1_000
"""Checks and changes of one write."""
SEGMENT_BYTES_MAX = 256 * 1024
"""Bytes of a segment body, offsets included: a write this small stalls no one."""
PRIORITY_MAX = 1_000_000_000
"""Largest absolute priority."""
DELAY_MS_MAX = 10 * 365 * 86_400_000
"""Longest delay, ttl or backoff: ten years."""
BACKOFF_STEPS_MAX = 100
"""Steps of a list backoff."""
OFFSETS_PER_NUMBER = 1 << 32
"""Offsets per partition number: an id has 32 bits for the offset."""
NUMBERS_MAX = 1 << 32
"""Partition numbers: an id has 32 bits for the number."""


class Limits(Struct, frozen=True):
    """Limits that the operator can set."""

    payload_bytes_max: int = 1_048_576
    """Bytes of one payload."""
    batch_max: int = 100_000
    """Messages in one push, pop, ack, nack, extend or read."""
    lease_ms_max: int = 43_200_000
    """Longest lease: 12 hours."""
    wait_ms_max: int = 3_600_000
    """Longest long poll: one hour."""
    queues_max: int = 100_000
    """Queues of one tenant."""
    partitions_max: int = 10_000
    """Partitions of one queue."""
    groups_max: int = 1_000
    """Groups of one queue."""
    read_bytes_max: int = 16 * 1024 * 1024
    """Payload bytes of one read; at least one message is always read."""
    pop_bytes_max: int = 32 * 1024 * 1024
    """Payload bytes of one pop; at least one message is always delivered."""
    events_bytes_max: int = 0
    """Bytes of lifecycle events per shard; 0 keeps none."""
    events_retention_ms: int = 7 * 86_400_000
    """Maximum age."""
    pop_creates_queues: bool = False
    """Whether a pop that does not say creates a missing queue."""
    use_creates_tenants: bool = True
    """Whether a tenant is made when it is first used; else only an admin makes one."""


def check_queue_name(name: str) -> None:
    """Raise unless ``name`` may name a queue."""
    if not QUEUE_NAME.fullmatch(name):
        raise Invalid("queue", "1 to 256 characters of A-Z a-z 0-9 _ . -")


def check_name(field: str, name: str) -> None:
    """Raise unless ``name`` may name a tenant, a partition or a group."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:  # a lone surrogate
        size = 0
    if not 1 <= size <= NAME_BYTES_MAX or "\0" in name:
        raise Invalid(field, f"1 to {NAME_BYTES_MAX} bytes of UTF-8 without NUL")


def check_text(field: str, text: str) -> None:
    """Raise if a text can't be encoded: JSON allows lone surrogates, UTF-8 does not."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Invalid(field, "text that UTF-8 can say: a lone surrogate is none") from None


def check_printable(field: str, name: str) -> None:
    """Raise if a name has what moves or turns the text around it, such as line breaks and escapes."""
    if not name.isprintable():
        raise Invalid(field, "printable: no line breaks, control characters or marks of direction")


def check_request(producer: str, key: str, known_ms: int) -> None:
    """Raise unless an idempotency key and its lifetime are valid."""
    check_name("idempotency_key", key)
    if producer:
        check_name("producer", producer)
    check_range("idempotency_ms", known_ms, 0, KNOWN_MS_MAX)


def check_range(field: str, value: int, low: int, high: int) -> None:
    """Raise unless ``low <= value <= high``."""
    if not low <= value <= high:
        raise Invalid(field, f"between {low} and {high}")


BATCH_MAX = (1 << 63) - 1
FLOW_DEPTH_MAX = 20
"""Levels of a flow."""
DEAD_SHOWN_MAX = 1_000
"""Dead letters shown at a time."""
SHOWN_MAX = 1_000
"""Messages shown at a time."""
NEVER = 1 << 62
"""Later than any instant, and past any offset."""
