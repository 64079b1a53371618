"""Pop: slice what is due, move the cursor, write one lease."""

from heapq import heappop, heappush, heapreplace

from msgspec import Struct
from msgspec.structs import replace

from penstock.core import log as logs
from penstock.core.commands import Delivery, Pop, Popped
from penstock.core.errors import Busy, Invalid
from penstock.core.ids import OFFSET_BITS, lease_token
from penstock.core.limits import Limits, check_name, check_range
from penstock.core.model import Group, Lease, LeaseRun, Log, Partition, Queue, Segment, Track
from penstock.core.numbers import number_of
from penstock.core.shard import Shard, hold, list_ready, new_track

RUNS_MAX = 1_000
"""Runs of one lease: retries that lie scattered are delivered over several pops."""
PIECES_MAX = 10_000
"""Pieces of one delivery: messages pushed one by one are delivered over several pops."""


def check_pop(limits: Limits, command: Pop, now: int) -> None:
    """Raise unless the command's own fields are good."""
    if not 1 <= command.count <= limits.batch_max:
        raise Invalid("count", f"between 1 and {limits.batch_max}")
    if not 1 <= command.min_count <= command.count:
        raise Invalid("min_count", f"between 1 and count, which is {command.count}")
    if not 0 <= command.wait_ms <= limits.wait_ms_max:
        raise Invalid("timeout", f"between 0 and {limits.wait_ms_max}")
    if command.partition is not None:
        check_name("partition", command.partition)
    if command.lease_ms is not None:
        check_range("lease_ms", command.lease_ms, 1, limits.lease_ms_max)
    start = command.start
    if not (start in ("all", "new") if isinstance(start, str) else 0 <= start <= now):
        raise Invalid("from", "all, new, or a time in ms that is not in the future")


def check_group(limits: Limits, queue: Queue | None, name: str) -> None:
    """Raise unless the queue may have this new group."""
    check_name("group", name)
    if queue and len(queue.groups) >= limits.groups_max:
        raise Busy(f"a queue has at most {limits.groups_max} groups")


def pop(shard: Shard, queue: Queue, group: Group, command: Pop, now: int) -> Popped:
    """Deliver what a checked command may have."""
    if command.min_count > 1 and available(group, queue, command) < command.min_count:
        return Popped(queue, None, [])
    expires_at = now + (command.lease_ms or min(queue.options.lease_ms, shard.limits.lease_ms_max))
    taking = _Taking(shard, queue, group, command.count, shard.limits.pop_bytes_max, expires_at, now, {}, [])
    if command.partition is None:
        taking.take_in_turn()
    else:
        partition = queue.partitions.get(command.partition)
        if partition is not None:
            taking.take(group.tracks[partition.key])
    runs = taking.runs
    if not runs:
        return Popped(queue, None, [])
    name = shard.next_name()
    lease = Lease(name, queue, group, runs, expires_at, command.owner)
    hold(shard, lease)
    shard.touch_lease(lease)
    return Popped(queue, lease_token(shard.number, name), taking.deliveries)


def new_group(shard: Shard, queue: Queue, command: Pop, now: int) -> Group:
    """A group that begins where the command says. Partitions made later are read from their beginning."""
    queue.groups_made += 1
    group = Group(number=queue.groups_made, name=command.group, tracks={}, ready=[])
    queue.groups[command.group] = group
    for partition in queue.partitions.values():
        track = new_track(queue, group, partition, _begin(partition.log, command.start))
        if track.cursor < partition.log.end:
            list_ready(group, track)
        shard.touch_track(track)
    shard.touch_queue(queue)
    shard.plan_sweep(queue, now)  # what it begins behind may be settled by every group now
    return group


def _begin(log: Log, start: int | str) -> int:
    match start:
        case "all":
            return log.first
        case "new":
            return log.end
        case int():
            return logs.offset_at(log, start)
    raise AssertionError(f"start was checked: {start!r}")


def available(group: Group, queue: Queue, command: Pop) -> int:
    """Messages deliverable now, counted no further than ``min_count``."""
    if command.partition is not None:
        partition = queue.partitions.get(command.partition)
        tracks = [group.tracks[partition.key]] if partition else []
    else:
        tracks = [group.tracks[key] for _, key in group.ready]
    found = 0
    for track in tracks:
        found += track.scheduled + track.partition.log.end - track.cursor
        if found >= command.min_count:
            break
    return found


class _Taking(Struct, eq=False):
    """One pop under way: what it may still take, and what it has taken."""

    shard: Shard
    queue: Queue
    group: Group
    left: int
    """Messages it may still take."""
    bytes_left: int
    """Bytes it may still take; the piece that crosses the line is the last."""
    expires_at: int
    now: int
    runs: dict[tuple[int, int], LeaseRun]
    deliveries: list[Delivery]

    def take_in_turn(self) -> None:
        """Take from the tracks that have something, the least recently served first."""
        group = self.group
        ready = group.ready
        not_due: list[tuple[int, int]] = []
        while ready and self.left:
            turn, key = ready[0]
            track = group.tracks[key]
            if turn == track.turn:
                self.take(track)
            if not track.schedule and track.cursor == track.partition.log.end:
                heappop(ready)
                track.listed = False
            elif turn == track.turn:
                not_due.append(heappop(ready))
            else:  # its turn is over, or it was served by name meanwhile: it goes behind the others
                heapreplace(ready, (track.turn, key))
        for entry in not_due:
            heappush(ready, entry)

    def take(self, track: Track) -> None:
        """Take from one track: what is due again, then what is fresh."""
        before = len(self.runs)
        while self.left and track.schedule and track.schedule[0].due_at <= self.now:
            self._take_scheduled(track)
            if len(self.runs) >= RUNS_MAX:
                self.left = 0
        if self.left and track.cursor < track.partition.log.end:
            self._take_fresh(track)
        if len(self.runs) != before:
            group = self.group
            group.turn += 1
            track.turn = group.turn
            self.shard.touch_track(track)

    def _take_scheduled(self, track: Track) -> None:
        run = heappop(track.schedule)
        self.shard.unschedule(self.queue, self.group, track, run)
        position = logs.find(track.partition.log, run.first)
        lease_run = LeaseRun(
            track.partition.key, run.first, 0, run.deliveries + 1, run.failures, self.expires_at, run.error
        )
        self._deliver(track.partition, lease_run, run.count, position)
        taken = lease_run.count
        if taken < run.count:
            rest = replace(run, first=run.first + taken, count=run.count - taken)
            self.shard.schedule(self.queue, self.group, track, rest)

    def _take_fresh(self, track: Track) -> None:
        partition = track.partition
        log = partition.log
        cursor = track.cursor
        position = track.position - log.dropped
        segment = log.segments[position] if 0 <= position < len(log.segments) else None
        if segment is None or not segment.base <= cursor < segment.base + segment.count:
            position = logs.find(log, cursor)
        run = LeaseRun(partition.key, cursor, 0, 1, 0, self.expires_at)
        position = self._deliver(partition, run, log.end - cursor, position)
        track.cursor = cursor + run.count
        track.position = position + log.dropped

    def _deliver(self, partition: Partition, run: LeaseRun, count: int, position: int) -> int:
        """Fill ``run`` with up to ``count`` messages; the position of the segment it ends in."""
        segments = partition.log.segments
        first = run.first
        end = first + min(count, self.left)
        while True:
            segment = segments[position]
            start = first - segment.base
            taken = min(end - first, segment.count - start)
            number, base = partition.numbers[-1]
            if first < base:
                number, base = number_of(partition, first)
            identity = number << OFFSET_BITS | first - base
            if not segment.spread:
                delivery = Delivery(
                    segment,
                    start,
                    taken,
                    segment.created_at,
                    partition.name,
                    identity,
                    run.deliveries,
                    run.failures,
                    run.expires_at,
                )
                self.deliveries.append(delivery)
                self.bytes_left -= segment.size if taken == segment.count else logs.piece_bytes(delivery)
            else:
                taken = self._add_by_run(partition.name, run, segment, start, taken, identity)
            first += taken
            if first == end or self.bytes_left <= 0 or len(self.deliveries) >= PIECES_MAX:
                break
            position += 1
        run.count = first - run.first
        full = self.bytes_left <= 0 or len(self.deliveries) >= PIECES_MAX
        self.left = 0 if full else self.left - run.count
        self.runs[run.partition, run.first] = run
        return position

    def _add_by_run(
        self, partition: str, run: LeaseRun, segment: Segment, start: int, count: int, identity: int
    ) -> int:
        """Deliver messages of a merged segment, whose runs have times of their own; how many it was."""
        taken = 0
        for part in logs.by_run(segment, start, count):
            delivery = Delivery(
                segment,
                part.start,
                part.count,
                part.created_at,
                partition,
                identity + part.start - start,
                run.deliveries,
                run.failures,
                run.expires_at,
            )
            self.deliveries.append(delivery)
            self.bytes_left -= logs.piece_bytes(delivery)
            taken += part.count
            if len(self.deliveries) >= PIECES_MAX:
                break
        return taken
