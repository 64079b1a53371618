"""How state is kept: the key space, and the two directions of every record.

Keys are fixed-width and big-endian, so they sort by what they mean. ``P`` is tenant id u32 + queue id u32,
and every key of a queue starts with it:

    P c  group u32, partition u32                        cursor, turn and planned of a track
    P d  group u32, partition u32, first u64             run of dead letters
    P e  partition u32, first u64                        run withdrawn from every group
    P f  how u32, partition u32, serial u64              run that ended, whose dependents are being told
    P g  group u32                                       group
    P h  partition u32, base u64                         header of a segment
    P i  kind u32, base u64                              header of a segment of notes, and what they are about
    P j  partition u32, offset u64                       progress of a message
    P k  partition u32, offset u64                       tie of a message
    P l  lease name (epoch u32, counter u64)             lease
    P m  partition u32, offset u64                       custom id of a message
    P n  body name (epoch u32, counter u64)              part of a stage
    P o  group u32, partition u32, first u64             outcome
    P p  partition u32                                   partition
    P q                                                  queue
    P r  partition u32, first u64, dependent u64         what waits for a run
    P s  group u32, partition u32, first u64             run that the cursor skips
    P t  name                                            cron
    P u  partition u32, offset u64                       where what took the place of a message is
    P v  group u32, partition u32, due u64, first u64    scheduled run
    P w  kind and key                                    what a push answered that must not be repeated
    P x  partition u32, first u64                        transaction ids of messages
    P y  partition u32, first u64                        run that waits for other messages
    P z  batch u64, query                                what an adoption answered
    P b  body name (epoch u32, counter u64)              body of a segment: raw bytes, read by name

``P`` of eight zeros belongs to no queue and holds what the node as a whole knows:

    0 Q  tenant id u32, queue name                       queue id and shard
    0 S  shard u32                                       numbers given out by a shard
    0 T  tenant name                                     tenant id and queue ids given out

``P`` of a tenant id and queue id 0 holds what is a tenant's, but no queue's:

    P k  packed key                                      value
    P l  name                                            limit that queues share

Keys of eight 0xff are the store's own. One kind of them is known here, because it goes with a commit:

    ff A  number u64                                     what came into the store by another way, and waits

Values are MessagePack arrays: fields are only ever added at the end, and what is not there has its default.
How a body is laid out is in ``bodies``.
"""

import struct
from collections.abc import Iterable
from functools import lru_cache
from itertools import starmap

from msgspec import Struct, msgpack

from forebay.core.agenda import NEVER
from forebay.core.model import (
    IN_LINE,
    Cron,
    Dead,
    Group,
    Lease,
    LeaseRun,
    Mark,
    Once,
    Partition,
    Progress,
    Queue,
    QueueOptions,
    Retention,
    Segment,
    Shared,
    Tie,
    Track,
    Value,
)
from forebay.core.schedule import Scheduled

Record = tuple[bytes, bytes]

META = bytes(8)
"""The prefix that belongs to no queue."""
ARRIVALS = b"\xff" * 8 + b"A"
"""What keys begin with under which arrivals wait in the store."""
NAME_BYTES = 12
"""Bytes of a lease's or a body's name."""

_CURSOR = struct.Struct(">8scII")
_NUMBERED = struct.Struct(">8scI")
_HEADER = struct.Struct(">8scIQ")
_PLACE = struct.Struct(">8scIIQ")
_SCHEDULED = struct.Struct(">8scIIQQ")
_DEPENDENT = struct.Struct(">8scIQQ")
_PREFIX = struct.Struct(">II")
_ABOUT = struct.Struct(">IQ")
_NUMBER = struct.Struct(">I")

_encode = msgpack.Encoder().encode

shared = lru_cache(maxsize=4_096)(str)
"""The same text for equal texts, as long as they come often: errors repeat."""


class Commit(Struct, gc=False):
    """What one shard wants kept, all of it or nothing."""

    shard: int
    epoch: int
    """The epoch the shard was claimed under; the store refuses an older one."""
    at: int
    """The time of the commit, in ms."""
    puts: list[Record]
    deletes: list[bytes]
    bodies: list[Record]
    """Segment bodies, apart because they are large and only ever read by name."""
    ranges: list[tuple[bytes, bytes]] = []
    """Records deleted from a key up to, but not including, another; bodies are not among them."""
    body_ranges: list[tuple[bytes, bytes]] = []
    """Bodies deleted from a key up to, but not including, another."""
    clears: list[tuple[bytes, bytes]] = []
    """Like ``ranges``, but before anything else of the commit."""

    @property
    def is_empty(self) -> bool:
        return not (
            self.puts or self.deletes or self.bodies or self.ranges or self.body_ranges or self.clears
        )


def prefix(tenant: int, queue: int) -> bytes:
    """The first eight bytes of every key of a queue.

    >>> prefix(42, 7).hex(" ")
    '00 00 00 2a 00 00 00 07'
    """
    return _PREFIX.pack(tenant, queue)


def queue_bounds(prefix: bytes) -> tuple[bytes, bytes]:
    """Lower and upper bound of all records of a queue but its bodies."""
    return prefix + b"c", prefix + b"{"


def body_bounds(prefix: bytes) -> tuple[bytes, bytes]:
    """Lower and upper bound of all bodies of a queue."""
    return prefix + b"b", prefix + b"c"


def meta_bounds() -> tuple[bytes, bytes]:
    """Lower and upper bound of the node's own records."""
    return META, META + b"\xff"


def cursor_key(prefix: bytes, group: int, partition: int) -> bytes:
    return _CURSOR.pack(prefix, b"c", group, partition)


def dead_key(prefix: bytes, group: int, partition: int, first: int) -> bytes:
    return _PLACE.pack(prefix, b"d", group, partition, first)


def withdrawn_key(prefix: bytes, partition: int, first: int) -> bytes:
    return _HEADER.pack(prefix, b"e", partition, first)


def ended_key(prefix: bytes, how: int, partition: int, serial: int) -> bytes:
    return _PLACE.pack(prefix, b"f", how, partition, serial)


def tie_key(prefix: bytes, partition: int, offset: int) -> bytes:
    return _HEADER.pack(prefix, b"k", partition, offset)


def job_id_key(prefix: bytes, partition: int, offset: int) -> bytes:
    return _HEADER.pack(prefix, b"m", partition, offset)


def dependent_key(prefix: bytes, partition: int, first: int, dependent: int) -> bytes:
    return _DEPENDENT.pack(prefix, b"r", partition, first, dependent)


def cron_key(prefix: bytes, name: str) -> bytes:
    return prefix + b"t" + name.encode()


def once_key(prefix: bytes, name: bytes) -> bytes:
    return prefix + b"w" + name


def taken_key(prefix: bytes, partition: int, first: int) -> bytes:
    return _HEADER.pack(prefix, b"x", partition, first)


def parked_key(prefix: bytes, partition: int, first: int) -> bytes:
    return _HEADER.pack(prefix, b"y", partition, first)


def outcome_key(prefix: bytes, group: int, partition: int, first: int) -> bytes:
    return _PLACE.pack(prefix, b"o", group, partition, first)


def skip_key(prefix: bytes, group: int, partition: int, first: int) -> bytes:
    return _PLACE.pack(prefix, b"s", group, partition, first)


def group_key(prefix: bytes, group: int) -> bytes:
    return _NUMBERED.pack(prefix, b"g", group)


def header_key(prefix: bytes, partition: int, base: int) -> bytes:
    return _HEADER.pack(prefix, b"h", partition, base)


def notes_key(prefix: bytes, kind: int, base: int) -> bytes:
    return _HEADER.pack(prefix, b"i", kind, base)


def progress_key(prefix: bytes, partition: int, offset: int) -> bytes:
    return _HEADER.pack(prefix, b"j", partition, offset)


def lease_key(prefix: bytes, name: int) -> bytes:
    return prefix + b"l" + name.to_bytes(NAME_BYTES, "big")


def partition_key(prefix: bytes, partition: int) -> bytes:
    return _NUMBERED.pack(prefix, b"p", partition)


def queue_key(prefix: bytes) -> bytes:
    return prefix + b"q"


def successor_key(prefix: bytes, partition: int, offset: int) -> bytes:
    return _HEADER.pack(prefix, b"u", partition, offset)


def row_bounds(prefix: bytes, group: int, partition: int | None = None) -> list[tuple[bytes, bytes]]:
    """Lower and upper bounds of what is kept as runs of a group, in one partition or in all."""
    low, high = _NUMBER.pack(group), _NUMBER.pack(group + 1)
    if partition is not None:
        low, high = low + _NUMBER.pack(partition), low + _NUMBER.pack(partition + 1)
    return [(prefix + kind + low, prefix + kind + high) for kind in (b"d", b"o", b"s", b"v")]


def scheduled_key(prefix: bytes, group: int, partition: int, due_at: int, first: int) -> bytes:
    return _SCHEDULED.pack(prefix, b"v", group, partition, due_at, first)


def body_key(prefix: bytes, name: int) -> bytes:
    return prefix + b"b" + name.to_bytes(NAME_BYTES, "big")


def is_body(key: bytes) -> bool:
    """Whether a key is a body's."""
    return key[8:9] == b"b"


def arrival_key(number: int) -> bytes:
    return ARRIVALS + number.to_bytes(8, "big")


def arrival_of(key: bytes) -> int | None:
    """The number of an arrival, if the key is one's.

    >>> arrival_of(arrival_key(7)), arrival_of(queue_key(prefix(1, 1)))
    (7, None)
    """
    return int.from_bytes(key[len(ARRIVALS) :], "big") if key.startswith(ARRIVALS) else None


def own_prefix(tenant: int) -> bytes:
    """The first eight bytes of every key that is a tenant's, but no queue's."""
    return _PREFIX.pack(tenant, 0)


def own_bounds(own: bytes) -> tuple[bytes, bytes]:
    """Lower and upper bound of what is a tenant's, but no queue's."""
    return own + b"c", own + b"z"


def shared_key(own: bytes, name: str) -> bytes:
    return own + b"l" + name.encode()


def value_key(own: bytes, key: bytes) -> bytes:
    return own + b"k" + key


def queue_name_key(tenant: int, name: str) -> bytes:
    return _NUMBERED.pack(META, b"Q", tenant) + name.encode()


def shard_key(shard: int) -> bytes:
    return _NUMBERED.pack(META, b"S", shard)


def tenant_key(name: str) -> bytes:
    return META + b"T" + name.encode()


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
    """The header of a segment that holds its payloads itself."""
    return _encode((len(payloads), size, created_at, b"", b"", b"", b"", 0, payloads))


def pack_notes(segment: Segment, about: Iterable[tuple[int, int]]) -> bytes:
    """The header of a segment of notes; ``about`` has partition key and offset of each."""
    name = segment.body_name.to_bytes(NAME_BYTES, "big")
    places = b"".join(starmap(_ABOUT.pack, about))
    return _encode((segment.count, segment.size, segment.created_at, name, places))


def pack_progress(progress: Progress) -> bytes:
    return _encode(progress)


def pack_lease(lease: Lease) -> bytes:
    runs = [_pack_run(run) for run in lease.runs.values()]
    return _encode((lease.group.number, runs, lease.cancelled, lease.leased_at))


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
    return _encode((run.count, run.deliveries, run.failures, run.dead_at, run.error, run.level))


def pack_tie(tie: Tie) -> bytes:
    return _encode(tie)


def pack_once(once: Once) -> bytes:
    return _encode(once)


def pack_cron(cron: Cron) -> bytes:
    return _encode(cron)


def pack_shared(limit: Shared) -> bytes:
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
    """The serial of what ended last, if others are still being told of that."""


class PackedScheduled(Struct, array_like=True):
    count: int
    deliveries: int
    failures: int
    error: str
    level: int = IN_LINE


unpack_cursor = msgpack.Decoder(PackedCursor).decode
unpack_group = msgpack.Decoder(PackedGroup).decode
_unpack_dead = msgpack.Decoder(tuple[int, int, int, int, str, int]).decode
_unpack_header = msgpack.Decoder(PackedHeader).decode
_unpack_lease = msgpack.Decoder(PackedLease).decode
unpack_partition = msgpack.Decoder(PackedPartition).decode
_unpack_notes = msgpack.Decoder(PackedNotes).decode
unpack_cron = msgpack.Decoder(Cron).decode
unpack_progress = msgpack.Decoder(Progress).decode
unpack_tie = msgpack.Decoder(Tie).decode
unpack_once = msgpack.Decoder(Once).decode
_unpack_value = msgpack.Decoder(tuple[bytes, bytes, int]).decode
_unpack_dependent = msgpack.Decoder(PackedDependent).decode
unpack_shared = msgpack.Decoder(Shared).decode
unpack_taken = msgpack.Decoder(tuple[int, list[tuple[int, str]]]).decode
unpack_queue = msgpack.Decoder(PackedQueue).decode
_unpack_scheduled = msgpack.Decoder(PackedScheduled).decode
unpack_numbers = msgpack.Decoder(tuple[int, ...]).decode


def unpack_header(base: int, value: bytes) -> Segment:
    """A header-only segment, or one that holds its payloads itself."""
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
    """A header-only segment of notes, and partition key and offset of what each is about."""
    found = _unpack_notes(value)
    name = int.from_bytes(found.name, "big")
    segment = Segment(base, found.count, found.size, found.created_at, name)
    return segment, list(_ABOUT.iter_unpack(found.about))


def unpack_lease(value: bytes) -> tuple[int, list[LeaseRun], bool, int]:
    """The group's number and the runs of a lease, whether some of it was cancelled, and when it began."""
    packed = _unpack_lease(value)
    runs = [
        LeaseRun(
            run.partition,
            run.first,
            run.count,
            run.deliveries,
            run.failures,
            run.expires_at,
            shared(run.error),
            run.level,
            int.from_bytes(run.bits, "little"),
        )
        for run in packed.runs
    ]
    return packed.group, runs, packed.cancelled, packed.leased_at


def unpack_dependent(key: bytes, value: bytes) -> tuple[int, tuple[int, int, int, int], int, int]:
    """The partition's key, the row of what is waited for, what of it is met, and since when it is there."""
    _, _, partition, first, dependent = _DEPENDENT.unpack(key)
    found = _unpack_dependent(value)
    return (
        partition,
        (first, dependent, found.count, found.waiting),
        int.from_bytes(found.met, "little"),
        found.since,
    )


def unpack_scheduled(key: bytes, value: bytes) -> tuple[int, int, Scheduled]:
    """The group's number, the partition's key and the run."""
    _, _, group, partition, due_at, first = _SCHEDULED.unpack(key)
    found = _unpack_scheduled(value)
    past = (found.deliveries, found.failures, shared(found.error))
    return group, partition, Scheduled(due_at, first, found.count, found.level, *past)


def unpack_dead(first: int, value: bytes) -> Dead:
    count, deliveries, failures, dead_at, error, level = _unpack_dead(value)
    return Dead(first, count, deliveries, failures, dead_at, shared(error), level)


def key_fields(key: bytes) -> tuple[int, ...]:
    """The integers of any key that has no due time and no name."""
    for layout in (_NUMBERED, _CURSOR, _HEADER, _PLACE):
        if layout.size == len(key):
            fields: tuple[int, ...] = layout.unpack(key)[2:]
            return fields
    raise AssertionError(f"no numbered key has {len(key)} bytes")
