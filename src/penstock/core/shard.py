"""A shard: queues whose commands apply one after another, and the records they made dirty.

Changes mark what they touched. ``seal`` encodes each touched thing once and hands out one commit.
"""

from bisect import insort
from heapq import heappush
from typing import NamedTuple

from penstock.core import log as logs
from penstock.core import records
from penstock.core.agenda import Agenda
from penstock.core.commands import Wake
from penstock.core.errors import Busy
from penstock.core.ids import lease_name
from penstock.core.limits import NUMBERS_MAX, Limits
from penstock.core.model import (
    FSYNC,
    Group,
    Lease,
    LeaseRun,
    Log,
    Mark,
    Partition,
    Queue,
    Scheduled,
    Segment,
    Track,
)
from penstock.core.records import Commit, Record

MERGE_AT = 128
"""Segments sealed in a partition before merging looks at it."""
SWEEP_MS = 10_000
"""Sweeps run at multiples of this, so a restart changes nothing about when."""


def next_sweep_at(now: int) -> int:
    """The round time after ``now`` at which queues are swept."""
    return (now // SWEEP_MS + 1) * SWEEP_MS


class Place(NamedTuple):
    """What a partition number leads to."""

    queue: Queue
    partition: Partition
    first: int
    """Offset of the first message under the number."""


class Shard:
    """The state of one shard and what changed in it since the last commit."""

    __slots__ = (
        "_kept",
        "_kept_bodies",
        "_partitions",
        "_schedule",
        "_tracks",
        "agenda",
        "changed",
        "counter",
        "deletes",
        "dirty",
        "epoch",
        "forming",
        "leases",
        "leases_dirty",
        "limits",
        "marked",
        "must_sync",
        "number",
        "numbers",
        "numbers_made",
        "numbers_made_dirty",
        "places",
        "queues",
        "queues_dirty",
        "ranges",
        "sealed",
        "shards",
        "sweeps",
        "to_merge",
        "woken",
    )

    def __init__(self, number: int, shards: int, epoch: int, limits: Limits, changed: list["Shard"]) -> None:
        self.number = number
        self.shards = shards
        self.epoch = epoch
        self.limits = limits
        self.counter = 0
        """Names given out in this epoch."""
        self.numbers_made = 0
        """Partition numbers given out, ever."""
        self.queues: dict[bytes, Queue] = {}
        """By prefix."""
        self.places: dict[int, Place] = {}
        """By partition number."""
        self.leases: dict[int, Lease] = {}
        """By name."""
        self.agenda = Agenda[int]()
        """When leases run out."""
        self.sweeps = Agenda[bytes]()
        """When queues are swept, by prefix."""
        self.woken: dict[Wake, None] = {}
        """What became deliverable since the node last looked."""
        self.dirty = False
        """Whether anything changed since the last seal."""
        self.changed = changed
        """Where a shard enters itself when its first change comes."""
        self.forming: list[tuple[Queue, Partition]] = []
        """Logs with segments to seal."""
        self.leases_dirty: list[Lease] = []
        self.queues_dirty: list[Queue] = []
        self.deletes: list[bytes] = []
        self.ranges: list[tuple[bytes, bytes]] = []
        self._kept: list[Record] = []
        self._kept_bodies: list[Record] = []
        self.must_sync = False
        """Whether what changed has to survive power loss before any answer leaves."""
        self.sealed: list[tuple[Log, Segment]] = []
        """Segments whose bodies are in memory and in the store since the last seal."""
        self.to_merge: dict[int, tuple[Queue, Partition]] = {}
        """Partitions with many small segments, by key."""
        self.marked: dict[int, tuple[Queue, Partition]] = {}
        """Partitions that are ``os_marked``, by key."""
        self._tracks: list[Track] = []
        self._partitions: list[tuple[Queue, Partition]] = []
        self._schedule: dict[bytes, bytes | None] = {}
        self.numbers_made_dirty = False

    # What changed. Each thing is listed once, however often it changes before the commit.

    def touch(self) -> None:
        if not self.dirty:
            self.dirty = True
            self.changed.append(self)

    def touch_track(self, track: Track) -> None:
        if not track.dirty:
            track.dirty = True
            self.touch()
            self._tracks.append(track)

    def touch_lease(self, lease: Lease) -> None:
        if not lease.dirty:
            lease.dirty = True
            if lease.queue.options.durability == FSYNC:
                self.must_sync = True
            self.touch()
            self.leases_dirty.append(lease)

    def touch_partition(self, queue: Queue, partition: Partition) -> None:
        if not partition.dirty:
            partition.dirty = True
            self.touch()
            self._partitions.append((queue, partition))

    def touch_queue(self, queue: Queue) -> None:
        if not queue.dirty:
            queue.dirty = self.must_sync = True
            self.touch()
            self.queues_dirty.append(queue)

    def keep(self, record: Record) -> None:
        """Put a record with the next commit."""
        self.touch()
        self._kept.append(record)

    def keep_body(self, body: Record) -> None:
        self.touch()
        self._kept_bodies.append(body)

    def mark_os(self, queue: Queue, partition: Partition) -> None:
        """Ids of the partition are about to be confirmed that a power loss may take back: say so first."""
        if not partition.os_marked:
            partition.os_marked = self.must_sync = True
            self.marked[partition.key] = (queue, partition)
            self.touch_partition(queue, partition)

    def clear_marks(self) -> None:
        """Everything is synced: no id that was confirmed can be lost any more."""
        for queue, partition in self.marked.values():
            partition.os_marked = False
            self.touch_partition(queue, partition)
        self.marked.clear()

    # Names and numbers.

    def next_name(self) -> int:
        """A name for a lease or a body that nothing else ever has."""
        self.counter += 1
        return lease_name(self.epoch, self.counter)

    def check_numbers(self, count: int) -> None:
        """Raise unless so many partition numbers are left."""
        if (self.numbers_made + count) * self.shards + self.number >= NUMBERS_MAX:
            raise Busy("this shard has no partition numbers left")

    def next_number(self) -> int:
        """A partition number that leads back to this shard."""
        self.check_numbers(1)
        self.numbers_made += 1
        number = self.numbers_made * self.shards + self.number
        self.numbers_made_dirty = self.must_sync = True
        self.touch()
        return number

    def skip_numbers(self, count: int) -> None:
        """Pass over partition numbers that may have been given out unknown to the records."""
        self.check_numbers(count)
        self.numbers_made += count
        self.numbers_made_dirty = self.must_sync = True
        self.touch()

    # Making things.

    def add_queue(self, queue: Queue) -> None:
        self.queues[queue.prefix] = queue
        self.touch_queue(queue)

    def add_partition(self, queue: Queue, name: str) -> Partition:
        """A new, empty partition; every group reads it from its first message."""
        number = self.next_number()
        partition = new_partition(number, name, [(number, 0)], logs.load(0, []), [])
        queue.partitions[name] = partition
        self.places[number] = Place(queue, partition, 0)
        for group in queue.groups.values():
            new_track(queue, group, partition)
        self.touch_partition(queue, partition)
        return partition

    def renumber(self, queue: Queue, partition: Partition) -> None:
        """Give the partition a fresh number from the end of its log on, where a new segment begins."""
        number = self.next_number()
        partition.log.forming = None
        partition.numbers.append((number, partition.log.end))
        self.places[number] = Place(queue, partition, partition.log.end)
        self.touch_partition(queue, partition)

    # The schedule.

    def schedule(self, queue: Queue, group: Group, track: Track, run: Scheduled) -> None:
        heappush(track.schedule, run)
        track.scheduled += run.count
        if queue.stored:
            self._schedule[_scheduled_key(queue, group, track, run)] = records.pack_scheduled(run)
        self.touch()
        list_ready(group, track)

    def unschedule(self, queue: Queue, group: Group, track: Track, run: Scheduled) -> None:
        """``run`` was taken off the heap."""
        track.scheduled -= run.count
        if queue.stored:
            self._schedule[_scheduled_key(queue, group, track, run)] = None
        self.touch()

    # Sweeps.

    def plan_sweep(self, queue: Queue, now: int) -> None:
        """Something of ``queue`` was settled: look at the next round time what may go."""
        if not queue.sweep_at:
            queue.sweep_at = next_sweep_at(now)
            self.sweeps.add(queue.sweep_at, queue.prefix)

    # The commit.

    def seal(self, now: int) -> Commit:
        """Everything that changed since the last seal, encoded once."""
        puts, bodies, deletes, ranges = self._kept, self._kept_bodies, self.deletes, self.ranges
        for queue, partition in self.forming:
            self._seal_segments(queue, partition, puts, bodies)
        for track in self._tracks:
            track.dirty = False
            if track.key:
                puts.append((track.key, records.pack_cursor(track)))
        for lease in self.leases_dirty:
            lease.dirty = False
            if not lease.queue.stored:
                continue
            if not lease.ended:
                lease.stored = True
                puts.append((records.lease_key(lease.queue.prefix, lease.name), records.pack_lease(lease)))
            elif lease.stored:
                deletes.append(records.lease_key(lease.queue.prefix, lease.name))
        if self._schedule:
            for key, value in self._schedule.items():
                if value is None:
                    deletes.append(key)
                else:
                    puts.append((key, value))
            self._schedule = {}
        if self._partitions or self.queues_dirty or self.numbers_made_dirty:
            self._seal_rare(puts)
        self.forming, self._tracks, self.leases_dirty, self.deletes, self.ranges = [], [], [], [], []
        self._kept, self._kept_bodies = [], []
        self.dirty = self.must_sync = False
        return Commit(self.number, self.epoch, now, puts, deletes, bodies, ranges)

    def _seal_segments(
        self, queue: Queue, partition: Partition, puts: list[Record], bodies: list[Record]
    ) -> None:
        log = partition.log
        log.forming = None
        for segment in reversed(log.segments):
            if segment.payloads is None:
                break
            name = self.next_name()
            body = logs.seal(segment, name)
            if queue.stored:
                bodies.append((records.body_key(queue.prefix, name), body))
                key = records.header_key(queue.prefix, partition.key, segment.base)
                puts.append((key, records.pack_header(segment)))
                self.sealed.append((log, segment))
            partition.unmerged += 1
        if partition.unmerged >= MERGE_AT:
            self.to_merge[partition.key] = (queue, partition)

    def _seal_rare(self, puts: list[Record]) -> None:
        for queue, partition in self._partitions:
            partition.dirty = False
            if not queue.stored:
                continue
            key = records.partition_key(queue.prefix, partition.key)
            puts.append((key, records.pack_partition(partition)))
        for queue in self.queues_dirty:
            queue.dirty = False
            puts.append((records.queue_key(queue.prefix), records.pack_queue(queue)))
            if queue.stored:
                puts += [
                    (records.group_key(queue.prefix, group.number), records.pack_group(group))
                    for group in queue.groups.values()
                ]
        if self.numbers_made_dirty:
            puts.append((records.shard_key(self.number), records.pack_numbers((self.numbers_made,))))
        self._partitions, self.queues_dirty, self.numbers_made_dirty = [], [], False


def new_partition(
    key: int, name: str, numbers: list[tuple[int, int]], log: Log, marks: list[Mark]
) -> Partition:
    """A partition whose log was never looked at for merging."""
    merged_to = [log.first, log.first]
    return Partition(key=key, name=name, numbers=numbers, log=log, marks=marks, merged_to=merged_to)


def _scheduled_key(queue: Queue, group: Group, track: Track, run: Scheduled) -> bytes:
    return records.scheduled_key(queue.prefix, group.number, track.partition.key, run.due_at, run.first)


def new_track(queue: Queue, group: Group, partition: Partition, cursor: int = 0) -> Track:
    """A track that begins at ``cursor``."""
    key = records.cursor_key(queue.prefix, group.number, partition.key) if queue.stored else b""
    track = Track(partition=partition, key=key, cursor=cursor, schedule=[], singles={}, spans=[])
    group.tracks[partition.key] = track
    return track


def list_ready(group: Group, track: Track) -> None:
    """Put the track among those that may have something to deliver."""
    if not track.listed:
        track.listed = True
        heappush(group.ready, (track.turn, track.partition.key))


def hold(shard: Shard, lease: Lease) -> None:
    """Enter a lease everywhere it is looked for."""
    name = lease.name
    shard.leases[name] = lease
    shard.agenda.add(lease.due_at, name)
    tracks = lease.group.tracks
    for run in lease.runs.values():
        hold_run(tracks[run.partition], run, name)


def hold_run(track: Track, run: LeaseRun, name: int) -> None:
    """Enter a leased run where its messages are looked for."""
    if run.count == 1:
        track.singles[run.first] = name
        track.leased += 1
    else:
        insort(track.spans, (run.first, run.count, name))
        track.leased += run.unsettled
