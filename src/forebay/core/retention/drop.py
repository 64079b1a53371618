"""Drop whole segments from a log, with everything known about their messages."""

from collections.abc import Iterable
from itertools import islice, takewhile

from forebay.core.links.successors import forget_gone
from forebay.core.log import log as logs
from forebay.core.records import keyspace
from forebay.core.shard.shard import Shard
from forebay.core.state import Partition, Queue, Segment
from forebay.core.tracks.trim import forget
from forebay.core.tracks.withdrawn import trim_withdrawn
from forebay.core.words import OUTDATED

RANGE_MIN = 64
"""Headers from which a range deletion is used: a range slows every later read a little."""


def cut_to(shard: Shard, queue: Queue, partition: Partition, before: int, now: int) -> None:
    """Drop segments of a log that no group reads, up to the one at ``before``."""
    cut_off(shard, queue, partition, before, set(), OUTDATED, now)


def cut_off(
    shard: Shard,
    queue: Queue,
    partition: Partition,
    before: int,
    wanted_bases: set[int],
    why: int,
    now: int,
) -> None:
    """Move the start of the log; wanted segments stay as islands."""
    log = partition.log
    weight = _weight_below(partition, before)
    islands = log.islands
    gone = logs.trim(log, before, wanted_bases)
    if not gone and log.islands == islands:
        return
    partition.settled_bytes -= weight
    partition.settled_to = max(partition.settled_to, log.first)
    partition.merged_to = [max(each, log.first) for each in partition.merged_to]
    partition.marks = [mark for mark in partition.marks if mark.offset > log.first]
    forget_segments(shard, queue, partition, gone, why, now)
    trim_withdrawn(shard, queue, partition)


def _weight_below(partition: Partition, before: int) -> int:
    """Return the settled bytes of segments that end at or below an offset."""
    log = partition.log
    end = min(before, partition.settled_to)
    segments = takewhile(lambda each: each.end <= end, islice(log.segments, log.islands, None))
    return sum(segment.weight for segment in segments)


def forget_segments(
    shard: Shard, queue: Queue, partition: Partition, gone: list[Segment], why: int, now: int
) -> None:
    """Delete dropped segments, and forget all state of their messages."""
    if queue.stored:
        _delete(shard, queue, partition, gone)
    spans = joined(gone)
    for low, high in spans:
        shard.changes.change_log.note(why, queue, "", partition, low, high - low)
    for low, high in spans if shard.watched.by_partition else ():
        shard.watched.notify(partition.key, low, high)
    for group in queue.groups.values():
        forget(shard, group.tracks[partition.key], spans, now)
    forget_gone(shard, queue, partition, spans)
    shard.changes.touch_partition(queue, partition)


def joined(segments: Iterable[Segment]) -> list[tuple[int, int]]:
    """Return the spans of segments, neighbours joined."""
    spans: list[tuple[int, int]] = []
    for segment in segments:
        if spans and spans[-1][1] == segment.base:
            spans[-1] = (spans[-1][0], segment.end)
        else:
            spans.append((segment.base, segment.end))
    return spans


def _delete(shard: Shard, queue: Queue, partition: Partition, gone: list[Segment]) -> None:
    headers: list[bytes] = []
    reached = -1
    for segment in gone:
        if segment.base != reached:
            _delete_headers(shard, queue, headers)
            headers = []
        headers.append(keyspace.header_key(queue.prefix, partition.key, segment.base))
        reached = segment.end
    _delete_headers(shard, queue, headers)
    shard.changes.deletes += [keyspace.body_key(queue.prefix, segment.body_name) for segment in gone]


def _delete_headers(shard: Shard, queue: Queue, headers: list[bytes]) -> None:
    """Delete adjacent headers."""
    if len(headers) < RANGE_MIN:
        for key in headers:
            shard.changes.put_row(queue, key, None)
    else:
        shard.changes.ranges.append((headers[0], headers[-1] + b"\0"))
