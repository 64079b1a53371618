"""What an operator measures: depth, age, leases and what happened, queue by queue."""

from penstock.core import log as logs, look
from penstock.core.commands import Measure, Measured, QueueMeasured
from penstock.core.domain import Domain
from penstock.core.events import is_own
from penstock.core.model import DEFAULT, Queue, fresh_count


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
    return Measured(found, queues, leases, now)


def _queue(domain: Domain, queue: Queue, now: int) -> QueueMeasured:
    counts = look.queue_counts(queue, now).counts
    tally = domain.tallies.get(queue.prefix)
    return QueueMeasured(queue.tenant, queue.name, counts, _oldest_at(queue), tally)


def _oldest_at(queue: Queue) -> int | None:
    """When the oldest message was pushed that the work queue has never delivered; None if there is none."""
    group = queue.groups.get(DEFAULT)
    found: list[int] = []
    for partition in queue.partitions.values():
        log = partition.log
        offset = log.first
        if group is not None:
            track = group.tracks[partition.key]
            if not fresh_count(track):
                continue
            offset = track.cursor
        if offset < log.end:
            segment = log.segments[logs.find(log, offset)]
            found.append(segment.run_at(offset - segment.base)[1])
    return min(found, default=None)
