"""Sweep: drop segments that are settled for long enough, surplus, or too old.

A segment is dropped when no group has anything in it to read or settle, and either ``completed_retention_ms``
has passed since a sweep first saw that, or the queue keeps more than ``completed_retention_bytes`` of such
segments. A queue without groups keeps everything: nobody has read it yet. ``retention_ms`` drops a segment
when all of it is older than that, read or not.
"""

from bisect import bisect_left
from collections.abc import Iterator
from heapq import heapify, heappop, heapreplace, merge
from itertools import chain, islice, takewhile

from msgspec import Struct

from forebay.core.bounds import NEVER
from forebay.core.delivery.gates import evict
from forebay.core.delivery.notes import has_results, sweep_notes, too_old_at
from forebay.core.delivery.pop import ACTIVE_MS
from forebay.core.links.cleanup import drop_all
from forebay.core.links.dedup import sweep_taken
from forebay.core.log import log as logs
from forebay.core.queries.describe import counts
from forebay.core.retention.drop import cut_off
from forebay.core.retention.islands import sink, sweep_islands, wanted_below
from forebay.core.retention.removal import remove_partitions
from forebay.core.shard.shard import Shard
from forebay.core.state import Group, Mark, Partition, Queue, Segment, Track, fresh_count
from forebay.core.structures.spans import outside
from forebay.core.tracks.cursor import fresh
from forebay.core.tracks.leased import leased_runs
from forebay.core.tracks.places import completed
from forebay.core.tracks.planning import unplanned
from forebay.core.tracks.trim import give_up
from forebay.core.words import DEFAULT, EXPIRED, OUTDATED, REMOVED, RETIRED

EVICTIONS_MAX = 10_000
"""Runs evicted in one sweep."""
DROPPED_RUNS_MAX = 2_000
"""Runs of completed messages dropped at a time, message by message: about 50 ms, besides finding them."""
MARKS_MAX = 60
"""Retention marks per partition: retention is exact to a sixtieth."""


class Dropped(Struct):
    """What was dropped, message by message."""

    count: int = 0
    more: bool = False
    """Whether there was more than is dropped at a time."""
    bytes: int = 0
    """Of the segments that went with them."""


def sweep_due(shard: Shard, now: int, most: int) -> int:
    """Sweep due queues, up to ``most``; return how many more it could have swept."""
    while most and (prefixes := shard.timers.sweeps.first_due(now)):
        for prefix in prefixes[:most]:
            queue = shard.queues[prefix]
            shard.timers.sweeps.remove(queue.sweep_at, prefix)
            queue.sweep_at = 0
            again_at = sweep(shard, queue, now)
            if again_at != NEVER:
                shard.timers.sweep_again(queue, max(again_at - 1, now))
        most -= min(most, len(prefixes))
    return most


OLD_MAX = 2_000
"""Segments, and islands, dropped by age per sweep, if single messages have to be removed from them."""


def sweep(shard: Shard, queue: Queue, now: int) -> int:
    """Drop what may go; return when time alone gives the next sweep work, or ``NEVER``."""
    options = queue.options
    waiting = _evict(shard, queue, now) if options.max_wait_ms else False
    holding = _holding(queue, now)
    settled_since, queue.unswept = queue.unswept, False
    empty: list[Partition] = []
    for partition in queue.partitions.values():
        completed_ms = _either(partition.retention.completed_retention_ms, options.completed_retention_ms)
        settled = settled_to(queue, partition, holding)
        _count_settled(partition, settled)
        _mark(shard, queue, partition, settled, completed_ms, now)
        before = _passed(partition, now - completed_ms)
        if before > partition.log.first:
            _forget_marks(shard, queue, partition, before)
        if before > partition.log.first:
            _drop(shard, queue, partition, before, holding, now)
        _drop_old(shard, queue, partition, now)
        sweep_islands(shard, queue, partition, holding, settled_since, now)
        if _is_long_empty(shard, queue, partition, now):
            empty.append(partition)
    if empty:
        for partition in empty:
            shard.changes.change_log.note(REMOVED, queue, "", partition, partition.log.end, 0)
        remove_partitions(shard, queue, empty)
    _drop_surplus(shard, queue, options.completed_retention_bytes, holding, now)
    if _drop_over_count(shard, queue, now):
        shard.timers.sweep_soon(queue, now)
    sweep_notes(shard, queue, now)
    again_at = min(
        (_again_at(queue, partition, now) for partition in queue.partitions.values()), default=NEVER
    )
    for notes in queue.notes.values():
        again_at = min(again_at, too_old_at(queue, notes, now))
    again_at = min(again_at, sweep_taken(shard, queue, now))
    if options.group_idle_ms and len(queue.groups) > 1:
        idle_at = (group.active_at + options.group_idle_ms + ACTIVE_MS for group in queue.groups.values())
        again_at = min(again_at, min((at for at in idle_at if at > now), default=NEVER))
    return now if waiting else again_at


def _again_at(queue: Queue, partition: Partition, now: int) -> int:
    """Return when time alone gives a sweep of a partition work."""
    retention, options, log = partition.retention, queue.options, partition.log
    found = now if partition.islands_left else NEVER
    if partition.marks:
        completed_ms = _either(retention.completed_retention_ms, options.completed_retention_ms)
        found = min(found, partition.marks[0].at + completed_ms)
    elif partition.settled_bytes:
        found = now
    if log.segments:
        retention_ms = _either(retention.retention_ms, options.retention_ms)
        return min(found, log.segments[0].created_at + retention_ms) if retention_ms else found
    empty_ms = _either(retention.partition_retention_ms, options.partition_retention_ms)
    return min(found, partition.emptied_at + empty_ms) if empty_ms and partition.name != DEFAULT else found


def _either(own: int | None, general: int) -> int:
    return general if own is None else own


def _holding(queue: Queue, now: int) -> list[Group]:
    """Return the groups that hold segments: idle ones do not, unless all are idle."""
    idle_ms = queue.options.group_idle_ms
    groups = list(queue.groups.values())
    holding = [
        group
        for group in groups
        if not idle_ms or group.name == DEFAULT or now - group.active_at < idle_ms + ACTIVE_MS
    ]
    return holding or groups


def _evict(shard: Shard, queue: Queue, now: int) -> bool:
    """Evict messages that waited too long; return whether any still wait."""
    left = EVICTIONS_MAX
    waiting = False
    for group in queue.groups.values():
        for track in group.tracks.values():
            if left > 0:
                left -= evict(shard, track, left, now)
            waiting = waiting or fresh_count(track) > 0 or track.schedule.messages > 0
    return waiting


def settled_to(queue: Queue, partition: Partition, holding: list[Group]) -> int:
    """Return the offset below which all is settled, except single scheduled or dead messages."""
    lowest = partition.log.end if queue.groups else partition.log.first
    for group in holding:
        track = group.tracks[partition.key]
        if fresh_count(track):
            lowest = min(lowest, track.cursor)
        lowest = min(lowest, track.planned)
    return max(min(lowest, _lowest_leased(queue, partition)), partition.log.first)


def _lowest_leased(queue: Queue, partition: Partition) -> int:
    """Return the lowest leased offset that is not in an island."""
    lowest = NEVER
    for group in queue.groups.values():
        track = group.tracks[partition.key]
        begin = partition.log.first
        at = bisect_left(track.spans, (begin, 0, 0))
        if at < len(track.spans):
            lowest = min(lowest, track.spans[at][0])
        if track.singles:
            lowest = min(lowest, min(filter(begin.__le__, track.singles), default=NEVER))
    return lowest


def _is_leased(shard: Shard, track: Track, segment: Segment) -> bool:
    return track.leased > 0 and any(leased_runs(shard, track, segment.base, segment.end))


def _count_settled(partition: Partition, settled: int) -> None:
    """Update ``settled_bytes`` with the segments that end at or below ``settled``."""
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


def _mark(
    shard: Shard, queue: Queue, partition: Partition, settled: int, completed_ms: int, now: int
) -> None:
    """Add a retention mark, at most ``MARKS_MAX`` per retention time."""
    marks = partition.marks
    while marks and marks[-1].offset > settled:  # a new group reads from the beginning: no longer true
        marks.pop()
        shard.changes.touch_partition(queue, partition)
    last = marks[-1] if marks else Mark(partition.log.first, 0)
    interval = completed_ms // MARKS_MAX
    if settled > last.offset and (not marks or now - last.at >= interval):
        marks.append(Mark(settled, now))
        shard.changes.touch_partition(queue, partition)


def _passed(partition: Partition, until: int) -> int:
    """Return the highest offset that was settled by ``until``."""
    return max((mark.offset for mark in partition.marks if mark.at <= until), default=partition.log.first)


def _forget_marks(shard: Shard, queue: Queue, partition: Partition, before: int) -> None:
    """Drop passed marks except the highest."""
    kept = [mark for mark in partition.marks if mark.offset >= before]
    if len(kept) < len(partition.marks):
        partition.marks = kept
        shard.changes.touch_partition(queue, partition)


def drop_completed(
    shard: Shard,
    queue: Queue,
    group: Group,
    grace_ms: int,
    most: int,
    now: int,
    *,
    all_settled: bool = False,
) -> Dropped:
    """Drop up to ``most`` messages that a group completed at least ``grace_ms`` ago, the oldest first.

    With them go segments of which none is left, as far as all groups have settled them. With ``all_settled``
    those of partitions where nothing was completed go, too: there, all was cancelled, discarded, …. Then idle
    groups hold segments like others: who clears out a group has not given up what another has to read.
    """
    dropped = Dropped()
    spans: list[tuple[Track, int, int]] = []
    found = (
        _completed(shard, track, _passed(track.partition, now - grace_ms) if grace_ms else NEVER)
        for track in group.tracks.values()
    )
    for _, key, low, high in merge(*found):
        if dropped.count == most:
            break
        track, high = group.tracks[key], min(high, low + most - dropped.count)
        if spans and spans[-1][0] is track and spans[-1][2] == low:
            spans[-1] = (track, spans[-1][1], high)
        elif len(spans) == DROPPED_RUNS_MAX:
            dropped.more = True
            break
        else:
            spans.append((track, low, high))
        dropped.count += high - low
    for track, low, high in spans:
        drop_all(shard, track, low, high)
        track.completed_from = high
    holding = list(queue.groups.values()) if all_settled else _holding(queue, now)
    if group not in holding:  # who names it has not given it up
        holding = [*holding, group]
    tracks = group.tracks if all_settled else {track.partition.key: track for track, _, _ in spans}
    for track in tracks.values():
        size = track.partition.log.size
        _drop_emptied(shard, queue, track, holding, now)
        dropped.bytes += size - track.partition.log.size
    return dropped


def _completed(shard: Shard, track: Track, before: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the completed messages of a track below an offset: when pushed, partition key, first and end."""
    log = track.partition.log
    for low, high, is_completed in completed(shard, track, track.completed_from):
        if low >= before:
            return
        while is_completed and low < min(high, before):
            segment = log.segments[logs.find(log, low)]
            run_end, created_at, _ = segment.run_at(low - segment.base)
            end = min(high, before, segment.base + run_end)
            yield created_at, track.partition.key, low, end
            low = end


def _drop_emptied(shard: Shard, queue: Queue, track: Track, holding: list[Group], now: int) -> None:
    """Drop the segments before the first completed message that is left, as far as all groups are done."""
    partition = track.partition
    settled = settled_to(queue, partition, holding)
    if settled <= partition.log.first:
        return
    left = completed(shard, track, max(partition.log.first, track.completed_from))
    left = takewhile(lambda part: part[0] < settled, left)
    before = min(settled, next((low for low, _, is_completed in left if is_completed), settled))
    if before > partition.log.first:
        _count_settled(partition, settled)
        _drop(shard, queue, partition, before, holding, now)


def _drop_over_count(shard: Shard, queue: Queue, now: int) -> bool:
    """Drop completed messages, if there are more than the queue keeps; return whether there is more to do."""
    most, group = queue.options.completed_retention_count, queue.groups.get(DEFAULT)
    if not most or group is None:
        return False
    kept = counts(queue, group, now).completed
    return kept > most and drop_completed(shard, queue, group, 0, kept - most + most // 2, now).more


def _drop(
    shard: Shard, queue: Queue, partition: Partition, before: int, holding: list[Group], now: int
) -> None:
    """Move the log's start behind settled segments; wanted ones become islands."""
    wanted_bases, before = wanted_below(queue, partition, before, holding)
    before = logs.trim_end(partition.log, before)
    for group in queue.groups.values():
        if group not in holding:
            give_up(shard, group.tracks[partition.key], before)
    cut_off(shard, queue, partition, before, wanted_bases, RETIRED, now)


def _drop_old(shard: Shard, queue: Queue, partition: Partition, now: int) -> None:
    """Drop segments whose messages are all too old and not leased."""
    retention_ms = _either(partition.retention.retention_ms, queue.options.retention_ms)
    log = partition.log
    if not retention_ms or not log.segments or log.segments[0].created_at >= now - retention_ms:
        return
    groups = list(queue.groups.values())
    before = min(logs.offset_at(log, now - retention_ms), _lowest_leased(queue, partition))
    if log.forming is not None:
        before = min(before, log.forming.base)
    tracks = [group.tracks[partition.key] for group in groups]
    if any(track.schedule or track.dead for track in tracks):
        # What is set aside is taken out one by one: a part of the log now, the rest with the next sweeps.
        position = log.islands + OLD_MAX
        before = min(before, log.bases[position]) if position < len(log.bases) else before
    before = logs.trim_end(log, before)
    if before > log.first:
        _note_expired(shard, queue, partition, before)
        for group in groups:
            give_up(shard, group.tracks[partition.key], before)
        held, _ = wanted_below(queue, partition, before, ())
        cut_off(shard, queue, partition, before, held, OUTDATED, now)
    old: list[Segment] = []
    for segment in islice(log.segments, min(log.islands, OLD_MAX)):
        if segment.last_at >= now - retention_ms:
            break
        if not any(_is_leased(shard, group.tracks[partition.key], segment) for group in groups):
            old.append(segment)
    sink(shard, queue, partition, old, OUTDATED, now)


def _note_expired(shard: Shard, queue: Queue, partition: Partition, before: int) -> None:
    """Record messages below an offset that expire undelivered."""
    first = partition.log.first
    if not queue.groups:
        for low, high in outside(partition.withdrawn, first, before):
            shard.changes.change_log.note(EXPIRED, queue, "", partition, low, high - low)
    for group in queue.groups.values():
        track = group.tracks[partition.key]
        waiting = chain(fresh(track, first, before), unplanned(track, first, before))
        scheduled = ((low, min(high, before)) for low, high, _ in track.schedule.spans(first) if low < before)
        for low, high in chain(waiting, scheduled):
            shard.changes.change_log.note(EXPIRED, queue, group.name, partition, low, high - low)


def _is_long_empty(shard: Shard, queue: Queue, partition: Partition, now: int) -> bool:
    """Whether a partition has been empty long enough to be removed."""
    if logs.count_kept(partition.log):
        return False
    if not partition.emptied_at:
        partition.emptied_at = now
        shard.changes.touch_partition(queue, partition)
    if has_results(queue, partition.key):
        return False  # they are found by way of it
    empty_ms = _either(partition.retention.partition_retention_ms, queue.options.partition_retention_ms)
    return 0 < empty_ms <= now - partition.emptied_at and partition.name != DEFAULT


def _drop_surplus(shard: Shard, queue: Queue, bytes_max: int, holding: list[Group], now: int) -> None:
    """Drop settled segments, the oldest of all partitions first, until no more than ``bytes_max`` remain."""
    surplus = sum(partition.settled_bytes for partition in queue.partitions.values()) - bytes_max
    if surplus <= 0:
        return
    settled = (partition for partition in queue.partitions.values() if partition.settled_bytes)
    oldest = [_oldest(partition) for partition in settled]
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
        _drop(shard, queue, partition, before, holding, now)


def _oldest(partition: Partition) -> tuple[int, int, int, Partition]:
    at = partition.log.islands
    return partition.log.segments[at].created_at, partition.key, at, partition
