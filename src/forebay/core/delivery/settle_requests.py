"""Ack, nack and extend as commands: by lease or by ids, which may lead to several shards."""

from collections.abc import Iterable, Sequence

from forebay.core.api.commands import (
    Ack,
    Cancel,
    Extend,
    Extended,
    Move,
    Nack,
    Purge,
    Requeue,
    Settle,
    Settled,
)
from forebay.core.bounds import NEVER, check_range
from forebay.core.delivery import notes, settle
from forebay.core.delivery.settle import check_settle
from forebay.core.errors import Conflict, Invalid
from forebay.core.ids import OFFSET_BITS, Range, parse_lease
from forebay.core.shard import addresses
from forebay.core.shard.addresses import Located, first_offset
from forebay.core.shard.domain import Domain
from forebay.core.shard.shard import Shard
from forebay.core.state import Lease
from forebay.core.tracks.leased import LeasedSlice, find_all
from forebay.core.words import DEFAULT, RESULT

ByShard = tuple[Shard, Lease | None, list[Range]]
"""A shard, the lease that the command names, and the ids that lead to the shard."""


def ack(domain: Domain, command: Ack, now: int) -> Settled:
    check_settle(domain.limits, command)
    if command.ids is None:
        shard, lease = domain.leased(command)
        return settle.ack_lease(shard, lease, now)
    given = resolve_successors(domain, command)
    by_shard = domain.by_shard(command)
    if command.results is not None:
        parts = _ack_with_results(command, by_shard, now)
    else:
        parts = [settle.ack_ids(*where, command, now) for where in by_shard]
    return _together(parts, command, given)


Given = dict[int, int]
"""Given ids, by the ids of their successors."""


def resolve_successors(domain: Domain, command: Settle | Cancel | Move | Requeue | Purge) -> Given:
    """Replace the ids of updated messages by those of their successors."""
    given = command.ids
    if given is None or not domain.updated:
        return {}
    command.ids = domain.current(given)
    return {now: then for now, then in zip(command.ids, given, strict=True) if now != then}


def as_given(refused: Sequence[int], given: Given) -> Sequence[int]:
    return [given.get(each, each) for each in refused] if given else refused


def _ack_with_results(command: Ack, by_shard: list[ByShard], now: int) -> list[Settled]:
    """Ack messages and store their results."""
    assert command.ids is not None
    assert command.results is not None
    found = [(shard, find_all(shard, command, token, ids)[0]) for shard, token, ids in by_shard]
    if any(each.lease.group.name != DEFAULT for _, theirs in found for each in theirs):
        raise Invalid("result", f"left out: only the group {DEFAULT} has results")
    came_of = dict(zip(command.ids, command.results, strict=True))
    parts = [settle.ack_ids(*where, command, now) for where in by_shard]
    for shard, theirs in found:
        by_queue: dict[bytes, list[LeasedSlice]] = {}
        for each in theirs:
            by_queue.setdefault(each.lease.queue.prefix, []).append(each)
        for mine in by_queue.values():
            about = [(each.run.partition, offset) for each in mine for offset in _noted_at(shard, each)]
            results = [came_of[each.id + at] for each in mine for at in range(each.length)]
            notes.add(shard, mine[0].lease.queue, RESULT, about, results, now)
    return parts


def _noted_at(shard: Shard, found: LeasedSlice) -> Iterable[int]:
    """Return the offsets under which results of leased messages are stored."""
    place = shard.places[found.id >> OFFSET_BITS]
    if found.length > 1:  # what took the place of another lies alone
        return range(found.offset, found.offset + found.length)
    return [first_offset(shard, Located(place, found.offset, found.offset + 1, found.id - found.offset))]


def nack(domain: Domain, command: Nack, now: int) -> Settled:
    check_settle(domain.limits, command)
    if command.ids is None:
        shard, lease = domain.leased(command)
        return settle.nack_lease(shard, lease, command, now)
    given = resolve_successors(domain, command)
    parts = [settle.nack_ids(*where, command, now) for where in domain.by_shard(command)]
    return _together(parts, command, given)


def extend(domain: Domain, command: Extend, now: int) -> Extended:
    check_settle(domain.limits, command)
    if command.lease_ms is not None:
        check_range("lease_ms", command.lease_ms, 1, domain.limits.lease_ms_max)
    if command.lease is not None and _was_cancelled(domain, command):
        return Extended(now, 0, command.ids or (), cancelled=True)
    if command.ids is None:
        shard, lease = domain.leased(command)
        return settle.extend_lease(shard, lease, command.lease_ms, now)
    given = resolve_successors(domain, command)
    parts = [settle.extend_ids(*where, command, now) for where in domain.by_shard(command)]
    cancelled = any(part.cancelled for part in parts)
    command.partial = command.partial or cancelled
    together = _together([Settled(part.count, part.refused) for part in parts], command, given)
    ends = min(part.expires_at for part in parts)
    return Extended(ends if ends != NEVER else now, together.count, together.refused, cancelled)


def _was_cancelled(domain: Domain, command: Settle) -> bool:
    """Whether the named lease ended recently because all of it was cancelled."""
    assert command.lease is not None
    number, name = parse_lease(command.lease)
    return number < len(domain.shards) and domain.shards[number].cancelled.get(name) == command.tenant


def _together(parts: list[Settled], command: Settle, given: Given) -> Settled:
    """Join the replies of several shards; raise a conflict if nothing was settled."""
    count = sum(part.count for part in parts)
    if not count and not command.partial:
        raise Conflict(addresses.NOT_LEASED)
    refused = [each for part in parts for each in part.refused]
    return Settled(count, as_given(refused, given))
