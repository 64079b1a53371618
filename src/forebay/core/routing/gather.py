"""Join the replies of several shards to one query."""

from collections.abc import Callable, Sequence
from typing import Any

from forebay.core.api.commands import Command, Reply
from forebay.core.api.queries import (
    CronList,
    CronsFound,
    EventPositions,
    FindJob,
    ListQueues,
    Measure,
    Measured,
    PositionsFound,
    QueuesFound,
    Show,
    Shown,
    ShownAll,
    Stats,
    StatsFound,
)
from forebay.core.bounds import Limits
from forebay.core.errors import NotFound
from forebay.core.queries.describe import earliest, summed, total_of
from forebay.core.queries.message_state import check_shown


def list_queues(limits: Limits, command: ListQueues, found: Sequence[QueuesFound]) -> QueuesFound:
    return QueuesFound(sorted((queue for each in found for queue in each.queues), key=lambda each: each.name))


def stats(limits: Limits, command: Stats, found: Sequence[StatsFound]) -> StatsFound:
    total = total_of([each.counts for each in found])
    oldest = earliest(each.oldest_at for each in found)
    groups = summed(group for each in found for group in each.groups)
    return StatsFound(sum(each.queues for each in found), total, oldest, groups)


def crons(limits: Limits, command: CronList, found: Sequence[CronsFound]) -> CronsFound:
    """Join crons by name, up to where every shard has told all of its own."""
    if command.name is not None and not found:
        raise NotFound(f"there is no cron {command.name}")
    complete = [each.crons[-1].name for each in found if each.more]
    names = sorted((cron for each in found for cron in each.crons), key=lambda cron: (cron.name, cron.queue))
    if complete:
        names = [cron for cron in names if cron.name <= min(complete)]
    return CronsFound(names, bool(complete))


def show(limits: Limits, command: Show, found: Sequence[ShownAll]) -> ShownAll:
    """Join messages in the order in which they were asked for."""
    by_id: dict[int, list[Shown]] = {}
    for each in found:
        for shown in each.deliveries:
            by_id.setdefault(shown.state.id, []).append(shown)
    order = [by_id[each].pop(0) for each in command.ids if by_id.get(each)]
    rest = [each for left in by_id.values() for each in left]
    check_shown(limits, together := [*order, *rest])
    return ShownAll(together)


def find_job(limits: Limits, command: FindJob, found: Sequence[ShownAll]) -> ShownAll:
    """Return the newest message."""
    if not found:
        raise NotFound(f"there is no message with the custom id {command.job_id}")
    return max(found, key=lambda each: each.deliveries[0].state.created_at)


def measure(limits: Limits, command: Measure, found: Sequence[Measured]) -> Measured:
    queues = {shard: places for each in found for shard, places in each.queues.items()}
    leases, over = sum(each.leases for each in found), sum(each.expired_leases for each in found)
    return Measured(queues, leases, over, max((each.now for each in found), default=0))


def positions(limits: Limits, command: EventPositions, found: Sequence[PositionsFound]) -> PositionsFound:
    return PositionsFound({shard: end for each in found for shard, end in each.ends.items()})


JOINS: dict[type, Callable[[Limits, Any, Sequence[Any]], Reply]] = {
    ListQueues: list_queues,
    Stats: stats,
    CronList: crons,
    Show: show,
    FindJob: find_job,
    Measure: measure,
    EventPositions: positions,
}
"""The queries that are asked of several shards."""


def gather(limits: Limits, command: Command, asks: Sequence[Callable[[], Reply]]) -> Reply:
    """Ask every shard and join the replies; what is missing in all of them is missing."""
    found: list[Reply] = []
    missing: NotFound | None = None
    for ask in asks:
        try:
            found.append(ask())
        except NotFound as error:
            missing = error
    if missing is not None and not found:
        raise missing
    return join(limits, command, found)


def join(limits: Limits, command: Command, found: Sequence[Reply]) -> Reply:
    """Join replies of several shards, or of several engines to their part of a query."""
    return JOINS[type(command)](limits, command, found)
