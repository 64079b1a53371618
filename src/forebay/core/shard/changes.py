"""What changed in a shard since its last commit, and how it becomes one.

A command marks what it touched. ``seal`` encodes each touched thing once, however often it changed, and
returns one commit.
"""

from collections.abc import Callable
from itertools import islice

from forebay.core.api.commands import Wake
from forebay.core.log import log as logs
from forebay.core.records import codec, keyspace
from forebay.core.records.commit import Commit, Record
from forebay.core.shard.change_log import ChangeLog
from forebay.core.shard.numbering import Numbering
from forebay.core.state import Lease, Log, Notes, Part, Partition, Queue, Segment, Track
from forebay.core.words import FSYNC

MERGE_AT = 128
"""Segments sealed in a partition before merging looks at it."""


class Changes:
    """The dirty set of a shard."""

    __slots__ = (
        "_bodies",
        "_puts",
        "body_ranges",
        "change_log",
        "clears",
        "deletes",
        "dirty",
        "forming",
        "leases",
        "must_sync",
        "notes",
        "numbering",
        "on_first",
        "os_marked",
        "partitions",
        "queues",
        "ranges",
        "rows",
        "sealed",
        "seals",
        "staged_now",
        "to_carve",
        "to_merge",
        "tracks",
        "woken",
    )

    def __init__(self, numbering: Numbering) -> None:
        self.numbering = numbering
        self.on_first: Callable[[], None] = lambda: None
        """Called by the first change after a seal."""
        self.dirty = False
        """Whether anything changed since the last seal."""
        self.must_sync = False
        """Whether the changes have to survive power loss before any reply leaves."""
        self.seals = 0
        """Commits sealed so far."""
        self.change_log = ChangeLog()
        """Lifecycle changes, for events and metrics."""
        self.woken: dict[Wake, None] = {}
        """What became deliverable since the node last looked."""
        self.forming: list[tuple[Queue, Partition]] = []
        """Logs with segments to seal."""
        self.notes: list[tuple[Queue, Notes]] = []
        """Notes with segments to seal."""
        self.tracks: list[Track] = []
        """Tracks, leases, partitions and queues whose records have to be written again."""
        self.leases: list[Lease] = []
        self.partitions: list[tuple[Queue, Partition]] = []
        self.queues: list[Queue] = []
        self.rows: dict[bytes, bytes | None] = {}
        """Records of single runs and messages, and headers that are replaced, by key: the last change counts.
        None deletes. Schedules write to it directly: a call more made pops of mixed priorities 7 % slower."""
        self._puts: list[Record] = []
        self._bodies: list[Record] = []
        self.deletes: list[bytes] = []
        self.ranges: list[tuple[bytes, bytes]] = []
        """Key ranges deleted after the puts of the commit."""
        self.body_ranges: list[tuple[bytes, bytes]] = []
        self.clears: list[tuple[bytes, bytes]] = []
        """Key ranges deleted before anything else of the commit."""
        self.sealed: list[tuple[Log, Segment]] = []
        """Segments whose bodies are in memory and, with the last seal's commit, in the store."""
        self.staged_now: tuple[list[Part], list[Part]] = ([], [])
        """Parts staged before the last seal, and since: a body stays in memory until the store has it."""
        self.os_marked: dict[int, tuple[Queue, Partition]] = {}
        """Partitions that are ``os_marked``, by key."""
        self.to_merge: dict[int, tuple[Queue, Partition]] = {}
        """Partitions with many small segments, by key: work for the background."""
        self.to_carve: dict[tuple[int, int], tuple[Queue, Partition, Segment]] = {}
        """Islands that are mostly settled, by partition key and first offset: work for the background."""

    # Mark what changed. Each thing is listed once, however often it changes before the commit.

    def touch(self) -> None:
        if not self.dirty:
            self.dirty = True
            self.on_first()

    def touch_track(self, track: Track) -> None:
        if not track.dirty:
            track.dirty = True
            self.touch()
            self.tracks.append(track)

    def touch_lease(self, lease: Lease) -> None:
        if not lease.dirty:
            lease.dirty = True
            if lease.queue.options.durability == FSYNC:
                self.must_sync = True
            self.touch()
            self.leases.append(lease)

    def touch_partition(self, queue: Queue, partition: Partition) -> None:
        if not partition.dirty:
            partition.dirty = True
            self.touch()
            self.partitions.append((queue, partition))

    def touch_queue(self, queue: Queue) -> None:
        if not queue.dirty:
            queue.dirty = self.must_sync = True
            self.touch()
            self.queues.append(queue)

    def put(self, record: Record) -> None:
        """Put a record with the next commit."""
        self.touch()
        self._puts.append(record)

    def put_body(self, body: Record) -> None:
        self.touch()
        self._bodies.append(body)

    def put_row(self, queue: Queue, key: bytes, value: bytes | None) -> None:
        """Put the record of a run or a message with the next commit; None deletes it."""
        if queue.stored:
            self.rows[key] = value
        self.touch()

    def put_own(self, key: bytes, value: bytes | None) -> None:
        """Put a record of the tenant that belongs to no queue; None deletes it."""
        self.rows[key] = value
        self.must_sync = True
        self.touch()

    def clear_rows(self, queue: Queue, bounds: list[tuple[bytes, bytes]]) -> None:
        """Delete the records of runs between some keys, those of the forming commit included."""
        if queue.stored:
            self.clears += bounds
            gone = [key for key in self.rows if any(low <= key < high for low, high in bounds)]
            for key in gone:
                del self.rows[key]
        self.touch()

    def ask_sync(self) -> None:
        """Have the next seal ask for a sync, even if nothing else changes."""
        self.must_sync = True
        self.touch()

    def sync_for(self, queue: Queue) -> None:
        """Make the next commit as durable as replies of the queue promise."""
        if queue.options.durability == FSYNC:
            self.must_sync = True

    def mark_os(self, queue: Queue, partition: Partition) -> None:
        """Record that a power loss may take back ids of a partition, before the first one is confirmed."""
        if not partition.os_marked:
            partition.os_marked = self.must_sync = True
            self.os_marked[partition.key] = (queue, partition)
            self.touch_partition(queue, partition)

    def clear_marks(self) -> None:
        """Remove the marks: everything is synced, so no confirmed id can be lost any more."""
        for queue, partition in self.os_marked.values():
            partition.os_marked = False
            self.touch_partition(queue, partition)
        self.os_marked.clear()

    def forget_queue(self, queue: Queue) -> None:
        """Drop pending changes of a queue that is being removed."""
        self.notes = [each for each in self.notes if each[0] is not queue]
        self.leases = [each for each in self.leases if each.queue is not queue]
        self.queues = [each for each in self.queues if each is not queue]
        for wake in [wake for wake in self.woken if wake[0] is queue]:
            del self.woken[wake]

    def forget_group(self, queue: Queue, group: str) -> None:
        """Drop pending changes of a group that is being removed."""
        self.tracks = [each for each in self.tracks if each.queue is not queue or each.group.name != group]
        for wake in [wake for wake in self.woken if wake[0] is queue and wake[1] == group]:
            del self.woken[wake]

    def forget_partitions(self, keys: set[int]) -> None:
        """Drop pending changes of partitions that are being removed."""
        for key in keys:
            self.to_merge.pop(key, None)
            self.os_marked.pop(key, None)
        self.forming = [each for each in self.forming if each[1].key not in keys]
        self.partitions = [each for each in self.partitions if each[1].key not in keys]
        self.tracks = [each for each in self.tracks if each.partition.key not in keys]

    # The commit.

    def seal(self, now: int) -> Commit:
        """Return everything that changed since the last seal, encoded once."""
        if any(self.staged_now):
            for part in self.staged_now[0]:
                part.body = None
            self.staged_now = (self.staged_now[1], [])
        puts, bodies, deletes, ranges = self._puts, self._bodies, self.deletes, self.ranges
        for queue, partition in self.forming:
            self._seal_segments(queue, partition, puts, bodies)
        for queue, notes in self.notes:
            self._seal_notes(queue, notes, puts, bodies)
        for track in self.tracks:
            track.dirty = False
            if track.key:
                puts.append((track.key, codec.pack_cursor(track)))
        for lease in self.leases:
            lease.dirty = False
            if not lease.queue.stored:
                continue
            if not lease.ended:
                lease.stored = True
                puts.append((keyspace.lease_key(lease.queue.prefix, lease.name), codec.pack_lease(lease)))
            elif lease.stored:
                deletes.append(keyspace.lease_key(lease.queue.prefix, lease.name))
        if self.rows:
            for key, value in self.rows.items():
                if value is None:
                    deletes.append(key)
                else:
                    puts.append((key, value))
            self.rows = {}
        if self.partitions or self.queues or self.numbering.dirty:
            self._seal_rare(puts)
        self.forming, self.tracks, self.leases, self.deletes, self.ranges = [], [], [], [], []
        self._puts, self._bodies, self.notes = [], [], []
        body_ranges, self.body_ranges = self.body_ranges, []
        clears, self.clears = self.clears, []
        self.dirty = self.must_sync = False
        self.seals += 1
        numbering = self.numbering
        return Commit(
            numbering.number, numbering.epoch, now, puts, deletes, bodies, ranges, body_ranges, clears
        )

    def count_segment(self, queue: Queue, partition: Partition) -> None:
        """Count one more sealed segment of a partition; have many of them merged."""
        partition.unmerged += 1
        if partition.unmerged >= MERGE_AT:
            self.to_merge[partition.key] = (queue, partition)

    def seal_now(self, queue: Queue, partition: Partition) -> None:
        """Seal the forming segments of a partition: what comes next starts a new one."""
        if partition.log.forming is not None:
            self._seal_segments(queue, partition, self._puts, self._bodies)

    def _seal_segments(
        self, queue: Queue, partition: Partition, puts: list[Record], bodies: list[Record]
    ) -> None:
        log = partition.log
        log.forming = None
        for segment in reversed(log.segments):
            if segment.payloads is None:
                break
            name = self.numbering.next_name()
            body = logs.seal(segment, name)
            if queue.stored:
                bodies.append((keyspace.body_key(queue.prefix, name), body))
                key = keyspace.header_key(queue.prefix, partition.key, segment.base)
                puts.append((key, codec.pack_header(segment)))
                self.sealed.append((log, segment))
            self.count_segment(queue, partition)

    def _seal_notes(self, queue: Queue, notes: Notes, puts: list[Record], bodies: list[Record]) -> None:
        log = notes.log
        log.forming = None
        for segment in reversed(log.segments):
            if segment.payloads is None:
                break
            body = logs.seal(segment, name := self.numbering.next_name())
            if queue.stored:
                bodies.append((keyspace.body_key(queue.prefix, name), body))
                rows = islice(notes.about.since(segment.base), segment.count)
                about = [(partition, offset) for _, partition, offset in rows]
                key = keyspace.notes_key(queue.prefix, notes.kind, segment.base)
                puts.append((key, codec.pack_notes(segment, about)))
                self.sealed.append((log, segment))

    def _seal_rare(self, puts: list[Record]) -> None:
        for queue, partition in self.partitions:
            partition.dirty = False
            if not queue.stored:
                continue
            key = keyspace.partition_key(queue.prefix, partition.key)
            puts.append((key, codec.pack_partition(partition)))
        for queue in self.queues:
            queue.dirty = False
            puts.append((keyspace.queue_key(queue.prefix), codec.pack_queue(queue)))
            if queue.stored:
                puts += [
                    (keyspace.group_key(queue.prefix, group.number), codec.pack_group(group))
                    for group in queue.groups.values()
                ]
        if self.numbering.dirty:
            numbering = self.numbering
            numbers = (numbering.made, numbering.queues_made, numbering.tenants_made)
            puts.append((keyspace.numbers_key(numbering.number), codec.pack_numbers(numbers)))
        self.partitions, self.queues, self.numbering.dirty = [], [], False
