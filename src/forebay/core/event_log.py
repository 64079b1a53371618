"""Lifecycle events are a log themselves: tenant ``_system``, one queue with one partition per shard.

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
from forebay.core.shard.domain import Domain, new_queue
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
    queue_name,
    tally,
)
from forebay.core.words import DEFAULT, EVENT_KINDS, SYSTEM, is_own

SEAL_COUNT = 1_000
SEAL_BYTES = 128 * 1024
"""Events, and their bytes, per segment."""
SEAL_MS = 600_000
"""Longest time a segment stays open, if events are kept for at least ten times that."""
RUNS_MAX = 1_000
"""Runs per event; more become several events."""


def is_log(queue: Queue) -> bool:
    """Whether a system queue is an event log."""
    return queue.name == queue_name(queue.shard)


_encode = msgspec.json.Encoder().encode


def keep(domain: Domain, shard: Shard, now: int) -> None:
    """Count the changes of a shard, and append their events to its forming commit."""
    changes = shard.changes.change_log.take()
    for each in changes:
        tally(domain.tallies, each)
    changes = [each for each in changes if not is_own(each.queue.tenant)]
    if not changes:
        return
    if not domain.limits.events_bytes_max and not domain.listening:
        return
    told: list[tuple[Change, bytes]] = []
    for each in changes:
        if len(each.runs) > 1:
            each.runs = joined(each.runs)
        told += _in_parts(each, now)
    kept = [payload for each, payload in told if each.queue.stored] if domain.limits.events_bytes_max else []
    offset = NOT_KEPT
    if kept:
        log = domain.event_logs.get(shard.number) or _new_log(domain, shard)
        _close_if_old(domain, shard, log, now)
        offset = log.partition.log.end
        _append(domain, shard, log, kept, now)
    if domain.listening:
        for each, payload in told:
            queue = each.queue
            is_kept = bool(kept) and queue.stored
            at = offset if is_kept else NOT_KEPT
            domain.emitted.append(
                EmittedEvent(shard.number, at, each.kind, queue.tenant, queue.name, payload)
            )
            offset += is_kept


def positions(domain: Domain, command: EventPositions, now: int) -> PositionsFound:
    """Return where the event logs end, the forming commit included."""
    return PositionsFound({shard: log.partition.log.end for shard, log in domain.event_logs.items()})


def past(domain: Domain, command: EventsPast, now: int) -> PastFound:
    """Return the offset behind the segment that holds an offset: a damaged segment is skipped whole."""
    log = domain.event_logs[command.shard].partition.log
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
    if times:
        spent = sum([spent_ms * each for spent_ms, each in times])
        found.duration_ms = spent // sum([each for _, each in times])
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


def _append(domain: Domain, shard: Shard, log: EventLog, payloads: list[bytes], now: int) -> None:
    """Add events to the open segment, or close it."""
    queue, partition = log.queue, log.partition
    if not fits(partition, len(payloads)):
        _close(domain, shard, log, now)
        shard.renumber(queue, partition)
    lengths = list(map(len, payloads))
    size = sum(lengths)
    first = logs.append(partition.log, payloads, lengths, size, now)
    segment = partition.log.forming
    assert segment is not None
    if segment.base > first or segment.count >= SEAL_COUNT or segment.size >= SEAL_BYTES:
        _close(domain, shard, log, now)
    else:
        key = keyspace.header_key(queue.prefix, partition.key, first)
        shard.changes.put((key, codec.pack_tail(payloads, size, segment.created_at)))
        log.tail.append(key)


def _close_if_old(domain: Domain, shard: Shard, log: EventLog, now: int) -> None:
    """Close an open segment that is too old: retention goes by its first event."""
    forming = log.partition.log.forming
    if forming is not None and now - forming.created_at > min(
        SEAL_MS, domain.limits.events_retention_ms // 10
    ):
        _close(domain, shard, log, now)


def _close(domain: Domain, shard: Shard, log: EventLog, now: int) -> None:
    """Seal the open segment like any other, and drop surplus segments."""
    queue, partition = log.queue, log.partition
    begins = [each.base for each in partition.log.segments if each.payloads is not None]
    shard.changes.seal_now(queue, partition)
    partition.unmerged = 0
    kept = {keyspace.header_key(queue.prefix, partition.key, base) for base in begins}
    shard.changes.deletes += [key for key in log.tail if key not in kept]
    log.tail.clear()
    surplus = partition.log.size - domain.limits.events_bytes_max
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


def _new_log(domain: Domain, shard: Shard) -> EventLog:
    name = queue_name(shard.number)
    prefix, number = domain.directory.create(SYSTEM, name, shard.number)
    queue = new_queue(SYSTEM, name, prefix, number)
    set_options(queue, _options(domain, queue))
    domain.queues[SYSTEM, name] = queue
    shard.add_queue(queue)
    log = EventLog(queue, shard.add_partition(queue, DEFAULT), [])
    domain.event_logs[shard.number] = log
    return log


def _options(domain: Domain, queue: Queue) -> QueueOptions:
    return msgspec.structs.replace(queue.options, retention_ms=domain.limits.events_retention_ms)


def restore(domain: Domain, queue: Queue, now: int) -> None:
    """Resume a loaded event log: its tail becomes a regular segment."""
    shard = domain.shards[queue.shard]
    (partition,) = queue.partitions.values()
    if queue.options.retention_ms != domain.limits.events_retention_ms:
        set_options(queue, _options(domain, queue))
        shard.changes.touch_queue(queue)
    log = partition.log
    open_ = [each for each in log.segments if each.payloads is not None]
    events = EventLog(queue, partition, [])
    domain.event_logs[shard.number] = events
    if open_:
        events.tail = [keyspace.header_key(queue.prefix, partition.key, each.base) for each in open_]
        log.segments[-len(open_) :] = [joined := _joined(open_)]
        log.bases[-len(open_) :] = [joined.base]
        log.forming = joined
        _close(domain, shard, events, now)


def _joined(parts: list[Segment]) -> Segment:
    first = parts[0]
    payloads = [payload for each in parts for payload in each.payloads or ()]
    lengths = list(map(len, payloads))
    count, size = len(payloads), sum(lengths)
    return Segment(first.base, count, size, first.created_at, payloads=payloads, lengths=lengths)
