"""Rows that say which parked messages wait for which others."""

from forebay.core.records import codec, keyspace
from forebay.core.shard.ends import Ended
from forebay.core.shard.shard import Shard
from forebay.core.state import Partition, Queue
from forebay.core.tracks.places import standing

# What waits for messages.

SPAN_MAX = 1_024
"""Messages per row, so that rows over an offset start at most this far before it."""


def waiting_over(partition: Partition, first: int, end: int) -> list[tuple[int, ...]]:
    """Return the rows of dependents of messages in [first, end)."""
    found = rows_reaching_over(partition, first)
    for row in partition.dependents.since(first) if partition.dependents.size else ():
        if row[0] >= end:
            break
        found.append(row)
    return found


def rows_reaching_over(partition: Partition, offset: int) -> list[tuple[int, ...]]:
    """Return the rows that start before an offset and reach over it."""
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


def mark_met(
    shard: Shard, queue: Queue, partition: Partition, row: tuple[int, ...], low: int, high: int
) -> int:
    """Mark messages [low, high) of a row as met; return how many were unmet."""
    first, dependent, count, waiting = row
    if count == 1:
        remove_wait(shard, queue, partition, row)
        return 1
    met = partition.met.get((first, dependent), 0)
    new = ((1 << high - low) - 1 << low - first) & ~met
    met |= new
    if met.bit_count() == count:
        remove_wait(shard, queue, partition, row)
    elif new:
        partition.met[first, dependent] = met
        since = 0
        if partition.key in shard.notifications:
            since = shard.notifications[partition.key].later.get((first, dependent), 0)
        key = keyspace.dependent_key(queue.prefix, partition.key, first, dependent)
        shard.changes.put_row(queue, key, codec.pack_dependent(count, waiting, met, since))
    return new.bit_count()


def add_wait(shard: Shard, queue: Queue, partition: Partition, row: tuple[int, ...]) -> None:
    """Add a row of dependents."""
    first, dependent, count, waiting = row
    partition.dependents.add((first, dependent, count, waiting))
    partition.links_count += 1
    if count > 1:
        partition.spans.add((first, dependent))
    since = 0
    notifications = shard.notifications.get(partition.key)
    if notifications is not None:
        since = notifications.later[first, dependent] = notifications.waiting[-1].serial
    key = keyspace.dependent_key(queue.prefix, partition.key, first, dependent)
    shard.changes.put_row(queue, key, codec.pack_dependent(count, waiting, 0, since))


def remove_wait(shard: Shard, queue: Queue, partition: Partition, row: tuple[int, ...]) -> None:
    """Remove a row of dependents."""
    partition.dependents.remove(row[0], row[1])
    partition.links_count -= 1
    if row[2] > 1:
        partition.spans.remove(row[0], row[1])
        partition.met.pop((row[0], row[1]), None)
    shard.changes.put_row(queue, keyspace.dependent_key(queue.prefix, partition.key, row[0], row[1]), None)


def recheck(shard: Shard, queue: Queue, partition: Partition) -> None:
    """After the group ``default`` moved: record every linked message that is now settled."""
    spans = [(offset, offset + 1) for offset in partition.ties]
    spans += [(row[0], row[0] + row[2]) for row in partition.dependents]
    for first, end in spans:
        for low, high, how in standing(shard, queue, partition, first, end):
            if how is not None:
                shard.ends.append(Ended(queue, partition, low, high, how))
