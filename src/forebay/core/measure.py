"""What an operator measures: depth, age, leases and what happened, queue by queue."""

from itertools import islice

from forebay.core import log as logs, look
from forebay.core.browse import unread
from forebay.core.commands import Measure, Measured, QueueMeasured
from forebay.core.domain import Domain
from forebay.core.endings import fresh, unplanned_due
from forebay.core.events import is_own
from forebay.core.model import DEFAULT, Queue

LOOKED_AT = 100
"""Runs of a partition that are looked at for the oldest that waits."""


def measure(domain: Domain, command: Measure, now: int) -> Measured:
    """Every queue of every tenant, up to so many."""
    found: list[QueueMeasured] = []
    for (tenant, _), queue in domain.queues.items():
        if not is_own(tenant):
            if len(found) == command.most:
                break
            found.append(_queue(domain, queue, now))
    leases = sum(len(shard.leases) for shard in domain.shards)
    queues = sum(not is_own(tenant) for tenant, _ in domain.queues)
    over = sum(shard.leases_over for shard in domain.shards)
    return Measured(found, queues, leases, over, now)


def _queue(domain: Domain, queue: Queue, now: int) -> QueueMeasured:
    counts = look.queue_counts(queue, now).counts
    tally = domain.tallies.get(queue.prefix)
    return QueueMeasured(queue.tenant, queue.name, counts, _oldest_at(queue, now), tally)


def _oldest_at(queue: Queue, now: int) -> int | None:
    """When the oldest message was pushed that waits in the work queue; None if none does.

    Of each priority only what is next is looked at, and of what no pop has sorted yet only the first runs.
    """
    group = queue.groups.get(DEFAULT)
    found: list[int] = []
    for partition in queue.partitions.values():
        if group is None:
            parts = islice(unread(partition, "waiting", partition.log.first, now), LOOKED_AT)
            waiting = [low for low, _, is_asked in parts if is_asked]
        else:
            track = group.tracks[partition.key]
            rest = islice(unplanned_due(track, track.planned, partition.log.end), LOOKED_AT)
            waiting = [low for low, _ in islice(fresh(track, track.cursor, partition.log.end), 1)]
            waiting += track.schedule.heads(now)
            waiting += [low for low, _, due_at in rest if due_at <= now]
        if waiting:
            found.append(min(logs.created_at(partition.log, offset) for offset in waiting))
    return min(found, default=None)
