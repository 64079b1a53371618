"""Where messages stand for the work queue: still open, or ended, and how."""

from collections.abc import Iterable

from forebay.core import log as logs
from forebay.core.endings import Span, dead_over, fresh, outside, unplanned
from forebay.core.leased import leased_runs, stretches
from forebay.core.model import CANCELLED, COMPLETED, DEFAULT, DIED, Partition, Queue, Track
from forebay.core.shard import Shard
from forebay.core.table import Row, Table

Stands = tuple[int, int, int | None]
"""Messages [first, end), and how they ended; None if they have not."""


def standing(shard: Shard, queue: Queue, partition: Partition, first: int, end: int) -> list[Stands]:
    """How the messages of [first, end) stand, in order. Those no longer kept count as completed."""
    group = queue.groups.get(DEFAULT)
    if group is None:
        found = _unread(partition, first, end)
    else:
        found = _read(shard, group.tracks[partition.key], first, end)
    return list(_filled(sorted(found, key=_low), first, end))


def _low(stands: Stands) -> int:
    return stands[0]


def _filled(found: list[Stands], first: int, end: int) -> list[Stands]:
    """With what is in none of them: that was completed."""
    whole: list[Stands] = []
    for low, high, how in found:
        if low > first:
            whole.append((first, low, COMPLETED))
        whole.append((low, high, how))
        first = high
    if first < end:
        whole.append((first, end, COMPLETED))
    return whole


def _unread(partition: Partition, first: int, end: int) -> list[Stands]:
    """For a work queue that does not exist yet: all is open but what was cancelled."""
    log = partition.log
    kept = [part for part in _clipped(logs.kept_spans(log), first, end) if part[0] < part[1]]
    found: list[Stands] = []
    for low, high in kept:
        found += [(*part, None) for part in outside(partition.withdrawn, low, high)]
    return found + [(low, high, CANCELLED) for low, high in rows_over(partition.withdrawn, first, end)]


def _read(shard: Shard, track: Track, first: int, end: int) -> list[Stands]:
    waiting = [*fresh(track, first, end), *unplanned(track, first, end)]
    runs = track.schedule.over(first, end)
    waiting += _clipped(((run.first, run.first + run.count) for run in runs), first, end)
    if track.leased:
        held = stretches(leased_runs(shard, track, first, end), first, end)
        waiting += [(low, high) for _, _, low, high in held]
    waiting += rows_over(track.partition.parked, first, end)
    found: list[Stands] = [(low, high, None) for low, high in waiting]
    dead = ((each.first, each.first + each.count) for each in dead_over(track, first, end))
    found += [(low, high, DIED) for low, high in _clipped(dead, first, end)]
    for row in rows(track.outcomes, first, end):
        found.append((max(row[0], first), min(row[0] + row[1], end), row[2]))
    return found


def rows_over(table: Table, first: int, end: int) -> list[Span]:
    """What rows (first, count, ...) of a table cover of [first, end)."""
    return [(max(row[0], first), min(row[0] + row[1], end)) for row in rows(table, first, end)]


def rows(table: Table, first: int, end: int) -> list[Row]:
    """The rows (first, count, ...) of a table that have messages in [first, end)."""
    if not table.size:
        return []
    before = table.upto(first)
    if before is not None and before[0] + before[1] >= end:
        return [before]  # most often all of them are in one
    before = table.below(first)
    found = [before] if before is not None and before[0] + before[1] > first else []
    for row in table.since(first):
        if row[0] >= end:
            break
        found.append(row)
    return found


def _clipped(spans: Iterable[Span], first: int, end: int) -> list[Span]:
    return [(max(low, first), min(high, end)) for low, high in spans]
