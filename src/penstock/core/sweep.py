"""Sweep: drop whole segments that every group settled long enough ago, or that are too many.

A segment goes when all of it is settled by every group, and either ``completed_retention_ms`` has passed
since a sweep first saw that, or the queue keeps more than ``completed_retention_bytes`` of such segments.
A queue without groups keeps everything: nobody has read it yet.
"""

from heapq import heapify, heappop, heapreplace

from penstock.core import log as logs, records
from penstock.core.endings import trim_track
from penstock.core.gates import evict
from penstock.core.model import Mark, Partition, Queue, Segment, fresh_count
from penstock.core.notes import sweep_notes
from penstock.core.shard import Shard

RANGE_MIN = 64
"""Headers from which on they are deleted as one range: a range costs every later read a little."""
EVICTIONS_MAX = 10_000
"""Runs evicted in one sweep."""
MARKS_MAX = 60
"""Marks kept per partition: retention is exact to a sixtieth of itself."""


def sweep_due(shard: Shard, now: int, most: int) -> int:
    """Sweep the queues whose time has come, up to so many; how many more could have been."""
    while most and (prefixes := shard.sweeps.first_due(now)):
        for prefix in prefixes[:most]:
            queue = shard.queues[prefix]
            shard.sweeps.remove(queue.sweep_at, prefix)
            queue.sweep_at = 0
            if sweep(shard, queue, now):
                shard.plan_sweep(queue, now)
        most -= min(most, len(prefixes))
    return most


def sweep(shard: Shard, queue: Queue, now: int) -> bool:
    """Drop what may go; whether settled segments remain, so that a later sweep has work."""
    options = queue.options
    waiting = _evict(shard, queue, now) if options.max_wait_ms else False
    for partition in queue.partitions.values():
        settled = settled_to(queue, partition)
        _count_settled(partition, settled)
        _mark(shard, queue, partition, settled, now)
        before = _passed(partition, now - options.completed_retention_ms)
        if before > partition.log.first:
            _forget_marks(shard, queue, partition, before)
        if before > partition.log.first:
            _drop(shard, queue, partition, before)
    _drop_surplus(shard, queue, options.completed_retention_bytes)
    sweep_notes(shard, queue, now)
    return (
        waiting
        or any(notes.about for notes in queue.notes.values())
        or any(partition.settled_bytes for partition in queue.partitions.values())
    )


def _evict(shard: Shard, queue: Queue, now: int) -> bool:
    """Evict what has waited too long; whether anything still waits."""
    left = EVICTIONS_MAX
    waiting = False
    for group in queue.groups.values():
        for track in group.tracks.values():
            if left > 0:
                left -= evict(shard, track, left, now)
            waiting = waiting or fresh_count(track) > 0 or track.schedule.messages > 0
    return waiting


def settled_to(queue: Queue, partition: Partition) -> int:
    """The offset below which every group has settled everything."""
    lowest = partition.log.end if queue.groups else partition.log.first
    for group in queue.groups.values():
        track = group.tracks[partition.key]
        if fresh_count(track):
            lowest = min(lowest, track.cursor)
        lowest = min(lowest, track.planned, track.schedule.lowest())
        if track.dead:
            lowest = min(lowest, track.dead.head()[0])
        if track.spans:
            lowest = min(lowest, track.spans[0][0])
        if track.singles:
            lowest = min(lowest, min(track.singles))
    return max(lowest, partition.log.first)


def _count_settled(partition: Partition, settled: int) -> None:
    """Bring ``settled_bytes`` up to the segments that end at or below ``settled``."""
    log = partition.log
    if settled < partition.settled_to:  # a new group reads from the beginning: count again
        partition.settled_to, partition.settled_bytes = log.first, 0
    position = max(logs.find(log, partition.settled_to), 0)
    for segment in log.segments[position:]:
        if segment.end > settled or segment.payloads is not None:
            break
        if segment.base >= partition.settled_to:
            partition.settled_bytes += segment.weight
            partition.settled_to = segment.end


def _mark(shard: Shard, queue: Queue, partition: Partition, settled: int, now: int) -> None:
    """Note how far the partition is settled, at most ``MARKS_MAX`` times per retention."""
    marks = partition.marks
    while marks and marks[-1].offset > settled:  # a new group reads from the beginning: no longer true
        marks.pop()
        shard.touch_partition(queue, partition)
    last = marks[-1] if marks else Mark(partition.log.first, 0)
    interval = queue.options.completed_retention_ms // MARKS_MAX
    if settled > last.offset and (not marks or now - last.at >= interval):
        marks.append(Mark(settled, now))
        shard.touch_partition(queue, partition)


def _passed(partition: Partition, until: int) -> int:
    """The highest offset that was settled by ``until``."""
    return max((mark.offset for mark in partition.marks if mark.at <= until), default=partition.log.first)


def _forget_marks(shard: Shard, queue: Queue, partition: Partition, before: int) -> None:
    """Of the marks that have passed, the highest says it all."""
    kept = [mark for mark in partition.marks if mark.offset >= before]
    if len(kept) < len(partition.marks):
        partition.marks = kept
        shard.touch_partition(queue, partition)


def drop_completed(shard: Shard, queue: Queue, grace_ms: int, most: int, now: int) -> int:
    """Drop segments that have been settled for a while, about ``most`` messages; how many it was."""
    done = 0
    for partition in queue.partitions.values():
        log = partition.log
        settled = settled_to(queue, partition)
        _count_settled(partition, settled)
        before = min(settled, _passed(partition, now - grace_ms)) if grace_ms else settled
        position = logs.find(log, log.first + most - done) + 1
        if position < len(log.segments):
            before = min(before, log.segments[position].base)
        first = log.first
        if done < most and before > first:
            _drop(shard, queue, partition, before)
        done += log.first - first
    return done


def _drop(shard: Shard, queue: Queue, partition: Partition, before: int) -> None:
    gone = logs.trim(partition.log, before)
    partition.settled_bytes -= sum(segment.weight for segment in gone)
    if gone:
        if queue.stored:
            _delete(shard, queue, partition, gone)
        first = partition.log.first
        for group in queue.groups.values():
            trim_track(shard, group.tracks[partition.key])
        _trim_withdrawn(shard, queue, partition)
        _trim_successors(shard, queue, partition)
        partition.marks = [mark for mark in partition.marks if mark.offset > first]
        shard.touch_partition(queue, partition)


def _trim_withdrawn(shard: Shard, queue: Queue, partition: Partition) -> None:
    """Forget that messages were withdrawn which are no longer kept."""
    withdrawn, kept = partition.withdrawn, partition.log.first
    while withdrawn and withdrawn.first() < kept:
        first, count, at = withdrawn.head()
        withdrawn.remove(first, count)
        shard.keep_row(queue, records.withdrawn_key(queue.prefix, partition.key, first), None)
        if first + count > kept:
            rest = first + count - kept
            withdrawn.add((kept, rest, at))
            key = records.withdrawn_key(queue.prefix, partition.key, kept)
            shard.keep_row(queue, key, records.pack_numbers((rest, at)))


def _trim_successors(shard: Shard, queue: Queue, partition: Partition) -> None:
    """Forget what took the place of messages and is no longer kept."""
    for first, successor in list(partition.successors):
        if successor < partition.log.first:
            partition.successors.remove(first, successor)
            shard.keep_row(queue, records.successor_key(queue.prefix, partition.key, first), None)
    if not partition.successors:
        shard.updated.discard(partition.key)


def _delete(shard: Shard, queue: Queue, partition: Partition, gone: list[Segment]) -> None:
    headers = [records.header_key(queue.prefix, partition.key, segment.base) for segment in gone]
    if len(headers) < RANGE_MIN:
        shard.deletes += headers
    else:
        shard.ranges.append((headers[0], headers[-1] + b"\0"))
    shard.deletes += [records.body_key(queue.prefix, segment.body_name) for segment in gone]


def _drop_surplus(shard: Shard, queue: Queue, bytes_max: int) -> None:
    """Drop settled segments, the oldest of all partitions first, until no more than ``bytes_max`` remain."""
    surplus = sum(partition.settled_bytes for partition in queue.partitions.values()) - bytes_max
    if surplus <= 0:
        return
    settled = (partition for partition in queue.partitions.values() if partition.settled_bytes)
    oldest = [(partition.log.segments[0].created_at, partition.key, 0, partition) for partition in settled]
    heapify(oldest)
    going: dict[int, tuple[Partition, int]] = {}
    while surplus > 0:
        _, key, at, partition = oldest[0]
        segments = partition.log.segments
        surplus -= segments[at].weight
        going[key] = (partition, segments[at].end)
        following = segments[at + 1] if at + 1 < len(segments) else None
        if following is not None and following.end <= partition.settled_to:
            heapreplace(oldest, (following.created_at, key, at + 1, partition))
        else:
            heappop(oldest)
    for partition, before in going.values():
        _drop(shard, queue, partition, before)
