"""Take messages for one pop, track by track."""

from heapq import heappop, heapreplace

from msgspec import Struct
from msgspec.structs import replace

from forebay.core.api.commands import Delivery
from forebay.core.bounds import NEVER
from forebay.core.delivery import gates, strict_order
from forebay.core.delivery.limits import ready_at, room, spend
from forebay.core.ids import OFFSET_BITS
from forebay.core.log import log as logs, slices
from forebay.core.log.numbers import number_of
from forebay.core.shard.shard import Shard
from forebay.core.state import (
    IN_LINE,
    PLAIN,
    Attributes,
    Group,
    LeaseRun,
    Limiter,
    Log,
    Partition,
    Queue,
    Scheduled,
    Segment,
    Track,
    priority_of,
)
from forebay.core.tracks.cursor import pass_over, pass_skips
from forebay.core.tracks.outcomes import record_outcome
from forebay.core.words import EVICTED, EXPIRED

RUNS_MAX = 1_000
"""Runs per lease: scattered retries are delivered over several pops."""
PIECES_MAX = 10_000
"""Slices per reply: messages pushed one by one are delivered over several pops."""
PASSES_MAX = 1_000
"""Expired and evicted runs that one pop passes: about 30 ms."""


class PopCursor(Struct, eq=False):
    """A pop in progress: what it may still take, and what it has taken."""

    shard: Shard
    queue: Queue
    group: Group
    left: int
    """Messages it may still take."""
    bytes_left: int
    """Bytes it may still take; the slice that exceeds them is the last."""
    lease_ms: int | None
    """The lease_ms of the pop, if it has one."""
    queue_lease_ms: int
    now: int
    runs: dict[tuple[int, int], LeaseRun]
    deliveries: list[Delivery]
    gated: bool
    """Whether the queue has gates."""
    ordered: bool
    """Whether each partition is delivered in strict order."""
    due_level: int | None = None
    """Level of the due run of the track checked last."""
    passes: int = PASSES_MAX
    """Expired and evicted runs it may still pass."""
    exact: bool = False
    """Whether slices are cut to ``bytes_left``; otherwise they are taken whole."""
    limited: list[Limiter] = []
    """Limits of single tracks that it has taken messages under."""

    def take_in_turn(self) -> None:
        """Take from ready tracks: lowest level first, then least recently served."""
        group = self.group
        ready = group.ready
        while ready and self.left and self.passes > 0:
            level, turn, key = ready[0]
            track = group.tracks[key]
            if track.listed != (level, turn):  # stale: the track was relisted meanwhile
                heappop(ready)
                continue
            best = self._level(track)
            if best is None:
                heappop(ready)
                track.listed = None
            else:
                if best != level or track.turn != turn:
                    entry = (best, track.turn, key)
                    track.listed = entry[:2]
                    heapreplace(ready, entry)
                    if ready[0] is not entry:
                        continue
                self._take_level(track, best)

    def take_from(self, track: Track) -> None:
        """Take from one track, the lowest level first."""
        while self.left and self.passes > 0 and (level := self._level(track)) is not None:
            self._take_level(track, level)

    def _level(self, track: Track) -> int | None:
        """Return the level at which a track can deliver, if it can."""
        if track.own_limit is not None and not room(track.own_limit, self.now):
            ready = ready_at((track.own_limit,), 1, self.now)
            if ready < track.due_at:
                self.shard.timers.schedule_check(track, max(ready, self.now + 1))
            return None
        if self.ordered and (track.leased or not strict_order.is_next(track, self.now)):
            self._hold_back(track)
            return None
        if self.gated:
            return self._open_level(track)
        level = track.schedule.ready_level(self.now) if track.schedule.messages else None
        self.due_level = level
        if level is None or level > IN_LINE:
            # fresh_count inlined: every pop runs this.
            return IN_LINE if track.partition.log.end - track.cursor > track.aside else level
        return level

    def _open_level(self, track: Track) -> int | None:
        """The same in a queue with gates; schedule a check if they are closed."""
        level = None
        if not gates.is_withheld(track, self.now):
            level = self.due_level = track.schedule.ready_level(self.now)
            if (level is None or level > IN_LINE) and gates.has_open(track, self.now):
                level = IN_LINE
            if self.ordered and level is not None:
                level = IN_LINE
        if level is None:
            self._hold_back(track)
        return level

    def _hold_back(self, track: Track) -> None:
        """Schedule a check of the track when its gates open."""
        opens_at = gates.opens_at(track, self.now) if self.gated else NEVER
        if opens_at < track.due_at:
            self.shard.timers.schedule_check(track, opens_at)

    def _take_level(self, track: Track, level: int) -> None:
        """Take messages of a level, as far as the track's own limit allows."""
        own = track.own_limit
        if own is None:
            self._take(track, level)
            return
        before, left = len(self.deliveries), self.left
        self.left = allowed = min(left, room(own, self.now))
        self._take(track, level)
        taken = sum(each.count for each in self.deliveries[before:])
        spend((own,), taken, 0)
        own.taken += taken
        self.limited.append(own)
        # ``left`` at 0 before the limit is used up means that the reply is full, not that the limit is.
        ended = not self.left and taken < allowed
        full = self.bytes_left <= 0 or len(self.deliveries) >= PIECES_MAX or len(self.runs) >= RUNS_MAX
        self.left = 0 if ended or full else left - taken

    def _take(self, track: Track, level: int) -> None:
        """Take messages of a level: due ones, then fresh ones."""
        before = len(self.deliveries)
        schedule = track.schedule
        if self.ordered:
            self._take_ordered(track)
        elif self.due_level == level:
            while self.left and self.passes > 0 and (run := schedule.due(level, self.now)) is not None:
                self._take_scheduled(track, run)
                if len(self.runs) >= RUNS_MAX:
                    self.left = 0
        if level == IN_LINE and self.left and not self.ordered:
            self._take_fresh(track, track.partition.log.end)
        if len(self.deliveries) != before:
            group = self.group
            group.turn += 1
            track.turn = group.turn
            self.shard.changes.touch_track(track)

    def _take_ordered(self, track: Track) -> None:
        """Take messages in strict order, up to the first that is not due."""
        while self.left and self.passes > 0:
            before = (track.cursor, track.schedule.messages, self.left)
            run = strict_order.next_scheduled(track)
            if run is None:
                self._take_fresh(track, min(track.schedule.lowest(), strict_order.fresh_end(track, self.now)))
            elif run.due_at <= self.now:
                self._take_scheduled(track, run)
            if (track.cursor, track.schedule.messages, self.left) == before:
                return
            if len(self.runs) >= RUNS_MAX:
                self.left = 0

    def _expires_at(self, attributes: Attributes) -> int:
        if attributes.stall_ms and not self.lease_ms:
            return self.now + min(attributes.stall_ms, attributes.timeout_ms or attributes.stall_ms)
        return self.now + (self.lease_ms or attributes.timeout_ms or self.queue_lease_ms)

    def _take_scheduled(self, track: Track, run: Scheduled) -> None:
        partition, shard = track.partition, self.shard
        position = logs.find(partition.log, run.first)
        segment = partition.log.segments[position]
        _, created_at, attributes = segment.run_at(run.first - segment.base)
        # Out of the schedule first: whatever is not taken is scheduled again below, as a shorter run.
        shard.unschedule(track, run)
        end = run.first + run.count
        alive = run.first
        if attributes.ttl_ms:
            alive = self._alive(partition.log, attributes, run.first, end)
        max_wait_ms = self.queue.options.max_wait_ms
        if max_wait_ms and run.due_at + max_wait_ms < self.now:
            self._end(track, run.first, end, EVICTED)
            return
        if alive > run.first:
            self._end(track, run.first, alive, EXPIRED)
            if alive < end:
                shard.schedule(track, replace(run, first=alive, count=end - alive), self.now)
            return
        counts = run.deliveries + 1, run.failures, self._expires_at(attributes)
        lease_run = LeaseRun(partition.key, run.first, 0, *counts, run.error, run.level)
        if run.level % 2:
            if run.count == 1:
                self._deliver_one(partition, lease_run, segment, created_at, attributes.origin)
            else:
                self._deliver(partition, lease_run, run.count, position)
            rest = run.first + lease_run.count
        else:
            self._deliver_backwards(partition, lease_run, run.count)
            rest = run.first
        if lease_run.count < run.count:
            left = run.count - lease_run.count
            shard.schedule(track, replace(run, first=rest, count=left), self.now)

    def _alive(self, log: Log, attributes: Attributes, first: int, end: int) -> int:
        """Return the first offset of [first, end) whose ttl has not ended; ``end`` if there is none."""
        return max(first, min(logs.offset_at(log, self.now - attributes.ttl_ms + 1), end))

    def _end(self, track: Track, first: int, end: int, outcome: int) -> None:
        record_outcome(self.shard, track, first, end, outcome, self.now)
        self.shard.timers.plan_sweep(self.queue, self.now)
        self.passes -= 1

    def _take_fresh(self, track: Track, limit: int) -> None:
        """Take fresh messages below ``limit``."""
        partition, shard = track.partition, self.shard
        log = partition.log
        evicted = 0
        if self.gated:
            limit = min(limit, gates.old_enough(track, self.now))
            evicted = gates.too_old(track, self.now)
        while self.left and self.passes > 0 and track.cursor < limit:
            if track.skips:
                pass_skips(shard, track)
                if track.cursor >= limit:
                    return
            cursor = track.cursor
            # The hint saves a bisection per pop; dropped segments shift positions, so it is checked.
            position = track.position - log.dropped
            segment = log.segments[position] if 0 <= position < len(log.segments) else None
            if segment is None or not segment.base <= cursor < segment.base + segment.count:
                position = logs.find(log, cursor)
            end, attributes = limit, PLAIN
            if log.mixed:
                segment = log.segments[position]
                end = min(limit, segment.end)
                if segment.mixed or segment.end < cursor + self.left:
                    end, attributes = self._stretch(log, position, cursor)
                if attributes is not PLAIN and not attributes.in_line:
                    pass_over(shard, track, end)
                    continue
            if track.skips:
                end = min(end, track.skips.head()[0])
            if end > limit:
                end = limit
            alive, outcome = cursor, EXPIRED
            if cursor < evicted:
                alive, outcome = min(evicted, end), EVICTED
            elif attributes.ttl_ms:
                alive = self._alive(log, attributes, cursor, end)
            if alive > cursor:
                self._end(track, cursor, alive, outcome)
                track.cursor = alive
                shard.changes.touch_track(track)
                continue
            run = LeaseRun(partition.key, cursor, 0, 1, 0, self._expires_at(attributes))
            if attributes is not PLAIN and attributes.origin is not None:
                self._deliver_one(partition, run, log.segments[position], 0, attributes.origin)
            else:
                position = self._deliver(partition, run, end - cursor, position)
            track.cursor = cursor + run.count
            track.position = position + log.dropped
            if len(self.runs) >= RUNS_MAX:
                self.left = 0

    def _stretch(self, log: Log, position: int, cursor: int) -> tuple[int, Attributes]:
        """Return how far messages from ``cursor`` on share attributes, up to what is still needed."""
        segment = log.segments[position]
        if segment.aside == segment.count:
            return segment.end, segment.run_at(0)[2]
        run_end, _, attributes = segment.run_at(cursor - segment.base)
        end, limit = segment.base + run_end, cursor + self.left
        while end < limit and attributes.in_line:
            if end == segment.end:
                position += 1
                if position == len(log.segments):
                    break
                segment = log.segments[position]
            run_end, _, following = segment.run_at(end - segment.base)
            if following != attributes:
                break
            end = segment.base + run_end
        return end, attributes

    def _deliver_one(
        self,
        partition: Partition,
        run: LeaseRun,
        segment: Segment,
        created_at: int,
        origin: tuple[int, int] | None,
    ) -> None:
        """Fill ``run`` with the one message at its first offset, under the id it is shown as."""
        first = run.first
        number, base = partition.numbers[-1]
        if first < base:
            number, base = number_of(partition, first)
        message = number << OFFSET_BITS | first - base
        if origin is not None:
            message, created_at = origin
        delivery = Delivery(
            segment,
            first - segment.base,
            1,
            created_at,
            partition.name,
            message,
            run.deliveries,
            run.failures,
            run.expires_at,
            priority_of(run.level),
        )
        self.deliveries.append(delivery)
        self.bytes_left -= logs.piece_bytes(delivery)
        full = self.bytes_left <= 0 or len(self.deliveries) >= PIECES_MAX
        self.left = 0 if full else self.left - 1
        run.count = 1
        self.runs[run.partition, first] = run

    def _deliver(self, partition: Partition, run: LeaseRun, count: int, position: int) -> int:
        """Fill ``run`` with up to ``count`` messages; return the position of the segment it ends in."""
        segments = partition.log.segments
        first = run.first
        end = first + min(count, self.left)
        while True:
            segment = segments[position]
            start = first - segment.base
            wanted = taken = min(end - first, segment.count - start)
            if self.exact and taken > 1:
                taken = logs.fit(slices.SegmentSlice(segment, start, taken, 0), max(self.bytes_left, 1)).count
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
                    priority_of(run.level),
                )
                self.deliveries.append(delivery)
                self.bytes_left -= segment.size if taken == segment.count else logs.piece_bytes(delivery)
            else:
                taken = self._add_by_run(partition.name, run, segment, start, taken, identity)
            first += taken
            full = taken < wanted or self.bytes_left <= 0 or len(self.deliveries) >= PIECES_MAX
            if first == end or full:
                break
            position += 1
        run.count = first - run.first
        self.left = 0 if full else self.left - run.count
        self.runs[run.partition, run.first] = run
        return position

    def _add_by_run(
        self, partition: str, run: LeaseRun, segment: Segment, start: int, count: int, identity: int
    ) -> int:
        """Deliver messages of a merged segment, one slice per time; return how many."""
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
                priority_of(run.level),
            )
            self.deliveries.append(delivery)
            self.bytes_left -= logs.piece_bytes(delivery)
            taken += part.count
            if len(self.deliveries) >= PIECES_MAX:
                break
        return taken

    def _deliver_backwards(self, partition: Partition, run: LeaseRun, count: int) -> None:
        """Fill ``run`` with up to ``count`` messages, newest first (LIFO)."""
        log = partition.log
        offset = end = run.first + count
        while self.left and offset > run.first:
            offset -= 1
            segment = log.segments[logs.find(log, offset)]
            _, created_at, attributes = segment.run_at(offset - segment.base)
            counts = run.deliveries, run.failures, run.expires_at
            one = LeaseRun(run.partition, offset, 0, *counts, level=run.level)
            self._deliver_one(partition, one, segment, created_at, attributes.origin)
            del self.runs[run.partition, offset]
        run.first, run.count = offset, end - offset
        self.runs[run.partition, run.first] = run
