"""Browse jobs with the newest first, as GETJOBS shows them. The log is read from its end, page by page."""

from contextlib import suppress

from forebay.core.api import queries
from forebay.core.bounds import SHOWN_MAX
from forebay.core.errors import NotFound
from forebay.server.flashq.caller import Caller
from forebay.server.flashq.command import STATES, ask
from forebay.server.tcp.codec import Services

JOBS_MAX = 10_000
"""Jobs that one GETJOBS shows, at most."""
QUEUES_MAX = 1_000
"""Queues that one GETJOBS looks into, at most."""


async def newest(
    services: Services, caller: Caller, queue: str | None, state: str | None, limit: int, offset: int
) -> tuple[list[queries.Shown], int]:
    """Return one page of jobs in a state (any if None) and how many there are."""
    limit = min(limit, JOBS_MAX)
    names = [queue] if queue is not None else await _names(services, caller)
    counts: dict[str, int] = {}
    for name in names:
        with suppress(NotFound):
            counts[name] = await _count(services, caller, name, state)
    total = sum(counts.values())
    if not limit or offset >= total:
        return [], total
    found: list[queries.Shown] = []
    for name in counts:
        with suppress(NotFound):
            found += await _last(services, caller, name, state, offset + limit)
    if len(names) > 1:
        found.sort(key=lambda each: (each.state.created_at, each.state.id), reverse=True)
    return found[offset : offset + limit], total


async def _names(services: Services, caller: Caller) -> list[str]:
    found = await ask(services, caller, queries.ListQueues(caller.tenant, caller.queues))
    assert isinstance(found, queries.QueuesFound)
    return [each.name for each in found.queues[:QUEUES_MAX]]


async def _count(services: Services, caller: Caller, queue: str, state: str | None) -> int:
    counts = await ask(services, caller, queries.GroupCounts(caller.tenant, queue))
    return sum(getattr(counts, each) for each in STATES if state in (None, each))


async def _last(
    services: Services, caller: Caller, queue: str, state: str | None, count: int
) -> list[queries.Shown]:
    """Return the last jobs of a queue, without those that flashQ does not know any more."""
    reply = await ask(services, caller, queries.Browse(caller.tenant, queue, state, count=1))
    assert isinstance(reply, queries.ShownAll)
    found: list[queries.Shown] = []
    end = reply.total
    while end > 0 and len(found) < count:
        begin = max(end - min(SHOWN_MAX, count), 0)
        page = await _page(services, caller, queue, state, begin, end)
        found += [each for each in reversed(page) if each.state.state in STATES]
        end = begin
    return found[:count]


async def _page(
    services: Services, caller: Caller, queue: str, state: str | None, begin: int, end: int
) -> list[queries.Shown]:
    """Return the jobs at these places; large ones come in several replies."""
    found: list[queries.Shown] = []
    while begin < end:
        asked = queries.Browse(caller.tenant, queue, state, count=end - begin, skip=begin, counted=False)
        reply = await ask(services, caller, asked)
        assert isinstance(reply, queries.ShownAll)
        if not reply.deliveries:
            break
        found += reply.deliveries
        begin += len(reply.deliveries)
    return found
