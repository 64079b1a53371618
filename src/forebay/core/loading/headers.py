"""Check that a segment header is what was written."""

import struct

from msgspec import MsgspecError

from forebay.core.errors import Damaged
from forebay.core.log import log as logs
from forebay.core.state import Log, Segment, count_sets


def load_log(first: int, segments: list[Segment]) -> Log:
    """Return a log of stored segments in offset order; raise if a header is damaged."""
    for segment in segments:
        spread, lengths = segment.spread, segment.lengths
        whole = lengths is None or (len(lengths), sum(lengths)) == (segment.count, segment.size)
        good = not spread or (not len(spread) % 8 and segment.run_ends[-1] == segment.count)
        if not whole or not good or segment.count < 1:
            raise Damaged(f"the header at offset {segment.base} is not what was written")
        if segment.sets:
            _check_sets(segment)
    return logs.load(first, segments)


def _check_sets(segment: Segment) -> None:
    """Raise if the attributes of a header are damaged."""
    try:
        sets = count_sets(segment.sets)
        which = memoryview(segment.which).cast("I") if segment.which else [0]
        good = max(which) < sets and len(which) in (1, len(segment.spread) // 8)
        aside = sum(run.count for run in segment.runs if not run.attributes.in_line)
    except (MsgspecError, TypeError, ValueError, IndexError, struct.error):
        good, aside = False, 0
    if not good or segment.aside != aside:
        raise Damaged(f"the attributes in the header at offset {segment.base} are not what was written")
