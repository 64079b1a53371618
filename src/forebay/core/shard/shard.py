"""A shard: a world of its own, with everything of the tenants that live in it.

    names          tenants and queues by name; queues in deletion, damaged ones
    queues         all queues; places leads from partition numbers to their partitions
    leases         live leases; cancelled ones that are remembered for a while
    ends           ended messages whose consequences are to be settled; notifications those in progress
    crons, values, named_limits, events, watched     the rest of what a tenant has
    changes        what changed since the last commit, and how it becomes one
    timers         what falls due, and when
    numbering      names and numbers that nothing else ever has

Its commands apply one after another.
"""

from typing import NamedTuple

from msgspec.structs import replace

from forebay.core.api.checks import check_partitions
from forebay.core.bounds import NEVER, Limits
from forebay.core.log import log as logs
from forebay.core.records import codec, keyspace
from forebay.core.shard.changes import Changes
from forebay.core.shard.ends import Ended, NotificationQueue
from forebay.core.shard.names import Names
from forebay.core.shard.numbering import Numbering
from forebay.core.shard.parts import Crons, Events, NamedLimits, ValueStore, WatchedMessages
from forebay.core.shard.timers import Timers
from forebay.core.shard.tracks import list_ready, new_partition, new_track, relist, scheduled_key_of
from forebay.core.state import Lease, Partition, Queue, Scheduled, Track, fresh_count
from forebay.core.structures.agenda import Alarm
from forebay.core.words import CREATED, DEFAULT, FSYNC

CANCELLED_MAX = 10_000
"""Cancelled leases that a shard remembers."""


class Place(NamedTuple):
    """What a partition number leads to."""

    queue: Queue
    partition: Partition
    first: int
    """Offset of the first message under the number."""


class Shard:
    """Everything of the tenants that live here. A shard knows of no other shard, and decides alone."""

    __slots__ = (
        "cancelled",
        "changes",
        "crons",
        "emptied",
        "ends",
        "events",
        "expired_leases",
        "kept_dropped",
        "leases",
        "limits",
        "named_limits",
        "names",
        "notifications",
        "number",
        "numbering",
        "places",
        "queues",
        "reach",
        "rows_notified",
        "timers",
        "updated",
        "values",
        "watched",
    )

    def __init__(
        self,
        number: int,
        shards: int,
        limits: Limits,
        reach: str = FSYNC,
    ) -> None:
        self.number = number
        self.limits = limits
        self.reach = reach
        """The store's durability."""
        self.numbering = Numbering(number, shards)
        self.changes = Changes(self.numbering)
        self.timers = Timers(Alarm())
        self.names = Names(limits, self.numbering, self.changes)
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
        """Closed queues of which a lease has ended, by prefix."""
        self.ends: list[Ended] = []
        """Ended messages whose consequences are still to be settled."""
        self.notifications: dict[int, NotificationQueue] = {}
        """Ended messages whose dependents are notified in batches, by partition key."""
        self.rows_notified = 0
        """Rows of dependents notified in this tick."""
        self.kept_dropped = 0
        """Completed messages dropped in this commit, as more were kept than they ask for."""
        self.updated: set[int] = set()
        """Keys of partitions with messages that have successors."""
        self.named_limits = NamedLimits()
        self.crons = Crons()
        self.values = ValueStore()
        self.events = Events()
        self.watched = WatchedMessages()

    # Add queues and partitions.

    def check_room(
        self, tenant: str, name: str, queue: Queue | None, partitions: set[str], numbers: int
    ) -> None:
        """Raise unless a push may create the queue, partitions and numbers it needs."""
        if queue is None:
            self.names.check_new(tenant, name)
        check_partitions(self.limits, queue, partitions)
        if numbers:
            self.numbering.check(numbers)

    def has(self, queue: Queue, partition: Partition) -> bool:
        """Whether a partition still exists: it, or its queue, may have been deleted in the same step."""
        return self.queues.get(queue.prefix) is queue and queue.partitions.get(partition.name) is partition

    def made(self, tenant: str, name: str, completed_count: int = 0) -> Queue:
        """Return a queue; create it if it is missing. Its name was checked."""
        queue = self.names.queues.get((tenant, name))
        if queue is None:
            queue = self.add_queue(tenant, name)
            if completed_count:
                queue.options = replace(queue.options, completed_retention_count=completed_count)
            self.changes.change_log.note_queue(CREATED, queue)
        return queue

    def add_queue(self, tenant: str, name: str) -> Queue:
        """Create a queue. Its name was checked."""
        queue = self.names.create(tenant, name)
        self.queues[queue.prefix] = queue
        self.changes.touch_queue(queue)
        return queue

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
        """Pass over numbers that a restored backup may not know of."""
        self.numbering.skip_all(count)
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
            self.ends.append(Ended(track.queue, track.partition, first, end, how))

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

    # Park runs that wait for other messages, and keep the rows that say for which.

    def park(self, queue: Queue, partition: Partition, first: int, count: int, unmet: int) -> None:
        """Park messages with ``unmet`` open dependencies."""
        partition.parked.add((first, count, unmet))
        partition.parked_messages += count
        key = keyspace.parked_key(queue.prefix, partition.key, first)
        self.changes.put_row(queue, key, codec.pack_numbers((count, unmet)))

    def unpark(self, queue: Queue, partition: Partition, first: int, count: int) -> None:
        """Remove a parked run."""
        partition.parked.remove(first, count)
        partition.parked_messages -= count
        self.changes.put_row(queue, keyspace.parked_key(queue.prefix, partition.key, first), None)

    def take_parked(self, queue: Queue, partition: Partition, first: int, end: int) -> list[tuple[int, int]]:
        """Remove the parked messages of [first, end); return their spans."""
        found: list[tuple[int, int]] = []
        for low, count, unmet in partition.parked_over(first, end):
            high = low + count
            self.unpark(queue, partition, low, count)
            if low < first:
                self.park(queue, partition, low, first - low, unmet)
            if high > end:
                self.park(queue, partition, end, high - end, unmet)
            found.append((max(low, first), min(high, end)))
        return found

    def add_wait(self, queue: Queue, partition: Partition, row: tuple[int, ...]) -> None:
        """Add a row of dependents."""
        first, dependent, count, waiting = row
        partition.dependents.add((first, dependent, count, waiting))
        partition.links_count += 1
        if count > 1:
            partition.add_span(first, dependent, count)
        since = 0
        notifications = self.notifications.get(partition.key)
        if notifications is not None:
            since = notifications.later[first, dependent] = notifications.waiting[-1].serial
        key = keyspace.dependent_key(queue.prefix, partition.key, first, dependent)
        self.changes.put_row(queue, key, codec.pack_dependent(count, waiting, 0, since))

    def mark_met(self, queue: Queue, partition: Partition, row: tuple[int, ...], low: int, high: int) -> int:
        """Mark messages [low, high) of a row as met; return how many were unmet."""
        first, dependent, count, waiting = row
        if count == 1:
            self.remove_wait(queue, partition, row)
            return 1
        met = partition.met.get((first, dependent), 0)
        new = ((1 << high - low) - 1 << low - first) & ~met
        met |= new
        if met.bit_count() == count:
            self.remove_wait(queue, partition, row)
        elif new:
            partition.met[first, dependent] = met
            since = 0
            if partition.key in self.notifications:
                since = self.notifications[partition.key].later.get((first, dependent), 0)
            key = keyspace.dependent_key(queue.prefix, partition.key, first, dependent)
            self.changes.put_row(queue, key, codec.pack_dependent(count, waiting, met, since))
        return new.bit_count()

    def remove_wait(self, queue: Queue, partition: Partition, row: tuple[int, ...]) -> None:
        """Remove a row of dependents."""
        partition.dependents.remove(row[0], row[1])
        partition.links_count -= 1
        if row[2] > 1:
            partition.remove_span(row[0], row[1], row[2])
            partition.met.pop((row[0], row[1]), None)
        key = keyspace.dependent_key(queue.prefix, partition.key, row[0], row[1])
        self.changes.put_row(queue, key, None)

    # Wake pops.

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
