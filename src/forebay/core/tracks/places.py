"""The six places of a message, and every legal move between them.

For each group, at every instant, a message is in exactly one place. ``MOVES`` is the one table of how it gets
from place to place; docs/ARCHITECTURE.md draws it. ``spans_in`` says which messages are in a place,
``take_out`` takes messages out of the places that a verb may take them from.
"""

from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from typing import NamedTuple

from forebay.core.log import log as logs
from forebay.core.shard.shard import Shard
from forebay.core.state import IN_LINE, Partition, Queue, Track
from forebay.core.structures.spans import Span, clipped, covered, outside, overlapping
from forebay.core.tracks.cursor import fresh, skip
from forebay.core.tracks.leased import leased_runs, stretches
from forebay.core.tracks.planning import cut_scheduled, unplanned, unplanned_due
from forebay.core.words import CANCELLED, COMPLETED, DEFAULT, DIED, DISCARDED, DROPPED, DROPPED_DEAD

FRESH, LEASED, SCHEDULED, PARKED, DEAD, SETTLED = PLACES = (
    "fresh",
    "leased",
    "scheduled",
    "parked",
    "dead",
    "settled",
)
NEW = "new"
"""Where a message comes from when it is pushed."""

MOVES: dict[tuple[str, str], tuple[str, ...]] = {
    (NEW, FRESH): ("push",),
    (NEW, SCHEDULED): ("push",),
    (NEW, PARKED): ("push",),
    (FRESH, LEASED): ("pop",),
    (FRESH, SCHEDULED): ("move", "put off"),
    (FRESH, DEAD): ("discard",),
    (FRESH, SETTLED): ("cancel", "clean", "evict", "expire", "retention", "seek"),
    (SCHEDULED, LEASED): ("pop",),
    (SCHEDULED, SCHEDULED): ("move", "promote", "put off"),
    (SCHEDULED, DEAD): ("discard",),
    (SCHEDULED, SETTLED): ("cancel", "clean", "evict", "expire", "retention", "seek"),
    (LEASED, SETTLED): ("ack", "cancel", "seek"),
    (LEASED, SCHEDULED): ("nack", "lease expiry", "give back", "put off", "move", "seek"),
    (LEASED, DEAD): ("nack", "lease expiry", "put off", "discard"),
    (PARKED, SCHEDULED): ("release",),
    (PARKED, DEAD): ("dependency failed",),
    (PARKED, SETTLED): ("cancel", "clean", "expire", "retention", "dependency failed"),
    (DEAD, SCHEDULED): ("requeue", "seek"),
    (DEAD, PARKED): ("requeue", "revive"),
    (SETTLED, PARKED): ("revive",),
    (DEAD, SETTLED): ("purge", "clean", "retention", "cleanup"),
    (LEASED, FRESH): ("seek",),
    (SCHEDULED, FRESH): ("seek",),
    (DEAD, FRESH): ("seek",),
    (SETTLED, FRESH): ("seek",),
    (SETTLED, SCHEDULED): ("seek", "revive"),
}
"""Which verbs move a message from one place to another. A move that is not here never happens.

``put off`` is what happens to messages whose body can't be read. ``revive`` is what a requeue does to those
that died of a requeued message, and to what died so in groups where it counts as cancelled. ``take_out``
serves the verbs that end or move whatever they find; a pop, an eviction and a clean take a bounded number of
runs in an order of their own.
"""

SOURCES: dict[str, frozenset[str]] = {
    verb: frozenset(source for (source, _), verbs in MOVES.items() if verb in verbs)
    for verb in {verb for verbs in MOVES.values() for verb in verbs}
}
"""The places that a verb takes messages from."""


def spans_in(shard: Shard, track: Track, place: str, first: int, end: int) -> Iterator[Span]:
    """Yield the parts of [first, end) that are in a place, in order. Nothing may change meanwhile."""
    match place:
        case "fresh":
            return fresh(track, first, end)
        case "leased":
            held = stretches(leased_runs(shard, track, first, end), first, end) if track.leased else ()
            return ((low, high) for _, _, low, high in held)
        case "scheduled":
            runs = ((run.first, run.first + run.count) for run in track.schedule.each_over(first, end))
            return merge(clipped(runs, first, end), unplanned(track, first, end))
        case "parked":
            return covered(track.partition.parked, first, end)
        case "dead":
            return covered(track.dead, first, end)
        case "settled":
            return _rest(shard, track, first, end)
    raise AssertionError(f"there is no place {place!r}")


def _rest(shard: Shard, track: Track, first: int, end: int) -> Iterator[Span]:
    """Yield what is in none of the other places: that is what settled means."""
    others = (spans_in(shard, track, place, first, end) for place in PLACES if place != SETTLED)
    for low, high in merge(*others):
        if low > first:
            yield first, low
        first = high
    if first < end:
        yield first, end


def is_in(shard: Shard, track: Track, place: str, offset: int) -> bool:
    """Whether a message is in a place."""
    return any(spans_in(shard, track, place, offset, offset + 1))


class Taken(NamedTuple):
    """Consecutive messages that were taken out of one place, with their history."""

    first: int
    length: int
    due_at: int
    level: int = IN_LINE
    deliveries: int = 0
    failures: int = 0
    error: str = ""
    leased_at: int = 0
    """When its delivery began, if it was leased."""

    @property
    def span(self) -> Span:
        return self.first, self.first + self.length


TakeLeased = Callable[[int, int], Iterable[Taken]]
"""Takes the leased messages of [first, end) out of their leases."""


def _none(first: int, end: int) -> Iterable[Taken]:
    return ()


def take_out(
    shard: Shard,
    track: Track,
    verb: str,
    first: int,
    end: int,
    now: int,
    *,
    leased: TakeLeased = _none,
    due_after: int = -1,
) -> list[Taken]:
    """Take the messages of [first, end) out of every place that ``verb`` may take them from.

    Parked messages are not taken: they are parked in every group at once (``tracks.parked``). Of scheduled
    messages, only those due after ``due_after`` are taken.
    """
    places = SOURCES[verb]
    taken: list[Taken] = []
    if FRESH in places:
        for low, high in list(fresh(track, first, end)):
            skip(shard, track, low, high)
            taken.append(Taken(low, high - low, now))
    if SCHEDULED in places:
        for run in track.schedule.over(first, end):
            if run.due_at > due_after:
                low, high = cut_scheduled(shard, track, run, first, end, now)
                past = (run.deliveries, run.failures, run.error)
                taken.append(Taken(low, high - low, run.due_at, run.level, *past))
    if LEASED in places:
        taken += leased(first, end)
    if SCHEDULED in places:
        # Not in the schedule yet: planning must pass over them. Callers that need their level plan first.
        for low, high, due_at in list(unplanned_due(track, first, end)):
            if due_at > due_after:
                track.unplanned -= high - low
                taken.append(Taken(low, high - low, due_at))
    return taken


# How messages of the work queue ended.

Stands = tuple[int, int, int | None]
"""Messages [first, end), and how they ended; None if they have not."""


def standing(shard: Shard, queue: Queue, partition: Partition, first: int, end: int) -> list[Stands]:
    """Return how the messages of [first, end) ended, in order. Messages no longer kept count as completed."""
    group = queue.groups.get(DEFAULT)
    if group is None:
        found = _unread(partition, first, end)
    else:
        found = _read(shard, group.tracks[partition.key], first, end)
    return _filled(sorted(found, key=_low), first, end)


def _low(stands: Stands) -> int:
    return stands[0]


def _filled(found: list[Stands], first: int, end: int) -> list[Stands]:
    """Add the gaps: what has no other end was completed."""
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
    """The same before the group ``default`` exists: everything is open but what was cancelled."""
    kept = [part for part in clipped(logs.kept_spans(partition.log), first, end) if part[0] < part[1]]
    found: list[Stands] = []
    for low, high in kept:
        found += [(*part, None) for part in outside(partition.withdrawn, low, high)]
    return found + [(low, high, CANCELLED) for low, high in covered(partition.withdrawn, first, end)]


def _read(shard: Shard, track: Track, first: int, end: int) -> list[Stands]:
    found: list[Stands] = []
    for place in (FRESH, SCHEDULED, LEASED, PARKED):
        found += [(low, high, None) for low, high in spans_in(shard, track, place, first, end)]
    found += [(low, high, DIED) for low, high in spans_in(shard, track, DEAD, first, end)]
    for row in overlapping(track.outcomes, first, end):
        how = _BEFORE.get(row[2], row[2])
        found.append((max(row[0], first), min(row[0] + row[1], end), how))
    return found


_BEFORE = {DROPPED: COMPLETED, DROPPED_DEAD: DISCARDED}
"""How messages ended that were dropped since."""
NOWHERE = (1 << 62, 1 << 62)
"""Past the end of every log."""


def completed(shard: Shard, track: Track, at: int) -> Iterator[tuple[int, int, bool]]:
    """Yield the completed messages of a track from an offset on, and, with False, the others between.

    They are settled without an outcome, and in none of the other places.
    """
    log = track.partition.log
    open_or_dead = [place for place in PLACES if place != SETTLED]
    others: Iterator[Span] = merge(
        *(spans_in(shard, track, place, at, log.end) for place in open_or_dead),
        covered(track.outcomes, at, log.end),
    )
    low, high = next(others, NOWHERE)
    for reached, end in logs.kept_spans(log):
        if end <= at:
            continue
        reached = max(reached, at)
        while low < end:
            if low > reached:
                yield reached, low, True
            if high > reached:
                yield max(low, reached), min(high, end), False
            reached = max(reached, high)
            if high > end:
                break
            low, high = next(others, NOWHERE)
        if reached < end:
            yield reached, end, True
