"""Check that a request can be stored: its text is UTF-8, and no payload is nested too deep.

Both checks run once per request, with loops in C only: a batch of 10,000 payloads takes as many Python steps
as one payload.
"""

import re
from itertools import accumulate

import msgspec
from msgspec import Raw

from forebay.core.errors import Invalid
from forebay.core.log.bodies import body_slices

ENCODING, BASE64 = "x-forebay-encoding", "base64"
"""Header of a message whose payload is a text that stands for bytes, and what it says: how to decode it."""
PLAINLY: dict[str, str | None] = {ENCODING: None}
"""Headers that an update sets by itself: the old payload may have been bytes, the new one is none."""
DEPTH_MAX = 128
"""Nested arrays and objects in one payload."""
_ROUNDS = 6
"""Times that innermost brackets are removed before they are counted one by one: 3 times as fast."""

_NO_QUOTES_NOR_BRACKETS = bytes(set(range(256)) - set(b'"[]{}'))
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_STRINGS = re.compile(rb'"[^"]*"')


def check_text(frame: bytes) -> None:
    """Raise unless the frame is UTF-8."""
    try:
        frame.decode()
    except UnicodeDecodeError as error:
        raise Invalid("frame", f"UTF-8; byte {error.start} is not") from None


def check_depth(frame: bytes, wrapped: int, longest: int) -> None:
    """Raise if a payload in a well-formed frame is nested too deep.

    ``wrapped`` levels belong to the frame itself. Each level takes two brackets, so a frame whose ``longest``
    payload is short needs no count.
    """
    if longest >= 2 * (DEPTH_MAX + 1) and _depth_over(frame, DEPTH_MAX + wrapped):
        raise Invalid("payload", f"nested at most {DEPTH_MAX} deep")


_values = msgspec.json.Decoder(list[Raw]).decode


def check_values(body: bytes, count: int) -> None:
    """Raise unless each payload in a well-formed segment body is one JSON value without blanks around it."""
    payloads = list(body_slices(body, count, 0, count))
    joined = b"[" + b",".join(payloads) + b"]"
    if not joined.isascii():
        check_text(joined)
    lengths = list(map(len, payloads))
    try:
        good = list(map(len, _values(joined))) == lengths
    except (msgspec.DecodeError, RecursionError):
        good = False
    if not good:
        # Joined, one bad payload can be completed by its neighbours; decoding each alone finds it.
        at = next((at for at, payload in enumerate(payloads) if not _is_value(payload)), 0)
        raise Invalid("body", f"payloads that are JSON, without blanks around them; number {at} is not")
    check_depth(joined, 1, max(lengths))


def _is_value(payload: bytes) -> bool:
    try:
        return len(msgspec.json.decode(payload, type=Raw)) == len(payload)
    except (msgspec.DecodeError, RecursionError):
        return False


def _depth_over(frame: bytes, allowed: int) -> bool:
    """Return whether brackets outside of strings nest deeper than ``allowed``."""
    if b"\\" in frame:
        # Remove escaped backslashes first, so that a backslash left before a quote does escape the quote.
        frame = frame.replace(b"\\\\", b"").replace(b'\\"', b"")
    left = frame.translate(None, _NO_QUOTES_NOR_BRACKETS)
    # Two quotes side by side are a string without brackets. Any quotes left enclose brackets.
    left = left.replace(b'""', b"")
    if b'"' in left:
        left = _STRINGS.sub(b"", left)
    brackets = left
    for _ in range(_ROUNDS):
        left = left.replace(b"{}", b"").replace(b"[]", b"")
        if not left:
            return False
    return max(accumulate(memoryview(brackets.translate(_STEPS)).cast("b"))) > allowed
