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
    task: str
    """Of all its messages; empty if they have none."""
    count: int
    runs: list[Ran]
    times: list[tuple[int, int]]
    """Processing times of settled messages: ms since delivery, and number of messages."""


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
    tasks: "dict[str, Tally]" = {}
    """The same of each task, for the first ``TASKS_MAX`` that were seen."""

    def add(self, change: Change) -> None:
        self.counts[change.kind] += change.count
        for spent_ms, count in change.times:
            self.times[bisect_left(BUCKETS_MS, spent_ms)] += count
            self.spent_ms += spent_ms * count


TASKS_MAX = 100
"""Tasks of a queue that are counted one by one."""


def _new_tally(queue: Queue) -> Tally:
    return Tally(queue.tenant, queue.name, [0] * len(EVENT_KINDS), [0] * (len(BUCKETS_MS) + 1))


def tally(tallies: dict[bytes, Tally], change: Change) -> None:
    """Count a change."""
    queue = change.queue
    known = tallies.get(queue.prefix)
    if known is None:
        known = tallies[queue.prefix] = _new_tally(queue)
    known.add(change)
    if change.task:
        of_task = known.tasks.get(change.task)
        if of_task is None and len(known.tasks) < TASKS_MAX:
            of_task = known.tasks[change.task] = _new_tally(queue)
        if of_task is not None:
            of_task.add(change)
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
    task: str = ""
    """Of all its messages; empty if they have none."""
    progress: list[int] = []
    """Of progress that was reported: the percentage of each message, in the order of ``runs``."""
