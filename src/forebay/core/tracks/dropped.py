"""Drop single messages that have ended: their group shows them no longer, though their segment is kept.

Whole segments are dropped by ``retention.drop``. Dropped messages are outcomes of a track, without a time, so
that neighbours are one row.
"""

from collections.abc import Iterator

from forebay.core.records import keyspace
from forebay.core.shard.shard import Shard
from forebay.core.state import Track
from forebay.core.structures.spans import Span, overlapping
from forebay.core.tracks.dead_letters import cut_dead, dead_over
from forebay.core.tracks.outcomes import add_outcome, outcome_at
from forebay.core.tracks.trim import clear_outcomes
from forebay.core.words import DROPPED, DROPPED_DEAD, DROPS


def drop_completed(shard: Shard, track: Track, first: int, end: int) -> None:
    """Drop messages that were acked."""
    _drop(shard, track, first, end, DROPPED)


def drop_dead(shard: Shard, track: Track, first: int, end: int) -> None:
    """Drop messages that are dead, or were discarded."""
    for dead in dead_over(track, first, end):
        cut_dead(shard, track, dead, max(first, dead.first), min(end, dead.first + dead.count))
    clear_outcomes(shard, track, first, end)
    _drop(shard, track, first, end, DROPPED_DEAD)


def _drop(shard: Shard, track: Track, first: int, end: int, outcome: int) -> None:
    above = track.outcomes.above(end - 1)
    if above is not None and (above[0], above[2]) == (end, outcome):
        track.outcomes.remove(above[0], above[1])
        track.ended[outcome] -= above[1]
        key = keyspace.outcome_key(track.queue.prefix, track.group.number, track.partition.key, end)
        shard.changes.put_row(track.queue, key, None)
        end += above[1]
    add_outcome(shard, track, first, end, outcome, 0)


def dropped_count(track: Track) -> int:
    """Count the dropped messages of kept segments."""
    return track.ended[DROPPED] + track.ended[DROPPED_DEAD]


def dropped_over(track: Track, first: int, end: int) -> Iterator[Span]:
    """Yield the dropped parts of [first, end), in order."""
    if dropped_count(track):
        for row in overlapping(track.outcomes, first, end):
            if row[2] in DROPS:
                yield max(row[0], first), min(row[0] + row[1], end)


def is_dropped(track: Track, offset: int) -> bool:
    ended = outcome_at(track, offset) if dropped_count(track) else None
    return ended is not None and ended[0] in DROPS
