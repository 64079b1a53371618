"""Questions: read the log, where it begins and ends, what a queue holds, where a message stands.

None of these changes anything.
"""

from itertools import islice, takewhile
from typing import NamedTuple

from msgspec.structs import replace

from penstock.core import log as logs
from penstock.core import model
from penstock.core.commands import (
    Counts,
    GroupFound,
    Log,
    Offsets,
    OffsetsFound,
    PartitionFound,
    PartitionOffsets,
    Popped,
    QueueCounts,
    QueueFound,
    Read,
    ReadRun,
    State,
    StateFound,
)
from penstock.core.errors import Invalid, NotFound
from penstock.core.ids import OFFSET_BITS, OFFSET_MASK, address
from penstock.core.limits import Limits, check_name, check_range
from penstock.core.model import DEFAULT, Group, LeaseRun, Partition, Queue, Scheduled, Segment, Track
from penstock.core.numbers import number_of
from penstock.core.pop import PIECES_MAX
from penstock.core.settle import leased_runs
from penstock.core.shard import Shard

AHEAD_SEGMENTS = 64
"""Segments looked at ahead of a cursor."""
READ_COUNT = 1_000
READ_BYTES = 1_048_576
"""What a read gets that does not say how much it wants."""


def read(limits: Limits, queue: Queue, command: Read) -> Log:
    """Messages by offset, up to a count and a size, at least one if there is one."""
    check_name("partition", command.partition)
    most = min(READ_COUNT, limits.batch_max) if command.max_count is None else command.max_count
    left = min(READ_BYTES, limits.read_bytes_max) if command.max_bytes is None else command.max_bytes
    check_range("max_count", most, 1, limits.batch_max)
    check_range("max_bytes", left, 1, limits.read_bytes_max)
    partition = _partition(queue, command.partition)
    log = partition.log
    if not 0 <= command.offset <= log.end:
        raise Invalid("offset", f"between 0 and {log.end}, the end of the log")
    offset = max(command.offset, log.first)
    count = min(most, log.end - offset)
    runs: list[ReadRun] = []
    for piece in logs.pieces(log, offset, count, logs.find(log, offset)):
        if left <= 0 or len(runs) >= PIECES_MAX:
            break
        part = logs.fit(piece, left)
        number, base = number_of(partition, offset)
        first = address(number, offset - base)
        runs.append(ReadRun(part.segment, part.start, part.count, part.created_at, first))
        left -= logs.piece_bytes(part)
        offset += part.count
        if part.count < piece.count:
            break
    return Log(queue, partition.name, offset, log.end, runs)


def cut(found: Log) -> Log:
    """A read up to the first message whose payload is not there."""
    good = list(takewhile(lambda run: run.segment.present, found.runs))
    return replace(found, runs=good, next=good[-1].offset + good[-1].count if good else found.runs[0].offset)


class Absent(NamedTuple):
    """A segment whose body is not in memory."""

    queue: Queue
    log: model.Log
    segment: Segment


def absent(reply: Popped | Log) -> list[Absent]:
    """The segments whose bodies have to be read before the payloads of an answer can be."""
    queue = reply.queue
    if isinstance(reply, Log):
        log = queue.partitions[reply.partition].log
        return [Absent(queue, log, run.segment) for run in reply.runs if not run.segment.present]
    return [
        Absent(queue, queue.partitions[each.partition].log, each.segment)
        for each in reply.deliveries
        if not each.segment.present
    ]


def ahead(reply: Popped | Log, size: int) -> list[Absent]:
    """Segments behind what was popped or read whose bodies are not in memory.

    None as long as the first half of ``size`` bytes is there; else up to all of them, so that what is read
    ahead is read in large steps.
    """
    parts = reply.deliveries if isinstance(reply, Popped) else reply.runs
    if not parts:
        return []
    name = reply.partition if isinstance(reply, Log) else reply.deliveries[-1].partition
    log = reply.queue.partitions[name].log
    position = logs.find(log, parts[-1].offset) + 1
    found: list[Absent] = []
    passed = 0
    for segment in islice(log.segments, position, position + AHEAD_SEGMENTS):
        if not segment.present:
            found.append(Absent(reply.queue, log, segment))
        passed += segment.size
        if passed >= size or (not found and passed >= size // 2):
            break
    return found


def offsets(queue: Queue, command: Offsets) -> OffsetsFound:
    """First and end of every partition, and the first offset at or after a time."""
    if command.at is not None and command.at < 0:
        raise Invalid("at", "a time in ms")
    return OffsetsFound(
        [
            PartitionOffsets(
                partition.name,
                list(partition.numbers),
                partition.log.first,
                partition.log.end,
                None if command.at is None else logs.offset_at(partition.log, command.at),
            )
            for partition in queue.partitions.values()
        ]
    )


def describe(queue: Queue) -> QueueFound:
    """A queue with its partitions and groups."""
    partitions = [
        PartitionFound(
            partition.name,
            partition.log.first,
            partition.log.end,
            partition.log.size,
        )
        for partition in queue.partitions.values()
    ]
    groups = [GroupFound(group.name, counts(queue, group)) for group in queue.groups.values()]
    return QueueFound(queue.name, queue.options, partitions, groups)


def queue_counts(queue: Queue) -> QueueCounts:
    """A queue as its work queue, the group ``default``, sees it."""
    return QueueCounts(queue.name, counts(queue, queue.groups.get(DEFAULT)))


def counts(queue: Queue, group: Group | None) -> Counts:
    """Messages still kept, by where they stand in a group."""
    found = Counts()
    for partition in queue.partitions.values():
        kept = partition.log.end - partition.log.first
        if group is None:
            found.waiting += kept
            continue
        track = group.tracks[partition.key]
        waiting = partition.log.end - track.cursor + track.scheduled
        found.waiting += waiting
        found.active += track.leased
        found.completed += kept - waiting - track.leased
    return found


def state(shard: Shard, command: State) -> StateFound:
    """Where a message stands in a group; a group that does not exist has everything waiting."""
    check_name("group", command.group)
    place = shard.places.get(command.id >> OFFSET_BITS)
    if place is None or place.queue.tenant != command.tenant:
        raise NotFound("there is no such message")
    partition = place.partition
    offset = place.first + (command.id & OFFSET_MASK)
    log = partition.log
    if not log.first <= offset < log.end or number_of(partition, offset)[0] != command.id >> OFFSET_BITS:
        raise NotFound("there is no such message, or it is no longer kept")
    (piece,) = logs.pieces(log, offset, 1, logs.find(log, offset))
    found = StateFound(command.id, piece.created_at, "waiting")
    group = place.queue.groups.get(command.group)
    if group is None:
        return found
    track = group.tracks[partition.key]
    run = _out_of_line(shard, track, offset)
    if run is not None:
        found.deliveries, found.failures, found.error = run.deliveries, run.failures, run.error
        found.state = "active" if isinstance(run, LeaseRun) else "waiting"
    elif offset < track.cursor:
        found.state = "completed"
    return found


def _out_of_line(shard: Shard, track: Track, offset: int) -> Scheduled | LeaseRun | None:
    """The scheduled or leased run that a message is in, if it is in one."""
    for run in track.schedule:
        if run.first <= offset < run.first + run.count:
            return run
    for _, leased in leased_runs(shard, track, offset, offset + 1):
        if not leased.settled >> offset - leased.first & 1:
            return leased
    return None


def _partition(queue: Queue, name: str) -> Partition:
    partition = queue.partitions.get(name)
    if partition is None:
        raise NotFound(f"queue {queue.name} has no partition {name}")
    return partition
