"""Parked runs: messages that wait for others, in every group."""

from forebay.core.records import codec, keyspace
from forebay.core.shard.shard import Shard
from forebay.core.state import Partition, Queue
from forebay.core.structures.spans import overlapping


def park(shard: Shard, queue: Queue, partition: Partition, first: int, count: int, unmet: int) -> None:
    """Park messages with ``unmet`` open dependencies."""
    partition.parked.add((first, count, unmet))
    partition.parked_messages += count
    key = keyspace.parked_key(queue.prefix, partition.key, first)
    shard.changes.put_row(queue, key, codec.pack_numbers((count, unmet)))


def unpark(shard: Shard, queue: Queue, partition: Partition, first: int, count: int) -> None:
    """Remove a parked run."""
    partition.parked.remove(first, count)
    partition.parked_messages -= count
    shard.changes.put_row(queue, keyspace.parked_key(queue.prefix, partition.key, first), None)


def parked_over(partition: Partition, first: int, end: int) -> list[tuple[int, ...]]:
    """Return the parked runs that overlap [first, end)."""
    return list(overlapping(partition.parked, first, end)) if partition.parked_messages else []


def take_parked(
    shard: Shard, queue: Queue, partition: Partition, first: int, end: int
) -> list[tuple[int, int]]:
    """Remove the parked messages of [first, end); return their spans."""
    found: list[tuple[int, int]] = []
    for low, count, unmet in parked_over(partition, first, end):
        high = low + count
        unpark(shard, queue, partition, low, count)
        if low < first:
            park(shard, queue, partition, low, first - low, unmet)
        if high > end:
            park(shard, queue, partition, end, high - end, unmet)
        found.append((max(low, first), min(high, end)))
    return found
