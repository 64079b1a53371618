"""Strict order (``ordering="partition"``): one lease per partition and group at a time, FIFO.

The next message is the lowest offset that is not settled, fresh or scheduled. While it is not due, the
partition waits for it.
"""

from forebay.core.delivery.gates import due_since, is_withheld, old_enough, too_old
from forebay.core.state import Scheduled, Track
from forebay.core.tracks.cursor import fresh
from forebay.core.tracks.planning import unplanned


def is_next(track: Track, now: int) -> bool:
    """Whether the head of a track may be delivered."""
    if track.leased:
        return False
    head = next_scheduled(track)
    if head is not None:
        return head.due_at <= now
    return any(fresh(track, track.cursor, fresh_end(track, now)))


def fresh_end(track: Track, now: int) -> int:
    """Return the offset below which fresh messages may be delivered, if no scheduled run comes first."""
    return min(old_enough(track, now), track.planned)


def _first_fresh(track: Track) -> int:
    log = track.partition.log
    return next((low for low, _ in fresh(track, track.cursor, log.end)), log.end)


def next_scheduled(track: Track) -> Scheduled | None:
    """Return the scheduled run that comes before everything fresh or not planned yet, if there is one."""
    head = track.schedule.head()
    if head is None or head.first >= _first_fresh(track):
        return None
    # A moved or requeued message may lie past what a new group has planned so far: it must not overtake.
    return None if any(unplanned(track, track.planned, head.first)) else head


def deliverable(track: Track, most: int, now: int) -> int:
    """Count messages deliverable now, no further than about ``most``."""
    if is_withheld(track, now) or not is_next(track, now):
        return 0
    log = track.partition.log
    open_end = fresh_end(track, now)
    held_back = next((low for low, _ in fresh(track, max(track.cursor, open_end), log.end)), log.end)
    later = min((run.first for run in track.schedule if run.due_at > now), default=log.end)
    to_plan = next((low for low, _ in unplanned(track, track.planned, log.end)), log.end)
    end = min(later, held_back, to_plan)
    since = due_since(track, now)
    found = sum(run.count for run in track.schedule if run.first < end and run.due_at >= since)
    for low, high in fresh(track, max(track.cursor, too_old(track, now)), min(end, open_end)):
        found += high - low
        if found >= most:
            break
    return found
