"""Sorted rows of integers, packed: the storage of schedules with millions of runs.

A row takes the bytes of its columns and no more. Find, add and remove take about a microsecond at any size:
rows lie in chunks, and every step within a chunk is a bisection or a memmove in C.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

CHUNK = 1_024
"""Rows of a full chunk."""
LEAST = -(1 << 63)
MOST = (1 << 63) - 1

Row = tuple[int, ...]


class Table:
    """Rows sorted by their first two columns, which together are unique.

    >>> table = Table("qqI")
    >>> for row in [(20, 7, 1), (10, 9, 3), (10, 5, 2)]: table.add(row)
    >>> table.head(), len(table), list(table.since(10, 6)), table.below(20)
    ((10, 5, 2), 3, [(10, 9, 3), (20, 7, 1)], (10, 9, 3))
    >>> table.remove(10, 5), table.head()
    ((10, 5, 2), (10, 9, 3))
    """

    __slots__ = ("_chunks", "_lasts", "_types", "size")

    def __init__(self, types: str) -> None:
        """``types`` has one letter of ``array`` a column."""
        self._types = types
        self._chunks: list[list[array[int]]] = []
        """Columns of each chunk; no chunk is empty."""
        self._lasts: list[Row] = []
        """The first two columns of the last row of each."""
        self.size = 0
        """Rows in it."""

    def __len__(self) -> int:
        return self.size

    def first(self) -> int:
        """Return the first column of the first row; there must be one."""
        return self._chunks[0][0][0]

    def head(self) -> Row:
        """Return the first row; there must be one."""
        return tuple([column[0] for column in self._chunks[0]])

    def tail(self) -> Row:
        """Return the last row; there must be one."""
        return tuple([column[-1] for column in self._chunks[-1]])

    def below(self, first: int, second: int = LEAST) -> Row | None:
        """Return the last row before (first, second), if there is one."""
        at, place = self._find(first, second)
        if place:
            return self._row(at, place - 1)
        return self._row(at - 1, -1) if at > 0 else None

    def upto(self, first: int, second: int = MOST) -> Row | None:
        """Return the last row at or before (first, second), if there is one."""
        return self.below(first, second + 1) if second < MOST else self.below(first + 1)

    def above(self, first: int) -> Row | None:
        """Return the first row whose first column is above ``first``, if there is one."""
        at, place = self._find(first + 1, LEAST)
        if at < len(self._chunks) and place < len(self._chunks[at][0]):
            return self._row(at, place)
        return None

    def since(self, first: int, second: int = LEAST) -> Iterator[Row]:
        """Yield the rows from (first, second) on. Nothing may change meanwhile."""
        at, place = self._find(first, second)
        for columns in self._chunks[at:]:
            yield from zip(*(column[place:] for column in columns), strict=True)
            place = 0

    def __iter__(self) -> Iterator[Row]:
        return self.since(LEAST)

    def total(self, before: int, column: int) -> int:
        """Sum a column over the rows whose first column is below ``before``."""
        at, place = self._find(before, LEAST)
        if not self._chunks:
            return 0
        whole = sum(sum(columns[column]) for columns in self._chunks[:at])
        return whole + sum(self._chunks[at][column][:place])

    def count(self, first: int, end: int) -> int:
        """Count rows whose first column is in [first, end)."""
        if not self._chunks or first >= end:
            return 0
        low, high = self._find(first, LEAST), self._find(end, LEAST)
        between = sum(len(columns[0]) for columns in self._chunks[low[0] : high[0]])
        return between - low[1] + high[1]

    def add(self, row: Row) -> None:
        key = row[:2]
        self.size += 1
        lasts = self._lasts
        if not lasts or key > lasts[-1]:
            self._append(row, key)
            return
        at, place = self._find(*key)
        columns = self._chunks[at]
        assert (columns[0][place], columns[1][place]) != key, "no row is added twice"
        for column, value in zip(columns, row, strict=True):
            column.insert(place, value)
        if len(columns[0]) > CHUNK:
            half = CHUNK // 2
            self._chunks.insert(at + 1, [column[half:] for column in columns])
            for column in columns:
                del column[half:]
            self._lasts.insert(at, (columns[0][-1], columns[1][-1]))

    def _append(self, row: Row, key: Row) -> None:
        columns = self._chunks[-1] if self._chunks else None
        if columns is not None and len(columns[0]) < CHUNK:
            if len(columns) == 3:  # what schedules have: no loop
                one, two, three = columns
                one.append(row[0])
                two.append(row[1])
                three.append(row[2])
            elif len(columns) == 4:
                one, two, three, four = columns
                one.append(row[0])
                two.append(row[1])
                three.append(row[2])
                four.append(row[3])
            else:
                for column, value in zip(columns, row, strict=True):
                    column.append(value)
            self._lasts[-1] = key
        else:
            self._chunks.append([array(kind, (value,)) for kind, value in zip(self._types, row, strict=True)])
            self._lasts.append(key)

    def remove(self, first: int, second: int) -> Row:
        """Remove and return a row; it must exist."""
        at = place = 0
        columns = self._chunks[0]
        if columns[0][0] != first or columns[1][0] != second:  # most often it is the head
            at, place = self._find(first, second)
            columns = self._chunks[at]
        row = tuple([column[place] for column in columns])
        assert row[:2] == (first, second), "only what is there is removed"
        for column in columns:
            del column[place]
        self.size -= 1
        left = len(columns[0])
        if not left:
            del self._chunks[at], self._lasts[at]
        elif place == left:
            self._lasts[at] = (columns[0][-1], columns[1][-1])
        return row

    def _row(self, at: int, place: int) -> Row:
        return tuple([column[place] for column in self._chunks[at]])

    def _find(self, first: int, second: int) -> tuple[int, int]:
        """Return chunk and index of the first row at or past (first, second), or behind the last row."""
        at = bisect_left(self._lasts, (first, second))
        if at == len(self._lasts):
            return (at - 1, len(self._chunks[-1][0])) if at else (0, 0)
        columns = self._chunks[at]
        column = columns[0]
        place = bisect_left(column, first)
        if place < len(column) and column[place] == first and columns[1][place] < second:
            place = bisect_left(columns[1], second, place, bisect_right(column, first, place))
        return at, place
