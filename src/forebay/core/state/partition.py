"""A partition, its retention, and the progress of its messages."""

from msgspec import Struct

from forebay.core.state.jobs import Tie
from forebay.core.state.segment import Log
from forebay.core.structures.table import Table


class Mark(Struct, frozen=True, gc=False, array_like=True):
    """Everything below an offset was settled by every group at an instant."""

    offset: int
    at: int


class Progress(Struct, frozen=True, gc=False, array_like=True):
    """How far the work on a message is, as its consumer says."""

    percent: int
    message: str
    at: int


class Retention(Struct, frozen=True, gc=False, array_like=True):
    """How long a partition keeps what, where that differs from its queue."""

    retention_ms: int | None = None
    completed_retention_ms: int | None = None
    partition_retention_ms: int | None = None


class Partition(Struct, eq=False, kw_only=True):
    """A part of a queue: an append-only log under numbers that are never reused."""

    key: int
    """Its first number: names the partition in every record key."""
    name: str
    numbers: list[tuple[int, int]]
    """Every number it ever took, with the first offset under it."""
    log: Log
    """``log.first`` is stored here, the segments as records of their own."""
    marks: list[Mark]
    """How far it was settled when, for completed_retention_ms."""
    withdrawn: Table
    """(first, count, at): cancelled for every group there is or will be. Each is a record of its own."""
    progress: dict[int, Progress]
    """By offset, those last told last. Each is a record of its own."""
    successors: Table
    """(offset, offset of what took its place): of messages that were updated. Each is a record of its own."""
    parked: Table
    """(first, count, messages it waits for): what waits for others. Each is a record of its own."""
    dependents: Table
    """(first, id of the first that waits, count, how many wait): what is waited for, in spans of no more than
    ``SPAN_MAX``. Each is a record of its own."""
    spans: Table
    """*memory* (first, id of the first that waits) of those that are longer than one message."""
    met: dict[tuple[int, int], int]
    """Of such a span, by the same: bit i is set when message ``first + i`` is not waited for any more. In the
    record of the span."""
    led_to: dict[int, int]
    """*memory* ``successors``, the other way round."""
    ties: dict[int, Tie]
    """By offset. Each is a record of its own."""
    job_ids: dict[int, str]
    """Custom ids of messages, by offset. Each is a record of its own."""
    transactions: dict[str, tuple[int, int]]
    """*memory* Transaction id to offset and time; those of the last while."""
    taken: dict[int, tuple[int, list[tuple[int, str]]]]
    """When transaction ids were taken and (offset, transaction id), by first offset, oldest first. Each is a
    record of its own."""
    parked_messages: int = 0
    """*memory* Messages in ``parked``."""
    links_count: int = 0
    """*memory* Ties and dependents: if there are any, the end of its messages has consequences."""
    lane: bool = False
    """Whether each group has no more than one of its messages leased at a time."""
    retention: Retention = Retention()
    """Where it differs from its queue's."""
    emptied_at: int = 0
    """Since when a sweep has found nothing in it; 0 if there is something."""
    os_marked: bool = False
    """A power loss may take back ids that were confirmed: it gets a fresh number after an unclean stop."""
    island_at: int = 0
    """*memory* Which island the next sweep looks at first."""
    islands_left: int = 0
    """*memory* Islands to be looked at since something was last settled."""
    settled_to: int = 0
    """*memory* Up to where ``settled_bytes`` has been counted."""
    settled_bytes: int = 0
    """*memory* Payload bytes of segments that every group has settled."""
    unmerged: int = 0
    """*memory* Segments sealed since merging last found nothing to do."""
    merged_to: list[int]
    """*memory* Up to where each tier of merging has looked."""
    dirty: bool = False
    """*memory* Changed since the last seal."""
