"""Questions: read the log, where it begins and ends, what a queue holds, where a message stands.

None of these changes anything.
"""

from collections.abc import Iterator
from itertools import islice, takewhile
from typing import NamedTuple

from msgspec.structs import replace

from forebay.core import log as logs, model
from forebay.core.agenda import NEVER
from forebay.core.commands import (
    ChildrenFound,
    Counts,
    DeadFound,
    DeadLetter,
    Delivery,
    GroupFound,
    ListDead,
    Log,
    NotesFound,
    Offsets,
    OffsetsFound,
    PartitionFound,
    PartitionOffsets,
    Paused,
    Popped,
    QueueCounts,
    QueueFound,
    Read,
    ReadRun,
    Show,
    Shown,
    ShownAll,
    StagedFound,
    State,
    StateFound,
)
from forebay.core.endings import dead_over, fresh, outcome_at, outside, unplanned_due
from forebay.core.errors import Invalid, NotFound
from forebay.core.ids import OFFSET_BITS, OFFSET_MASK, address
from forebay.core.leased import first_offset, leased_runs, there
from forebay.core.limits import Limits, check_name, check_range
from forebay.core.model import (
    CANCELLED,
    DEFAULT,
    DISCARDED,
    EVICTED,
    EXPIRED,
    OUTCOMES,
    Dead,
    Group,
    LeaseRun,
    Partition,
    Queue,
    Segment,
    Track,
    fresh_count,
    priority_of,
)
from forebay.core.notes import of_message
from forebay.core.numbers import number_of
from forebay.core.schedule import Scheduled
from forebay.core.shard import Shard
from forebay.core.standing import rows_over
from forebay.core.taking import PIECES_MAX
from forebay.core.ties import parked_over

AHEAD_SEGMENTS = 64
"""Segments looked at ahead of a cursor."""
UNPLANNED_MAX = 5_000
"""Runs that are looked at to count what is delayed among those that no pop has sorted yet: some 40 ms."""
READ_COUNT = 1_000
READ_BYTES = 1_048_576
"""What a read gets that does not say how much it wants."""


def read(limits: Limits, queue: Queue, command: Read) -> Log:
    """Messages by offset, up to a count and a size, at least one if there is one."""
    most = min(READ_COUNT, limits.batch_max) if command.max_count is None else command.max_count
    left = min(READ_BYTES, limits.read_bytes_max) if command.max_bytes is None else command.max_bytes
    if command.whole:
        most = min(most, limits.batch_max)
    check_range("max_count", most, 1, limits.batch_max)
    check_range("max_bytes", left, 1, limits.read_bytes_max)
    partition = partition_of(queue, command.partition)
    log = partition.log
    if not 0 <= command.offset <= log.end:
        raise Invalid("offset", f"between 0 and {log.end}, the end of the log")
    offset = max(command.offset, log.first)
    count = min(most, log.end - offset)
    runs: list[ReadRun] = []
    pieces = logs.parts if command.whole else logs.pieces
    for piece in pieces(log, offset, count, logs.find(log, offset)):
        if left <= 0 or len(runs) >= PIECES_MAX:
            break
        part = piece if command.whole else logs.fit(piece, left)
        number, base = number_of(partition, offset)
        first = address(number, offset - base)
        runs.append(ReadRun(part.segment, part.start, part.count, part.created_at, first))
        left -= logs.piece_bytes(part)
        offset += part.count
        if part.count < piece.count:
            break
    return Log(queue, partition.name, offset, log.end, runs, partition.key, command.whole)


def cut(found: Log) -> Log:
    """A read up to the first message whose payload is not there."""
    good = list(takewhile(lambda run: run.segment.present, found.runs))
    return replace(found, runs=good, next=good[-1].offset + good[-1].count if good else found.runs[0].offset)


def lacking(popped: Popped) -> list[Delivery]:
    """What of an answer can't be handed out: what is not there and, in strict order, what comes after it."""
    held_up: set[str] = set()
    found: list[Delivery] = []
    for each in popped.deliveries:
        if not each.segment.present or each.partition in held_up:
            found.append(each)
            if popped.queue.ordered:
                held_up.add(each.partition)
    return found


class Absent(NamedTuple):
    """A segment whose body is not in memory."""

    queue: Queue
    log: model.Log
    segment: Segment
    passing: bool = False
    """Whether its body is of no use to anybody else."""


Payloads = Popped | Log | DeadFound | ShownAll | NotesFound | ChildrenFound
"""Answers that have payloads."""


def absent(reply: Payloads) -> list[Absent]:
    """The segments whose bodies have to be read before the payloads of an answer can be."""
    if isinstance(reply, ChildrenFound):
        return absent(reply.shown) + [each for notes in reply.results for each in absent(notes)]
    if isinstance(reply, NotesFound):
        notes = [each for kind in reply.notes for each in kind]
        return [Absent(reply.queue, each.log, each.segment) for each in notes if not each.segment.present]
    if isinstance(reply, ShownAll):
        return [
            Absent(each.queue, each.queue.partitions[each.partition].log, each.segment)
            for each in reply.deliveries
            if not each.segment.present
        ]
    queue = reply.queue
    if isinstance(reply, Log):
        if not reply.runs:
            return []  # nor need its partition be there any more
        log = queue.partitions[reply.partition].log
        missing = [run.segment for run in reply.runs if not run.segment.present]
        return [Absent(queue, log, segment, reply.passing) for segment in missing]
    return [
        Absent(queue, queue.partitions[each.partition].log, each.segment)
        for each in reply.deliveries
        if not each.segment.present
    ]


def ahead(reply: Popped | Log, size: int) -> list[Absent]:
    """Segments behind what was popped or read whose bodies are not in memory.

    None as long as the first half of ``size`` bytes is there; else up to all of them, so that what is read
    ahead is read in large steps. In the middle of a segment nobody looks: 64 small ones took 46 µs a pop.
    """
    parts = reply.deliveries if isinstance(reply, Popped) else reply.runs
    if not parts or 0 < parts[-1].start < parts[-1].segment.count - parts[-1].count:
        return []
    name = reply.partition if isinstance(reply, Log) else reply.deliveries[-1].partition
    log = reply.queue.partitions[name].log
    position = logs.find(log, parts[-1].offset) + 1
    found: list[Absent] = []
    passed = 0
    for segment in islice(log.segments, position, position + AHEAD_SEGMENTS):
        if not segment.present:
            found.append(Absent(reply.queue, log, segment))
        passed += segment.size
        if passed >= size or (not found and passed >= size // 2):
            break
    return found


def offsets(queue: Queue, command: Offsets) -> OffsetsFound:
    """First and end of every partition, and the first offset at or after a time."""
    if command.at is not None and command.at < 0:
        raise Invalid("at", "a time in ms")
    return OffsetsFound(
        [
            PartitionOffsets(
                partition.name,
                list(partition.numbers),
                partition.log.first,
                partition.log.end,
                None if command.at is None else offset_from(partition.log, command.at),
                partition.log.size,
                _next_at(partition, command.since) if command.since else None,
            )
            for partition in queue.partitions.values()
        ]
    )


def _next_at(partition: Partition, since: dict[str, int]) -> int | None:
    """When the next message of a partition was pushed from an offset on."""
    log = partition.log
    offset = max(since.get(partition.name, log.end), log.first)
    if offset >= log.end:
        return None
    return logs.created_at(log, offset)


def offset_from(log: model.Log, at: int) -> int:
    """The first offset that can be read of messages pushed at or after a time."""
    return max(logs.offset_at(log, at), log.first)


def describe(queue: Queue, now: int) -> QueueFound:
    """A queue with its partitions and groups."""
    partitions = [
        PartitionFound(
            partition.name,
            partition.log.first,
            partition.log.end,
            partition.log.size,
            partition.retention,
            partition.lane,
        )
        for partition in queue.partitions.values()
    ]
    groups = [GroupFound(group.name, counts(queue, group, now)) for group in queue.groups.values()]
    stages = queue.stages.values()
    staged = StagedFound(len(stages), sum(each.count for each in stages), queue.staged.bytes)
    return QueueFound(queue.name, queue.options, partitions, groups, paused(queue, now), staged)


def paused(queue: Queue, now: int) -> Paused:
    until = queue.paused_until
    return Paused(until > now, until if now < until < NEVER else None)


def queue_counts(queue: Queue, now: int) -> QueueCounts:
    """A queue as its work queue, the group ``default``, sees it."""
    found = counts(queue, queue.groups.get(DEFAULT), now)
    return QueueCounts(queue.name, found, queue.paused_until > now)


def counts(queue: Queue, group: Group | None, now: int) -> Counts:
    """Messages still kept, by where they stand in a group."""
    found = Counts()
    for partition in queue.partitions.values():
        kept = logs.count_kept(partition.log)
        if group is None:
            kept -= partition.log.strays
            delayed, withdrawn = _undelivered(partition, now)
            parked = sum(high - low for low, high in rows_over(partition.parked, partition.log.first, NEVER))
            found.waiting += kept - delayed - withdrawn - parked
            found.parked += parked
            found.delayed += delayed
            found.cancelled += withdrawn
            continue
        track = group.tracks[partition.key]
        due = track.schedule.due_messages(now)
        later = _unplanned_later(track, now) if track.unplanned else 0
        waiting = fresh_count(track) + due + track.unplanned - later
        delayed = track.schedule.messages - due + later
        found.waiting += waiting
        found.delayed += delayed
        found.parked += partition.parked_messages
        found.active += track.leased
        found.dead += track.dead_messages
        ended = track.ended
        found.expired += ended[EXPIRED]
        found.cancelled += ended[CANCELLED]
        found.discarded += ended[DISCARDED]
        found.evicted += ended[EVICTED]
        unsettled = waiting + delayed + track.leased + track.dead_messages + partition.parked_messages
        found.completed += kept - unsettled - sum(ended)
    return found


def _unplanned_later(track: Track, now: int) -> int:
    """Messages that are not in the schedule yet and will not be due when they are.

    Only so many runs are looked at; what is behind them counts as waiting until pops have sorted it.
    """
    spans = islice(unplanned_due(track, track.planned, track.partition.log.end), UNPLANNED_MAX)
    return sum(high - low for low, high, due_at in spans if due_at > now)


def _undelivered(partition: Partition, now: int) -> tuple[int, int]:
    """Of messages that no group has read: how many are delayed, and how many were cancelled."""
    log = partition.log
    delayed = 0
    for segment in log.segments[log.islands :] if log.mixed else ():
        start = 0
        while segment.aside and start < segment.count:
            end, created_at, attributes = segment.run_at(start)
            if created_at + attributes.delay_ms > now:
                for low, high in outside(partition.withdrawn, segment.base + start, segment.base + end):
                    delayed += sum(last - first for first, last in outside(partition.parked, low, high))
            start = end
    return delayed, sum(count for _, count, _ in partition.withdrawn)


DEAD_MAX = 1_000
"""Dead letters shown at a time."""


def list_dead(limits: Limits, queue: Queue, command: ListDead) -> DeadFound:
    """Dead letters of a group, with what they died of; fewer if they are large."""
    check_range("count", command.count, 1, DEAD_MAX)
    check_range("offset", command.skip, 0, 1 << 62)
    check_name("group", command.group)
    group = queue.groups.get(command.group)
    tracks = group.tracks.values() if group is not None else ()
    found = DeadFound(queue, command.group, sum(track.dead_messages for track in tracks), [])
    skip, left, bytes_left = command.skip, command.count, limits.read_bytes_max
    for track in tracks:
        if skip >= track.dead_messages:
            skip -= track.dead_messages
            continue
        for first, count in track.dead:
            passed = min(skip, count)
            skip -= passed
            taken = min(count - passed, left)
            for letter in _letters(track, track.letters[first], first + passed, taken):
                if bytes_left <= 0:
                    return found
                found.deliveries.append(letter)
                left -= letter.count
                bytes_left -= logs.piece_bytes(letter)
            if not left:
                return found
    return found


def _letters(track: Track, run: Dead, first: int, count: int) -> Iterator[DeadLetter]:
    log = track.partition.log
    for offset in range(first, first + count):
        (piece,) = logs.pieces(log, offset, 1, logs.find(log, offset))
        number, base = number_of(track.partition, piece.offset)
        origin = logs.attributes_at(log, offset).origin
        message, created_at = origin or (address(number, piece.offset - base), piece.created_at)
        yield DeadLetter(
            piece.segment,
            piece.start,
            piece.count,
            created_at,
            track.partition.name,
            message,
            run.deliveries,
            run.failures,
            run.dead_at,
            run.error,
            priority_of(run.level),
        )


def state(shard: Shard, command: State, now: int) -> StateFound:
    """Where a message stands in a group; a group that does not exist has everything waiting."""
    check_name("group", command.group)
    where = there(shard, command.tenant, command.id)
    place, offset = where.place, where.first
    partition = place.partition
    log = partition.log
    segment = log.segments[logs.find(log, offset)]
    _, created_at, attributes = segment.run_at(offset - segment.base)
    found = StateFound(command.id, created_at, "waiting", priority=attributes.priority)
    if attributes.origin is not None:
        found.id, found.created_at = attributes.origin
    found.depends_on = attributes.depends_on
    if partition.job_ids:
        found.job_id = partition.job_ids.get(first_offset(shard, where))
    if offset in partition.ties:
        found.unique_key = partition.ties[offset].unique_key or None
    group = place.queue.groups.get(command.group)
    track = group.tracks[partition.key] if group is not None else None
    withdrawn_at = _withdrawn_at(partition, offset)
    if parked_over(partition, offset, offset + 1):
        found.state = "parked"
    elif track is None and withdrawn_at is None:
        _show_due(found, created_at + attributes.delay_ms, now)
    elif track is None:
        found.state, found.ended_at = "cancelled", withdrawn_at
    else:
        _show(shard, track, offset, found, created_at + attributes.delay_ms, now)
    expired_at = created_at + attributes.ttl_ms
    if attributes.ttl_ms and expired_at <= now and found.state in ("waiting", "delayed", "parked"):
        found.state, found.due_at = "expired", None
    if found.state == "expired":
        found.ended_at = expired_at
    return found


def notes(
    shard: Shard, tenant: str, message: int, kinds: tuple[int, ...], group: str, now: int
) -> NotesFound:
    """What is kept beside a message, and where it stands."""
    stands = state(shard, State(tenant, message, group), now)
    where = there(shard, tenant, message)
    queue, partition, offset = where.place.queue, where.place.partition, where.first
    first = first_offset(shard, where)
    most = shard.limits.read_bytes_max
    found = [of_message(queue, kind, partition, first, most) for kind in kinds]
    segment = partition.log.segments[logs.find(partition.log, offset)]
    _, created_at, attributes = segment.run_at(offset - segment.base)
    waits = stands.state in ("waiting", "delayed", "parked")
    over_at = created_at + attributes.ttl_ms if attributes.ttl_ms and waits else NEVER
    return NotesFound(queue, stands, found, partition.progress.get(first), over_at)


SHOWN_MAX = 1_000
"""Messages shown at a time."""


def show(limits: Limits, shards: list[Shard], command: Show, now: int) -> ShownAll:
    """Messages with their payloads; those that are there."""
    if not 1 <= len(command.ids) <= SHOWN_MAX:
        raise Invalid("ids", f"a list of 1 to {SHOWN_MAX} ids")
    found = show_each(shards, command, now)
    if len(found) > 1 and sum(map(logs.piece_bytes, found)) > limits.read_bytes_max:
        raise Invalid("ids", f"fewer: their payloads are more than {limits.read_bytes_max} bytes")
    return ShownAll(found)


def show_each(shards: list[Shard], command: Show, now: int) -> list[Shown]:
    """Those of some messages that are there, with where to find their payloads."""
    found: list[Shown] = []
    for message in command.ids:
        shard = shards[(message >> OFFSET_BITS) % len(shards)]
        try:
            stands = state(shard, State(command.tenant, message, command.group), now)
        except NotFound:
            continue
        place = shard.places[message >> OFFSET_BITS]
        log, offset = place.partition.log, place.first + (message & OFFSET_MASK)
        segment = log.segments[logs.find(log, offset)]
        at = (segment, offset - segment.base, 1, stands.created_at)
        found.append(Shown(*at, place.queue, place.partition.name, stands))
    return found


def _withdrawn_at(partition: Partition, offset: int) -> int | None:
    row = partition.withdrawn.upto(offset)
    return row[2] if row is not None and offset < row[0] + row[1] else None


def _show_due(found: StateFound, due_at: int, now: int) -> None:
    if due_at > now:
        found.state, found.due_at = "delayed", due_at


def _show(shard: Shard, track: Track, offset: int, found: StateFound, due_at: int, now: int) -> None:
    """Where a message stands in a track; ``due_at`` is when it may be delivered as it was pushed."""
    run = _out_of_line(shard, track, offset)
    ended = outcome_at(track, offset)
    if run is not None:
        found.deliveries, found.failures, found.error = run.deliveries, run.failures, run.error
        found.priority = priority_of(run.level)
        if isinstance(run, Scheduled):
            _show_waiting(track, found, run.due_at, now)
        elif isinstance(run, LeaseRun):
            found.state = "active"
        else:
            found.state, found.ended_at = "dead", run.dead_at
    elif ended is not None:
        found.state = "dead" if ended[0] == DISCARDED else OUTCOMES[ended[0]]
        found.ended_at = ended[1]
    elif offset >= track.planned and not _in_line(track, offset):
        _show_due(found, due_at, now)
    elif any(fresh(track, offset, offset + 1)):
        _show_waiting(track, found, due_at + track.queue.options.delayed_processing_ms, now)
    else:
        found.state = "completed"


def _show_waiting(track: Track, found: StateFound, due_at: int, now: int) -> None:
    """A message that waits since it was due, unless that is too long."""
    _show_due(found, due_at, now)
    max_wait_ms = track.queue.options.max_wait_ms
    if max_wait_ms and due_at + max_wait_ms < now:
        found.state, found.ended_at = "evicted", due_at + max_wait_ms


def _in_line(track: Track, offset: int) -> bool:
    return logs.attributes_at(track.partition.log, offset).in_line


def _out_of_line(shard: Shard, track: Track, offset: int) -> Scheduled | LeaseRun | Dead | None:
    """The scheduled, leased or dead run that a message is in, if it is in one."""
    scheduled = track.schedule.find(offset)
    if scheduled is not None:
        return scheduled
    for _, leased in leased_runs(shard, track, offset, offset + 1):
        if not leased.settled >> offset - leased.first & 1:
            return leased
    return next(iter(dead_over(track, offset, offset + 1)), None)


def partition_of(queue: Queue, name: str) -> Partition:
    """The partition of that name, if the queue has it."""
    check_name("partition", name)
    partition = queue.partitions.get(name)
    if partition is None:
        raise NotFound(f"queue {queue.name} has no partition {name}")
    return partition
