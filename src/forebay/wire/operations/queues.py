"""Queues: list, describe, configure, pause, drain, purge, delete; totals of all queues."""

from typing import Any

from msgspec import Struct

from forebay.core.api.principals import OWNER, READ
from forebay.core.words import DEFAULT
from forebay.wire.operation import Answer, Operation, Request, Route
from forebay.wire.options import OptionsIn


class Counted(Struct, gc=False, kw_only=True):
    """Messages of a group by state; ``deferred`` are those of them that no consumer could handle yet."""

    waiting: int
    delayed: int
    parked: int
    active: int
    completed: int
    dead: int
    expired: int
    cancelled: int
    evicted: int
    discarded: int
    deferred: int = 0


class ListQueues(Request, tag="QUEUES", kw_only=True):
    """List all queues."""


class GroupSummary(Answer, kw_only=True):
    """A group, its messages by state, and when the oldest of those that wait was pushed."""

    group: str
    counts: Counted
    oldest_at: int | None = None


class QueueSummary(Struct, gc=False, kw_only=True):
    """A queue, its messages by state, and its groups.

    The counts are those of the group ``default``; where only others read, of that for which most waits.
    ``oldest_at`` is the earliest of all then: ``default`` does not exist there, and nothing waits for it.
    """

    queue: str
    paused: bool
    counts: Counted
    oldest_at: int | None = None
    groups: list[GroupSummary]


class Queues(Answer, kw_only=True):
    """All queues."""

    queues: list[QueueSummary]


class Configure(Request, tag="QUEUE", kw_only=True):
    """Return a queue with its options, partitions and groups.

    With ``options``, create it if it is missing and set those; of one partition, if it is named.
    """

    queue: str
    options: OptionsIn | None = None
    partition: str | None = None


class Partition(Struct, gc=False, kw_only=True):
    """A partition: where its log begins and ends, and how many bytes of payloads it keeps."""

    partition: str
    first: int
    end: int
    bytes: int
    lane: bool
    retention: dict[str, int]
    """Retention options that differ from the queue's."""


class StagedSummary(Struct, gc=False, kw_only=True):
    """Staged messages that are not adopted yet."""

    stages: int
    messages: int
    bytes: int


class Queue(Answer, kw_only=True):
    """A queue with its options, partitions and groups."""

    queue: str
    options: dict[str, Any]
    paused: bool
    partitions: list[Partition]
    groups: list[GroupSummary]
    staged: StagedSummary
    paused_until: int | None = None


class Delete(Request, tag="QUEUEDELETE", kw_only=True):
    """Close a queue, and delete it when none of its messages is leased; with ``force``, at once."""

    queue: str
    force: bool = False


class Deleted(Answer, kw_only=True):
    """With ``active`` messages still leased, the queue is closed for now, and deleted by ``until``."""

    queue: str
    deleted: bool
    active: int
    until: int


class Pause(Request, tag="PAUSE", kw_only=True):
    """Stop deliveries until the queue is resumed, or until a time."""

    queue: str
    until: int | None = None


class Resume(Request, tag="RESUME", kw_only=True):
    """Resume deliveries."""

    queue: str


class Pausing(Answer, kw_only=True):
    """Whether a queue is paused, and until when, if that is known."""

    paused: bool
    until: int | None = None


class Clearing(Request, kw_only=True):
    """Messages of a group that are cleared, or only counted."""

    queue: str
    group: str = DEFAULT
    dry_run: bool = False


class Drain(Clearing, tag="DRAIN", kw_only=True):
    """Cancel all messages of a group that are waiting, delayed or parked. Leased ones are not affected."""


DRAINED = ("waiting", "delayed", "parked")
PURGED = (*DRAINED, "dead", "completed")


class Purge(Clearing, tag="PURGE", kw_only=True):
    """Clear messages of a group in some ``states``, by default in all but the leased.

    Only those that are so for ``grace_ms`` or longer, and at most ``limit``.
    """

    states: list[str] | None = None
    grace_ms: int = 0
    limit: int | None = None


class Cleared(Answer, kw_only=True):
    """How many messages were cleared, and bytes of payloads were freed; with ``more``, repeat the request."""

    count: int
    more: bool
    dry_run: bool
    freed: int = 0


class CountAll(Request, tag="STATS", kw_only=True):
    """Count the messages of all queues."""


class Totals(Answer, kw_only=True):
    """Messages of all queues by state, and groups of one name in all queues together."""

    queues: int
    counts: Counted
    oldest_at: int | None = None
    groups: list[GroupSummary]


QUEUE = "/v1/queues/{queue}"
TAG = "queues"

OPERATIONS = [
    Operation(ListQueues, Queues, READ, TAG, "List queues", (Route("GET", "/v1/queues"),), {}),
    Operation(
        Configure,
        Queue,
        OWNER,
        TAG,
        "Configure a queue",
        (
            Route("GET", QUEUE, ("queue",), needs=(READ,), summary="Describe a queue", name="Describe"),
            Route("PUT", QUEUE, given={"options": OptionsIn()}),
        ),
        {"queue": "emails", "options": {"max_attempts": 5}},
    ),
    Operation(
        Delete,
        Deleted,
        OWNER,
        TAG,
        "Delete a queue",
        (Route("DELETE", QUEUE),),
        {"queue": "emails"},
    ),
    Operation(
        Pause,
        Pausing,
        OWNER,
        TAG,
        "Pause a queue",
        (Route("POST", f"{QUEUE}/pause"),),
        {"queue": "emails"},
    ),
    Operation(
        Resume,
        Pausing,
        OWNER,
        TAG,
        "Resume a queue",
        (Route("POST", f"{QUEUE}/resume"),),
        {"queue": "emails"},
    ),
    Operation(
        Drain,
        Cleared,
        OWNER,
        TAG,
        "Cancel what waits",
        (Route("POST", f"{QUEUE}/drain"),),
        {"queue": "emails", "dry_run": True},
    ),
    Operation(
        Purge,
        Cleared,
        OWNER,
        TAG,
        "Clear messages out",
        (Route("POST", f"{QUEUE}/purge"),),
        {"queue": "emails", "states": ["completed"]},
    ),
    Operation(CountAll, Totals, READ, "server", "Count over all queues", (Route("GET", "/v1/stats"),), {}),
]
