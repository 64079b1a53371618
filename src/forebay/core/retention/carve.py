"""Carve an island: keep only the messages that are still wanted.

Like a merge it has three steps: planned here, joined anywhere, applied here if the island is still the same.
Within an island messages are only ever settled, so the spans wanted at planning time are always enough.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from msgspec import Struct

from forebay.core.links.successors import forget_gone
from forebay.core.log import log as logs
from forebay.core.log.bodies import body_slices, pack_body
from forebay.core.log.runs import Packed, pack_runs
from forebay.core.records import codec, keyspace
from forebay.core.shard.shard import Shard
from forebay.core.state import Partition, Queue, Run, Segment, Track
from forebay.core.structures.spans import Span, covered, union
from forebay.core.tracks.places import DEAD, LEASED, SCHEDULED, spans_in
from forebay.core.tracks.trim import forget

PART_BYTES = 1_024
"""Overhead of a segment: carving must save this many payload bytes per part."""
PARTS_MAX = 256
"""Parts per carved island."""


class Carving(Struct, frozen=True, eq=False, gc=False):
    """An island, and the spans of it that are wanted."""

    shard: int
    queue: Queue
    partition: Partition
    island: Segment
    spans: list[Span]

    @property
    def parts(self) -> list[Segment]:
        return [self.island]

    def absent(self) -> list[Segment]:
        """Return the segments whose bodies must be read first."""
        return [self.island] if self.island.body is None else []


class Carved(Struct, frozen=True, gc=False):
    """One part of an island: its body and its runs."""

    first: int
    count: int
    size: int
    created_at: int
    body: bytes
    runs: Packed


def wanted(
    shard: Shard,
    partition: Partition,
    segment: Segment,
    tracks: Iterable[Track],
    leasing: Iterable[Track],
) -> tuple[list[Span], int]:
    """Return the spans of an island that are unsettled in some group, and how many runs were checked.

    It stops once one source covers more than half of the island: carving is not worth it then.
    """
    most = segment.count // 2
    low, high = segment.base, segment.end
    found: list[Span] = []
    looked = 0
    sources: list[Iterable[Span]] = [
        chain(spans_in(shard, track, SCHEDULED, low, high), spans_in(shard, track, DEAD, low, high))
        for track in tracks
    ]
    sources.append(covered(partition.parked, low, high))
    sources += [spans_in(shard, track, LEASED, low, high) for track in leasing]
    for source in sources:
        total = 0
        for first, end in source:
            looked += 1
            found.append((first, end))
            total += end - first
            if total > most:
                return [(low, high)], looked
    return _joined(segment, union(found)), looked


def _joined(segment: Segment, spans: list[Span]) -> list[Span]:
    """Join spans whose gap is not worth a segment of its own."""
    mean = segment.size / segment.count
    found: list[Span] = []
    for low, high in spans:
        if found and (low - found[-1][1]) * mean < PART_BYTES:
            found[-1] = (found[-1][0], high)
        else:
            found.append((low, high))
    return found


def is_worth(segment: Segment, spans: list[Span]) -> bool:
    """Whether enough of an island is settled to rewrite the rest."""
    settled = segment.count - sum(high - low for low, high in spans)
    saved = segment.size * settled // segment.count
    return 2 * settled >= segment.count and saved >= PART_BYTES * len(spans) and len(spans) <= PARTS_MAX


def plan(shard: Shard) -> Carving | None:
    """Return the next island to carve, if there is one."""
    while shard.changes.to_carve:
        _, (queue, partition, segment) = shard.changes.to_carve.popitem()
        if (
            shard.queues.get(queue.prefix) is not queue
            or queue.partitions.get(partition.name) is not partition
        ):
            continue
        tracks = [group.tracks[partition.key] for group in queue.groups.values()]
        spans, _ = wanted(shard, partition, segment, tracks, tracks)
        if spans and is_worth(segment, spans) and logs.is_island(partition.log, segment):
            # Its body may have left the cache meanwhile, or been read back: take the current segment.
            current = partition.log.segments[logs.find(partition.log, segment.base)]
            return Carving(shard.number, queue, partition, current, spans)
    return None


def join(carving: Carving, bodies: Sequence[bytes]) -> list[Carved]:
    """Return the wanted parts of an island. Reads only sealed data: safe on any thread."""
    (body,) = bodies
    island = carving.island
    found: list[Carved] = []
    for low, high in carving.spans:
        start, count = low - island.base, high - low
        payloads = list(body_slices(body, island.count, start, count))
        lengths = list(map(len, payloads))
        runs = list(_runs(island, start, start + count))
        created_at = runs[0].created_at
        packed = pack_runs(runs, created_at)
        part = pack_body(payloads, lengths)
        found.append(Carved(low, count, sum(lengths), created_at, part, packed))
    return found


def _runs(segment: Segment, start: int, end: int) -> Iterator[Run]:
    """Yield the runs of a segment between two of its messages."""
    reached = 0
    for run in segment.runs:
        low, high = max(reached, start), min(reached + run.count, end)
        if low < high:
            yield Run(high - low, run.created_at, run.attributes)
        reached += run.count


def _between(island: Segment, spans: list[Span]) -> list[Span]:
    """Return the gaps between spans of an island."""
    ends = [island.base, *(high for _, high in spans)]
    begins = [*(low for low, _ in spans), island.end]
    return [(low, high) for low, high in zip(ends, begins, strict=True) if low < high]


def apply(shard: Shard, carving: Carving, carved: list[Carved], now: int) -> bool:
    """Replace the island by its parts, if it is still there."""
    queue, partition, island = carving.queue, carving.partition, carving.island
    if shard.queues.get(queue.prefix) is not queue:
        return False
    parts = [
        Segment(
            part.first,
            part.count,
            part.size,
            part.created_at,
            shard.numbering.next_name(),
            part.runs.spread,
            part.runs.sets,
            part.runs.which,
            part.runs.aside,
            body=part.body,
        )
        for part in carved
    ]
    if not logs.carve(partition.log, island, parts):
        return False
    gone = _between(island, carving.spans)
    for group in queue.groups.values():
        forget(shard, group.tracks[partition.key], gone, now)
    forget_gone(shard, queue, partition, gone)
    if queue.stored:
        prefix, key = queue.prefix, partition.key
        for part in parts:
            assert part.body is not None
            shard.changes.put_body((keyspace.body_key(prefix, part.body_name), part.body))
            shard.changes.put_row(queue, keyspace.header_key(prefix, key, part.base), codec.pack_header(part))
            shard.changes.sealed.append((partition.log, part))
        shard.changes.deletes.append(keyspace.body_key(prefix, island.body_name))
        if parts[0].base != island.base:
            shard.changes.put_row(queue, keyspace.header_key(prefix, key, island.base), None)
    shard.changes.touch()
    return True
