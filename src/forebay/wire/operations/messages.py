"""Messages that need not be leased: look at them, search, change, act on many, read the log."""

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType

from forebay.core.api.principals import READ, WRITE
from forebay.core.words import DEFAULT
from forebay.wire.operation import Answer, Operation, Request, Route
from forebay.wire.operations.pop import Settled
from forebay.wire.operations.push import Pushed
from forebay.wire.types import Id


class Seen(Answer, kw_only=True):
    """A message, and its state in a group."""

    id: Id
    uuid: str
    queue: str
    partition: str
    offset: int
    payload: Raw
    state: str
    created_at: int
    deliveries: int
    failures: int
    priority: int
    damaged: bool = False
    error: str | UnsetType = UNSET
    error_type: str | UnsetType = UNSET
    due_at: int | UnsetType = UNSET
    leased_at: int | UnsetType = UNSET
    lease_until: int | UnsetType = UNSET
    holder: str | UnsetType = UNSET
    ended_at: int | UnsetType = UNSET
    job_id: str | UnsetType = UNSET
    unique_key: str | UnsetType = UNSET
    depends_on: Sequence[Id] | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    tags: tuple[str, ...] | UnsetType = UNSET
    task: str | UnsetType = UNSET


class GetMessage(Request, tag="MESSAGE", kw_only=True):
    """Return one message, and its state in a group. With ``queue``, only a message of that queue."""

    id: Id
    queue: str | None = None
    group: str = DEFAULT


class GetMessages(Request, tag="MESSAGES", kw_only=True):
    """Return messages by id. Those that are no longer kept are left out."""

    ids: list[Id]
    group: str = DEFAULT


class Found(Answer, kw_only=True):
    """The messages that are kept."""

    messages: list[Seen]


class FindMessage(Request, tag="FIND", kw_only=True):
    """Return the message with a ``job_id``, of one queue or of any."""

    job_id: str
    queue: str | None = None


class GetState(Request, tag="STATE", kw_only=True):
    """Return the state of a message in a group, without its payload."""

    id: Id
    group: str = DEFAULT


class Stands(Answer, kw_only=True):
    """The state of a message."""

    id: Id
    uuid: str
    state: str
    created_at: int
    deliveries: int
    failures: int
    priority: int
    error: str | UnsetType = UNSET
    due_at: int | UnsetType = UNSET
    leased_at: int | UnsetType = UNSET
    lease_until: int | UnsetType = UNSET
    holder: str | UnsetType = UNSET
    ended_at: int | UnsetType = UNSET


class Filter(Request, kw_only=True):
    """Which messages of a queue to select."""

    queue: str
    state: str | None = None
    group: str = DEFAULT
    partition: str | None = None
    tag: str | None = None
    since: int | None = None
    before: int | None = None
    text: str | None = None
    task: str | None = None
    error: str | None = None
    error_type: str | None = None
    dead_since: int | None = None
    dead_before: int | None = None
    limit: int = 100
    cursor: str | None = None


class Browse(Filter, tag="BROWSE", kw_only=True):
    """List messages of a queue by their state in a group. ``text`` is searched for in payloads, as pushed."""


class Browsed(Answer, kw_only=True):
    """Messages in order; ``total`` is how many are in that state. With a ``cursor`` there may be more."""

    messages: list[Seen]
    total: int
    cursor: str | None


ACTIONS = {
    "cancel": ("waiting", "delayed", "parked", "active"),
    "promote": ("delayed",),
    "delay": ("waiting", "delayed", "active"),
    "priority": ("waiting", "delayed"),
    "discard": ("waiting", "delayed", "active"),
    "requeue": ("dead",),
    "purge": ("dead",),
    "move": ("dead",),
}
"""Bulk actions, and the states of messages that each applies to."""


class Bulk(Filter, tag="BULK", kw_only=True):
    """Act on all messages that match, at most ``limit`` at a time; ``dry_run`` only counts them."""

    action: str
    delay_ms: int | None = None
    priority: int | None = None
    to: str | None = None
    create: bool = False
    dependents: bool = True
    dry_run: bool = False
    limit: int = 10_000


class Acted(Answer, kw_only=True):
    """How many messages matched, how many were changed, and a ``cursor`` if there may be more.

    Messages in a state that the action does not apply to, such as completed ones, do not match.
    """

    matched: int
    count: int
    dry_run: bool
    cursor: str | None
    dependents: int = 0
    kept: int = 0


class Cancel(Request, tag="CANCEL", kw_only=True):
    """Cancel messages: they are no longer delivered, to one group or to any."""

    ids: list[Id]
    group: str | None = None


class OfGroup(Request, kw_only=True):
    """Some messages of a group."""

    ids: list[Id]
    group: str = DEFAULT


class Promote(OfGroup, tag="PROMOTE", kw_only=True):
    """Deliver delayed messages now."""


class Delay(OfGroup, tag="DELAY", kw_only=True):
    """Deliver messages so many ms from now; leased ones are taken back from their consumers."""

    delay_ms: int


class Prioritise(OfGroup, tag="PRIORITY", kw_only=True):
    """Change the priority of messages that wait or are delayed."""

    priority: int


class Discard(OfGroup, tag="DISCARD", kw_only=True):
    """Make messages dead letters at once."""


class Update(Request, tag="UPDATE", kw_only=True):
    """Replace the payload of a message that was never delivered."""

    id: Id
    payload: Raw
    headers: dict[str, str | None] | None = None


class ReadLog(Request, tag="READ", kw_only=True):
    """Read the log of a partition from an offset on, without leasing."""

    queue: str
    offset: int
    partition: str = DEFAULT
    max_bytes: int | None = None
    max_count: int | None = None


class LogRun(Struct, gc=False, omit_defaults=True):
    """Consecutive messages: their ids and offsets follow each other."""

    first: Id
    offset: int
    created_at: int
    payloads: Raw
    headers: dict[str, str] | UnsetType = UNSET
    tags: tuple[str, ...] | UnsetType = UNSET


class Stretch(Answer, kw_only=True):
    """Part of a log: ``next`` is the offset to continue from, ``end`` is where the log ends now."""

    partition: str
    next: int
    end: int
    runs: list[LogRun]


class PackedRun(Struct, gc=False, omit_defaults=True):
    """Messages of one segment, for MessagePack: payloads as they are stored."""

    first: int
    offset: int
    created_at: int
    count: int
    payloads: bytes
    """count + 1 little-endian int32 offsets, then the payloads."""
    ends: bytes = b""
    """Where each run ends, u32 each, if messages differ in time or attributes."""
    times: bytes = b""
    """Milliseconds from created_at to each run, u32 each."""
    which: bytes = b""
    """Index into ``attributes`` for each run, u32 each; 0 for all if empty."""
    attributes: list[dict[str, Any]] = []
    """Sets of attributes that runs refer to; empty if no run has any."""


class PackedStretch(Answer, kw_only=True):
    """Part of a log, for MessagePack."""

    partition: str
    number: int
    next: int
    end: int
    runs: list[PackedRun]


class Offsets(Request, tag="OFFSETS", kw_only=True):
    """Return where the logs of a queue begin and end; with ``at``, their offsets at that time."""

    queue: str
    at: int | None = None
    since: dict[str, int] | None = None


class PartitionOffsets(Struct, gc=False, omit_defaults=True):
    """Where the log of a partition begins and ends."""

    partition: str
    numbers: list[tuple[int, int]]
    first: int
    end: int
    synced: int
    at: int | None
    bytes: int
    since: int | UnsetType | None = UNSET


class OffsetsFound(Answer, kw_only=True):
    """The logs of a queue."""

    partitions: list[PartitionOffsets]


QUEUE = "/v1/queues/{queue}"
ONE = "/v1/messages/{id}"
TAG = "messages"

OPERATIONS = [
    Operation(
        Browse,
        Browsed,
        READ,
        TAG,
        "Browse messages",
        (Route("GET", f"{QUEUE}/messages"),),
        {"queue": "emails", "state": "waiting", "limit": 10},
    ),
    Operation(
        GetMessage,
        Seen,
        READ,
        TAG,
        "Look at a message",
        (
            Route("GET", f"{QUEUE}/messages/{{id}}"),
            Route(
                "GET", ONE, ("id", "group"), summary="Look at a message of any queue", name="GetAnyMessage"
            ),
        ),
        {"queue": "emails", "id": "ID"},
    ),
    Operation(
        GetMessages,
        Found,
        READ,
        TAG,
        "Look at several messages",
        (Route("GET", "/v1/messages"),),
        {"ids": ["ID"]},
    ),
    Operation(
        FindMessage,
        Seen,
        READ,
        TAG,
        "Find a message by its job_id",
        (Route("GET", f"{QUEUE}/jobs/{{job_id}}"),),
        {"queue": "emails", "job_id": "welcome-7"},
    ),
    Operation(
        GetState,
        Stands,
        READ,
        TAG,
        "The state of a message",
        (Route("GET", f"{ONE}/state"),),
        {"id": "ID"},
    ),
    Operation(
        Cancel,
        Settled,
        WRITE,
        TAG,
        "Cancel messages",
        (Route("POST", "/v1/cancel"),),
        {"ids": ["ID"]},
    ),
    Operation(
        Promote,
        Settled,
        WRITE,
        TAG,
        "Deliver delayed messages now",
        (Route("POST", "/v1/promote"),),
        {"ids": ["ID"]},
    ),
    Operation(
        Delay,
        Settled,
        WRITE,
        TAG,
        "Deliver messages later",
        (Route("POST", "/v1/delay"),),
        {"ids": ["ID"], "delay_ms": 60_000},
    ),
    Operation(
        Prioritise,
        Settled,
        WRITE,
        TAG,
        "Change priorities",
        (Route("POST", "/v1/priority"),),
        {"ids": ["ID"], "priority": 5},
    ),
    Operation(
        Discard,
        Settled,
        WRITE,
        TAG,
        "Make messages dead letters",
        (Route("POST", "/v1/discard"),),
        {"ids": ["ID"]},
    ),
    Operation(
        Update,
        Pushed,
        WRITE,
        TAG,
        "Replace a payload",
        (Route("PUT", ONE),),
        {"id": "ID", "payload": {"to": "grace@example.com"}},
    ),
    Operation(
        Bulk,
        Acted,
        WRITE,
        TAG,
        "Act on all messages that match",
        (Route("POST", f"{QUEUE}/bulk"),),
        {"queue": "emails", "action": "cancel", "tag": "welcome", "dry_run": True},
    ),
    Operation(
        ReadLog,
        Stretch,
        READ,
        TAG,
        "Read the log",
        (Route("GET", f"{QUEUE}/log"),),
        {"queue": "emails", "offset": 0},
    ),
    Operation(
        Offsets,
        OffsetsFound,
        READ,
        TAG,
        "Where the logs begin and end",
        (Route("POST", f"{QUEUE}/offsets"),),
        {"queue": "emails"},
    ),
]
