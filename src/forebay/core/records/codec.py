"""Encode and decode record values.

Values are MessagePack arrays: fields are only ever added at the end, and a missing field has its default.
How a body is laid out is in ``log.bodies``.
"""

import struct
from collections.abc import Iterable
from functools import lru_cache
from itertools import starmap

from msgspec import Struct, msgpack
from msgspec.structs import astuple

from forebay.core.bounds import NEVER
from forebay.core.records.keyspace import DEPENDENT_LAYOUT, NAME_BYTES, SCHEDULED_LAYOUT
from forebay.core.state import (
    BY_ITSELF,
    IN_LINE,
    Cron,
    Dead,
    Group,
    Lease,
    LeaseRun,
    Mark,
    NamedLimit,
    Partition,
    Progress,
    Queue,
    QueueOptions,
    RememberedPush,
    Retention,
    Scheduled,
    Segment,
    Tie,
    Token,
    Track,
    Value,
)

_ABOUT = struct.Struct(">IQ")
_encode = msgpack.Encoder().encode
interned = lru_cache(maxsize=4_096)(str)
"""Share equal texts: errors repeat."""


# Values, one pair of functions a kind. What is packed here is what a store keeps.


def pack_cursor(track: Track) -> bytes:
    return _encode((track.cursor, track.turn, track.planned))


def pack_group(group: Group) -> bytes:
    return _encode((group.name, group.active_at))


def pack_header(segment: Segment) -> bytes:
    name = segment.body_name.to_bytes(NAME_BYTES, "big")
    fields = (segment.count, segment.size, segment.created_at, name, segment.spread)
    if not segment.sets:
        return _encode(fields)
    return _encode((*fields, segment.sets, segment.which, segment.aside))


def pack_tail(payloads: list[bytes], size: int, created_at: int) -> bytes:
    """Pack a header that holds its payloads itself."""
    return _encode((len(payloads), size, created_at, b"", b"", b"", b"", 0, payloads))


def pack_notes(segment: Segment, about: Iterable[tuple[int, int]]) -> bytes:
    """Pack the header of a segment of notes; ``about`` has partition key and offset of each."""
    name = segment.body_name.to_bytes(NAME_BYTES, "big")
    places = b"".join(starmap(_ABOUT.pack, about))
    return _encode((segment.count, segment.size, segment.created_at, name, places))


def pack_progress(progress: Progress) -> bytes:
    return _encode(progress)


def pack_lease(lease: Lease) -> bytes:
    runs = [_pack_run(run) for run in lease.runs.values()]
    fields = (lease.group.number, runs, lease.cancelled, lease.leased_at)
    return _encode((*fields, lease.worker) if lease.worker else fields)


def _pack_run(run: LeaseRun) -> tuple[int | str | bytes, ...]:
    bits = run.settled.to_bytes((run.settled.bit_length() + 7) // 8, "little")
    counts = (run.partition, run.first, run.count, run.deliveries, run.failures, run.expires_at)
    return (*counts, run.error, bits, run.level)


def pack_partition(partition: Partition) -> bytes:
    fields = (partition.name, partition.numbers, partition.log.first, partition.marks, partition.os_marked)
    return _encode((*fields, partition.emptied_at, partition.retention, partition.lane))


def pack_queue(queue: Queue) -> bytes:
    return _encode((queue.groups_made, queue.options, queue.paused_until, queue.closing_at))


def pack_scheduled(run: Scheduled) -> bytes:
    return _encode((run.count, run.deliveries, run.failures, run.error, run.level))


def pack_dead(run: Dead) -> bytes:
    return _encode(astuple(run)[1:])


def pack_tie(tie: Tie) -> bytes:
    return _encode(tie)


def pack_remembered(once: RememberedPush) -> bytes:
    return _encode(once)


def pack_cron(cron: Cron) -> bytes:
    return _encode(cron)


def pack_named_limit(limit: NamedLimit) -> bytes:
    return _encode(limit)


def pack_value(value: Value) -> bytes:
    return _encode((value.data, value.version.to_bytes(NAME_BYTES, "big"), value.expires_at))


def unpack_value(packed: bytes) -> Value:
    data, version, expires_at = _unpack_value(packed)
    return Value(data, int.from_bytes(version, "big"), expires_at)


def pack_dependent(count: int, waiting: int, met: int, since: int) -> bytes:
    bits = met.to_bytes((met.bit_length() + 7) // 8, "little")
    return _encode((count, waiting, bits, since) if since else (count, waiting, bits))


def pack_taken(at: int, ids: list[tuple[int, str]]) -> bytes:
    return _encode((at, ids))


def pack_token(token: Token) -> bytes:
    return _encode(astuple(token)[1:])


_unpack_token = msgpack.Decoder(tuple[str, str, str, tuple[str, ...], int, int, bytes, bytes, int]).decode


def unpack_token(name: str, value: bytes) -> Token:
    """Return a token of its id and record."""
    return Token(name, *_unpack_token(value))


def pack_numbers(values: tuple[int, ...]) -> bytes:
    return _encode(values)


class PackedCursor(Struct, array_like=True):
    cursor: int
    turn: int
    planned: int = NEVER


class PackedPartition(Struct, array_like=True):
    name: str
    numbers: list[tuple[int, int]]
    first: int
    marks: list[Mark]
    os_marked: bool
    emptied_at: int = 0
    retention: Retention = Retention()
    lane: bool = False


class PackedGroup(Struct, array_like=True):
    name: str
    active_at: int = 0


class PackedHeader(Struct, array_like=True):
    count: int
    size: int
    created_at: int
    name: bytes
    spread: bytes
    sets: bytes = b""
    which: bytes = b""
    aside: int = 0
    payloads: list[bytes] | None = None


class PackedNotes(Struct, array_like=True):
    count: int
    size: int
    created_at: int
    name: bytes
    about: bytes


class PackedRun(Struct, array_like=True):
    partition: int
    first: int
    count: int
    deliveries: int
    failures: int
    expires_at: int
    error: str
    bits: bytes
    level: int = IN_LINE


class PackedLease(Struct, array_like=True):
    group: int
    runs: list[PackedRun]
    cancelled: bool = False
    leased_at: int = 0
    worker: str = ""


class PackedQueue(Struct, array_like=True):
    groups_made: int
    options: QueueOptions
    paused_until: int = 0
    closing_at: int = 0


class PackedDependent(Struct, array_like=True):
    count: int
    waiting: int
    met: bytes
    since: int = 0
    """Serial of the last end that this row is too new for; 0 if there is none."""


class PackedScheduled(Struct, array_like=True):
    count: int
    deliveries: int
    failures: int
    error: str
    level: int = IN_LINE


class PackedDead(Struct, array_like=True):
    count: int
    deliveries: int
    failures: int
    dead_at: int
    error: str
    level: int
    leased_at: int = 0
    unmet: int = BY_ITSELF
    type: str = ""


unpack_cursor = msgpack.Decoder(PackedCursor).decode
unpack_group = msgpack.Decoder(PackedGroup).decode
_unpack_dead = msgpack.Decoder(PackedDead).decode
_unpack_header = msgpack.Decoder(PackedHeader).decode
_unpack_lease = msgpack.Decoder(PackedLease).decode
unpack_partition = msgpack.Decoder(PackedPartition).decode
_unpack_notes = msgpack.Decoder(PackedNotes).decode
unpack_cron = msgpack.Decoder(Cron).decode
unpack_progress = msgpack.Decoder(Progress).decode
unpack_tie = msgpack.Decoder(Tie).decode
unpack_remembered = msgpack.Decoder(RememberedPush).decode
_unpack_value = msgpack.Decoder(tuple[bytes, bytes, int]).decode
_unpack_dependent = msgpack.Decoder(PackedDependent).decode
unpack_named_limit = msgpack.Decoder(NamedLimit).decode
unpack_taken = msgpack.Decoder(tuple[int, list[tuple[int, str]]]).decode
unpack_queue = msgpack.Decoder(PackedQueue).decode
_unpack_scheduled = msgpack.Decoder(PackedScheduled).decode
unpack_numbers = msgpack.Decoder(tuple[int, ...]).decode


def unpack_header(base: int, value: bytes) -> Segment:
    """Unpack a header-only segment, or one that holds its payloads itself."""
    found = _unpack_header(value)
    return Segment(
        base,
        found.count,
        found.size,
        found.created_at,
        int.from_bytes(found.name, "big"),
        found.spread,
        found.sets,
        found.which,
        found.aside,
        payloads=found.payloads,
        lengths=None if found.payloads is None else list(map(len, found.payloads)),
    )


def unpack_notes(base: int, value: bytes) -> tuple[Segment, list[tuple[int, int]]]:
    """Unpack a header-only segment of notes, with partition key and offset of each note's message."""
    found = _unpack_notes(value)
    name = int.from_bytes(found.name, "big")
    segment = Segment(base, found.count, found.size, found.created_at, name)
    return segment, list(_ABOUT.iter_unpack(found.about))


def unpack_lease(value: bytes) -> tuple[int, list[LeaseRun], bool, int, str]:
    """Return group number, runs, cancelled, leased_at and worker of a lease."""
    packed = _unpack_lease(value)
    runs = [
        LeaseRun(
            run.partition,
            run.first,
            run.count,
            run.deliveries,
            run.failures,
            run.expires_at,
            interned(run.error),
            run.level,
            int.from_bytes(run.bits, "little"),
        )
        for run in packed.runs
    ]
    return packed.group, runs, packed.cancelled, packed.leased_at, interned(packed.worker)


def unpack_dependent(key: bytes, value: bytes) -> tuple[int, tuple[int, int, int, int], int, int]:
    """Return partition key, row, met bits and serial of a row of dependents."""
    _, _, partition, first, dependent = DEPENDENT_LAYOUT.unpack(key)
    found = _unpack_dependent(value)
    return (
        partition,
        (first, dependent, found.count, found.waiting),
        int.from_bytes(found.met, "little"),
        found.since,
    )


def unpack_scheduled(key: bytes, value: bytes) -> tuple[int, int, Scheduled]:
    """Return group number, partition key and run."""
    _, _, group, partition, due_at, first = SCHEDULED_LAYOUT.unpack(key)
    found = _unpack_scheduled(value)
    past = (found.deliveries, found.failures, interned(found.error))
    return group, partition, Scheduled(due_at, first, found.count, found.level, *past)


def unpack_dead(first: int, value: bytes) -> Dead:
    count, deliveries, failures, dead_at, error, *rest = astuple(_unpack_dead(value))
    return Dead(first, count, deliveries, failures, dead_at, interned(error), *rest)
