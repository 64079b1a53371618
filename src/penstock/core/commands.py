"""What can be asked of the core, and what it answers.

A command carries its tenant. Names and numbers in it are checked where it is applied; a command that breaks
a rule raises ``Invalid`` and has changed nothing.
"""

from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType

from penstock.core import model
from penstock.core.agenda import NEVER
from penstock.core.log import Piece
from penstock.core.model import DEFAULT, PLAIN, Attributes, Backoff, Progress, Queue, QueueOptions

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
    attributes: Attributes = PLAIN
    """What the messages share."""


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
    pushes: list[tuple[str, list[bytes], Attributes]]
    """Partition, payloads and attributes of each."""
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
    priority: int = 0


class Popped(Struct, gc=False):
    """What was leased; nothing if ``deliveries`` is empty."""

    queue: Queue
    lease: str | None
    deliveries: list[Delivery]
    again: bool = False
    """It found nothing so far and has not looked at everything: ask again after the commit."""


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

    results: list[bytes] | None = None
    """What came of each of the ids, as JSON; only the work queue has results."""


class Nack(Settle, gc=False):
    """These failed: count it and deliver them again, unless that was once too often."""

    error: str | None = None
    delay_ms: int | None = None
    """How long to wait instead of the backoff."""


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
    cancelled: bool = False
    """Some of what was asked for was cancelled meanwhile."""


class Cancel(Struct, gc=False):
    """These shall not be delivered: to one group, or to any, now or later."""

    tenant: str
    ids: list[int]
    group: str | None = None


class Move(Struct, gc=False):
    """Deliver these at another time or priority. A group that does not exist yet is made."""

    tenant: str
    ids: list[int]
    group: str = DEFAULT
    delay_ms: int | None = None
    """From now on; what is leased is taken from its consumer, uncounted."""
    priority: int | None = None
    only_delayed: bool = False
    """Whether only those are meant that are not due yet."""


class Discard(Move, gc=False):
    """Give these up: they become dead letters at once, whoever has them."""


class Requeue(Struct, gc=False):
    """Deliver dead letters again, as if for the first time: these, or all of them."""

    tenant: str
    queue: str
    group: str = DEFAULT
    ids: list[int] | None = None


class Purge(Struct, gc=False):
    """Give dead letters up: these, or all of them. A dry run only counts."""

    tenant: str
    queue: str
    group: str = DEFAULT
    ids: list[int] | None = None
    dry_run: bool = False


class Buried(Struct, gc=False):
    """How many dead letters it was, and how many are left for the next such command."""

    count: int
    left: int
    refused: Sequence[int] = ()


class ListDead(Struct, gc=False):
    """Dead letters of a group, by partition and offset."""

    tenant: str
    queue: str
    group: str = DEFAULT
    count: int = 100
    skip: int = 0
    """How many to pass over first."""


class DeadLetter(Piece, gc=False, frozen=True):
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


class Clean(Struct, gc=False):
    """Clear out messages of a group that are in some state and old enough.

    What waits or is delayed is cancelled, dead letters are discarded. What is completed is dropped from the
    log, in whole segments, if every group has settled it.
    """

    tenant: str
    queue: str
    states: tuple[str, ...]
    """Of waiting, delayed, dead and completed."""
    group: str = DEFAULT
    grace_ms: int = 0
    """How long they are spared: since they were pushed, died, or were settled."""
    count: int | None = None
    """At most this many; of what is completed, about."""


class Cleaned(Struct, gc=False):
    """How many messages it was, and whether there are more for the next such command."""

    count: int
    more: bool = False


class Obliterate(Struct, gc=False):
    """Remove a queue with everything in it."""

    tenant: str
    queue: str


class Browse(Struct, gc=False):
    """Messages of a queue by where they stand in a group, by partition and offset."""

    tenant: str
    queue: str
    state: str | None = None
    """Any if None."""
    group: str = DEFAULT
    count: int = 100
    skip: int = 0
    """How many to pass over first."""


class Pause(Struct, gc=False):
    """Deliver nothing of a queue, until it is resumed or a time has come."""

    tenant: str
    queue: str
    until: int | None = None


class Resume(Struct, gc=False):
    tenant: str
    queue: str


class Paused(Struct, gc=False):
    """Whether a queue is paused, and until when if that is known."""

    paused: bool
    until: int | None = None


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
    max_attempts: int | UnsetType = UNSET
    backoff: Backoff | UnsetType = UNSET
    max_deliveries: int | UnsetType = UNSET
    dead_letters: bool | UnsetType = UNSET
    on_lease_expiry: str | UnsetType = UNSET
    delayed_processing_ms: int | UnsetType = UNSET
    window_buffer_ms: int | UnsetType = UNSET
    max_wait_ms: int | UnsetType = UNSET
    ordering: str | UnsetType = UNSET


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


class GroupCounts(Struct, gc=False):
    """Messages of a group by state."""

    tenant: str
    queue: str
    group: str = DEFAULT


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


class Show(Struct, gc=False):
    """Messages with their payloads, and where they stand in a group; those that are there."""

    tenant: str
    ids: list[int]
    group: str = DEFAULT


class AddNote(Struct, gc=False):
    """Keep something beside a message: a line of its log, or a part of its result."""

    tenant: str
    id: int
    kind: int
    payload: bytes
    lease: str | None = None
    owner: int = 0


class TellProgress(Struct, gc=False):
    """How far the work on a message is. It must be delivered right now."""

    tenant: str
    id: int
    percent: int
    message: str = ""
    lease: str | None = None
    owner: int = 0


class Noted(Struct, gc=False):
    id: int


class GetNotes(Struct, gc=False):
    """What is kept beside a message: some kinds of notes, the newest of them, and its progress."""

    tenant: str
    id: int
    kinds: tuple[int, ...] = ()


class Await(Struct, gc=False):
    """Wait until a message is settled or dead, and show what came of it."""

    tenant: str
    id: int
    wait_ms: int
    group: str = DEFAULT


class Note(Piece, gc=False, frozen=True):
    """Something that was noted of a message."""

    log: model.Log


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
        return self.state.state not in ("waiting", "delayed", "active", "parked")


class Shown(Piece, gc=False, frozen=True):
    """One message."""

    queue: Queue
    partition: str
    state: "StateFound"


class ShownAll(Struct, gc=False):
    deliveries: list[Shown]
    total: int = 0
    """Of a browse: how many messages are in that state."""


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
    paused: Paused


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


Wake = tuple[Queue, str | None, str | None]
"""Something became deliverable: in a queue, for a group, in a partition; None means every one."""

Command = (
    Push
    | PushMany
    | Pop
    | Ack
    | Nack
    | Extend
    | Cancel
    | Move
    | Requeue
    | Purge
    | Clean
    | Obliterate
    | Browse
    | ListDead
    | Pause
    | Resume
    | Read
    | Offsets
    | Configure
    | Describe
    | GroupCounts
    | ListQueues
    | Stats
    | State
    | Show
    | AddNote
    | TellProgress
    | GetNotes
    | Await
    | Backup
)
Reply = (
    Pushed
    | list[Pushed]
    | Popped
    | Settled
    | Extended
    | Buried
    | Cleaned
    | DeadFound
    | Paused
    | Log
    | OffsetsFound
    | QueueFound
    | Counts
    | QueuesFound
    | StatsFound
    | StateFound
    | ShownAll
    | Noted
    | NotesFound
    | BackedUp
)
