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
from forebay.core.shard.domain import Domain
from forebay.core.state import Queue
from forebay.core.words import DELETED


def obliterate(domain: Domain, command: Obliterate, now: int) -> Cleaned:
    """Remove a queue with everything in it, leased messages included."""
    queue = domain.closing.get((command.tenant, command.queue)) or domain.known(command.tenant, command.queue)
    _check(queue)
    count = sum(logs.count_kept(partition.log) for partition in queue.partitions.values())
    _remove(domain, queue)
    return Cleaned(count)


def delete(domain: Domain, command: Delete, now: int) -> Closed:
    """Close a queue, and remove it if it has no leases."""
    queue = domain.closing.get((command.tenant, command.queue))
    if queue is None:
        queue = domain.known(command.tenant, command.queue)
        _check(queue)
        _close(domain, queue, now)
    active = named_limits.leased(queue)
    until = _until(domain, queue, now)
    if not active:
        _remove(domain, queue)
    return Closed(queue.name, active, until)


def finish(domain: Domain) -> None:
    """Remove closed queues that have no leases any more."""
    while domain.emptied:
        _, queue = domain.emptied.popitem()
        if domain.closing.get((queue.tenant, queue.name)) is queue and not named_limits.leased(queue):
            _remove(domain, queue)


def _check(queue: Queue) -> None:
    rows = sum(partition.dependents.size for partition in queue.partitions.values())
    if rows > TOLD_AT_ONCE:
        raise Conflict(
            f"{rows} pushes wait for messages of queue {queue.name}, or did: drain it, cancel what is "
            "active in it, and remove it then"
        )


def _until(domain: Domain, queue: Queue, now: int) -> int:
    """Return when the last lease of a queue expires, if none is extended."""
    leases = [lease for lease in domain.shards[queue.shard].leases.values() if lease.queue is queue]
    return max((run.expires_at for each in leases for run in each.runs.values()), default=now)


def _close(domain: Domain, queue: Queue, now: int) -> None:
    shard = domain.shards[queue.shard]
    queue.closing_at = now
    _forget_crons(domain, queue)
    del domain.queues[queue.tenant, queue.name]
    domain.closing[queue.tenant, queue.name] = queue
    shard.changes.touch_queue(queue)


def _remove(domain: Domain, queue: Queue) -> None:
    _forget_crons(domain, queue)
    named_limits.leave(domain, queue)
    domain.directory.remove(queue.tenant, queue.name)
    domain.queues.pop((queue.tenant, queue.name), None)
    domain.closing.pop((queue.tenant, queue.name), None)
    domain.shards[queue.shard].changes.change_log.note_queue(DELETED, queue)
    remove_queue(domain.shards[queue.shard], queue)


def _forget_crons(domain: Domain, queue: Queue) -> None:
    shard = domain.shards[queue.shard]
    for each in list(domain.crons.get(queue.tenant, {}).values()):
        if each.queue == queue.name:
            cron.forget(domain, shard, each)
            shard.changes.put_own(keyspace.cron_key(queue.prefix, each.name), None)
