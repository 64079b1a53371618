"""A shard: queues whose commands apply one after another.

It is made of what it knows (queues, leases, places of partition numbers), its ``changes`` since the last
commit, its ``timers``, and the ``numbering`` that names leases, bodies and partitions.
"""

from typing import NamedTuple

from forebay.core.bounds import NEVER, Limits
from forebay.core.log import log as logs
from forebay.core.records import codec
from forebay.core.shard.changes import Changes
from forebay.core.shard.ends import Ended, NotificationQueue
from forebay.core.shard.numbering import Numbering
from forebay.core.shard.timers import Timers
from forebay.core.shard.tracks import list_ready, new_partition, new_track, relist, scheduled_key_of
from forebay.core.state import Lease, Limiter, Partition, Queue, Scheduled, Track, fresh_count
from forebay.core.structures.agenda import Alarm
from forebay.core.words import DEFAULT

CANCELLED_MAX = 10_000
"""Cancelled leases that a shard remembers."""


class Place(NamedTuple):
    """What a partition number leads to."""

    queue: Queue
    partition: Partition
    first: int
    """Offset of the first message under the number."""


class Shard:
    """The state of one shard."""

    __slots__ = (
        "cancelled",
        "changes",
        "emptied",
        "ends",
        "expired_leases",
        "leases",
        "limiters",
        "limits",
        "notifications",
        "number",
        "numbering",
        "peers",
        "places",
        "queues",
        "timers",
        "updated",
        "watched",
        "watched_changed",
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
        notifications: dict[int, NotificationQueue],
    ) -> None:
        self.number = number
        self.limits = limits
        self.numbering = Numbering(number, shards, epoch)
        self.changes = Changes(self.numbering, lambda: changed.append(self))
        self.timers = Timers(alarm)
        self.queues: dict[bytes, Queue] = {}
        """By prefix."""
        self.places: dict[int, Place] = {}
        """By partition number."""
        self.leases: dict[int, Lease] = {}
        """By name."""
        self.cancelled: dict[int, str] = {}
        """Tenants of leases that ended because all of it was cancelled, by lease name: the last thousands."""
        self.expired_leases = 0
        """Leases that expired before they were settled, since the shard was loaded."""
        self.emptied: dict[bytes, Queue] = {}
        """Closed queues, of all shards, of which a lease has ended, by prefix."""
        self.ends = ends
        """Ended messages, of all shards, whose consequences are still to be settled."""
        self.notifications = notifications
        """Ended messages, of all shards, whose dependents are still to be notified, by partition key."""
        self.updated = updated
        """Keys of partitions, of all shards, with messages that have successors."""
        self.limiters: dict[str, dict[str, Limiter]] = {}
        """Named limits by tenant and name; the same for every shard of the node."""
        self.peers: list[Shard] = [self]
        """Every shard of the node, by number."""
        self.watched: dict[int, set[int]] = {}
        """Offsets of messages whose end a client waits for, by partition key."""
        self.watched_changed: list[tuple[int, int]] = []
        """Partition key and offset of watched messages that changed."""

    # Add queues and partitions.

    def add_queue(self, queue: Queue) -> None:
        self.queues[queue.prefix] = queue
        self.changes.touch_queue(queue)

    def add_partition(self, queue: Queue, name: str) -> Partition:
        """Add an empty partition; every group reads it from its first message."""
        number = self.next_number()
        partition = new_partition(number, name, [(number, 0)], logs.load(0, []), [])
        queue.partitions[name] = partition
        self.places[number] = Place(queue, partition, 0)
        for group in queue.groups.values():
            new_track(queue, group, partition)
        self.changes.touch_partition(queue, partition)
        return partition

    def next_number(self) -> int:
        """Take a partition number, and have it stored before any id under it is confirmed."""
        number = self.numbering.next_number()
        self.changes.must_sync = True
        self.changes.touch()
        return number

    def skip_numbers(self, count: int) -> None:
        """Pass over partition numbers that a restored backup may not know of."""
        self.numbering.skip(count)
        self.changes.must_sync = True
        self.changes.touch()

    def renumber(self, queue: Queue, partition: Partition) -> None:
        """Give a partition a fresh number from the end of its log on, where a new segment starts."""
        number = self.next_number()
        partition.log.forming = None
        partition.numbers.append((number, partition.log.end))
        self.places[number] = Place(queue, partition, partition.log.end)
        self.changes.touch_partition(queue, partition)

    # Record ends.

    def remember_cancelled(self, name: int, tenant: str) -> None:
        """Remember a lease that ended by a cancel: its consumer will try to extend it."""
        self.cancelled[name] = tenant
        if len(self.cancelled) > CANCELLED_MAX:
            del self.cancelled[next(iter(self.cancelled))]

    def end(self, track: Track, first: int, end: int, how: int) -> None:
        """Record that messages ended, if that has consequences: the command settles those before it
        replies."""
        if track.partition.links_count and track.group.name == DEFAULT:
            self.ends.append(Ended(self, track.queue, track.partition, first, end, how))

    def notify_watchers(self, partition: int, first: int, end: int) -> None:
        """Report watched messages of [first, end), which changed and may have ended, and stop watching
        them."""
        watched = self.watched.get(partition)
        if watched:
            few = watched if len(watched) < end - first else range(first, end)
            hit = [each for each in few if first <= each < end and each in watched]
            self.watched_changed += [(partition, each) for each in hit]
            watched.difference_update(hit)
            if not watched:
                del self.watched[partition]

    # Schedule runs, and wake pops.

    def schedule(self, track: Track, run: Scheduled, now: int) -> None:
        """Add a run to the schedule of a track."""
        track.schedule.add(run, now)
        changes = self.changes
        if track.key:
            changes.rows[scheduled_key_of(track, run)] = codec.pack_scheduled(run)
        changes.touch()
        if track.queue.gated:
            self.timers.plan_sweep(track.queue, now)
        if run.due_at > now:
            if run.due_at < track.due_at:
                self.timers.schedule_check(track, run.due_at)
        else:
            list_ready(track, run.level)
            changes.woken[track.queue, track.group.name, track.partition.name] = None

    def unschedule(self, track: Track, run: Scheduled) -> None:
        track.schedule.remove(run)
        if track.key:
            self.changes.rows[scheduled_key_of(track, run)] = None
        self.changes.touch()

    def fire_due(self, now: int) -> None:
        """List tracks with due runs, end pauses that are over, and wake waiting pops."""
        timers, changes = self.timers, self.changes
        while tracks := timers.tracks.first_due(now):
            for track in tracks:
                level = track.schedule.ready_level(now)
                timers.schedule_check(track, track.schedule.next_due_at(now))
                if level is not None or fresh_count(track):
                    # A gate may have opened as well: the pop finds out.
                    relist(track, now)
                    changes.touch()
                    changes.woken[track.queue, track.group.name, track.partition.name] = None
        while prefixes := timers.pauses.first_due(now):
            for prefix in prefixes:
                self.end_pause(self.queues[prefix])

    def reconsider(self, track: Track, now: int) -> None:
        """Wake pops of a track whose blocking message may be gone."""
        if track.queue.options.window_buffer_ms or track.queue.ordered:
            relist(track, now)
            self.changes.woken[track.queue, track.group.name, track.partition.name] = None

    def recheck_queue(self, queue: Queue, now: int) -> None:
        """Wake all pops of a queue: its gates or limits may have opened."""
        for group in queue.groups.values():
            for track in group.tracks.values():
                if fresh_count(track) or track.schedule.messages:
                    relist(track, now)
        self.changes.woken[queue, None, None] = None

    def pause(self, queue: Queue, until: int) -> None:
        if queue.paused_until not in (0, NEVER):
            self.timers.pauses.remove(queue.paused_until, queue.prefix)
        queue.paused_until = until
        if until not in (0, NEVER):
            self.timers.pauses.add(until, queue.prefix)
            self.timers.alarm.sooner(until)
        self.changes.touch_queue(queue)

    def end_pause(self, queue: Queue) -> None:
        self.pause(queue, 0)
        self.changes.woken[queue, None, None] = None
