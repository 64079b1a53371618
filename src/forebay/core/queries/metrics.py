"""Metrics per queue for the operator: depth, age, leases, counters.

All queues together take long, so they are measured in slices. A slice ends early when its queues have many
partitions.
"""

from itertools import islice

from forebay.core.api.queries import (
    Counts,
    Measure,
    Measured,
    MeasureQueues,
    QueueMeasured,
    QueuesMeasured,
)
from forebay.core.log import log as logs
from forebay.core.queries import describe
from forebay.core.queries.browse import unread
from forebay.core.shard.shard import Shard
from forebay.core.state import Partition, Queue, Tally, Track, fresh_count
from forebay.core.tracks.cursor import fresh
from forebay.core.tracks.planning import unplanned_due
from forebay.core.words import DEFAULT, is_own

LOOKED_AT = 100
"""Runs of a partition that are scanned for the oldest waiting message."""
PARTITIONS_MAX = 200
"""Partitions after which a slice ends: about 2 ms."""


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
            partitions += len(queue.partitions)
            if queues and partitions > PARTITIONS_MAX:
                break
            queues.append(queue)
        done += 1
    if command.summed:
        return QueuesMeasured([_sum(shard, queues, now)], done)
    return QueuesMeasured([_measure(shard, queue, now) for queue in queues], done)


def _measure(shard: Shard, queue: Queue, now: int) -> QueueMeasured:
    counts = describe.counts(queue, queue.groups.get(DEFAULT), now)
    tally = shard.events.tallies.get(queue.prefix)
    return QueueMeasured(queue.tenant, queue.name, counts, _oldest_at(queue, now), tally)


def _sum(shard: Shard, queues: list[Queue], now: int) -> QueueMeasured:
    """Return the metrics of queues together: the oldest message of all, and the sum of everything else."""
    total = QueueMeasured("", "", Counts(), None, None)
    for queue in queues:
        describe.counts(queue, queue.groups.get(DEFAULT), now, total.counts)
        oldest_at = _oldest_at(queue, now)
        if oldest_at is not None and (total.oldest_at is None or oldest_at < total.oldest_at):
            total.oldest_at = oldest_at
    every = shard.events.tallies
    tallies = [every[queue.prefix] for queue in queues if queue.prefix in every]
    if tallies:
        # Column by column: a tenth of the time of adding one queue after the other.
        counts = list(map(sum, zip(*(each.counts for each in tallies), strict=True)))
        times = list(map(sum, zip(*(each.times for each in tallies), strict=True)))
        total.tally = Tally("", "", counts, times, sum(each.spent_ms for each in tallies))
    return total


def _oldest_at(queue: Queue, now: int) -> int | None:
    """Return when the oldest waiting message of the group ``default`` was pushed; None if none waits.

    Only the head of each priority is checked, and only the first unplanned runs.
    """
    group = queue.groups.get(DEFAULT)
    found: int | None = None
    for partition in queue.partitions.values():
        heads = _unread(partition, now) if group is None else _heads(group.tracks[partition.key], now)
        for offset in heads:
            at = logs.created_at(partition.log, offset)
            if found is None or at < found:
                found = at
    return found


def _unread(partition: Partition, now: int) -> list[int]:
    """Return first offsets of waiting runs of a partition that no group reads yet."""
    log = partition.log
    if log.first == log.end:
        return []
    if not (log.mixed or partition.withdrawn or partition.parked):
        return [log.first]
    parts = islice(unread(partition, "waiting", log.first, now), LOOKED_AT)
    return [low for low, _, is_asked in parts if is_asked]


def _heads(track: Track, now: int) -> list[int]:
    """Return first offsets of waiting runs of a track, among them that of the oldest message."""
    heads: list[int] = []
    end = track.partition.log.end
    if fresh_count(track):
        # Without anything aside, the message at the cursor is fresh: that is the usual case, and four times
        # as fast as to look for the first fresh one.
        heads = (
            [low for low, _ in islice(fresh(track, track.cursor, end), 1)] if track.aside else [track.cursor]
        )
    if track.schedule.messages:
        heads += track.schedule.heads(now)
    if track.unplanned:
        rest = islice(unplanned_due(track, track.planned, end), LOOKED_AT)
        heads += [low for low, _, due_at in rest if due_at <= now]
    return heads
