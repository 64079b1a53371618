"""Push: check everything, then append."""

from penstock.core import log as logs
from penstock.core.commands import Pushed
from penstock.core.errors import Busy, Conflict, Invalid
from penstock.core.ids import OFFSET_BITS
from penstock.core.limits import Limits, check_name
from penstock.core.model import FSYNC, MEMORY, OS, Partition, Queue
from penstock.core.numbers import fits
from penstock.core.shard import Shard, list_ready


def check_payloads(limits: Limits, payloads: list[bytes]) -> list[int]:
    """Raise unless these may be pushed; their lengths."""
    if not 1 <= len(payloads) <= limits.batch_max:
        raise Invalid("messages", f"a list of 1 to {limits.batch_max} payloads")
    lengths = list(map(len, payloads))
    if max(lengths) > limits.payload_bytes_max:
        raise Invalid("payload", f"at most {limits.payload_bytes_max} bytes; one has {max(lengths)}")
    return lengths


def check_partitions(limits: Limits, queue: Queue | None, names: set[str]) -> None:
    """Raise unless the queue has, or may have, these partitions."""
    known = queue.partitions if queue else {}
    new = names - known.keys()
    for name in new:
        check_name("partition", name)
    if new and len(known) + len(new) > limits.partitions_max:
        raise Busy(f"a queue has at most {limits.partitions_max} partitions")


LEVELS = (MEMORY, OS, FSYNC)
"""What a change survives, from nothing to power loss."""


def reached(queue: Queue | None, asked: str | None, reach: str) -> str:
    """What a push will survive in a store that reaches ``reach``; raise if it asks for what it can't have."""
    if asked is None:
        level = queue.options.durability if queue is not None else FSYNC
    else:
        level = _checked(queue, asked)
    return level if reach == FSYNC else min(level, reach, key=LEVELS.index)


def _checked(queue: Queue | None, asked: str) -> str:
    if asked not in (FSYNC, OS):
        raise Invalid("durability", f"{FSYNC} or {OS} (only a whole queue can be {MEMORY})")
    if queue is not None and not queue.stored:
        raise Conflict(f"queue {queue.name} was created {MEMORY}: nothing in it survives")
    return asked


def push(
    shard: Shard,
    queue: Queue,
    partition: Partition,
    payloads: list[bytes],
    lengths: list[int],
    durability: str,
    now: int,
) -> Pushed:
    """Append checked payloads of these lengths."""
    log = partition.log
    count = len(payloads)
    number, base = partition.numbers[-1]
    if not fits(partition, count):
        shard.renumber(queue, partition)
        number, base = partition.numbers[-1]
    if durability == FSYNC:
        shard.must_sync = True
    elif durability == OS and not partition.os_marked:
        shard.mark_os(queue, partition)
    if log.forming is None:
        shard.touch()
        shard.forming.append((queue, partition))
    offset = logs.append(log, payloads, lengths, sum(lengths), now)
    for group in queue.groups.values():
        track = group.tracks[partition.key]
        if not track.listed:
            list_ready(group, track)
    shard.woken[queue, None, partition.name] = None
    return Pushed(number << OFFSET_BITS | offset - base, count, log.time, durability)
