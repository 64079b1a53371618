"""Remove a queue, or empty partitions, with all their records and timers."""

from heapq import heapify

from forebay.core.bounds import NEVER
from forebay.core.links.dedup import forget_taken
from forebay.core.records import keyspace
from forebay.core.shard.ends import Ended
from forebay.core.shard.shard import Shard
from forebay.core.stages.expire import forget_stages
from forebay.core.state import Partition, Queue
from forebay.core.words import GONE


def remove_queue(shard: Shard, queue: Queue) -> None:
    """Remove a queue and everything in it."""
    _forget_partitions(shard, queue, list(queue.partitions.values()))
    for name, lease in [each for each in shard.leases.items() if each[1].queue is queue]:
        del shard.leases[name]
        shard.timers.leases.remove(lease.due_at, name)
    if queue.sweep_at:
        shard.timers.sweeps.remove(queue.sweep_at, queue.prefix)
    if queue.paused_until not in (0, NEVER):
        shard.timers.pauses.remove(queue.paused_until, queue.prefix)
    for group in queue.groups.values():
        if group.limited_at != NEVER:
            shard.timers.limited.remove(group.limited_at, (queue.prefix, group.name))
    forget_stages(shard, queue)
    for request, once in queue.remembered.items():
        shard.timers.remembered.remove(once.until, (queue.prefix, request))
    shard.changes.forget_queue(queue)
    del shard.queues[queue.prefix]
    # Puts of the same commit come before these.
    shard.changes.ranges.append(keyspace.queue_bounds(queue.prefix))
    shard.changes.body_ranges.append(keyspace.body_bounds(queue.prefix))
    shard.changes.must_sync = True
    shard.changes.touch()


def remove_partitions(shard: Shard, queue: Queue, partitions: list[Partition]) -> None:
    """Remove empty partitions."""
    _forget_partitions(shard, queue, partitions)
    keys = {partition.key for partition in partitions}
    for group in queue.groups.values():
        group.ready[:] = [entry for entry in group.ready if entry[2] not in keys]
        heapify(group.ready)
    for partition in partitions:
        for first in list(partition.taken):
            forget_taken(shard, queue, partition, first)
        del queue.partitions[partition.name]
        for group in queue.groups.values():
            track = group.tracks.pop(partition.key)
            group.unplanned.pop(partition.key, None)
            if track.key:
                shard.changes.deletes.append(track.key)
        if queue.stored:
            shard.changes.deletes.append(keyspace.partition_key(queue.prefix, partition.key))
    shard.changes.touch()


def _forget_partitions(shard: Shard, queue: Queue, partitions: list[Partition]) -> None:
    """Remove partitions from all indexes, timers and pending changes."""
    keys = {partition.key for partition in partitions}
    for partition in partitions:
        shard.watched.notify(partition.key, 0, NEVER)
        if partition.links_count:
            shard.ends.append(Ended(queue, partition, 0, NEVER, GONE))
        for number, _ in partition.numbers:
            del shard.places[number]
        for group in queue.groups.values():
            shard.timers.schedule_check(group.tracks[partition.key], NEVER)
    shard.updated -= keys
    shard.changes.forget_partitions(keys)
