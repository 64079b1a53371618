"""Segments and the log they form."""

from bisect import bisect_right
from itertools import chain, repeat

from msgspec import Struct

from forebay.core.state.attributes import PLAIN, Attributes, count_sets, set_at


class Run(Struct, frozen=True, gc=False, array_like=True):
    """Consecutive messages that share a time and attributes."""

    count: int
    """Messages in the run."""
    created_at: int
    """When they were pushed; never before the previous run."""
    attributes: Attributes = PLAIN


class Segment(Struct, gc=False, eq=False):
    """Consecutive messages of a log: a header (this), and a body with the payloads, stored apart.

    A sealed segment never changes, except that its body may be read back. To drop a body from memory, the log
    replaces the segment by a header-only copy: a reply that holds the old segment still has the body.
    """

    base: int
    """Offset of its first message."""
    count: int
    """Messages in it."""
    size: int
    """Payload bytes in it."""
    created_at: int
    """When its first message was pushed."""
    body_name: int = 0
    """(epoch, counter) of the body, given when the segment is sealed."""
    spread: bytes = b""
    """Its runs, if there are several: end and time of each, two u32."""
    sets: bytes = b""
    """Distinct sets of attributes of its runs, packed; empty if none has any."""
    which: bytes = b""
    """Index into ``sets`` of each run, a u32; empty if all have the first."""
    aside: int = 0
    """Messages in it that are not in line."""
    payloads: list[bytes] | None = None
    """*memory* The payloads of a segment that is still forming; None once it is sealed."""
    lengths: list[int] | None = None
    """*memory* Their lengths."""
    marks: list[tuple[int, Attributes]] | None = None
    """*memory* (end, attributes) of each run of a forming segment; None if none has any."""
    heavy: int = 0
    """*memory* Bytes of headers and tags in ``marks``."""
    body: bytes | None = None
    """*memory* The body, if it is in memory; a header-only segment has neither this nor ``payloads``."""

    @property
    def end(self) -> int:
        return self.base + self.count

    @property
    def runs(self) -> tuple[Run, ...]:
        """Its runs in offset order; their counts add up to ``count``."""
        count = count_sets(self.sets) if self.sets else 0
        sets = [set_at(self.sets, at) for at in range(count)] or [PLAIN]
        if not self.spread:
            return (Run(self.count, self.created_at, sets[0]),)
        which = memoryview(self.which).cast("I") if self.which else repeat(0)
        begins = chain((0,), self.run_ends)
        ends = zip(begins, self.run_ends, self.run_times, which, strict=False)
        return tuple(Run(end - begin, self.created_at + later, sets[at]) for begin, end, later, at in ends)

    def run_at(self, start: int) -> tuple[int, int, Attributes]:
        """Return end, time and attributes of the run of its ``start``-th message."""
        if self.marks is not None:
            at = bisect_right(self.marks, start, key=_end)
            end, attributes = self.marks[at]
            return end, self.created_at, attributes
        sets = self.sets
        if not self.spread:
            return self.count, self.created_at, set_at(sets, 0) if sets else PLAIN
        pairs = memoryview(self.spread).cast("I")
        at = bisect_right(pairs[::2], start)
        which = memoryview(self.which).cast("I")[at] if self.which else 0
        attributes = set_at(sets, which) if sets else PLAIN
        return pairs[2 * at], self.created_at + pairs[2 * at + 1], attributes

    @property
    def mixed(self) -> bool:
        """Whether any of its messages has attributes."""
        return bool(self.sets) or self.marks is not None

    @property
    def run_ends(self) -> "memoryview[int]":
        """End of each run of a merged segment, relative to its first message."""
        return memoryview(self.spread).cast("I")[::2]

    @property
    def run_times(self) -> "memoryview[int]":
        """Time of each run of a merged segment, in ms after its first message."""
        return memoryview(self.spread).cast("I")[1::2]

    @property
    def last_at(self) -> int:
        """When its last message was pushed."""
        return self.created_at + self.run_times[-1] if self.spread else self.created_at

    @property
    def weight(self) -> int:
        """Bytes that it counts for when settled; never 0, so that empty payloads are swept too."""
        return self.size or 1

    @property
    def present(self) -> bool:
        return self.body is not None or self.payloads is not None


def _end(mark: tuple[int, Attributes]) -> int:
    return mark[0]


class Log:
    """The segments of a partition, oldest first. *memory*: rebuilt from the headers.

    From ``first`` on they have no gaps. Below it there are islands: segments kept for single unsettled
    messages, long after the log moved on.
    """

    __slots__ = (
        "bases",
        "dropped",
        "end",
        "first",
        "forming",
        "islands",
        "mixed",
        "segments",
        "size",
        "strays",
        "time",
    )

    def __init__(self, first: int) -> None:
        self.first = first
        """Offset of the oldest message still kept, but for islands."""
        self.islands = 0
        """Number of islands: the leading ``segments``, below ``first``."""
        self.strays = 0
        """Messages in islands."""
        self.end = first
        """Offset the next message will get."""
        self.size = 0
        """Payload bytes kept."""
        self.time = 0
        """Time of the newest message; later messages are never earlier."""
        self.segments: list[Segment] = []
        self.bases: list[int] = []
        """``base`` of each segment, for bisection in C."""
        self.dropped = 0
        """Segments dropped so far: position + dropped names a segment while it lives."""
        self.mixed = 0
        """Segments that have messages with attributes."""
        self.forming: Segment | None = None
        """The segment that pushes may still join; sealed with the commit."""
