"""Leased runs of a track, and the leased messages that a command refers to."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from forebay.core.api.commands import Settle
from forebay.core.ids import OFFSET_BITS, OFFSET_MASK, Range
from forebay.core.log.numbers import end_of
from forebay.core.shard.shard import Place, Shard
from forebay.core.state import Group, Lease, LeaseRun, Track
from forebay.core.words import DEFAULT

_MANY = 1 << 64
"""More messages than any run has."""


class LeasedSlice(NamedTuple):
    """Consecutive messages of a live lease that a command refers to by id."""

    lease: Lease
    run: LeaseRun
    at: int
    """Index of the first message within the run."""
    length: int
    id: int
    """Of the first one."""

    @property
    def offset(self) -> int:
        """Of the first one."""
        return self.run.first + self.at


def find_all(
    shard: Shard, command: Settle, token: Lease | None, ids: list[Range]
) -> tuple[list[LeasedSlice], list[int]]:
    """Return the leased messages of some ids, and the ids that are not leased."""
    found: list[LeasedSlice] = []
    refused: list[int] = []
    for wanted in ids:
        reached = wanted.first
        for each in find(shard, command, token, wanted):
            refused += range(reached, each.id)
            reached = each.id + each.length
            found.append(each)
        refused += range(reached, wanted.first + wanted.length)
    return found, refused


def find(shard: Shard, command: Settle, token: Lease | None, wanted: Range) -> Iterator[LeasedSlice]:
    """Yield the leased parts of a range that the command refers to, in order."""
    place = shard.places.get(wanted.first >> OFFSET_BITS)
    if place is None or place.queue.tenant != command.tenant:
        return
    first = place.first + (wanted.first & OFFSET_MASK)
    # A number that was left before it was full has ids that were never given out: they mean nothing.
    end = min(first + wanted.length, end_of(place.partition, wanted.first >> OFFSET_BITS))
    for lease, run, low, high in _meant(shard, command, token, place, first, end):
        yield LeasedSlice(lease, run, low - run.first, high - low, wanted.first + low - first)


Stretch = tuple[Lease, LeaseRun, int, int]
"""Offsets [low, high) that are unsettled in a run of a live lease."""


def _meant(
    shard: Shard, command: Settle, token: Lease | None, place: Place, first: int, end: int
) -> Iterator[Stretch]:
    """Yield the leased parts of [first, end) that a command refers to, in order."""
    key = place.partition.key
    groups = place.queue.groups
    if token is not None:
        track = token.group.tracks.get(key)
        if track is not None and token.queue is place.queue:
            held = leased_runs(shard, track, first, end)
            yield from stretches(((token, run) for lease, run in held if lease is token), first, end)
        return
    if command.group is None and command.owner and groups.keys() != {DEFAULT}:
        yield from _own_first(shard, command.owner, place, first, end)
    else:
        yield from _in_group(shard, groups.get(command.group or DEFAULT), key, first, end)


def _own_first(shard: Shard, owner: int, place: Place, first: int, end: int) -> list[Stretch]:
    """Return what this connection holds of [first, end) in any group; for the rest, the group ``default``."""
    key = place.partition.key
    found: list[Stretch] = []
    unclaimed = [(first, end)]
    for group in place.queue.groups.values():
        rest: list[tuple[int, int]] = []
        for reached, high in unclaimed:
            for stretch in _in_group(shard, group, key, reached, high):
                if stretch[0].owner == owner:
                    found.append(stretch)
                    rest.append((reached, stretch[2]))
                    reached = stretch[3]
            rest.append((reached, high))
        unclaimed = rest
    default = place.queue.groups.get(DEFAULT)
    for low, high in unclaimed:
        found += _in_group(shard, default, key, low, high)
    return sorted(found, key=lambda stretch: stretch[2])


def _in_group(shard: Shard, group: Group | None, key: int, first: int, end: int) -> Iterator[Stretch]:
    if group is not None and first < end:
        yield from stretches(leased_runs(shard, group.tracks[key], first, end), first, end)


def stretches(runs: Iterable[tuple[Lease, LeaseRun]], first: int, end: int) -> Iterator[Stretch]:
    """Yield the unsettled parts of runs, cut to [first, end)."""
    for lease, run in runs:
        low, high = max(first - run.first, 0), min(end - run.first, run.count)
        for gap, length in run.gaps(low, high):
            yield lease, run, gap, gap + length


def leased_runs(shard: Shard, track: Track, first: int, end: int) -> Iterator[tuple[Lease, LeaseRun]]:
    """Yield the leased runs of a track that overlap [first, end), in order."""
    spans = track.spans
    low = max(bisect_right(spans, (first, _MANY, 0)) - 1, 0)
    reached = first
    for span_first, span_count, name in spans[low : bisect_left(spans, (end, 0, 0))]:
        if span_first + span_count > first:
            yield from _singles(shard, track, reached, span_first)
            yield _run_at(shard, track, name, span_first)
            reached = span_first + span_count
    yield from _singles(shard, track, reached, end)


def _singles(shard: Shard, track: Track, first: int, end: int) -> Iterator[tuple[Lease, LeaseRun]]:
    singles = track.singles
    if len(singles) < end - first:
        offsets: Iterable[int] = sorted(offset for offset in singles if first <= offset < end)
    else:
        offsets = filter(singles.__contains__, range(first, end))
    for offset in offsets:
        yield _run_at(shard, track, singles[offset], offset)


def _run_at(shard: Shard, track: Track, name: int, first: int) -> tuple[Lease, LeaseRun]:
    lease = shard.leases[name]
    return lease, lease.runs[track.partition.key, first]


def hold(shard: Shard, lease: Lease) -> None:
    """Add a lease to the indexes and timers."""
    name = lease.name
    shard.leases[name] = lease
    shard.timers.leases.add(lease.due_at, name)
    shard.timers.alarm.sooner(lease.due_at)
    tracks = lease.group.tracks
    for run in lease.runs.values():
        hold_run(tracks[run.partition], run, name)


def hold_run(track: Track, run: LeaseRun, name: int) -> None:
    """Add a leased run to the index of its track, and to its limits."""
    if run.count == 1:
        track.singles[run.first] = name
        held = 1
    else:
        insort(track.spans, (run.first, run.count, name))
        held = run.unsettled
    track.leased += held
    for limiter in track.limits:
        limiter.active += held
