"""The data, first: everything Forebay knows about a queue, field by field.

    tenant ── queue ──┬── partition ── log ── segments ── runs (and one body each, kept apart)
                      └── group ──┬── track per partition: cursor, skips, schedule, dead, outcomes, leased
                                  └── leases ── runs

A message has no object of its own. It is an offset in a partition; what became of it follows from where
that offset stands. For every group, at every instant, a message is in exactly one of:

    fresh       at or past the track's cursor, in line, and not in its skips
    leased      in an unsettled place of a live lease
    scheduled   in a run of the track's schedule (or about to be put there: out of line, past ``planned``)
    dead        in a run of the track's dead letters
    parked      in a run of the partition that waits for other messages: so in every group
    settled     in none of these: completed, unless an outcome of the track says otherwise

Fields marked *memory* are rebuilt at load; all others are stored. Instants end in ``_at`` and durations in
``_ms``, both in milliseconds.
"""

from bisect import bisect_right
from itertools import chain, repeat

from msgspec import Struct, field

from forebay.core.agenda import NEVER
from forebay.core.attributes import (
    EXPONENTIAL as EXPONENTIAL,
    FAIL as FAIL,
    FIXED as FIXED,
    IGNORE as IGNORE,
    IN_LINE as IN_LINE,
    LIST as LIST,
    NONE as NONE,
    PLACE_BYTES as PLACE_BYTES,
    PLAIN as PLAIN,
    WAIT as WAIT,
    Attributes as Attributes,
    Backoff as Backoff,
    count_sets as count_sets,
    level_of as level_of,
    priority_of as priority_of,
    set_at as set_at,
)
from forebay.core.jobdata import (
    Bucket as Bucket,
    Cron as Cron,
    Once as Once,
    Rate as Rate,
    Shared as Shared,
    Tie as Tie,
    Value as Value,
)
from forebay.core.partdata import Mark as Mark, Progress as Progress, Retention as Retention
from forebay.core.schedule import Schedule
from forebay.core.stagedata import Adopted, Stage, Sums
from forebay.core.table import Table

DEFAULT = "default"
"""The tenant, the partition and the group a command means when it names none."""

FSYNC, OS, MEMORY = "fsync", "os", "memory"
"""What a confirmed change survives: power loss, a crash of the process, nothing."""


BY_MESSAGE, BY_PARTITION = "message", "partition"
"""What is delivered in strict order: nothing, or each partition."""

REQUEUE = "requeue"
"""What an expired lease is if it is not a failure: nothing that counts."""


class Run(Struct, frozen=True, gc=False, array_like=True):
    """Consecutive messages that share a time and attributes."""

    count: int
    """Messages in the run."""
    created_at: int
    """When they were pushed; never less than the run before."""
    attributes: Attributes = PLAIN


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
    """Its runs, if there are several: two u32 each, where it ends and its time."""
    sets: bytes = b""
    """The sets of attributes that its runs have, packed one by one; empty if none of them has any."""
    which: bytes = b""
    """The attributes of each run, a u32 each, as places in ``sets``; empty if all have the first."""
    aside: int = 0
    """Messages in it that are not in line."""
    payloads: list[bytes] | None = None
    """*memory* The payloads of a segment that is still forming; None once it is sealed."""
    lengths: list[int] | None = None
    """*memory* Their lengths."""
    marks: list[tuple[int, Attributes]] | None = None
    """*memory* Of a forming segment, where each run ends and its attributes; None if none has any."""
    heavy: int = 0
    """*memory* Of a forming segment, bytes of headers and tags in ``marks``."""
    body: bytes | None = None
    """*memory* The body, if it is present; a header-only segment has neither this nor ``payloads``."""

    @property
    def end(self) -> int:
        return self.base + self.count

    @property
    def runs(self) -> tuple[Run, ...]:
        """Its messages by time, in offset order; their counts add up to ``count``."""
        count = count_sets(self.sets) if self.sets else 0
        sets = [set_at(self.sets, at) for at in range(count)] or [PLAIN]
        if not self.spread:
            return (Run(self.count, self.created_at, sets[0]),)
        which = memoryview(self.which).cast("I") if self.which else repeat(0)
        begins = chain((0,), self.run_ends)
        ends = zip(begins, self.run_ends, self.run_times, which, strict=False)
        return tuple(Run(end - begin, self.created_at + later, sets[at]) for begin, end, later, at in ends)

    def run_at(self, start: int) -> tuple[int, int, Attributes]:
        """Of the run of its ``start``-th message: where it ends, its time and its attributes."""
        if self.marks is not None:
            at = bisect_right(self.marks, start, key=_end)
            end, attributes = self.marks[at]
            return end, self.created_at, attributes
        sets = self.sets
        if not self.spread:
            return self.count, self.created_at, set_at(sets, 0) if sets else PLAIN
        pairs = memoryview(self.spread).cast("I")
        at = bisect_right(pairs[::2], start)
        which = memoryview(self.which).cast("I")[at] if self.which else 0
        attributes = set_at(sets, which) if sets else PLAIN
        return pairs[2 * at], self.created_at + pairs[2 * at + 1], attributes

    @property
    def mixed(self) -> bool:
        """Whether any of its messages has attributes."""
        return bool(self.sets) or self.marks is not None

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


def _end(mark: tuple[int, Attributes]) -> int:
    return mark[0]


class Log:
    """The segments of a partition, oldest first. *memory*: found again from the headers.

    From ``first`` on they have no gaps. Below it there are islands: segments kept for the sake of single
    messages that somebody has still to deal with, long after the log went on without them.
    """

    __slots__ = (
        "bases",
        "dropped",
        "end",
        "first",
        "forming",
        "islands",
        "mixed",
        "segments",
        "size",
        "strays",
        "time",
    )

    def __init__(self, first: int) -> None:
        self.first = first
        """Offset of the oldest message still kept, but for islands."""
        self.islands = 0
        """Segments below ``first``: the first so many of ``segments``."""
        self.strays = 0
        """Messages in them."""
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
        self.mixed = 0
        """Segments that have messages with attributes."""
        self.forming: Segment | None = None
        """The segment that pushes may still join; sealed with the commit."""


RESULT, LINE, PART = range(3)
"""What can be noted of a message: what came of it, a line of its log, a part of its result."""


class Notes(Struct, eq=False, kw_only=True):
    """Everything of one kind that was noted of the messages of a queue, oldest first, up to a limit.

    What was noted lies in a log of its own, as messages do in a partition's: segments with bodies apart.
    """

    kind: int
    log: "Log"
    about: Table
    """(offset in the log, partition key, offset of the message)."""
    by_message: dict[int, Table]
    """*memory* (offset of the message, offset in the log), by partition key."""


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
    concerned: int = 0
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


class Dead(Struct, frozen=True, gc=False):
    """A run of dead letters: messages that failed too often."""

    first: int
    count: int
    deliveries: int
    failures: int
    dead_at: int
    error: str
    level: int


EXPIRED, CANCELLED, DISCARDED, EVICTED = range(4)
"""How a message can be settled other than by an ack."""
OUTCOMES = ("expired", "cancelled", "discarded", "evicted")
COMPLETED, DIED, GONE = range(4, 7)
"""How else a message can end: by an ack, as a dead letter, or because it is no longer kept."""


class Limiter(Struct, eq=False):
    """A limit on delivery at work. *memory*"""

    concurrency: int
    """Messages that may be leased at once; 0 is no limit."""
    active: int = 0
    """Messages leased under it."""
    taken: int = 0
    """Messages that the pop under way has taken under it."""
    bucket: Bucket | None = None
    """Tokens for messages, if they are limited."""
    byte_bucket: Bucket | None = None
    """Tokens for bytes, if they are limited."""
    starved: dict[tuple[int, bytes, str], None] = {}
    """Groups that it held back because of ``concurrency``, by shard, prefix of the queue and name."""


class Track(Struct, eq=False, kw_only=True):
    """Where a group stands in a partition."""

    queue: "Queue"
    group: "Group"
    partition: Partition
    key: bytes
    """*memory* The key of its record; empty if its queue is not stored."""
    cursor: int
    """Every message in line below it left the line: it was handed out, moved, or has an outcome."""
    turn: int = 0
    """When the group last served this partition, in its own count: the least recently served goes first."""
    planned: int = NEVER
    """Messages that are not in line are in the schedule if they are below it: all of them, but for a group
    that was made behind many."""
    skips: Table
    """(first, count): in line, at or past the cursor, and no longer fresh. Each is a record of its own."""
    schedule: Schedule
    """What is due at some time or priority. Each run is a record of its own."""
    dead: Table
    """(first, count) of dead letters. Each run is a record of its own."""
    letters: dict[int, Dead]
    """By first offset."""
    outcomes: Table
    """(first, count, which, at) of what was settled otherwise than by an ack. Each is a record of its own."""
    ended: list[int]
    """*memory* Messages in ``outcomes``, by which."""
    dead_messages: int = 0
    """*memory* Messages in ``dead``."""
    aside: int = 0
    """*memory* Messages at or past the cursor that are not fresh."""
    unplanned: int = 0
    """*memory* Messages that are not in line, at or past ``planned``."""
    due_at: int = NEVER
    """*memory* When the shard looks at its schedule again."""
    position: int = 0
    """*memory* Segment of the cursor (``Log.dropped`` included); a hint, checked when used."""
    leased: int = 0
    """*memory* Messages in live leases."""
    singles: dict[int, int]
    """*memory* Offset to lease name, for leased runs of one message."""
    spans: list[tuple[int, int, int]]
    """*memory* (first, count, lease name) of longer leased runs, sorted."""
    limits: tuple[Limiter, ...] = ()
    """*memory* Everything that limits how its messages are delivered."""
    own_limit: Limiter | None = None
    """*memory* That of them which is its own."""
    listed: tuple[int, int] | None = None
    """*memory* Level and turn under which the group's ready heap holds it."""
    dirty: bool = False
    """*memory* Changed since the last seal."""


def fresh_count(track: Track) -> int:
    """Messages that are fresh."""
    return track.partition.log.end - track.cursor - track.aside


class Group(Struct, eq=False, kw_only=True):
    """A reader of the whole queue, independent of every other group."""

    number: int
    """Names the group in record keys; unique in its queue."""
    name: str
    turn: int = 0
    """*memory* The highest turn of its tracks."""
    active_at: int = 0
    """When it was last seen popping, to a minute."""
    tracks: dict[int, Track]
    """By partition key."""
    ready: list[tuple[int, int, int]]
    """*memory* Heap of (level, turn, partition key): tracks that may have something to deliver. Of several of
    one track, that counts which is ``listed``."""
    limits: tuple[Limiter, ...] = ()
    """*memory* What limits how all its messages are delivered."""
    own_limit: Limiter | None = None
    """*memory* That of them which is its own."""
    byte_limited: bool = False
    """*memory* Whether any of these limits bytes."""
    limited_at: int = NEVER
    """*memory* When pops that these held back are tried again."""
    unplanned: dict[int, Track] = {}
    """*memory* Tracks, by partition key, whose schedule is still being made from the headers."""
    planned_in: int = -1
    """*memory* The commit of the shard in which that was last gone on with."""


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
    max_attempts: int = 3
    """Failures that make a message dead; 0 is no limit."""
    backoff: Backoff = Backoff()
    """How long to wait before a retry."""
    max_deliveries: int = 0
    """Deliveries that make a message dead when the last of them ends without an ack; 0 is no limit."""
    dead_letters: bool = True
    """Whether a message that failed too often is kept as a dead letter, or discarded."""
    on_lease_expiry: str = FAIL
    """fail: a lease that runs out is a failure. requeue: it does not count."""
    ordering: str = BY_MESSAGE
    """message: consumers share a partition. partition: one lease at a time, in strict order."""
    delayed_processing_ms: int = 0
    """Messages in line are delivered no earlier than this after they were pushed."""
    window_buffer_ms: int = 0
    """A partition is withheld until none of its waiting messages is newer than this."""
    max_wait_ms: int = 0
    """A message that could have been delivered for longer than this, and was not, is evicted; 0 is never."""
    retention_ms: int = 0
    """How long messages are kept at most, whoever has still to read them; 0 is for ever."""
    partition_retention_ms: int = 0
    """How long a partition may be empty before it is removed; 0 is for ever. The default one stays."""
    group_idle_ms: int = 604_800_000
    """A group that has not popped for so long no longer keeps messages from going; 0 is never."""
    max_size: int = 0
    """Messages that may wait, be delayed or active; a push beyond is refused. 0 is no limit."""
    require_lease: bool = False
    """Whether acks, nacks and extends by id have to give the lease along."""
    dedup_window_ms: int = 3_600_000
    """How long transaction ids and idempotency keys are remembered."""
    rate_limit: Rate | None = None
    """Messages delivered to each group in a time."""
    byte_limit: Rate | None = None
    """Payload bytes delivered to each group in a time."""
    concurrency: int = 0
    """Messages that each group may have leased at once; 0 is no limit."""
    partition_rate_limit: Rate | None = None
    """Messages delivered of each partition, to each group, in a time."""
    partition_concurrency: int = 0
    """Messages of each partition that each group may have leased at once; 0 is no limit."""
    limits: tuple[str, ...] = ()
    """Names of limits that it shares with other queues."""


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
    notes: dict[int, Notes] = {}
    """What was noted of its messages, by kind."""
    paused_until: int = 0
    """Nothing is delivered before; ``NEVER`` until it is resumed."""
    closing_at: int = 0
    """When it was deleted and closed; 0 if it was not."""
    once: dict[bytes, Once] = {}
    """What pushes answered that must not be repeated for a while, by kind and key. Each is a record of its
    own."""
    stages: dict[str, Stage] = {}
    """What is staged, by name. Each part of a stage is a record of its own."""
    adopted: dict[str, dict[int, Adopted]] = {}
    """What queries had adopted, by query and batch, those that did last last. Each is a record of its own."""
    staged_for: dict[str, dict[str, Stage]] = {}
    """*memory* Those of ``stages`` that are for a query, by query: all of one run of it."""
    staged: Sums = field(default_factory=Sums)
    """*memory* What ``stages`` come to."""
    uniques: dict[str, tuple[int, int]] = {}
    """*memory* Unique keys, and partition key and offset of the message that holds each."""
    named: dict[str, tuple[int, int]] = {}
    """*memory* Custom ids, and partition key and offset of the message that has each."""
    tied_bytes: int = 0
    """*memory* Bytes of the payloads in ties of its partitions."""
    stored: bool = True
    """*memory* Whether its content is kept in the store: not if its durability is memory."""
    gated: bool = False
    """*memory* Whether its options hold messages back, or evict them."""
    limited: bool = False
    """*memory* Whether its options limit delivery."""
    ordered: bool = False
    """*memory* Whether its options ask for strict order."""
    room: int = 0
    """*memory* Messages that may be pushed before those that wait are counted again, if it has a max_size."""
    unswept: bool = False
    """*memory* Something was settled since the last sweep."""
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
    level: int = IN_LINE
    """Where it goes in the order of service if it comes back."""
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
    leased_at: int = 0
    """When it began; 0 if that was before this was kept."""
    stored: bool = False
    """*memory* Whether a record of it exists."""
    dirty: bool = False
    """*memory* Changed since the last seal."""
    ended: bool = False
    """*memory* Nothing is left in it."""
    cancelled: bool = False
    """Some of its messages were cancelled."""
