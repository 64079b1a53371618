"""Push: append checked payloads and make them deliverable."""

from msgspec.structs import replace

from forebay.core.api.commands import Pushed
from forebay.core.bounds import NEVER
from forebay.core.errors import Conflict, Invalid
from forebay.core.ids import OFFSET_BITS
from forebay.core.links.cleanup import tie_cleanup
from forebay.core.log import log as logs
from forebay.core.log.numbers import fits
from forebay.core.shard.shard import Shard
from forebay.core.shard.tracks import list_ready
from forebay.core.state import IN_LINE, PLAIN, Attributes, Log, Partition, Queue, Scheduled, Track
from forebay.core.words import DURABILITY_LEVELS, FSYNC, MEMORY, OS, PUSHED


def reached(queue: Queue | None, asked: str | None, reach: str) -> str:
    """Return the durability of a push in a store that reaches ``reach``; raise if it can't be had."""
    if asked is None:
        level = queue.options.durability if queue is not None else FSYNC
    else:
        level = _checked(queue, asked)
    return level if reach == FSYNC else min(level, reach, key=DURABILITY_LEVELS.index)


def _checked(queue: Queue | None, asked: str) -> str:
    if asked not in (FSYNC, OS):
        raise Invalid("durability", f"{FSYNC} or {OS} (only a whole queue can be {MEMORY})")
    if queue is not None and not queue.stored:
        raise Conflict(f"queue {queue.name} was created {MEMORY}: nothing in it survives")
    return asked


def push(
    shard: Shard,
    queue: Queue,
    partition: Partition,
    payloads: list[bytes],
    lengths: list[int],
    durability: str,
    attributes: Attributes,
    now: int,
) -> Pushed:
    """Append checked payloads of these lengths, with checked attributes."""
    log = partition.log
    count = len(payloads)
    before_append(shard, queue, partition, count, durability, now)
    number, base = partition.numbers[-1]
    if log.forming is None:
        shard.changes.touch()
        shard.changes.forming.append((queue, partition))
    if attributes is not PLAIN and log.forming is not None and now > log.time:
        attributes = _from(attributes, now - log.time)
    offset = logs.append(log, payloads, lengths, sum(lengths), now, attributes)
    shard.changes.change_log.note(PUSHED, queue, "", partition, offset, count)
    if attributes is not PLAIN and attributes.cleanup is not None:
        tie_cleanup(shard, queue, partition, offset, offset + count, attributes.cleanup)
    if attributes is PLAIN or attributes.in_line:
        wake_readers(shard, queue, partition)
    elif attributes.depends_on:
        for group in queue.groups.values():
            group.tracks[partition.key].aside += count
    else:
        _schedule(shard, queue, partition, offset, attributes, now)
    return Pushed(number << OFFSET_BITS | offset - base, count, log.time, durability)


def before_append(
    shard: Shard, queue: Queue, partition: Partition, count: int, durability: str, now: int
) -> None:
    """Prepare a partition for ``count`` more messages: number, os mark, sweep."""
    if not fits(partition, count):
        shard.renumber(queue, partition)
    if durability == FSYNC:
        shard.changes.must_sync = True
    elif durability == OS and not partition.os_marked:
        shard.changes.mark_os(queue, partition)
    if queue.options.max_wait_ms or queue.options.retention_ms or partition.retention.retention_ms:
        shard.timers.plan_sweep(queue, now)
    if partition.emptied_at:
        partition.emptied_at = 0
        shard.changes.touch_partition(queue, partition)


def wake_readers(shard: Shard, queue: Queue, partition: Partition) -> None:
    """List the tracks of a partition that got in-line messages, and wake waiting pops."""
    for group in queue.groups.values():
        track = group.tracks[partition.key]
        if track.listed is None or track.listed[0] > IN_LINE:
            list_ready(track)
    shard.changes.woken[queue, None, partition.name] = None


def _from(attributes: Attributes, later_ms: int) -> Attributes:
    """Return attributes with delay and ttl counted from the earlier time of their segment."""
    if attributes.delay_ms:
        attributes = replace(attributes, delay_ms=attributes.delay_ms + later_ms)
    if attributes.ttl_ms:
        attributes = replace(attributes, ttl_ms=attributes.ttl_ms + later_ms)
    return attributes


def _schedule(
    shard: Shard, queue: Queue, partition: Partition, offset: int, attributes: Attributes, now: int
) -> None:
    """Schedule messages that were just appended, out of line, in every group."""
    log = partition.log
    due_at = log.time + attributes.delay_ms
    run = Scheduled(due_at, offset, log.end - offset, attributes.level)
    schedule(shard, queue, partition, run, now, joined=_begins(log) < offset)


def schedule(
    shard: Shard, queue: Queue, partition: Partition, run: Scheduled, now: int, *, joined: bool = False
) -> None:
    """Schedule a run of new messages in every group; joined with the run before it if it can be."""
    for group in queue.groups.values():
        track = group.tracks[partition.key]
        track.aside += run.count
        if track.planned != NEVER:
            track.unplanned += run.count
            continue
        shard.schedule(track, _with_last(shard, track, run) if joined else run, now)


def _begins(log: Log) -> int:
    """Return where the newest run of the forming segment starts."""
    assert log.forming is not None
    assert log.forming.marks is not None
    marks = log.forming.marks
    return log.forming.base + (marks[-2][0] if len(marks) > 1 else 0)


def _with_last(shard: Shard, track: Track, run: Scheduled) -> Scheduled:
    """Join a run with the one before it if they differ only in offsets: single pushes become a batch."""
    last = track.schedule.last()
    if last is None or last.deliveries or last.error:
        return run
    if (last.first + last.count, last.due_at, last.level) != (run.first, run.due_at, run.level):
        return run
    shard.unschedule(track, last)
    return replace(run, first=last.first, count=last.count + run.count)
