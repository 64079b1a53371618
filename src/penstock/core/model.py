"""The data, first: everything Penstock knows about a queue, field by field.

    tenant ── queue ──┬── partition ── log ── segments ── runs (and one body each, kept apart)
                      └── group ──┬── track per partition: cursor, schedule, what is leased there
                                  └── leases ── runs

A message has no object of its own. It is an offset in a partition; what became of it follows from where
that offset stands. For every group, at every instant, a message is in exactly one of:

    fresh       at or past the track's cursor
    leased      in an unsettled place of a live lease
    scheduled   in a run of the track's schedule
    settled     in none of these: completed

Fields marked *memory* are rebuilt at load; all others are stored. Instants end in ``_at`` and durations in
``_ms``, both in milliseconds.
"""

from itertools import chain

from msgspec import Struct

DEFAULT = "default"
"""The tenant, the partition and the group a command means when it names none."""

FSYNC, OS, MEMORY = "fsync", "os", "memory"
"""What a confirmed change survives: power loss, a crash of the process, nothing."""


class Run(Struct, frozen=True, gc=False, array_like=True):
    """Consecutive messages that share a time and attributes."""

    count: int
    """Messages in the run."""
    created_at: int
    """When they were pushed; never less than the run before."""


class Segment(Struct, gc=False, eq=False):
    """A stretch of a log: one header (this) and one body (the payloads, apart).

    Once sealed it never changes, but for a body that is read back. A body is let go by putting a header-only
    copy in its place, so whoever holds the old segment still has the body.
    """

    base: int
    """Offset of its first message."""
    count: int
    """Messages in it."""
    size: int
    """Payload bytes in it."""
    created_at: int
    """When its first message was pushed."""
    body_name: int = 0
    """(epoch, counter) of the body, given when the segment is sealed."""
    spread: bytes = b""
    """The runs of a merged segment: two u32 each, its end and its time. Empty if it is one run."""
    payloads: list[bytes] | None = None
    """*memory* The payloads of a segment that is still forming; None once it is sealed."""
    lengths: list[int] | None = None
    """*memory* Their lengths."""
    body: bytes | None = None
    """*memory* The body, if it is present; a header-only segment has neither this nor ``payloads``."""

    @property
    def end(self) -> int:
        return self.base + self.count

    @property
    def runs(self) -> tuple[Run, ...]:
        """Its messages by time, in offset order; their counts add up to ``count``."""
        if not self.spread:
            return (Run(self.count, self.created_at),)
        begins = chain((0,), self.run_ends)
        ends = zip(begins, self.run_ends, self.run_times, strict=False)
        return tuple(Run(end - begin, self.created_at + later) for begin, end, later in ends)

    @property
    def run_ends(self) -> "memoryview[int]":
        """Of a merged segment: where each of its runs ends, counted from its first message."""
        return memoryview(self.spread).cast("I")[::2]

    @property
    def run_times(self) -> "memoryview[int]":
        """Of a merged segment: how many ms after its first message each of its runs came."""
        return memoryview(self.spread).cast("I")[1::2]

    @property
    def last_at(self) -> int:
        """When its last message was pushed."""
        return self.created_at + self.run_times[-1] if self.spread else self.created_at

    @property
    def weight(self) -> int:
        """Bytes it counts for once it is settled; never 0, so that empty payloads are swept too."""
        return self.size or 1

    @property
    def present(self) -> bool:
        return self.body is not None or self.payloads is not None


class Log:
    """The segments of a partition, oldest first, without gaps. *memory*: found again from the headers."""

    __slots__ = ("bases", "dropped", "end", "first", "forming", "segments", "size", "time")

    def __init__(self, first: int) -> None:
        self.first = first
        """Offset of the oldest message still kept."""
        self.end = first
        """Offset the next message will get."""
        self.size = 0
        """Payload bytes kept."""
        self.time = 0
        """Time of the newest message: later ones are not earlier."""
        self.segments: list[Segment] = []
        self.bases: list[int] = []
        """``base`` of each segment, for bisection in C."""
        self.dropped = 0
        """Segments dropped so far: position + dropped names a segment while it lives."""
        self.forming: Segment | None = None
        """The segment that pushes may still join; sealed with the commit."""


class Mark(Struct, frozen=True, gc=False, array_like=True):
    """Everything below an offset was settled by every group at an instant."""

    offset: int
    at: int


class Partition(Struct, eq=False, kw_only=True):
    """One lane of a queue: an append-only log under numbers that are never reused."""

    key: int
    """Its first number: names the partition in every record key."""
    name: str
    numbers: list[tuple[int, int]]
    """Every number it ever took, with the first offset under it."""
    log: Log
    """``log.first`` is stored here, the segments as records of their own."""
    marks: list[Mark]
    """How far it was settled when, for completed_retention_ms."""
    os_marked: bool = False
    """A power loss may take back ids that were confirmed: it gets a fresh number after an unclean stop."""
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


class Scheduled(Struct, frozen=True, gc=False, order=True):
    """A run that left the straight line and is due again."""

    due_at: int
    first: int
    """Offset of its first message; unique within a track's schedule."""
    count: int
    deliveries: int
    """How often its messages were handed out so far."""
    failures: int
    """How often that ended in a nack or an expired lease."""
    error: str
    """What the last failure said."""


class Track(Struct, eq=False, kw_only=True):
    """Where a group stands in a partition."""

    partition: Partition
    key: bytes
    """*memory* The key of its record; empty if its queue is not stored."""
    cursor: int
    """The next fresh offset."""
    turn: int = 0
    """When the group last served this partition, in its own count: the least recently served goes first."""
    schedule: list[Scheduled]
    """A heap: earliest due first, then lowest offset. Each entry is a record of its own."""
    scheduled: int = 0
    """*memory* Messages in the schedule."""
    position: int = 0
    """*memory* Segment of the cursor (``Log.dropped`` included); a hint, checked when used."""
    leased: int = 0
    """*memory* Messages in live leases."""
    singles: dict[int, int]
    """*memory* Offset to lease name, for leased runs of one message."""
    spans: list[tuple[int, int, int]]
    """*memory* (first, count, lease name) of longer leased runs, sorted."""
    listed: bool = False
    """*memory* Whether the group's ready heap holds it."""
    dirty: bool = False
    """*memory* Changed since the last seal."""


class Group(Struct, eq=False, kw_only=True):
    """A reader of the whole queue, independent of every other group."""

    number: int
    """Names the group in record keys; unique in its queue."""
    name: str
    turn: int = 0
    """*memory* The highest turn of its tracks."""
    tracks: dict[int, Track]
    """By partition key."""
    ready: list[tuple[int, int]]
    """*memory* Heap of (turn, partition key): tracks that may have something to deliver."""


class QueueOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """What can be set per queue."""

    lease_ms: int = 30_000
    """How long a delivery is leased when the pop does not say."""
    completed_retention_ms: int = 3_600_000
    """How long messages that every group has settled stay readable."""
    completed_retention_bytes: int = 256 * 1024 * 1024
    """How many bytes of them stay; whichever ends first."""
    durability: str = FSYNC
    """What a confirmed change survives: fsync, os, or memory (the queue's content is not stored at all)."""


class Queue(Struct, eq=False, kw_only=True):
    """A named queue of a tenant."""

    tenant: str
    name: str
    prefix: bytes
    """Tenant id and queue id, 4 bytes each: every record key of the queue starts with it."""
    shard: int
    """Given at creation, for good."""
    options: QueueOptions
    """Its durability is memory from the beginning, or never."""
    partitions: dict[str, Partition]
    groups: dict[str, Group]
    groups_made: int = 0
    """Group numbers given out so far."""
    stored: bool = True
    """*memory* Whether its content is kept in the store: not if its durability is memory."""
    sweep_at: int = 0
    """*memory* When the next sweep is due; 0 when none is."""
    dirty: bool = False
    """*memory* Changed since the last seal."""


class LeaseRun(Struct, gc=False, eq=False):
    """Consecutive messages of a lease in one partition."""

    partition: int
    """The partition's key."""
    first: int
    count: int
    deliveries: int
    """This delivery included."""
    failures: int
    """Before this delivery."""
    expires_at: int
    error: str = ""
    """What the last failure before this delivery said."""
    settled: int = 0
    """Bit i is set when message ``first + i`` was acked. (Where one is nacked, the run is cut.)"""

    @property
    def unsettled(self) -> int:
        return self.count - self.settled.bit_count()


class Lease(Struct, eq=False):
    """One delivery: what a consumer holds until it settles it or time runs out."""

    name: int
    queue: Queue
    group: Group
    runs: dict[tuple[int, int], LeaseRun]
    """By partition key and first offset. Runs of a track never overlap."""
    due_at: int
    """*memory* The earliest ``expires_at`` of its runs."""
    owner: int
    """*memory* The connection it was delivered to; 0 after a restart."""
    stored: bool = False
    """*memory* Whether a record of it exists."""
    dirty: bool = False
    """*memory* Changed since the last seal."""
    ended: bool = False
    """*memory* Nothing is left in it."""


__all__ = [
    "DEFAULT",
    "FSYNC",
    "Group",
    "Lease",
    "LeaseRun",
    "Log",
    "MEMORY",
    "Mark",
    "OS",
    "Partition",
    "Queue",
    "QueueOptions",
    "Run",
    "Scheduled",
    "Segment",
    "Track",
]
