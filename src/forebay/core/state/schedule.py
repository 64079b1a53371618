"""A schedule: runs of a partition that are due at some time, at some level of the order of service.

A level is a line of its own, ordered by due time, then offset. A level is ready when its head is due; the
lowest ready level is served first, so a run that is not due never blocks one that is. Even levels are read
from their newest due run (LIFO).
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import islice

from msgspec import Struct

from forebay.core.bounds import NEVER
from forebay.core.structures.table import Row, Table
from forebay.core.words import DEFERRED_SINCE

_SLACK = 64
"""Stale entries tolerated before the heaps are rebuilt."""


class Scheduled(Struct, frozen=True, gc=False):
    """Consecutive messages that are due together."""

    due_at: int
    first: int
    """Offset of its first message; unique within a schedule."""
    count: int
    level: int
    deliveries: int = 0
    """Deliveries so far."""
    failures: int = 0
    """Failures so far: nacks and expired leases."""
    error: str = ""
    """Error of the last failure."""


Past = tuple[int, int, str]
"""Deliveries, failures and error of a run that was delivered before."""
NO_PAST: Past = (0, 0, "")


class Schedule:
    """The scheduled runs of a track."""

    __slots__ = (
        "_future",
        "_later",
        "_lines",
        "_more",
        "_past",
        "_places",
        "_ready",
        "_ready_levels",
        "deferred",
        "messages",
    )

    def __init__(self) -> None:
        self.messages = 0
        """Messages in it."""
        self.deferred = 0
        """Those of them that their consumers can't handle yet."""
        self._places = Table("qqiI")
        """(first, due_at, level, count) of each run."""
        self._lines: dict[int, Table] = {}
        """(due_at, first, count) of each run, by level; no line is empty."""
        self._past: dict[int, Past] = {}
        """By first offset, of runs that have one."""
        self._future: list[tuple[int, int]] = []
        """Heap of (due_at, level): heads that were not due at the last check, and stale entries."""
        self._later: list[tuple[int, int]] = []
        """Heap of (due_at, level): when a ready line gets more due runs, and stale entries."""
        self._more: dict[int, int] = {}
        """The lowest current entry of it, by level."""
        self._ready: list[int] = []
        """Heap of levels whose heads were due at the last check."""
        self._ready_levels: set[int] = set()

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Scheduled]:
        """All runs, by offset."""
        return map(self._of_place, list(self._places))

    def add(self, run: Scheduled, now: int) -> None:
        level, due_at, first = run.level, run.due_at, run.first
        line = self._lines.get(level)
        if line is None:
            line = self._lines[level] = Table("qqI")
            if level not in self._ready_levels:
                heappush(self._future, (due_at, level))
        elif level not in self._ready_levels and due_at < line.first():
            heappush(self._future, (due_at, level))
        if due_at > now and level in self._ready_levels:
            self._expect_more(level, due_at)
        line.add((due_at, first, run.count))
        self._places.add((first, due_at, level, run.count))
        if run.deliveries or run.error:
            self._past[first] = (run.deliveries, run.failures, run.error)
            if run.error.startswith(DEFERRED_SINCE):
                self.deferred += run.count
        self.messages += run.count
        if len(self._future) + len(self._later) + len(self._ready) > 4 * len(self._places) + _SLACK:
            self._forget_outdated(now)

    def _forget_outdated(self, now: int) -> None:
        """Rebuild the heaps."""
        self._ready_levels.clear()
        self._later.clear()
        self._more.clear()
        self._ready.clear()
        self._future = [(line.first(), level) for level, line in self._lines.items()]
        heapify(self._future)
        self.ready_level(now)

    def remove(self, run: Scheduled) -> None:
        line = self._lines[run.level]
        line.remove(run.due_at, run.first)
        if not line.size:
            del self._lines[run.level]
        self._places.remove(run.first, run.due_at)
        if self._past and self._past.pop(run.first, NO_PAST)[2].startswith(DEFERRED_SINCE):
            self.deferred -= run.count
        self.messages -= run.count

    def ready_level(self, now: int) -> int | None:
        """Return the level to serve first, if any is due."""
        future, ready = self._future, self._ready
        while future and future[0][0] <= now:
            level = heappop(future)[1]
            line = self._lines.get(level)
            if line is not None and level not in self._ready_levels:
                self._ready_levels.add(level)
                heappush(ready, level)
                row = line.above(now)
                if row is not None:
                    self._expect_more(level, row[0])
        while ready:
            level = ready[0]
            line = self._lines.get(level)
            if line is not None and line.first() <= now:
                return level
            heappop(ready)
            self._ready_levels.remove(level)
            if line is not None:
                heappush(future, (line.first(), level))
        return None

    def due(self, level: int, now: int) -> Scheduled | None:
        """Return the run to serve next at a level, if one is due."""
        line = self._lines.get(level)
        if line is None or line.first() > now:
            return None
        row = line.head() if level % 2 else line.upto(now)
        assert row is not None, "its head is due"
        return self._of_line(level, row)

    def next_due_at(self, now: int) -> int:
        """Return when the next run becomes due; ``NEVER`` if none does."""
        self.ready_level(now)
        future = self._future
        while future and (future[0][1] in self._ready_levels or not self._is_head(*future[0])):
            self._correct(future)
        found = future[0][0] if future else NEVER
        return min(found, self._more_at(now))

    def _more_at(self, now: int) -> int:
        """Return when a ready line gets more due runs."""
        later = self._later
        while later:
            due_at, level = later[0]
            line = self._lines.get(level)
            row = line.above(max(due_at - 1, now)) if line is not None else None
            if row is not None and row[0] == due_at:
                return due_at
            heappop(later)
            if self._more.get(level) == due_at:
                del self._more[level]
            if row is not None:
                self._expect_more(level, row[0])
        return NEVER

    def _expect_more(self, level: int, due_at: int) -> None:
        """Remember when a ready line gets more due runs."""
        if due_at < self._more.get(level, NEVER):
            self._more[level] = due_at
            heappush(self._later, (due_at, level))

    def _is_head(self, due_at: int, level: int) -> bool:
        line = self._lines.get(level)
        return line is not None and line.first() == due_at

    def _correct(self, future: list[tuple[int, int]]) -> None:
        """Pop a stale entry off the heap, and push the current head of its line, if it has one."""
        level = heappop(future)[1]
        line = self._lines.get(level)
        if line is not None and level not in self._ready_levels:
            heappush(future, (line.first(), level))

    def heads(self, now: int) -> list[int]:
        """Return the first offset of the longest-due run of each level."""
        return [line.head()[1] for line in self._lines.values() if line.first() <= now]

    def due_messages(self, now: int) -> int:
        """Count due messages."""
        return sum(line.total(now + 1, 2) for line in self._lines.values() if line.first() <= now)

    def due_up_to(self, most: int, now: int, since: int = 0) -> int:
        """Count messages due in [since, now], no further than about ``most``."""
        found = 0
        for line in self._lines.values():
            for due_at, _, count in line.since(since):
                if due_at > now:
                    break
                found += count
                if found >= most:
                    return found
        return found

    def due_before(self, at: int, most: int) -> list[Scheduled]:
        """Return up to ``most`` runs that were due before an instant."""
        return list(islice(self.each_due_before(at), most))

    def each_due_before(self, at: int) -> Iterator[Scheduled]:
        """Yield runs that were due before an instant. Nothing may change meanwhile."""
        for level, line in self._lines.items():
            for row in line:
                if row[0] >= at:
                    break
                yield self._of_line(level, row)

    def spans(self, offset: int = 0) -> Iterator[tuple[int, int, int]]:
        """Yield (first offset, end, due time) of runs from an offset on. Nothing may change meanwhile."""
        before = self._places.below(offset)
        if before is not None and before[0] + before[3] > offset:
            yield offset, before[0] + before[3], before[1]
        for first, due_at, _, count in self._places.since(offset):
            yield first, first + count, due_at

    def count_runs(self, first: int, end: int) -> int:
        """Count runs that start in [first, end)."""
        return self._places.count(first, end)

    def due_after(self, at: int) -> Iterator[Scheduled]:
        """Yield runs that are due after an instant. Nothing may change meanwhile."""
        for level, line in self._lines.items():
            for row in line.since(at + 1):
                yield self._of_line(level, row)

    def find(self, offset: int) -> Scheduled | None:
        """Return the run of a message, if it has one."""
        place = self._places.upto(offset)
        if place is None:
            return None
        run = self._of_place(place)
        return run if offset < run.first + run.count else None

    def next_from(self, offset: int) -> int:
        """Return the first scheduled message from an offset on; ``NEVER`` if there is none."""
        if self.find(offset) is not None:
            return offset
        place = self._places.above(offset)
        return place[0] if place is not None else NEVER

    def over(self, first: int, end: int) -> list[Scheduled]:
        """Return the runs that overlap [first, end), by offset."""
        return list(self.each_over(first, end))

    def each_over(self, first: int, end: int) -> Iterator[Scheduled]:
        """Yield the same lazily. Nothing may change meanwhile."""
        before = self.find(first)
        if before is not None and before.first < first:
            yield before
        for place in self._places.since(first):
            if place[0] >= end:
                break
            yield self._of_place(place)

    def head(self) -> Scheduled | None:
        """Return the run with the lowest offset."""
        return self._of_place(self._places.head()) if self._places else None

    def last(self) -> Scheduled | None:
        """Return the run with the highest offset."""
        return self._of_place(self._places.tail()) if self._places else None

    def lowest(self) -> int:
        """Return the lowest offset; ``NEVER`` if it is empty."""
        return self._places.head()[0] if self._places else NEVER

    def _of_place(self, place: Row) -> Scheduled:
        first, due_at, level, count = place
        return Scheduled(due_at, first, count, level, *self._past.get(first, NO_PAST))

    def _of_line(self, level: int, row: Row) -> Scheduled:
        due_at, first, count = row
        return Scheduled(due_at, first, count, level, *self._past.get(first, NO_PAST))
