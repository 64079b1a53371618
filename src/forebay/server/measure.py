"""Measure all queues of a node in slices, between which the event loop does other work."""

import asyncio
from collections.abc import AsyncIterator

from msgspec import Struct

from forebay.core.api.queries import Measure, Measured, MeasureQueues, QueueMeasured, QueuesMeasured
from forebay.core.errors import Busy, ForebayError
from forebay.server.node_client import NodeClient

SLICE = 50
"""Queues measured in one turn of the event loop: about 0.5 ms."""


class Slice(QueuesMeasured, gc=False):
    """Queues that were measured in one turn."""

    summed: bool = False
    """Whether they are beyond those with metrics of their own, and were summed."""


async def measure(questions: NodeClient, tenant: str | None = None) -> Measured:
    """Return the metrics of the node and the names of its queues, or those of one tenant; or raise."""
    reply = await questions.ask(Measure())
    if isinstance(reply, ForebayError):
        raise reply
    assert isinstance(reply, Measured)
    if tenant is not None:
        for shard, places in reply.queues.items():
            reply.queues[shard] = [place for place in places if place[0] == tenant]
    return reply


async def slices(questions: NodeClient, measured: Measured, own_max: int) -> AsyncIterator[Slice]:
    """Yield the queues of the node in slices: the first ``own_max`` one by one, sums of all others.

    Queries are answered at once instead of with the next commit: a slice each would wait for a sync each.
    """
    left = own_max
    for shard, places in measured.queues.items():
        at = 0
        while at < len(places):
            await asyncio.sleep(0)
            size = min(SLICE, left) if left > 0 else SLICE
            found = _peek(questions, MeasureQueues(shard, places[at : at + size], summed=left <= 0))
            yield Slice(found.queues, found.done, summed=left <= 0)
            at += found.done
            left -= found.done


def _peek(questions: NodeClient, query: MeasureQueues) -> QueuesMeasured:
    node = questions.node
    if node.broken is not None:
        raise Busy(node.broken)
    reply = node.peek(query)
    if isinstance(reply, ForebayError):
        raise reply
    assert isinstance(reply, QueuesMeasured)
    return reply


class TenantMeasured(Struct, gc=False):
    """The queues of one tenant."""

    queues: list[QueueMeasured]
    """The first ones, each for itself."""
    rest: list[QueueMeasured]
    """Sums of all others."""
    now: int


async def measure_tenant(questions: NodeClient, tenant: str, own_max: int) -> TenantMeasured:
    """Measure the queues of a tenant, or raise."""
    measured = await measure(questions, tenant)
    found = TenantMeasured([], [], measured.now)
    async for each in slices(questions, measured, own_max):
        (found.rest if each.summed else found.queues).extend(each.queues)
    return found
