"""Islands: segments kept for single scheduled, dead, parked or leased messages.

Such messages do not keep the log from moving on; the segments they lie in stay behind as islands.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import chain, islice

from forebay.core.log import log as logs
from forebay.core.retention.carve import is_worth, wanted
from forebay.core.retention.drop import forget_segments
from forebay.core.shard.shard import Shard
from forebay.core.state import Group, Log, Partition, Queue, Segment, Track
from forebay.core.tracks.dead_letters import next_dead
from forebay.core.words import RETIRED

ISLANDS_MAX = 1_000
"""Islands checked per sweep of a partition."""
ISLANDS_MADE_MAX = 5_000
"""Islands created per sweep of a partition; the next sweep continues."""
ISLAND_RUNS_MAX = 20_000
"""Runs of islands checked per sweep."""


def wanted_below(
    queue: Queue, partition: Partition, before: int, holding: Iterable[Group]
) -> tuple[set[int], int]:
    """Return the bases of segments to keep as islands, and how far the log may move now."""
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
    """Yield the parts from ``offset`` on of leased runs that start below it."""
    for first, count, _ in track.spans[: bisect_left(track.spans, (offset, 0, 0))]:
        if first + count > offset:
            yield offset, first + count


def _between(log: Log, low: int, high: int) -> Iterator[Segment]:
    """Yield the segments that overlap [low, high)."""
    for segment in islice(log.segments, logs.find(log, low), None):
        if segment.base >= high:
            return
        yield segment


def _next_aside(track: Track, offset: int) -> int:
    """Return the first scheduled or dead message from an offset on; ``NEVER`` if there is none."""
    return min(track.schedule.next_from(offset), next_dead(track, offset))


def sweep_islands(
    shard: Shard, queue: Queue, partition: Partition, holding: list[Group], settled_since: bool, now: int
) -> None:
    """Drop islands without wanted messages, up to ``ISLANDS_MAX`` per sweep in turn."""
    log = partition.log
    if settled_since:
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
            shard.changes.to_carve[partition.key, segment.base] = (queue, partition, segment)
        at += 1
        left -= looked
        if left <= 0:
            break
    partition.islands_left = max(partition.islands_left - (at - begin), 0)
    partition.island_at = at - len(gone)
    sink(shard, queue, partition, gone, RETIRED, now)


def sink(shard: Shard, queue: Queue, partition: Partition, gone: list[Segment], why: int, now: int) -> None:
    if gone:
        logs.sink(partition.log, gone)
        forget_segments(shard, queue, partition, gone, why, now)
