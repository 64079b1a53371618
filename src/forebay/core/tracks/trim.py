"""Forget what is known about messages that are no longer kept, or are read again."""

from forebay.core.records import codec, keyspace
from forebay.core.shard.shard import Shard
from forebay.core.state import Track
from forebay.core.structures.spans import Span, overlapping
from forebay.core.structures.table import Row, Table
from forebay.core.tracks.cursor import fresh, pass_over, skip
from forebay.core.tracks.dead_letters import cut_dead, dead_letter_key, dead_over
from forebay.core.tracks.planning import cut_scheduled, unplanned


def give_up(shard: Shard, track: Track, before: int) -> None:
    """Settle unread messages of a group below an offset, without an outcome."""
    track.completed_from = 0
    for low, high in list(fresh(track, track.cursor, before)):
        skip(shard, track, low, high)
    if track.planned < before:
        track.unplanned -= sum(high - low for low, high in unplanned(track, track.planned, before))
        track.planned = before
        shard.changes.touch_track(track)


def forget(shard: Shard, track: Track, spans: list[Span], now: int) -> None:
    """Forget the state of messages that are no longer kept."""
    first = track.partition.log.first
    _cut_rows(shard, track, track.skips, 0, first)
    if track.cursor < first:
        pass_over(shard, track, first)
    if track.planned < first:
        track.planned = first
        shard.changes.touch_track(track)
    for low, high in spans:
        for run in track.schedule.over(low, high):
            cut_scheduled(shard, track, run, low, high, now)
        for dead in dead_over(track, low, high):
            cut_dead(shard, track, dead, max(low, dead.first), min(high, dead.first + dead.count))
        _cut_rows(shard, track, track.outcomes, low, high)
    if spans:
        shard.reconsider(track, now)


def _cut_rows(shard: Shard, track: Track, table: Table, low: int, high: int) -> None:
    """Remove [low, high) from the skips or the outcomes of a track."""
    for row in list(overlapping(table, low, high)):
        first, end = row[0], row[0] + row[1]
        _remove_row(shard, track, table, row)
        if first < low:
            _add_row(shard, track, table, (first, low - first, *row[2:]))
        if end > high:
            _add_row(shard, track, table, (high, end - high, *row[2:]))


def clear_outcomes(shard: Shard, track: Track, first: int, end: int) -> None:
    """Forget the outcomes of [first, end)."""
    _cut_rows(shard, track, track.outcomes, first, end)


def clear_from(shard: Shard, track: Track, begin: int) -> None:
    """Forget dead letters and outcomes from an offset on.

    What died of a dependency that may still complete stays dead: it was never delivered.
    """
    log = track.partition.log
    for dead in dead_over(track, begin, log.end):
        if dead.unmet >= 0:
            continue
        cut_dead(shard, track, dead, max(begin, dead.first), dead.first + dead.count)
    _cut_rows(shard, track, track.outcomes, begin, log.end)


def store_again(shard: Shard, track: Track) -> None:
    """Store the dead letters and outcomes of a track again after its rows were cleared."""
    for first, _ in track.dead:
        shard.changes.put_row(
            track.queue, dead_letter_key(track, first), codec.pack_dead(track.letters[first])
        )
    for row in track.outcomes:
        key = _row_key(track, track.outcomes, row[0])
        shard.changes.put_row(track.queue, key, codec.pack_numbers(row[1:]))


def _remove_row(shard: Shard, track: Track, table: Table, row: Row) -> None:
    table.remove(row[0], row[1])
    if table is track.outcomes:
        track.ended[row[2]] -= row[1]
    shard.changes.put_row(track.queue, _row_key(track, table, row[0]), None)


def _add_row(shard: Shard, track: Track, table: Table, row: Row) -> None:
    table.add(row)
    if table is track.outcomes:
        track.ended[row[2]] += row[1]
    shard.changes.put_row(track.queue, _row_key(track, table, row[0]), codec.pack_numbers(row[1:]))


def _row_key(track: Track, table: Table, first: int) -> bytes:
    key = keyspace.outcome_key if table is track.outcomes else keyspace.skip_key
    return key(track.queue.prefix, track.group.number, track.partition.key, first)
