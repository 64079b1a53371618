"""Types of the client's arguments and results."""

from collections.abc import Iterator, Sequence
from typing import Any, TypedDict, overload

import msgspec
from msgspec import Struct

Id = int | str
"""A message id: a number, or the text of a number or a UUID."""
Part = str | int | float | bool
Backoff = int | list[int] | dict[str, Any]
DEFAULT = "default"
Key = str | Sequence[Part]
"""Key of a value: a string is a key of one part."""


def parts_of(key: Key) -> list[Part]:
    return [key] if isinstance(key, str) else list(key)


class Options(TypedDict, total=False):
    """Options of a message. PUSH in docs/PROTOCOL.md says what each means."""

    partition: str
    key: str
    priority: int
    delay_ms: int
    ttl_ms: int
    timeout_ms: int
    max_attempts: int
    backoff: Backoff
    lifo: bool
    headers: dict[str, str]
    tags: list[str]
    task: str
    unique_key: str
    dedup: str
    dedup_window_ms: int
    dedup_max_ms: int
    job_id: str
    transaction_id: str
    depends_on: list[Id]
    on_failed: str
    keys_if_undelivered: list[Key]
    durability: str
    idempotency_key: str


class New(Struct, frozen=True):
    """A message to push, with options of its own: what ``push_many`` takes beside payloads."""

    payload: Any
    options: Options = {}


class Pushed(Struct, frozen=True):
    """A message that was pushed."""

    id: int
    durability: str
    """What it survives from now on: fsync, os or memory."""
    duplicate: bool = False
    """Whether it was a duplicate: then the id is that of the first."""
    replaced: bool = False
    """Whether it replaced another message, under whose id it is known."""


class PushedMany(Struct, frozen=True):
    """Messages that were pushed."""

    ids: list[int]
    """In the order of the payloads."""
    durability: str
    duplicates: list[int] = []
    """Positions of the duplicates."""

    @property
    def count(self) -> int:
        """How many messages were pushed."""
        return len(self.ids)


class Message(Struct, frozen=True):
    """A delivered message, leased until it is settled or the lease expires."""

    id: int
    payload: Any
    queue: str
    group: str
    partition: str
    offset: int
    created_at: int
    failures: int
    """Failures before this delivery."""
    priority: int
    lease: str
    expires_at: int
    headers: dict[str, str] = {}
    tags: tuple[str, ...] = ()
    deliveries: int = 1
    """Deliveries so far, this one included."""


class Batch(Sequence[Message]):
    """Messages of one pop, under one lease. Empty, and false, if there were none."""

    def __init__(self, messages: list[Message], lease: str | None) -> None:
        self.messages = messages
        self.lease = lease

    @overload
    def __getitem__(self, at: int) -> Message: ...
    @overload
    def __getitem__(self, at: slice) -> list[Message]: ...
    def __getitem__(self, at: int | slice) -> Message | list[Message]:
        return self.messages[at]

    def __len__(self) -> int:
        return len(self.messages)

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    @property
    def payloads(self) -> list[Any]:
        """Payloads of its messages."""
        return [each.payload for each in self.messages]

    def __repr__(self) -> str:
        return f"Batch({self.messages!r}, lease={self.lease!r})"


Settling = Batch | Message | Id | Sequence[Message] | Sequence[Id]
"""What can be acked, nacked or extended: a batch, messages of it, or ids."""


class Settled(Struct, frozen=True):
    """How many messages were settled, and which were no longer leased."""

    count: int
    refused: list[int]


class Requeued(Settled, frozen=True):
    """How many dead letters were requeued, and which ids can't be."""

    dependents: int
    """Dead letters besides that died of these and are parked again, in any queue; up to 1,000 are counted."""
    left: int = 0
    """Of all that were meant, not by their ids: those that can't be, as what they depend on is gone."""


class Moved(Settled, frozen=True):
    """How many dead letters were moved to another queue."""

    kept: int
    """Those that match and stay: they have dependencies, are depended on, damaged, or not taken."""


class Extended(Struct, frozen=True):
    """A lease that was extended."""

    expires_at: int
    cancelled: bool
    """Whether any of its messages was cancelled: stop working on it."""


class Counts(Struct, frozen=True):
    """Messages of a group by state."""

    waiting: int = 0
    delayed: int = 0
    parked: int = 0
    """Messages that wait for dependencies."""
    active: int = 0
    completed: int = 0
    dead: int = 0
    expired: int = 0
    cancelled: int = 0
    evicted: int = 0
    discarded: int = 0
    deferred: int = 0
    """Of those that wait or are delayed: messages that no consumer could handle yet."""


class Partition(Struct, frozen=True):
    """A partition: its log has the offsets from ``first`` up to ``end``."""

    partition: str
    first: int
    end: int
    bytes: int
    lane: bool = False


class Group(Struct, frozen=True):
    """A group, its messages by state, and when the oldest of those that wait was pushed."""

    group: str
    counts: Counts
    oldest_at: int | None = None


class QueueSummary(Struct, frozen=True):
    """A queue, its messages by state, when the oldest of those that wait was pushed, and its groups.

    The counts are those of the group ``default``; where only others read, of that for which most waits.
    ``oldest_at`` is the earliest of all then: ``default`` does not exist there, and nothing waits for it.
    """

    queue: str
    paused: bool
    counts: Counts
    oldest_at: int | None = None
    groups: list[Group] = []


class Queue(Struct, frozen=True):
    """A queue with its options, partitions and groups."""

    queue: str
    options: dict[str, Any]
    paused: bool
    paused_until: int | None
    partitions: list[Partition]
    groups: list[Group]


class Seen(Struct, frozen=True, kw_only=True):
    """A message as browsed, with its state in a group."""

    id: int
    uuid: str
    queue: str
    partition: str
    offset: int
    payload: Any
    state: str
    created_at: int
    failures: int
    deliveries: int
    priority: int
    error: str | None = None
    error_type: str | None = None
    """Of a dead letter: the type of its last error, if its consumer told."""
    due_at: int | None = None
    leased_at: int | None = None
    """If it is leased: since when."""
    lease_until: int | None = None
    """Until when, unless the lease is extended."""
    holder: str | None = None
    """The name of the worker that holds it, if that is known."""
    ended_at: int | None = None
    job_id: str | None = None
    unique_key: str | None = None
    depends_on: list[int] = []
    headers: dict[str, str] = {}
    tags: tuple[str, ...] = ()
    task: str | None = None
    """The name of the task that the message is a job of."""
    damaged: bool = False


class RunningJob(Struct, frozen=True):
    """A job that a worker runs."""

    id: int
    task: str
    since: int


class WorkerInfo(Struct, frozen=True, kw_only=True):
    """A worker as it last told of itself."""

    name: str
    host: str
    pid: int
    version: str
    group: str
    queues: list[str]
    tasks: list[str]
    concurrency: int
    state: str
    """working, draining, or gone if it fell silent."""
    started_at: int
    seen_at: int
    running: list[RunningJob]
    """Of more than 100, those that run longest."""
    running_count: int
    done: int
    failed: int


class Page(Struct, frozen=True):
    """Browsed messages; with a ``cursor`` there may be more."""

    messages: list[Seen]
    total: int
    cursor: str | None


class Cleared(Struct, frozen=True):
    """How many messages were cleared out, or would be."""

    count: int
    dry_run: bool = False
    freed: int = 0
    """Bytes of payloads that are no longer kept."""


class Deleted(Struct, frozen=True):
    """A deleted queue: while ``active`` messages are leased it is only closed, and gone by ``until``."""

    queue: str
    deleted: bool
    active: int
    until: int


class Stats(Struct, frozen=True):
    """Messages of all queues by state, and groups of one name in all queues together."""

    queues: int
    counts: Counts
    oldest_at: int | None = None
    groups: list[Group] = []


class Result(Struct, frozen=True):
    """The outcome of a message."""

    id: int
    done: bool
    state: str
    result: Any = None
    error: str | None = None
    has_result: bool = False
    """Whether a result is kept, which may be None."""


class Update(Struct, frozen=True):
    """How a message stands while it is on its way: one of a stream of them."""

    id: int
    state: str
    """waiting, delayed, parked, active, completed, dead, …"""
    progress: int = 0
    """Percent done as last reported, from 0 to 100."""
    message: str | None = None
    """What is done at the moment, as reported with the progress."""
    done: bool = False
    """Whether it has ended: then this is the last one."""
    result: Any = None
    error: str | None = None


class Progress(Struct, frozen=True):
    """How far the work on a message is, as its worker last reported.

    ``progress`` is a percentage, from 0 to 100, ``message`` what is done at the moment, and ``updated_at``
    when that was reported, in milliseconds since 1970. If nothing was reported yet, it is 0, None and None.
    """

    progress: int
    """Percent done, from 0 to 100; 0 if nothing was reported."""
    message: str | None
    """What is done at the moment, in the words of the worker; None if it said nothing."""
    updated_at: int | None
    """When it was reported, in milliseconds since 1970; None if it never was."""

    def __str__(self) -> str:
        """Return it for people.

        >>> str(Progress(40, "halfway, nearly", 1_700_000_000_000)), str(Progress(0, None, None))
        ('40 %: halfway, nearly', '0 %')
        """
        return f"{self.progress} %: {self.message}" if self.message else f"{self.progress} %"


class Line(Struct, frozen=True):
    """A line of a message's log."""

    timestamp: int
    level: str
    message: str


class Attempt(Struct, frozen=True):
    """A delivery that failed."""

    at: int
    """When it failed."""
    deliveries: int
    """Which delivery of the message it was."""
    error: str
    error_type: str | None
    """Name of the error's type, if its consumer told."""
    traceback: str | None
    worker: str | None
    """Name of the consumer that had the message, if it told."""


class DeadFilter(TypedDict, total=False):
    """Which dead letters are meant: those that all of this is true of."""

    error: str | None
    """A text in their error; ``*`` in it stands for any text."""
    error_type: str | None
    dead_since: int | None
    """Dead at this time or later."""
    dead_before: int | None
    partition: str | None
    task: str | None
    tag: str | None
    text: str | None
    """A text in their payload, as it was pushed."""
    since: int | None
    """Pushed at this time or later."""
    before: int | None


class MessageFilter(DeadFilter, total=False):
    """Which messages are meant: those that all of this is true of."""

    state: str | None
    group: str


class DeadGroup(Struct, frozen=True):
    """Dead letters of one cause."""

    count: int
    error: str
    """First line of their errors, with ``*`` for numbers and ids."""
    error_type: str | None
    task: str | None
    first_at: int
    """When the first of them died."""
    last_at: int
    example: int
    """Id of one of them."""


class DeadGroups(Struct, frozen=True):
    """Causes, the most frequent first."""

    groups: list[DeadGroup]
    total: int
    """Dead letters in all."""
    rest: int
    """Dead letters of causes that are not listed."""


class Record(Struct, frozen=True):
    """A message as it is in the log."""

    id: int
    partition: str
    offset: int
    created_at: int
    payload: Any
    headers: dict[str, str] = {}
    tags: tuple[str, ...] = ()


class Stretch(Struct, frozen=True):
    """A part of a log, which yields its records: ``for record in client.read("emails")``."""

    records: list[Record]
    next: int
    """The offset to read on at."""
    end: int
    """Where the log ends now."""

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)


class Offsets(Struct, frozen=True):
    """Where the log of a partition begins and ends: it has the offsets from ``first`` up to ``end``."""

    partition: str
    first: int
    end: int
    synced: int
    """Offsets below this one survive a power loss."""
    bytes: int
    at: int | None = None
    """First offset that was pushed at the time asked for, or later; None if none was, or no time was."""


class Cron(Struct, frozen=True, kw_only=True):
    """A message that is pushed by a schedule."""

    name: str
    queue: str
    payload: Any
    partition: str = DEFAULT
    schedule: str | None = None
    every_ms: int | None = None
    timezone: str = "UTC"
    limit: int | None = None
    missed: str = "last"
    fired: int = 0
    skipped: int = 0
    last_at: int | None = None
    next_at: int | None = None
    error: str | None = None


class Entry(Struct, frozen=True):
    """A value under a key; ``version`` rises with every write."""

    key: list[str | int | float | bool]
    value: Any
    version: str | None
    expires_at: int | None = None


class Event(Struct, frozen=True):
    """An event. Pass the ``after`` of the last one to continue behind it."""

    kind: str
    queue: str = ""
    at: int = 0
    group: str | None = None
    count: int = 0
    fields: dict[str, Any] = {}
    """All fields of the event."""
    after: str = msgspec.field(default="")
