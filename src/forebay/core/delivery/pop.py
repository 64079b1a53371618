"""Pop: slice what is due, move the cursor, write one lease."""

from forebay.core.api.commands import Pop, Popped
from forebay.core.bounds import NEVER, WORKER_CHARS_MAX, Limits, check_name, check_printable, check_range
from forebay.core.delivery import gates, strict_order
from forebay.core.delivery.groups import check_start, plan_group
from forebay.core.delivery.limits import allowance, ready_at, room, starve
from forebay.core.delivery.take import PopCursor
from forebay.core.errors import Invalid
from forebay.core.ids import lease_token
from forebay.core.records import codec, keyspace
from forebay.core.shard.shard import Shard
from forebay.core.state import Group, Lease, Queue, Track, fresh_count
from forebay.core.tracks.cursor import fresh
from forebay.core.tracks.leased import hold
from forebay.core.words import POPPED

ACTIVE_MS = 60_000
"""Resolution of a group's last activity."""
PLANS_MAX = 500
"""Runs that pops plan for a new group, once per commit."""


def check_pop(limits: Limits, command: Pop, now: int) -> None:
    """Raise unless the command's fields are valid."""
    if not 1 <= command.count <= limits.batch_max:
        raise Invalid("count", f"between 1 and {limits.batch_max}")
    if not 1 <= command.min_count <= command.count:
        raise Invalid("min_count", f"between 1 and count, which is {command.count}")
    if not 0 <= command.wait_ms <= limits.wait_ms_max:
        raise Invalid("wait_ms", f"between 0 and {limits.wait_ms_max}")
    if command.partition is not None:
        check_name("partition", command.partition)
    if command.lease_ms is not None:
        check_range("lease_ms", command.lease_ms, 1, limits.lease_ms_max)
    if len(command.worker) > WORKER_CHARS_MAX:
        raise Invalid("worker", f"at most {WORKER_CHARS_MAX} characters")
    check_printable("worker", command.worker)
    check_start(command.start, now)


def pop(shard: Shard, queue: Queue, group: Group, command: Pop, now: int) -> Popped:
    """Lease the messages that a checked command may have."""
    if now - group.active_at >= ACTIVE_MS:
        group.active_at = now
        shard.changes.put_row(queue, keyspace.group_key(queue.prefix, group.number), codec.pack_group(group))
    if queue.paused_until > now:
        return Popped(queue, None, [])
    if group.unplanned and group.planned_in != shard.changes.seals:
        group.planned_in = shard.changes.seals
        plan_group(shard, group, PLANS_MAX, now)
    limits = group.limits
    allowed = allowance(limits, command.count, now) if limits else command.count
    if allowed < command.min_count:
        starve(shard, queue, group, command.min_count, now)
        return Popped(queue, None, [])
    if command.min_count > 1 and available(group, queue, command, now) < command.min_count:
        for track in _asked(group, queue, command):
            opens_at = gates.opens_at(track, now) if queue.gated else NEVER
            own = track.own_limit
            if own is not None:
                opens_at = min(opens_at, max(ready_at((own,), room(own, now) + 1, now), now + 1))
            if opens_at < track.due_at:
                shard.timers.schedule_check(track, opens_at)
        return Popped(queue, None, [], again=bool(group.unplanned))
    taking = PopCursor(
        shard,
        queue,
        group,
        allowed,
        _bytes_allowed(shard, group, now) if group.byte_limited else shard.limits.pop_bytes_max,
        command.lease_ms,
        min(queue.options.lease_ms, shard.limits.lease_ms_max),
        now,
        {},
        [],
        queue.gated,
        queue.ordered,
    )
    size = taking.bytes_left
    taking.exact = group.byte_limited
    if command.partition is None:
        taking.take_in_turn()
    else:
        partition = queue.partitions.get(command.partition)
        if partition is not None:
            taking.take_from(group.tracks[partition.key])
    runs = taking.runs
    if not runs:
        return Popped(queue, None, [], again=bool(group.unplanned) or taking.passes <= 0)
    if len(runs) == 1:
        (run,) = runs.values()
        taken, due_at = run.count, run.expires_at
    else:
        taken = sum([run.count for run in runs.values()])
        due_at = min([run.expires_at for run in runs.values()])
    for limiter in limits:  # limits.spend inlined: every limited pop runs this
        bucket = limiter.bucket
        if bucket is not None:
            bucket.parts -= taken * bucket.per_ms
        if limiter.byte_bucket is not None:
            limiter.byte_bucket.spend(size - taking.bytes_left)
    name = shard.numbering.next_name()
    lease = Lease(name, queue, group, runs, due_at, command.owner)
    for limiter in taking.limited:
        limiter.taken = 0
    lease.leased_at, lease.worker = now, command.worker
    for run in runs.values():
        shard.changes.change_log.note(
            POPPED, queue, group.name, group.tracks[run.partition].partition, run.first, run.count
        )
    hold(shard, lease)
    shard.changes.touch_lease(lease)
    return Popped(queue, lease_token(shard.number, name), taking.deliveries)


def _bytes_allowed(shard: Shard, group: Group, now: int) -> int:
    """Return the payload bytes that a pop may take."""
    most = shard.limits.pop_bytes_max
    for limiter in group.limits:
        if limiter.byte_bucket is not None:
            most = min(most, limiter.byte_bucket.tokens(now))
    return most


def available(group: Group, queue: Queue, command: Pop, now: int) -> int:
    """Count messages deliverable now, no further than ``min_count``."""
    least = allowance(group.limits, command.min_count, now) if group.limits else command.min_count
    if queue.paused_until > now or not least:
        return 0
    found = 0
    for track in _asked(group, queue, command):
        here = _available(track, least - found, now)
        found += here if track.own_limit is None else min(here, room(track.own_limit, now))
        if found >= least:
            break
    return min(found, least) if group.limits else found


def _available(track: Track, most: int, now: int) -> int:
    """Count messages of a track deliverable now, no further than about ``most``."""
    if track.queue.ordered:
        return strict_order.deliverable(track, most, now)
    if track.queue.gated:
        return _open_count(track, most, now)
    found = fresh_count(track)
    if found < most and track.schedule:
        found += track.schedule.due_up_to(most - found, now)
    return found


def _asked(group: Group, queue: Queue, command: Pop) -> list[Track]:
    """Return the tracks that a pop may take from."""
    if command.partition is not None:
        partition = queue.partitions.get(command.partition)
        return [group.tracks[partition.key]] if partition else []
    return [group.tracks[key] for key in {key for _, _, key in group.ready}]


def _open_count(track: Track, most: int, now: int) -> int:
    """The same in a queue with gates."""
    if gates.is_withheld(track, now):
        return 0
    found = track.schedule.due_up_to(most, now, gates.due_since(track, now))
    for low, high in fresh(track, max(track.cursor, gates.too_old(track, now)), gates.old_enough(track, now)):
        found += high - low
        if found >= most:
            break
    return found
