"""From ids and lease tokens to queues, partitions and offsets."""

from itertools import islice
from typing import NamedTuple

from forebay.core.api.commands import Settle
from forebay.core.errors import Conflict, Invalid, NotFound
from forebay.core.ids import OFFSET_BITS, OFFSET_MASK, Range, parse_lease, ranges
from forebay.core.log import log as logs
from forebay.core.log.numbers import end_of, id_at
from forebay.core.shard.shard import Place, Shard
from forebay.core.state import Lease


class Located(NamedTuple):
    """A located range of ids: kept offsets [first, end) of a partition."""

    place: Place
    first: int
    end: int
    shift: int
    """Id minus offset."""


def locate(shard: Shard, tenant: str, wanted: Range) -> Located | None:
    """Locate a range of ids; None if nothing of it is kept."""
    place = shard.places.get(wanted.first >> OFFSET_BITS)
    if place is None or place.queue.tenant != tenant:
        return None
    offset = place.first + (wanted.first & OFFSET_MASK)
    end = min(offset + wanted.length, end_of(place.partition, wanted.first >> OFFSET_BITS))
    log = place.partition.log
    first = max(offset, log.first)
    if offset < log.first and logs.has(log, offset):
        first, end = offset, min(end, log.segments[logs.find(log, offset)].end)
    return Located(place, first, end, wanted.first - offset) if first < end else None


def offset_of(shard: Shard, message: int) -> int:
    """Return the offset of an id, kept or not."""
    return shard.places[message >> OFFSET_BITS].first + (message & OFFSET_MASK)


NOT_KEPT = "there is no such message, or it is no longer kept"


def require(shard: Shard, tenant: str, message: int) -> Located:
    """Locate a message; raise if it is not kept."""
    where = locate(shard, tenant, Range(message, 1))
    if where is None:
        raise NotFound(NOT_KEPT)
    return where


def first_offset(shard: Shard, where: Located) -> int:
    """Return the offset that a message is shown under: that of the first, if it was updated."""
    origin = logs.attributes_at(where.place.partition.log, where.first).origin
    return offset_of(shard, origin[0]) if origin is not None else where.first


def split(shard: Shard, wanted_ranges: list[Range]) -> list[Range]:
    """Cut ranges at the borders of islands, so that each is kept whole or not at all."""
    found: list[Range] = []
    for wanted in wanted_ranges:
        place = shard.places.get(wanted.first >> OFFSET_BITS)
        offset = place.first + (wanted.first & OFFSET_MASK) if place is not None else 0
        if place is None or not place.partition.log.islands or offset >= place.partition.log.first:
            found.append(wanted)
            continue
        log, end = place.partition.log, offset + wanted.length
        shift = wanted.first - offset
        edges: list[int] = []
        for island in islice(log.segments, max(logs.find(log, offset), 0), log.islands):
            if island.base >= end:
                break
            edges += (island.base, island.end)
        for edge in (*edges, log.first):
            if offset < edge < end:
                found.append(Range(offset + shift, edge - offset))
                offset = edge
        found.append(Range(offset + shift, end - offset))
    return found


NOT_LIVE = "the lease is not live: it was settled, cancelled or moved, it ran out, or it never was"
NOT_LEASED = "not leased: settled, cancelled, moved, its lease ran out, or it was never delivered"


def live_lease(shard: Shard, tenant: str, name: int, group: str | None) -> Lease:
    """Return a live lease of a tenant by name; raise if it is not live, or of another group."""
    lease = shard.leases.get(name)
    if lease is None or lease.queue.tenant != tenant or (group is not None and lease.group.name != group):
        raise Conflict(NOT_LIVE)
    return lease


def leased(shard: Shard, command: Settle) -> Lease:
    """Return the live lease that a command names. A lease of another shard is not live."""
    assert command.lease is not None
    number, name = parse_lease(command.lease)
    if number != shard.number:
        raise Conflict(NOT_LIVE)
    return live_lease(shard, command.tenant, name, command.group)


def wanted(shard: Shard, ids: list[int]) -> list[Range]:
    """Return ids as ranges, each kept whole or not at all. Ids of other shards are missing here."""
    return split(shard, ranges(ids))


def settled_by(shard: Shard, command: Settle) -> tuple[Lease | None, list[Range]]:
    """Return the lease that a command names, and the ids that it settles."""
    assert command.ids is not None
    if command.lease is not None:
        return leased(shard, command), ranges(command.ids)
    found = wanted(shard, command.ids)
    for each in found:
        place = shard.places.get(each.first >> OFFSET_BITS)
        queue = place.queue if place is not None else None
        if queue is not None and queue.options.require_lease and queue.tenant == command.tenant:
            raise Invalid("lease", f"given: queue {queue.name} requires it")
    return None, found


# Successors: an updated message is stored under a new id, and shown under its first one.


def current_ids(shard: Shard, ids: list[int]) -> list[int]:
    """Return the ids of successors; the same list if there are none."""
    if not shard.updated or not any(
        _is_updated(shard, number) for number in set(map(OFFSET_BITS.__rrshift__, ids))
    ):
        return ids
    found = [_current(shard, each) for each in ids]
    return ids if found == ids else found


def _is_updated(shard: Shard, number: int) -> bool:
    """Whether a partition number has updated messages."""
    place = shard.places.get(number)
    return place is not None and place.partition.key in shard.updated


def _current(shard: Shard, message: int) -> int:
    place = shard.places.get(message >> OFFSET_BITS)
    if place is None or place.partition.key not in shard.updated:
        return message
    offset = place.first + (message & OFFSET_MASK)
    row = place.partition.successors.upto(offset)
    if row is None or row[0] != offset:
        return message
    return id_at(place.partition, row[1])
