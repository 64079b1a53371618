"""Payloads as they go out in JSON, with the headers and tags they were pushed with."""

from collections.abc import Iterable, Iterator

from msgspec import UNSET, Raw, UnsetType

from forebay.core.log import slices
from forebay.core.log.slices import SegmentSlice
from forebay.core.state import Attributes


def array(payloads: Iterable[bytes]) -> Raw:
    """Payloads as one JSON array, joined in C."""
    return Raw(b"[" + b",".join(payloads) + b"]")


Labels = tuple[dict[str, str] | UnsetType, tuple[str, ...] | UnsetType]
NO_LABELS: Labels = (UNSET, UNSET)


def labels(attributes: Attributes) -> Labels:
    """Headers and tags as they go out."""
    return dict(attributes.headers) if attributes.headers else UNSET, attributes.tags or UNSET


def labelled(piece: SegmentSlice) -> Iterator[tuple[int, int, Iterable[bytes], Labels]]:
    """The payloads of a piece, cut where headers or tags change: first, how many, they, and those."""
    if not piece.segment.mixed:
        yield 0, piece.count, piece.payloads(), NO_LABELS
        return
    payloads = list(piece.payloads())
    for start, count, attributes in slices.labelled(piece):
        yield start, count, payloads[start : start + count], labels(attributes)


def labels_of(piece: SegmentSlice) -> Labels:
    """Headers and tags of the first message of a piece."""
    segment = piece.segment
    return labels(segment.run_at(piece.start)[2]) if segment.mixed else NO_LABELS
