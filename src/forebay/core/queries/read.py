"""Read a log by offset, and find offsets by time."""

from forebay.core.api.queries import LogSlice, Offsets, OffsetsFound, PartitionOffsets, Read, ReadRun
from forebay.core.bounds import Limits, check_range
from forebay.core.delivery.take import PIECES_MAX
from forebay.core.errors import Invalid
from forebay.core.log import log as logs
from forebay.core.log.numbers import id_at
from forebay.core.queries.describe import partition_of
from forebay.core.state import Partition, Queue, segment as state_segment

READ_COUNT = 1_000
READ_BYTES = 1_048_576
"""Default size of a read."""


def read(limits: Limits, queue: Queue, command: Read) -> LogSlice:
    """Return messages by offset, up to a count and a size, but at least one if there is one."""
    most = min(READ_COUNT, limits.batch_max) if command.max_count is None else command.max_count
    left = min(READ_BYTES, limits.read_bytes_max) if command.max_bytes is None else command.max_bytes
    if command.whole:
        most = min(most, limits.batch_max)
    check_range("max_count", most, 1, limits.batch_max)
    check_range("max_bytes", left, 1, limits.read_bytes_max)
    partition = partition_of(queue, command.partition)
    log = partition.log
    if not 0 <= command.offset <= log.end:
        raise Invalid("offset", f"between 0 and {log.end}, the end of the log")
    offset = max(command.offset, log.first)
    count = min(most, log.end - offset)
    runs: list[ReadRun] = []
    pieces = logs.parts if command.whole else logs.pieces
    for piece in pieces(log, offset, count, logs.find(log, offset)):
        if left <= 0 or len(runs) >= PIECES_MAX:
            break
        part = piece if command.whole else logs.fit(piece, left)
        first = id_at(partition, offset)
        runs.append(ReadRun(part.segment, part.start, part.count, part.created_at, first))
        left -= logs.piece_bytes(part)
        offset += part.count
        if part.count < piece.count:
            break
    return LogSlice(queue, partition.name, offset, log.end, runs, partition.key, command.whole)


def offsets(queue: Queue, command: Offsets) -> OffsetsFound:
    """Return first and end offset of every partition, and the first offset at or after a time."""
    if command.at is not None and command.at < 0:
        raise Invalid("at", "a time in ms")
    return OffsetsFound(
        [
            PartitionOffsets(
                partition.name,
                list(partition.numbers),
                partition.log.first,
                partition.log.end,
                None if command.at is None else offset_from(partition.log, command.at),
                partition.log.size,
                _next_at(partition, command.since) if command.since else None,
            )
            for partition in queue.partitions.values()
        ]
    )


def _next_at(partition: Partition, since: dict[str, int]) -> int | None:
    """Return when the first message at or past an offset was pushed."""
    log = partition.log
    offset = max(since.get(partition.name, log.end), log.first)
    if offset >= log.end:
        return None
    return logs.created_at(log, offset)


def offset_from(log: state_segment.Log, at: int) -> int:
    """Return the first readable offset of messages pushed at or after a time."""
    return max(logs.offset_at(log, at), log.first)
