"""Describe a queue: options, partitions, groups, counts by state."""

from collections.abc import Iterable, Sequence
from itertools import islice
from operator import attrgetter

from forebay.core.api.queries import (
    Counts,
    GroupFound,
    PartitionFound,
    Paused,
    QueueCounts,
    QueueFound,
    Spot,
    StagedFound,
)
from forebay.core.bounds import NEVER, check_name
from forebay.core.errors import NotFound
from forebay.core.log import log as logs
from forebay.core.queries.oldest import oldest_at
from forebay.core.state import Group, Partition, Queue, Track, fresh_count
from forebay.core.structures.spans import covered, outside
from forebay.core.tracks.planning import unplanned_due
from forebay.core.words import CANCELLED, DEFAULT, DISCARDED, EVICTED, EXPIRED

UNPLANNED_MAX = 5_000
"""Unplanned runs that are scanned to count delayed messages: about 40 ms."""


def describe(queue: Queue, now: int) -> QueueFound:
    """Return a queue with its partitions and groups."""
    partitions = [
        PartitionFound(
            partition.name,
            partition.log.first,
            partition.log.end,
            partition.log.size,
            partition.retention,
            partition.lane,
        )
        for partition in queue.partitions.values()
    ]
    groups = [group(queue, each, now) for each in queue.groups.values()]
    stages = queue.stages.values()
    staged = StagedFound(len(stages), sum(each.count for each in stages), queue.staged.bytes)
    return QueueFound(queue.name, queue.options, partitions, groups, paused(queue, now), staged)


def group(queue: Queue, group: Group, now: int) -> GroupFound:
    """Return a group with its messages by state."""
    return GroupFound(group.name, counts(queue, group, now), oldest_at(queue, group, now))


def leading(queue: Queue, groups: Iterable[GroupFound]) -> str:
    """Return the name of the group that stands for a queue, as if that had no others.

    It is ``default``, which need not exist. Where only others read, nothing waits for ``default``: then it is
    the one of them for which most waits. (The oldest message is that of any of them: a reader that is stuck
    must show, however little waits for it.)
    """
    if DEFAULT in queue.groups or not queue.groups:
        return DEFAULT
    return max(groups, key=lambda each: each.counts.waiting).name


def summed(groups: Iterable[GroupFound]) -> list[GroupFound]:
    """Return groups of several queues, those of the same name as one, by name."""
    named: dict[str, list[GroupFound]] = {}
    for each in groups:
        named.setdefault(each.name, []).append(each)
    return [
        GroupFound(name, total_of([each.counts for each in same]), earliest(each.oldest_at for each in same))
        for name, same in sorted(named.items())
    ]


def total_of(every: Sequence[Counts]) -> Counts:
    return Counts(*(sum(map(attrgetter(field), every)) for field in Counts.__struct_fields__))


def earliest(times: Iterable[int | None]) -> int | None:
    """Return the earliest of some times; None if there is none."""
    return min((each for each in times if each is not None), default=None)


def paused(queue: Queue, now: int) -> Paused:
    until = queue.paused_until
    return Paused(until > now, until if now < until < NEVER else None)


def queue_counts(queue: Queue, now: int) -> QueueCounts:
    """Return the groups of a queue, and the counts in the one that stands for it."""
    groups = [group(queue, each, now) for each in queue.groups.values()]
    is_paused = queue.paused_until > now
    if DEFAULT in queue.groups or not groups:
        lead = next((each for each in groups if each.name == DEFAULT), None)
        if lead is None:
            lead = GroupFound(DEFAULT, counts(queue, None, now), oldest_at(queue, None, now))
        return QueueCounts(queue.name, lead.counts, is_paused, lead.oldest_at, groups)
    name, oldest = leading(queue, groups), earliest(each.oldest_at for each in groups)
    lead = next(each for each in groups if each.name == name)
    return QueueCounts(queue.name, lead.counts, is_paused, oldest, groups)


def counts(queue: Queue, group: Group | None, now: int, found: Counts | None = None) -> Counts:
    """Count kept messages by state in a group, and add them to ``found`` if that is given."""
    if found is None:
        found = Counts()
    for partition in queue.partitions.values():
        kept = logs.count_kept(partition.log)
        if group is None:
            kept -= partition.log.strays
            delayed, withdrawn = _undelivered(partition, now)
            parked = sum(high - low for low, high in covered(partition.parked, partition.log.first, NEVER))
            found.waiting += kept - delayed - withdrawn - parked
            found.parked += parked
            found.delayed += delayed
            found.cancelled += withdrawn
            continue
        track = group.tracks[partition.key]
        due = track.schedule.due_messages(now) if track.schedule.messages else 0
        later = _unplanned_later(track, now) if track.unplanned else 0
        waiting = fresh_count(track) + due + track.unplanned - later
        delayed = track.schedule.messages - due + later
        found.waiting += waiting
        found.delayed += delayed
        found.parked += partition.parked_messages
        found.active += track.leased
        found.deferred += track.schedule.deferred
        found.dead += track.dead_messages
        unsettled = waiting + delayed + track.leased + track.dead_messages + partition.parked_messages
        ended = track.ended
        otherwise = sum(ended)
        found.completed += kept - unsettled - otherwise
        if otherwise:
            found.expired += ended[EXPIRED]
            found.cancelled += ended[CANCELLED]
            found.discarded += ended[DISCARDED]
            found.evicted += ended[EVICTED]
    return found


def _unplanned_later(track: Track, now: int) -> int:
    """Count unplanned messages that are not due yet.

    Only the first ``UNPLANNED_MAX`` runs are checked; messages behind them count as waiting until planned.
    """
    spans = islice(unplanned_due(track, track.planned, track.partition.log.end), UNPLANNED_MAX)
    return sum(high - low for low, high, due_at in spans if due_at > now)


def _undelivered(partition: Partition, now: int) -> tuple[int, int]:
    """Count delayed and cancelled messages of a partition that no group reads yet."""
    log = partition.log
    delayed = 0
    for segment in log.segments[log.islands :] if log.mixed else ():
        start = 0
        while segment.aside and start < segment.count:
            end, created_at, attributes = segment.run_at(start)
            if created_at + attributes.delay_ms > now:
                for low, high in outside(partition.withdrawn, segment.base + start, segment.base + end):
                    delayed += sum(last - first for first, last in outside(partition.parked, low, high))
            start = end
    return delayed, sum(count for _, count, _ in partition.withdrawn)


def partitions_from(queue: Queue, after: Spot | None) -> list[Partition]:
    """Return the partitions from that of a cursor on, in order."""
    first = after[0] if after is not None else 0
    every = sorted(queue.partitions.values(), key=lambda partition: partition.key)
    return [partition for partition in every if partition.key >= first]


def partition_of(queue: Queue, name: str) -> Partition:
    """Return a partition by name; raise if there is none."""
    check_name("partition", name)
    partition = queue.partitions.get(name)
    if partition is None:
        raise NotFound(f"queue {queue.name} has no partition {name}")
    return partition
