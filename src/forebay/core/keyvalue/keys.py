"""Key encoding: tuples of parts, packed so that they sort part by part.

    bytes < text < numbers < false < true

A packed key starts with the packed keys of all its parents, so a prefix is a range.
"""

import struct
from collections.abc import Sequence

from forebay.core.errors import Invalid

Part = str | int | float | bytes
"""A part of a key. True and false are parts of their own, not integers."""

PARTS_MAX = 20
KEY_BYTES_MAX = 2_048
"""Bytes of a packed key."""
_BYTES, _TEXT, _NUMBER, _, _FALSE, _TRUE, _REST = range(1, 8)
"""Type byte of a part; the last one marks the remainder of an integer beyond its float."""
_WHOLE = 10**21
"""Integers from here on are shown as floats if they are one."""
_float = struct.Struct(">d")
_bits = struct.Struct(">Q")
_SIGN = 1 << 63
AFTER = bytes([_REST])
"""Suffix that sorts behind every packed key with a given prefix."""


def pack(parts: Sequence[Part]) -> bytes:
    """Return a key as it is stored.

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
        case int():
            return bytes([_NUMBER]) + _whole(part)
        case float():
            return bytes([_NUMBER]) + _sortable(part)
    raise Invalid("key", "a list of texts, numbers and booleans")


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise Invalid("key", "a list of texts that are UTF-8") from None


def _escaped(data: bytes) -> bytes:
    return data.replace(b"\0", b"\0\xff") + b"\0"


def _sortable(number: float) -> bytes:
    """Return eight bytes that sort as numbers do."""
    if number != number or number in (float("inf"), float("-inf")):
        raise Invalid("key", "a list of texts, booleans and numbers that are finite")
    (bits,) = _bits.unpack(_float.pack(number + 0.0))  # there is one zero
    return _bits.pack(bits ^ (2 * _SIGN - 1) if bits & _SIGN else bits | _SIGN)


def _number(packed: bytes) -> float:
    (bits,) = _bits.unpack(packed)
    found: float
    (found,) = _float.unpack(_bits.pack(bits ^ _SIGN if bits & _SIGN else bits ^ (2 * _SIGN - 1)))
    return found


def _whole(number: int) -> bytes:
    """The same for an integer: the largest float not above it, and the remainder."""
    if number.bit_length() > 1_016:
        raise Invalid("key", "a list with whole numbers of at most 127 bytes")
    packed = _sortable(float(number))
    if int(_number(packed)) > number:
        packed = _bits.pack(_bits.unpack(packed)[0] - 1)
    rest = number - int(_number(packed))
    if not rest:
        return packed
    size = (rest.bit_length() + 7) // 8
    return packed + bytes([_REST, size]) + rest.to_bytes(size, "big")


def unpack(packed: bytes) -> tuple[Part, ...]:
    """Return the parts of a packed key.

    >>> unpack(pack(("a", 7, 0.5, True, b"\\0", -(1 << 70) - 1)))
    ('a', 7, 0.5, True, b'\\x00', -1180591620717411303425)
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
            number = _number(packed[at : at + 8])
            at += 8
            if packed[at : at + 1] == AFTER:
                end = at + 2 + packed[at + 1]
                found.append(int(number) + int.from_bytes(packed[at + 2 : end], "big"))
                at = end
            else:
                found.append(int(number) if number.is_integer() and abs(number) < _WHOLE else number)
        else:
            found.append(kind == _TRUE)
    return tuple(found)


def _end(packed: bytes, at: int) -> int:
    """Return where a text that starts at ``at`` ends: at an unescaped zero."""
    while True:
        at = packed.index(b"\0", at)
        if packed[at + 1 : at + 2] != b"\xff":
            return at
        at += 2
