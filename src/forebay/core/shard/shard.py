"""A shard: queues whose commands apply one after another, and the records they made dirty.

Changes mark what they touched. ``seal`` encodes each touched thing once and hands out one commit.
"""

from itertools import islice
from typing import NamedTuple

from forebay.core.api.commands import Wake
from forebay.core.bounds import NEVER, NUMBERS_MAX, Limits
from forebay.core.errors import Busy
from forebay.core.ids import lease_name
from forebay.core.log import log as logs
from forebay.core.records import codec, keyspace
from forebay.core.records.commit import Commit, Record
from forebay.core.shard.ends import Ended, NotificationQueue
from forebay.core.shard.tracks import list_anew, list_ready, new_partition, new_track, scheduled_key_of
from forebay.core.state import (
    ChangeLog,
    Lease,
    Limiter,
    Log,
    Notes,
    Part,
    Partition,
    Queue,
    Scheduled,
    Segment,
    Track,
    fresh_count,
)
from forebay.core.structures.agenda import Agenda, Alarm
from forebay.core.words import DEFAULT, FSYNC

MERGE_AT = 128
"""Segments sealed in a partition before merging looks at it."""
CANCELLED_MAX = 10_000
"""Cancelled leases that a shard remembers."""
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


SERIAL_BITS = 44
"""Of a serial within one epoch: years of them. A million epochs are left."""


class Shard:
    """The state of one shard and what changed in it since the last commit."""

    __slots__ = (
        "_kept",
        "_kept_bodies",
        "_rows",
        "agenda",
        "alarm",
        "body_ranges",
        "cancelled",
        "changed",
        "clears",
        "counter",
        "crons",
        "deletes",
        "dirty",
        "dues",
        "emptied",
        "ends",
        "epoch",
        "forming",
        "happened",
        "leases",
        "leases_dirty",
        "leases_over",
        "limited",
        "limiters",
        "limits",
        "marked",
        "must_sync",
        "notes",
        "number",
        "numbers",
        "numbers_made",
        "numbers_made_dirty",
        "onces",
        "over",
        "partitions_dirty",
        "pauses",
        "peers",
        "places",
        "queues",
        "queues_dirty",
        "ranges",
        "sealed",
        "seals",
        "shards",
        "staged",
        "staged_now",
        "sweeps",
        "tied",
        "to_carve",
        "to_merge",
        "tracks_dirty",
        "unfinished",
        "updated",
        "watched",
        "woken",
    )

    def __init__(
        self,
        number: int,
        shards: int,
        epoch: int,
        limits: Limits,
        changed: list["Shard"],
        alarm: Alarm,
        updated: set[int],
        ends: list["Ended"],
        unfinished: dict[int, NotificationQueue],
    ) -> None:
        self.number = number
        self.shards = shards
        self.epoch = epoch
        self.limits = limits
        self.alarm = alarm
        self.updated = updated
        """Keys of partitions, of any shard, that have successors of messages."""
        self.ends = ends
        self.leases_over = 0
        """Leases whose time was up before they were settled, since the shard was loaded."""
        self.emptied: dict[bytes, Queue] = {}
        """Closed queues of all shards of which a lease has ended, by prefix."""
        """What ended, in any shard, and has consequences that have not been seen to yet."""
        self.unfinished = unfinished
        """What ended, in any shard, and has dependents that have not all been told, by partition key."""
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
        self.cancelled: dict[int, str] = {}
        """Leases, by name, that ended because all was cancelled, and their tenants: the last few thousand."""
        self.dues = Agenda[Track]()
        """When schedules have something that becomes due."""
        self.tied = Agenda[tuple[int, int]]()
        """When the time to live of messages ends whose end has consequences, by partition key and offset."""
        self.onces = Agenda[tuple[bytes, bytes]]()
        """When answers of pushes may be forgotten, by prefix of the queue and kind and key."""
        self.limited = Agenda[tuple[bytes, str]]()
        """When limits let something go again, by prefix of the queue and name of the group."""
        self.limiters: dict[str, dict[str, Limiter]] = {}
        """Limits that have names, by tenant and name; the same for every shard of the node."""
        self.peers: list[Shard] = [self]
        """Every shard of the node, by number."""
        self.staged = Agenda[tuple[bytes, bool, str]]()
        """When stages, or else answers of adoptions, are forgotten: prefix of the queue, which, and name."""
        self.staged_now: tuple[list[Part], list[Part]] = ([], [])
        """What was staged before the last seal, and since: a body stays in memory until the store has it."""
        self.crons = Agenda[tuple[str, str]]()
        """When crons of its queues come, by tenant and name."""
        self.pauses = Agenda[bytes]()
        """When pauses of queues end, by prefix."""
        self.happened = ChangeLog()
        """What happened since the last commit."""
        self.woken: dict[Wake, None] = {}
        """What became deliverable since the node last looked."""
        self.dirty = False
        """Whether anything changed since the last seal."""
        self.changed = changed
        """Where a shard enters itself when its first change comes."""
        self.forming: list[tuple[Queue, Partition]] = []
        """Logs with segments to seal."""
        self.notes: list[tuple[Queue, Notes]] = []
        """Notes with segments to seal."""
        self.watched: dict[int, set[int]] = {}
        """Offsets of messages whose end somebody waits for, by partition key."""
        self.over: list[tuple[int, int]] = []
        """Partition key and offset of those of them that something happened to."""
        self.leases_dirty: list[Lease] = []
        self.queues_dirty: list[Queue] = []
        self.deletes: list[bytes] = []
        self.ranges: list[tuple[bytes, bytes]] = []
        self.body_ranges: list[tuple[bytes, bytes]] = []
        self.clears: list[tuple[bytes, bytes]] = []
        self._kept: list[Record] = []
        self._kept_bodies: list[Record] = []
        self.must_sync = False
        """Whether what changed has to survive power loss before any answer leaves."""
        self.sealed: list[tuple[Log, Segment]] = []
        """Segments whose bodies are in memory and in the store since the last seal."""
        self.seals = 0
        """Commits sealed so far."""
        self.to_carve: dict[tuple[int, int], tuple[Queue, Partition, Segment]] = {}
        """Islands that are mostly settled, by partition key and first offset."""
        self.to_merge: dict[int, tuple[Queue, Partition]] = {}
        """Partitions with many small segments, by key."""
        self.marked: dict[int, tuple[Queue, Partition]] = {}
        """Partitions that are ``os_marked``, by key."""
        self.tracks_dirty: list[Track] = []
        self.partitions_dirty: list[tuple[Queue, Partition]] = []
        self._rows: dict[bytes, bytes | None] = {}
        """Records of runs: scheduled, dead, outcomes, skips, withdrawn. None: to be deleted."""
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
            self.tracks_dirty.append(track)

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
            self.partitions_dirty.append((queue, partition))

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

    def next_serial(self) -> int:
        """A number greater than any before, whatever restarts."""
        self.counter += 1
        return self.epoch << SERIAL_BITS | self.counter

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

    def keep_row(self, queue: Queue, key: bytes, value: bytes | None) -> None:
        """Put or delete the record of a run with the next commit."""
        if queue.stored:
            self._rows[key] = value
        self.touch()

    def keep_own(self, key: bytes, value: bytes | None) -> None:
        """Put or delete a record that is a tenant's, but no queue's, with the next commit."""
        self._rows[key] = value
        self.must_sync = True
        self.touch()

    def clear_rows(self, queue: Queue, bounds: list[tuple[bytes, bytes]]) -> None:
        """Forget all records of runs between some keys, those of this commit so far included."""
        if queue.stored:
            self.clears += bounds
            gone = [key for key in self._rows if any(low <= key < high for low, high in bounds)]
            for key in gone:
                del self._rows[key]
        self.touch()

    def sync_for(self, queue: Queue) -> None:
        """What changed of a queue has to survive as much as its answers promise."""
        if queue.options.durability == FSYNC:
            self.must_sync = True

    def renumber(self, queue: Queue, partition: Partition) -> None:
        """Give the partition a fresh number from the end of its log on, where a new segment begins."""
        number = self.next_number()
        partition.log.forming = None
        partition.numbers.append((number, partition.log.end))
        self.places[number] = Place(queue, partition, partition.log.end)
        self.touch_partition(queue, partition)

    def remember_cancelled(self, name: int, tenant: str) -> None:
        """A lease ended because it was cancelled: its consumer will ask."""
        self.cancelled[name] = tenant
        if len(self.cancelled) > CANCELLED_MAX:
            del self.cancelled[next(iter(self.cancelled))]

    def end(self, track: Track, first: int, end: int, how: int) -> None:
        """Messages of a track ended: what follows from that is seen to with the command."""
        if track.partition.concerned and track.group.name == DEFAULT:
            self.ends.append(Ended(self, track.queue, track.partition, first, end, how))

    def tell(self, partition: int, first: int, end: int) -> None:
        """Something happened to messages of a partition that may be their end."""
        watched = self.watched.get(partition)
        if watched:
            few = watched if len(watched) < end - first else range(first, end)
            hit = [each for each in few if first <= each < end and each in watched]
            self.over += [(partition, each) for each in hit]
            watched.difference_update(hit)
            if not watched:
                del self.watched[partition]

    # The schedule.

    def schedule(self, track: Track, run: Scheduled, now: int) -> None:
        """Have a run delivered at its time."""
        track.schedule.add(run, now)
        if track.key:
            self._rows[scheduled_key_of(track, run)] = codec.pack_scheduled(run)
        self.touch()
        if track.queue.gated:
            self.plan_sweep(track.queue, now)
        if run.due_at > now:
            if run.due_at < track.due_at:
                self.look_at(track, run.due_at)
        else:
            list_ready(track, run.level)
            self.woken[track.queue, track.group.name, track.partition.name] = None

    def unschedule(self, track: Track, run: Scheduled) -> None:
        track.schedule.remove(run)
        if track.key:
            self._rows[scheduled_key_of(track, run)] = None
        self.touch()

    def look_at(self, track: Track, due_at: int) -> None:
        """Look at the schedule of a track again when it has something due."""
        if track.due_at != NEVER:
            self.dues.remove(track.due_at, track)
        track.due_at = due_at
        if due_at != NEVER:
            self.dues.add(due_at, track)
            self.alarm.sooner(due_at)

    def ring(self, now: int) -> None:
        """List what has become due, and tell those who wait."""
        while tracks := self.dues.first_due(now):
            for track in tracks:
                level = track.schedule.ready_level(now)
                self.look_at(track, track.schedule.next_due_at(now))
                if level is not None or fresh_count(track):
                    # What its queue held back may go now, too: a pop will find out.
                    list_anew(track, now)
                    self.touch()
                    self.woken[track.queue, track.group.name, track.partition.name] = None
        while prefixes := self.pauses.first_due(now):
            for prefix in prefixes:
                self.end_pause(self.queues[prefix])

    def reconsider(self, track: Track, now: int) -> None:
        """What a track was held back for may be gone: have a pop look."""
        if track.queue.options.window_buffer_ms or track.queue.ordered:
            list_anew(track, now)
            self.woken[track.queue, track.group.name, track.partition.name] = None

    def look_anew(self, queue: Queue, now: int) -> None:
        """What a queue held back may go now: have pops look."""
        for group in queue.groups.values():
            for track in group.tracks.values():
                if fresh_count(track) or track.schedule.messages:
                    list_anew(track, now)
        self.woken[queue, None, None] = None

    # Pauses.

    def pause(self, queue: Queue, until: int) -> None:
        if queue.paused_until not in (0, NEVER):
            self.pauses.remove(queue.paused_until, queue.prefix)
        queue.paused_until = until
        if until not in (0, NEVER):
            self.pauses.add(until, queue.prefix)
            self.alarm.sooner(until)
        self.touch_queue(queue)

    def end_pause(self, queue: Queue) -> None:
        self.pause(queue, 0)
        self.woken[queue, None, None] = None

    # Sweeps.

    def plan_sweep(self, queue: Queue, now: int) -> None:
        """Something of ``queue`` was settled: look at the next round time what may go."""
        queue.unswept = True
        self.sweep_again(queue, now)

    def sweep_again(self, queue: Queue, now: int) -> None:
        """Look at the next round time after ``now`` what of a queue may go."""
        at = next_sweep_at(now)
        if queue.sweep_at:
            if queue.sweep_at <= at:
                return
            self.sweeps.remove(queue.sweep_at, queue.prefix)
        queue.sweep_at = at
        self.sweeps.add(at, queue.prefix)
        self.alarm.sooner(at)

    def next_at(self) -> int:
        """When the next thing is due."""
        agendas = (self.agenda, self.sweeps, self.dues, self.pauses)
        rarer = (self.tied, self.onces, self.crons, self.limited, self.staged)
        return min(agenda.next_at() for agenda in (*agendas, *rarer))

    # The commit.

    def seal(self, now: int) -> Commit:
        """Everything that changed since the last seal, encoded once."""
        if any(self.staged_now):
            for part in self.staged_now[0]:
                part.body = None
            self.staged_now = (self.staged_now[1], [])
        puts, bodies, deletes, ranges = self._kept, self._kept_bodies, self.deletes, self.ranges
        for queue, partition in self.forming:
            self._seal_segments(queue, partition, puts, bodies)
        for queue, notes in self.notes:
            self._seal_notes(queue, notes, puts, bodies)
        for track in self.tracks_dirty:
            track.dirty = False
            if track.key:
                puts.append((track.key, codec.pack_cursor(track)))
        for lease in self.leases_dirty:
            lease.dirty = False
            if not lease.queue.stored:
                continue
            if not lease.ended:
                lease.stored = True
                puts.append((keyspace.lease_key(lease.queue.prefix, lease.name), codec.pack_lease(lease)))
            elif lease.stored:
                deletes.append(keyspace.lease_key(lease.queue.prefix, lease.name))
        if self._rows:
            for key, value in self._rows.items():
                if value is None:
                    deletes.append(key)
                else:
                    puts.append((key, value))
            self._rows = {}
        if self.partitions_dirty or self.queues_dirty or self.numbers_made_dirty:
            self._seal_rare(puts)
        self.forming, self.tracks_dirty, self.leases_dirty, self.deletes, self.ranges = [], [], [], [], []
        self._kept, self._kept_bodies, self.notes = [], [], []
        body_ranges, self.body_ranges = self.body_ranges, []
        clears, self.clears = self.clears, []
        self.dirty = self.must_sync = False
        self.seals += 1
        return Commit(self.number, self.epoch, now, puts, deletes, bodies, ranges, body_ranges, clears)

    def seal_now(self, queue: Queue, partition: Partition) -> None:
        """Have nothing form in a partition: what comes next is no longer part of it."""
        if partition.log.forming is not None:
            self._seal_segments(queue, partition, self._kept, self._kept_bodies)

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
                bodies.append((keyspace.body_key(queue.prefix, name), body))
                key = keyspace.header_key(queue.prefix, partition.key, segment.base)
                puts.append((key, codec.pack_header(segment)))
                self.sealed.append((log, segment))
            partition.unmerged += 1
        if partition.unmerged >= MERGE_AT:
            self.to_merge[partition.key] = (queue, partition)

    def _seal_notes(self, queue: Queue, notes: Notes, puts: list[Record], bodies: list[Record]) -> None:
        log = notes.log
        log.forming = None
        for segment in reversed(log.segments):
            if segment.payloads is None:
                break
            body = logs.seal(segment, name := self.next_name())
            if queue.stored:
                bodies.append((keyspace.body_key(queue.prefix, name), body))
                rows = islice(notes.about.since(segment.base), segment.count)
                about = [(partition, offset) for _, partition, offset in rows]
                key = keyspace.notes_key(queue.prefix, notes.kind, segment.base)
                puts.append((key, codec.pack_notes(segment, about)))
                self.sealed.append((log, segment))

    def _seal_rare(self, puts: list[Record]) -> None:
        for queue, partition in self.partitions_dirty:
            partition.dirty = False
            if not queue.stored:
                continue
            key = keyspace.partition_key(queue.prefix, partition.key)
            puts.append((key, codec.pack_partition(partition)))
        for queue in self.queues_dirty:
            queue.dirty = False
            puts.append((keyspace.queue_key(queue.prefix), codec.pack_queue(queue)))
            if queue.stored:
                puts += [
                    (keyspace.group_key(queue.prefix, group.number), codec.pack_group(group))
                    for group in queue.groups.values()
                ]
        if self.numbers_made_dirty:
            puts.append((keyspace.shard_key(self.number), codec.pack_numbers((self.numbers_made,))))
        self.partitions_dirty, self.queues_dirty, self.numbers_made_dirty = [], [], False
