"""Pack the runs of a segment into its header."""

import struct
from collections.abc import Iterable, Sequence
from itertools import accumulate

from msgspec import Struct, msgpack
from msgspec.structs import astuple

from forebay.core.state import PLACE_BYTES, PLAIN, Attributes, Run

_encode = msgpack.Encoder().encode


class Packed(Struct, frozen=True, gc=False):
    """Runs of a segment, packed as its header stores them."""

    spread: bytes = b""
    sets: bytes = b""
    which: bytes = b""
    aside: int = 0


def pack_runs(runs: Iterable[Run], created_at: int) -> Packed:
    """Pack the runs of a segment whose first message was pushed at ``created_at``.

    >>> pack_runs([Run(2, 70), Run(1, 70), Run(5, 71)], 70).spread.hex(" ")
    '03 00 00 00 00 00 00 00 08 00 00 00 01 00 00 00'
    >>> pack_runs([Run(2, 70)], 70) == Packed()
    True
    >>> urgent = Attributes(priority=9)
    >>> packed = pack_runs([Run(2, 70, urgent), Run(1, 70), Run(1, 70, urgent)], 70)
    >>> packed.which.hex(" "), packed.aside
    ('00 00 00 00 01 00 00 00 00 00 00 00', 3)
    """
    packed: list[int] = []
    which: list[int] = []
    sets: dict[Attributes, int] = {}
    end = aside = 0
    time, attributes = created_at, None
    for run in runs:
        if attributes is not None and (run.created_at != time or run.attributes != attributes):
            packed += (end, time - created_at)
            which.append(sets.setdefault(attributes, len(sets)))
        time, attributes = run.created_at, run.attributes
        end += run.count
        if not attributes.in_line:
            aside += run.count
    assert attributes is not None, "a segment has a run"
    if packed:
        packed += (end, time - created_at)
    which.append(sets.setdefault(attributes, len(sets)))
    spread = struct.pack(f"={len(packed)}I", *packed)
    if sets.keys() == {PLAIN}:
        return Packed(spread)
    places = struct.pack(f"={len(which)}I", *which) if any(which) else b""
    return Packed(spread, pack_sets(list(sets)), places, aside)


def _packed(attributes: Attributes) -> bytes:
    """Encode attributes. The last ones are left out if they are not set: few messages have them."""
    if attributes.task:
        return _encode(attributes)
    if attributes.cleanup is not None or attributes.stall_ms:
        return _encode(astuple(attributes)[:-1])
    return _encode(astuple(attributes)[: -3 if attributes.headers or attributes.tags else -5])


def pack_sets(sets: Sequence[Attributes]) -> bytes:
    """Pack sets of attributes behind their positions, so that each can be read alone.

    >>> from forebay.core.state import count_sets, set_at
    >>> packed = pack_sets([PLAIN, Attributes(priority=3)])
    >>> count_sets(packed), set_at(packed, 1).priority
    (2, 3)
    """
    blobs = list(map(_packed, sets))
    places = accumulate(map(len, blobs), initial=PLACE_BYTES * (len(blobs) + 1))
    return struct.pack(f"={len(blobs) + 1}I", *places) + b"".join(blobs)
