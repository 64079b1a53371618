"""Transactions: pushes, acks, nacks and writes of values in one commit, or none of them."""

from forebay.core.api.principals import ANY
from forebay.wire.operation import Answer, Operation, Request, Route
from forebay.wire.operations.flows import PushFlow
from forebay.wire.operations.pop import Ack, Nack
from forebay.wire.operations.push import Push
from forebay.wire.operations.values import AddValue, DeleteValue, SetValue, WriteValues

AnyOp = Push | PushFlow | Ack | Nack | SetValue | DeleteValue | AddValue | WriteValues
"""Requests that a transaction may hold."""


class Transact(Request, tag="TX", kw_only=True):
    """Carry out several requests in one commit, or none of them."""

    ops: list[AnyOp]


class Transacted(Answer, kw_only=True):
    """The answers to the requests, in their order."""

    results: list[Answer]


OPERATIONS = [
    Operation(
        Transact,
        Transacted,
        ANY,
        "messages",
        "Several requests in one commit",
        (Route("POST", "/v1/transaction"),),
        {
            "ops": [
                {"cmd": "PUSH", "queue": "reports", "payload": 1},
                {"cmd": "KVADD", "key": "sent"},
            ]
        },
    ),
]
