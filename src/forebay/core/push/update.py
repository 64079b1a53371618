"""Update a message: cancel it and append a successor with the new payload.

The successor carries the first id in its attributes and is shown under it; the first id leads to the
successor from then on. The successor keeps the message's place and history in each group, except for an
in-line message: its successor goes to the end of the line.
"""

from msgspec.structs import replace

from forebay.core.api.checks import check_labels
from forebay.core.api.commands import Pushed
from forebay.core.delivery.cancel import cancel_everywhere
from forebay.core.errors import Conflict
from forebay.core.links import ties
from forebay.core.log import log as logs
from forebay.core.log.numbers import fits
from forebay.core.push.push import push
from forebay.core.records import codec, keyspace
from forebay.core.shard.addresses import Located, offset_of
from forebay.core.shard.shard import Place, Shard
from forebay.core.state import Attributes, Queue, Scheduled, Track
from forebay.core.structures.spans import outside
from forebay.core.tracks.places import FRESH, SCHEDULED, is_in, take_out
from forebay.core.tracks.planning import check_planned, finish_plan

HAD = "it is being worked on, or is settled or dead; push another message instead"


Headers = tuple[tuple[str, str | None], ...]
"""Headers to set, or to remove."""


def check_update(shard: Shard, where: Located, now: int, headers: Headers = ()) -> None:
    """Raise if the message was already delivered, settled or cancelled, or can't have these headers."""
    queue, partition, offset = where.place.queue, where.place.partition, where.first
    attributes = logs.attributes_at(partition.log, offset)
    if headers:
        check_labels(_with(attributes, headers))
    if partition.parked_over(offset, offset + 1):
        raise Conflict("it waits for other messages; cancel it and push another instead")
    for group in queue.groups.values():
        check_planned(queue, group.name)
        track = group.tracks[partition.key]
        if not (is_in(shard, track, FRESH, offset) or is_in(shard, track, SCHEDULED, offset)):
            raise Conflict(f"in group {group.name} {HAD}")
    if not queue.groups and not any(outside(partition.withdrawn, offset, offset + 1)):
        raise Conflict("it is cancelled; push another message instead")
    if attributes.ttl_ms and logs.created_at(partition.log, offset) + attributes.ttl_ms <= now:
        raise Conflict("it has expired; push another message instead")
    if not fits(partition, 1):
        shard.numbering.check(1)


def update(
    shard: Shard,
    where: Located,
    message: int,
    payload: bytes,
    durability: str,
    now: int,
    own: Attributes | None = None,
    headers: Headers = (),
) -> Pushed:
    """Replace a checked message, whose id is ``message``, by a successor.

    The successor keeps its place in each group, unless it has attributes of its own.
    """
    queue, partition, offset = where.place.queue, where.place.partition, where.first
    attributes = logs.attributes_at(partition.log, offset)
    tracks = [group.tracks[partition.key] for group in queue.groups.values()]
    for track in tracks:
        finish_plan(shard, track, now)
    before = [(track, track.schedule.find(offset)) for track in tracks]
    first, created_at = attributes.origin or (message, logs.created_at(partition.log, offset))
    if own is None:
        remains = _remaining(attributes, logs.created_at(partition.log, offset), (first, created_at), now)
        remains = _with(remains, headers)
    else:
        remains, before = replace(own, origin=(first, created_at)), []
    # The successor's offset is known: nothing else comes between.
    ties.move(shard, queue, partition, offset, partition.log.end, payload)
    shard.changes.change_log.is_silent = True  # under its id it lives on
    try:
        cancel_everywhere(shard, where, now)
    finally:
        shard.changes.change_log.is_silent = False
    pushed = push(shard, queue, partition, [payload], [len(payload)], durability, remains, now)
    successor = partition.log.end - 1
    for track, run in before:
        if run is not None:
            _go_on(shard, track, run, successor, now)
    shard.timers.plan_sweep(queue, now)
    _lead(shard, queue, where.place, offset_of(shard, first), successor)
    return replace(pushed, first=first, created_at=created_at)


def _remaining(attributes: Attributes, created_at: int, origin: tuple[int, int], now: int) -> Attributes:
    """Return the attributes of a successor, with times counted from now."""
    delay_ms = max(created_at + attributes.delay_ms - now, 0) if attributes.delay_ms else 0
    ttl_ms = created_at + attributes.ttl_ms - now if attributes.ttl_ms else 0
    return replace(attributes, delay_ms=delay_ms, ttl_ms=ttl_ms, origin=origin)


def _with(attributes: Attributes, headers: Headers) -> Attributes:
    """Return attributes with some headers set, or removed."""
    if not headers:
        return attributes
    kept = {**dict(attributes.headers), **dict(headers)}
    return replace(
        attributes, headers=tuple((name, value) for name, value in kept.items() if value is not None)
    )


def _go_on(shard: Shard, track: Track, run: Scheduled, offset: int, now: int) -> None:
    """Schedule a successor like its predecessor."""
    take_out(shard, track, "move", offset, offset + 1, now)
    shard.schedule(track, replace(run, first=offset, count=1), now)


def _lead(shard: Shard, queue: Queue, place: Place, first: int, successor: int) -> None:
    """Record the successor of a message."""
    successors = place.partition.successors
    row = successors.upto(first)
    if row is not None and row[0] == first:
        successors.remove(*row)
        del place.partition.led_to[row[1]]
    successors.add((first, successor))
    place.partition.led_to[successor] = first
    shard.updated.add(place.partition.key)
    key = keyspace.successor_key(queue.prefix, place.partition.key, first)
    shard.changes.put_row(queue, key, codec.pack_numbers((successor,)))
