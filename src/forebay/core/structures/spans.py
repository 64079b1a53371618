"""Intervals of offsets: union, difference, and the rows of a table that overlap one."""

from collections.abc import Iterable, Iterator, Mapping

from forebay.core.structures.table import Row, Table

Span = tuple[int, int]
"""Offsets [first, end)."""


def outside(table: Table, first: int, end: int) -> Iterator[Span]:
    """Yield the parts of [first, end) that no row (first, count, ...) of a table covers."""
    before = table.below(first + 1)
    if before is not None:
        first = max(first, before[0] + before[1])
    for row in table.since(first) if table else ():
        if row[0] >= end or first >= end:
            break
        if row[0] > first:
            yield first, row[0]
        first = row[0] + row[1]
    if first < end:
        yield first, end


def union(parts: list[Span]) -> list[Span]:
    """Return spans without overlap, in order.

    >>> union([(5, 7), (1, 3), (2, 4), (7, 8)])
    [(1, 4), (5, 8)]
    """
    found: list[Span] = []
    for low, high in sorted(parts):
        if found and low <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return found


def offsets_in(offsets: Mapping[int, object], first: int, end: int) -> list[int]:
    """Return the offsets that are in [first, end), in order."""
    if len(offsets) < end - first:
        return sorted(offset for offset in offsets if first <= offset < end)
    return list(filter(offsets.__contains__, range(first, end)))


def covered(table: Table, first: int, end: int) -> Iterator[Span]:
    """Yield the parts of [first, end) that rows (first, count, ...) of a table cover."""
    return ((max(row[0], first), min(row[0] + row[1], end)) for row in overlapping(table, first, end))


def overlapping(table: Table, first: int, end: int) -> Iterator[Row]:
    """Yield the rows (first, count, ...) of a table that reach into [first, end), in order.

    The rows must not overlap each other, and the table must not change meanwhile.
    """
    if not table.size:
        return
    before = table.upto(first)
    if before is not None and before[0] + before[1] > first:
        yield before
        if before[0] + before[1] >= end:
            return  # most often one row covers all of it
    for row in table.since(first + 1):
        if row[0] >= end:
            return
        yield row


def clipped(spans: Iterable[Span], first: int, end: int) -> Iterator[Span]:
    """Yield spans cut to [first, end)."""
    return ((max(low, first), min(high, end)) for low, high in spans)
