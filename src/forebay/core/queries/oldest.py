"""The oldest waiting message of a group."""

from itertools import islice

from forebay.core.log import log as logs
from forebay.core.queries.unread import unread
from forebay.core.state import Group, Partition, Queue, Track, fresh_count
from forebay.core.tracks.cursor import fresh
from forebay.core.tracks.planning import unplanned_due

LOOKED_AT = 100
"""Runs of a partition that are scanned for the oldest waiting message."""


def oldest_at(queue: Queue, group: Group | None, now: int) -> int | None:
    """Return when the oldest waiting message of a group was pushed; None if none waits.

    Only the head of each priority is checked, and only the first unplanned runs. The group need not exist.
    """
    found: int | None = None
    for partition in queue.partitions.values():
        heads = _unread(partition, now) if group is None else _heads(group.tracks[partition.key], now)
        for offset in heads:
            at = logs.created_at(partition.log, offset)
            if found is None or at < found:
                found = at
    return found


def _heads(track: Track, now: int) -> list[int]:
    """Return first offsets of waiting runs of a track, among them that of the oldest message."""
    heads: list[int] = []
    end = track.partition.log.end
    if fresh_count(track):
        # Without anything aside, the message at the cursor is fresh: that is the usual case, and four times
        # as fast as to look for the first fresh one.
        heads = (
            [low for low, _ in islice(fresh(track, track.cursor, end), 1)] if track.aside else [track.cursor]
        )
    if track.schedule.messages:
        heads += track.schedule.heads(now)
    if track.unplanned:
        rest = islice(unplanned_due(track, track.planned, end), LOOKED_AT)
        heads += [low for low, _, due_at in rest if due_at <= now]
    return heads


def _unread(partition: Partition, now: int) -> list[int]:
    """Return first offsets of waiting runs of a partition that no group reads yet."""
    log = partition.log
    if log.first == log.end:
        return []
    if not (log.mixed or partition.withdrawn or partition.parked):
        return [log.first]
    parts = islice(unread(partition, "waiting", log.first, now), LOOKED_AT)
    return [low for low, _, is_asked in parts if is_asked]
