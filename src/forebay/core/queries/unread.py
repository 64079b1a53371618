"""Messages of a partition by state, as a group sees them that does not exist."""

from collections.abc import Iterable, Iterator

from forebay.core.log import log as logs
from forebay.core.state import Partition
from forebay.core.structures.spans import Span, covered, outside

Part = tuple[int, int, bool]
"""A span of messages, and whether they match."""


def asked(spans: Iterable[Span]) -> Iterator[Part]:
    return ((low, high, True) for low, high in spans)


def unread(partition: Partition, state: str, at: int, now: int) -> Iterator[Part]:
    """Yield spans of a state from an offset on, and spans that were scanned without a match.

    Everything waits, is delayed, parked or cancelled.
    """
    log = partition.log
    if state == "cancelled":
        yield from asked(covered(partition.withdrawn, at, log.end))
    at = max(at, log.first)
    if state == "parked":
        yield from asked(covered(partition.parked, at, log.end))
    if state not in ("waiting", "delayed") or at >= log.end:
        return
    for segment in log.segments[logs.find(log, at) :]:
        start = max(at - segment.base, 0)
        while start < segment.count:
            end, created_at, attributes = segment.run_at(start)
            if (created_at + attributes.delay_ms > now) == (state == "delayed"):
                for low, high in outside(partition.withdrawn, segment.base + start, segment.base + end):
                    yield from asked(outside(partition.parked, low, high))
            else:
                yield segment.base + start, segment.base + end, False
            start = end
