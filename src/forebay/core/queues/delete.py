"""Delete a queue: at once, or in two phases.

A deleted queue is closed first: pushes, pops and queries are refused, leased messages may still be settled or
extended. The queue is removed when its last lease has ended.
"""

from forebay.core.api.commands import Cleaned, Closed, Delete, Obliterate
from forebay.core.bounds import TOLD_AT_ONCE
from forebay.core.errors import Conflict
from forebay.core.jobs import cron
from forebay.core.log import log as logs
from forebay.core.queues import named_limits
from forebay.core.records import keyspace
from forebay.core.retention.removal import remove_queue
from forebay.core.shard.shard import Shard
from forebay.core.state import Queue
from forebay.core.words import DELETED


def obliterate(shard: Shard, command: Obliterate, now: int) -> Cleaned:
    """Remove a queue with everything in it, leased messages included."""
    place = command.tenant, command.queue
    queue = shard.names.closing.get(place) or shard.names.known(*place)
    _check(queue)
    count = sum(logs.count_kept(partition.log) for partition in queue.partitions.values())
    _remove(shard, queue)
    return Cleaned(count)


def delete(shard: Shard, command: Delete, now: int) -> Closed:
    """Close a queue, and remove it if it has no leases."""
    queue = shard.names.closing.get((command.tenant, command.queue))
    if queue is None:
        queue = shard.names.known(command.tenant, command.queue)
        _check(queue)
        _close(shard, queue, now)
    active = named_limits.leased(queue)
    until = _until(shard, queue, now)
    if not active:
        _remove(shard, queue)
    return Closed(queue.name, active, until)


def finish(shard: Shard) -> None:
    """Remove closed queues that have no leases any more."""
    while shard.emptied:
        _, queue = shard.emptied.popitem()
        if shard.names.closing.get((queue.tenant, queue.name)) is queue and not named_limits.leased(queue):
            _remove(shard, queue)


def _check(queue: Queue) -> None:
    rows = sum(partition.dependents.size for partition in queue.partitions.values())
    if rows > TOLD_AT_ONCE:
        raise Conflict(
            f"{rows} pushes wait for messages of queue {queue.name}, or did: drain it, purge its "
            "dead letters, cancel what is active in it, and remove it then"
        )


def _until(shard: Shard, queue: Queue, now: int) -> int:
    """Return when the last lease of a queue expires, if none is extended."""
    leases = [lease for lease in shard.leases.values() if lease.queue is queue]
    return max((run.expires_at for each in leases for run in each.runs.values()), default=now)


def _close(shard: Shard, queue: Queue, now: int) -> None:
    queue.closing_at = now
    _forget_crons(shard, queue)
    shard.names.close(queue)
    shard.changes.touch_queue(queue)


def _remove(shard: Shard, queue: Queue) -> None:
    _forget_crons(shard, queue)
    named_limits.leave(shard, queue)
    shard.names.remove(queue)
    shard.changes.change_log.note_queue(DELETED, queue)
    remove_queue(shard, queue)


def _forget_crons(shard: Shard, queue: Queue) -> None:
    for each in list(shard.crons.by_tenant.get(queue.tenant, {}).values()):
        if each.queue == queue.name:
            cron.forget(shard, each)
            shard.changes.put_own(keyspace.cron_key(queue.prefix, each.name), None)
