"""How runs of a track end otherwise than by an ack: outcomes, dead letters, and what the cursor skips."""

from collections.abc import Iterator, Mapping
from itertools import chain

from msgspec.structs import replace

from forebay.core import log as logs, records
from forebay.core.agenda import NEVER
from forebay.core.happenings import DEAD
from forebay.core.model import DIED, DISCARDED, Dead, Track
from forebay.core.schedule import Scheduled
from forebay.core.shard import Shard
from forebay.core.table import Row, Table
from forebay.core.tracks import list_ready

Span = tuple[int, int]
"""Offsets [first, end)."""


def settle_as(
    shard: Shard, track: Track, first: int, end: int, outcome: int, now: int, *, told: bool = False
) -> None:
    """Note that messages of a group were settled, and how; ``told`` says that it happened long ago."""
    if not told:
        shard.happened.note(outcome, track.queue, track.group.name, track.partition, first, end - first)
    if shard.watched:
        shard.tell(track.partition.key, first, end)
    if track.partition.concerned:
        shard.end(track, first, end, outcome)
    track.ended[outcome] += end - first
    before = track.outcomes.below(first)
    if before is not None and before[0] + before[1] == first and before[2:] == (outcome, now):
        track.outcomes.remove(before[0], before[1])
        first = before[0]
    track.outcomes.add((first, end - first, outcome, now))
    key = records.outcome_key(track.queue.prefix, track.group.number, track.partition.key, first)
    shard.keep_row(track.queue, key, records.pack_numbers((end - first, outcome, now)))


def outcome_at(track: Track, offset: int) -> tuple[int, int] | None:
    """The outcome of a message and its time, if it has one."""
    row = track.outcomes.upto(offset)
    return (row[2], row[3]) if row is not None and offset < row[0] + row[1] else None


def skip(shard: Shard, track: Track, first: int, end: int) -> None:
    """Have the cursor pass fresh messages, which became something else."""
    track.aside += end - first
    if first == track.cursor:
        pass_over(shard, track, end)
        return
    before = track.skips.below(first)
    if before is not None and before[0] + before[1] == first:
        track.skips.remove(*before)
        first = before[0]
    track.skips.add((first, end - first))
    shard.keep_row(track.queue, _skip_key(track, first), records.pack_numbers((end - first,)))


def pass_over(shard: Shard, track: Track, end: int) -> None:
    """Move the cursor over messages that are not fresh."""
    track.aside -= end - track.cursor
    track.cursor = end
    shard.touch_track(track)


def pass_skips(shard: Shard, track: Track) -> None:
    """Move the cursor over the skips it stands at."""
    while track.skips:
        first, count = track.skips.head()
        if first > track.cursor:
            return
        assert first == track.cursor, "the cursor never stands within a skip"
        track.skips.remove(first, count)
        shard.keep_row(track.queue, _skip_key(track, first), None)
        pass_over(shard, track, first + count)


def _skip_key(track: Track, first: int) -> bytes:
    return records.skip_key(track.queue.prefix, track.group.number, track.partition.key, first)


def outside(table: Table, first: int, end: int) -> Iterator[Span]:
    """The parts of [first, end) that no row (first, count, ...) of a table covers."""
    before = table.below(first + 1)
    if before is not None:
        first = max(first, before[0] + before[1])
    for row in table.since(first) if table else ():
        if row[0] >= end or first >= end:
            break
        if row[0] > first:
            yield first, row[0]
        first = row[0] + row[1]
    if first < end:
        yield first, end


def union(parts: list[Span]) -> list[Span]:
    """Spans without overlap, in order.

    >>> union([(5, 7), (1, 3), (2, 4), (7, 8)])
    [(1, 4), (5, 8)]
    """
    found: list[Span] = []
    for low, high in sorted(parts):
        if found and low <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return found


def fresh(track: Track, first: int, end: int) -> Iterator[Span]:
    """The parts of [first, end) that are fresh."""
    for low, high in logs.in_line(track.partition.log, max(first, track.cursor), end):
        yield from outside(track.skips, low, high)


def cut(shard: Shard, track: Track, run: Scheduled, first: int, end: int, now: int) -> Span:
    """Take [first, end) out of a scheduled run; what of it that was."""
    low, high = max(first, run.first), min(end, run.first + run.count)
    shard.unschedule(track, run)
    if low > run.first:
        shard.schedule(track, replace(run, count=low - run.first), now)
    if high < run.first + run.count:
        rest = replace(run, first=high, count=run.first + run.count - high)
        shard.schedule(track, rest, now)
    return low, high


# Dead letters.


def bury(shard: Shard, track: Track, run: Dead) -> None:
    """Keep a run as dead letters, or discard it if its queue keeps none."""
    shard.happened.note(DEAD, track.queue, track.group.name, track.partition, run.first, run.count)
    if not track.queue.options.dead_letters:
        settle_as(shard, track, run.first, run.first + run.count, DISCARDED, run.dead_at)
    else:
        shard.end(track, run.first, run.first + run.count, DIED)
        keep_dead(shard, track, run)


def keep_dead(shard: Shard, track: Track, run: Dead) -> None:
    """Put a run among the dead letters."""
    if shard.watched:
        shard.tell(track.partition.key, run.first, run.first + run.count)
    track.dead.add((run.first, run.count))
    track.letters[run.first] = run
    track.dead_messages += run.count
    shard.keep_row(track.queue, _dead_key(track, run.first), records.pack_dead(run))


def dig_up(shard: Shard, track: Track, run: Dead) -> None:
    """Take a run out of the dead letters."""
    track.dead.remove(run.first, run.count)
    del track.letters[run.first]
    track.dead_messages -= run.count
    shard.keep_row(track.queue, _dead_key(track, run.first), None)


def next_dead(track: Track, offset: int) -> int:
    """The first dead letter from an offset on; ``NEVER`` if there is none."""
    row = track.dead.upto(offset)
    if row is not None and row[0] + row[1] > offset:
        return offset
    row = track.dead.above(offset)
    return row[0] if row is not None else NEVER


def dead_over(track: Track, first: int, end: int) -> list[Dead]:
    """The runs of dead letters that have messages in [first, end), by offset."""
    found: list[Dead] = []
    before = track.dead.below(first)
    if before is not None and before[0] + before[1] > first:
        found.append(track.letters[before[0]])
    for row in track.dead.since(first):
        if row[0] >= end:
            break
        found.append(track.letters[row[0]])
    return found


def _dead_key(track: Track, first: int) -> bytes:
    return records.dead_key(track.queue.prefix, track.group.number, track.partition.key, first)


def cut_dead(shard: Shard, track: Track, run: Dead, low: int, high: int) -> None:
    """Take [low, high) out of a run of dead letters."""
    now_dead = track.letters.get(run.first)
    if now_dead is None or low >= run.first + now_dead.count:
        # An earlier part of the same command cut it: what is left begins further up.
        (now_dead,) = dead_over(track, low, low + 1)
    dig_up(shard, track, now_dead)
    if low > now_dead.first:
        keep_dead(shard, track, replace(now_dead, count=low - now_dead.first))
    end = now_dead.first + now_dead.count
    if high < end:
        keep_dead(shard, track, replace(now_dead, first=high, count=end - high))


# Messages that are not in line go into the schedule of each group.


def count_unplanned(track: Track) -> int:
    """Messages that are not in line, past ``planned``, and shall be put into the schedule.

    What is dead there failed before it could be delivered: all else is fresh or waits to be planned.
    """
    log = track.partition.log
    found = logs.count_aside(log, track.planned)
    for table in (track.outcomes, track.partition.parked, track.dead) if found else ():
        before = table.below(track.planned)
        for row in chain([before] if before is not None else [], table.since(track.planned)):
            stretches = logs.stretches(log, max(row[0], track.planned), row[0] + row[1])
            found -= sum(part.end - part.first for part in stretches if not part.attributes.in_line)
    return found


def unplanned(track: Track, first: int, end: int) -> Iterator[Span]:
    """The parts of [first, end) that shall be put into the schedule and are not there yet."""
    return ((low, high) for low, high, _ in unplanned_due(track, first, end))


def unplanned_due(track: Track, first: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The same, each with when it is due."""
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
    """The parts of [first, end), not in line, that a group shall have: not settled, dead or parked."""
    for low, high in outside(track.outcomes, first, end):
        for begin, limit in outside(track.partition.parked, low, high):
            yield from outside(track.dead, begin, limit)


def plan(shard: Shard, track: Track, most: int, now: int) -> int:
    """Put messages that are not in line into the schedule, up to so many runs; how many it was."""
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
        list_ready(track)  # what it stood before may be next
    shard.touch_track(track)
    return done


# What became of messages that are no longer kept.


def give_up(shard: Shard, track: Track, before: int) -> None:
    """Settle for a group, without a trace, what it has not read below an offset."""
    for low, high in list(fresh(track, track.cursor, before)):
        skip(shard, track, low, high)
    if track.planned < before:
        track.unplanned -= sum(high - low for low, high in unplanned(track, track.planned, before))
        track.planned = before
        shard.touch_track(track)


def forget(shard: Shard, track: Track, spans: list[Span], now: int) -> None:
    """Forget what became of messages that are no longer kept."""
    first = track.partition.log.first
    _cut_rows(shard, track, track.skips, 0, first)
    if track.cursor < first:
        pass_over(shard, track, first)
    if track.planned < first:
        track.planned = first
        shard.touch_track(track)
    for low, high in spans:
        for run in track.schedule.over(low, high):
            cut(shard, track, run, low, high, now)
        for dead in dead_over(track, low, high):
            cut_dead(shard, track, dead, max(low, dead.first), min(high, dead.first + dead.count))
        _cut_rows(shard, track, track.outcomes, low, high)
    if spans:
        shard.reconsider(track, now)


def _cut_rows(shard: Shard, track: Track, table: Table, low: int, high: int) -> None:
    """Take [low, high) out of the skips or the outcomes of a track."""
    before = table.below(low)
    rows = [before] if before is not None and before[0] + before[1] > low else []
    for row in table.since(low):
        if row[0] >= high:
            break
        rows.append(row)
    for row in rows:
        first, end = row[0], row[0] + row[1]
        _remove_row(shard, track, table, row)
        if first < low:
            _add_row(shard, track, table, (first, low - first, *row[2:]))
        if end > high:
            _add_row(shard, track, table, (high, end - high, *row[2:]))


def clear_from(shard: Shard, track: Track, begin: int) -> None:
    """Forget what became of messages from an offset on."""
    log = track.partition.log
    for dead in dead_over(track, begin, log.end):
        cut_dead(shard, track, dead, max(begin, dead.first), dead.first + dead.count)
    _cut_rows(shard, track, track.outcomes, begin, log.end)


def keep_anew(shard: Shard, track: Track) -> None:
    """Keep the dead letters and outcomes of a track after everything of it was cleared."""
    for first, _ in track.dead:
        shard.keep_row(track.queue, _dead_key(track, first), records.pack_dead(track.letters[first]))
    for row in track.outcomes:
        key = _row_key(track, track.outcomes, row[0])
        shard.keep_row(track.queue, key, records.pack_numbers(row[1:]))


def _remove_row(shard: Shard, track: Track, table: Table, row: Row) -> None:
    table.remove(row[0], row[1])
    if table is track.outcomes:
        track.ended[row[2]] -= row[1]
    shard.keep_row(track.queue, _row_key(track, table, row[0]), None)


def _add_row(shard: Shard, track: Track, table: Table, row: Row) -> None:
    table.add(row)
    if table is track.outcomes:
        track.ended[row[2]] += row[1]
    shard.keep_row(track.queue, _row_key(track, table, row[0]), records.pack_numbers(row[1:]))


def _row_key(track: Track, table: Table, first: int) -> bytes:
    key = records.outcome_key if table is track.outcomes else records.skip_key
    return key(track.queue.prefix, track.group.number, track.partition.key, first)


def offsets_in(offsets: Mapping[int, object], first: int, end: int) -> list[int]:
    """Those of some offsets that are in [first, end), in order."""
    if len(offsets) < end - first:
        return sorted(offset for offset in offsets if first <= offset < end)
    return list(filter(offsets.__contains__, range(first, end)))
