"""Segment bodies: the payloads as they are stored.

A body is columnar: ``count + 1`` little-endian int32 offsets, the first one 0, then the payloads back to
back. No Python code runs per message: lengths, offsets, slices and joins are loops in C.
"""

import struct
from collections.abc import Iterable, Sequence
from itertools import accumulate

from forebay.core.bounds import SEGMENT_BYTES_MAX
from forebay.core.errors import Invalid

OFFSET_BYTES = 4
"""Bytes of one offset in a body."""


def pack_body(payloads: Sequence[bytes], lengths: Sequence[int]) -> bytes:
    """Return the body of ``payloads``.

    >>> pack_body([b"a", b"bc"], [1, 2]).hex(" ")
    '00 00 00 00 01 00 00 00 03 00 00 00 61 62 63'
    """
    if len(payloads) == 1:
        return b"".join((_ONE.pack(0, lengths[0]), payloads[0]))
    ends = list(accumulate(lengths, initial=0))
    # struct.pack is 3 times as fast as array("i", ...) here: 110 against 37 million offsets a second.
    return b"".join([struct.pack(f"<{len(ends)}i", *ends), *payloads])


def join_bodies(bodies: Sequence[bytes], counts: Sequence[int]) -> bytes:
    """Join bodies with the given numbers of payloads.

    >>> join_bodies([pack_body([b"a", b"bc"], [1, 2]), pack_body([b""], [0])], [2, 1]) == pack_body(
    ...     [b"a", b"bc", b""], [1, 2, 0]
    ... )
    True
    """
    ends = [0]
    for body, count in zip(bodies, counts, strict=True):
        part: Iterable[int] = struct.unpack_from(f"<{count}i", body, OFFSET_BYTES)
        ends += map(ends[-1].__add__, part)
    parts = [body[OFFSET_BYTES * (count + 1) :] for body, count in zip(bodies, counts, strict=True)]
    return b"".join([struct.pack(f"<{len(ends)}i", *ends), *parts])


def is_whole(body: bytes, count: int, size: int) -> bool:
    """Whether a body holds ``count`` payloads of ``size`` bytes in total."""
    data = OFFSET_BYTES * (count + 1)
    if len(body) != data + size:
        return False
    ends = body_ends(body, 0, count)
    # Sorting what is sorted is 3 times as fast as comparing neighbours one by one.
    return ends[0] == 0 and ends[-1] == size and list(ends) == sorted(ends)


def check_body(body: bytes, count: int) -> None:
    """Raise unless a received body holds ``count`` payloads."""
    if len(body) > SEGMENT_BYTES_MAX and count != 1:
        raise Invalid("body", f"at most {SEGMENT_BYTES_MAX} bytes, but for one of a single message")
    size = len(body) - OFFSET_BYTES * (count + 1)
    if count < 1 or size < 0 or not is_whole(body, count, size):
        layout = f"count + 1 little-endian int32 offsets from 0 on ({count + 1} here), then the payloads"
        raise Invalid("body", f"{layout}; these {len(body)} bytes are not")


def body_part(body: bytes, count: int, start: int, taken: int) -> bytes:
    """Return a body with payloads ``start`` to ``start + taken`` of a body that holds ``count``.

    >>> body_part(pack_body([b"a", b"bc", b""], [1, 2, 0]), 3, 1, 2) == pack_body([b"bc", b""], [2, 0])
    True
    """
    if taken == count:
        return body
    ends = body_ends(body, start, taken)
    low, data = ends[0], OFFSET_BYTES * (count + 1)
    offsets = struct.pack(f"<{taken + 1}i", *map(low.__rsub__, ends))
    return offsets + body[data + low : data + ends[-1]]


_ONE = struct.Struct("<ii")
_END = struct.Struct("<i")


def body_slices(body: bytes, count: int, start: int, taken: int) -> Iterable[bytes]:
    """Return payloads ``start`` to ``start + taken`` of a body that holds ``count``.

    >>> list(body_slices(pack_body([b"a", b"bc", b""], [1, 2, 0]), 3, 1, 2))
    [b'bc', b'']
    """
    data = OFFSET_BYTES * (count + 1)
    if taken == 1:
        low, high = _ONE.unpack_from(body, OFFSET_BYTES * start)
        return (body[data + low : data + high],)
    ends = body_ends(body, start, taken)
    low = ends[0]
    blob = body[data + low : data + ends[-1]]
    if low:
        ends = tuple(map(low.__rsub__, ends))
    return map(blob.__getitem__, map(slice, ends, ends[1:]))


def body_ends(body: bytes, start: int, taken: int) -> tuple[int, ...]:
    """Return where payload ``start`` begins, and where each of ``taken`` payloads ends."""
    return struct.unpack_from(f"<{taken + 1}i", body, OFFSET_BYTES * start)


def body_span(body: bytes, start: int, taken: int) -> int:
    """Return the bytes of payloads ``start`` to ``start + taken``."""
    (low,) = _END.unpack_from(body, OFFSET_BYTES * start)
    (high,) = _END.unpack_from(body, OFFSET_BYTES * (start + taken))
    return int(high - low)
