"""Messages that come back from their lease: nack, lease expiry, undelivered and unreadable ones.

Expiry is a nack that nobody sent: both put the unsettled messages back into the schedule with one more
failure, or among the dead letters.
"""

from operator import attrgetter
from typing import NamedTuple

from msgspec.structs import replace

from forebay.core.api.commands import Delivery, Nack, Settle, Settled
from forebay.core.bounds import ERROR_CHARS_MAX, ERROR_TYPE_CHARS_MAX, NEVER, TRACEBACK_CHARS_MAX
from forebay.core.delivery import attempts, deferral, retry
from forebay.core.delivery.settle import check_settle, check_settled, cut_out, drop_runs, resolve_successors
from forebay.core.ids import Range
from forebay.core.links.expiry import come_back
from forebay.core.log import log as logs
from forebay.core.records.codec import interned
from forebay.core.shard.addresses import leased, settled_by
from forebay.core.shard.shard import Shard
from forebay.core.state import IN_LINE, Attempt, Attributes, Dead, Lease, LeaseRun, Scheduled, Track
from forebay.core.tracks.cursor import fresh, skip
from forebay.core.tracks.dead_letters import add_dead
from forebay.core.tracks.leased import LeasedSlice, find, find_all, leased_runs, stretches
from forebay.core.words import DEFERRED, REQUEUE, RETRIED, RETURNED

DAMAGED = "the message is damaged"
OUT_OF_TIME = "lease expired"
STALLED = "stalled: its consumer was not heard of in time"
STALLS_MAX = 3
"""Stalls that make a message dead."""
TRACEBACKS_MAX = 100
"""Stretches of messages of one command that keep its traceback."""
FAILED_TOO_OFTEN = "failed too often"
DELIVERED_TOO_OFTEN = "delivered too often"
ByRun = dict[tuple[int, int, int], list[LeasedSlice]]
"""Leased messages by lease, partition and first offset of their run."""
_offset = attrgetter("offset")


def nack(shard: Shard, command: Nack, now: int) -> Settled:
    check_settle(shard.limits, command)
    if command.ids is None:
        return nack_lease(shard, leased(shard, command), command, now)
    given = resolve_successors(shard, command)
    return check_settled(nack_ids(shard, *settled_by(shard, command), command, now), command, given)


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
        cut_out(shard, parts)
    _all_back(shard, [part for parts in by_run.values() for part in parts], how)
    return Settled(count, refused)


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
                    LeasedSlice(first.lease, run, at - run.first, length, 0) for at, length in run.gaps(low)
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
        cut_out(shard, parts)
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
            _give_back(
                shard,
                lease,
                over,
                _Requeued(due_at) if requeue else _Failed(OUT_OF_TIME, due_at, expired=True),
            )


def _and_behind(lease: Lease, over: list[LeaseRun]) -> list[LeaseRun]:
    """Return expired runs of a lease and, in strict order, the runs behind them."""
    lowest: dict[int, int] = {}
    for run in over:
        lowest[run.partition] = min(run.first, lowest.get(run.partition, run.first))
    return [run for run in lease.runs.values() if run.first >= lowest.get(run.partition, NEVER)]


def take_back(shard: Shard, command: Settle, wanted: Range, *, cancelled: bool = False) -> list[LeasedSlice]:
    """Remove the messages of a range from their leases, so that they can be leased again; return them.

    With ``cancelled``, their consumers learn of it when they extend.
    """
    found = list(find(shard, command, None, wanted))
    for parts in _by_run(found).values():
        lease = parts[0].lease
        lease.cancelled = lease.cancelled or cancelled
        cut_out(shard, parts)
        if cancelled and lease.ended:
            shard.remember_cancelled(lease.name, command.tenant)
    return found


# How they come back.


class _Failed(NamedTuple):
    """The delivery failed."""

    error: str
    now: int
    delay_ms: int | None = None
    """How long to wait instead of the backoff."""
    final: bool = False
    """Make it dead, however few failures it had."""
    expired: bool = False
    """Whether the lease expired, and nobody sent a nack."""
    type: str = ""
    """Type of the error, if the consumer told."""
    traceback: "Traceback | None" = None


class Traceback:
    """A traceback that many stretches of messages failed with: the first of them keep it."""

    def __init__(self, text: str) -> None:
        self._text = text[-TRACEBACK_CHARS_MAX:]  # where it was raised is at the end
        self._left = TRACEBACKS_MAX

    def take(self) -> str:
        self._left -= 1
        return self._text if self._left >= 0 else ""


class _Requeued(NamedTuple):
    """The delivery ended without a failure."""

    now: int
    behind: bool = False
    """Whether it ended because one before it failed, in strict order: then it is no stall."""


class _Undelivered(NamedTuple):
    """The delivery never reached its consumer."""

    now: int


class _Deferred(NamedTuple):
    """The consumer can't handle it yet: another one may, later."""

    why: str
    now: int
    defer_ms: int


How = _Failed | _Requeued | _Undelivered | _Deferred


def _how(command: Nack, now: int) -> How:
    if command.undelivered and command.defer_ms is not None:
        return _Deferred(command.error or "", now, command.defer_ms)
    if command.undelivered:
        return _Undelivered(now)
    return _Failed(
        _short(deferral.own(command.error or "")),
        now,
        command.delay_ms,
        command.final,
        type=interned(command.error_type[:ERROR_TYPE_CHARS_MAX]),
        traceback=Traceback(command.traceback) if command.traceback else None,
    )


def _give_back(shard: Shard, lease: Lease, runs: list[LeaseRun], how: How) -> int:
    """Return the unsettled messages of some runs of a lease to the schedule; return how many."""
    left = [
        LeasedSlice(lease, run, first - run.first, length, 0) for run in runs for first, length in run.gaps()
    ]
    drop_runs(shard, lease, runs)
    _all_back(shard, left, how)
    return sum(each.length for each in left)


def _all_back(shard: Shard, found: list[LeasedSlice], how: How) -> None:
    """Reschedule messages that left their leases. In strict order, only the first one fails or waits."""
    failed: set[tuple[int, int]] = set()
    ordered = any(each.lease.queue.ordered for each in found)
    for each in sorted(found, key=_offset) if ordered else found:
        lease, run, offset, length = each.lease, each.run, each.offset, each.length
        if isinstance(how, _Failed | _Deferred) and lease.queue.ordered:
            if (lease.name, run.partition) not in failed:
                failed.add((lease.name, run.partition))
                _come_back(shard, lease, run, offset, 1, how)
                offset, length = offset + 1, length - 1
            if length:
                failed_before = isinstance(how, _Failed)
                behind = _Requeued(how.now, behind=True) if failed_before else _Undelivered(how.now)
                _come_back(shard, lease, run, offset, length, behind)
        else:
            _come_back(shard, lease, run, offset, length, how)


def _come_back(shard: Shard, lease: Lease, run: LeaseRun, first: int, count: int, how: How) -> None:
    """Reschedule formerly leased messages, or make them dead letters."""
    track = lease.group.tracks[run.partition]
    options = lease.queue.options
    deliveries, failures, error, due_at = run.deliveries, run.failures, run.error, how.now
    died = False
    if isinstance(how, _Undelivered | _Deferred) or _is_behind(how, track, first):
        deliveries -= 1
    else:
        died = 0 < options.max_deliveries <= deliveries
    if isinstance(how, _Failed):
        attributes = logs.attributes_at(track.partition.log, first)
        if how.expired and _has_stalled(attributes, lease, how.now):
            error, died = STALLED, died or deliveries - failures >= STALLS_MAX
        else:
            failures, error = failures + 1, how.error
            died = died or how.final or 0 < retry.attempts(attributes, options) <= failures
            backoff = attributes.backoff or options.backoff
            due_at += retry.wait_ms(backoff, failures, first) if how.delay_ms is None else how.delay_ms
    elif isinstance(how, _Deferred):
        since = deferral.since(run.error) or how.now
        wait_ms = deferral.wait_ms(how.now - since, how.defer_ms)
        error, died = _short(deferral.told(since, how.why)), wait_ms is None
        due_at += wait_ms or 0
    elif isinstance(how, _Requeued) and deferral.since(error) is not None:
        error = ""  # a consumer worked on it: another deferral starts a new clock
    if died:
        error = error or (FAILED_TOO_OFTEN if isinstance(how, _Failed) else DELIVERED_TOO_OFTEN)
    kind, traceback = "", ""
    if isinstance(how, _Failed):
        kind, traceback = how.type, "" if how.traceback is None else how.traceback.take()
    if died or isinstance(how, _Failed):
        attempt = Attempt(deliveries, error, kind, traceback, lease.worker)
        attempts.keep(shard, track, first, count, attempt, how.now)
    if died:
        shard.timers.plan_sweep(lease.queue, how.now)
        past = (deliveries, failures, how.now, error, run.level, lease.leased_at)
        add_dead(shard, track, Dead(first, count, *past, type=kind))
        return
    change = _KINDS.get(type(how), RETRIED)
    shard.changes.change_log.note(change, lease.queue, lease.group.name, track.partition, first, count)
    run_again = Scheduled(due_at, first, count, run.level, deliveries, failures, error)
    shard.schedule(track, run_again, how.now)
    if track.partition.ties:
        come_back(shard, track, first, count, how.now)


_KINDS = {_Undelivered: RETURNED, _Deferred: DEFERRED}


def _is_behind(how: How, track: Track, first: int) -> bool:
    """Whether messages that can stall return behind one that failed, which is no stall of theirs."""
    is_behind = isinstance(how, _Requeued) and how.behind
    return is_behind and logs.attributes_at(track.partition.log, first).stall_ms > 0


def _has_stalled(attributes: Attributes, lease: Lease, now: int) -> bool:
    """Whether a delivery that expired has stalled: its timeout, if it has one, is not over."""
    is_over = attributes.timeout_ms and lease.leased_at and now >= lease.leased_at + attributes.timeout_ms
    return bool(attributes.stall_ms) and not is_over
