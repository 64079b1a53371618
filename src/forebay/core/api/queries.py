"""Commands that change nothing, and their replies. Each command here is a ``Query``."""

from msgspec import Struct

from forebay.core.bounds import NEVER
from forebay.core.log.slices import SegmentSlice
from forebay.core.state import (
    Cron,
    NamedLimit,
    Progress,
    Queue,
    QueueOptions,
    Retention,
    Tally,
    Value,
    segment,
)
from forebay.core.words import DEFAULT, OPEN


class Query(Struct, gc=False):
    """A command that changes nothing: a server that is held still answers it."""


class ListDead(Query, gc=False):
    """Dead letters of a group, by partition and offset."""

    tenant: str
    queue: str
    group: str = DEFAULT
    count: int = 100
    skip: int = 0
    """How many to pass over first."""


class DeadLetter(SegmentSlice, gc=False, frozen=True):
    """One dead letter."""

    partition: str
    first: int
    """Its id, as a number."""
    deliveries: int
    failures: int
    dead_at: int
    error: str
    priority: int


class DeadFound(Struct, gc=False):
    queue: Queue
    group: str
    total: int
    """Dead letters of the group."""
    deliveries: list[DeadLetter]


class Browse(Query, gc=False):
    """Messages of a queue by where they stand in a group, by partition and offset."""

    tenant: str
    queue: str
    state: str | None = None
    """Any if None."""
    group: str = DEFAULT
    count: int = 100
    skip: int = 0
    """How many to pass over first."""
    partition: str | None = None
    """Only in this one."""
    tag: str | None = None
    """Only those that are filed under this one."""
    since: int | None = None
    """Only those pushed at this time or later."""
    before: int | None = None
    """Only those pushed before this time."""
    after: "Spot | None" = None
    """Only those from here on."""
    counted: bool = True
    """Whether to say how many there are in all, which can take longer than to show some."""
    effort: int = 100_000
    """Runs that are looked at for those that are asked for: what it has not seen then, the next will."""


Spot = tuple[int, int]
"""Partition key and offset: where a browse goes on."""


class Paused(Struct, gc=False):
    """Whether a queue is paused, and until when if that is known."""

    paused: bool
    until: int | None = None


class Read(Query, gc=False):
    """Read the log by offset, without a lease."""

    tenant: str
    queue: str
    offset: int
    partition: str = DEFAULT
    max_count: int | None = None
    """At most this many; 1,000 if None, or what the server allows."""
    max_bytes: int | None = None
    """At most this many payload bytes, but one message always; 1 MiB if None, or what the server allows."""
    whole: bool = False
    """Whether segments are read whole, not cut where messages have another time or for ``max_bytes``."""


class ReadRun(SegmentSlice, gc=False, frozen=True):
    first: int
    """Id of the first one, as a number."""


class LogSlice(Struct, gc=False):
    """A stretch of a log, from the first offset at or past the one asked for that is still kept."""

    queue: Queue
    partition: str
    next: int
    """Where to read on."""
    end: int
    runs: list[ReadRun]
    key: int = 0
    """The number that the partition was born with."""
    passing: bool = False
    """Whether the reader goes through the whole log: what it reads is not worth keeping in memory."""


class Offsets(Query, gc=False):
    """Where the logs of a queue begin and end, and where they were at a time."""

    tenant: str
    queue: str
    at: int | None = None
    since: dict[str, int] | None = None
    """Offsets by partition: how old is what comes next there?"""


class PartitionOffsets(Struct, gc=False):
    partition: str
    numbers: list[tuple[int, int]]
    first: int
    end: int
    at: int | None
    size: int = 0
    """Payload bytes kept."""
    since: int | None = None
    """When the first message at or past the offset that was asked about was pushed, if there is one."""


class OffsetsFound(Struct, gc=False):
    partitions: list[PartitionOffsets]


class Describe(Query, gc=False):
    """One queue, with its partitions and groups."""

    tenant: str
    queue: str


class GroupCounts(Query, gc=False):
    """Messages of a group by state."""

    tenant: str
    queue: str
    group: str = DEFAULT


class WouldClean(Query, gc=False):
    """How many messages a ``Clean`` would clear out of a group."""

    tenant: str
    queue: str
    states: tuple[str, ...]
    group: str = DEFAULT


class ListQueues(Query, gc=False):
    """Every queue of the tenant."""

    tenant: str


class Stats(Query, gc=False):
    """Counts over the tenant's queues."""

    tenant: str


class Measure(Query, gc=False):
    """Figures of every queue of every tenant, up to so many: for whoever runs the node."""

    most: int


class QueueMeasured(Struct, gc=False):
    tenant: str
    queue: str
    counts: "Counts"
    oldest_at: int | None
    """When the oldest message was pushed that waits in its work queue; None if none does."""
    tally: Tally | None


class Measured(Struct, gc=False):
    queues: list[QueueMeasured]
    all_queues: int
    leases: int
    leases_over: int
    """Those that ran out, since the node was loaded."""
    now: int


class State(Query, gc=False):
    """Where a message stands in a group."""

    tenant: str
    id: int
    group: str = DEFAULT


class Show(Query, gc=False):
    """Messages with their payloads, and where they stand in a group; those that are there."""

    tenant: str
    ids: list[int]
    group: str = DEFAULT


class GetNotes(Query, gc=False):
    """What is kept beside a message: some kinds of notes, the newest of them, and its progress."""

    tenant: str
    id: int
    kinds: tuple[int, ...] = ()


class Await(Query, gc=False):
    """Wait until a message is settled or dead, and show what came of it."""

    tenant: str
    id: int
    wait_ms: int
    group: str = DEFAULT


class Note(SegmentSlice, gc=False, frozen=True):
    """Something that was noted of a message."""

    log: segment.Log


class NotesFound(Struct, gc=False):
    queue: Queue
    state: "StateFound"
    notes: list[list[Note]]
    """By kind, as asked for; each oldest first."""
    progress: Progress | None = None
    over_at: int = NEVER
    """When its time to live ends, if it waits and has one."""

    @property
    def is_over(self) -> bool:
        return self.state.state not in OPEN


class Shown(SegmentSlice, gc=False, frozen=True):
    """One message."""

    queue: Queue
    partition: str
    state: "StateFound"


class EventPositions(Query, gc=False):
    """Where the event log of every shard ends."""


class PositionsFound(Struct, gc=False):
    ends: dict[int, int]
    """End offset of the event log, by shard."""


class EventsPast(Query, gc=False):
    """Where the event log of a shard continues behind the segment that holds an offset."""

    shard: int
    offset: int


class PastFound(Struct, gc=False):
    offset: int


class ShownAll(Struct, gc=False):
    deliveries: list[Shown]
    total: int = 0
    """Of a browse that counts: how many messages are in that state, whatever else was asked for."""
    next: Spot | None = None
    """Of a browse: where to go on, if it has not looked at everything."""


class Children(Query, gc=False):
    """What a message waits for, or waited for."""

    tenant: str
    id: int


class ChildrenFound(Struct, gc=False):
    id: int
    shown: ShownAll
    """Those that are still kept; not more than can be shown at a time."""
    results: list[NotesFound]
    """What came of each of them."""
    completed: int
    """Of the first that could be shown, however large they are; what is no longer kept is completed."""
    total: int


class FindJob(Query, gc=False):
    """The message that has a custom id, in one queue or in any."""

    tenant: str
    job_id: str
    queue: str | None = None


class Counts(Struct, gc=False):
    """Messages of one group by state. A group that does not exist has everything waiting or delayed."""

    waiting: int = 0
    delayed: int = 0
    active: int = 0
    completed: int = 0
    """Settled by an ack and still kept."""
    dead: int = 0
    expired: int = 0
    cancelled: int = 0
    discarded: int = 0
    evicted: int = 0
    parked: int = 0


class GroupFound(Struct, gc=False):
    name: str
    counts: Counts


class PartitionFound(Struct, gc=False):
    name: str
    first: int
    end: int
    payload_bytes: int
    retention: Retention
    """Where it differs from the queue's."""
    lane: bool = False


class StagedFound(Struct, gc=False):
    """What is staged and not adopted."""

    stages: int
    messages: int
    bytes: int


class QueueFound(Struct, gc=False):
    queue: str
    options: QueueOptions
    partitions: list[PartitionFound]
    groups: list[GroupFound]
    paused: Paused
    staged: StagedFound


class QueueCounts(Struct, gc=False):
    name: str
    counts: Counts
    """Of the group ``default``."""
    paused: bool


class QueuesFound(Struct, gc=False):
    queues: list[QueueCounts]


class StatsFound(Struct, gc=False):
    queues: int
    counts: Counts


class StateFound(Struct, gc=False):
    id: int
    created_at: int
    state: str
    deliveries: int = 0
    failures: int = 0
    error: str = ""
    """What the last failure said. A settled message keeps none of these three."""
    priority: int = 0
    due_at: int | None = None
    """When it will be delivered, if it is delayed."""
    ended_at: int | None = None
    """When it became what it is, if it is dead, expired or cancelled."""
    job_id: str | None = None
    """Its custom id."""
    unique_key: str | None = None
    """The key it holds."""
    depends_on: tuple[tuple[int, int], ...] = ()
    """(first id, count) of what it waits for, or waited for."""


class CronList(Query, gc=False):
    """The crons of the tenant, by name."""

    tenant: str
    after: str | None = None
    """Those with names behind this one."""
    name: str | None = None
    """Only this one, which must be there."""


class CronsFound(Struct, gc=False):
    crons: list[Cron]
    more: bool = False
    """Whether there are more behind these."""


class LimitList(Query, gc=False):
    """Every limit that queues of the tenant share, by name."""

    tenant: str


class LimitFound(Struct, gc=False):
    name: str
    limit: NamedLimit
    active: int
    """Messages leased under it."""


class LimitsFound(Struct, gc=False):
    limits: list[LimitFound]


# Keys and values.


class KvGet(Query, gc=False):
    """The values of some keys, which are packed."""

    tenant: str
    keys: list[bytes]


class KvFound(Struct, gc=False):
    values: list[Value | None]
    now: int = 0
    """When that was so."""
    changed: bool = False
    """Of a watch: whether any of them is not of the version that was known."""


class KvList(Query, gc=False):
    """Keys and values below a prefix, in the order of their keys. Keys are packed."""

    tenant: str
    prefix: bytes = b""
    low: bytes = b""
    """From this key on."""
    high: bytes | None = None
    """Up to, but not including, this one."""
    count: int = 100
    reverse: bool = False
    pattern: str | None = None
    """Only keys of one text that look like this: * is any characters, ? any one."""


class KvListed(Struct, gc=False):
    entries: list[tuple[bytes, Value]]
    next: bytes | None = None
    """Where to go on if that is not all: the first key there is still to come, or behind the last."""


class KvWatch(Query, gc=False):
    """Wait until any of some keys is not of the version that is known."""

    tenant: str
    keys: list[bytes]
    versions: list[int | None]
    """None for a key that is not there."""
    wait_ms: int = 0
