"""Commands of the job features: unique keys, flows, crons, named limits, keys and values."""

from msgspec import Struct

from forebay.core.state import PLAIN, Attributes, Identity, NamedLimit, Value
from forebay.core.words import DEFAULT


class Job(Struct, gc=False):
    """One message with its dedup identity."""

    payload: bytes
    partition: str = DEFAULT
    attributes: Attributes = PLAIN
    own: Identity | None = None
    lane: bool = False
    """Whether its partition is a lane: one leased message per group at a time."""


class PushJobs(Struct, gc=False):
    """Push jobs, all or none. Known jobs are not pushed again."""

    tenant: str
    queue: str
    jobs: list[Job]
    durability: str | None = None
    request: tuple[str, str] | None = None
    """Producer and idempotency key: a repeated request gets the first reply."""
    then: tuple[str, Job] | None = None
    """Completion callback: a queue, and a message for it that waits for all of these."""
    known_ms: int = 0
    """How long the request is remembered; the queue's dedup_window_ms if 0."""
    completed_count: int = 0
    """completed_retention_count of the queue, if this creates it."""


class PushedJobs(Struct, gc=False):
    """Message ids in the order of the jobs."""

    ids: list[int]
    durability: str
    duplicates: list[int] = []
    """Indexes of known jobs; their id is that of the first push."""
    replaced: list[int] = []
    """Indexes of jobs that replaced others, under the ids of those."""
    then: int | None = None
    """Id of the completion callback."""
    throttled: list[int] = []
    """Indexes of duplicates that were throttled."""


class FlowJob(Struct, gc=False):
    """A message and its children, which it waits for."""

    queue: str
    job: Job
    children: list["FlowJob"] = []


class PushFlow(Struct, gc=False):
    """Push a flow, all or none."""

    tenant: str
    root: FlowJob
    durability: str | None = None
    completed_count: int = 0
    """completed_retention_count of the queues that this creates."""


class FlowPushed(Struct, gc=False):
    parent: int
    children: list[int]
    """Ids of its direct children."""
    durability: str
    known: bool = False
    """Whether the flow was known already, and nothing was pushed."""


class LimitPut(Struct, gc=False):
    """Set a named limit; None removes it."""

    tenant: str
    name: str
    limit: NamedLimit | None


class CronPut(Struct, gc=False):
    """Create or replace a cron: by schedule, or at a fixed interval."""

    tenant: str
    name: str
    queue: str
    job: Job
    schedule: str | None = None
    every_ms: int | None = None
    zone: str = "UTC"
    limit: int = 0
    """Number of runs; 0 is unlimited."""
    missed: str = "last"
    """Which missed slots are made up for: none, last or all."""
    completed_count: int = 0
    """completed_retention_count of the queue, if this creates it."""


class CronDelete(Struct, gc=False):
    tenant: str
    name: str


class CronDeleted(Struct, gc=False):
    name: str


class KvChange(Struct, gc=False):
    """Change of one key: set, delete, sum, max, min, append, prepend or expire."""

    kind: str
    key: bytes
    data: bytes = b"null"
    """JSON."""
    ttl_ms: int | None = None
    """Time to live; 0 is none, None keeps what there is (set: none)."""


class KvWrite(Struct, gc=False):
    """Write keys of a tenant, all or none, if the checked keys have the given versions."""

    tenant: str
    changes: list[KvChange]
    checks: list[tuple[bytes, int | None]] = []
    """Keys and expected versions; None for a missing key."""


class KvWritten(Struct, gc=False):
    version: int
    """Version of everything written."""
    values: list[Value | None]
    """Values after the write, each key once."""
    deleted: int = 0
    """Number of keys deleted."""
