"""Sweep: drop whole segments that every group settled long enough ago, that are too many, or too old.

A segment goes when nobody has anything in it to read or to settle, and either ``completed_retention_ms`` has
passed since a sweep first saw that, or the queue keeps more than ``completed_retention_bytes`` of such
segments. A queue without groups keeps everything: nobody has read it yet. With ``retention_ms`` it goes when
all of it is older than that, whoever has still to read it.

Messages that wait for their time, and dead letters, do not keep the log from going on: the segments they lie
in stay behind as islands, and are carved down to them in the background.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heapreplace
from itertools import chain, islice, takewhile

from forebay.core import log as logs, records
from forebay.core.agenda import NEVER
from forebay.core.carve import is_worth, wanted
from forebay.core.endings import forget, fresh, give_up, next_dead, outside, unplanned
from forebay.core.gates import evict
from forebay.core.happenings import OUTDATED, REMOVED, RETIRED
from forebay.core.jobs import sweep_taken
from forebay.core.leased import leased_runs
from forebay.core.limits import NOTES_MS_MAX
from forebay.core.model import (
    DEFAULT,
    EXPIRED,
    Group,
    Log,
    Mark,
    Partition,
    Queue,
    Segment,
    Track,
    fresh_count,
)
from forebay.core.notes import sweep_notes
from forebay.core.pop import ACTIVE_MS
from forebay.core.removal import remove_partitions
from forebay.core.shard import Shard
from forebay.core.ties import forget_gone

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
            again_at = sweep(shard, queue, now)
            if again_at != NEVER:
                shard.sweep_again(queue, max(again_at - 1, now))
        most -= min(most, len(prefixes))
    return most


ISLANDS_MAX = 1_000
"""Islands looked at in one sweep of a partition, unless they have many runs."""
ISLANDS_MADE_MAX = 5_000
"""Islands made in one sweep of a partition; the log goes on further in the next."""
OLD_MAX = 2_000
"""Segments, and islands, that one sweep of a partition drops for their age, if messages are set aside."""
ISLAND_RUNS_MAX = 20_000
"""Runs in them looked at."""


def sweep(shard: Shard, queue: Queue, now: int) -> int:
    """Drop what may go; when the next sweep has work, unless something happens before. ``NEVER`` if never."""
    options = queue.options
    waiting = _evict(shard, queue, now) if options.max_wait_ms else False
    holding = _holding(queue, now)
    anew, queue.unswept = queue.unswept, False
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
        _sweep_islands(shard, queue, partition, holding, anew, now)
        if _is_long_empty(shard, queue, partition, now):
            empty.append(partition)
    if empty:
        for partition in empty:
            shard.happened.note(REMOVED, queue, "", partition, partition.log.end, 0)
        remove_partitions(shard, queue, empty)
    _drop_surplus(shard, queue, options.completed_retention_bytes, holding, now)
    sweep_notes(shard, queue, now)
    again_at = min(
        (_again_at(queue, partition, now) for partition in queue.partitions.values()), default=NEVER
    )
    for notes in queue.notes.values():
        if notes.log.segments:
            again_at = min(again_at, notes.log.segments[0].created_at + NOTES_MS_MAX)
    again_at = min(again_at, sweep_taken(shard, queue, now))
    if options.group_idle_ms and len(queue.groups) > 1:
        idle_at = (group.active_at + options.group_idle_ms + ACTIVE_MS for group in queue.groups.values())
        again_at = min(again_at, min((at for at in idle_at if at > now), default=NEVER))
    return now if waiting else again_at


def _again_at(queue: Queue, partition: Partition, now: int) -> int:
    """When time alone gives a sweep of a partition something to do."""
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
    """The groups that keep what they have not dealt with: not those that seem to be gone, unless all do."""
    idle_ms = queue.options.group_idle_ms
    groups = list(queue.groups.values())
    holding = [
        group
        for group in groups
        if not idle_ms or group.name == DEFAULT or now - group.active_at < idle_ms + ACTIVE_MS
    ]
    return holding or groups


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


def settled_to(queue: Queue, partition: Partition, holding: list[Group]) -> int:
    """The offset below which nobody has anything to read or to settle, but for single messages set aside."""
    lowest = partition.log.end if queue.groups else partition.log.first
    for group in holding:
        track = group.tracks[partition.key]
        if fresh_count(track):
            lowest = min(lowest, track.cursor)
        lowest = min(lowest, track.planned)
    return max(min(lowest, _lowest_leased(queue, partition)), partition.log.first)


def _lowest_leased(queue: Queue, partition: Partition) -> int:
    """The lowest offset that is not an island's and that anybody holds right now."""
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


def _mark(
    shard: Shard, queue: Queue, partition: Partition, settled: int, completed_ms: int, now: int
) -> None:
    """Note how far the partition is settled, at most ``MARKS_MAX`` times per retention."""
    marks = partition.marks
    while marks and marks[-1].offset > settled:  # a new group reads from the beginning: no longer true
        marks.pop()
        shard.touch_partition(queue, partition)
    last = marks[-1] if marks else Mark(partition.log.first, 0)
    interval = completed_ms // MARKS_MAX
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
    holding = _holding(queue, now)
    for partition in queue.partitions.values():
        log = partition.log
        settled = settled_to(queue, partition, holding)
        _count_settled(partition, settled)
        before = min(settled, _passed(partition, now - grace_ms)) if grace_ms else settled
        position = logs.find(log, log.first + most - done) + 1
        if log.islands < position < len(log.segments):
            before = min(before, log.segments[position].base)
        if done < most and before > log.first:
            kept = logs.count_kept(log)
            _drop(shard, queue, partition, before, holding, now)
            done += kept - logs.count_kept(log)
    return done


def droppable(queue: Queue, now: int) -> int:
    """How many messages are settled for every group, in segments that could be dropped."""
    found = 0
    holding = _holding(queue, now)
    for partition in queue.partitions.values():
        log = partition.log
        settled = settled_to(queue, partition, holding)
        if settled > log.first:
            wanted, before = _wanted_below(queue, partition, settled, holding)
            before = logs.trim_end(log, before)
            found += sum(
                segment.count
                for segment in log.segments[log.islands :]
                if segment.end <= before and segment.base not in wanted
            )
    return found


def _drop(
    shard: Shard, queue: Queue, partition: Partition, before: int, holding: list[Group], now: int
) -> None:
    """Begin the log behind segments that are settled, but for what is set aside in them."""
    wanted_bases, before = _wanted_below(queue, partition, before, holding)
    before = logs.trim_end(partition.log, before)
    for group in queue.groups.values():
        if group not in holding:
            give_up(shard, group.tracks[partition.key], before)
    _cut_off(shard, queue, partition, before, wanted_bases, RETIRED, now)


def _wanted_below(
    queue: Queue, partition: Partition, before: int, holding: Iterable[Group]
) -> tuple[set[int], int]:
    """Where segments begin that have to stay when the log goes on, and up to where it may go on at once."""
    log = partition.log
    spans = chain.from_iterable(
        _across(group.tracks[partition.key], log.first) for group in queue.groups.values()
    )
    bases = {segment.base for low, high in spans for segment in _between(log, low, high)}
    for first, count, _ in partition.parked:
        if first >= before:
            break
        bases |= {segment.base for segment in _between(log, max(first, log.first), first + count)}
    for group in holding:
        track = group.tracks[partition.key]
        offset = log.first
        while (at := _next_aside(track, offset)) < before:
            segment = log.segments[logs.find(log, at)]
            bases.add(segment.base)
            offset = segment.end
            if len(bases) >= ISLANDS_MADE_MAX:
                before = min(before, offset)
    return bases, before


def _across(track: Track, offset: int) -> Iterator[tuple[int, int]]:
    """What is leased in runs that begin below an offset, from there on."""
    for first, count, _ in track.spans[: bisect_left(track.spans, (offset, 0, 0))]:
        if first + count > offset:
            yield offset, first + count


def _between(log: Log, low: int, high: int) -> Iterator[Segment]:
    """The segments that have messages in [low, high), from the beginning of the log on."""
    for segment in islice(log.segments, logs.find(log, low), None):
        if segment.base >= high:
            return
        yield segment


def _next_aside(track: Track, offset: int) -> int:
    """The first message from an offset on that is scheduled or dead; ``NEVER`` if there is none."""
    return min(track.schedule.next_from(offset), next_dead(track, offset))


def _drop_old(shard: Shard, queue: Queue, partition: Partition, now: int) -> None:
    """Drop segments of which every message is too old, and nobody holds any right now."""
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
        held, _ = _wanted_below(queue, partition, before, ())
        _cut_off(shard, queue, partition, before, held, OUTDATED, now)
    old: list[Segment] = []
    for segment in islice(log.segments, min(log.islands, OLD_MAX)):
        if segment.last_at >= now - retention_ms:
            break
        if not any(_is_leased(shard, group.tracks[partition.key], segment) for group in groups):
            old.append(segment)
    _sink(shard, queue, partition, old, OUTDATED, now)


def _note_expired(shard: Shard, queue: Queue, partition: Partition, before: int) -> None:
    """Tell of what goes below an offset before it was delivered."""
    first = partition.log.first
    if not queue.groups:
        for low, high in outside(partition.withdrawn, first, before):
            shard.happened.note(EXPIRED, queue, "", partition, low, high - low)
    for group in queue.groups.values():
        track = group.tracks[partition.key]
        waiting = chain(fresh(track, first, before), unplanned(track, first, before))
        scheduled = ((low, min(high, before)) for low, high, _ in track.schedule.spans(first) if low < before)
        for low, high in chain(waiting, scheduled):
            shard.happened.note(EXPIRED, queue, group.name, partition, low, high - low)


def cut_to(shard: Shard, queue: Queue, partition: Partition, before: int, now: int) -> None:
    """Drop the segments of a log that no group reads, up to one that begins at ``before``."""
    _cut_off(shard, queue, partition, before, set(), OUTDATED, now)


def _cut_off(
    shard: Shard,
    queue: Queue,
    partition: Partition,
    before: int,
    wanted_bases: set[int],
    why: int,
    now: int,
) -> None:
    """Begin the log further on; segments that are wanted are kept as islands."""
    log = partition.log
    weight = _weight_below(partition, before)
    islands = log.islands
    gone = logs.trim(log, before, wanted_bases)
    if not gone and log.islands == islands:
        return
    partition.settled_bytes -= weight
    partition.settled_to = max(partition.settled_to, log.first)
    partition.merged_to = [max(each, log.first) for each in partition.merged_to]
    partition.marks = [mark for mark in partition.marks if mark.offset > log.first]
    _let_go(shard, queue, partition, gone, why, now)
    _trim_withdrawn(shard, queue, partition)


def _weight_below(partition: Partition, before: int) -> int:
    """What the segments that end at or below an offset count for among those that are settled."""
    log = partition.log
    end = min(before, partition.settled_to)
    segments = takewhile(lambda each: each.end <= end, islice(log.segments, log.islands, None))
    return sum(segment.weight for segment in segments)


def _let_go(
    shard: Shard, queue: Queue, partition: Partition, gone: list[Segment], why: int, now: int
) -> None:
    """Forget segments that are no longer in the log, and what became of their messages."""
    if queue.stored:
        _delete(shard, queue, partition, gone)
    spans = joined(gone)
    for low, high in spans:
        shard.happened.note(why, queue, "", partition, low, high - low)
    for low, high in spans if shard.watched else ():
        shard.tell(partition.key, low, high)
    for group in queue.groups.values():
        forget(shard, group.tracks[partition.key], spans, now)
    forget_gone(shard, queue, partition, spans)
    shard.touch_partition(queue, partition)


def joined(segments: Iterable[Segment]) -> list[tuple[int, int]]:
    """Where segments lie, neighbours together: offsets [first, end)."""
    spans: list[tuple[int, int]] = []
    for segment in segments:
        if spans and spans[-1][1] == segment.base:
            spans[-1] = (spans[-1][0], segment.end)
        else:
            spans.append((segment.base, segment.end))
    return spans


def _sweep_islands(
    shard: Shard, queue: Queue, partition: Partition, holding: list[Group], anew: bool, now: int
) -> None:
    """Drop islands that nobody wants any more, a number of them in turn."""
    log = partition.log
    if anew:
        partition.islands_left = log.islands
    partition.islands_left = min(partition.islands_left, log.islands)
    if not partition.islands_left:
        return
    begin = at = partition.island_at if partition.island_at < log.islands else 0
    groups = queue.groups.values()
    keeping = [group.tracks[partition.key] for group in holding]
    leasing = [group.tracks[partition.key] for group in groups]
    gone: list[Segment] = []
    left = ISLAND_RUNS_MAX
    for segment in islice(log.segments, at, min(at + ISLANDS_MAX, log.islands)):
        spans, looked = wanted(shard, partition, segment, keeping, leasing)
        if not spans:
            gone.append(segment)
        elif is_worth(segment, spans):
            shard.to_carve[partition.key, segment.base] = (queue, partition, segment)
        at += 1
        left -= looked
        if left <= 0:
            break
    partition.islands_left = max(partition.islands_left - (at - begin), 0)
    partition.island_at = at - len(gone)
    _sink(shard, queue, partition, gone, RETIRED, now)


def _sink(shard: Shard, queue: Queue, partition: Partition, gone: list[Segment], why: int, now: int) -> None:
    if gone:
        logs.sink(partition.log, gone)
        _let_go(shard, queue, partition, gone, why, now)


def _is_long_empty(shard: Shard, queue: Queue, partition: Partition, now: int) -> bool:
    """Whether a partition has been empty for so long that it may go."""
    if logs.count_kept(partition.log):
        return False
    if not partition.emptied_at:
        partition.emptied_at = now
        shard.touch_partition(queue, partition)
    empty_ms = _either(partition.retention.partition_retention_ms, queue.options.partition_retention_ms)
    return 0 < empty_ms <= now - partition.emptied_at and partition.name != DEFAULT


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


def _delete(shard: Shard, queue: Queue, partition: Partition, gone: list[Segment]) -> None:
    headers: list[bytes] = []
    reached = -1
    for segment in gone:
        if segment.base != reached:
            _delete_headers(shard, headers)
            headers = []
        headers.append(records.header_key(queue.prefix, partition.key, segment.base))
        reached = segment.end
    _delete_headers(shard, headers)
    shard.deletes += [records.body_key(queue.prefix, segment.body_name) for segment in gone]


def _delete_headers(shard: Shard, headers: list[bytes]) -> None:
    """Delete headers that follow each other."""
    if len(headers) < RANGE_MIN:
        shard.deletes += headers
    else:
        shard.ranges.append((headers[0], headers[-1] + b"\0"))


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
