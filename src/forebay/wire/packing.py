"""MessagePack becomes JSON at the door, and JSON becomes MessagePack on its way out.

Inside there is JSON only. Both ways are a few calls into C for a whole body, however many payloads it has;
Python looks at single values only to say what is wrong with a body, or to put a number in other words.

What JSON has no word for is refused, but for binary: it becomes text, in base64. What MessagePack has no word
for, an integer of more than 64 bits, say, goes out as text.
"""

import json
import math
import re
from typing import Any

import msgspec

from forebay.core.errors import Invalid

_unpack = msgspec.msgpack.Decoder().decode
_pack = msgspec.msgpack.Encoder().encode
_to_json = msgspec.json.Encoder().encode
_from_json = msgspec.json.Decoder().decode


BYTES_MAX = 8 * 1024 * 1024
"""Bytes of a body that is made JSON. Its values are objects meanwhile, up to 140 times as large: about as
much memory, and as many seconds, as the largest frame of JSON can take."""


def json_of(body: bytes) -> bytes:
    """A MessagePack map as JSON."""
    if len(body) > BYTES_MAX:
        raise Invalid("frame", f"at most {BYTES_MAX} bytes if it is MessagePack and has payloads: send JSON")
    try:
        value = _unpack(body)
        if not _stays(value) or _may_be_infinite(body):
            _check(value)
        return _to_json(value)
    except RecursionError:
        raise Invalid("payload", "nested less deep") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid("frame", f"one well-formed MessagePack map; {error}") from None


def check_finite(body: bytes) -> None:
    """Raise if a number in a well-formed map is none: JSON would make null of it."""
    if _may_be_infinite(body):
        _check(_unpack(body))


def packed_of(body: bytes) -> bytes:
    """JSON as MessagePack."""
    try:
        return _pack(_from_json(body))
    except (OverflowError, msgspec.DecodeError):  # a number in a payload is too large, which is rare
        return _pack(json.loads(body, parse_int=_whole, parse_float=_real))


def _stays(value: Any) -> bool:
    """Whether nothing in a value would become something else: a name that is no text, a time.

    Values are not copied and the same object is equal to itself, so this takes a fifth of ``json_of``.
    """
    try:
        return bool(msgspec.to_builtins(value, str_keys=True, builtin_types=(bytes,)) == value)
    except TypeError:
        return False


_INFINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]|\xca[\x7f\xff][\x80-\xff]").search
"""How a number begins that is not finite. Binary may happen to look like it, but text does not."""


def _may_be_infinite(body: bytes) -> bool:
    """Whether numbers have to be looked at. One byte is found 100 times as fast as the pattern."""
    double = b"\xcb" in body and (b"\xcb\x7f" in body or b"\xcb\xff" in body)
    single = b"\xca" in body and (b"\xca\x7f" in body or b"\xca\xff" in body)
    return (double or single) and _INFINITE(body) is not None


def _check(value: Any) -> None:
    """Raise if there is something in a value that JSON does not have."""
    left = [value]
    while left:
        value = left.pop()
        kind = type(value)
        if kind is dict:
            for name in value:
                if type(name) is not str:
                    raise Invalid("frame", f"made of what JSON has; the key {name!r:.50} is no string")
            left += value.values()
        elif kind is list:
            left += value
        elif kind is float and not math.isfinite(value):
            raise Invalid("frame", f"made of what JSON has; {value} is no number there")
        elif kind not in _KINDS:
            raise Invalid("frame", f"made of what JSON has; {_STRANGE.get(kind.__name__, 'this')} is not")


_KINDS = frozenset({type(None), bool, int, float, str, bytes})
_STRANGE = {"datetime": "a timestamp", "Ext": "an extension"}


def _whole(digits: str) -> int | str:
    """An integer of at most 64 bits, or its digits. Python does not even read thousands of them."""
    value = int(digits) if len(digits) <= 20 else 1 << 64
    return value if -(1 << 63) <= value < 1 << 64 else digits


def _real(digits: str) -> float | str:
    value = float(digits)
    return value if math.isfinite(value) else digits
