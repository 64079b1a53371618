"""A partition, its retention, and the progress of its messages."""

from collections.abc import Iterator

from msgspec import Struct

from forebay.core.state.jobs import Tie
from forebay.core.state.segment import Log
from forebay.core.structures.spans import overlapping
from forebay.core.structures.table import Table

SPAN_MAX = 1_024
"""Messages per row of dependents, so that rows over an offset start at most this far before it."""


class Mark(Struct, frozen=True, gc=False, array_like=True):
    """Retention mark: every group had settled everything below an offset at an instant."""

    offset: int
    at: int


class Progress(Struct, frozen=True, gc=False, array_like=True):
    """Progress of a message, as its consumer reports it."""

    percent: int
    message: str
    at: int


class Retention(Struct, frozen=True, gc=False, array_like=True):
    """Retention options of a partition that differ from its queue's."""

    retention_ms: int | None = None
    completed_retention_ms: int | None = None
    partition_retention_ms: int | None = None


class Partition(Struct, eq=False, kw_only=True):
    """A part of a queue: an append-only log under numbers that are never reused."""

    key: int
    """Its first number: names the partition in every record key."""
    name: str
    numbers: list[tuple[int, int]]
    """Every number it ever took, with the first offset under it."""
    log: Log
    """``log.first`` is stored here, the segments as records of their own."""
    marks: list[Mark]
    """Retention marks, for completed_retention_ms."""
    withdrawn: Table
    """(first, count, at): cancelled for every present and future group. Each is a record of its own."""
    progress: dict[int, Progress]
    """By offset, latest report last. Each is a record of its own."""
    successors: Table
    """(offset, offset of the successor) of updated messages. Each is a record of its own."""
    parked: Table
    """(first, count, unmet dependencies) of parked runs. Each is a record of its own."""
    dependents: Table
    """(first, id of the first dependent, count, number of dependents): who waits for messages [first, first +
    count), at most ``SPAN_MAX`` per row. Each is a record of its own."""
    spans: Table
    """*memory* (first, id of the first dependent) of rows longer than one message."""
    lengths: Table
    """*memory* (first, count, number of rows) of such rows: how far they reach, however many there are."""
    met: dict[tuple[int, int], int]
    """Met messages of such a row, by (first, dependent): bit i is set when ``first + i`` is met. Stored in
    the record of the row."""
    led_to: dict[int, int]
    """*memory* ``successors`` inverted."""
    ties: dict[int, Tie]
    """By offset. Each is a record of its own."""
    job_ids: dict[int, str]
    """Custom ids of messages, by offset. Each is a record of its own."""
    transactions: dict[str, tuple[int, int]]
    """*memory* Transaction id to offset and time, within the dedup window."""
    taken: dict[int, tuple[int, list[tuple[int, str]]]]
    """Time and (offset, transaction id) pairs of pushes, by first offset, oldest first. Each is a record of
    its own."""
    parked_messages: int = 0
    """*memory* Messages in ``parked``."""
    links_count: int = 0
    """*memory* Ties and rows of dependents: 0 if no end of a message has consequences."""
    lane: bool = False
    """Whether each group may lease only one of its messages at a time."""
    retention: Retention = Retention()
    """Options that differ from its queue's."""
    emptied_at: int = 0
    """When a sweep first found it empty; 0 if it is not."""
    os_marked: bool = False
    """Power loss may take back confirmed ids: it takes a fresh number after an unclean stop."""
    island_at: int = 0
    """*memory* Island that the next sweep checks first."""
    islands_left: int = 0
    """*memory* Islands still to be checked since something was settled."""
    settled_to: int = 0
    """*memory* Up to where ``settled_bytes`` has been counted."""
    settled_bytes: int = 0
    """*memory* Payload bytes of segments that every group has settled."""
    unmerged: int = 0
    """*memory* Segments sealed since the last check for merges."""
    merged_to: list[int]
    """*memory* How far each tier of merging has checked."""
    dirty: bool = False
    """*memory* Changed since the last seal."""

    def parked_over(self, first: int, end: int) -> list[tuple[int, ...]]:
        """Return the parked runs that overlap [first, end)."""
        return list(overlapping(self.parked, first, end)) if self.parked_messages else []

    def waiting_over(self, first: int, end: int) -> list[tuple[int, ...]]:
        """Return the rows of dependents of messages in [first, end)."""
        found = self.rows_reaching_over(first)
        for row in self.dependents.since(first) if self.dependents.size else ():
            if row[0] >= end:
                break
            found.append(row)
        return found

    def waited_for(self, first: int, end: int) -> set[int]:
        """Return the messages of [first, end) that others wait for: a step for each of them, and for each of
        the ``SPAN_MAX`` before them, however many wait."""
        found: set[int] = set()
        for low, high in self._waited_for(first, end):
            found.update(range(low, high))
        return found

    def is_waited_for(self, first: int, end: int) -> bool:
        """Whether others wait for any message of [first, end)."""
        return next(self._waited_for(first, end), None) is not None

    def _waited_for(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the stretches of [first, end) that others wait for, which may overlap."""
        if not self.dependents.size:
            return
        row = self.dependents.above(first - 1)
        while row is not None and row[0] < end:
            yield row[0], row[0] + 1
            row = self.dependents.above(row[0])
        reached = first
        row = self.lengths.above(first - SPAN_MAX) if self.lengths.size else None
        while row is not None and row[0] < end:
            longest = self.lengths.below(row[0] + 1)
            assert longest is not None
            high = min(longest[0] + longest[1], end)
            if high > reached:
                yield max(longest[0], reached), high
                reached = high
            row = self.lengths.above(row[0])

    def add_span(self, first: int, dependent: int, count: int) -> None:
        """Index a row of dependents longer than one message."""
        self.spans.add((first, dependent))
        self._count_span(first, count, 1)

    def remove_span(self, first: int, dependent: int, count: int) -> None:
        self.spans.remove(first, dependent)
        self._count_span(first, count, -1)

    def _count_span(self, first: int, count: int, change: int) -> None:
        known = self.lengths.upto(first, count)
        if known is not None and known[:2] == (first, count):
            self.lengths.remove(first, count)
            change += known[2]
        if change:
            self.lengths.add((first, count, change))

    def rows_reaching_over(self, offset: int) -> list[tuple[int, ...]]:
        """Return the rows of dependents that start before an offset and reach over it."""
        if not self.spans.size:
            return []
        found: list[tuple[int, ...]] = []
        for first, dependent in self.spans.since(max(offset - SPAN_MAX + 1, 0)):
            if first >= offset:
                break
            row = next(self.dependents.since(first, dependent))
            if first + row[2] > offset:
                found.append(row)
        return found
