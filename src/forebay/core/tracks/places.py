"""Where messages stand for the work queue: still open, or ended, and how."""

from forebay.core.log import log as logs
from forebay.core.shard.shard import Shard
from forebay.core.state import Partition, Queue, Track
from forebay.core.structures.spans import clipped, covered, outside, overlapping
from forebay.core.tracks.cursor import fresh
from forebay.core.tracks.dead_letters import dead_over
from forebay.core.tracks.leased import leased_runs, stretches
from forebay.core.tracks.planning import unplanned
from forebay.core.words import CANCELLED, COMPLETED, DEFAULT, DIED

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
    kept = [part for part in clipped(logs.kept_spans(log), first, end) if part[0] < part[1]]
    found: list[Stands] = []
    for low, high in kept:
        found += [(*part, None) for part in outside(partition.withdrawn, low, high)]
    return found + [(low, high, CANCELLED) for low, high in covered(partition.withdrawn, first, end)]


def _read(shard: Shard, track: Track, first: int, end: int) -> list[Stands]:
    waiting = [*fresh(track, first, end), *unplanned(track, first, end)]
    runs = track.schedule.over(first, end)
    waiting += clipped(((run.first, run.first + run.count) for run in runs), first, end)
    if track.leased:
        held = stretches(leased_runs(shard, track, first, end), first, end)
        waiting += [(low, high) for _, _, low, high in held]
    waiting += covered(track.partition.parked, first, end)
    found: list[Stands] = [(low, high, None) for low, high in waiting]
    dead = ((each.first, each.first + each.count) for each in dead_over(track, first, end))
    found += [(low, high, DIED) for low, high in clipped(dead, first, end)]
    for row in overlapping(track.outcomes, first, end):
        found.append((max(row[0], first), min(row[0] + row[1], end), row[2]))
    return found
