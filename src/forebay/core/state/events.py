"""Changes of the forming commit, counters per queue, and the open event log of a shard."""

from bisect import bisect_left

from msgspec import Struct

from forebay.core.state.partition import Partition
from forebay.core.state.queue import Queue
from forebay.core.words import DELETED, EVENT_KINDS


class EmittedEvent(Struct, frozen=True, gc=False):
    """An event of the last seal, for subscribers."""

    shard: int
    offset: int
    kind: int
    tenant: str
    queue: str
    payload: bytes
    """JSON."""


class EventLog(Struct, eq=False):
    """The events of one shard."""

    queue: Queue
    partition: Partition
    tail: list[bytes]
    """Keys of the records of the open segment."""


BUCKETS_MS = (10, 100, 1_000, 10_000, 60_000)
"""Upper bounds of the histogram of processing times; one more bucket counts all above."""
Ran = tuple[Partition, int, int]
"""Partition, first offset and count of changed messages."""


class Change(Struct, eq=False, gc=False):
    """A lifecycle change of messages of a queue, in one commit."""

    kind: int
    queue: Queue
    group: str
    """Empty if no group is concerned."""
    count: int
    runs: list[Ran]
    times: list[tuple[int, int]]
    """Processing times of settled messages: ms since delivery, and number of messages."""


class ChangeLog:
    """Lifecycle changes of a shard since its last commit."""

    __slots__ = ("entries", "is_silent")

    def __init__(self) -> None:
        self.entries: dict[tuple[int, bytes, str], Change] = {}
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
        place = (kind, queue.prefix, group)
        known = self.entries.get(place)
        if known is None:
            runs = [(partition, first, count)]
            known = self.entries[place] = Change(kind, queue, group, count, runs, [])
        else:
            known.count += count
            where, begin, length = known.runs[-1]
            if begin + length == first and where is partition:
                known.runs[-1] = (partition, begin, length + count)
            else:
                known.runs.append((partition, first, count))
        if spent_ms is not None:
            known.times.append((spent_ms, count))

    def note_queue(self, kind: int, queue: Queue) -> None:
        """Record that a queue was created, configured or removed."""
        self.entries[kind, queue.prefix, ""] = Change(kind, queue, "", 0, [], [])

    def take(self) -> list[Change]:
        """Return and clear all changes, in order."""
        entries, self.entries = self.entries, {}
        return list(entries.values())


class Tally(Struct, eq=False):
    """Counters of a queue since the node started."""

    tenant: str
    queue: str
    counts: list[int]
    """By kind."""
    times: list[int]
    """Settled messages per bucket of processing time."""
    spent_ms: int = 0
    """Their total processing time."""


def tally(tallies: dict[bytes, Tally], change: Change) -> None:
    """Count a change."""
    queue = change.queue
    known = tallies.get(queue.prefix)
    if known is None:
        counts, times = [0] * len(EVENT_KINDS), [0] * (len(BUCKETS_MS) + 1)
        known = tallies[queue.prefix] = Tally(queue.tenant, queue.name, counts, times)
    known.counts[change.kind] += change.count
    if change.times:
        for spent_ms, count in change.times:
            known.times[bisect_left(BUCKETS_MS, spent_ms)] += count
            known.spent_ms += spent_ms * count
    if change.kind == DELETED:
        del tallies[queue.prefix]


NOT_KEPT = -1
"""Offset of an event that is emitted but not stored."""
ShownRun = tuple[str, int, int, int | str]


class Event(Struct, omit_defaults=True, gc=False):
    """An event as it is stored."""

    kind: str
    tenant: str
    queue: str
    at: int
    count: int = 0
    """Number of messages."""
    group: str = ""
    runs: list[ShownRun] = []
    """Partition, first offset, count and first id of each run."""
    duration_ms: int | None = None
    """Average processing time of settled messages."""
    progress: list[int] = []
    """Of progress that was reported: the percentage of each message, in the order of ``runs``."""
