"""Which rows a micro-batch and each of its tasks read: plain arithmetic on offsets.

An offset of a stream is what Spark stores in its checkpoint and shows in its progress:

    {"orders": {"default": 1000, "eu": 70},
     "#": {"orders": {"default": 64, "eu": 129}}, "#new": {"orders": {"eu": 0}}}

It says how far each partition of each queue has been read; under ``#``, the first number of each partition,
which identifies it (one that is deleted and made again under its name has another); and under ``#new``, where
new partitions begin. No queue has such a name.
"""

from collections.abc import Iterable, Iterator
from math import ceil
from typing import Any

from msgspec import Struct

Offsets = dict[str, dict[str, Any]]
Place = tuple[str, str]
"""Queue and partition."""
IDENTITY = "#"
NEW = "#new"
BEHIND = "#behind"
"""Key of how far behind a query is; only in reports."""


class Extent(Struct, frozen=True):
    """What a partition holds right now."""

    key: int
    """Its first number, which identifies it."""
    first: int
    end: int
    size: int
    """Payload bytes between them."""
    at: int | None = None
    """The offset at the requested time."""
    since: int | None = None
    """Push time of the first message at or after the requested offset."""

    @property
    def mean(self) -> float:
        """Mean bytes per message."""
        return max(self.size / max(self.end - self.first, 1), 1.0)


Extents = dict[Place, Extent]


class Range(Struct, frozen=True):
    """Rows [start, end) of a partition."""

    queue: str
    partition: str
    start: int
    end: int
    key: int = 0
    """The partition's first number, which identifies it."""

    @property
    def rows(self) -> int:
        return self.end - self.start


def offsets_of(
    ends: dict[Place, int], keys: dict[Place, int], new: dict[Place, int] | None = None
) -> Offsets:
    """Return an offset of a stream: ends by place, identities of partitions, and where new ones begin."""
    found = _nested(ends)
    found[IDENTITY] = _nested({place: key for place, key in keys.items() if place in ends})
    if new:
        found[NEW] = _nested(new)
    return found


def _nested(by_place: dict[Place, int]) -> Offsets:
    found: Offsets = {}
    for (queue, partition), value in sorted(by_place.items()):
        found.setdefault(queue, {})[partition] = value
    return found


def _flat(nested: dict[str, dict[str, int]]) -> dict[Place, int]:
    return {(queue, name): value for queue, names in nested.items() for name, value in names.items()}


def ends_of(offsets: Offsets) -> dict[Place, int]:
    """Return the ends in an offset of a stream, by place."""
    return _flat({queue: names for queue, names in offsets.items() if not queue.startswith(IDENTITY)})


def keys_of(offsets: Offsets) -> dict[Place, int]:
    """Return the identities of the partitions in an offset of a stream."""
    return _flat(offsets.get(IDENTITY, {}))


def new_of(offsets: Offsets) -> dict[Place, int]:
    """Return where new partitions begin."""
    return _flat(offsets.get(NEW, {}))


def limited(
    starts: dict[Place, int], ends: dict[Place, int], weights: dict[Place, float], most: float
) -> None:
    """Lower ``ends`` until the rows between weigh at most ``most``, but leave at least one row.

    Each place gets its share of what it has, so that none falls behind.

    >>> ends = {("q", "a"): 100, ("q", "b"): 300}
    >>> limited({}, ends, {}, 40); ends
    {('q', 'a'): 10, ('q', 'b'): 30}
    """
    waiting = {place: end - starts.get(place, 0) for place, end in ends.items() if end > starts.get(place, 0)}
    total = sum(rows * weights.get(place, 1.0) for place, rows in waiting.items())
    if total <= most:
        return
    left = most
    for place, rows in waiting.items():
        weight = weights.get(place, 1.0)
        share = int(most * (rows * weight / total) / weight)
        ends[place] = starts.get(place, 0) + share
        left -= share * weight
    # Hand out the rest left by rounding, a row at a time; and one row in any case.
    for place, rows in waiting.items():
        weight = weights.get(place, 1.0)
        taken = ends[place] - starts.get(place, 0)
        if taken < rows and (left >= weight or all(ends[each] == starts.get(each, 0) for each in waiting)):
            ends[place] += 1
            left -= weight


def tasks(ranges: Iterable[Range], means: dict[Place, float], size: float, least: int) -> list[list[Range]]:
    """Split ranges into tasks of equal size, about ``size`` bytes at most, across places if needed.

    There are ``least`` tasks at least, if there are that many rows.

    >>> [[(each.partition, each.start, each.end) for each in task] for task in tasks(
    ...     [Range("q", "a", 0, 5), Range("q", "b", 0, 2), Range("q", "c", 0, 2)], {}, 4, 1)]
    [[('a', 0, 3)], [('a', 3, 5), ('b', 0, 1)], [('b', 1, 2), ('c', 0, 2)]]
    """
    wanted = [each for each in ranges if each.rows > 0]
    total = sum(each.rows * means.get((each.queue, each.partition), 1.0) for each in wanted)
    least = min(least, sum(each.rows for each in wanted))
    size = max(total / max(ceil(total / size), least, 1), 1.0)
    while True:
        found = _grouped(wanted, means, size)
        if len(found) >= least:
            return [_joined(task) for task in found]
        # A row heavier than its share leaves too little for the other tasks.
        size /= 2


def _grouped(ranges: list[Range], means: dict[Place, float], size: float) -> list[list[Range]]:
    """Group ranges into tasks of at most ``size`` bytes, or of one row."""
    found: list[list[Range]] = []
    left = 0.0
    for part in _cut(ranges, means, size):
        weight = part.rows * means.get((part.queue, part.partition), 1.0)
        if not found or weight > left * 1.000001:
            found.append([])
            left = size
        found[-1].append(part)
        left -= weight
    return found


def _cut(ranges: list[Range], means: dict[Place, float], size: float) -> Iterator[Range]:
    """Yield ranges, cut where a task of ``size`` bytes is full."""
    left = size
    for each in ranges:
        mean = means.get((each.queue, each.partition), 1.0)
        start = each.start
        while start < each.end:
            rows = min(max(int(left / mean + 1e-9), 1), each.end - start)
            yield Range(each.queue, each.partition, start, start + rows, each.key)
            start += rows
            left -= rows * mean
            if left < mean:
                left = size


def _joined(task: list[Range]) -> list[Range]:
    """Merge neighbouring ranges of one partition."""
    found: list[Range] = []
    for each in task:
        last = found[-1] if found else None
        if last is not None and (last.queue, last.partition, last.end) == (
            each.queue,
            each.partition,
            each.start,
        ):
            found[-1] = Range(last.queue, last.partition, last.start, each.end, last.key)
        else:
            found.append(each)
    return found
