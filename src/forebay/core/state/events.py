"""Changes of the forming commit, counters per queue, and the open event log of a shard."""

from bisect import bisect_left

from msgspec import Struct

from forebay.core.state.partition import Partition
from forebay.core.state.queue import Queue
from forebay.core.words import DELETED, EVENT_KINDS


class EmittedEvent(Struct, frozen=True, gc=False):
    """An event that is about to be kept."""

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
    """Keys of the records that the open segment is kept in."""


BUCKETS_MS = (10, 100, 1_000, 10_000, 60_000)
"""Upper bounds of what the time from delivery to ack is counted by; one more is for all above."""
Ran = tuple[Partition, int, int]
"""Partition, first offset and count of messages that something happened to."""


class Change(Struct, eq=False, gc=False):
    """What happened to messages of a queue, in one commit."""

    kind: int
    queue: Queue
    group: str
    """Empty if it is no group's."""
    count: int
    runs: list[Ran]
    times: list[tuple[int, int]]
    """Of what was settled: ms since it was delivered, and how many messages."""


class ChangeLog:
    """What happened in a shard since its last commit."""

    __slots__ = ("entries", "is_silent")

    def __init__(self) -> None:
        self.entries: dict[tuple[int, bytes, str], Change] = {}
        self.is_silent = False
        """Nothing is noted: what happens is a part of something else."""

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
        """Messages of a partition, from ``first`` on, had something happen to them."""
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
        """A queue was made, configured or removed."""
        self.entries[kind, queue.prefix, ""] = Change(kind, queue, "", 0, [], [])

    def take(self) -> list[Change]:
        """Everything, in the order it began; there is nothing then."""
        entries, self.entries = self.entries, {}
        return list(entries.values())


class Tally(Struct, eq=False):
    """What happened to messages of a queue since the node started."""

    tenant: str
    queue: str
    counts: list[int]
    """By kind."""
    times: list[int]
    """Messages settled, by how long after their delivery that was: a number for each of the buckets."""
    spent_ms: int = 0
    """Of those, all time together."""


def tally(tallies: dict[bytes, Tally], change: Change) -> None:
    """Count what happened."""
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


NAME = "events"
"""What its queues are called, with the number of the shard."""
NOT_KEPT = -1
"""The offset of an event that is told and not kept."""
ShownRun = tuple[str, int, int, int | str]


class Event(Struct, omit_defaults=True, gc=False):
    """One event, as it is kept."""

    kind: str
    tenant: str
    queue: str
    at: int
    count: int = 0
    """Messages it is about."""
    group: str = ""
    runs: list[ShownRun] = []
    """Partition, first offset, count and first id of each run of them."""
    duration_ms: int | None = None
    """Of what was settled: how long ago it was delivered, on average."""


def queue_name(shard: int) -> str:
    return f"{NAME}.{shard}"
