"""Create a group ahead of its first pop, or delete a group."""

from forebay.core.api.commands import GroupDelete, GroupPut
from forebay.core.api.queries import QueueFound
from forebay.core.bounds import NEVER, check_name
from forebay.core.delivery.groups import check_group, check_start, new_group
from forebay.core.delivery.settle import abandon
from forebay.core.errors import Conflict, NotFound
from forebay.core.queries.describe import describe
from forebay.core.records import keyspace
from forebay.core.shard.shard import Shard
from forebay.core.state import Group, Queue
from forebay.core.words import DEFAULT


def put(shard: Shard, command: GroupPut, now: int) -> QueueFound:
    """Create a group; an existing one is left as it is."""
    check_name("group", command.group)
    check_start(command.start, now)
    queue = shard.names.known(command.tenant, command.queue)
    if command.group not in queue.groups:
        check_group(shard.limits, queue, command.group)
        new_group(shard, queue, command.group, command.start, now)
    return describe(queue, now)


def delete(shard: Shard, command: GroupDelete, now: int) -> QueueFound:
    """Delete a group with its leases, schedule and dead letters."""
    check_name("group", command.group)
    queue = shard.names.known(command.tenant, command.queue)
    group = queue.groups.get(command.group)
    if group is None:
        raise NotFound(f"queue {queue.name} has no group {command.group}")
    if group.name == DEFAULT:
        raise Conflict(f"{DEFAULT} is the work queue: unique keys, dependencies and results follow it")
    _forget(shard, queue, group)
    shard.timers.plan_sweep(queue, now)
    return describe(queue, now)


def _forget(shard: Shard, queue: Queue, group: Group) -> None:
    for track in group.tracks.values():
        abandon(shard, track)
        shard.timers.schedule_check(track, NEVER)
        if shard.watched.by_partition:
            shard.watched.notify(track.partition.key, 0, NEVER)
        if track.key:
            shard.changes.deletes.append(track.key)
    if group.limited_at != NEVER:
        shard.timers.limited.remove(group.limited_at, (queue.prefix, group.name))
    shard.changes.clear_rows(queue, keyspace.row_bounds(queue.prefix, group.number))
    shard.changes.forget_group(queue, group.name)
    if queue.stored:
        shard.changes.deletes.append(keyspace.group_key(queue.prefix, group.number))
    del queue.groups[group.name]
    queue.room = 0
    shard.changes.touch_queue(queue)
