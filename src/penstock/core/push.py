"""Push: check everything, then append."""

from penstock.core import log as logs
from penstock.core.commands import Pushed
from penstock.core.errors import Busy, Invalid
from penstock.core.ids import OFFSET_BITS
from penstock.core.limits import Limits, check_name
from penstock.core.model import Partition, Queue
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


def push(
    shard: Shard, queue: Queue, partition: Partition, payloads: list[bytes], lengths: list[int], now: int
) -> Pushed:
    """Append checked payloads of these lengths."""
    log = partition.log
    count = len(payloads)
    number, base = partition.numbers[-1]
    if not fits(partition, count):
        shard.renumber(queue, partition)
        number, base = partition.numbers[-1]
    if log.forming is None:
        shard.touch()
        shard.forming.append((queue, partition))
    offset = logs.append(log, payloads, lengths, sum(lengths), now)
    for group in queue.groups.values():
        track = group.tracks[partition.key]
        if not track.listed:
            list_ready(group, track)
    shard.woken[queue, None, partition.name] = None
    return Pushed(number << OFFSET_BITS | offset - base, count, log.time)
