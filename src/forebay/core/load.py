"""Load: a queue as its records tell it.

Everything that can be wrong with the records is found before the shard is touched: a damaged queue is left
out, and the others never notice.
"""

import struct
from collections import defaultdict, deque
from collections.abc import Iterable
from operator import attrgetter

import msgspec
from msgspec import MsgspecError, Struct

from forebay.core import log as logs, records, stage_records
from forebay.core.agenda import NEVER
from forebay.core.bodies import is_whole
from forebay.core.cron import check_kept
from forebay.core.endings import count_unplanned
from forebay.core.errors import Damaged, Invalid
from forebay.core.headers import load_log
from forebay.core.keys import unpack
from forebay.core.leased import gaps, hold
from forebay.core.model import (
    IN_LINE,
    OUTCOMES,
    Cron,
    Dead,
    Group,
    Lease,
    LeaseRun,
    Log,
    Once,
    Partition,
    Progress,
    Queue,
    Segment,
    Shared,
    Tie,
    Track,
    Value,
    fresh_count,
)
from forebay.core.notes import enter, new_notes
from forebay.core.options import set_kept
from forebay.core.records import PackedCursor, PackedGroup, PackedPartition, Record
from forebay.core.schedule import Schedule
from forebay.core.shard import MERGE_AT, Ended, Place, Shard, Telling, Tellings
from forebay.core.stagedata import Adopted, Part, Stage
from forebay.core.table import Table
from forebay.core.ties import SPAN_MAX
from forebay.core.tracks import list_ready, new_partition, new_track


class Rows(Struct, eq=False):
    """What is kept as runs of a group in a partition."""

    schedule: Schedule
    skips: Table
    dead: Table
    letters: dict[int, Dead]
    outcomes: Table
    ended: list[int]
    dead_messages: int = 0


def _no_rows() -> Rows:
    return Rows(Schedule(), Table("qq"), Table("qq"), {}, Table("qqqq"), [0] * len(OUTCOMES))


class Found(Struct, eq=False):
    """The records of a queue, decoded, by kind."""

    cursors: dict[tuple[int, int], PackedCursor] = {}
    """By group and partition."""
    groups: dict[int, PackedGroup] = {}
    partitions: dict[int, PackedPartition] = {}
    segments: dict[int, list[Segment]] = {}
    """By partition."""
    rows: defaultdict[tuple[int, int], Rows] = msgspec.field(default_factory=lambda: defaultdict(_no_rows))
    """By group and partition."""
    withdrawn: defaultdict[int, Table] = msgspec.field(
        default_factory=lambda: defaultdict(lambda: Table("qqq"))
    )
    """By partition."""
    successors: defaultdict[int, Table] = msgspec.field(
        default_factory=lambda: defaultdict(lambda: Table("qq"))
    )
    """By partition."""
    notes: dict[int, list[tuple[Segment, list[tuple[int, int]]]]] = {}
    """Segments of notes and what they are about, by kind."""
    progress: dict[int, dict[int, Progress]] = {}
    """By partition and offset."""
    ended: list[tuple[int, int, int, int, int]] = []
    """Serial, how, partition, first and end of what ended and whose dependents are being told."""
    later: dict[int, dict[tuple[int, int], int]] = {}
    """Rows of dependents that were made meanwhile, by partition, and since when."""
    ties: dict[int, dict[int, Tie]] = {}
    """By partition and offset."""
    job_ids: dict[int, dict[int, str]] = {}
    """By partition and offset."""
    dependents: defaultdict[int, Table] = msgspec.field(
        default_factory=lambda: defaultdict(lambda: Table("qQqq"))
    )
    """By partition."""
    met: dict[int, dict[tuple[int, int], int]] = {}
    """What of them is not waited for any more, by partition."""
    parked: defaultdict[int, Table] = msgspec.field(default_factory=lambda: defaultdict(lambda: Table("qqq")))
    """By partition."""
    taken: dict[int, dict[int, tuple[int, list[tuple[int, str]]]]] = {}
    """By partition and first offset."""
    once: dict[bytes, Once] = {}
    adopted: list[tuple[str, int, Adopted]] = []
    crons: list[Cron] = []
    leases: list[tuple[int, int, list[LeaseRun], bool, int]] = []
    """Name, group, runs, and whether some of it was cancelled."""


def decode(queue: Queue, records_: Iterable[Record]) -> Found:
    """The records of a queue, or ``Damaged``. Fills in the queue's own options."""
    found = Found()
    try:
        for key, value in records_:
            _decode(queue, found, key, value)
    except (
        MsgspecError,
        AssertionError,
        UnicodeDecodeError,
        ValueError,
        OverflowError,
        struct.error,
    ) as error:
        raise Damaged(f"a record can't be decoded: {error}") from None
    return found


def _decode(queue: Queue, found: Found, key: bytes, value: bytes) -> None:
    match key[8:9]:
        case b"c":
            group, partition = records.key_fields(key)
            found.cursors[group, partition] = records.unpack_cursor(value)
        case b"d":
            group, partition, first = records.key_fields(key)
            letter, rows = records.unpack_dead(first, value), found.rows[group, partition]
            rows.dead.add((first, _counted(letter.count)))
            rows.letters[first] = letter
            rows.dead_messages += letter.count
        case b"e":
            partition, first = records.key_fields(key)
            found.withdrawn[partition].add((first, *_fields(value, 2)))
        case b"f":
            how, partition, serial = records.key_fields(key)
            end, *begin = records.unpack_numbers(value)  # where it begins was its serial once
            found.ended.append((serial, how, partition, begin[0] if begin else serial, end))
        case b"g":
            (number,) = records.key_fields(key)
            found.groups[number] = records.unpack_group(value)
        case b"h":
            partition, base = records.key_fields(key)
            found.segments.setdefault(partition, []).append(records.unpack_header(base, value))
        case b"i":
            kind, base = records.key_fields(key)
            found.notes.setdefault(kind, []).append(records.unpack_notes(base, value))
        case b"j":
            partition, offset = records.key_fields(key)
            found.progress.setdefault(partition, {})[offset] = records.unpack_progress(value)
        case b"k":
            partition, offset = records.key_fields(key)
            found.ties.setdefault(partition, {})[offset] = records.unpack_tie(value)
        case b"m":
            partition, offset = records.key_fields(key)
            found.job_ids.setdefault(partition, {})[offset] = value.decode()
        case b"n":
            _add_staged(queue, *stage_records.unpack_staged(key, value))
        case b"z":
            query, batch = stage_records.adopted_by(key)
            found.adopted.append((query, batch, stage_records.unpack_adopted(value)))
        case b"r":
            partition, waits, met, since = records.unpack_dependent(key, value)
            _counted(min(waits[2:]))
            if waits[2] > SPAN_MAX or met.bit_length() > waits[2]:
                raise Damaged("a row of dependents is longer than any")
            found.dependents[partition].add(waits)
            if met:
                found.met.setdefault(partition, {})[waits[:2]] = met
            if since:
                found.later.setdefault(partition, {})[waits[:2]] = since
        case b"t":
            found.crons.append(_cron(queue, value))
        case b"w":
            found.once[key[9:]] = records.unpack_once(value)
        case b"x":
            partition, first = records.key_fields(key)
            found.taken.setdefault(partition, {})[first] = records.unpack_taken(value)
        case b"y":
            partition, first = records.key_fields(key)
            found.parked[partition].add((first, *_fields(value, 2)))
        case b"l":
            found.leases.append((int.from_bytes(key[9:], "big"), *records.unpack_lease(value)))
        case b"o":
            group, partition, first = records.key_fields(key)
            rows, row = found.rows[group, partition], (first, *_fields(value, 3))
            rows.outcomes.add(row)
            if row[2] not in range(len(OUTCOMES)):
                raise Damaged(f"there is no outcome {row[2]}")
            rows.ended[row[2]] += row[1]
        case b"s":
            group, partition, first = records.key_fields(key)
            found.rows[group, partition].skips.add((first, *_fields(value, 1)))
        case b"p":
            (partition,) = records.key_fields(key)
            found.partitions[partition] = records.unpack_partition(value)
        case b"q":
            set_kept(queue, records.unpack_queue(value))
        case b"u":
            partition, offset = records.key_fields(key)
            (successor,) = records.unpack_numbers(value)
            found.successors[partition].add((offset, successor))
        case b"v":
            group, partition, run = records.unpack_scheduled(key, value)
            _counted(run.count)
            found.rows[group, partition].schedule.add(run, 0)
        case kind:
            raise Damaged(f"no record of a queue has kind {kind!r}")


def _cron(queue: Queue, value: bytes) -> Cron:
    cron = records.unpack_cron(value)
    try:
        check_kept(cron, queue.tenant, queue.name)
    except Invalid as error:
        raise Damaged(f"a cron is not what was written: {error.message}") from None
    return cron


def decode_own(records_: Iterable[Record]) -> tuple[dict[bytes, Value], dict[str, Shared]]:
    """What is a tenant's, but no queue's: values by key, limits by name; or ``Damaged``."""
    entries: dict[bytes, Value] = {}
    limits: dict[str, Shared] = {}
    start = len(records.META)
    try:
        for key, value in records_:
            match key[start : start + 1]:
                case b"k":
                    unpack(key[start + 1 :])
                    entries[key[start + 1 :]] = records.unpack_value(value)
                case b"l":
                    limits[key[start + 1 :].decode()] = records.unpack_shared(value)
                case kind:
                    raise Damaged(f"no record of a tenant has kind {kind!r}")
    except (MsgspecError, ValueError, IndexError, struct.error) as error:
        raise Damaged(f"the values or limits of a tenant can't be decoded: {error}") from None
    return entries, limits


def _fields(value: bytes, count: int) -> tuple[int, ...]:
    """The numbers of a row, of which there are so many."""
    fields = records.unpack_numbers(value)
    if len(fields) != count:
        raise Damaged(f"a row has {len(fields)} numbers instead of {count}")
    _counted(fields[0])
    return fields


def _counted(count: int) -> int:
    """A count of messages, if it is one."""
    if not 1 <= count < 1 << 32:
        raise Damaged(f"a run has {count} messages")
    return count


def check(found: Found) -> dict[int, Log]:
    """The logs of the partitions; ``Damaged`` if records speak of what is not there."""
    known = {(group, partition) for group in found.groups for partition in found.partitions}
    spoken_of = found.rows.keys() | found.cursors.keys()
    spoken_of |= {(group, run.partition) for _, group, runs, _, _ in found.leases for run in runs}
    if not spoken_of <= known:
        raise Damaged(f"groups and partitions are missing: {sorted(spoken_of - known)}")
    logged = found.segments.keys() | found.withdrawn.keys() | found.progress.keys() | found.successors.keys()
    logged |= found.ties.keys() | found.job_ids.keys() | found.dependents.keys() | found.parked.keys()
    logged |= found.taken.keys() | {partition for _, _, partition, _, _ in found.ended}
    if not logged <= found.partitions.keys():
        raise Damaged(f"partitions are missing: {sorted(logged - found.partitions.keys())}")
    _check_names(found)
    _check_notes(found)
    _check_overlaps(found)
    made: dict[int, Log] = {}
    for key, packed in found.partitions.items():
        try:
            if not packed.numbers:
                raise Damaged("it has no number")
            made[key] = load_log(packed.first, found.segments.get(key, []))
        except Damaged as error:
            raise Damaged(f"partition {packed.name}: {error.message}") from None
    _check_places(found, made)
    return made


def _check_overlaps(found: Found) -> None:
    """Raise if two rows are about one message."""
    tables = [*found.parked.values()]
    tables += [table for rows in found.rows.values() for table in (rows.skips, rows.dead, rows.outcomes)]
    for table in tables:
        reached = -1
        for first, count, *_ in table:
            if first < reached:
                raise Damaged(f"two rows are about offset {first}")
            reached = first + count
    if any(unmet < 1 for table in found.parked.values() for _, _, unmet in table):
        raise Damaged("a parked run waits for nothing")


def _check_notes(found: Found) -> None:
    for kind, segments in found.notes.items():
        if any(segment.count < 1 or segment.count != len(about) for segment, about in segments):
            raise Damaged(f"a header of notes of kind {kind} is not what was written")
        logs.load(segments[0][0].base, [segment for segment, _ in segments])


def _check_names(found: Found) -> None:
    names = [packed.name for packed in found.partitions.values()]
    groups = [packed.name for packed in found.groups.values()]
    if len(set(names)) < len(names) or len(set(groups)) < len(groups):
        raise Damaged("two groups or partitions have one name")


def _check_places(found: Found, made: dict[int, Log]) -> None:
    """Raise if something stands where the log is not."""
    ends = {key: log.end for key, log in made.items()}
    stands = [(key, "a cursor", track.cursor) for (_, key), track in found.cursors.items()]
    for (group, key), rows in found.rows.items():
        last = rows.schedule.last()
        stands.append((key, "a scheduled run", last.first + last.count if last is not None else 0))
        for what, table in (
            ("a dead letter", rows.dead),
            ("an outcome", rows.outcomes),
            ("a skip", rows.skips),
        ):
            stands.append((key, what, sum(table.tail()[:2]) if table else 0))
        cursor = found.cursors.get((group, key))
        if rows.skips and cursor is not None and rows.skips.first() < cursor.cursor:
            raise Damaged(f"partition {found.partitions[key].name}: the cursor is past what it skips")
    stands += [(key, "a withdrawn run", sum(table.tail()[:2])) for key, table in found.withdrawn.items()]
    stands += [(key, "a parked run", sum(table.tail()[:2])) for key, table in found.parked.items()]
    stands += [(key, "a tie", max(ties) + 1) for key, ties in found.ties.items()]
    for key, table in found.successors.items():
        stands += [(key, "a successor", successor + 1) for _, successor in table]
    for _, _, runs, _, _ in found.leases:
        if not runs:
            raise Damaged("a lease holds nothing")
        stands += [(run.partition, "a leased run", run.first + _counted(run.count)) for run in runs]
    for key, what, offset in stands:
        if offset > ends[key]:
            name = found.partitions[key].name
            raise Damaged(f"partition {name}: {what} is at {offset}, the log ends at {ends[key]}")
    _check_strays(found, made)


def _check_strays(found: Found, made: dict[int, Log]) -> None:
    """Raise if something that somebody has still to deal with is no longer kept."""
    for (_, key), rows in found.rows.items():
        log = made[key]
        spans = [(run.first, run.first + run.count) for run in rows.schedule.over(0, log.first)]
        spans += [(first, first + count) for first, count in rows.dead if first < log.first]
        _check_kept(found.partitions[key].name, log, spans)
    for key, table in found.parked.items():
        spans = [(first, first + count) for first, count, _ in table if first < made[key].first]
        _check_kept(found.partitions[key].name, made[key], spans)
    for _, _, runs, _, _ in found.leases:
        for run in runs:
            name, log = found.partitions[run.partition].name, made[run.partition]
            spans = [(first, first + count) for first, count in gaps(run)] if run.first < log.first else []
            _check_kept(name, log, spans)


def _check_kept(name: str, log: Log, spans: list[tuple[int, int]]) -> None:
    for low, high in spans:
        offset = low
        while offset < min(high, log.first) and logs.has(log, offset):
            offset = log.segments[logs.find(log, offset)].end
        if offset < min(high, log.first):
            raise Damaged(f"partition {name}: offset {offset} is wanted and has no segment")


def load_queue(
    shard: Shard,
    queue: Queue,
    records_: Iterable[Record],
    *,
    now: int,
    down_ms: int = 0,
    renumber: bool = False,
) -> list[Cron]:
    """Fill ``queue``, which knows only its name, from its records, and put it into its shard; its crons.

    ``down_ms`` is how long its leases could not be settled. ``renumber`` gives each of its partitions a fresh
    number, because ids may have been given out that these records know nothing of.
    """
    found = decode(queue, records_)
    made = check(found)
    if queue.groups_made < max(found.groups, default=0):
        raise Damaged("a group has a number that was never given out")
    shard.queues[queue.prefix] = queue
    for key, packed in found.partitions.items():
        partition = new_partition(key, packed.name, packed.numbers, made[key], packed.marks)
        partition.settled_to = made[key].first
        partition.emptied_at, partition.retention = packed.emptied_at, packed.retention
        partition.lane = packed.lane
        _add_partition(shard, queue, partition)
        if packed.os_marked or renumber:
            shard.renumber(queue, partition)
    groups = {
        number: Group(number=number, name=packed.name, active_at=packed.active_at or now, tracks={}, ready=[])
        for number, packed in found.groups.items()
    }
    for group in groups.values():
        _add_group(queue, group, found.cursors)
    _add_rows(shard, groups, queue, found)
    _add_notes(queue, found)
    _add_ties(shard, queue, found)
    _add_stages(shard, queue, found)
    gained = min(down_ms, queue.options.lease_ms)
    for name_, number, runs, cancelled, leased_at in found.leases:
        lease = Lease(name_, queue, groups[number], {}, 0, 0, leased_at, stored=True, cancelled=cancelled)
        _add_lease(shard, lease, runs, gained)
    for group in groups.values():
        for track in group.tracks.values():
            _start(shard, track, now)
    if queue.paused_until not in (0, NEVER):
        shard.pauses.add(queue.paused_until, queue.prefix)
        shard.alarm.sooner(queue.paused_until)
    shard.plan_sweep(queue, now)
    for serial, how, key, first, end in sorted(found.ended):
        ended = Ended(shard, queue, shard.places[key].partition, first, end, how)
        tellings = shard.unfinished.setdefault(key, Tellings(deque(), found.later.get(key, {})))
        tellings.waiting.append(Telling(ended, serial, (first, 0)))
    return found.crons


def _add_rows(shard: Shard, groups: dict[int, Group], queue: Queue, found: Found) -> None:
    """Everything that is kept as runs."""
    for (number, key), rows in found.rows.items():
        track = groups[number].tracks[key]
        track.schedule, track.skips, track.outcomes = rows.schedule, rows.skips, rows.outcomes
        track.dead, track.letters, track.ended = rows.dead, rows.letters, rows.ended
        track.dead_messages = rows.dead_messages
    for partition in queue.partitions.values():
        if partition.key in found.withdrawn:
            partition.withdrawn = found.withdrawn[partition.key]
        if partition.key in found.successors:
            partition.successors = found.successors[partition.key]
            partition.led_to = {successor: first for first, successor in partition.successors}
            shard.updated.add(partition.key)


def _add_ties(shard: Shard, queue: Queue, found: Found) -> None:
    """What has consequences when it ends, and what is found by key or id."""
    for partition in queue.partitions.values():
        key = partition.key
        partition.ties, partition.job_ids = found.ties.get(key, {}), found.job_ids.get(key, {})
        if key in found.parked:
            partition.parked = found.parked[key]
            partition.parked_messages = sum(count for _, count, _ in partition.parked)
        if key in found.dependents:
            partition.dependents, partition.met = found.dependents[key], found.met.get(key, {})
            for first, dependent, count, _ in partition.dependents:
                if count > 1:
                    partition.spans.add((first, dependent))
        partition.concerned = len(partition.ties) + partition.dependents.size
        for offset, tie in partition.ties.items():
            if tie.unique_key:
                queue.uniques[tie.unique_key] = (key, offset)
            if tie.expires_at:
                shard.tied.add(tie.expires_at, (key, offset))
            queue.tied_bytes += len(tie.payload) * len(tie.keys)
        for offset, name in partition.job_ids.items():
            queue.named[name] = (key, offset)
        partition.taken = dict(sorted(found.taken.get(key, {}).items(), key=_taken_at))
        for at, ids in partition.taken.values():
            partition.transactions.update((name, (offset, at)) for offset, name in ids)
    for request, once in found.once.items():
        queue.once[request] = once
        shard.onces.add(once.until, (queue.prefix, request))


def _add_staged(queue: Queue, stage: Stage, part: Part) -> None:
    """One part of a stage, in whatever order they come."""
    whole = part.count == sum(count for count, _ in part.runs) and len(part.keys) in (0, part.count)
    if part.keys:
        whole = whole and part.body is not None and is_whole(part.body, part.count, part.size)
    if part.count < 1 or part.size < 0 or not whole:
        raise Damaged(f"a part of stage {stage.name} is not what was written")
    known = queue.stages.setdefault(stage.name, stage)
    known.expires_at = max(known.expires_at, stage.expires_at)
    known.parts.append(part)
    known.writes = max(known.writes, part.at + 1)
    known.count += part.count
    known.size += part.size


def _add_stages(shard: Shard, queue: Queue, found: Found) -> None:
    for stage in queue.stages.values():
        stage.parts.sort(key=attrgetter("at", "body_name"))
        for part in stage.parts:
            queue.staged.count(part)
        if stage.query is not None:
            queue.staged_for.setdefault(stage.query, {})[stage.name] = stage
        shard.staged.add(stage.expires_at, (queue.prefix, True, stage.name))
    for query, batch, adopted in sorted(found.adopted, key=lambda each: (each[2].at, each[1])):
        queue.adopted[query] = {**queue.adopted.pop(query, {}), batch: adopted}
    for query, batches in queue.adopted.items():
        until = batches[max(batches)].until
        if until:
            shard.staged.add(until, (queue.prefix, False, query))


def _taken_at(item: tuple[int, tuple[int, list[tuple[int, str]]]]) -> tuple[int, int]:
    return item[1][0], item[0]


def _add_notes(queue: Queue, found: Found) -> None:
    for kind, segments in found.notes.items():
        notes = queue.notes[kind] = new_notes(kind)
        notes.log = logs.load(segments[0][0].base, [segment for segment, _ in segments])
        for segment, about in segments:
            enter(notes, segment.base, about)
    for partition in queue.partitions.values():
        partition.progress = found.progress.get(partition.key, {})


def _start(shard: Shard, track: Track, now: int) -> None:
    """Count what a track has, and list it if it has something to deliver."""
    log = track.partition.log
    track.aside = logs.count_aside(log, track.cursor) + sum(count for _, count in track.skips)
    if track.planned != NEVER:
        track.unplanned = count_unplanned(track)
        track.group.unplanned[track.partition.key] = track
    level = track.schedule.ready_level(now)
    if fresh_count(track):
        list_ready(track, IN_LINE if level is None else min(level, IN_LINE))
    elif level is not None:
        list_ready(track, level)
    due_at = track.schedule.next_due_at(now)
    if due_at != NEVER:
        shard.look_at(track, due_at)


def _add_partition(shard: Shard, queue: Queue, partition: Partition) -> None:
    partition.unmerged = len(partition.log.segments)
    if partition.unmerged >= MERGE_AT:
        shard.to_merge[partition.key] = (queue, partition)
    queue.partitions[partition.name] = partition
    for number, base in partition.numbers:
        shard.places[number] = Place(queue, partition, base)


def _add_group(queue: Queue, group: Group, cursors: dict[tuple[int, int], PackedCursor]) -> None:
    queue.groups[group.name] = group
    for partition in queue.partitions.values():
        packed = cursors.get((group.number, partition.key)) or PackedCursor(partition.log.first, 0)
        track = new_track(queue, group, partition, packed.cursor)
        track.turn, track.planned = packed.turn, packed.planned
        group.turn = max(group.turn, track.turn)


def _add_lease(shard: Shard, lease: Lease, runs: list[LeaseRun], gained: int) -> None:
    """A lease as it was, but for the time the shard was down: an outage is not the consumer's failure."""
    for run in runs:
        run.expires_at += gained
        lease.runs[run.partition, run.first] = run
    lease.due_at = min(run.expires_at for run in runs)
    hold(shard, lease)
    if gained:
        shard.touch_lease(lease)
