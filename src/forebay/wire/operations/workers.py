"""Workers: they tell of themselves, and are listed."""

from msgspec import Struct, field

from forebay.core.api.principals import POP, READ
from forebay.core.words import DEFAULT
from forebay.wire.operation import Answer, Done, Operation, Request, Route
from forebay.wire.types import Id


class Job(Struct, gc=False, forbid_unknown_fields=True):
    """A job that a worker runs."""

    id: Id
    task: str = ""
    for_ms: int = 0


class TellWorker(Request, tag="WORKER", kw_only=True):
    """Tell of a worker: when it starts, every 10 s or so, and when it stops.

    After 30 s of silence it is gone.
    """

    name: str
    host: str = ""
    pid: int = 0
    version: str = ""
    group: str = DEFAULT
    queues: list[str] = field(default_factory=list)
    tasks: list[str] = field(default_factory=list)
    concurrency: int = 1
    state: str = "working"
    up_ms: int = 0
    running: list[Job] = field(default_factory=list)
    running_count: int | None = None
    done: int = 0
    failed: int = 0


class ListWorkers(Request, tag="WORKERS", kw_only=True):
    """List the workers by name; with ``queue``, those that work on it."""

    queue: str | None = None
    limit: int = 100
    after: str | None = None


class RunningJob(Struct, gc=False):
    """A job that runs."""

    id: Id
    task: str
    since: int


class WorkerShown(Struct, gc=False, kw_only=True):
    """A worker as it last told of itself."""

    name: str
    host: str
    pid: int
    version: str
    group: str
    queues: list[str]
    tasks: list[str]
    concurrency: int
    state: str
    started_at: int
    seen_at: int
    running: list[RunningJob]
    running_count: int
    done: int
    failed: int


class WorkersShown(Answer, kw_only=True):
    """Workers by name; with ``more``, ask again with the last name as ``after``."""

    workers: list[WorkerShown]
    more: bool


TAG = "workers"
PATH = "/v1/workers"

OPERATIONS = [
    Operation(
        TellWorker,
        Done,
        POP,
        TAG,
        "Tell of a worker",
        (Route("POST", PATH),),
        {"name": "mailer-1", "host": "web-3", "queues": ["emails"], "running": [{"id": 7, "task": "send"}]},
    ),
    Operation(
        ListWorkers, WorkersShown, READ, TAG, "List workers", (Route("GET", PATH),), {"queue": "emails"}
    ),
]
