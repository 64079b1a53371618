"""Seek: a group continues from another position.

Its leases and schedule there are dropped, and the schedule is rebuilt from the segment headers. Dead letters
and outcomes below the new position stay; messages above it are delivered again.
"""

from msgspec.structs import replace

from forebay.core.api.commands import Seek, Sought
from forebay.core.bounds import NEVER, check_name
from forebay.core.delivery.groups import begin_of, check_start, start_track
from forebay.core.delivery.settle import abandon
from forebay.core.errors import Invalid, NotFound
from forebay.core.links.ties import recheck
from forebay.core.queries.describe import partition_of
from forebay.core.records import keyspace
from forebay.core.shard.shard import Shard
from forebay.core.state import Group, Queue, Schedule, Scheduled, Track
from forebay.core.structures.table import Table
from forebay.core.tracks.leased import leased_runs
from forebay.core.tracks.trim import clear_from, store_again
from forebay.core.words import DEFAULT


def check(queue: Queue, command: Seek, now: int) -> Group:
    """Return the group of a command; raise unless the seek is valid."""
    check_name("group", command.group)
    check_start(command.start, now)
    group = queue.groups.get(command.group)
    if group is None:
        raise NotFound(f"queue {queue.name} has no group {command.group}; a pop makes it, from where it says")
    if command.offset is not None:
        if command.partition is None:
            raise Invalid("partition", "given along with an offset")
        log = partition_of(queue, command.partition).log
        if not log.first <= command.offset <= log.end:
            raise Invalid("offset", f"between {log.first} and {log.end}, where the log begins and ends")
    elif command.partition is not None:
        partition_of(queue, command.partition)
    return group


def seek(shard: Shard, queue: Queue, group: Group, command: Seek, now: int) -> Sought:
    """Apply a checked seek."""
    if command.partition is not None:
        tracks = [group.tracks[queue.partitions[command.partition].key]]
    else:
        tracks = list(group.tracks.values())
    begins = [_begin(track, command) for track in tracks]
    strays = [_strays(shard, track, begin, now) for track, begin in zip(tracks, begins, strict=True)]
    for track in tracks:
        abandon(shard, track)
        shard.timers.schedule_check(track, NEVER)
    key = queue.partitions[command.partition].key if command.partition is not None else None
    shard.changes.clear_rows(queue, keyspace.row_bounds(queue.prefix, group.number, key))
    found: dict[str, int] = {}
    for track, begin, runs in zip(tracks, begins, strays, strict=True):
        _begin_again(shard, track, begin)
        for run in runs:
            shard.schedule(track, run, now)
        found[track.partition.name] = track.cursor
        shard.changes.woken[queue, group.name, track.partition.name] = None
        if track.partition.links_count and group.name == DEFAULT:
            recheck(shard, queue, track.partition)
    group.active_at = now
    queue.room = 0
    shard.changes.touch_queue(queue)
    shard.timers.plan_sweep(queue, now)
    return Sought(found)


def _begin(track: Track, command: Seek) -> int:
    if command.offset is not None:
        return command.offset
    return begin_of(track.partition.log, command.start)


def _strays(shard: Shard, track: Track, begin: int, now: int) -> list[Scheduled]:
    """Return the unsettled messages below the log's start, for a group that seeks to it."""
    first = track.partition.log.first
    if begin > first:
        return []
    found = [
        replace(run, count=min(run.first + run.count, first) - run.first)
        for run in track.schedule.over(0, first)
    ]
    for _, run in leased_runs(shard, track, 0, first) if track.leased and track.partition.log.islands else ():
        for low, count in run.gaps(0, min(run.count, first - run.first)):
            past = (run.deliveries - 1, run.failures, run.error)
            found.append(Scheduled(now, low, count, run.level, *past))
    return found


def _begin_again(shard: Shard, track: Track, begin: int) -> None:
    """Restart a cleared track at an offset."""
    if shard.watched.by_partition:
        shard.watched.notify(track.partition.key, 0, NEVER)
    clear_from(shard, track, begin)
    store_again(shard, track)
    track.schedule = Schedule()
    track.skips = Table("qq")
    track.group.unplanned.pop(track.partition.key, None)
    track.cursor, track.planned, track.unplanned, track.aside = begin, NEVER, 0, 0
    track.listed, track.completed_from = None, 0
    start_track(shard, track)
