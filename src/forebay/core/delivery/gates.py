"""Delivery gates: hold messages back until they are old enough, evict those that waited too long.

``delayed_processing_ms`` holds back each in-line message, ``window_buffer_ms`` a whole partition while
messages still arrive, and ``max_wait_ms`` evicts messages that could have been delivered for too long.
"""

from itertools import islice

from forebay.core.bounds import NEVER
from forebay.core.log import log as logs
from forebay.core.shard.shard import Shard
from forebay.core.state import Track, fresh_count
from forebay.core.tracks.cursor import fresh, skip
from forebay.core.tracks.outcomes import record_outcome
from forebay.core.words import EVICTED


def is_withheld(track: Track, now: int) -> bool:
    """Whether ``window_buffer_ms`` withholds the track because messages still arrive."""
    window = track.queue.options.window_buffer_ms
    return window > 0 and _newest_at(track) > now - window


def _newest_at(track: Track) -> int:
    """Return when the newest waiting message was pushed; 0 if none waits."""
    log = track.partition.log
    last = track.schedule.last()
    newest = last.first + last.count - 1 if last is not None else -1
    if track.unplanned:
        newest = log.end - 1
    elif fresh_count(track):
        newest = max(newest, _last_fresh(track))
    if newest < 0:
        return 0
    segment = log.segments[logs.find(log, newest)]
    return segment.run_at(newest - segment.base)[1]


def _last_fresh(track: Track) -> int:
    """Return the highest fresh offset; there must be one."""
    log = track.partition.log
    if not track.aside:
        return log.end - 1
    for segment in reversed(log.segments):
        parts = list(fresh(track, segment.base, segment.end))
        if parts:
            return parts[-1][1] - 1
    raise AssertionError("something is fresh")


def old_enough(track: Track, now: int) -> int:
    """Return the offset below which in-line messages are old enough to deliver."""
    delay = track.queue.options.delayed_processing_ms
    log = track.partition.log
    return logs.offset_at(log, now - delay + 1) if delay else log.end


def too_old(track: Track, now: int) -> int:
    """Return the offset below which in-line messages have waited too long."""
    options = track.queue.options
    if not options.max_wait_ms:
        return 0
    return logs.offset_at(track.partition.log, now - options.max_wait_ms - options.delayed_processing_ms)


def due_since(track: Track, now: int) -> int:
    """Return the earliest due time that has not waited too long."""
    max_wait_ms = track.queue.options.max_wait_ms
    return now - max_wait_ms if max_wait_ms else 0


def has_open(track: Track, now: int) -> bool:
    """Whether a track has fresh messages that may be delivered, or be evicted."""
    return any(fresh(track, track.cursor, old_enough(track, now)))


def opens_at(track: Track, now: int) -> int:
    """Return when a gate of the track opens; ``NEVER`` if only a push can change that."""
    options = track.queue.options
    log = track.partition.log
    found = NEVER
    if is_withheld(track, now):
        return _newest_at(track) + options.window_buffer_ms
    if options.delayed_processing_ms and fresh_count(track):
        offset = max(track.cursor, old_enough(track, now))
        if offset < log.end:
            segment = log.segments[logs.find(log, offset)]
            found = segment.run_at(offset - segment.base)[1] + options.delayed_processing_ms
    return found if found > now else NEVER


def evict(shard: Shard, track: Track, most: int, now: int) -> int:
    """Evict up to ``most`` runs that have waited too long; return how many."""
    max_wait_ms = track.queue.options.max_wait_ms
    spans = list(islice(fresh(track, track.cursor, too_old(track, now)), most))
    for low, high in spans:
        skip(shard, track, low, high)
    for run in track.schedule.due_before(now - max_wait_ms, most - len(spans)):
        shard.unschedule(track, run)
        spans.append((run.first, run.first + run.count))
    for low, high in spans:
        record_outcome(shard, track, low, high, EVICTED, now)
    return len(spans)
