"""Named limits that several queues share."""

from typing import Any

from msgspec import Struct

from forebay.core.api.principals import OWNER, READ
from forebay.wire.operation import Answer, Operation, Request, Route
from forebay.wire.operations.crons import Gone
from forebay.wire.options import AnyRate


class PutLimit(Request, tag="LIMITPUT", kw_only=True):
    """Set a limit for all queues that have its name among their ``limits``."""

    name: str
    rate_limit: AnyRate | None = None
    byte_limit: AnyRate | None = None
    concurrency: int = 0


class Limit(Struct, gc=False, kw_only=True):
    """A named limit, and how many messages are leased under it."""

    name: str
    rate_limit: dict[str, Any] | None
    byte_limit: dict[str, Any] | None
    concurrency: int
    active: int


class ListLimits(Request, tag="LIMITS", kw_only=True):
    """List the named limits."""


class Limits(Answer, kw_only=True):
    """The named limits."""

    limits: list[Limit]


class DeleteLimit(Request, tag="LIMITDELETE", kw_only=True):
    """Delete a named limit."""

    name: str


ONE = "/v1/limits/{name}"
TAG = "limits"

OPERATIONS = [
    Operation(ListLimits, Limits, READ, TAG, "List limits", (Route("GET", "/v1/limits"),), {}),
    Operation(
        PutLimit,
        Gone,
        OWNER,
        TAG,
        "Set a limit",
        (Route("PUT", ONE),),
        {"name": "smtp", "rate_limit": 100, "concurrency": 5},
    ),
    Operation(DeleteLimit, Gone, OWNER, TAG, "Delete a limit", (Route("DELETE", ONE),), {"name": "smtp"}),
]
