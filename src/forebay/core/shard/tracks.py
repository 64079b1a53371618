"""Create partitions and tracks; the heap of tracks that may have something to deliver."""

from heapq import heapify, heappush

from forebay.core.bounds import PRIORITY_MAX
from forebay.core.records import keyspace
from forebay.core.shard.limiters import attach_track
from forebay.core.state import IN_LINE, Group, Log, Mark, Partition, Queue, Schedule, Scheduled, Track
from forebay.core.structures.table import Table
from forebay.core.words import ENDS

FIRST_LEVEL = -2 * PRIORITY_MAX
"""Lowest level: a track listed here is checked next, and relisted where it belongs."""
READY_SLACK = 64
"""Stale entries tolerated before the heap of ready tracks is rebuilt."""


def new_partition(
    key: int, name: str, numbers: list[tuple[int, int]], log: Log, marks: list[Mark]
) -> Partition:
    """Return a partition."""
    return Partition(
        key=key,
        name=name,
        numbers=numbers,
        log=log,
        marks=marks,
        withdrawn=Table("qqq"),
        progress={},
        successors=Table("qq"),
        parked=Table("qqq"),
        dependents=Table("qQqq"),
        spans=Table("qQ"),
        lengths=Table("qqI"),
        met={},
        led_to={},
        ties={},
        job_ids={},
        transactions={},
        taken={},
        merged_to=[log.first, log.first],
    )


def scheduled_key_of(track: Track, run: Scheduled) -> bytes:
    return keyspace.scheduled_key(
        track.queue.prefix, track.group.number, track.partition.key, run.due_at, run.first
    )


def new_track(queue: Queue, group: Group, partition: Partition, cursor: int = 0) -> Track:
    """Return a track that starts at ``cursor``."""
    key = keyspace.cursor_key(queue.prefix, group.number, partition.key) if queue.stored else b""
    track = Track(
        queue=queue,
        group=group,
        partition=partition,
        key=key,
        cursor=cursor,
        skips=Table("qq"),
        schedule=Schedule(),
        dead=Table("qq"),
        letters={},
        outcomes=Table("qqqq"),
        ended=[0] * ENDS,
        singles={},
        spans=[],
    )
    group.tracks[partition.key] = track
    if queue.limited or partition.lane:
        attach_track(track)
    return track


def relist(track: Track, now: int) -> None:
    """List a track as ready, at the level of its next message."""
    level = track.schedule.ready_level(now)
    list_ready(track, IN_LINE if level is None else min(level, IN_LINE))


def list_ready(track: Track, level: int = IN_LINE) -> None:
    """List a track as ready, at this level or a lower one."""
    if track.listed is None or level < track.listed[0]:
        track.listed = (level, track.turn)
        group = track.group
        heappush(group.ready, (level, track.turn, track.partition.key))
        if len(group.ready) > 2 * len(group.tracks) + READY_SLACK:
            # In place: a pop may be looking at it.
            group.ready[:] = [(*each.listed, key) for key, each in group.tracks.items() if each.listed]
            heapify(group.ready)
