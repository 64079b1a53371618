"""Merge small neighbouring segments, so that memory and recovery cost per 256 KiB, not per push.

A merge has three steps, because the middle one takes time and needs no state:

    plan     choose segments of a partition                                   (changes nothing but hints)
    join     their bodies and runs, on any thread: sealed segments never change
    apply    replace the parts by the merged segment, if they are all still there

Segments are merged in two tiers, so that a message is rewritten at most twice however slowly it arrives:
tiny ones into small ones, small ones into full ones. The newest segments are left alone: most queues are read
at once. A merged segment never crosses a partition number, because ids within a segment are consecutive.
"""

from collections.abc import Iterator, Sequence
from itertools import chain

from msgspec import Struct

from forebay.core.bounds import SEGMENT_BYTES_MAX
from forebay.core.log import log as logs
from forebay.core.log.bodies import join_bodies
from forebay.core.log.numbers import number_of
from forebay.core.log.runs import Packed, pack_runs
from forebay.core.records import codec, keyspace
from forebay.core.shard.shard import Shard
from forebay.core.state import Log, Partition, Queue, Segment

TIERS = (4 * 1024, SEGMENT_BYTES_MAX // 2)
"""Size from which a segment is too large for a tier."""
LOOKED_MAX = 4_000
"""Segments checked per plan."""
PARTS_MAX = 1_024
"""Segments per merge."""
SPAN_MS_MAX = (1 << 32) - 1
"""Time span of a merged segment: limited by the packed runs."""


class Merge(Struct, frozen=True, eq=False, gc=False):
    """Segments to be merged."""

    shard: int
    queue: Queue
    partition: Partition
    parts: list[Segment]
    tier: int

    def absent(self) -> list[Segment]:
        """Return the segments whose bodies must be read first."""
        return [each for each in self.parts if each.body is None]


class Joined(Struct, frozen=True, gc=False):
    """The body and the runs of a merge."""

    body: bytes
    runs: Packed


def plan(shard: Shard, at_least: int) -> Merge | None:
    """Return the next merge of a shard, of at least ``at_least`` tiny segments.

    None while partitions are left in ``to_merge`` means that enough was checked for now.
    """
    while shard.changes.to_merge:
        queue, partition = next(iter(shard.changes.to_merge.values()))
        before = list(partition.merged_to)
        for tier in range(len(TIERS)):
            parts = _parts(partition, tier, at_least)
            if parts:
                return Merge(shard.number, queue, partition, parts, tier)
        if partition.merged_to != before:
            return None
        partition.unmerged = 0
        del shard.changes.to_merge[partition.key]
    return None


def _parts(partition: Partition, tier: int, at_least: int) -> list[Segment]:
    """Return neighbours worth a merge; an empty list advances the hint."""
    chosen: list[Segment] = []
    total = 0
    for segment in _unmerged(partition, tier, at_least):
        header = len(segment.spread) + len(segment.sets) + len(segment.which)
        weight = logs.body_bytes(segment.count, segment.size) + header
        fits = weight < TIERS[tier]
        if fits and chosen and _go_together(partition, chosen, segment, total + weight):
            chosen.append(segment)
            total += weight
            continue
        if _worth(chosen, total, tier, at_least):
            return chosen
        chosen, total = ([segment], weight) if fits else ([], 0)
        partition.merged_to[tier] = segment.base if fits else segment.end
    return chosen if _worth(chosen, total, tier, at_least) else []


def _unmerged(partition: Partition, tier: int, at_least: int) -> Iterator[Segment]:
    """Yield candidates: the first tier skips the newest segments, the second what the first has not seen."""
    log = partition.log
    position = max(logs.find(log, partition.merged_to[tier]), 0)
    end = max(len(log.segments) - at_least, 0) if tier == 0 else logs.find(log, partition.merged_to[0])
    for at in range(position, min(end, position + LOOKED_MAX)):
        segment = log.segments[at]
        if segment.payloads is not None:
            return
        if segment.base >= partition.merged_to[tier]:
            yield segment


def _worth(chosen: list[Segment], total: int, tier: int, at_least: int) -> bool:
    if tier == 0:
        return len(chosen) >= max(at_least, 2)
    return len(chosen) > 1 and (total >= TIERS[tier] or len(chosen) >= PARTS_MAX)


def _go_together(partition: Partition, chosen: list[Segment], segment: Segment, total: int) -> bool:
    first = chosen[0]
    return (
        total <= SEGMENT_BYTES_MAX
        and len(chosen) < PARTS_MAX
        and segment.last_at - first.created_at <= SPAN_MS_MAX
        and number_of(partition, first.base) == number_of(partition, segment.base)
        # What is counted as settled is counted in whole segments.
        and (first.base < partition.settled_to) == (segment.base < partition.settled_to)
    )


def join(merge: Merge, bodies: Sequence[bytes]) -> Joined:
    """Return the body and runs of a merge. Reads only sealed data: safe on any thread."""
    parts = merge.parts
    body = join_bodies(bodies, [each.count for each in parts])
    runs = chain.from_iterable(each.runs for each in parts)
    return Joined(body, pack_runs(runs, parts[0].created_at))


def apply(shard: Shard, merge: Merge, joined: Joined) -> Segment | None:
    """Replace the parts by their merge; return None if they are no longer all there.

    The merged body stays in memory: the store has it only after the commit.
    """
    queue, partition, parts = merge.queue, merge.partition, merge.parts
    first = parts[0]
    merged = Segment(
        first.base,
        sum(each.count for each in parts),
        sum(each.size for each in parts),
        first.created_at,
        shard.numbering.next_name(),
        joined.runs.spread,
        joined.runs.sets,
        joined.runs.which,
        joined.runs.aside,
        body=joined.body,
    )
    assert number_of(partition, first.base) == number_of(partition, merged.end - 1)
    if shard.queues.get(queue.prefix) is not queue:
        return None
    if first.base < partition.settled_to < merged.end or not _replace(partition.log, merged, parts):
        return None
    partition.merged_to[merge.tier] = merged.end
    if merged.end <= partition.settled_to:
        partition.settled_bytes += merged.weight - sum(each.weight for each in parts)
    if queue.stored:
        prefix, key = queue.prefix, partition.key
        shard.changes.put_body((keyspace.body_key(prefix, merged.body_name), joined.body))
        shard.changes.put_row(queue, keyspace.header_key(prefix, key, merged.base), codec.pack_header(merged))
        for each in parts[1:]:
            shard.changes.put_row(queue, keyspace.header_key(prefix, key, each.base), None)
        shard.changes.deletes += [keyspace.body_key(prefix, each.body_name) for each in parts]
        shard.changes.sealed.append((partition.log, merged))
    return merged


def _replace(log: Log, merged: Segment, parts: list[Segment]) -> bool:
    return merged.base >= log.first and logs.put_together(log, merged, parts)


def give_up(merge: Merge) -> None:
    """Skip these segments for good: a body of them can't be read."""
    merge.partition.merged_to[merge.tier] = merge.parts[-1].end
