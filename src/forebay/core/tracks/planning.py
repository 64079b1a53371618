"""Planning: put messages that are out of line into the schedule of a track."""

from collections.abc import Iterator

from msgspec.structs import replace

from forebay.core.bounds import NEVER
from forebay.core.errors import Busy
from forebay.core.log import log as logs
from forebay.core.shard.shard import Shard
from forebay.core.shard.tracks import list_ready
from forebay.core.state import Queue, Scheduled, Track
from forebay.core.structures.spans import Span, outside, overlapping

ALL = 1 << 62
"""No limit on the runs planned."""
PLANNED_AT_ONCE = 10_000
"""Messages that one command may plan for a new group."""


def finish_plan(shard: Shard, track: Track, now: int) -> None:
    """Plan the rest of a track's schedule."""
    if track.partition.key in track.group.unplanned:
        plan(shard, track, ALL, now)
        del track.group.unplanned[track.partition.key]


def check_planned(queue: Queue, name: str) -> None:
    """Raise unless a group's schedule is planned, or nearly so."""
    group = queue.groups.get(name)
    if group is not None:
        missing = sum(track.unplanned for track in group.unplanned.values())
    else:
        missing = sum(logs.count_aside(each.log, each.log.first) for each in queue.partitions.values())
    if missing > PLANNED_AT_ONCE:
        raise Busy(f"group {name} of queue {queue.name} has {missing} messages to sort first: pop from it")


def cut_scheduled(shard: Shard, track: Track, run: Scheduled, first: int, end: int, now: int) -> Span:
    """Remove [first, end) from a scheduled run; return the span removed."""
    low, high = max(first, run.first), min(end, run.first + run.count)
    shard.unschedule(track, run)
    if low > run.first:
        shard.schedule(track, replace(run, count=low - run.first), now)
    if high < run.first + run.count:
        rest = replace(run, first=high, count=run.first + run.count - high)
        shard.schedule(track, rest, now)
    return low, high


# Messages that are not in line go into the schedule of each group.


def count_unplanned(track: Track) -> int:
    """Count out-of-line messages past ``planned`` that still have to be scheduled.

    A dead letter there failed before it was ever planned: its dependency failed.
    """
    log = track.partition.log
    found = logs.count_aside(log, track.planned)
    for table in (track.outcomes, track.partition.parked, track.dead) if found else ():
        for row in overlapping(table, track.planned, NEVER):
            stretches = logs.stretches(log, max(row[0], track.planned), row[0] + row[1])
            found -= sum(part.end - part.first for part in stretches if not part.attributes.in_line)
    return found


def unplanned(track: Track, first: int, end: int) -> Iterator[Span]:
    """Yield the parts of [first, end) that are not planned yet."""
    return ((low, high) for low, high, _ in unplanned_due(track, first, end))


def unplanned_due(track: Track, first: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield the same, each with its due time."""
    log = track.partition.log
    first = max(first, track.planned)
    position = logs.find(log, first) if first < end else 0
    while first < end:
        segment = log.segments[position]
        high = min(segment.end, end)
        if segment.aside:
            run_end, created_at, attributes = segment.run_at(first - segment.base)
            high = min(segment.base + run_end, end)
            if not attributes.in_line:
                due_at = created_at + attributes.delay_ms
                yield from ((low, limit, due_at) for low, limit in _to_plan(track, first, high))
        first = high
        if first == segment.end:
            position += 1


def _to_plan(track: Track, first: int, end: int) -> Iterator[Span]:
    """Yield the parts of [first, end), out of line, that are neither settled, dead nor parked."""
    for low, high in outside(track.outcomes, first, end):
        for begin, limit in outside(track.partition.parked, low, high):
            yield from outside(track.dead, begin, limit)


def plan(shard: Shard, track: Track, most: int, now: int) -> int:
    """Schedule messages that are out of line, up to ``most`` runs; return how many."""
    log = track.partition.log
    first = max(track.planned, log.first)
    position = max(logs.find(log, first), 0)
    done = 0
    while first < log.end and done < most:
        segment = log.segments[position]
        if not segment.aside:
            first = segment.end
            position += 1
            continue
        end, created_at, attributes = segment.run_at(first - segment.base)
        end += segment.base
        if not attributes.in_line:
            done += 1
            due_at = created_at + attributes.delay_ms
            for low, high in _to_plan(track, first, end):
                track.unplanned -= high - low
                shard.schedule(track, Scheduled(due_at, low, high - low, attributes.level), now)
        first = end
        if first == segment.end:
            position += 1
    track.planned = first if first < log.end else NEVER
    if track.queue.ordered:
        list_ready(track)  # in strict order, the next message may be deliverable now
    shard.changes.touch_track(track)
    return done
