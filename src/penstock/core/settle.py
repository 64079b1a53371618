"""What becomes of a delivery: acked, nacked, kept longer, or out of time.

Running out of time is a nack nobody sent: both put what is left back into the schedule, due at once, with
one failure more. An ack only takes messages out of their lease; nothing else says that they are done.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from heapq import heapify
from typing import NamedTuple

from msgspec.structs import replace

from penstock.core.agenda import NEVER
from penstock.core.commands import Ack, Delivery, Extend, Extended, Nack, Settle, Settled
from penstock.core.errors import Conflict, Invalid
from penstock.core.ids import OFFSET_BITS, OFFSET_MASK
from penstock.core.limits import ERROR_CHARS_MAX, Limits, check_name
from penstock.core.model import DEFAULT, Group, Lease, LeaseRun, Scheduled, Track
from penstock.core.numbers import end_of
from penstock.core.shard import Place, Shard, hold_run

NOT_LIVE = "the lease is not live: it was settled, it ran out, or it never was"
NOT_LEASED = "the message is not leased: it was settled, its lease ran out, or it was never delivered"
DAMAGED = "the message is damaged"
EXPIRED = "lease expired"
_UNSET = re.compile("0+")
_MANY = 1 << 64
"""More messages than any run has."""


class Found(NamedTuple):
    """Consecutive messages, asked for by id, in a live lease."""

    lease: Lease
    run: LeaseRun
    at: int
    """Index of the first one within the run."""
    length: int
    id: int
    """Of the first one."""


class Range(NamedTuple):
    """Consecutive ids."""

    first: int
    length: int


def check_settle(limits: Limits, command: Settle) -> None:
    """Raise unless the command's own fields are good."""
    if command.ids is None:
        if command.lease is None:
            raise Invalid("lease", "given, or else id or ids")
    elif not 1 <= len(command.ids) <= limits.batch_max:
        raise Invalid("ids", f"a list of 1 to {limits.batch_max} ids")
    if command.group is not None:
        check_name("group", command.group)


def live_lease(shard: Shard, tenant: str, name: int, group: str | None) -> Lease:
    """The live lease of that name, if it is this tenant's and, if one is named, this group's."""
    lease = shard.leases.get(name)
    if lease is None or lease.queue.tenant != tenant or (group is not None and lease.group.name != group):
        raise Conflict(NOT_LIVE)
    return lease


# Each verb for a whole lease, and for messages by id (of one lease, if one is given along).


def ack_lease(shard: Shard, lease: Lease, now: int) -> Settled:
    """Settle all of a lease as done."""
    shard.plan_sweep(lease.queue, now)
    return Settled(_end(shard, lease))


def ack_ids(shard: Shard, token: Lease | None, ids: list[Range], command: Ack, now: int) -> Settled:
    """Settle messages as done."""
    found, refused = _find_all(shard, command, token, ids)
    for each in found:
        shard.plan_sweep(each.lease.queue, now)
        _take_out(shard, each)
    return Settled(sum(each.length for each in found), refused)


def nack_lease(shard: Shard, lease: Lease, error: str | None, now: int) -> Settled:
    """Give all of a lease back with one failure more."""
    return Settled(_fail(shard, lease, list(lease.runs.values()), _short(error), now))


def nack_ids(shard: Shard, token: Lease | None, ids: list[Range], command: Nack, now: int) -> Settled:
    """Give messages back with one failure more."""
    found, refused = _find_all(shard, command, token, ids)
    by_run: dict[tuple[int, int, int], list[Found]] = {}
    for each in found:
        by_run.setdefault((each.lease.name, each.run.partition, each.run.first), []).append(each)
    error = _short(command.error)
    for parts in by_run.values():
        _cut_out(shard, parts)
        for each in parts:
            _reschedule(shard, each.lease, each.run, each.run.first + each.at, each.length, error, now)
    return Settled(sum(each.length for each in found), refused)


def put_off(shard: Shard, lease: Lease, lacking: list[Delivery]) -> None:
    """Give messages back that could not be read, one failure more, due when the lease would have ended."""
    by_run: dict[tuple[int, int], list[Found]] = {}
    for each in lacking:
        key = lease.queue.partitions[each.partition].key
        track = lease.group.tracks[key]
        held = leased_runs(shard, track, each.offset, each.offset + each.count)
        mine = ((lease, run) for other, run in held if other is lease)
        for _, run, low, high in _stretches(mine, each.offset, each.offset + each.count):
            found = Found(lease, run, low - run.first, high - low, each.first)
            by_run.setdefault((run.partition, run.first), []).append(found)
    for parts in by_run.values():
        _cut_out(shard, parts)
        for part in parts:
            run = part.run
            _reschedule(shard, lease, run, run.first + part.at, part.length, DAMAGED, run.expires_at)
    for each in lacking:
        _step_over(shard, lease, each)


def _step_over(shard: Shard, lease: Lease, lacking: Delivery) -> None:
    """Put off the rest of a damaged segment too, so that nobody meets it message by message."""
    segment, due_at = lacking.segment, lacking.expires_at
    track = lease.group.tracks[lease.queue.partitions[lacking.partition].key]
    due_before = [
        run
        for run in track.schedule
        if run.due_at < due_at and run.first >= segment.base and run.first + run.count <= segment.end
    ]
    for run in due_before:
        track.schedule.remove(run)
        shard.unschedule(lease.queue, lease.group, track, run)
    heapify(track.schedule)
    for run in due_before:
        shard.schedule(lease.queue, lease.group, track, replace(run, due_at=due_at))
    if segment.base < track.cursor < segment.end:
        rest = Scheduled(due_at, track.cursor, segment.end - track.cursor, 0, 0, DAMAGED)
        track.cursor = segment.end
        shard.touch_track(track)
        shard.schedule(lease.queue, lease.group, track, rest)


def _short(error: str | None) -> str:
    return (error or "")[:ERROR_CHARS_MAX]


def extend_lease(shard: Shard, lease: Lease, lease_ms: int | None, now: int) -> Extended:
    """Let a lease last longer, never less long than it did."""
    count = sum(run.unsettled for run in lease.runs.values())
    return Extended(_prolong(shard, lease, lease_ms, now), count)


def extend_ids(shard: Shard, token: Lease | None, ids: list[Range], command: Extend, now: int) -> Extended:
    """Let the leases of messages last longer, whole ones."""
    found, refused = _find_all(shard, command, token, ids)
    leases = {each.lease.name: each.lease for each in found}
    ends = [_prolong(shard, each, command.lease_ms, now) for each in leases.values()]
    return Extended(min(ends, default=NEVER), sum(each.length for each in found), refused)


def expire(shard: Shard, now: int) -> None:
    """End every run whose time is up. It is due again from that very instant, however late this is called."""
    while names := shard.agenda.first_due(now):
        for name in names:
            lease = shard.leases[name]
            over = [run for run in lease.runs.values() if run.expires_at == lease.due_at]
            _fail(shard, lease, over, EXPIRED, lease.due_at)


# Leases.


def _end(shard: Shard, lease: Lease) -> int:
    """Take a lease out of everything; how many messages were still in it."""
    name = lease.name
    del shard.leases[name]
    shard.agenda.remove(lease.due_at, name)
    left = 0
    tracks = lease.group.tracks
    for run in lease.runs.values():
        left += _let_go(tracks[run.partition], run, name)
    lease.ended = True
    shard.touch_lease(lease)
    return left


def _let_go(track: Track, run: LeaseRun, name: int) -> int:
    """Take a leased run off its track; how many messages were still in it."""
    if run.count == 1:
        del track.singles[run.first]
        track.leased -= 1
        return 1
    left = run.unsettled
    spans = track.spans
    at = bisect_left(spans, (run.first, run.count, name))
    assert spans[at][2] == name, "every leased run is on its track"
    del spans[at]
    track.leased -= left
    return left


def _drop_runs(shard: Shard, lease: Lease, gone: list[LeaseRun]) -> None:
    """Take runs out of a lease, and the lease away with its last one."""
    runs = lease.runs
    if len(gone) == len(runs):
        _end(shard, lease)
        return
    for run in gone:
        _let_go(lease.group.tracks[run.partition], run, lease.name)
        del runs[run.partition, run.first]
    if next(iter(runs.values())).expires_at != lease.due_at:
        _set_due(shard, lease)
    shard.touch_lease(lease)


def _set_due(shard: Shard, lease: Lease) -> None:
    """Bring ``due_at`` and the agenda in line with the runs."""
    due_at = min(run.expires_at for run in lease.runs.values())
    if due_at != lease.due_at:
        shard.agenda.remove(lease.due_at, lease.name)
        lease.due_at = due_at
        shard.agenda.add(due_at, lease.name)


def _cut_out(shard: Shard, found: list[Found]) -> None:
    """Take messages of one run out of their lease so that they can be leased anew.

    An acked message never comes back: a bit is enough. A nacked one does, so the run is cut there and no two
    leased runs of a track ever overlap.
    """
    lease, run = found[0].lease, found[0].run
    rest: list[LeaseRun] = []
    begin = 0
    for low, high in [*((each.at, each.at + each.length) for each in found), (run.count, run.count)]:
        count = low - begin
        part = replace(
            run, first=run.first + begin, count=count, settled=run.settled >> begin & (1 << count) - 1
        )
        if part.unsettled:
            rest.append(part)
        begin = high
    track = lease.group.tracks[run.partition]
    if not rest:
        _drop_runs(shard, lease, [run])
        return
    _let_go(track, run, lease.name)
    del lease.runs[run.partition, run.first]
    for part in rest:
        lease.runs[part.partition, part.first] = part
        hold_run(track, part, lease.name)
    shard.touch_lease(lease)


def _fail(shard: Shard, lease: Lease, runs: list[LeaseRun], error: str, now: int) -> int:
    """Put what is left of some runs of a lease back into the schedule."""
    failed = list(runs)
    left = [(run, list(_gaps(run))) for run in failed]
    _drop_runs(shard, lease, failed)
    count = 0
    for run, gaps in left:
        for first, length in gaps:
            _reschedule(shard, lease, run, first, length, error, now)
            count += length
    return count


def _reschedule(
    shard: Shard, lease: Lease, run: LeaseRun, first: int, count: int, error: str, now: int
) -> None:
    track = lease.group.tracks[run.partition]
    again = Scheduled(now, first, count, run.deliveries, run.failures + 1, error)
    shard.schedule(lease.queue, lease.group, track, again)
    shard.woken[lease.queue, lease.group.name, track.partition.name] = None


def _gaps(run: LeaseRun, low: int = 0, high: int | None = None) -> Iterator[tuple[int, int]]:
    """(first offset, count) of each stretch of a run that is still leased, within [low, high) of it."""
    end = run.count if high is None else high
    if low >= end:
        return
    settled = run.settled >> low & (1 << end - low) - 1
    if not settled:
        yield run.first + low, end - low
        return
    # The bits as text, lowest first: a regular expression finds the gaps in one pass, however many there are.
    bits = f"{settled:0{end - low}b}"[::-1]
    for gap in _UNSET.finditer(bits):
        yield run.first + low + gap.start(), gap.end() - gap.start()


def _prolong(shard: Shard, lease: Lease, lease_ms: int | None, now: int) -> int:
    expires_at = now + (lease_ms or min(lease.queue.options.lease_ms, shard.limits.lease_ms_max))
    for run in lease.runs.values():
        run.expires_at = max(run.expires_at, expires_at)
    if expires_at > lease.due_at:
        _set_due(shard, lease)
        shard.touch_lease(lease)
    return lease.due_at


# Ids.


def ranges(ids: list[int]) -> list[Range]:
    """The ids as consecutive ranges within one partition number each, duplicates once.

    >>> ranges([5, 6, 7]), ranges([9, 2, 3, 2]), ranges([(1 << 32) - 1, 1 << 32])
    ([Range(first=5, length=3)], [Range(first=2, length=2), Range(first=9, length=1)], \
[Range(first=4294967295, length=1), Range(first=4294967296, length=1)])
    """
    first, count = ids[0], len(ids)
    if count == 1:
        return [Range(first, 1)]
    # The usual case, a batch acked as it came: one comparison in C, no step per id.
    if (first & OFFSET_MASK) + count <= 1 << OFFSET_BITS and ids == list(range(first, first + count)):
        return [Range(first, count)]
    found: list[Range] = []
    begin = end = -1
    for each in sorted(set(ids)):
        if each == end and each & OFFSET_MASK:
            end += 1
        else:
            if end > begin:
                found.append(Range(begin, end - begin))
            begin, end = each, each + 1
    found.append(Range(begin, end - begin))
    return found


def _find_all(
    shard: Shard, command: Settle, token: Lease | None, ids: list[Range]
) -> tuple[list[Found], list[int]]:
    """The messages that are leased, and the ids of those that are not."""
    found: list[Found] = []
    refused: list[int] = []
    for wanted in ids:
        reached = wanted.first
        for each in _find(shard, command, token, wanted):
            refused += range(reached, each.id)
            reached = each.id + each.length
            found.append(each)
        refused += range(reached, wanted.first + wanted.length)
    return found, refused


def _take_out(shard: Shard, found: Found) -> None:
    """Take messages out of their lease."""
    lease, run = found.lease, found.run
    settled = run.settled | ((1 << found.length) - 1) << found.at
    if settled.bit_count() == run.count:
        _drop_runs(shard, lease, [run])
        return
    lease.group.tracks[run.partition].leased -= found.length
    run.settled = settled
    shard.touch_lease(lease)


def _find(shard: Shard, command: Settle, token: Lease | None, wanted: Range) -> Iterator[Found]:
    """The stretches of a range that are leased and that the command means, in order."""
    place = shard.places.get(wanted.first >> OFFSET_BITS)
    if place is None or place.queue.tenant != command.tenant:
        return
    first = place.first + (wanted.first & OFFSET_MASK)
    # A number that was left before it was full has ids that were never given out: they mean nothing.
    end = min(first + wanted.length, end_of(place.partition, wanted.first >> OFFSET_BITS))
    for lease, run, low, high in _meant(shard, command, token, place, first, end):
        yield Found(lease, run, low - run.first, high - low, wanted.first + low - first)


Stretch = tuple[Lease, LeaseRun, int, int]
"""Offsets [low, high) that are unsettled in a run of a live lease."""


def _meant(
    shard: Shard, command: Settle, token: Lease | None, place: Place, first: int, end: int
) -> Iterator[Stretch]:
    """The stretches of [first, end) that a command means, in order."""
    key = place.partition.key
    groups = place.queue.groups
    if token is not None:
        track = token.group.tracks.get(key)
        if track is not None and token.queue is place.queue:
            held = leased_runs(shard, track, first, end)
            yield from _stretches(((token, run) for lease, run in held if lease is token), first, end)
        return
    if command.group is None and command.owner and groups.keys() != {DEFAULT}:
        yield from _own_first(shard, command.owner, place, first, end)
    else:
        yield from _in_group(shard, groups.get(command.group or DEFAULT), key, first, end)


def _own_first(shard: Shard, owner: int, place: Place, first: int, end: int) -> list[Stretch]:
    """What this connection holds of [first, end), in any group; of the rest, what the default group holds."""
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
        yield from _stretches(leased_runs(shard, group.tracks[key], first, end), first, end)


def _stretches(runs: Iterable[tuple[Lease, LeaseRun]], first: int, end: int) -> Iterator[Stretch]:
    """What is unsettled in the runs, cut to [first, end)."""
    for lease, run in runs:
        low, high = max(first - run.first, 0), min(end - run.first, run.count)
        for gap, length in _gaps(run, low, high):
            yield lease, run, gap, gap + length


def leased_runs(shard: Shard, track: Track, first: int, end: int) -> Iterator[tuple[Lease, LeaseRun]]:
    """The leased runs of a track over [first, end), in order."""
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
    for offset in range(first, end) if track.singles else ():
        name = track.singles.get(offset)
        if name is not None:
            yield _run_at(shard, track, name, offset)


def _run_at(shard: Shard, track: Track, name: int, first: int) -> tuple[Lease, LeaseRun]:
    lease = shard.leases[name]
    return lease, lease.runs[track.partition.key, first]
