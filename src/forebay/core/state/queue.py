"""A queue and its options."""

from collections import OrderedDict

from msgspec import Struct, field

from forebay.core.state.attributes import Backoff
from forebay.core.state.group import Group
from forebay.core.state.jobs import RememberedPush
from forebay.core.state.limits import Rate
from forebay.core.state.notes import Notes
from forebay.core.state.partition import Partition
from forebay.core.state.stages import Adopted, Stage, Sums
from forebay.core.words import BY_MESSAGE, FAIL, FSYNC


class QueueOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """Options of a queue."""

    lease_ms: int = 30_000
    """How long a delivery is leased when the pop does not say."""
    completed_retention_ms: int = 3_600_000
    """How long messages that every group has settled stay readable."""
    completed_retention_bytes: int = 256 * 1024 * 1024
    """How many bytes of them stay; whichever ends first."""
    completed_retention_count: int = 0
    """How many messages that the group default has completed stay; if there are more, the oldest go until
    half of it is left. 0 is no limit."""
    result_retention_ms: int = 86_400_000
    """How long a result can be asked for by id, whether or not its message is still kept. A queue keeps the
    newest 100,000 results, and 64 MiB of them."""
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
    """How long messages are kept at most, read or not; 0 is unlimited."""
    partition_retention_ms: int = 0
    """How long a partition may be empty before it is removed; 0 is unlimited. The default one stays."""
    group_idle_ms: int = 604_800_000
    """A group that has not popped for this long stops holding segments; 0 is never."""
    max_size: int = 0
    """Most messages that may be waiting, delayed, parked or active; 0 is no limit."""
    require_lease: bool = False
    """Whether acks, nacks and extends by id must name the lease."""
    dedup_window_ms: int = 3_600_000
    """How long transaction ids and idempotency keys are remembered."""
    rate_limit: Rate | None = None
    """Rate limit on messages delivered to each group."""
    byte_limit: Rate | None = None
    """Rate limit on payload bytes delivered to each group."""
    concurrency: int = 0
    """Messages that each group may have leased at once; 0 is no limit."""
    partition_rate_limit: Rate | None = None
    """Rate limit on messages of each partition, per group."""
    partition_concurrency: int = 0
    """Messages of each partition that each group may have leased at once; 0 is no limit."""
    limits: tuple[str, ...] = ()
    """Named limits that apply to it."""


class Queue(Struct, eq=False, kw_only=True):
    """A named queue of a tenant."""

    tenant: str
    name: str
    prefix: bytes
    """Tenant id and queue id, 4 bytes each: every record key of the queue starts with it."""
    shard: int
    """Fixed at creation."""
    options: QueueOptions
    """Its durability is memory from creation on, or never."""
    partitions: dict[str, Partition]
    groups: dict[str, Group]
    groups_made: int = 0
    """Group numbers given out so far."""
    notes: dict[int, Notes] = {}
    """Notes of its messages, by kind."""
    paused_until: int = 0
    """When its pause ends; ``NEVER`` if it has to be resumed, 0 if it is not paused."""
    closing_at: int = 0
    """When it was closed for deletion; 0 if it was not."""
    remembered: dict[bytes, RememberedPush] = {}
    """Remembered pushes, by kind and key. Each is a record of its own."""
    stages: dict[str, Stage] = {}
    """Stages by name. Each part of a stage is a record of its own."""
    adopted: dict[str, dict[int, Adopted]] = {}
    """Adoptions by query and batch, latest query last. Each is a record of its own."""
    staged_for: dict[str, dict[str, Stage]] = {}
    """*memory* Stages of a query's current run, by query."""
    staged: Sums = field(default_factory=Sums)
    """*memory* Totals of ``stages``."""
    uniques: dict[str, tuple[int, int]] = {}
    """*memory* Unique key to partition key and offset of its holder."""
    named: dict[str, tuple[int, int]] = {}
    """*memory* Custom id to partition key and offset of its message."""
    kept: OrderedDict[tuple[int, int], None] = field(default_factory=OrderedDict)
    """*memory* Completed messages that are kept by their number (``Cleanup.keep_count``), oldest first:
    partition key and offset. Those of one millisecond are in order of completion, after a load by place."""
    tied_bytes: int = 0
    """*memory* Payload bytes kept in ties."""
    stored: bool = True
    """*memory* Whether its content is stored: not if its durability is memory."""
    gated: bool = False
    """*memory* Whether its options have gates."""
    limited: bool = False
    """*memory* Whether its options limit delivery."""
    ordered: bool = False
    """*memory* Whether its options ask for strict order."""
    room: int = 0
    """*memory* With max_size: messages that may be pushed before a recount."""
    unswept: bool = False
    """*memory* Something was settled since the last sweep."""
    sweep_at: int = 0
    """*memory* When the next sweep is due; 0 when none is."""
    dirty: bool = False
    """*memory* Changed since the last seal."""
