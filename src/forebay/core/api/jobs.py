"""Commands of the job features: unique keys, flows, crons, named limits, keys and values."""

from msgspec import Struct

from forebay.core.state import PLAIN, Attributes, Identity, NamedLimit, Value
from forebay.core.words import DEFAULT


class Job(Struct, gc=False):
    """One message, with what it has for itself."""

    payload: bytes
    partition: str = DEFAULT
    attributes: Attributes = PLAIN
    own: Identity | None = None
    lane: bool = False
    """Whether its partition is a lane: one message at a time."""


class PushJobs(Struct, gc=False):
    """Push messages that have something for themselves, all or none; those known already are not repeated."""

    tenant: str
    queue: str
    jobs: list[Job]
    durability: str | None = None
    request: tuple[str, str] | None = None
    """Producer and idempotency key: a request with the same is answered as the first was."""
    then: tuple[str, Job] | None = None
    """A queue, and a message for it that waits for all of these."""
    known_ms: int = 0
    """How long the request is known; as the queue says if 0."""


class PushedJobs(Struct, gc=False):
    """The ids of the messages, in the order of the jobs."""

    ids: list[int]
    durability: str
    duplicates: list[int] = []
    """Places of jobs that were known already: theirs is the id of the first."""
    replaced: list[int] = []
    """Places of jobs that took the place of others, under their ids."""
    then: int | None = None
    """The id of the message that waits for them."""
    throttled: list[int] = []
    """Places of those of the duplicates that came too soon."""


class FlowJob(Struct, gc=False):
    """A message, and those it waits for."""

    queue: str
    job: Job
    children: list["FlowJob"] = []


class PushFlow(Struct, gc=False):
    """Push a message and those it waits for, all or none."""

    tenant: str
    root: FlowJob
    durability: str | None = None


class FlowPushed(Struct, gc=False):
    parent: int
    children: list[int]
    """Of the message itself; not theirs."""
    durability: str
    known: bool = False
    """Whether it was there already: nothing was pushed."""


class LimitPut(Struct, gc=False):
    """Set a limit that queues of a tenant share; None removes it."""

    tenant: str
    name: str
    limit: NamedLimit | None


class CronPut(Struct, gc=False):
    """Have a message pushed again and again: by a schedule, or every so often."""

    tenant: str
    name: str
    queue: str
    job: Job
    schedule: str | None = None
    every_ms: int | None = None
    zone: str = "UTC"
    limit: int = 0
    """How often; 0 is for ever."""
    missed: str = "last"
    """Which slots are made up for that no server saw: none, last or all."""


class CronDelete(Struct, gc=False):
    tenant: str
    name: str


class CronDeleted(Struct, gc=False):
    name: str


class KvChange(Struct, gc=False):
    """What a write does to one key, packed: set, delete, sum, max, min, append, prepend or expire."""

    kind: str
    key: bytes
    data: bytes = b"null"
    """JSON."""
    ttl_ms: int | None = None
    """When the entry goes; 0 is never, None as it was (of set: never)."""


class KvWrite(Struct, gc=False):
    """Change some keys of a tenant, all or none, if some keys are of the versions that are given."""

    tenant: str
    changes: list[KvChange]
    checks: list[tuple[bytes, int | None]] = []
    """Keys and their versions; None for one that is not there."""


class KvWritten(Struct, gc=False):
    version: int
    """Of everything that was written."""
    values: list[Value | None]
    """What the changes left, each key once."""
    deleted: int = 0
    """Keys that were there and are no more."""
