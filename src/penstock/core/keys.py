"""Keys of values: tuples of parts, packed so that they sort part by part.

    bytes < text < numbers < whole numbers that no float holds < false < true

A packed key begins with the packed keys of everything above it, so a prefix is a range.
"""

import struct
from collections.abc import Sequence

from penstock.core.errors import Invalid

Part = str | int | float | bytes
"""Of whole numbers, true and false are parts of their own."""

PARTS_MAX = 20
KEY_BYTES_MAX = 2_048
"""Bytes of a packed key."""
_BYTES, _TEXT, _NUMBER, _BIG, _FALSE, _TRUE = range(1, 7)
_EXACT = 1 << 53
"""Whole numbers up to here are exact as floats."""
_float = struct.Struct(">d")
_bits = struct.Struct(">Q")
_SIGN = 1 << 63
AFTER = b"\xff"
"""Behind every packed key that begins like what it is added to."""


def pack(parts: Sequence[Part]) -> bytes:
    """A key as it is kept.

    >>> sorted([("b",), ("a", 2), ("a",), (10,), ("a", 10)], key=pack)
    [('a',), ('a', 2), ('a', 10), ('b',), (10,)]
    """
    if not 1 <= len(parts) <= PARTS_MAX:
        raise Invalid("key", f"a list of 1 to {PARTS_MAX} parts")
    packed = b"".join(map(_pack, parts))
    if len(packed) > KEY_BYTES_MAX:
        raise Invalid("key", f"at most {KEY_BYTES_MAX} bytes long; this has {len(packed)}")
    return packed


def _pack(part: Part) -> bytes:
    match part:
        case bool():
            return bytes([_TRUE if part else _FALSE])
        case str():
            return bytes([_TEXT]) + _escaped(_utf8(part))
        case bytes():
            return bytes([_BYTES]) + _escaped(part)
        case int() if abs(part) > _EXACT:
            return bytes([_BIG]) + _big(part)
        case int() | float():
            return bytes([_NUMBER]) + _sortable(float(part))
    raise Invalid("key", "a list of texts, numbers and booleans")


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise Invalid("key", "a list of texts that are UTF-8") from None


def _escaped(data: bytes) -> bytes:
    return data.replace(b"\0", b"\0\xff") + b"\0"


def _sortable(number: float) -> bytes:
    """Eight bytes that sort as numbers do."""
    if number != number or number in (float("inf"), float("-inf")):
        raise Invalid("key", "a list of texts, booleans and numbers that are finite")
    (bits,) = _bits.unpack(_float.pack(number + 0.0))  # there is one zero
    return _bits.pack(bits ^ (2 * _SIGN - 1) if bits & _SIGN else bits | _SIGN)


def _big(number: int) -> bytes:
    size = (abs(number).bit_length() + 7) // 8
    if size > 127:
        raise Invalid("key", "a list with whole numbers of at most 127 bytes")
    if number > 0:
        return bytes([128 + size]) + number.to_bytes(size, "big")
    return bytes([127 - size]) + (number + (1 << 8 * size) - 1).to_bytes(size, "big")


def unpack(packed: bytes) -> tuple[Part, ...]:
    """The parts of a packed key.

    >>> unpack(pack(("a", 7, 0.5, True, b"\\0", -(1 << 70))))
    ('a', 7, 0.5, True, b'\\x00', -1180591620717411303424)
    """
    found: list[Part] = []
    at = 0
    while at < len(packed):
        kind = packed[at]
        at += 1
        if kind in (_TEXT, _BYTES):
            end = _end(packed, at)
            data = packed[at:end].replace(b"\0\xff", b"\0")
            found.append(data if kind == _BYTES else data.decode())
            at = end + 1
        elif kind == _NUMBER:
            (bits,) = _bits.unpack_from(packed, at)
            (number,) = _float.unpack(_bits.pack(bits ^ _SIGN if bits & _SIGN else bits ^ (2 * _SIGN - 1)))
            found.append(int(number) if number.is_integer() and abs(number) <= _EXACT else number)
            at += 8
        elif kind == _BIG:
            size = abs(packed[at] - 128) if packed[at] > 127 else 127 - packed[at]
            value = int.from_bytes(packed[at + 1 : at + 1 + size], "big")
            found.append(value if packed[at] > 127 else value - (1 << 8 * size) + 1)
            at += 1 + size
        else:
            found.append(kind == _TRUE)
    return tuple(found)


def _end(packed: bytes, at: int) -> int:
    """Where a text that begins at ``at`` ends: at a zero that stands alone."""
    while True:
        at = packed.index(b"\0", at)
        if packed[at + 1 : at + 2] != b"\xff":
            return at
        at += 2
