"""Extend leases, and tell their consumers of cancels."""

from forebay.core.api.commands import Extend, Extended, Settle, Settled
from forebay.core.bounds import NEVER, check_range
from forebay.core.delivery.settle import check_settle, check_settled, resolve_successors, set_due
from forebay.core.ids import Range, parse_lease
from forebay.core.log import log as logs
from forebay.core.shard.addresses import leased, locate, settled_by
from forebay.core.shard.shard import Shard
from forebay.core.state import PLAIN, Lease, LeaseRun
from forebay.core.tracks.dead_letters import dead_over
from forebay.core.tracks.leased import find_all
from forebay.core.tracks.outcomes import outcome_at
from forebay.core.words import CANCELLED, DEFAULT, DISCARDED, DROPPED_DEAD

CANCELLED_LOOKED_AT = 1_000
"""Unleased ids of one extend that are checked for a cancel."""


def extend(shard: Shard, command: Extend, now: int) -> Extended:
    check_settle(shard.limits, command)
    if command.lease_ms is not None:
        check_range("lease_ms", command.lease_ms, 1, shard.limits.lease_ms_max)
    if command.lease is not None and _was_cancelled(shard, command):
        return Extended(now, 0, command.ids or (), cancelled=True)
    if command.ids is None:
        return extend_lease(shard, leased(shard, command), command.lease_ms, now)
    given = resolve_successors(shard, command)
    done = extend_ids(shard, *settled_by(shard, command), command, now)
    command.partial = command.partial or done.cancelled
    settled = check_settled(Settled(done.count, done.refused), command, given)
    ends = done.expires_at if done.expires_at != NEVER else now
    return Extended(ends, settled.count, settled.refused, done.cancelled)


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


def _prolong(shard: Shard, lease: Lease, lease_ms: int | None, now: int) -> int:
    queue_lease_ms = min(lease.queue.options.lease_ms, shard.limits.lease_ms_max)
    is_longer = False
    for run in lease.runs.values():
        until = now + lease_ms if lease_ms is not None else _until(lease, run, queue_lease_ms, now)
        is_longer = is_longer or until > run.expires_at
        run.expires_at = max(run.expires_at, until)
    if is_longer:
        set_due(shard, lease)
        shard.changes.touch_lease(lease)
    return lease.due_at


def _until(lease: Lease, run: LeaseRun, queue_lease_ms: int, now: int) -> int:
    """Return until when a delivery is extended by itself: by its messages' timeout, or the queue's lease.

    What can stall is extended until it would have stalled, but not past its timeout.
    """
    log = lease.group.tracks[run.partition].partition.log
    attributes = PLAIN
    if log.mixed:
        # Of the first that is not settled: those before it may be kept no longer.
        first, _ = next(run.gaps())
        attributes = logs.attributes_at(log, first)
    if not attributes.stall_ms:
        return now + (attributes.timeout_ms or queue_lease_ms)
    is_limited = attributes.timeout_ms and lease.leased_at
    return min(now + attributes.stall_ms, lease.leased_at + attributes.timeout_ms if is_limited else NEVER)


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
        return ended[0] in (CANCELLED, DISCARDED, DROPPED_DEAD)
    return bool(dead_over(track, found.first, found.first + 1))


def _was_cancelled(shard: Shard, command: Settle) -> bool:
    """Whether the named lease ended recently because all of it was cancelled."""
    assert command.lease is not None
    number, name = parse_lease(command.lease)
    return number == shard.number and shard.cancelled.get(name) == command.tenant
