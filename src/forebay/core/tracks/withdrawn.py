"""Withdrawn runs: messages cancelled for every group that exists or will exist."""

from forebay.core.records import codec, keyspace
from forebay.core.shard.ends import Ended
from forebay.core.shard.shard import Place, Shard
from forebay.core.state import Partition, Queue
from forebay.core.structures.spans import outside, overlapping
from forebay.core.words import CANCELLED, DEFAULT


def withdraw_unless(shard: Shard, place: Place, low: int, high: int, now: int) -> None:
    """Withdraw messages that are not withdrawn yet."""
    # What the log has left behind no group will read that does not exist yet.
    low = max(low, place.partition.log.first)
    for part in list(outside(place.partition.withdrawn, low, high)):
        withdraw(shard, place, *part, now)


def withdraw(shard: Shard, place: Place, first: int, end: int, now: int) -> None:
    """Cancel messages for groups that do not exist yet."""
    if first >= end:
        return
    if place.partition.links_count and DEFAULT not in place.queue.groups:
        shard.ends.append(Ended(place.queue, place.partition, first, end, CANCELLED))
    if not place.queue.groups:
        shard.changes.change_log.note(CANCELLED, place.queue, "", place.partition, first, end - first)
    if shard.watched.by_partition:
        shard.watched.notify(place.partition.key, first, end)
    withdrawn = place.partition.withdrawn
    before = withdrawn.below(first)
    if before is not None and before[0] + before[1] == first and before[2] == now:
        withdrawn.remove(before[0], before[1])
        first = before[0]
    withdrawn.add((first, end - first, now))
    _put(shard, place, first, (end - first, now))


def restore(shard: Shard, place: Place, first: int, end: int) -> None:
    """Let groups that do not exist yet have the messages of [first, end) again."""
    withdrawn = place.partition.withdrawn
    for low, count, at in list(overlapping(withdrawn, first, end)):
        withdrawn.remove(low, count)
        _put(shard, place, low, None)
        for begin, limit in ((low, first), (end, low + count)):
            if begin < limit:
                withdrawn.add((begin, limit - begin, at))
                _put(shard, place, begin, (limit - begin, at))


def _put(shard: Shard, place: Place, first: int, row: tuple[int, int] | None) -> None:
    key = keyspace.withdrawn_key(place.queue.prefix, place.partition.key, first)
    shard.changes.put_row(place.queue, key, None if row is None else codec.pack_numbers(row))


def trim_withdrawn(shard: Shard, queue: Queue, partition: Partition) -> None:
    """Forget withdrawn messages that are no longer kept."""
    withdrawn, kept = partition.withdrawn, partition.log.first
    while withdrawn and withdrawn.first() < kept:
        first, count, at = withdrawn.head()
        withdrawn.remove(first, count)
        shard.changes.put_row(queue, keyspace.withdrawn_key(queue.prefix, partition.key, first), None)
        if first + count > kept:
            rest = first + count - kept
            withdrawn.add((kept, rest, at))
            key = keyspace.withdrawn_key(queue.prefix, partition.key, kept)
            shard.changes.put_row(queue, key, codec.pack_numbers((rest, at)))
