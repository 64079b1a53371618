"""Slices of segments: what replies carry instead of copies of payloads."""

from collections.abc import Iterable, Iterator

from msgspec import Struct

from forebay.core.log.bodies import body_slices
from forebay.core.state import PLAIN, Attributes, Segment


class SegmentSlice(Struct, frozen=True, gc=False):
    """Adjacent messages of one segment, with one time."""

    segment: Segment
    start: int
    """Index of the first one within the segment."""
    count: int
    created_at: int

    @property
    def offset(self) -> int:
        return self.segment.base + self.start

    def payloads(self) -> Iterable[bytes]:
        """Return the payloads in order. The body must be in memory."""
        segment = self.segment
        if segment.payloads is not None:
            return segment.payloads[self.start : self.start + self.count]
        assert segment.body is not None, "the body is read before the payloads are"
        return body_slices(segment.body, segment.count, self.start, self.count)


def labelled(piece: SegmentSlice) -> Iterator[tuple[int, int, Attributes]]:
    """Yield (first message, count, attributes) of a slice, cut where headers or tags change."""
    segment, start, end = piece.segment, piece.start, piece.start + piece.count
    if not segment.mixed:
        yield 0, piece.count, PLAIN
        return
    begin, known = start, None
    while start < end:
        high, _, attributes = segment.run_at(start)
        if known is not None and (attributes.headers, attributes.tags) != (known.headers, known.tags):
            yield begin - piece.start, start - begin, known
            begin = start
        known = attributes
        start = min(high, end)
    assert known is not None, "a piece has a message"
    yield begin - piece.start, end - begin, known
