"""Ack, nack and extend as commands: by lease or by ids."""

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
from forebay.core.shard.addresses import (
    NOT_LEASED,
    Located,
    current_ids,
    first_offset,
    leased,
    settled_by,
)
from forebay.core.shard.shard import Shard
from forebay.core.state import Lease
from forebay.core.tracks.leased import LeasedSlice, find_all
from forebay.core.words import DEFAULT, RESULT


def ack(shard: Shard, command: Ack, now: int) -> Settled:
    check_settle(shard.limits, command)
    if command.ids is None:
        return settle.ack_lease(shard, leased(shard, command), now)
    given = resolve_successors(shard, command)
    token, ids = settled_by(shard, command)
    if command.results is not None:
        done = _ack_with_results(shard, command, token, ids, now)
    else:
        done = settle.ack_ids(shard, token, ids, command, now)
    return _checked(done, command, given)


Given = dict[int, int]
"""Given ids, by the ids of their successors."""


def resolve_successors(shard: Shard, command: Settle | Cancel | Move | Requeue | Purge) -> Given:
    """Replace the ids of updated messages by those of their successors."""
    given = command.ids
    if given is None or not shard.updated:
        return {}
    command.ids = current_ids(shard, given)
    return {now: then for now, then in zip(command.ids, given, strict=True) if now != then}


def as_given(refused: Sequence[int], given: Given) -> Sequence[int]:
    return [given.get(each, each) for each in refused] if given else refused


def _ack_with_results(shard: Shard, command: Ack, token: Lease | None, ids: list[Range], now: int) -> Settled:
    """Ack messages and store their results."""
    assert command.ids is not None
    assert command.results is not None
    found, _ = find_all(shard, command, token, ids)
    if any(each.lease.group.name != DEFAULT for each in found):
        raise Invalid("result", f"left out: only the group {DEFAULT} has results")
    came_of = dict(zip(command.ids, command.results, strict=True))
    done = settle.ack_ids(shard, token, ids, command, now)
    by_queue: dict[bytes, list[LeasedSlice]] = {}
    for each in found:
        by_queue.setdefault(each.lease.queue.prefix, []).append(each)
    for mine in by_queue.values():
        about = [(each.run.partition, offset) for each in mine for offset in _noted_at(shard, each)]
        results = [came_of[each.id + at] for each in mine for at in range(each.length)]
        notes.add(shard, mine[0].lease.queue, RESULT, about, results, now)
    return done


def _noted_at(shard: Shard, found: LeasedSlice) -> Iterable[int]:
    """Return the offsets under which results of leased messages are stored."""
    place = shard.places[found.id >> OFFSET_BITS]
    if found.length > 1:  # what took the place of another lies alone
        return range(found.offset, found.offset + found.length)
    return [first_offset(shard, Located(place, found.offset, found.offset + 1, found.id - found.offset))]


def nack(shard: Shard, command: Nack, now: int) -> Settled:
    check_settle(shard.limits, command)
    if command.ids is None:
        return settle.nack_lease(shard, leased(shard, command), command, now)
    given = resolve_successors(shard, command)
    return _checked(settle.nack_ids(shard, *settled_by(shard, command), command, now), command, given)


def extend(shard: Shard, command: Extend, now: int) -> Extended:
    check_settle(shard.limits, command)
    if command.lease_ms is not None:
        check_range("lease_ms", command.lease_ms, 1, shard.limits.lease_ms_max)
    if command.lease is not None and _was_cancelled(shard, command):
        return Extended(now, 0, command.ids or (), cancelled=True)
    if command.ids is None:
        return settle.extend_lease(shard, leased(shard, command), command.lease_ms, now)
    given = resolve_successors(shard, command)
    done = settle.extend_ids(shard, *settled_by(shard, command), command, now)
    command.partial = command.partial or done.cancelled
    settled = _checked(Settled(done.count, done.refused), command, given)
    ends = done.expires_at if done.expires_at != NEVER else now
    return Extended(ends, settled.count, settled.refused, done.cancelled)


def _was_cancelled(shard: Shard, command: Settle) -> bool:
    """Whether the named lease ended recently because all of it was cancelled."""
    assert command.lease is not None
    number, name = parse_lease(command.lease)
    return number == shard.number and shard.cancelled.get(name) == command.tenant


def _checked(done: Settled, command: Settle, given: Given) -> Settled:
    """Return the reply with ids as they were given; raise a conflict if nothing was settled."""
    if not done.count and not command.partial:
        raise Conflict(NOT_LEASED)
    return Settled(done.count, as_given(done.refused, given))
