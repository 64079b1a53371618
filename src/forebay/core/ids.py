"""The id is the address: where a message lies can be read off its id, without an index.

    number   partition number (32 bits) . offset within that number (32 bits)
    UUIDv7   48 bits    4    12 bits     2   20 bits     32 bits   10 bits
             time in ms  7   number high 10  number low  offset    zeros

A number and a UUID of the same message carry the same address. Ids of one push are consecutive:
numbers in steps of 1, UUIDs in steps of 1,024.

A partition holds more than 2**32 messages by taking a fresh number; it remembers every number it had
with the first offset under it, so old ids stay good.

A lease name is (epoch, counter) in one integer; its token adds the shard it lives in.
"""

from collections.abc import Iterable
from typing import NamedTuple

from forebay.core.errors import Invalid

OFFSET_BITS = 32
OFFSET_MASK = (1 << OFFSET_BITS) - 1
JSON_SAFE = 1 << 53
"""From here on an id is sent as a decimal string: JavaScript's numbers end at 2**53."""
COUNTER_BITS = 64
_SHARD_BITS = 32
_SHARD_MASK = (1 << _SHARD_BITS) - 1
_TOKEN_DIGITS = 39
"""Decimal digits of epoch (32 bits), counter (64) and shard (32)."""
_ADDRESS_BITS = 64
_LOW_BITS = 62
_LOW_MASK = (1 << _LOW_BITS) - 1
_ZEROS = 10
_ACCEPTED_ID = "a message id: a number, its decimal string, or a UUIDv7 as given out by push"
_ACCEPTED_LEASE = "a lease as given out by pop"


def address(number: int, offset: int) -> int:
    """Return the id, as a number, of the ``offset``-th message under a partition number."""
    return number << OFFSET_BITS | offset


def to_uuid(message: int, created_at: int) -> str:
    """Return the UUIDv7 of a message.

    >>> to_uuid(address(65, 1), 1_699_999_999_999)
    '018bcfe5-67ff-7000-8001-040000000400'
    """
    free = message << _ZEROS
    high = (created_at & (1 << 48) - 1) << 16 | 0x7000 | free >> _LOW_BITS
    low = 0b10 << _LOW_BITS | free & _LOW_MASK
    text = f"{high:016x}{low:016x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def from_uuid(text: str) -> int:
    """Return the address in a UUIDv7 that ``to_uuid`` made.

    >>> from_uuid('018bcfe5-67ff-7000-8001-040000000400') == address(65, 1)
    True
    """
    digits = text.replace("-", "")
    if len(text) != 36 or len(digits) != 32 or any(text[at] != "-" for at in (8, 13, 18, 23)):
        raise Invalid("id", _ACCEPTED_ID)
    if not digits.isascii() or not digits.isalnum():
        raise Invalid("id", _ACCEPTED_ID)
    try:
        value = int(digits, 16)
    except ValueError:
        raise Invalid("id", _ACCEPTED_ID) from None
    high, low = value >> 64, value & (1 << 64) - 1
    if high >> 12 & 0xF != 7 or low >> _LOW_BITS != 0b10 or low & (1 << _ZEROS) - 1:
        raise Invalid("id", _ACCEPTED_ID)
    return ((high & 0xFFF) << _LOW_BITS | low & _LOW_MASK) >> _ZEROS


def parse(value: int | str) -> int:
    """Return the address in any form of id that a caller may send."""
    if isinstance(value, str):
        if not (value.isascii() and value.isdigit() and len(value) <= 20):
            return from_uuid(value)
        value = int(value)
    if not 0 <= value < 1 << _ADDRESS_BITS:
        raise Invalid("id", _ACCEPTED_ID)
    return value


def lease_name(epoch: int, counter: int) -> int:
    """Return the name of a lease, unique across restarts."""
    return epoch << COUNTER_BITS | counter


def lease_token(shard: int, name: int) -> str:
    """Return the token of a lease: opaque to consumers, it leads to the lease's shard.

    >>> parse_lease(lease_token(3, lease_name(1, 255))) == (3, lease_name(1, 255))
    True
    """
    return str(name << _SHARD_BITS | shard)


def parse_lease(token: str) -> tuple[int, int]:
    """Return the shard and the name in a lease token."""
    if not (token.isdigit() and token.isascii() and len(token) <= _TOKEN_DIGITS):
        raise Invalid("lease", _ACCEPTED_LEASE)
    value = int(token)
    return value & _SHARD_MASK, value >> _SHARD_BITS


class Range(NamedTuple):
    """Consecutive ids."""

    first: int
    length: int


def ranges(ids: list[int]) -> list[Range]:
    """Return ids as ranges of consecutive ids, each within one partition number, without duplicates.

    >>> ranges([5, 6, 7]), ranges([9, 2, 3, 2]), ranges([(1 << 32) - 1, 1 << 32])
    ([Range(first=5, length=3)], [Range(first=2, length=2), Range(first=9, length=1)], \
[Range(first=4294967295, length=1), Range(first=4294967296, length=1)])
    """
    first, count = ids[0], len(ids)
    if count == 1:
        return [Range(first, 1)]
    # The usual case, a batch acked as it came: one comparison in C, no step per id.
    if (first & OFFSET_MASK) + count <= 1 << OFFSET_BITS and ids == list(range(first, first + count)):
        return [Range(first, count)]
    found: list[Range] = []
    begin = end = -1
    for each in sorted(set(ids)):
        if each == end and each & OFFSET_MASK:
            end += 1
        else:
            if end > begin:
                found.append(Range(begin, end - begin))
            begin, end = each, each + 1
    found.append(Range(begin, end - begin))
    return found


def spans_in_order(ids: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return ids as (first, count) spans in their order, each id once.

    >>> spans_in_order([40, 7, 8, 40, 9])
    ((40, 1), (7, 3))
    """
    spans: list[tuple[int, int]] = []
    for each in dict.fromkeys(ids):
        if spans and each == sum(spans[-1]):
            spans[-1] = (spans[-1][0], spans[-1][1] + 1)
        else:
            spans.append((each, 1))
    return tuple(spans)


def spans_of(ids: list[int]) -> tuple[tuple[int, int], ...]:
    """Return ids as (first, count) spans: sorted, without duplicates.

    >>> spans_of([40, 7, 8, 9])
    ((7, 3), (40, 1))
    """
    return tuple((each.first, each.length) for each in ranges(ids)) if ids else ()
