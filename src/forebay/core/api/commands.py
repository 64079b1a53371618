"""Commands that change something, their replies, and the unions ``Command`` and ``Reply``.

Every command carries its tenant. Its handler checks all fields first: a command that breaks a rule raises
``Invalid`` and has changed nothing. Commands that never change anything are ``Query`` classes in ``queries``.
"""

from collections.abc import Sequence

from msgspec import Struct

from forebay.core.api.causes import CausesFound, GetCauses
from forebay.core.api.configure import Configure as Configure
from forebay.core.api.dead_letters import Buried as Buried, Purge as Purge, Requeue as Requeue
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
    DescribeGroup,
    EventPositions,
    EventsPast,
    FindJob,
    GetAttempts,
    GetNotes,
    GroupCounts,
    GroupFound,
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
    MeasureQueues,
    NotesFound,
    Offsets,
    OffsetsFound,
    PastFound,
    Paused,
    PositionsFound,
    QueueFound,
    QueuesFound,
    QueuesMeasured,
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
from forebay.core.api.tenants import (
    TenantFound as TenantFound,
    TenantGet,
    TenantList,
    TenantPut as TenantPut,
    TenantsFound,
    TokenDelete,
    TokenList,
    TokenPut,
    TokensFound,
    TokensUsed,
)
from forebay.core.log.slices import SegmentSlice
from forebay.core.state import PLAIN, Adopted, Attributes, Queue
from forebay.core.words import DEFAULT

Start = int | str
"""Where a new group starts: ``all``, ``new``, or a time in ms."""


class Push(Struct, gc=False):
    """Append payloads to one partition of a queue, all or none."""

    tenant: str
    queue: str
    payloads: list[bytes]
    partition: str = DEFAULT
    durability: str | None = None
    """fsync or os; the queue's if None."""
    attributes: Attributes = PLAIN
    """Attributes of all these messages."""
    completed_count: int = 0
    """completed_retention_count of the queue, if this creates it."""


class Pushed(Struct, gc=False):
    """Consecutive ids of the pushed messages."""

    first: int
    """Id of the first message, as a number."""
    count: int
    created_at: int
    durability: str
    """Durability reached: fsync, os or memory."""


class PushMany(Struct, gc=False):
    """Several pushes to one queue, all or none."""

    tenant: str
    queue: str
    pushes: list[tuple[str, list[bytes], Attributes]]
    """Partition, payloads and attributes of each."""
    durability: str | None = None


class Arrive(Struct, gc=False):
    """Push messages from the store's inbox and delete them there, in one commit."""

    push: Push | PushJobs
    arrivals: list[int]
    """Inbox numbers of the messages."""

    @property
    def tenant(self) -> str:
        return self.push.tenant


class Pop(Struct, gc=False):
    """Lease up to ``count`` messages for a group. A missing group is created."""

    tenant: str
    queue: str
    group: str = DEFAULT
    count: int = 1
    min_count: int = 1
    """Nothing is taken if fewer are deliverable."""
    partition: str | None = None
    """Only this partition; any if None."""
    lease_ms: int | None = None
    """The queue's if None."""
    start: Start = "all"
    """Used only when the group is created."""
    wait_ms: int = 0
    """How long to wait for messages. The node waits; the core only validates it."""
    owner: int = 0
    """The connection that sent the pop; 0 if none."""
    completed_count: int = 0
    """completed_retention_count of the queue, if this creates it."""
    create: bool | None = None
    """Whether a missing queue is created; if None, the limits say so."""
    worker: str = ""
    """Name of the consumer, if it tells."""


class Delivery(SegmentSlice, gc=False, frozen=True):
    """Delivered messages that are adjacent and share their counts."""

    partition: str
    first: int
    """Id of the first message, as a number."""
    deliveries: int
    """Including this delivery."""
    failures: int
    """Before this delivery."""
    expires_at: int
    priority: int = 0


class Popped(Struct, gc=False):
    """The leased messages; none if ``deliveries`` is empty."""

    queue: Queue
    lease: str | None
    deliveries: list[Delivery]
    again: bool = False
    """Nothing found yet, and not everything was searched: retry after the commit."""


class Settle(Struct, gc=False):
    """What an ack, nack or extend applies to: a whole lease, or some messages.

    A lease given with ids must be the live one that holds them. Without a lease, an id refers to the delivery
    that the connection itself holds, else to the group's live lease.
    """

    tenant: str
    lease: str | None = None
    ids: list[int] | None = None
    group: str | None = None
    owner: int = 0
    partial: bool = False
    """Whether it is no conflict if none of the messages is leased."""


class Ack(Settle, gc=False):
    """Acknowledge messages: they are completed."""

    results: list[bytes] | None = None
    """A result per id, as JSON; only the group ``default`` has results."""


class Nack(Settle, gc=False):
    """Count a failure and deliver the messages again, or make them dead letters."""

    error: str | None = None
    error_type: str = ""
    traceback: str = ""
    delay_ms: int | None = None
    """Delay instead of the backoff."""
    final: bool = False
    """Make them dead letters at once."""
    undelivered: bool = False
    """Return them at once, without counting a delivery or a failure."""
    defer_ms: int | None = None
    """Of undelivered ones: return them after a delay, or make them dead letters once that lasts so long."""


class Extend(Settle, gc=False):
    """Extend the leases of these messages: whole leases, and never to an earlier time."""

    lease_ms: int | None = None


class Settled(Struct, gc=False):
    """Number of messages settled, and the ids that were not leased."""

    count: int
    refused: Sequence[int] = ()


class Extended(Struct, gc=False):
    expires_at: int
    """The earliest expiry of the extended leases."""
    count: int
    refused: Sequence[int] = ()
    cancelled: bool = False
    """Whether some of the messages were cancelled meanwhile."""


class Cancel(Struct, gc=False):
    """Cancel messages for one group, or for every group that exists or will exist."""

    tenant: str
    ids: list[int]
    group: str | None = None


class Move(Struct, gc=False):
    """Deliver messages at another time or priority. A missing group is created."""

    tenant: str
    ids: list[int]
    group: str = DEFAULT
    delay_ms: int | None = None
    """Counted from now; leased messages are taken back from their consumer, uncounted."""
    priority: int | None = None
    only_delayed: bool = False
    """Whether only messages that are not due yet are moved."""


class Update(Struct, gc=False):
    """Replace the payload of a message that was never delivered.

    The message is cancelled, and a successor with the new payload is appended, shown under the same id.
    """

    tenant: str
    id: int
    payload: bytes
    headers: tuple[tuple[str, str | None], ...] = ()
    """Headers to set; None removes one. The others stay."""


class Discard(Move, gc=False):
    """Make messages dead letters at once, leased or not."""


class Seek(Struct, gc=False):
    """Move the cursor of a group. Its leases and schedule there are dropped."""

    tenant: str
    queue: str
    group: str
    start: Start
    partition: str | None = None
    """Only this partition; all if None."""
    offset: int | None = None
    """Offset to continue from, in one partition; ``start`` is ignored then."""


class Sought(Struct, gc=False):
    """New cursors, by partition."""

    cursors: dict[str, int]


class Clean(Struct, gc=False):
    """Clear messages of a group by state and age.

    Waiting and delayed messages are cancelled, dead letters discarded. Completed messages are dropped, the
    oldest first. Parked messages are parked in every group, and cancelled in every group: if ``parked`` is
    the only state, or there is no other group.
    """

    tenant: str
    queue: str
    states: tuple[str, ...]
    """Of waiting, delayed, parked, dead and completed."""
    group: str = DEFAULT
    grace_ms: int = 0
    """Minimum age since they were pushed, died, or were settled."""
    count: int | None = None
    """At most this many."""
    create: bool = True
    """Whether to create the group, if there is anything for it; else a queue that has others must have it."""


class Cleaned(Struct, gc=False):
    """Number of messages cleared, and whether more are left for the next command."""

    count: int
    more: bool = False
    freed: int = 0
    """Bytes of the segments that were dropped."""


class Obliterate(Struct, gc=False):
    """Remove a queue with everything in it."""

    tenant: str
    queue: str


class Delete(Struct, gc=False):
    """Close a queue at once, and remove it when its last lease has ended."""

    tenant: str
    queue: str


class Closed(Struct, gc=False):
    """State of a queue that is being deleted."""

    queue: str
    active: int
    """Messages still leased; the queue is gone if none are."""
    until: int
    """When the queue is removed at the latest."""


class GroupPut(Struct, gc=False):
    """Create a group; an existing one is left as it is."""

    tenant: str
    queue: str
    group: str
    start: Start = "all"


class GroupDelete(Struct, gc=False):
    """Delete a group with all its state."""

    tenant: str
    queue: str
    group: str


class Pause(Struct, gc=False):
    """Stop delivery of a queue until it is resumed, or until a time."""

    tenant: str
    queue: str
    until: int | None = None
    completed_count: int = 0
    """completed_retention_count of the queue, if this creates it."""
    create: bool = False
    """Whether a missing queue is created."""


class Resume(Struct, gc=False):
    tenant: str
    queue: str


class Backup(Struct, gc=False):
    """Back up the store into a new directory while the node keeps running."""

    tenant: str
    directory: str


class BackedUp(Struct, gc=False):
    directory: str


class Hold(Struct, gc=False):
    """Freeze all state, timers included, until the node is released."""

    tenant: str
    held: bool = True


class Held(Struct, gc=False):
    held: bool
    store: str
    """Address of the store."""


class AddNote(Struct, gc=False):
    """Add a note to a message: a log line, or a partial result."""

    tenant: str
    id: int
    kind: int
    payload: bytes
    lease: str | None = None
    owner: int = 0


class TellProgress(Struct, gc=False):
    """Report progress of a message that is leased right now."""

    tenant: str
    id: int
    percent: int
    message: str = ""
    lease: str | None = None
    owner: int = 0


class Noted(Struct, gc=False):
    id: int


class Transact(Struct, gc=False):
    """Apply several commands of one tenant in one commit, or none of them."""

    tenant: str
    ops: Sequence["PushJobs | PushFlow | Ack | Nack | KvWrite | Purge"]


class Transacted(Struct, gc=False):
    replies: list["Reply"]


Wake = tuple[Queue, str | None, str | None]
"""Something became deliverable: queue, group, partition; None means all of them."""

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
    | DescribeGroup
    | ListQueues
    | Stats
    | Measure
    | MeasureQueues
    | EventPositions
    | EventsPast
    | State
    | Show
    | AddNote
    | TellProgress
    | GetAttempts
    | GetCauses
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
    | TenantPut
    | TenantGet
    | TenantList
    | TokenPut
    | TokenList
    | TokenDelete
    | TokensUsed
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
    | CausesFound
    | Paused
    | LogSlice
    | OffsetsFound
    | QueueFound
    | Counts
    | QueuesFound
    | StatsFound
    | GroupFound
    | Measured
    | QueuesMeasured
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
    | TenantFound
    | TenantsFound
    | TokensFound
    | BackedUp
    | Held
)
