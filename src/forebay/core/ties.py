"""Ties: what has to be done when a message ends. A unique key is freed, keys are written if it died.

A message with a tie and a time to live ends when that is over, whether anybody asks for it or not: its key
shall be free, and those who depend on it shall know.
"""

from itertools import takewhile

from msgspec.structs import replace

from forebay.core import log as logs, records
from forebay.core.endings import fresh, offsets_in, settle_as, skip, unplanned
from forebay.core.leased import leased_runs
from forebay.core.model import (
    DEFAULT,
    EXPIRED,
    GONE,
    Partition,
    Queue,
    Tie,
    Track,
)
from forebay.core.shard import Ended, Shard
from forebay.core.standing import rows, rows_over, standing
from forebay.core.table import Table

NO_TIE = Tie()


def tie(shard: Shard, queue: Queue, partition: Partition, offset: int, tied: Tie) -> None:
    """Have something done when a message ends."""
    partition.ties[offset] = tied
    partition.concerned += 1
    if tied.unique_key:
        queue.uniques[tied.unique_key] = (partition.key, offset)
    queue.tied_bytes += len(tied.payload) * len(tied.keys)
    if tied.expires_at:
        shard.tied.add(tied.expires_at, (partition.key, offset))
        shard.alarm.sooner(tied.expires_at)
    shard.keep_row(queue, records.tie_key(queue.prefix, partition.key, offset), records.pack_tie(tied))


def untie(shard: Shard, queue: Queue, partition: Partition, offset: int) -> Tie:
    """Have nothing done any more when a message ends; what it was."""
    tied = partition.ties.pop(offset)
    partition.concerned -= 1
    if tied.unique_key and queue.uniques.get(tied.unique_key) == (partition.key, offset):
        del queue.uniques[tied.unique_key]
    queue.tied_bytes -= len(tied.payload) * len(tied.keys)
    if tied.expires_at:
        shard.tied.remove(tied.expires_at, (partition.key, offset))
    shard.keep_row(queue, records.tie_key(queue.prefix, partition.key, offset), None)
    return tied


def tied_over(partition: Partition, first: int, end: int) -> list[int]:
    """The offsets of [first, end) that have a tie, in order."""
    return offsets_in(partition.ties, first, end)


def free(shard: Shard, queue: Queue, key: str) -> None:
    """Have a unique key held by nobody."""
    number, offset = queue.uniques[key]
    partition = shard.places[number].partition
    rest = replace(untie(shard, queue, partition, offset), unique_key="")
    if rest != NO_TIE:
        tie(shard, queue, partition, offset, rest)


def move(
    shard: Shard, queue: Queue, partition: Partition, offset: int, successor: int, payload: bytes
) -> None:
    """What is tied to a message is tied to what took its place, with another payload."""
    if offset in partition.ties:
        tied = untie(shard, queue, partition, offset)
        if tied.keys:
            tied = replace(tied, payload=bytes(payload))
        tie(shard, queue, partition, successor, tied)
    for row in waiting_over(partition, offset, offset + 1):
        if meet(shard, queue, partition, row, offset, offset + 1):
            expect(shard, queue, partition, (successor, row[1], 1, row[3]))


# What waits for messages.

SPAN_MAX = 1_024
"""Messages in one row of what is waited for: those over an offset begin no further away."""


def waiting_over(partition: Partition, first: int, end: int) -> list[tuple[int, ...]]:
    """The rows of what waits for messages of [first, end)."""
    found = before(partition, first)
    for row in partition.dependents.since(first) if partition.dependents.size else ():
        if row[0] >= end:
            break
        found.append(row)
    return found


def before(partition: Partition, offset: int) -> list[tuple[int, ...]]:
    """The rows that begin before an offset and reach over it."""
    if not partition.spans.size:
        return []
    found: list[tuple[int, ...]] = []
    for first, dependent in partition.spans.since(max(offset - SPAN_MAX + 1, 0)):
        if first >= offset:
            break
        row = next(partition.dependents.since(first, dependent))
        if first + row[2] > offset:
            found.append(row)
    return found


def meet(shard: Shard, queue: Queue, partition: Partition, row: tuple[int, ...], low: int, high: int) -> int:
    """Have messages [low, high) of a row not waited for any more; how many of them were."""
    first, dependent, count, waiting = row
    if count == 1:
        untell(shard, queue, partition, row)
        return 1
    met = partition.met.get((first, dependent), 0)
    new = ((1 << high - low) - 1 << low - first) & ~met
    met |= new
    if met.bit_count() == count:
        untell(shard, queue, partition, row)
    elif new:
        partition.met[first, dependent] = met
        since = 0
        if partition.key in shard.unfinished:
            since = shard.unfinished[partition.key].later.get((first, dependent), 0)
        key = records.dependent_key(queue.prefix, partition.key, first, dependent)
        shard.keep_row(queue, key, records.pack_dependent(count, waiting, met, since))
    return new.bit_count()


def expect(shard: Shard, queue: Queue, partition: Partition, row: tuple[int, ...]) -> None:
    """Have something wait for messages: a row of ``Partition.dependents``."""
    first, dependent, count, waiting = row
    partition.dependents.add((first, dependent, count, waiting))
    partition.concerned += 1
    if count > 1:
        partition.spans.add((first, dependent))
    since = 0
    tellings = shard.unfinished.get(partition.key)
    if tellings is not None:
        since = tellings.later[first, dependent] = tellings.waiting[-1].serial
    key = records.dependent_key(queue.prefix, partition.key, first, dependent)
    shard.keep_row(queue, key, records.pack_dependent(count, waiting, 0, since))


def untell(shard: Shard, queue: Queue, partition: Partition, row: tuple[int, ...]) -> None:
    """Have nothing wait for messages any more."""
    partition.dependents.remove(row[0], row[1])
    partition.concerned -= 1
    if row[2] > 1:
        partition.spans.remove(row[0], row[1])
        partition.met.pop((row[0], row[1]), None)
    shard.keep_row(queue, records.dependent_key(queue.prefix, partition.key, row[0], row[1]), None)


# The end of a time to live.


def watch_ttl(shard: Shard, queue: Queue, partition: Partition, first: int, end: int) -> None:
    """Have messages that something waits for end with their time to live."""
    log = partition.log
    if not log.mixed:
        return
    for offset in range(first, end):
        if not logs.has(log, offset):
            continue
        segment = log.segments[logs.find(log, offset)]
        _, created_at, attributes = segment.run_at(offset - segment.base)
        tied = partition.ties.get(offset, NO_TIE)
        if attributes.ttl_ms and not tied.expires_at:
            if tied is not NO_TIE:
                untie(shard, queue, partition, offset)
            expires_at = created_at + attributes.ttl_ms
            tie(shard, queue, partition, offset, replace(tied, expires_at=expires_at))


def expire_tied(shard: Shard, now: int) -> None:
    """End messages with ties whose time to live is over."""
    while places := shard.tied.first_due(now):
        for key, offset in places:
            place = shard.places[key]
            _expire(shard, place.queue, place.partition, offset, now)


def _expire(shard: Shard, queue: Queue, partition: Partition, offset: int, now: int) -> None:
    group = queue.groups.get(DEFAULT)
    track = group.tracks[partition.key] if group is not None else None
    if rows_over(partition.parked, offset, offset + 1):
        for span in take_parked(shard, queue, partition, offset, offset + 1):
            for each in queue.groups.values():
                settle_as(shard, each.tracks[partition.key], *span, EXPIRED, now)
    elif track is not None:
        held = next((run for _, run in leased_runs(shard, track, offset, offset + 1)), None)
        if held is not None:
            # It is being worked on: if it comes back, it is over.
            rest = untie(shard, queue, partition, offset)
            tie(shard, queue, partition, offset, replace(rest, expires_at=max(held.expires_at, now + 1)))
            return
        _expire_in(shard, track, offset, now)
    if track is None:
        shard.ends.append(Ended(shard, queue, partition, offset, offset + 1, EXPIRED))
    # It ended, now or just before: the rest of the tie goes with that, and is not met here again.
    rest = untie(shard, queue, partition, offset)
    tie(shard, queue, partition, offset, replace(rest, expires_at=0))


def _expire_in(shard: Shard, track: Track, offset: int, now: int) -> None:
    """Settle one message of a track that waits as expired."""
    run = track.schedule.find(offset)
    if run is not None:
        shard.unschedule(track, run)
        if run.first < offset:
            shard.schedule(track, replace(run, count=offset - run.first), now)
        rest = run.first + run.count - offset - 1
        if rest:
            shard.schedule(track, replace(run, first=offset + 1, count=rest), now)
    elif any(fresh(track, offset, offset + 1)):
        skip(shard, track, offset, offset + 1)
    elif any(unplanned(track, offset, offset + 1)):
        track.unplanned -= 1
    else:
        return  # it ended otherwise
    settle_as(shard, track, offset, offset + 1, EXPIRED, now)
    shard.plan_sweep(track.queue, now)
    shard.reconsider(track, now)


def come_back(shard: Shard, track: Track, first: int, count: int, now: int) -> None:
    """Messages come back from a lease: those whose time to live is over are looked at soon."""
    queue, partition = track.queue, track.partition
    for offset in tied_over(partition, first, first + count):
        tied = partition.ties[offset]
        if tied.expires_at > now + 1 and _expired_at(partition, offset) <= now:
            untie(shard, queue, partition, offset)
            tie(shard, queue, partition, offset, replace(tied, expires_at=now + 1))


def _expired_at(partition: Partition, offset: int) -> int:
    segment = partition.log.segments[logs.find(partition.log, offset)]
    _, created_at, attributes = segment.run_at(offset - segment.base)
    return created_at + attributes.ttl_ms


# Parked messages.


def park(shard: Shard, queue: Queue, partition: Partition, first: int, count: int, unmet: int) -> None:
    """Have messages wait for so many others."""
    partition.parked.add((first, count, unmet))
    partition.parked_messages += count
    key = records.parked_key(queue.prefix, partition.key, first)
    shard.keep_row(queue, key, records.pack_numbers((count, unmet)))


def unpark(shard: Shard, queue: Queue, partition: Partition, first: int, count: int) -> None:
    """Take a run that waits for others out of those that do."""
    partition.parked.remove(first, count)
    partition.parked_messages -= count
    shard.keep_row(queue, records.parked_key(queue.prefix, partition.key, first), None)


def parked_over(partition: Partition, first: int, end: int) -> list[tuple[int, ...]]:
    """The rows of messages of [first, end) that wait for others."""
    return rows(partition.parked, first, end) if partition.parked_messages else []


def take_parked(
    shard: Shard, queue: Queue, partition: Partition, first: int, end: int
) -> list[tuple[int, int]]:
    """Take messages of [first, end) out of those that wait for others; which these are."""
    found: list[tuple[int, int]] = []
    for low, count, unmet in parked_over(partition, first, end):
        high = low + count
        unpark(shard, queue, partition, low, count)
        if low < first:
            park(shard, queue, partition, low, first - low, unmet)
        if high > end:
            park(shard, queue, partition, end, high - end, unmet)
        found.append((max(low, first), min(high, end)))
    return found


# What is no longer kept.


def trim_successors(shard: Shard, queue: Queue, partition: Partition, spans: list[tuple[int, int]]) -> None:
    """Forget what took the place of messages, if neither is kept any more."""
    if not partition.successors:
        return
    firsts = {row[0] for low, high in spans for row in _between(partition.successors, low, high)}
    firsts |= {
        partition.led_to[each] for low, high in spans for each in offsets_in(partition.led_to, low, high)
    }
    for first in sorted(firsts):
        row = partition.successors.upto(first)
        assert row is not None, "what leads somewhere has a row"
        if not logs.has(partition.log, row[1]) and not logs.has(partition.log, first):
            partition.successors.remove(*row)
            del partition.led_to[row[1]]
            shard.keep_row(queue, records.successor_key(queue.prefix, partition.key, first), None)
            if first in partition.job_ids:
                forget_job_id(shard, queue, partition, first)
    if not partition.successors:
        shard.updated.discard(partition.key)


def _between(table: Table, low: int, high: int) -> list[tuple[int, ...]]:
    return list(takewhile(lambda row: row[0] < high, table.since(low)))


def forget_gone(shard: Shard, queue: Queue, partition: Partition, spans: list[tuple[int, int]]) -> None:
    """Forget what is known of messages that are no longer kept."""
    trim_successors(shard, queue, partition, spans)
    for low, high in spans:
        take_parked(shard, queue, partition, low, high)
        if partition.concerned:
            shard.ends.append(Ended(shard, queue, partition, low, high, GONE))
        for offset in offsets_in(partition.job_ids, low, high):
            row = partition.successors.upto(offset)
            if row is None or row[0] != offset:
                forget_job_id(shard, queue, partition, offset)


def forget_job_id(shard: Shard, queue: Queue, partition: Partition, offset: int) -> None:
    """A custom id is free again."""
    name = partition.job_ids.pop(offset)
    if queue.named.get(name) == (partition.key, offset):
        del queue.named[name]
    shard.keep_row(queue, records.job_id_key(queue.prefix, partition.key, offset), None)


def forget_taken(shard: Shard, queue: Queue, partition: Partition, first: int) -> None:
    """Forget transaction ids."""
    _, ids = partition.taken.pop(first)
    for offset, name in ids:
        if partition.transactions.get(name, (-1, 0))[0] == offset:
            del partition.transactions[name]
    shard.keep_row(queue, records.taken_key(queue.prefix, partition.key, first), None)


def recheck(shard: Shard, queue: Queue, partition: Partition) -> None:
    """The work queue reads on elsewhere: see what of that which has consequences ended by that."""
    spans = [(offset, offset + 1) for offset in partition.ties]
    spans += [(row[0], row[0] + row[2]) for row in partition.dependents]
    for first, end in spans:
        for low, high, how in standing(shard, queue, partition, first, end):
            if how is not None:
                shard.ends.append(Ended(shard, queue, partition, low, high, how))
