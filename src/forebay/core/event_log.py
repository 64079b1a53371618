"""Lifecycle events are a log themselves: the queue ``events`` of the shard's own tenant.

Events are written in the commit they describe: one event per kind, queue and group, with its offset ranges.
The newest segment of an event log stays open over many commits. Each commit adds one small record to its
tail, and a full tail is sealed into a regular segment.
"""

from collections.abc import Iterator

import msgspec

from forebay.core.api.queries import EventPositions, EventsPast, PastFound, PositionsFound
from forebay.core.ids import JSON_SAFE, address
from forebay.core.log import log as logs
from forebay.core.log.numbers import end_of, fits, number_of
from forebay.core.queues.options import set_options
from forebay.core.records import codec, keyspace
from forebay.core.retention.drop import cut_to
from forebay.core.shard.shard import Shard
from forebay.core.state import (
    NOT_KEPT,
    Change,
    EmittedEvent,
    Event,
    EventLog,
    Partition,
    Queue,
    QueueOptions,
    Ran,
    Segment,
    ShownRun,
    tally,
)
from forebay.core.words import DEFAULT, EVENT_KINDS, EVENTS, PROGRESSED, is_own, system_of

SEAL_COUNT = 1_000
SEAL_BYTES = 128 * 1024
"""Events, and their bytes, per segment."""
SEAL_MS = 600_000
"""Longest time a segment stays open, if events are kept for at least ten times that."""
RUNS_MAX = 1_000
"""Runs per event; more become several events."""


_encode = msgspec.json.Encoder().encode


def keep(shard: Shard, now: int) -> None:
    """Count the changes of a shard, and append their events to its forming commit."""
    changes = shard.changes.change_log.take()
    for each in changes:
        tally(shard.events.tallies, each)
    changes = [each for each in changes if not is_own(each.queue.tenant)]
    if not changes:
        return
    if not shard.limits.events_bytes_max and not shard.events.listening:
        return
    told: list[tuple[Change, bytes]] = []
    for each in changes:
        if each.kind == PROGRESSED:  # of a message that reported more than once, the last is told
            alone = (
                (where, at, 1) for where, first, count in each.runs for at in range(first, first + count)
            )
            each.runs = list(dict.fromkeys(alone))
        if len(each.runs) > 1:
            each.runs = joined(each.runs)
        told += _in_parts(each, now)
    kept = [payload for each, payload in told if each.queue.stored] if shard.limits.events_bytes_max else []
    offset = NOT_KEPT
    if kept:
        log = shard.events.log or _new_log(shard)
        _close_if_old(shard, log, now)
        offset = log.partition.log.end
        _append(shard, log, kept, now)
    if shard.events.listening:
        for each, payload in told:
            queue = each.queue
            is_kept = bool(kept) and queue.stored
            at = offset if is_kept else NOT_KEPT
            shard.events.emitted.append(
                EmittedEvent(shard.number, at, each.kind, queue.tenant, queue.name, payload)
            )
            offset += is_kept


def positions(shard: Shard, command: EventPositions, now: int) -> PositionsFound:
    """Return where the event log ends, the forming commit included."""
    log = shard.events.log
    return PositionsFound({shard.number: log.partition.log.end} if log is not None else {})


def past(shard: Shard, command: EventsPast, now: int) -> PastFound:
    """Return the offset behind the segment that holds an offset: a damaged segment is skipped whole."""
    if shard.events.log is None:
        return PastFound(command.offset)
    log = shard.events.log.partition.log
    offset = max(command.offset, log.first)
    return PastFound(log.segments[logs.find(log, offset)].end if offset < log.end else offset)


def joined(runs: list[Ran]) -> list[Ran]:
    """Return runs in order, adjacent ones joined."""
    found: list[Ran] = []
    for partition, first, count in sorted(runs, key=lambda run: (run[0].key, run[1])):
        if found and found[-1][0] is partition and found[-1][1] + found[-1][2] == first:
            found[-1] = (partition, found[-1][1], found[-1][2] + count)
        else:
            found.append((partition, first, count))
    return found


def _in_parts(change: Change, now: int) -> Iterator[tuple[Change, bytes]]:
    """Encode a change as one event, or as several if it has very many runs."""
    runs = [each for run in change.runs for each in _shown(*run)]
    for start in range(0, max(len(runs), 1), RUNS_MAX):
        yield change, _encode(_event(change, runs[start : start + RUNS_MAX], now))


def _event(change: Change, runs: list[ShownRun], now: int) -> Event:
    queue, times = change.queue, change.times
    count = sum([run[2] for run in runs])
    found = Event(EVENT_KINDS[change.kind], queue.tenant, queue.name, now, count, change.group, runs)
    found.task = change.task
    if change.kind == PROGRESSED:
        found.progress = _progress(queue, runs)
    if times:
        spent = sum([spent_ms * each for spent_ms, each in times])
        found.duration_ms = spent // sum([each for _, each in times])
    return found


def _progress(queue: Queue, runs: list[ShownRun]) -> list[int]:
    """Return the progress of the messages of some runs, as it is now."""
    found: list[int] = []
    for name, first, count, _ in runs:
        partition = queue.partitions.get(name)
        if partition is None:  # removed in the same commit
            found += [0] * count
            continue
        offsets = (partition.led_to.get(at, at) for at in range(first, first + count))
        told = (partition.progress.get(offset) for offset in offsets)
        found += [each.percent if each is not None else 0 for each in told]
    return found


def _shown(partition: Partition, first: int, count: int) -> Iterator[ShownRun]:
    """Yield a run with its first id, cut where ids are not consecutive."""
    if len(partition.numbers) == 1 and not partition.led_to:
        number, base = partition.numbers[0]
        yield partition.name, first, count, _id(address(number, first - base))
        return
    log, end = partition.log, first + count
    while first < end:
        number, base = number_of(partition, first)
        stop = min(end, max(end_of(partition, number), first + 1))
        message = address(number, first - base)
        if partition.led_to and logs.has(log, first):
            segment = log.segments[logs.find(log, first)]
            run_end, _, attributes = segment.run_at(first - segment.base)
            stop = min(stop, segment.base + run_end)
            if attributes.origin is not None:  # it took the place of another, whose id it has
                message, stop = attributes.origin[0], first + 1
        yield partition.name, first, stop - first, _id(message)
        first = stop


def _id(message: int) -> int | str:
    return message if message < JSON_SAFE else str(message)


def _append(shard: Shard, log: EventLog, payloads: list[bytes], now: int) -> None:
    """Add events to the open segment, or close it."""
    queue, partition = log.queue, log.partition
    if not fits(partition, len(payloads)):
        _close(shard, log, now)
        shard.renumber(queue, partition)
    lengths = list(map(len, payloads))
    size = sum(lengths)
    first = logs.append(partition.log, payloads, lengths, size, now)
    segment = partition.log.forming
    assert segment is not None
    if segment.base > first or segment.count >= SEAL_COUNT or segment.size >= SEAL_BYTES:
        _close(shard, log, now)
    else:
        key = keyspace.header_key(queue.prefix, partition.key, first)
        shard.changes.put((key, codec.pack_tail(payloads, size, segment.created_at)))
        log.tail.append(key)


def _close_if_old(shard: Shard, log: EventLog, now: int) -> None:
    """Close an open segment that is too old: retention goes by its first event."""
    forming = log.partition.log.forming
    if forming is not None and now - forming.created_at > min(
        SEAL_MS, shard.limits.events_retention_ms // 10
    ):
        _close(shard, log, now)


def _close(shard: Shard, log: EventLog, now: int) -> None:
    """Seal the open segment like any other, and drop surplus segments."""
    queue, partition = log.queue, log.partition
    begins = [each.base for each in partition.log.segments if each.payloads is not None]
    shard.changes.seal_now(queue, partition)
    partition.unmerged = 0
    kept = {keyspace.header_key(queue.prefix, partition.key, base) for base in begins}
    shard.changes.deletes += [key for key in log.tail if key not in kept]
    log.tail.clear()
    surplus = partition.log.size - shard.limits.events_bytes_max
    if surplus > 0:
        cut_to(shard, queue, partition, _past(partition, surplus), now)
    shard.timers.plan_sweep(queue, now)


def _past(partition: Partition, size: int) -> int:
    """Return the offset behind the first segments that are at least ``size`` bytes together."""
    for segment in partition.log.segments[:-1]:
        size -= segment.size
        if size <= 0:
            return segment.end
    return partition.log.segments[-1].base


def _new_log(shard: Shard) -> EventLog:
    queue = shard.add_queue(system_of(shard.number), EVENTS)
    set_options(queue, _options(shard, queue))
    shard.events.log = EventLog(queue, shard.add_partition(queue, DEFAULT), [])
    return shard.events.log


def _options(shard: Shard, queue: Queue) -> QueueOptions:
    return msgspec.structs.replace(queue.options, retention_ms=shard.limits.events_retention_ms)


def restore(shard: Shard, queue: Queue, now: int) -> None:
    """Resume a loaded event log: its tail becomes a regular segment."""
    (partition,) = queue.partitions.values()
    if queue.options.retention_ms != shard.limits.events_retention_ms:
        set_options(queue, _options(shard, queue))
        shard.changes.touch_queue(queue)
    log = partition.log
    open_ = [each for each in log.segments if each.payloads is not None]
    events = EventLog(queue, partition, [])
    shard.events.log = events
    if open_:
        events.tail = [keyspace.header_key(queue.prefix, partition.key, each.base) for each in open_]
        log.segments[-len(open_) :] = [joined := _joined(open_)]
        log.bases[-len(open_) :] = [joined.base]
        log.forming = joined
        _close(shard, events, now)


def _joined(parts: list[Segment]) -> Segment:
    first = parts[0]
    payloads = [payload for each in parts for payload in each.payloads or ()]
    lengths = list(map(len, payloads))
    count, size = len(payloads), sum(lengths)
    return Segment(first.base, count, size, first.created_at, payloads=payloads, lengths=lengths)
