"""What can be asked of the core, and what it answers.

A command carries its tenant. Names and numbers in it are checked where it is applied; a command that breaks
a rule raises ``Invalid`` and has changed nothing.
"""

from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType

from penstock.core.log import Piece
from penstock.core.model import DEFAULT, Queue, QueueOptions

Start = int | str
"""Where a new group begins: ``all``, ``new``, or a time in ms."""


class Push(Struct, gc=False):
    """Append payloads to one partition of a queue, all or none."""

    tenant: str
    queue: str
    payloads: list[bytes]
    partition: str = DEFAULT
    durability: str | None = None
    """fsync or os; the queue's if None."""


class Pushed(Struct, gc=False):
    """The messages got consecutive ids."""

    first: int
    """Id of the first one, as a number."""
    count: int
    created_at: int
    durability: str
    """What it survives from now on: fsync, os or memory."""


class PushMany(Struct, gc=False):
    """Several pushes to one queue, all or none."""

    tenant: str
    queue: str
    pushes: list[tuple[str, list[bytes]]]
    """(partition, payloads) of each."""
    durability: str | None = None


class Pop(Struct, gc=False):
    """Lease up to ``count`` messages for a group. A group or queue that does not exist yet is made."""

    tenant: str
    queue: str
    group: str = DEFAULT
    count: int = 1
    min_count: int = 1
    """With fewer deliverable, nothing is taken."""
    partition: str | None = None
    """Only from this one; any if None."""
    lease_ms: int | None = None
    """The queue's if None."""
    start: Start = "all"
    """Counts only when the group is new."""
    wait_ms: int = 0
    """How long to wait for messages; the node waits, the core only checks it."""
    owner: int = 0
    """The connection that asks, if it is one."""


class Delivery(Piece, gc=False, frozen=True):
    """Messages handed out that lie together and share their counts."""

    partition: str
    first: int
    """Id of the first one, as a number."""
    deliveries: int
    """This one included."""
    failures: int
    """Before this one."""
    expires_at: int


class Popped(Struct, gc=False):
    """What was leased; nothing if ``deliveries`` is empty."""

    queue: Queue
    lease: str | None
    deliveries: list[Delivery]


class Settle(Struct, gc=False):
    """What an ack, a nack or an extend is about: a whole lease, or some messages.

    With ids, a lease given along must be the live one that holds them. Without one, an id means the delivery
    that the asking connection holds, else the group's live lease.
    """

    tenant: str
    lease: str | None = None
    ids: list[int] | None = None
    group: str | None = None
    owner: int = 0
    partial: bool = False
    """Whether it is fine that none of the messages is leased; a conflict otherwise."""


class Ack(Settle, gc=False):
    """These are done."""


class Nack(Settle, gc=False):
    """These failed: count it and deliver them again."""

    error: str | None = None


class Extend(Settle, gc=False):
    """Keep the leases of these longer; whole leases, never shorter than they were."""

    lease_ms: int | None = None


class Settled(Struct, gc=False):
    """How many messages it was, and which were not leased."""

    count: int
    refused: Sequence[int] = ()


class Extended(Struct, gc=False):
    expires_at: int
    """The earliest end of the leases extended."""
    count: int
    refused: Sequence[int] = ()


class Read(Struct, gc=False):
    """Read the log by offset, without a lease."""

    tenant: str
    queue: str
    offset: int
    partition: str = DEFAULT
    max_count: int | None = None
    """At most this many; 1,000 if None, or what the server allows."""
    max_bytes: int | None = None
    """At most this many payload bytes, but one message always; 1 MiB if None, or what the server allows."""


class ReadRun(Piece, gc=False, frozen=True):
    first: int
    """Id of the first one, as a number."""


class Log(Struct, gc=False):
    """A stretch of a log, from the first offset at or past the one asked for that is still kept."""

    queue: Queue
    partition: str
    next: int
    """Where to read on."""
    end: int
    runs: list[ReadRun]


class Offsets(Struct, gc=False):
    """Where the logs of a queue begin and end, and where they were at a time."""

    tenant: str
    queue: str
    at: int | None = None


class PartitionOffsets(Struct, gc=False):
    partition: str
    numbers: list[tuple[int, int]]
    first: int
    end: int
    at: int | None


class OffsetsFound(Struct, gc=False):
    partitions: list[PartitionOffsets]


class Configure(Struct, gc=False):
    """Make a queue if it is missing and set those options that are given."""

    tenant: str
    queue: str
    lease_ms: int | UnsetType = UNSET
    completed_retention_ms: int | UnsetType = UNSET
    completed_retention_bytes: int | UnsetType = UNSET
    durability: str | UnsetType = UNSET


class Backup(Struct, gc=False):
    """Copy everything that is kept into a new directory, while the node goes on."""

    tenant: str
    directory: str


class BackedUp(Struct, gc=False):
    directory: str


class Describe(Struct, gc=False):
    """One queue, with its partitions and groups."""

    tenant: str
    queue: str


class ListQueues(Struct, gc=False):
    """Every queue of the tenant."""

    tenant: str


class Stats(Struct, gc=False):
    """Counts over the tenant's queues."""

    tenant: str


class State(Struct, gc=False):
    """Where a message stands in a group."""

    tenant: str
    id: int
    group: str = DEFAULT


class Counts(Struct, gc=False):
    """Messages of one group by state. A group that does not exist has everything waiting."""

    waiting: int = 0
    active: int = 0
    completed: int = 0


class GroupFound(Struct, gc=False):
    name: str
    counts: Counts


class PartitionFound(Struct, gc=False):
    name: str
    first: int
    end: int
    payload_bytes: int


class QueueFound(Struct, gc=False):
    queue: str
    options: QueueOptions
    partitions: list[PartitionFound]
    groups: list[GroupFound]


class QueueCounts(Struct, gc=False):
    name: str
    counts: Counts
    """Of the group ``default``."""


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
    """What the last failure said. A completed message keeps none of these three."""


Wake = tuple[Queue, str | None, str]
"""Something became deliverable: in a queue, for a group (every group if None), in a partition."""

Command = (
    Push
    | PushMany
    | Pop
    | Ack
    | Nack
    | Extend
    | Read
    | Offsets
    | Configure
    | Describe
    | ListQueues
    | Stats
    | State
    | Backup
)
Reply = (
    Pushed
    | list[Pushed]
    | Popped
    | Settled
    | Extended
    | Log
    | OffsetsFound
    | QueueFound
    | QueuesFound
    | StatsFound
    | StateFound
    | BackedUp
)
