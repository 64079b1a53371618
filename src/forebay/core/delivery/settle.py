"""End a delivery: ack, nack, extend, or lease expiry.

Expiry is a nack that nobody sent: both put the unsettled messages back into the schedule with one more
failure, or among the dead letters. An ack only removes messages from their lease; no record says "completed".
"""

from bisect import bisect_left
from collections.abc import Iterable
from operator import attrgetter
from typing import NamedTuple

from msgspec.structs import replace

from forebay.core.api.commands import Ack, Delivery, Extend, Extended, Nack, Settle, Settled
from forebay.core.bounds import (
    DELAY_MS_MAX,
    ERROR_CHARS_MAX,
    NEVER,
    NOTES_MAX,
    Limits,
    check_name,
    check_range,
)
from forebay.core.delivery import retry
from forebay.core.delivery.limits import release_slots
from forebay.core.errors import Invalid
from forebay.core.ids import Range
from forebay.core.links.expiry import come_back
from forebay.core.log import log as logs
from forebay.core.records.codec import interned
from forebay.core.shard.addresses import locate
from forebay.core.shard.shard import Shard
from forebay.core.shard.tracks import list_ready
from forebay.core.state import IN_LINE, Dead, Lease, LeaseRun, Scheduled, Track
from forebay.core.tracks.cursor import fresh, skip
from forebay.core.tracks.dead_letters import add_dead, dead_over
from forebay.core.tracks.leased import LeasedSlice, find, find_all, gaps, hold_run, leased_runs, stretches
from forebay.core.tracks.outcomes import outcome_at
from forebay.core.words import CANCELLED, COMPLETED, DEFAULT, DISCARDED, REQUEUE, RETRIED, RETURNED, SETTLED

DAMAGED = "the message is damaged"
OUT_OF_TIME = "lease expired"
FAILED_TOO_OFTEN = "failed too often"
DELIVERED_TOO_OFTEN = "delivered too often"
CANCELLED_LOOKED_AT = 1_000
"""Unleased ids of one extend that are checked for a cancel."""
_offset = attrgetter("offset")


def check_settle(limits: Limits, command: Settle) -> None:
    """Raise unless the command's fields are valid."""
    if command.ids is None:
        if command.lease is None:
            raise Invalid("lease", "given, or else id or ids")
    elif not 1 <= len(command.ids) <= limits.batch_max:
        raise Invalid("ids", f"a list of 1 to {limits.batch_max} ids")
    if command.group is not None:
        check_name("group", command.group)
    if isinstance(command, Ack) and command.results is not None:
        if command.ids is None or len(command.results) != len(command.ids):
            raise Invalid("results", "as many as there are ids; a lease alone takes none")
        if len(command.results) > NOTES_MAX:
            raise Invalid("results", f"at most {NOTES_MAX} in one command: a queue keeps no more")
        longest = max(map(len, command.results))
        if longest > limits.payload_bytes_max:
            raise Invalid("result", f"at most {limits.payload_bytes_max} bytes; one has {longest}")
    if isinstance(command, Nack) and command.delay_ms is not None:
        check_range("delay_ms", command.delay_ms, 0, DELAY_MS_MAX)
        if command.final:
            raise Invalid("delay_ms", "left out: what is final does not come again")


# Each verb for a whole lease, and for messages by id (of one lease, if one is given along).


def ack_lease(shard: Shard, lease: Lease, now: int) -> Settled:
    """Ack a whole lease."""
    shard.timers.plan_sweep(lease.queue, now)
    for run in lease.runs.values():
        track = lease.group.tracks[run.partition]
        for first, count in gaps(run):
            _done(shard, lease, track, first, count, now)
    return Settled(_end(shard, lease))


def _done(shard: Shard, lease: Lease, track: Track, first: int, count: int, now: int) -> None:
    """Record acked messages of a lease."""
    spent_ms = now - lease.leased_at if lease.leased_at else None
    change_log = shard.changes.change_log
    change_log.note(SETTLED, lease.queue, lease.group.name, track.partition, first, count, spent_ms)
    if track.partition.links_count:
        shard.end(track, first, first + count, COMPLETED)


def ack_ids(shard: Shard, token: Lease | None, ids: list[Range], command: Ack, now: int) -> Settled:
    """Ack messages by id."""
    found, refused = find_all(shard, command, token, ids)
    for each in found:
        shard.timers.plan_sweep(each.lease.queue, now)
        track = each.lease.group.tracks[each.run.partition]
        _done(shard, each.lease, track, each.offset, each.length, now)
        _take_out(shard, each)
    return Settled(sum(each.length for each in found), refused)


def nack_lease(shard: Shard, lease: Lease, command: Nack, now: int) -> Settled:
    """Nack a whole lease."""
    return Settled(_give_back(shard, lease, list(lease.runs.values()), _how(command, now)))


def nack_ids(shard: Shard, token: Lease | None, ids: list[Range], command: Nack, now: int) -> Settled:
    """Nack messages by id."""
    found, refused = find_all(shard, command, token, ids)
    how = _how(command, now)
    count = sum(each.length for each in found)
    by_run = _with_followers(_by_run(found))
    for parts in by_run.values():
        _cut_out(shard, parts)
    _all_back(shard, [part for parts in by_run.values() for part in parts], how)
    return Settled(count, refused)


ByRun = dict[tuple[int, int, int], list[LeasedSlice]]
"""By lease, partition and first offset of the run."""


def _by_run(found: list[LeasedSlice]) -> ByRun:
    by_run: ByRun = {}
    for each in found:
        by_run.setdefault((each.lease.name, each.run.partition, each.run.first), []).append(each)
    return by_run


def _with_followers(by_run: ByRun) -> ByRun:
    """Add what returns together with nacked messages: in strict order, everything behind them."""
    lowest: dict[tuple[int, int], LeasedSlice] = {}
    for (name, partition, _), parts in by_run.items():
        if parts[0].lease.queue.ordered:
            first = lowest.get((name, partition))
            if first is None or parts[0].offset < first.offset:
                lowest[name, partition] = parts[0]
    if not lowest:
        return by_run
    found = {key: parts for key, parts in by_run.items() if key[:2] not in lowest}
    for (name, partition), first in lowest.items():
        for run in first.lease.runs.values():
            if run.partition == partition:
                low = max(first.offset - run.first, 0)
                parts = [
                    LeasedSlice(first.lease, run, at - run.first, length, 0) for at, length in gaps(run, low)
                ]
                if parts:
                    found[name, partition, run.first] = parts
    return found


def give_back(shard: Shard, lease: Lease, now: int) -> None:
    """Take back a lease whose reply could not be delivered, uncounted."""
    _give_back(shard, lease, list(lease.runs.values()), _Undelivered(now))


def put_off(shard: Shard, lease: Lease, lacking: list[Delivery], now: int) -> None:
    """Return unreadable messages with one more failure, due when the lease would have expired."""
    by_run: dict[tuple[int, int], list[LeasedSlice]] = {}
    for each in lacking:
        key = lease.queue.partitions[each.partition].key
        track = lease.group.tracks[key]
        held = leased_runs(shard, track, each.offset, each.offset + each.count)
        mine = ((lease, run) for other, run in held if other is lease)
        for _, run, low, high in stretches(mine, each.offset, each.offset + each.count):
            part = LeasedSlice(lease, run, low - run.first, high - low, each.first)
            by_run.setdefault((run.partition, run.first), []).append(part)
    found: list[LeasedSlice] = []
    for parts in by_run.values():
        parts.sort(key=_offset)
        _cut_out(shard, parts)
        found += parts
    for part in found:
        if not lease.queue.ordered:
            how = _Failed(DAMAGED, now, part.run.expires_at - now)
            _come_back(shard, lease, part.run, part.offset, part.length, how)
    if lease.queue.ordered:
        if found:
            _all_back(shard, found, _Failed(DAMAGED, now, max(found[0].run.expires_at - now, 0)))
        return
    for each in lacking:
        _step_over(shard, lease, each, now)


def _step_over(shard: Shard, lease: Lease, lacking: Delivery, now: int) -> None:
    """Delay the rest of a damaged segment too, so that pops do not fail on it message by message."""
    segment, due_at = lacking.segment, lacking.expires_at
    track = lease.group.tracks[lease.queue.partitions[lacking.partition].key]
    for run in track.schedule.over(segment.base, segment.end):
        if run.due_at < due_at and run.first >= segment.base and run.first + run.count <= segment.end:
            shard.unschedule(track, run)
            shard.schedule(track, replace(run, due_at=due_at), now)
    if segment.base < track.cursor < segment.end:
        for low, high in list(fresh(track, track.cursor, segment.end)):
            skip(shard, track, low, high)
            shard.schedule(track, Scheduled(due_at, low, high - low, IN_LINE, error=DAMAGED), now)


def _short(error: str | None) -> str:
    """Return an error as it is kept: cut, and equal texts shared."""
    return interned((error or "")[:ERROR_CHARS_MAX])


def extend_lease(shard: Shard, lease: Lease, lease_ms: int | None, now: int) -> Extended:
    """Extend a lease, never to an earlier time."""
    count = sum(run.unsettled for run in lease.runs.values())
    return Extended(_prolong(shard, lease, lease_ms, now), count, cancelled=lease.cancelled)


def extend_ids(shard: Shard, token: Lease | None, ids: list[Range], command: Extend, now: int) -> Extended:
    """Extend the whole leases of messages."""
    found, refused = find_all(shard, command, token, ids)
    leases = {each.lease.name: each.lease for each in found}
    ends = [_prolong(shard, each, command.lease_ms, now) for each in leases.values()]
    group = (token.group.name if token is not None else command.group) or DEFAULT
    asked = refused[:CANCELLED_LOOKED_AT]
    cancelled = any(_is_cancelled(shard, command.tenant, token, group, each) for each in asked)
    return Extended(min(ends, default=NEVER), sum(each.length for each in found), refused, cancelled)


def _is_cancelled(shard: Shard, tenant: str, token: Lease | None, name: str, message: int) -> bool:
    """Whether an unleased message was cancelled or is dead, so that its consumer should stop."""
    found = locate(shard, tenant, Range(message, 1))
    if found is not None and token is not None and token.queue is not found.place.queue:
        return False
    group = found.place.queue.groups.get(name) if found is not None else None
    if found is None or group is None:
        return False
    track = group.tracks[found.place.partition.key]
    ended = outcome_at(track, found.first)
    if ended is not None:
        return ended[0] in (CANCELLED, DISCARDED)
    return bool(dead_over(track, found.first, found.first + 1))


def expire(shard: Shard, now: int) -> None:
    """End every run whose time is up. What follows counts from that very instant, however late it is now."""
    while names := shard.timers.leases.first_due(now):
        for name in names:
            lease = shard.leases[name]
            shard.expired_leases += 1
            due_at = lease.due_at
            over = [run for run in lease.runs.values() if run.expires_at == due_at]
            if lease.queue.ordered:
                over = _and_behind(lease, over)
            requeue = lease.queue.options.on_lease_expiry == REQUEUE
            _give_back(shard, lease, over, _Requeued(due_at) if requeue else _Failed(OUT_OF_TIME, due_at))


def _and_behind(lease: Lease, over: list[LeaseRun]) -> list[LeaseRun]:
    """Return expired runs of a lease and, in strict order, the runs behind them."""
    lowest: dict[int, int] = {}
    for run in over:
        lowest[run.partition] = min(run.first, lowest.get(run.partition, run.first))
    return [run for run in lease.runs.values() if run.first >= lowest.get(run.partition, NEVER)]


# Leases.


def _end(shard: Shard, lease: Lease) -> int:
    """End a lease; return how many messages were still in it."""
    name = lease.name
    del shard.leases[name]
    shard.timers.leases.remove(lease.due_at, name)
    left = 0
    tracks = lease.group.tracks
    for run in lease.runs.values():
        left += _unlease(shard, tracks[run.partition], run, name)
    lease.ended = True
    shard.changes.touch_lease(lease)
    if lease.queue.closing_at:
        shard.emptied[lease.queue.prefix] = lease.queue
    if lease.queue.ordered:
        _free(shard, lease, lease.runs.values())
    return left


def _free(shard: Shard, lease: Lease, runs: Iterable[LeaseRun]) -> None:
    """Make tracks in strict order deliverable again when their lease has ended."""
    for track in (lease.group.tracks[run.partition] for run in runs):
        if not track.leased:
            list_ready(track)
            shard.changes.woken[lease.queue, lease.group.name, track.partition.name] = None


def _unlease(shard: Shard, track: Track, run: LeaseRun, name: int) -> int:
    """Remove a leased run from its track; return how many messages were still in it."""
    if shard.watched.by_partition:
        shard.watched.notify(run.partition, run.first, run.first + run.count)
    if run.count == 1:
        del track.singles[run.first]
        track.leased -= 1
        for limiter in track.limits:  # release_slots inlined: every single ack runs this
            limiter.active -= 1
            if limiter.starved or limiter is track.own_limit:
                release_slots(shard, track, 0)
        return 1
    left = run.unsettled
    spans = track.spans
    at = bisect_left(spans, (run.first, run.count, name))
    assert spans[at][2] == name, "every leased run is on its track"
    del spans[at]
    track.leased -= left
    if track.limits:
        release_slots(shard, track, left)
    return left


def _drop_runs(shard: Shard, lease: Lease, gone: list[LeaseRun]) -> None:
    """Remove runs from a lease; end the lease with its last run."""
    runs = lease.runs
    if len(gone) == len(runs):
        _end(shard, lease)
        return
    for run in gone:
        _unlease(shard, lease.group.tracks[run.partition], run, lease.name)
        del runs[run.partition, run.first]
    if next(iter(runs.values())).expires_at != lease.due_at:
        _set_due(shard, lease)
    shard.changes.touch_lease(lease)
    if lease.queue.ordered:
        _free(shard, lease, gone)


def _set_due(shard: Shard, lease: Lease) -> None:
    """Update ``due_at`` and its timer from the runs."""
    due_at = min(run.expires_at for run in lease.runs.values())
    if due_at != lease.due_at:
        shard.timers.leases.remove(lease.due_at, lease.name)
        lease.due_at = due_at
        shard.timers.leases.add(due_at, lease.name)
        shard.timers.alarm.sooner(due_at)


def _cut_out(shard: Shard, found: list[LeasedSlice]) -> None:
    """Remove messages of one run from their lease so that they can be leased again.

    An acked message never returns, so a bit marks it. A nacked one does, so its run is cut: no two leased
    runs of a track ever overlap.
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
    _unlease(shard, track, run, lease.name)
    del lease.runs[run.partition, run.first]
    for part in rest:
        lease.runs[part.partition, part.first] = part
        hold_run(track, part, lease.name)
    shard.changes.touch_lease(lease)


class _Failed(NamedTuple):
    """The delivery failed."""

    error: str
    now: int
    delay_ms: int | None = None
    """How long to wait instead of the backoff."""
    final: bool = False
    """Make it dead, however few failures it had."""


class _Requeued(NamedTuple):
    """The delivery ended without a failure."""

    now: int


class _Undelivered(NamedTuple):
    """The delivery never reached its consumer."""

    now: int


How = _Failed | _Requeued | _Undelivered


def _how(command: Nack, now: int) -> How:
    if command.undelivered:
        return _Undelivered(now)
    return _Failed(_short(command.error), now, command.delay_ms, command.final)


def _give_back(shard: Shard, lease: Lease, runs: list[LeaseRun], how: How) -> int:
    """Return the unsettled messages of some runs of a lease to the schedule; return how many."""
    left = [
        LeasedSlice(lease, run, first - run.first, length, 0) for run in runs for first, length in gaps(run)
    ]
    _drop_runs(shard, lease, runs)
    _all_back(shard, left, how)
    return sum(each.length for each in left)


def _all_back(shard: Shard, found: list[LeasedSlice], how: How) -> None:
    """Reschedule messages that left their leases. In strict order, only the first one fails."""
    failed: set[tuple[int, int]] = set()
    ordered = any(each.lease.queue.ordered for each in found)
    for each in sorted(found, key=_offset) if ordered else found:
        lease, run, offset, length = each.lease, each.run, each.offset, each.length
        if isinstance(how, _Failed) and lease.queue.ordered:
            if (lease.name, run.partition) not in failed:
                failed.add((lease.name, run.partition))
                _come_back(shard, lease, run, offset, 1, how)
                offset, length = offset + 1, length - 1
            if length:
                _come_back(shard, lease, run, offset, length, _Requeued(how.now))
        else:
            _come_back(shard, lease, run, offset, length, how)


def _come_back(shard: Shard, lease: Lease, run: LeaseRun, first: int, count: int, how: How) -> None:
    """Reschedule formerly leased messages, or make them dead letters."""
    track = lease.group.tracks[run.partition]
    options = lease.queue.options
    deliveries, failures, error, due_at = run.deliveries, run.failures, run.error, how.now
    died = False
    if isinstance(how, _Undelivered):
        deliveries -= 1
    else:
        died = 0 < options.max_deliveries <= deliveries
    if isinstance(how, _Failed):
        attributes = logs.attributes_at(track.partition.log, first)
        failures, error = failures + 1, how.error
        died = died or how.final or 0 < retry.attempts(attributes, options) <= failures
        backoff = attributes.backoff or options.backoff
        due_at += retry.wait_ms(backoff, failures, first) if how.delay_ms is None else how.delay_ms
    if died:
        shard.timers.plan_sweep(lease.queue, how.now)
        error = error or (FAILED_TOO_OFTEN if isinstance(how, _Failed) else DELIVERED_TOO_OFTEN)
        add_dead(shard, track, Dead(first, count, deliveries, failures, how.now, error, run.level))
        return
    kind = RETURNED if isinstance(how, _Undelivered) else RETRIED
    shard.changes.change_log.note(kind, lease.queue, lease.group.name, track.partition, first, count)
    run_again = Scheduled(due_at, first, count, run.level, deliveries, failures, error)
    shard.schedule(track, run_again, how.now)
    if track.partition.ties:
        come_back(shard, track, first, count, how.now)


def take_cancelled(shard: Shard, command: Settle, wanted: Range) -> list[LeasedSlice]:
    """Remove cancelled messages of a range from their leases; return them."""
    found = list(find(shard, command, None, wanted))
    for each in found:
        each.lease.cancelled = True
        _take_out(shard, each)
        if each.lease.ended:
            shard.remember_cancelled(each.lease.name, command.tenant)
    return found


def abandon(shard: Shard, track: Track) -> None:
    """Drop all leased runs of a track."""
    key = track.partition.key
    names = {name for _, _, name in track.spans} | set(track.singles.values())
    for lease in [shard.leases[name] for name in sorted(names)]:
        _drop_runs(shard, lease, [run for run in lease.runs.values() if run.partition == key])


def take_back(shard: Shard, command: Settle, wanted: Range, *, cancelled: bool = False) -> list[LeasedSlice]:
    """Remove the messages of a range from their leases, so that they can be leased again; return them.

    With ``cancelled``, their consumers learn of it when they extend.
    """
    found = list(find(shard, command, None, wanted))
    for parts in _by_run(found).values():
        lease = parts[0].lease
        lease.cancelled = lease.cancelled or cancelled
        _cut_out(shard, parts)
        if cancelled and lease.ended:
            shard.remember_cancelled(lease.name, command.tenant)
    return found


def _prolong(shard: Shard, lease: Lease, lease_ms: int | None, now: int) -> int:
    expires_at = now + (lease_ms or min(lease.queue.options.lease_ms, shard.limits.lease_ms_max))
    for run in lease.runs.values():
        run.expires_at = max(run.expires_at, expires_at)
    if expires_at > lease.due_at:
        _set_due(shard, lease)
        shard.changes.touch_lease(lease)
    return lease.due_at


def _take_out(shard: Shard, found: LeasedSlice) -> None:
    """Remove messages from their lease."""
    lease, run = found.lease, found.run
    settled = run.settled | ((1 << found.length) - 1) << found.at
    if settled.bit_count() == run.count:
        _drop_runs(shard, lease, [run])
        return
    if shard.watched.by_partition:
        shard.watched.notify(run.partition, found.offset, found.offset + found.length)
    track = lease.group.tracks[run.partition]
    track.leased -= found.length
    if track.limits:
        release_slots(shard, track, found.length)
    run.settled = settled
    shard.changes.touch_lease(lease)
