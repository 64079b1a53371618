"""A queue and its options."""

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
    remembered: dict[bytes, RememberedPush] = {}
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
