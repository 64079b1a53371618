"""Ties: what must happen when a message ends. Its unique key is freed; keys are written if it died."""

from msgspec.structs import replace

from forebay.core.log import log as logs
from forebay.core.records import codec, keyspace
from forebay.core.shard.ends import Ended
from forebay.core.shard.shard import Shard
from forebay.core.state import Partition, Queue, Tie
from forebay.core.structures.spans import offsets_in
from forebay.core.tracks.places import standing
from forebay.core.words import DIED, REVIVED

NO_TIE = Tie()


def tie(shard: Shard, queue: Queue, partition: Partition, offset: int, tied: Tie) -> None:
    """Tie consequences to the end of a message."""
    partition.ties[offset] = tied
    partition.links_count += 1
    if tied.unique_key:
        queue.uniques[tied.unique_key] = (partition.key, offset)
    if tied.completed_at and tied.cleanup is not None and tied.cleanup.keep_count:
        queue.kept[partition.key, offset] = None
    queue.tied_bytes += len(tied.payload) * len(tied.keys)
    if tied.expires_at:
        shard.timers.expiry.add(tied.expires_at, (partition.key, offset))
        shard.timers.alarm.sooner(tied.expires_at)
    shard.changes.put_row(queue, keyspace.tie_key(queue.prefix, partition.key, offset), codec.pack_tie(tied))


def untie(shard: Shard, queue: Queue, partition: Partition, offset: int) -> Tie:
    """Remove and return the tie of a message."""
    tied = partition.ties.pop(offset)
    partition.links_count -= 1
    if tied.unique_key and queue.uniques.get(tied.unique_key) == (partition.key, offset):
        del queue.uniques[tied.unique_key]
    if tied.completed_at:
        queue.kept.pop((partition.key, offset), None)
    queue.tied_bytes -= len(tied.payload) * len(tied.keys)
    if tied.expires_at:
        shard.timers.expiry.remove(tied.expires_at, (partition.key, offset))
    shard.changes.put_row(queue, keyspace.tie_key(queue.prefix, partition.key, offset), None)
    return tied


def tied_over(partition: Partition, first: int, end: int) -> list[int]:
    """Return the offsets of [first, end) that have a tie, in order."""
    return offsets_in(partition.ties, first, end)


def free(shard: Shard, queue: Queue, key: str) -> None:
    """Free a unique key, and keep the rest of the tie."""
    number, offset = queue.uniques[key]
    partition = shard.places[number].partition
    rest = replace(untie(shard, queue, partition, offset), unique_key="")
    if rest != NO_TIE:
        tie(shard, queue, partition, offset, rest)


def move(
    shard: Shard, queue: Queue, partition: Partition, offset: int, successor: int, payload: bytes
) -> None:
    """Move ties and waits of a message to its successor."""
    if offset in partition.ties:
        tied = untie(shard, queue, partition, offset)
        if tied.keys:
            tied = replace(tied, payload=bytes(payload))
        tie(shard, queue, partition, successor, tied)
    for row in partition.waiting_over(offset, offset + 1):
        if shard.mark_met(queue, partition, row, offset, offset + 1):
            shard.add_wait(queue, partition, (successor, row[1], 1, row[3]))
    if _is_told_revived(shard, partition, offset):
        # Those that have not been told yet wait for the successor now.
        shard.ends.append(Ended(queue, partition, successor, successor + 1, REVIVED))


def _is_told_revived(shard: Shard, partition: Partition, offset: int) -> bool:
    """Whether dependents are still being told that a message was requeued."""
    notifications = shard.notifications.get(partition.key)
    return notifications is not None and any(
        ended.how == REVIVED and ended.first <= offset < ended.end
        for ended in (each.ended for each in notifications.waiting)
    )


def recheck(shard: Shard, queue: Queue, partition: Partition) -> None:
    """After the group ``default`` moved: record every linked message that is now settled."""
    spans = [(offset, offset + 1) for offset in partition.ties]
    spans += [(row[0], row[0] + row[2]) for row in partition.dependents]
    for first, end in spans:
        for low, high, how in standing(shard, queue, partition, first, end):
            if how == DIED:
                continue  # it was dead before; those that were requeued without it wait for it
            if how is not None:
                shard.ends.append(Ended(queue, partition, low, high, how))
            elif low in partition.ties and partition.ties[low].completed_at:
                _start_over(shard, queue, partition, low)


def _start_over(shard: Shard, queue: Queue, partition: Partition, offset: int) -> None:
    """Keep a message, completed once, until it is completed again."""
    segment = partition.log.segments[logs.find(partition.log, offset)]
    _, created_at, attributes = segment.run_at(offset - segment.base)
    expires_at = created_at + attributes.ttl_ms if attributes.ttl_ms else 0
    tied = replace(untie(shard, queue, partition, offset), completed_at=0, expires_at=expires_at)
    tie(shard, queue, partition, offset, tied)
