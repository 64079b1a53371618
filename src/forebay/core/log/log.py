"""A partition's log: append, find, slice, trim.

Pushes that meet in a forming commit join its segment and take its time. Sealing turns the payloads of a
forming segment into a named body. Messages never change after that.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence, Set as AbstractSet
from itertools import accumulate, chain, islice
from operator import attrgetter

from msgspec import Struct
from msgspec.structs import replace

from forebay.core.bounds import SEGMENT_BYTES_MAX
from forebay.core.errors import Damaged
from forebay.core.log.bodies import OFFSET_BYTES, body_ends, body_span, pack_body
from forebay.core.log.runs import pack_runs
from forebay.core.log.slices import SegmentSlice
from forebay.core.state import PLAIN, Attributes, Log, Run, Segment


def append(
    log: Log,
    payloads: list[bytes],
    lengths: list[int],
    size: int,
    now: int,
    attributes: Attributes = PLAIN,
) -> int:
    """Append ``payloads`` (``size`` bytes in total); return the offset of the first."""
    first = log.end
    forming = log.forming
    count = len(payloads)
    log.size += size
    weight = forming.heavy + attributes.weight if forming is not None and attributes is not PLAIN else 0
    if (
        forming is not None
        and body_bytes(forming.count + count, forming.size + size) + weight <= SEGMENT_BYTES_MAX
    ):
        assert forming.payloads is not None
        assert forming.lengths is not None
        forming.payloads += payloads
        forming.lengths += lengths
        if forming.marks is not None or attributes is not PLAIN:
            _mark(log, forming, count, attributes)
        forming.count += count
        forming.size += size
        log.end = first + count
    elif count == 1 or body_bytes(count, size) <= SEGMENT_BYTES_MAX:
        # Lists of its own: later pushes are added to them.
        _start_segment(log, payloads[:], lengths[:], size, now, attributes)
    else:
        for start, end, part_size in split(lengths):
            _start_segment(log, payloads[start:end], lengths[start:end], part_size, now, attributes)
    return first


def _mark(log: Log, forming: Segment, count: int, attributes: Attributes) -> None:
    """Mark the attributes of ``count`` messages that are about to join a forming segment."""
    end = forming.count + count
    marks = forming.marks
    if marks is None:
        forming.marks = marks = [(forming.count, PLAIN)] if forming.count else []
        log.mixed += 1
    if marks and marks[-1][1] == attributes:
        marks[-1] = (end, attributes)
    else:
        marks.append((end, attributes))
        forming.heavy += attributes.weight
    if not attributes.in_line:
        forming.aside += count


def body_bytes(count: int, size: int) -> int:
    """Return the bytes of a body of ``count`` payloads of ``size`` bytes in total."""
    return OFFSET_BYTES * (count + 1) + size


def _start_segment(
    log: Log, payloads: list[bytes], lengths: list[int], size: int, now: int, attributes: Attributes
) -> None:
    """Start a new forming segment; the one before it stays until it is sealed."""
    forming = log.forming
    if forming is not None:
        now = forming.created_at
    elif now < log.time:
        now = log.time
    count = len(payloads)
    segment = Segment(log.end, 0, size, now, payloads=payloads, lengths=lengths)
    if attributes is not PLAIN:
        _mark(log, segment, count, attributes)
    segment.count = count
    log.segments.append(segment)
    log.bases.append(log.end)
    log.forming = segment
    log.time = now
    log.end += count


def split(lengths: list[int]) -> Iterator[tuple[int, int, int]]:
    """Yield (start, end, bytes) of parts that fit a segment; an oversized payload is a part alone."""
    ends = list(accumulate(lengths, initial=0))
    start = 0
    while start < len(lengths):
        # The last end at which the part still fits: its size grows with every payload.
        fitting = bisect_right(
            range(start + 1, len(ends)),
            SEGMENT_BYTES_MAX,
            key=lambda end: body_bytes(end - start, ends[end] - ends[start]),
        )
        end = start + max(fitting, 1)
        yield start, end, ends[end] - ends[start]
        start = end


def adopt(log: Log, segment: Segment) -> None:
    """Append a sealed segment. No segment may be forming."""
    assert log.forming is None, "what forms is sealed first"
    assert segment.base == log.end, "a log has no gaps"
    log.segments.append(segment)
    log.bases.append(segment.base)
    log.end = segment.end
    log.size += segment.size
    log.mixed += segment.mixed
    log.time = segment.last_at


def seal(segment: Segment, body_name: int) -> bytes:
    """Give a forming segment its name and its body, once."""
    assert segment.payloads is not None, "a segment is sealed once"
    assert segment.lengths is not None
    segment.body = pack_body(segment.payloads, segment.lengths)
    segment.payloads = segment.lengths = None
    segment.body_name = body_name
    if segment.marks is not None:
        begins = chain((0,), (end for end, _ in segment.marks))
        runs = [
            Run(end - begin, segment.created_at, attributes)
            for begin, (end, attributes) in zip(begins, segment.marks, strict=False)
        ]
        packed = pack_runs(runs, segment.created_at)
        segment.spread, segment.sets, segment.which = packed.spread, packed.sets, packed.which
        segment.marks = None
    return segment.body


def find(log: Log, offset: int) -> int:
    """Return the position of the segment that holds ``offset``."""
    return bisect_right(log.bases, offset) - 1


def pieces(log: Log, first: int, count: int, position: int) -> Iterator[SegmentSlice]:
    """Yield slices of ``count`` messages from ``first``; ``position`` is the segment of the first."""
    while count:
        segment = log.segments[position]
        start = first - segment.base
        taken = min(count, segment.count - start)
        if not segment.spread:
            yield SegmentSlice(segment, start, taken, segment.created_at)
        else:
            yield from by_run(segment, start, taken)
        first += taken
        count -= taken
        position += 1


def parts(log: Log, first: int, count: int, position: int) -> Iterator[SegmentSlice]:
    """Like ``pieces``, but cut only where a segment ends; the time is that of the segment."""
    while count:
        segment = log.segments[position]
        start = first - segment.base
        taken = min(count, segment.count - start)
        yield SegmentSlice(segment, start, taken, segment.created_at)
        first += taken
        count -= taken
        position += 1


def by_run(segment: Segment, start: int, count: int) -> Iterator[SegmentSlice]:
    """Yield slices of ``count`` messages of a segment from its ``start``-th, cut where the time changes."""
    ends, times = segment.run_ends, segment.run_times
    at, end = bisect_right(ends, start), start + count
    while start < end:
        time = times[at]
        while ends[at] < end and times[at + 1] == time:
            at += 1
        high = min(ends[at], end)
        yield SegmentSlice(segment, start, high - start, segment.created_at + time)
        start = high
        at += 1


def attributes_at(log: Log, offset: int) -> Attributes:
    """Return the attributes of a message."""
    if not log.mixed:
        return PLAIN
    segment = log.segments[find(log, offset)]
    return segment.run_at(offset - segment.base)[2] if segment.mixed else PLAIN


class Stretch(Struct, frozen=True, gc=False):
    """Consecutive messages with the same attributes."""

    first: int
    end: int
    attributes: Attributes


def stretches(log: Log, first: int, end: int) -> Iterator[Stretch]:
    """Yield the messages of [first, end), cut at least where attributes change."""
    if first >= end:
        return
    if not log.mixed:
        yield Stretch(first, end, PLAIN)
        return
    position = find(log, first)
    while first < end:
        segment = log.segments[position]
        if not segment.mixed:
            high = min(segment.end, end)
            yield Stretch(first, high, PLAIN)
        else:
            run_end, _, attributes = segment.run_at(first - segment.base)
            high = min(segment.base + run_end, end)
            yield Stretch(first, high, attributes)
        first = high
        if first == segment.end:
            position += 1


def created_at(log: Log, offset: int) -> int:
    """Return when a kept message was pushed."""
    segment = log.segments[find(log, offset)]
    return segment.run_at(offset - segment.base)[1]


def in_line(log: Log, first: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of [first, end) that are in line, cut where attributes change.

    A segment without in-line messages is skipped in one step.
    """
    if first >= end:
        return
    if not log.mixed:
        yield first, end
        return
    position = find(log, first)
    while first < end:
        segment = log.segments[position]
        high = min(segment.end, end)
        if not segment.mixed:
            yield first, high
        elif segment.aside < segment.count:
            run_end, _, attributes = segment.run_at(first - segment.base)
            high = min(segment.base + run_end, end)
            if attributes.in_line:
                yield first, high
        first = high
        if first == segment.end:
            position += 1


def count_aside(log: Log, first: int) -> int:
    """Count messages from ``first`` on that are not in line."""
    if not log.mixed or first >= log.end:
        return 0
    position = find(log, first)
    segment = log.segments[position]
    if first == segment.base:
        here = segment.aside
    else:
        parts = stretches(log, first, segment.end) if segment.aside else ()
        here = sum(part.end - part.first for part in parts if not part.attributes.in_line)
    return here + sum(each.aside for each in log.segments[position + 1 :])


def piece_bytes(piece: SegmentSlice) -> int:
    """Return the payload bytes of a slice, estimated if only the header is in memory."""
    segment = piece.segment
    if piece.count == segment.count:
        return segment.size
    if segment.body is not None:
        return body_span(segment.body, piece.start, piece.count)
    if segment.lengths is not None:
        return sum(segment.lengths[piece.start : piece.start + piece.count])
    return segment.size * piece.count // segment.count


def fit(piece: SegmentSlice, size: int) -> SegmentSlice:
    """Cut a slice to at most ``size`` bytes, but at least one message.

    The lengths of a header-only segment are in its body: here each message counts for the average, so the
    result may be off by less than a segment.
    """
    segment, start, count = piece.segment, piece.start, piece.count
    if segment.body is not None:
        ends: Sequence[int] = body_ends(segment.body, start, count)
    elif segment.lengths is not None:
        ends = list(accumulate(segment.lengths[start : start + count], initial=0))
    else:
        mean = max(segment.size // segment.count, 1)
        ends = range(0, mean * (count + 1), mean)
    fitting = max(bisect_right(ends, ends[0] + size) - 1, 1)
    return piece if fitting >= count else SegmentSlice(segment, start, fitting, piece.created_at)


def offset_at(log: Log, at: int) -> int:
    """Return the offset of the first message pushed at or after ``at``; the log's end if there is none."""
    position = bisect_left(log.segments, at, key=lambda segment: segment.last_at)
    if position == len(log.segments):
        return log.end
    segment = log.segments[position]
    if not segment.spread:
        return segment.base
    run = bisect_left(segment.run_times, at - segment.created_at)
    return segment.base + (segment.run_ends[run - 1] if run else 0)


def has(log: Log, offset: int) -> bool:
    """Whether a message is kept."""
    if offset >= log.first:
        return offset < log.end
    position = find(log, offset) if log.islands else -1
    return position >= 0 and offset < log.segments[position].end


def has_any(log: Log, first: int, end: int) -> bool:
    """Whether any message of [first, end) is kept."""
    if end > log.first:
        return first < log.end
    position = find(log, end - 1) if log.islands else -1
    return position >= 0 and first < log.segments[position].end


def count_kept(log: Log) -> int:
    """Count the kept messages."""
    return log.end - log.first + log.strays


def kept_spans(log: Log) -> Iterator[tuple[int, int]]:
    """Yield the spans of kept offsets."""
    for segment in log.segments[: log.islands]:
        yield segment.base, segment.end
    yield log.first, log.end


def trim_end(log: Log, before: int) -> int:
    """Return where the log would start if trimmed up to ``before``: whole sealed segments only."""
    end = log.first
    for segment in islice(log.segments, log.islands, None):
        if segment.end > before or segment.payloads is not None:
            break
        end = segment.end
    return end


def trim(log: Log, before: int, wanted_bases: AbstractSet[int] = frozenset()) -> list[Segment]:
    """Drop the sealed segments that end at or below ``before``; return them.

    Segments in ``wanted_bases``, by first offset, are kept as islands.
    """
    begin = end = log.islands
    gone: list[Segment] = []
    staying: list[Segment] = []
    for segment in islice(log.segments, begin, None):
        if segment.end > before or segment.payloads is not None:
            break
        (staying if segment.base in wanted_bases else gone).append(segment)
        end += 1
    if end > begin:
        log.first = log.segments[end - 1].end
        log.segments[begin:end] = staying
        log.bases[begin:end] = [segment.base for segment in staying]
        log.islands += len(staying)
        log.strays += sum(segment.count for segment in staying)
        _forget(log, gone)
    return gone


def sink(log: Log, gone: list[Segment]) -> None:
    """Drop islands."""
    bases = {segment.base for segment in gone}
    kept = [segment for segment in log.segments[: log.islands] if segment.base not in bases]
    log.segments[: log.islands] = kept
    log.bases[: log.islands] = [segment.base for segment in kept]
    log.islands = len(kept)
    log.strays -= sum(segment.count for segment in gone)
    _forget(log, gone)


def _forget(log: Log, gone: list[Segment]) -> None:
    log.dropped += len(gone)
    log.size -= sum(segment.size for segment in gone)
    log.mixed -= sum(segment.mixed for segment in gone)


def is_island(log: Log, segment: Segment) -> bool:
    """Whether a segment is still an island."""
    position = find(log, segment.base)
    return 0 <= position < log.islands and log.segments[position].body_name == segment.body_name


def carve(log: Log, island: Segment, parts: list[Segment]) -> bool:
    """Replace an island by its parts, if it is still there."""
    if not is_island(log, island):
        return False
    position = find(log, island.base)
    log.segments[position : position + 1] = parts
    log.bases[position : position + 1] = [part.base for part in parts]
    log.islands += len(parts) - 1
    log.strays += sum(part.count for part in parts) - island.count
    log.size += sum(part.size for part in parts) - island.size
    log.mixed += sum(part.mixed for part in parts) - island.mixed
    return True


def drop_body(log: Log, segment: Segment) -> None:
    """Drop the body of a sealed segment from memory, if the log still has the segment."""
    position = find(log, segment.base)
    if position >= 0 and log.segments[position] is segment:
        log.segments[position] = replace(segment, body=None)


_name = attrgetter("body_name")


def put_together(log: Log, merged: Segment, parts: list[Segment]) -> bool:
    """Replace ``parts`` by ``merged``, if they are all still there."""
    position = find(log, merged.base)
    places = slice(position, position + len(parts))
    if position < 0 or list(map(_name, log.segments[places])) != list(map(_name, parts)):
        return False
    log.segments[places] = [merged]
    log.bases[places] = [merged.base]
    log.mixed += merged.mixed - sum(part.mixed for part in parts)
    return True


def load(first: int, segments: list[Segment]) -> Log:
    """Return a log of header-only segments in offset order."""
    log = Log(first)
    reached = 0
    for segment in segments:
        if segment.base < first:
            if segment.base < reached or segment.end > first:
                raise Damaged(f"the segment at offset {segment.base} overlaps another")
            log.islands += 1
            log.strays += segment.count
        else:
            if segment.base != log.end:
                raise Damaged(f"offsets {log.end} to {segment.base} have no segment")
            log.end = segment.end
        reached = segment.end
        log.segments.append(segment)
        log.bases.append(segment.base)
        log.size += segment.size
        log.mixed += segment.mixed
        log.time = segment.last_at
    return log
