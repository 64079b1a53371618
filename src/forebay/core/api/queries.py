"""Commands that change nothing, and their replies. Each command here is a ``Query``."""

from typing import ClassVar

from msgspec import Struct

from forebay.core.api.dead_letters import OfDead as OfDead
from forebay.core.bounds import NEVER
from forebay.core.log.slices import SegmentSlice
from forebay.core.state import (
    PLAIN,
    Attributes,
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
    """Number to skip first."""


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
    leased_at: int = 0
    """When its last delivery began; 0 if there was none."""
    error_type: str = ""


class DeadFound(Struct, gc=False):
    queue: Queue
    group: str
    total: int
    """Dead letters of the group."""
    deliveries: list[DeadLetter]


class Browse(Query, gc=False):
    """Browse messages of a queue by state in a group, in order of partition and offset."""

    tenant: str
    queue: str
    state: str | None = None
    """Any if None."""
    group: str = DEFAULT
    count: int = 100
    skip: int = 0
    """Number to skip first."""
    partition: str | None = None
    """Only this partition."""
    tag: str | None = None
    """Only messages with this tag."""
    since: int | None = None
    """Only messages pushed at this time or later."""
    before: int | None = None
    """Only messages pushed before this time."""
    after: "Spot | None" = None
    """Cursor: where to continue."""
    counted: bool = True
    """Whether to count all matches, which can take longer than the page itself."""
    effort: int = 100_000
    """Runs to scan at most; the cursor of the reply continues behind them."""
    task: str | None = None
    """Only messages of this task."""
    dead: OfDead | None = None
    """Only these dead letters; the state is dead then."""


Spot = tuple[int, int]
"""Cursor of a browse: partition key and offset."""


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
    """Part of a log, from the first kept offset at or past the requested one."""

    queue: Queue
    partition: str
    next: int
    """Offset to continue from."""
    end: int
    runs: list[ReadRun]
    key: int = 0
    """The partition's first number."""
    passing: bool = False
    """Whether the reader scans the whole log, so that its bodies need not be cached."""


class Offsets(Query, gc=False):
    """First and end offsets of a queue's logs, and their offsets at a time."""

    tenant: str
    queue: str
    at: int | None = None
    since: dict[str, int] | None = None
    """Offsets by partition, to ask for the age of the next message there."""


class PartitionOffsets(Struct, gc=False):
    partition: str
    numbers: list[tuple[int, int]]
    first: int
    end: int
    at: int | None
    size: int = 0
    """Payload bytes kept."""
    since: int | None = None
    """When the first message at or past the given offset was pushed, if there is one."""


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


class DescribeGroup(Query, gc=False):
    """One group of a queue."""

    tenant: str
    queue: str
    group: str = DEFAULT


class WouldClean(Query, gc=False):
    """Number of messages that a ``Clean`` would clear."""

    tenant: str
    queue: str
    states: tuple[str, ...]
    group: str = DEFAULT
    create: bool = True


class ListQueues(Query, gc=False):
    """All queues of the tenant."""

    tenant: str
    within: tuple[str, ...] = ()
    """Patterns of the queues that are asked for; all if empty."""


class Stats(Query, gc=False):
    """Totals over the tenant's queues."""

    tenant: str
    within: tuple[str, ...] = ()
    """Patterns of the queues that are asked for; all if empty."""


class Measure(Query, gc=False):
    """Metrics of the node, and the names of its queues: for the operator."""

    tenant: ClassVar[str] = ""


QueuePlace = tuple[str, str]
"""Tenant and name of a queue."""


class Measured(Struct, gc=False):
    queues: dict[int, list[QueuePlace]]
    """All queues of tenants by shard, in the order in which the shard lists them."""
    leases: int
    expired_leases: int
    """Leases that expired since the node was loaded."""
    now: int


class MeasureQueues(Query, gc=False):
    """Metrics of some queues of a shard: for the operator, a slice at a time, so that none takes long."""

    tenant: ClassVar[str] = ""
    shard: int
    places: list[QueuePlace]
    summed: bool = False
    """Whether the reply is one sum instead of an entry for each queue."""


class QueueMeasured(Struct, gc=False):
    tenant: str
    queue: str
    counts: "Counts"
    oldest_at: int | None
    """When the oldest of those that wait was pushed, if any waits."""
    tally: Tally | None
    groups: "list[GroupFound]"
    """All groups but ``default``; of several queues, if they were summed."""
    tallies: list[Tally] = []
    """Of several queues that were summed: those that ``tally`` is the sum of."""


class QueuesMeasured(Struct, gc=False):
    queues: list[QueueMeasured]
    """One without a name if they were to be summed. A queue that is gone is left out."""
    done: int
    """Places that were measured; those after them are left for the next slice."""


class State(Query, gc=False):
    """State of a message in a group."""

    tenant: str
    id: int
    group: str = DEFAULT
    by_result: bool = False
    """Whether one that is no longer shown counts as completed while its result is kept."""


class Show(Query, gc=False):
    """Messages with their payloads and states in a group; missing ones are left out."""

    tenant: str
    ids: list[int]
    group: str = DEFAULT
    dropped: bool = False
    """Whether messages are shown, too, that were dropped, as they were."""


class GetNotes(Query, gc=False):
    """Notes of a message, the newest of the given kinds, and its progress."""

    tenant: str
    id: int
    kinds: tuple[int, ...] = ()


class GetAttempts(Query, gc=False):
    """Failed attempts of a message in a group, the newest."""

    tenant: str
    id: int
    group: str = DEFAULT


class Await(Query, gc=False):
    """Wait until a message is settled or dead, and return its result."""

    tenant: str
    id: int
    wait_ms: int
    group: str = DEFAULT


class Note(SegmentSlice, gc=False, frozen=True):
    """A note of a message."""

    log: segment.Log


class NotesFound(Struct, gc=False):
    queue: Queue
    state: "StateFound"
    notes: list[list[Note]]
    """By requested kind; oldest first."""
    progress: Progress | None = None
    over_at: int = NEVER
    """When its ttl ends, if it waits and has one."""

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

    tenant: ClassVar[str] = ""


class PositionsFound(Struct, gc=False):
    ends: dict[int, int]
    """End offset of the event log, by shard."""


class EventsPast(Query, gc=False):
    """Where the event log of a shard continues behind the segment that holds an offset."""

    tenant: ClassVar[str] = ""
    shard: int
    offset: int


class PastFound(Struct, gc=False):
    offset: int


class ShownAll(Struct, gc=False):
    deliveries: list[Shown]
    total: int = 0
    """Number of messages in that state, other filters ignored; 0 unless counted."""
    next: Spot | None = None
    """Cursor of a browse that did not reach the end."""


class Children(Query, gc=False):
    """The messages that a message depends on."""

    tenant: str
    id: int
    within: tuple[str, ...] = ()
    """Patterns of the queues whose messages are shown; all if empty."""


class ChildrenFound(Struct, gc=False):
    id: int
    shown: ShownAll
    """Children that are still kept and may be seen, at most one page."""
    results: list[NotesFound]
    """Their results."""
    completed: int
    """Completed children of the first page; children no longer kept count as completed."""
    total: int


class FindJob(Query, gc=False):
    """Find a message by custom id, in one queue or in all."""

    tenant: str
    job_id: str
    queue: str | None = None
    within: tuple[str, ...] = ()
    """Patterns of the queues that it may be in; all if empty."""


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
    deferred: int = 0
    """Of those that wait or are delayed: given back by consumers that can't handle them yet."""


class GroupFound(Struct, gc=False):
    name: str
    counts: Counts
    oldest_at: int | None = None
    """When the oldest waiting message was pushed, if any waits."""


class PartitionFound(Struct, gc=False):
    name: str
    first: int
    end: int
    payload_bytes: int
    retention: Retention
    """Options that differ from the queue's."""
    lane: bool = False


class StagedFound(Struct, gc=False):
    """Staged messages that are not adopted yet."""

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
    """Of the group ``default``; where only others read, of that for which most waits."""
    paused: bool
    oldest_at: int | None
    """When the oldest of those that wait was pushed, if any waits."""
    groups: list[GroupFound]


class QueuesFound(Struct, gc=False):
    queues: list[QueueCounts]


class StatsFound(Struct, gc=False):
    queues: int
    counts: Counts
    """The sum of the queues'."""
    oldest_at: int | None
    groups: list[GroupFound]
    """Groups of one name in all queues together, by name."""


class StateFound(Struct, gc=False):
    id: int
    created_at: int
    state: str
    deliveries: int = 0
    failures: int = 0
    error: str = ""
    """Error of the last failure. A settled message keeps none of these three."""
    priority: int = 0
    due_at: int | None = None
    """When it will be delivered, if it is delayed."""
    ended_at: int | None = None
    """When it died, expired or was cancelled."""
    job_id: str | None = None
    """Its custom id."""
    unique_key: str | None = None
    """The unique key it holds."""
    depends_on: tuple[tuple[int, int], ...] = ()
    """(first id, count) of its dependencies."""
    attributes: Attributes = PLAIN
    """As it was pushed."""
    leased_at: int | None = None
    """When its delivery began, if it is leased and that is known."""
    lease_until: int | None = None
    """When its lease ends, if it is leased."""
    worker: str = ""
    """Name of the consumer it was delivered to, if it is leased and its consumer told."""
    progress: Progress | None = None
    """As its consumer last reported it."""
    parent: int | None = None
    """Id of the first message that waits for it."""
    bound: bool = False
    """Whether it is dead, and has dependencies or others depend on it."""
    error_type: str = ""
    """Type of the error that it died of."""
    lost: bool = False
    """Whether it is dead, and what it depends on can't be completed any more."""


class CronList(Query, gc=False):
    """The crons of the tenant, by name."""

    tenant: str
    after: str | None = None
    """Only names after this one."""
    name: str | None = None
    """Only this cron, which must exist."""
    within: tuple[str, ...] = ()
    """Patterns of the queues whose crons are asked for; all if empty."""


class CronsFound(Struct, gc=False):
    crons: list[Cron]
    more: bool = False
    """Whether there are more."""


class LimitList(Query, gc=False):
    """All named limits of the tenant."""

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
    """Values of packed keys."""

    tenant: str
    keys: list[bytes]


class KvFound(Struct, gc=False):
    values: list[Value | None]
    now: int = 0
    """Time of the read."""
    changed: bool = False
    """Whether a watched key has another version than the given one."""


class KvList(Query, gc=False):
    """Entries under a key prefix, in key order. Keys are packed."""

    tenant: str
    prefix: bytes = b""
    low: bytes = b""
    """From this key on."""
    high: bytes | None = None
    """Up to, but not including, this one."""
    count: int = 100
    reverse: bool = False
    pattern: str | None = None
    """Only keys of one text part that match: * is any text, ? any one character."""


class KvListed(Struct, gc=False):
    entries: list[tuple[bytes, Value]]
    next: bytes | None = None
    """Key to continue from, if there are more."""


class KvWatch(Query, gc=False):
    """Wait until one of some keys has another version than the given one."""

    tenant: str
    keys: list[bytes]
    versions: list[int | None]
    """None for a missing key."""
    wait_ms: int = 0
