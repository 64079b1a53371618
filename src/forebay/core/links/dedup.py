"""Dedup memory: transaction ids, custom ids, and remembered answers of pushes."""

from forebay.core.api.jobs import PushJobs
from forebay.core.bounds import REMEMBERED_MAX
from forebay.core.records import codec, keyspace
from forebay.core.shard.shard import Shard
from forebay.core.state import Partition, Queue, RememberedPush

REQUEST, SEEN = b"r", b"t"
"""Kinds of remembered pushes: by idempotency key, by throttled unique key."""


def remembered(queue: Queue, command: PushJobs, now: int) -> RememberedPush | None:
    """Return the remembered push of a repeated request, if there is one."""
    once = queue.remembered.get(request_key(command)) if command.request is not None else None
    return once if once is not None and once.until > now else None


def request_key(command: PushJobs) -> bytes:
    assert command.request is not None
    return REQUEST + "\0".join(command.request).encode()


def remember(shard: Shard, queue: Queue, name: bytes, once: RememberedPush, now: int) -> None:
    """Remember the answer of a push."""
    if once.until <= now:
        return
    forget_remembered(shard, queue, name)
    queue.remembered[name] = once
    shard.timers.remembered.add(once.until, (queue.prefix, name))
    shard.timers.alarm.sooner(once.until)
    shard.changes.put_row(queue, keyspace.remembered_key(queue.prefix, name), codec.pack_remembered(once))
    if len(queue.remembered) > REMEMBERED_MAX:
        forget_remembered(shard, queue, next(iter(queue.remembered)))


def forget_remembered(shard: Shard, queue: Queue, name: bytes) -> None:
    once = queue.remembered.pop(name, None)
    if once is not None:
        shard.timers.remembered.remove(once.until, (queue.prefix, name))
        shard.changes.put_row(queue, keyspace.remembered_key(queue.prefix, name), None)


def forget_due_remembered(shard: Shard, now: int) -> None:
    """Forget remembered pushes that have expired."""
    while names := shard.timers.remembered.first_due(now):
        for prefix, name in names:
            forget_remembered(shard, shard.queues[prefix], name)


def sweep_taken(shard: Shard, queue: Queue, now: int) -> int:
    """Forget expired transaction ids; return when the next ones expire."""
    again_at = 1 << 62
    window = queue.options.dedup_window_ms
    for partition in queue.partitions.values():
        while partition.taken:
            first, (at, _) = next(iter(partition.taken.items()))
            if at > now - window:
                again_at = min(again_at, at + window)
                break
            forget_taken(shard, queue, partition, first)
    return again_at


def forget_job_id(shard: Shard, queue: Queue, partition: Partition, offset: int) -> None:
    """Free a custom id."""
    name = partition.job_ids.pop(offset)
    if queue.named.get(name) == (partition.key, offset):
        del queue.named[name]
    shard.changes.put_row(queue, keyspace.job_id_key(queue.prefix, partition.key, offset), None)


def forget_taken(shard: Shard, queue: Queue, partition: Partition, first: int) -> None:
    """Forget transaction ids."""
    _, ids = partition.taken.pop(first)
    for offset, name in ids:
        if partition.transactions.get(name, (-1, 0))[0] == offset:
            del partition.transactions[name]
    shard.changes.put_row(queue, keyspace.taken_key(queue.prefix, partition.key, first), None)
