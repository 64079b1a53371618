"""Commands that change something, their replies, and the unions ``Command`` and ``Reply``.

Every command carries its tenant. Its handler checks all fields first: a command that breaks a rule raises
``Invalid`` and has changed nothing. Commands that never change anything are ``Query`` classes in ``queries``.
"""

from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType

from forebay.core.api.jobs import (
    CronDelete,
    CronDeleted,
    CronPut,
    FlowPushed,
    KvWrite,
    KvWritten,
    LimitPut,
    PushedJobs,
    PushFlow,
    PushJobs,
)
from forebay.core.api.queries import (
    Await,
    Browse,
    Children,
    ChildrenFound,
    Counts,
    CronList,
    CronsFound,
    DeadFound,
    Describe,
    EventPositions,
    EventsPast,
    FindJob,
    GetNotes,
    GroupCounts,
    KvFound,
    KvGet,
    KvList,
    KvListed,
    KvWatch,
    LimitList,
    LimitsFound,
    ListDead,
    ListQueues,
    LogSlice,
    Measure,
    Measured,
    NotesFound,
    Offsets,
    OffsetsFound,
    PastFound,
    Paused,
    PositionsFound,
    QueueFound,
    QueuesFound,
    Read,
    Show,
    ShownAll,
    State,
    StateFound,
    Stats,
    StatsFound,
    WouldClean,
)
from forebay.core.api.stages import Adopt, Staged, StageWrite, Unstage, Unstaged
from forebay.core.log.slices import SegmentSlice
from forebay.core.state import PLAIN, Adopted, Attributes, Backoff, Queue, Rate
from forebay.core.words import DEFAULT

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


class Arrive(Struct, gc=False):
    """Push what came into the store by another way, and take it from there, in one commit."""

    push: Push | PushJobs
    arrivals: list[int]
    """Its numbers there."""


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


class Delivery(SegmentSlice, gc=False, frozen=True):
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
    final: bool = False
    """They will never succeed: they are dead letters at once."""
    undelivered: bool = False
    """They did not fail: they come back at once, as if they had never been delivered."""


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


class Update(Struct, gc=False):
    """Give a message that nobody has had yet another payload.

    It is cancelled, and one with the new payload is appended that is shown under its id.
    """

    tenant: str
    id: int
    payload: bytes


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


class Seek(Struct, gc=False):
    """Have a group read on from another place. What it holds or has scheduled there is given up."""

    tenant: str
    queue: str
    group: str
    start: Start
    partition: str | None = None
    """Only in this one; in all if None."""
    offset: int | None = None
    """In one partition, the offset to read on from; ``start`` is not looked at then."""


class Sought(Struct, gc=False):
    """Where the group reads on, by partition."""

    cursors: dict[str, int]


class Clean(Struct, gc=False):
    """Clear out messages of a group that are in some state and old enough.

    What waits or is delayed is cancelled, dead letters are discarded. What is completed is dropped from the
    log, in whole segments, if every group has settled it. What is parked is so in every group, and cancelled
    in every group: if it is asked for alone, or if there is no other group.
    """

    tenant: str
    queue: str
    states: tuple[str, ...]
    """Of waiting, delayed, parked, dead and completed."""
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


class Delete(Struct, gc=False):
    """Close a queue at once, and remove it when nothing of it is leased any more."""

    tenant: str
    queue: str


class Closed(Struct, gc=False):
    """What becomes of a queue that is deleted."""

    queue: str
    active: int
    """Messages that are still leased; with none, the queue is gone."""
    until: int
    """When it goes at the latest."""


class GroupPut(Struct, gc=False):
    """Make a group of a queue; one that is there stays as it is."""

    tenant: str
    queue: str
    group: str
    start: Start = "all"


class GroupDelete(Struct, gc=False):
    """Forget a group of a queue, and everything that is the group's."""

    tenant: str
    queue: str
    group: str


class Pause(Struct, gc=False):
    """Deliver nothing of a queue, until it is resumed or a time has come."""

    tenant: str
    queue: str
    until: int | None = None


class Resume(Struct, gc=False):
    tenant: str
    queue: str


class Configure(Struct, gc=False):
    """Make a queue if it is missing and set those options that are given."""

    tenant: str
    queue: str
    lease_ms: int | UnsetType = UNSET
    completed_retention_ms: int | UnsetType | None = UNSET
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
    retention_ms: int | UnsetType | None = UNSET
    partition_retention_ms: int | UnsetType | None = UNSET
    group_idle_ms: int | UnsetType = UNSET
    max_size: int | UnsetType = UNSET
    require_lease: bool | UnsetType = UNSET
    dedup_window_ms: int | UnsetType = UNSET
    rate_limit: Rate | UnsetType | None = UNSET
    byte_limit: Rate | UnsetType | None = UNSET
    concurrency: int | UnsetType = UNSET
    partition_rate_limit: Rate | UnsetType | None = UNSET
    partition_concurrency: int | UnsetType = UNSET
    limits: tuple[str, ...] | UnsetType = UNSET
    partition: str | None = None
    """Only for this one, which must be there; how long it keeps what can be set so."""


class Backup(Struct, gc=False):
    """Copy everything that is kept into a new directory, while the node goes on."""

    tenant: str
    directory: str


class BackedUp(Struct, gc=False):
    directory: str


class Hold(Struct, gc=False):
    """Have nothing change any more, not even with time, until the node is told to go on."""

    tenant: str
    held: bool = True


class Held(Struct, gc=False):
    held: bool
    store: str
    """Where what is held is kept."""


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


class Transact(Struct, gc=False):
    """Carry out several commands of one tenant in one commit, or none of them."""

    tenant: str
    ops: list["PushJobs | PushFlow | Ack | Nack | KvWrite"]


class Transacted(Struct, gc=False):
    replies: list["Reply"]


Wake = tuple[Queue, str | None, str | None]
"""Something became deliverable: in a queue, for a group, in a partition; None means every one."""

Command = (
    Push
    | PushMany
    | PushJobs
    | Pop
    | Ack
    | Nack
    | Extend
    | Cancel
    | Move
    | Update
    | Requeue
    | Purge
    | Seek
    | Clean
    | WouldClean
    | Obliterate
    | Delete
    | GroupPut
    | GroupDelete
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
    | Measure
    | EventPositions
    | EventsPast
    | State
    | Show
    | AddNote
    | TellProgress
    | GetNotes
    | Await
    | KvGet
    | KvList
    | KvWatch
    | KvWrite
    | CronPut
    | CronDelete
    | CronList
    | LimitPut
    | LimitList
    | PushFlow
    | Children
    | FindJob
    | Transact
    | StageWrite
    | Adopt
    | Unstage
    | Arrive
    | Backup
    | Hold
)
Reply = (
    Pushed
    | list[Pushed]
    | PushedJobs
    | Popped
    | Settled
    | Extended
    | Buried
    | Sought
    | Cleaned
    | Closed
    | DeadFound
    | Paused
    | LogSlice
    | OffsetsFound
    | QueueFound
    | Counts
    | QueuesFound
    | StatsFound
    | Measured
    | PositionsFound
    | PastFound
    | StateFound
    | ShownAll
    | Noted
    | NotesFound
    | KvFound
    | KvListed
    | KvWritten
    | CronsFound
    | CronDeleted
    | LimitsFound
    | FlowPushed
    | ChildrenFound
    | Transacted
    | Staged
    | Adopted
    | Unstaged
    | BackedUp
    | Held
)
