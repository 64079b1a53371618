"""What is kept beside a message: its result, partial results, progress and log."""

from msgspec import UNSET, Raw, Struct, UnsetType

from forebay.core.api.principals import POP, READ
from forebay.core.words import DEFAULT
from forebay.wire.operation import Answer, Done, Operation, Request, Route
from forebay.wire.types import Id


class GetResult(Request, tag="RESULT", kw_only=True):
    """Return the result of a message; wait up to ``wait_ms`` for its end."""

    id: Id
    queue: str | None = None
    wait_ms: int = 0
    group: str = DEFAULT


class Came(Answer, kw_only=True):
    """The result of a message; ``done`` says whether the message has ended."""

    id: Id
    state: str
    done: bool
    result: Raw
    error: str | UnsetType = UNSET
    has_result: bool = False


class AddPartial(Request, tag="PARTIAL", kw_only=True):
    """Add a partial result to a message."""

    id: Id
    payload: Raw
    lease: str | None = None


class GetPartials(Request, tag="PARTIALS", kw_only=True):
    """Return the partial results of a message, oldest first."""

    id: Id


class Partials(Answer, kw_only=True):
    """The partial results of a message."""

    id: Id
    partials: list[Raw]


class SetProgress(Request, tag="SETPROGRESS", kw_only=True):
    """Report the progress of a leased message, from 0 to 100."""

    id: Id
    progress: int
    message: str | None = None
    lease: str | None = None


class GetProgress(Request, tag="PROGRESS", kw_only=True):
    """Return the progress of a message as its consumer last reported it."""

    id: Id


class Progressed(Answer, kw_only=True):
    """The progress of a message; 0 if none was reported."""

    id: Id
    progress: int
    message: str | None
    updated_at: int | None


class AddLog(Request, tag="LOG", kw_only=True):
    """Add a line to the log of a message."""

    id: Id
    message: str
    level: str = "info"


class GetLogs(Request, tag="LOGS", kw_only=True):
    """Return the newest lines of the log of a message, oldest first."""

    id: Id


class LogLine(Struct, gc=False):
    """A line of the log of a message."""

    timestamp: int
    level: str
    message: str


class Logs(Answer, kw_only=True):
    """The log of a message."""

    id: Id
    logs: list[LogLine]


class GetAttempts(Request, tag="ATTEMPTS", kw_only=True):
    """Return the failed attempts of a message in a group, the newest 100, oldest first."""

    id: Id
    group: str = DEFAULT


class Attempt(Struct, gc=False, omit_defaults=True):
    """A delivery that failed."""

    at: int
    deliveries: int
    error: str
    error_type: str | UnsetType = UNSET
    traceback: str | UnsetType = UNSET
    worker: str | UnsetType = UNSET


class Attempts(Answer, kw_only=True):
    """The failed attempts of a message."""

    id: Id
    attempts: list[Attempt]


ONE = "/v1/messages/{id}"
TAG = "results"

OPERATIONS = [
    Operation(
        GetResult,
        Came,
        (READ, POP),
        TAG,
        "What came of a message",
        (
            Route("GET", "/v1/queues/{queue}/messages/{id}/result"),
            Route(
                "GET",
                f"{ONE}/result",
                ("id", "wait_ms", "group"),
                summary="What came of any message",
                name="GetAnyResult",
            ),
        ),
        {"queue": "emails", "id": "ID", "wait_ms": 1_000},
    ),
    Operation(
        AddPartial,
        Done,
        POP,
        TAG,
        "Add a partial result",
        (Route("POST", f"{ONE}/partials"),),
        {"id": "ID", "payload": {"rows": 100}},
    ),
    Operation(
        GetPartials,
        Partials,
        READ,
        TAG,
        "List partial results",
        (Route("GET", f"{ONE}/partials"),),
        {"id": "ID"},
    ),
    Operation(
        SetProgress,
        Done,
        POP,
        TAG,
        "Report progress",
        (Route("PUT", f"{ONE}/progress"),),
        {"id": "ID", "progress": 40, "message": "sending"},
    ),
    Operation(
        GetProgress,
        Progressed,
        READ,
        TAG,
        "The progress of a message",
        (Route("GET", f"{ONE}/progress"),),
        {"id": "ID"},
    ),
    Operation(
        AddLog,
        Done,
        POP,
        TAG,
        "Add a log line",
        (Route("POST", f"{ONE}/logs"),),
        {"id": "ID", "message": "connected"},
    ),
    Operation(
        GetLogs,
        Logs,
        READ,
        TAG,
        "The log of a message",
        (Route("GET", f"{ONE}/logs"),),
        {"id": "ID"},
    ),
    Operation(
        GetAttempts,
        Attempts,
        READ,
        TAG,
        "Why a message failed, each time",
        (Route("GET", f"{ONE}/attempts"),),
        {"id": "ID"},
    ),
]
