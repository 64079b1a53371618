"""Create consumer groups and start their tracks."""

from forebay.core.bounds import NEVER, Limits, check_name
from forebay.core.errors import Busy, Invalid
from forebay.core.links.ties import recheck
from forebay.core.log import log as logs
from forebay.core.shard.limiters import attach_group
from forebay.core.shard.shard import Shard
from forebay.core.shard.tracks import list_ready, new_track
from forebay.core.state import Group, Log, Queue, Track
from forebay.core.structures.spans import outside
from forebay.core.tracks.cursor import fresh, skip
from forebay.core.tracks.outcomes import record_outcome
from forebay.core.tracks.planning import count_unplanned, plan
from forebay.core.words import CANCELLED, DEFAULT


def check_start(start: int | str, now: int) -> None:
    """Raise unless ``start`` is a valid start of a group."""
    if not (start in ("all", "new") if isinstance(start, str) else 0 <= start <= now):
        raise Invalid("from", "all, new, or a time in ms that is not in the future")


def check_group(limits: Limits, queue: Queue | None, name: str) -> None:
    """Raise unless the queue may create this group."""
    check_name("group", name)
    if queue and len(queue.groups) >= limits.groups_max:
        raise Busy(f"a queue has at most {limits.groups_max} groups")


def plan_group(shard: Shard, group: Group, most: int, now: int) -> None:
    """Continue planning the schedule of a group, up to ``most`` runs."""
    for key, track in list(group.unplanned.items()):
        most -= plan(shard, track, most, now)
        if track.planned == NEVER:
            del group.unplanned[key]
        if most <= 0:
            return


def new_group(shard: Shard, queue: Queue, name: str, start: int | str, now: int) -> Group:
    """Create a group at ``start``. It reads partitions created later from their first message."""
    queue.groups_made += 1
    group = Group(number=queue.groups_made, name=name, active_at=now, tracks={}, ready=[])
    queue.groups[name] = group
    if queue.limited:
        attach_group(queue, group, shard.named_limits.limiters.get(queue.tenant, {}))
    for partition in queue.partitions.values():
        begin = begin_of(partition.log, start)
        start_track(shard, new_track(queue, group, partition, begin))
        if partition.links_count and name == DEFAULT:
            recheck(shard, queue, partition)
    queue.room = 0
    shard.changes.touch_queue(queue)
    shard.timers.plan_sweep(queue, now)  # what it begins behind may be settled by every group now
    return group


def start_track(shard: Shard, track: Track) -> None:
    """Initialise a track from its cursor."""
    partition, begin = track.partition, track.cursor
    track.aside = logs.count_aside(partition.log, begin)
    for first, count, at in partition.withdrawn:
        if first + count > begin:
            _withdraw(shard, track, max(first, begin), first + count, at)
    if track.aside:
        track.planned = begin
        track.unplanned = count_unplanned(track)
        track.group.unplanned[partition.key] = track
    if track.cursor < partition.log.end:
        list_ready(track)
    shard.changes.touch_track(track)


def _withdraw(shard: Shard, track: Track, first: int, end: int, at: int) -> None:
    """Settle messages for a new group that were cancelled before it existed."""
    for low, high in list(fresh(track, first, end)):
        skip(shard, track, low, high)
    for low, high in list(outside(track.dead, first, end)):
        record_outcome(shard, track, low, high, CANCELLED, at, told=True)


def begin_of(log: Log, start: int | str) -> int:
    """Return the offset of ``all``, ``new`` or a time."""
    match start:
        case "all":
            return log.first
        case "new":
            return log.end
        case int():
            return max(logs.offset_at(log, start), log.first)
    raise AssertionError(f"start was checked: {start!r}")
