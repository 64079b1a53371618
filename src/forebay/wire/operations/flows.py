"""Flows: a message and the messages it waits for."""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, Raw, UnsetType

from forebay.core.api.principals import POP, PUSH, READ
from forebay.wire.operation import Answer, Operation, Request, Route
from forebay.wire.operations.messages import Seen
from forebay.wire.operations.push import Item, Options
from forebay.wire.types import Id, RequestId


class Child(Item, kw_only=True):
    """A message that its parent waits for."""

    queue: str
    children: "list[Child]" = msgspec.field(default_factory=list)


class PushFlow(Options, tag_field="cmd", tag="FLOW", kw_only=True):
    """Push a message and the messages it waits for, all or none."""

    queue: str
    payload: Raw
    children: list[Child]
    durability: str | None = None
    reqId: RequestId | UnsetType = UNSET
    tenant: str | UnsetType = UNSET


class FlowPushed(Answer, kw_only=True):
    """Ids of the message and of those it waits for directly."""

    id: Id
    children: Sequence[Id]
    durability: str
    duplicate: bool = False


class GetChildren(Request, tag="CHILDREN", kw_only=True):
    """Return the messages that a message waits for, with their results."""

    id: Id


class Children(Answer, kw_only=True):
    """The messages it waits for, as far as they are kept; how many of them are completed."""

    id: Id
    children: list[Seen]
    completed: int
    total: int


OPERATIONS = [
    Operation(
        PushFlow,
        FlowPushed,
        PUSH,
        "flows",
        "Push a flow",
        (Route("POST", "/v1/queues/{queue}/flows"),),
        {"queue": "reports", "payload": "sum", "children": [{"queue": "reports", "payload": 1}]},
    ),
    Operation(
        GetChildren,
        Children,
        (READ, POP),
        "flows",
        "What a message waits for",
        (Route("GET", "/v1/messages/{id}/children"),),
        {"id": "ID"},
    ),
]
