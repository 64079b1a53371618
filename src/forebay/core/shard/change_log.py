"""What happened to messages of a shard since its last commit: the source of events and counters."""

from collections.abc import Iterator

from forebay.core.log import log as logs
from forebay.core.state import Change, Log, Partition, Queue, Ran
from forebay.core.words import (
    DEAD,
    DEFERRED,
    POPPED,
    PROGRESSED,
    PUSHED,
    REQUEUED,
    RETRIED,
    RETURNED,
    SETTLED,
)

OF_TASKS = frozenset((PUSHED, POPPED, SETTLED, RETRIED, RETURNED, DEFERRED, DEAD, REQUEUED, PROGRESSED))
"""Kinds of changes that are told by task: their messages are kept."""


def tasks_over(log: Log, first: int, end: int) -> Iterator[tuple[int, int, str]]:
    """Yield [first, end) cut where the task may change, with the task of each part."""
    position = max(logs.find(log, first), 0)
    while first < end:
        segment = log.segments[position]
        if not segment.mixed:
            high, task = min(segment.end, end), ""
        else:
            run_end, _, attributes = segment.run_at(first - segment.base)
            high, task = min(segment.base + run_end, end), attributes.task
        yield first, high, task
        first = high
        if first == segment.end:
            position += 1


class ChangeLog:
    """Lifecycle changes of a shard since its last commit."""

    __slots__ = ("entries", "is_silent")

    def __init__(self) -> None:
        self.entries: dict[tuple[int, bytes, str, str], Change] = {}
        self.is_silent = False
        """Whether changes are ignored, because they are part of another one."""

    def note(
        self,
        kind: int,
        queue: Queue,
        group: str,
        partition: Partition,
        first: int,
        count: int,
        spent_ms: int | None = None,
    ) -> None:
        """Record a change of ``count`` messages from ``first`` on."""
        if self.is_silent:
            return
        if partition.log.mixed and kind in OF_TASKS:
            for low, high, task in tasks_over(partition.log, first, first + count):
                self._note(kind, queue, group, task, (partition, low, high - low), spent_ms)
        else:
            self._note(kind, queue, group, "", (partition, first, count), spent_ms)

    def _note(self, kind: int, queue: Queue, group: str, task: str, run: Ran, spent_ms: int | None) -> None:
        place = (kind, queue.prefix, group, task)
        partition, first, count = run
        known = self.entries.get(place)
        if known is None:
            known = self.entries[place] = Change(kind, queue, group, task, count, [run], [])
        else:
            known.count += count
            where, begin, length = known.runs[-1]
            if begin + length == first and where is partition:
                known.runs[-1] = (partition, begin, length + count)
            else:
                known.runs.append(run)
        if spent_ms is not None:
            known.times.append((spent_ms, count))

    def note_queue(self, kind: int, queue: Queue) -> None:
        """Record that a queue was created, configured or removed."""
        self.entries[kind, queue.prefix, "", ""] = Change(kind, queue, "", "", 0, [], [])

    def take(self) -> list[Change]:
        """Return and clear all changes, in order."""
        entries, self.entries = self.entries, {}
        return list(entries.values())
