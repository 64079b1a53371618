"""Payloads for JSON replies, with the headers and tags they were pushed with."""

from collections.abc import Iterable, Iterator

from msgspec import UNSET, Raw, UnsetType

from forebay.core.log import slices
from forebay.core.log.slices import SegmentSlice
from forebay.core.state import Attributes


def array(payloads: Iterable[bytes]) -> Raw:
    """Join payloads into one JSON array, in C."""
    return Raw(b"[" + b",".join(payloads) + b"]")


Labels = tuple[dict[str, str] | UnsetType, tuple[str, ...] | UnsetType]
NO_LABELS: Labels = (UNSET, UNSET)


def labels(attributes: Attributes) -> Labels:
    """Return headers and tags for a reply; UNSET where there are none."""
    return dict(attributes.headers) if attributes.headers else UNSET, attributes.tags or UNSET


def labelled(piece: SegmentSlice) -> Iterator[tuple[int, int, Iterable[bytes], Labels]]:
    """Split a slice where headers or tags change: yields start, count, payloads and labels of each part."""
    if not piece.segment.mixed:
        yield 0, piece.count, piece.payloads(), NO_LABELS
        return
    payloads = list(piece.payloads())
    for start, count, attributes in slices.labelled(piece):
        yield start, count, payloads[start : start + count], labels(attributes)


def labels_of(piece: SegmentSlice) -> Labels:
    """Return headers and tags of the first message of a slice."""
    segment = piece.segment
    return labels(segment.run_at(piece.start)[2]) if segment.mixed else NO_LABELS
