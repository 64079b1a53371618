"""The key space: one function per kind of record key.

Keys are fixed-width and big-endian, so they sort by what they mean. ``P`` is tenant number u32 + queue number
u32, and every key of a queue starts with it:

    P c  group u32, partition u32                        cursor, turn and planned of a track
    P d  group u32, partition u32, first u64             run of dead letters
    P e  partition u32, first u64                        run withdrawn from every group
    P f  how u32, partition u32, serial u64              ended run whose dependents are being notified
    P g  group u32                                       group
    P h  partition u32, base u64                         header of a segment
    P i  kind u32, base u64                              header of a segment of notes, and their messages
    P j  partition u32, offset u64                       progress of a message
    P k  partition u32, offset u64                       tie of a message
    P l  lease name (epoch u32, counter u64)             lease
    P m  partition u32, offset u64                       custom id of a message
    P n  body name (epoch u32, counter u64)              part of a stage
    P o  group u32, partition u32, first u64             outcome
    P p  partition u32                                   partition
    P q                                                  queue
    P r  partition u32, first u64, dependent u64         who waits for a run
    P s  group u32, partition u32, first u64             run that the cursor skips
    P t  name                                            cron
    P u  partition u32, offset u64                       successor of an updated message
    P v  group u32, partition u32, due u64, first u64    scheduled run
    P w  kind and key                                    remembered answer of a push
    P x  partition u32, first u64                        transaction ids of messages
    P y  partition u32, first u64                        parked run
    P z  batch u64, query                                remembered answer of an adoption
    P b  body name (epoch u32, counter u64)              body of a segment: raw bytes, read by name

``P`` of eight zeros holds names. The control records are what every node needs before it routes a command:

    0 T  tenant name                                     a tenant: whether it is spread, and suspended
    0 U  token id                                        token
    0 V                                                  version of the placement

The others belong to one shard:

    0 S  shard u32, N                                    numbers given out: partitions, queues, tenants
    0 S  shard u32, Q, tenant number u32, queue name     queue number
    0 S  shard u32, T, tenant name                       tenant number

``P`` of a tenant number and queue number 0 holds records of the tenant that belong to no queue:

    P k  packed key                                      value
    P l  name                                            named limit

Keys that start with eight 0xff belong to the store. One kind is known here, because a commit deletes it:

    ff A  number u64                                     push from SQL that waits in the inbox
"""

import struct

META = bytes(8)
"""The prefix of names, which belongs to no queue."""
ARRIVALS = b"\xff" * 8 + b"A"
"""Prefix of keys in the store's inbox."""
TENANT_KIND, TOKEN_KIND = b"T", b"U"
VERSION_KEY = META + b"V"
SHARD_KIND_AT = len(META) + 5
"""Where the kind stands in a key of ``shard_bounds``."""
NAME_BYTES = 12
"""Bytes of a lease's or a body's name."""
_CURSOR = struct.Struct(">8scII")
_NUMBERED = struct.Struct(">8scI")
_HEADER = struct.Struct(">8scIQ")
_PLACE = struct.Struct(">8scIIQ")
SCHEDULED_LAYOUT = struct.Struct(">8scIIQQ")
DEPENDENT_LAYOUT = struct.Struct(">8scIQQ")
_PREFIX = struct.Struct(">II")
_NUMBER = struct.Struct(">I")


def prefix(tenant: int, queue: int) -> bytes:
    """Return the first eight bytes of every key of a queue.

    >>> prefix(42, 7).hex(" ")
    '00 00 00 2a 00 00 00 07'
    """
    return _PREFIX.pack(tenant, queue)


def queue_bounds(prefix: bytes) -> tuple[bytes, bytes]:
    """Return the bounds of all records of a queue except bodies."""
    return prefix + b"c", prefix + b"{"


def body_bounds(prefix: bytes) -> tuple[bytes, bytes]:
    """Return the bounds of all bodies of a queue."""
    return prefix + b"b", prefix + b"c"


def control_bounds() -> tuple[bytes, bytes]:
    """Return the bounds of the control records."""
    return META + b"T", META + b"W"


def shard_bounds(shard: int) -> tuple[bytes, bytes]:
    """Return the bounds of the names of a shard."""
    return _NUMBERED.pack(META, b"S", shard), _NUMBERED.pack(META, b"S", shard + 1)


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
    return DEPENDENT_LAYOUT.pack(prefix, b"r", partition, first, dependent)


def cron_key(prefix: bytes, name: str) -> bytes:
    return prefix + b"t" + name.encode()


def remembered_key(prefix: bytes, name: bytes) -> bytes:
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
    """Return the bounds of a group's runs, in one partition or in all."""
    low, high = _NUMBER.pack(group), _NUMBER.pack(group + 1)
    if partition is not None:
        low, high = low + _NUMBER.pack(partition), low + _NUMBER.pack(partition + 1)
    return [(prefix + kind + low, prefix + kind + high) for kind in (b"d", b"o", b"s", b"v")]


def scheduled_key(prefix: bytes, group: int, partition: int, due_at: int, first: int) -> bytes:
    return SCHEDULED_LAYOUT.pack(prefix, b"v", group, partition, due_at, first)


def body_key(prefix: bytes, name: int) -> bytes:
    return prefix + b"b" + name.to_bytes(NAME_BYTES, "big")


def is_header(key: bytes) -> bool:
    """Return whether a key is that of a segment's header."""
    return key[8:9] == b"h" and key[:8] != META


def is_body(key: bytes) -> bool:
    """Whether a key is a body's."""
    return key[8:9] == b"b"


def arrival_key(number: int) -> bytes:
    return ARRIVALS + number.to_bytes(8, "big")


def arrival_of(key: bytes) -> int | None:
    """Return the inbox number in a key, if it is an inbox key.

    >>> arrival_of(arrival_key(7)), arrival_of(queue_key(prefix(1, 1)))
    (7, None)
    """
    return int.from_bytes(key[len(ARRIVALS) :], "big") if key.startswith(ARRIVALS) else None


def own_prefix(tenant: int) -> bytes:
    """Return the first eight bytes of every tenant key that belongs to no queue."""
    return _PREFIX.pack(tenant, 0)


def own_bounds(own: bytes) -> tuple[bytes, bytes]:
    """Return the bounds of a tenant's records that belong to no queue."""
    return own + b"c", own + b"z"


def named_limit_key(own: bytes, name: str) -> bytes:
    return own + b"l" + name.encode()


def value_key(own: bytes, key: bytes) -> bytes:
    return own + b"k" + key


def queue_name_key(shard: int, tenant: int, name: str) -> bytes:
    return _NUMBERED.pack(META, b"S", shard) + b"Q" + _NUMBER.pack(tenant) + name.encode()


def numbers_key(shard: int) -> bytes:
    return _NUMBERED.pack(META, b"S", shard) + b"N"


def tenant_key(shard: int, name: str) -> bytes:
    return _NUMBERED.pack(META, b"S", shard) + b"T" + name.encode()


def control_key(tenant: str) -> bytes:
    return META + TENANT_KIND + tenant.encode()


def token_key(token: str) -> bytes:
    return META + TOKEN_KIND + token.encode()


def key_fields(key: bytes) -> tuple[int, ...]:
    """Return the integers of any key without due time and name."""
    for layout in (_NUMBERED, _CURSOR, _HEADER, _PLACE):
        if layout.size == len(key):
            fields: tuple[int, ...] = layout.unpack(key)[2:]
            return fields
    raise AssertionError(f"no numbered key has {len(key)} bytes")


CONTROL = -1
"""The control records are claimed and fenced like a shard, under this number."""
