"""Crons: messages that are pushed on a schedule."""

from msgspec import UNSET, Raw, UnsetType

from forebay.core.api.principals import READ, WRITE
from forebay.wire.operation import Answer, Operation, Request, Route
from forebay.wire.operations.push import Item


class PutCron(Request, tag="CRONPUT", kw_only=True):
    """Push a ``message`` to a ``queue`` on a ``schedule``, or every ``every_ms``."""

    name: str
    queue: str
    message: Item
    schedule: str | None = None
    every_ms: int | None = None
    timezone: str = "UTC"
    limit: int | None = None
    missed: str = "last"


class Cron(Answer, kw_only=True):
    """A cron: a message that is pushed on a schedule."""

    name: str
    queue: str
    partition: str
    payload: Raw
    priority: int
    schedule: str | None
    every_ms: int | None
    timezone: str
    limit: int | None
    missed: str
    fired: int
    skipped: int
    last_at: int | None
    next_at: int | None
    error: str | None
    headers: dict[str, str] | UnsetType = UNSET


class ListCrons(Request, tag="CRONS", kw_only=True):
    """List crons by name."""

    after: str | None = None


class Crons(Answer, kw_only=True):
    """Crons by name. With ``more``, ask again with the last name as ``after``."""

    crons: list[Cron]
    more: bool


class GetCron(Request, tag="CRON", kw_only=True):
    """Return one cron."""

    name: str


class DeleteCron(Request, tag="CRONDELETE", kw_only=True):
    """Delete a cron: its message is pushed no more."""

    name: str


class Gone(Answer, kw_only=True):
    """The name of what was deleted."""

    name: str


ONE = "/v1/crons/{name}"
TAG = "crons"
EXAMPLE = {"name": "nightly", "queue": "reports", "message": {"payload": "all"}, "schedule": "0 3 * * *"}

OPERATIONS = [
    Operation(ListCrons, Crons, READ, TAG, "List crons", (Route("GET", "/v1/crons"),), {}),
    Operation(GetCron, Cron, READ, TAG, "Look at a cron", (Route("GET", ONE),), {"name": "nightly"}),
    Operation(PutCron, Cron, WRITE, TAG, "Make or change a cron", (Route("PUT", ONE),), EXAMPLE),
    Operation(DeleteCron, Gone, WRITE, TAG, "Delete a cron", (Route("DELETE", ONE),), {"name": "nightly"}),
]
