"""Metrics per queue for the operator: depth, age, leases, counters.

All queues together take long, so they are measured in slices. A slice ends early when its queues have many
partitions.
"""

from forebay.core.api.queries import (
    Counts,
    GroupFound,
    Measure,
    Measured,
    MeasureQueues,
    QueueMeasured,
    QueuesMeasured,
)
from forebay.core.queries import describe
from forebay.core.queries.oldest import oldest_at
from forebay.core.shard.shard import Shard
from forebay.core.state import Queue, Tally
from forebay.core.words import DEFAULT, is_own

PARTITIONS_MAX = 200
"""Partitions after which a slice ends, each counted once for every group: about 2 ms."""


def measure(shard: Shard, command: Measure, now: int) -> Measured:
    """Return the metrics of a shard, and the queues of its tenants."""
    places = [place for place in shard.names.queues if not is_own(place[0])]
    return Measured({shard.number: places}, len(shard.leases), shard.expired_leases, now)


def measure_queues(shard: Shard, command: MeasureQueues, now: int) -> QueuesMeasured:
    """Measure queues, each for itself or all together, up to ``PARTITIONS_MAX`` but one at least."""
    queues: list[Queue] = []
    done = partitions = 0
    for place in command.places:
        queue = shard.names.queues.get(place)
        if queue is not None:
            partitions += len(queue.partitions) * (len(queue.groups) or 1)
            if queues and partitions > PARTITIONS_MAX:
                break
            queues.append(queue)
        done += 1
    if command.summed:
        return QueuesMeasured([_sum(shard, queues, now)], done)
    return QueuesMeasured([_measure(shard, queue, now) for queue in queues], done)


def _measure(shard: Shard, queue: Queue, now: int) -> QueueMeasured:
    found = describe.queue_counts(queue, now)
    tally = shard.events.tallies.get(queue.prefix)
    others = [each for each in found.groups if each.name != DEFAULT]
    return QueueMeasured(queue.tenant, queue.name, found.counts, found.oldest_at, tally, others)


def _others(queue: Queue, now: int) -> list[GroupFound]:
    """Return the groups of a queue besides ``default``, which most queues do not have."""
    if len(queue.groups) < 2 and (not queue.groups or DEFAULT in queue.groups):
        return []
    return [describe.group(queue, each, now) for name, each in queue.groups.items() if name != DEFAULT]


def _sum(shard: Shard, queues: list[Queue], now: int) -> QueueMeasured:
    """Return the metrics of queues together: the oldest message of all, and the sum of everything else."""
    total = QueueMeasured("", "", Counts(), None, None, [])
    for queue in queues:
        others = _others(queue, now)
        group = queue.groups.get(describe.leading(queue, others))
        describe.counts(queue, group, now, total.counts)
        oldest = oldest_at(queue, group, now)
        if others and group is not None and group.name != DEFAULT:
            oldest = describe.earliest(each.oldest_at for each in others)
        if oldest is not None and (total.oldest_at is None or oldest < total.oldest_at):
            total.oldest_at = oldest
        total.groups += others
    every = shard.events.tallies
    tallies = [every[queue.prefix] for queue in queues if queue.prefix in every]
    total.tallies = tallies
    if tallies:
        # Column by column: a tenth of the time of adding one queue after the other.
        counts = list(map(sum, zip(*(each.counts for each in tallies), strict=True)))
        times = list(map(sum, zip(*(each.times for each in tallies), strict=True)))
        total.tally = Tally("", "", counts, times, sum(each.spent_ms for each in tallies))
    return total
