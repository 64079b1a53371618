"""How much a reply takes up before it is encoded."""

from typing import Any

from forebay.core.api.commands import Popped
from forebay.core.api.queries import DeadFound, LogSlice, QueuesFound, ShownAll
from forebay.wire.operations.messages import Browsed


def rows(reply: Any) -> int:
    """Return how many parts of a reply are Python objects of their own until it is encoded."""
    match reply:
        case Popped() | DeadFound() | ShownAll():
            return len(reply.deliveries)
        case LogSlice():
            return len(reply.runs)
        case QueuesFound():
            return len(reply.queues)
        case Browsed():
            return len(reply.messages)
        case (list() as found, str() | int()):
            return len(found)
        case _:
            return 0
