"""Successors of updated messages, and the cleanup of links to messages that are gone."""

from itertools import takewhile

from forebay.core.links.dedup import forget_job_id
from forebay.core.log import log as logs
from forebay.core.records import keyspace
from forebay.core.shard.ends import Ended
from forebay.core.shard.shard import Shard
from forebay.core.state import Partition, Queue
from forebay.core.structures.spans import offsets_in
from forebay.core.structures.table import Table
from forebay.core.words import GONE

# What is no longer kept.


def trim_successors(shard: Shard, queue: Queue, partition: Partition, spans: list[tuple[int, int]]) -> None:
    """Forget successors when neither the message nor its successor is kept."""
    if not partition.successors:
        return
    firsts = {row[0] for low, high in spans for row in _between(partition.successors, low, high)}
    firsts |= {
        partition.led_to[each] for low, high in spans for each in offsets_in(partition.led_to, low, high)
    }
    for first in sorted(firsts):
        row = partition.successors.upto(first)
        assert row is not None, "what leads somewhere has a row"
        if not logs.has(partition.log, row[1]) and not logs.has(partition.log, first):
            partition.successors.remove(*row)
            del partition.led_to[row[1]]
            shard.changes.put_row(queue, keyspace.successor_key(queue.prefix, partition.key, first), None)
            if first in partition.job_ids:
                forget_job_id(shard, queue, partition, first)
    if not partition.successors:
        shard.updated.discard(partition.key)


def _between(table: Table, low: int, high: int) -> list[tuple[int, ...]]:
    return list(takewhile(lambda row: row[0] < high, table.since(low)))


def forget_gone(shard: Shard, queue: Queue, partition: Partition, spans: list[tuple[int, int]]) -> None:
    """Forget links of messages that are no longer kept, and record that they are gone."""
    trim_successors(shard, queue, partition, spans)
    for low, high in spans:
        shard.take_parked(queue, partition, low, high)
        if partition.links_count:
            shard.ends.append(Ended(queue, partition, low, high, GONE))
        for offset in offsets_in(partition.job_ids, low, high):
            row = partition.successors.upto(offset)
            if row is None or row[0] != offset:
                forget_job_id(shard, queue, partition, offset)
