"""Decode the records of a queue, by kind."""

import struct
from collections import defaultdict
from collections.abc import Iterable

import msgspec
from msgspec import MsgspecError, Struct

from forebay.core.errors import Damaged, Invalid
from forebay.core.jobs.cron import check_kept
from forebay.core.keyvalue.keys import unpack
from forebay.core.log.bodies import is_whole
from forebay.core.queues.options import set_kept
from forebay.core.records import codec, keyspace, stages as stage_records
from forebay.core.records.codec import PackedCursor, PackedGroup, PackedPartition
from forebay.core.records.commit import Record
from forebay.core.state import (
    SPAN_MAX,
    Adopted,
    Cron,
    Dead,
    LeaseRun,
    NamedLimit,
    Part,
    Progress,
    Queue,
    RememberedPush,
    Schedule,
    Segment,
    Stage,
    Tie,
    Value,
)
from forebay.core.structures.table import Table
from forebay.core.words import DROPS, ENDS, OUTCOMES


class Rows(Struct, eq=False):
    """Runs of a group in a partition."""

    schedule: Schedule
    skips: Table
    dead: Table
    letters: dict[int, Dead]
    outcomes: Table
    ended: list[int]
    dead_messages: int = 0


def _no_rows() -> Rows:
    return Rows(Schedule(), Table("qq"), Table("qq"), {}, Table("qqqq"), [0] * ENDS)


class DecodedRecords(Struct, eq=False):
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
    """Segments of notes with their messages, by kind."""
    progress: dict[int, dict[int, Progress]] = {}
    """By partition and offset."""
    ended: list[tuple[int, int, int, int, int]] = []
    """(serial, how, partition, first, end) of ended runs whose dependents are being notified."""
    later: dict[int, dict[tuple[int, int], int]] = {}
    """Rows of dependents added meanwhile, by partition, with the serial they were added after."""
    ties: dict[int, dict[int, Tie]] = {}
    """By partition and offset."""
    job_ids: dict[int, dict[int, str]] = {}
    """By partition and offset."""
    dependents: defaultdict[int, Table] = msgspec.field(
        default_factory=lambda: defaultdict(lambda: Table("qQqq"))
    )
    """By partition."""
    met: dict[int, dict[tuple[int, int], int]] = {}
    """Met messages of these rows, by partition."""
    parked: defaultdict[int, Table] = msgspec.field(default_factory=lambda: defaultdict(lambda: Table("qqq")))
    """By partition."""
    taken: dict[int, dict[int, tuple[int, list[tuple[int, str]]]]] = {}
    """By partition and first offset."""
    remembered: dict[bytes, RememberedPush] = {}
    adopted: list[tuple[str, int, Adopted]] = []
    crons: list[Cron] = []
    leases: list[tuple[int, int, list[LeaseRun], bool, int, str]] = []
    """(name, group, runs, cancelled, leased_at, worker) of leases."""


def decode(queue: Queue, records_: Iterable[Record]) -> DecodedRecords:
    """Decode the records of a queue, and set its options; raise ``Damaged`` if that fails."""
    found = DecodedRecords()
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


def _decode(queue: Queue, found: DecodedRecords, key: bytes, value: bytes) -> None:
    match key[8:9]:
        case b"c":
            group, partition = keyspace.key_fields(key)
            found.cursors[group, partition] = codec.unpack_cursor(value)
        case b"d":
            group, partition, first = keyspace.key_fields(key)
            letter, rows = codec.unpack_dead(first, value), found.rows[group, partition]
            rows.dead.add((first, counted(letter.count)))
            rows.letters[first] = letter
            rows.dead_messages += letter.count
        case b"e":
            partition, first = keyspace.key_fields(key)
            found.withdrawn[partition].add((first, *_fields(value, 2)))
        case b"f":
            how, partition, serial = keyspace.key_fields(key)
            end, *begin = codec.unpack_numbers(value)  # where it begins was its serial once
            found.ended.append((serial, how, partition, begin[0] if begin else serial, end))
        case b"g":
            (number,) = keyspace.key_fields(key)
            found.groups[number] = codec.unpack_group(value)
        case b"h":
            partition, base = keyspace.key_fields(key)
            found.segments.setdefault(partition, []).append(codec.unpack_header(base, value))
        case b"i":
            kind, base = keyspace.key_fields(key)
            found.notes.setdefault(kind, []).append(codec.unpack_notes(base, value))
        case b"j":
            partition, offset = keyspace.key_fields(key)
            found.progress.setdefault(partition, {})[offset] = codec.unpack_progress(value)
        case b"k":
            partition, offset = keyspace.key_fields(key)
            found.ties.setdefault(partition, {})[offset] = codec.unpack_tie(value)
        case b"m":
            partition, offset = keyspace.key_fields(key)
            found.job_ids.setdefault(partition, {})[offset] = value.decode()
        case b"n":
            _add_staged(queue, *stage_records.unpack_staged(key, value))
        case b"z":
            query, batch = stage_records.adopted_by(key)
            found.adopted.append((query, batch, stage_records.unpack_adopted(value)))
        case b"r":
            partition, waits, met, since = codec.unpack_dependent(key, value)
            counted(min(waits[2:]))
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
            found.remembered[key[9:]] = codec.unpack_remembered(value)
        case b"x":
            partition, first = keyspace.key_fields(key)
            found.taken.setdefault(partition, {})[first] = codec.unpack_taken(value)
        case b"y":
            partition, first = keyspace.key_fields(key)
            found.parked[partition].add((first, *_fields(value, 2)))
        case b"l":
            found.leases.append((int.from_bytes(key[9:], "big"), *codec.unpack_lease(value)))
        case b"o":
            group, partition, first = keyspace.key_fields(key)
            rows, row = found.rows[group, partition], (first, *_fields(value, 3))
            rows.outcomes.add(row)
            if row[2] not in range(len(OUTCOMES)) and row[2] not in DROPS:
                raise Damaged(f"there is no outcome {row[2]}")
            rows.ended[row[2]] += row[1]
        case b"s":
            group, partition, first = keyspace.key_fields(key)
            found.rows[group, partition].skips.add((first, *_fields(value, 1)))
        case b"p":
            (partition,) = keyspace.key_fields(key)
            found.partitions[partition] = codec.unpack_partition(value)
        case b"q":
            set_kept(queue, codec.unpack_queue(value))
        case b"u":
            partition, offset = keyspace.key_fields(key)
            (successor,) = codec.unpack_numbers(value)
            found.successors[partition].add((offset, successor))
        case b"v":
            group, partition, run = codec.unpack_scheduled(key, value)
            counted(run.count)
            found.rows[group, partition].schedule.add(run, 0)
        case kind:
            raise Damaged(f"no record of a queue has kind {kind!r}")


def _cron(queue: Queue, value: bytes) -> Cron:
    cron = codec.unpack_cron(value)
    try:
        check_kept(cron, queue.tenant, queue.name)
    except Invalid as error:
        raise Damaged(f"a cron is not what was written: {error.message}") from None
    return cron


def decode_own(records_: Iterable[Record]) -> tuple[dict[bytes, Value], dict[str, NamedLimit]]:
    """Decode values and named limits of a tenant; raise ``Damaged`` if that fails."""
    entries: dict[bytes, Value] = {}
    limits: dict[str, NamedLimit] = {}
    start = len(keyspace.META)
    try:
        for key, value in records_:
            match key[start : start + 1]:
                case b"k":
                    unpack(key[start + 1 :])
                    entries[key[start + 1 :]] = codec.unpack_value(value)
                case b"l":
                    limits[key[start + 1 :].decode()] = codec.unpack_named_limit(value)
                case kind:
                    raise Damaged(f"no record of a tenant has kind {kind!r}")
    except (MsgspecError, ValueError, IndexError, struct.error) as error:
        raise Damaged(f"the values or limits of a tenant can't be decoded: {error}") from None
    return entries, limits


def _fields(value: bytes, count: int) -> tuple[int, ...]:
    """Return the ``count`` numbers of a row."""
    fields = codec.unpack_numbers(value)
    if len(fields) != count:
        raise Damaged(f"a row has {len(fields)} numbers instead of {count}")
    counted(fields[0])
    return fields


def counted(count: int) -> int:
    """Return a count of messages; raise unless it is valid."""
    if not 1 <= count < 1 << 32:
        raise Damaged(f"a run has {count} messages")
    return count


def _add_staged(queue: Queue, stage: Stage, part: Part) -> None:
    """Add a part of a stage; parts come in any order."""
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
