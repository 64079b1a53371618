"""Load: a queue as its records tell it.

Everything that can be wrong with the records is found before the shard is touched: a damaged queue is left
out, and the others never notice.
"""

import struct
from collections.abc import Iterable
from heapq import heapify

from msgspec import MsgspecError, Struct

from penstock.core import log as logs
from penstock.core import records
from penstock.core.errors import Damaged
from penstock.core.model import MEMORY, Group, Lease, LeaseRun, Log, Partition, Queue, Scheduled, Segment
from penstock.core.records import PackedPartition, Record
from penstock.core.shard import MERGE_AT, Place, Shard, hold, list_ready, new_partition, new_track


class Found(Struct, eq=False):
    """The records of a queue, decoded, by kind."""

    cursors: dict[tuple[int, int], tuple[int, int]] = {}
    """By group and partition."""
    groups: dict[int, str] = {}
    partitions: dict[int, PackedPartition] = {}
    segments: dict[int, list[Segment]] = {}
    """By partition."""
    scheduled: list[tuple[int, int, Scheduled]] = []
    """With group and partition."""
    leases: list[tuple[int, int, list[LeaseRun]]] = []
    """Name, group, runs."""


def decode(queue: Queue, records_: Iterable[Record]) -> Found:
    """The records of a queue, or ``Damaged``. Fills in the queue's own options."""
    found = Found()
    try:
        for key, value in records_:
            _decode(queue, found, key, value)
    except (MsgspecError, AssertionError, ValueError, struct.error) as error:
        raise Damaged(f"a record can't be decoded: {error}") from None
    return found


def _decode(queue: Queue, found: Found, key: bytes, value: bytes) -> None:
    match key[8:9]:
        case b"c":
            group, partition = records.key_fields(key)
            found.cursors[group, partition] = records.unpack_cursor(value)
        case b"g":
            (number,) = records.key_fields(key)
            (found.groups[number],) = records.unpack_group(value)
        case b"h":
            partition, base = records.key_fields(key)
            found.segments.setdefault(partition, []).append(records.unpack_header(base, value))
        case b"l":
            group, runs = records.unpack_lease(value)
            found.leases.append((int.from_bytes(key[9:], "big"), group, runs))
        case b"p":
            (partition,) = records.key_fields(key)
            found.partitions[partition] = records.unpack_partition(value)
        case b"q":
            queue.groups_made, queue.options = records.unpack_queue(value)
            queue.stored = queue.options.durability != MEMORY
        case b"v":
            found.scheduled.append(records.unpack_scheduled(key, value))
        case kind:
            raise Damaged(f"no record of a queue has kind {kind!r}")


def check(found: Found) -> dict[int, Log]:
    """The logs of the partitions; ``Damaged`` if records speak of what is not there."""
    known = {(group, partition) for group in found.groups for partition in found.partitions}
    spoken_of = {(group, partition) for group, partition, _ in found.scheduled}
    spoken_of |= {(group, run.partition) for _, group, runs in found.leases for run in runs}
    spoken_of |= found.cursors.keys()
    if not spoken_of <= known:
        raise Damaged(f"groups and partitions are missing: {sorted(spoken_of - known)}")
    if not found.segments.keys() <= found.partitions.keys():
        raise Damaged(f"partitions are missing: {sorted(found.segments.keys() - found.partitions.keys())}")
    _check_names(found)
    made: dict[int, Log] = {}
    for key, (name, numbers, first, *_) in found.partitions.items():
        try:
            if not numbers:
                raise Damaged("it has no number")
            made[key] = _load_log(first, found.segments.get(key, []))
        except Damaged as error:
            raise Damaged(f"partition {name}: {error.message}") from None
    _check_places(found, made)
    return made


def _check_names(found: Found) -> None:
    names = [name for name, *_ in found.partitions.values()]
    if len(set(names)) < len(names) or len(set(found.groups.values())) < len(found.groups):
        raise Damaged("two groups or partitions have one name")


def _load_log(first: int, segments: list[Segment]) -> Log:
    for segment in segments:
        spread = segment.spread
        if segment.count < 1 or len(spread) % 8 or (spread and segment.run_ends[-1] != segment.count):
            raise Damaged(f"the header at offset {segment.base} is not what was written")
    return logs.load(first, segments)


def _check_places(found: Found, made: dict[int, Log]) -> None:
    """Raise if something stands where the log is not."""
    ends = {key: log.end for key, log in made.items()}
    stands = [(key, "a cursor", cursor) for (_, key), (cursor, _) in found.cursors.items()]
    stands += [(key, "a scheduled run", run.first + run.count) for _, key, run in found.scheduled]
    for _, _, runs in found.leases:
        if not runs:
            raise Damaged("a lease holds nothing")
        stands += [(run.partition, "a leased run", run.first + run.count) for run in runs]
    for key, what, offset in stands:
        if offset > ends[key]:
            name = found.partitions[key][0]
            raise Damaged(f"partition {name}: {what} is at {offset}, the log ends at {ends[key]}")


def load_queue(
    shard: Shard,
    queue: Queue,
    records_: Iterable[Record],
    *,
    now: int,
    down_ms: int = 0,
    renumber: bool = False,
) -> None:
    """Fill ``queue``, which knows only its name, from its records, and put it into its shard.

    ``down_ms`` is how long its leases could not be settled. ``renumber`` gives each of its partitions a fresh
    number, because ids may have been given out that these records know nothing of.
    """
    found = decode(queue, records_)
    made = check(found)
    shard.queues[queue.prefix] = queue
    for key, (name, numbers, _, marks, os_marked) in found.partitions.items():
        partition = new_partition(key, name, numbers, made[key], marks)
        partition.settled_to = made[key].first
        _add_partition(shard, queue, partition)
        if os_marked or renumber:
            shard.renumber(queue, partition)
    groups = {
        number: Group(number=number, name=name, tracks={}, ready=[]) for number, name in found.groups.items()
    }
    for group in groups.values():
        _add_group(queue, group, found.cursors)
    for number, key, run in found.scheduled:
        track = groups[number].tracks[key]
        track.schedule.append(run)
        track.scheduled += run.count
    gained = min(down_ms, queue.options.lease_ms)
    for name_, number, runs in found.leases:
        _add_lease(shard, Lease(name_, queue, groups[number], {}, 0, 0, stored=True), runs, gained)
    for group in groups.values():
        for track in group.tracks.values():
            heapify(track.schedule)
            if track.schedule or track.cursor < track.partition.log.end:
                list_ready(group, track)
    shard.plan_sweep(queue, now)


def _add_partition(shard: Shard, queue: Queue, partition: Partition) -> None:
    partition.unmerged = len(partition.log.segments)
    if partition.unmerged >= MERGE_AT:
        shard.to_merge[partition.key] = (queue, partition)
    queue.partitions[partition.name] = partition
    for number, base in partition.numbers:
        shard.places[number] = Place(queue, partition, base)


def _add_group(queue: Queue, group: Group, cursors: dict[tuple[int, int], tuple[int, int]]) -> None:
    queue.groups[group.name] = group
    for partition in queue.partitions.values():
        cursor, turn = cursors.get((group.number, partition.key), (partition.log.first, 0))
        track = new_track(queue, group, partition, cursor)
        track.turn = turn
        group.turn = max(group.turn, turn)


def _add_lease(shard: Shard, lease: Lease, runs: list[LeaseRun], gained: int) -> None:
    """A lease as it was, but for the time the shard was down: an outage is not the consumer's failure."""
    for run in runs:
        run.expires_at += gained
        lease.runs[run.partition, run.first] = run
    lease.due_at = min(run.expires_at for run in runs)
    hold(shard, lease)
    if gained:
        shard.touch_lease(lease)
