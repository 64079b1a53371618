"""Metrics per queue for the operator: depth, age, leases, counters."""

from itertools import islice

from forebay.core.api.queries import Measure, Measured, QueueMeasured
from forebay.core.log import log as logs
from forebay.core.queries import describe
from forebay.core.queries.browse import unread
from forebay.core.shard.shard import Shard
from forebay.core.state import Queue
from forebay.core.tracks.cursor import fresh
from forebay.core.tracks.planning import unplanned_due
from forebay.core.words import DEFAULT, is_own

LOOKED_AT = 100
"""Runs of a partition that are scanned for the oldest waiting message."""


def measure(shard: Shard, command: Measure, now: int) -> Measured:
    """Measure all queues of the tenants of a shard, up to ``most``."""
    found: list[QueueMeasured] = []
    for (tenant, _), queue in shard.names.queues.items():
        if not is_own(tenant):
            if len(found) == command.most:
                break
            found.append(_queue(shard, queue, now))
    queues = sum(not is_own(tenant) for tenant, _ in shard.names.queues)
    return Measured(found, queues, len(shard.leases), shard.expired_leases, now)


def _queue(shard: Shard, queue: Queue, now: int) -> QueueMeasured:
    counts = describe.queue_counts(queue, now).counts
    tally = shard.events.tallies.get(queue.prefix)
    return QueueMeasured(queue.tenant, queue.name, counts, _oldest_at(queue, now), tally)


def _oldest_at(queue: Queue, now: int) -> int | None:
    """Return when the oldest waiting message of the group ``default`` was pushed; None if none waits.

    Only the head of each priority is checked, and only the first unplanned runs.
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
