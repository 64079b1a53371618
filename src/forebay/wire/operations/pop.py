"""Pop, and what settles a lease: ack, nack, release, extend."""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from forebay.core.api.principals import POP
from forebay.core.words import DEFAULT
from forebay.wire.operation import Answer, Operation, Request, Route
from forebay.wire.types import Id


class Pop(Request, tag="POP", kw_only=True):
    """Lease up to ``count`` messages for a group; wait up to ``wait_ms`` if there are none."""

    queue: str
    count: int = 1
    min_count: int = 1
    wait_ms: int = 0
    group: str = DEFAULT
    partition: str | None = None
    lease_ms: int | None = None
    start: int | str = msgspec.field(default="all", name="from")
    compact: bool = False
    worker: str | None = None
    create: bool | None = None


class Delivered(Struct, gc=False, omit_defaults=True):
    """A delivered message."""

    id: Id
    queue: str
    partition: str
    offset: int
    payload: Raw
    created_at: int
    deliveries: int
    failures: int
    priority: int
    lease: str | None
    expires_at: int
    headers: dict[str, str] | UnsetType = UNSET
    tags: tuple[str, ...] | UnsetType = UNSET


class Run(Struct, gc=False, omit_defaults=True):
    """Delivered messages that follow each other: their ids and offsets are consecutive."""

    partition: str
    first: Id
    offset: int
    created_at: int
    deliveries: int
    failures: int
    priority: int
    expires_at: int
    payloads: Raw
    headers: dict[str, str] | UnsetType = UNSET
    tags: tuple[str, ...] | UnsetType = UNSET


class Popped(Answer, kw_only=True):
    """The leased messages: ``messages``, or ``runs`` of them if ``compact``; an empty list if none."""

    lease: str | None
    messages: list[Delivered] | UnsetType = UNSET
    runs: list[Run] | UnsetType = UNSET


class Settling(Request, kw_only=True):
    """A whole ``lease``, or ``ids`` (of that lease, if it is given as well)."""

    lease: str | None = None
    ids: list[Id] | UnsetType = UNSET
    group: str | None = None


class Settled(Answer, kw_only=True):
    """How many messages were settled, and which of the ids given were not."""

    count: int
    refused: Sequence[Id]


class Ack(Settling, tag="ACK", kw_only=True):
    """Acknowledge messages. A ``result`` of one id, or ``results`` of all ids, are kept with the messages."""

    result: Raw | UnsetType = UNSET
    results: list[Raw] | UnsetType = UNSET


class Nack(Settling, tag="NACK", kw_only=True):
    """Report messages as failed: retry after their backoff or ``delay_ms``; never, if ``final``."""

    error: str | None = None
    error_type: str = ""
    traceback: str = ""
    delay_ms: int | None = None
    final: bool = False


class Release(Settling, tag="RELEASE", kw_only=True):
    """Return messages, as if they had never been delivered: at once, or with ``defer_ms`` after a delay."""

    error: str | None = None
    defer_ms: int | None = None


class Extend(Settling, tag="EXTEND", kw_only=True):
    """Extend the leases of messages."""

    lease_ms: int | None = None


class Extended(Answer, kw_only=True):
    """When the first of the leases expires; ``cancelled`` if a message was cancelled meanwhile."""

    count: int
    expires_at: int
    cancelled: bool
    refused: Sequence[Id]


OPERATIONS = [
    Operation(
        Pop,
        Popped,
        POP,
        "messages",
        "Pop messages",
        (Route("POST", "/v1/queues/{queue}/pop"),),
        {"queue": "emails", "count": 10, "wait_ms": 1_000},
    ),
    Operation(
        Ack,
        Settled,
        POP,
        "messages",
        "Acknowledge messages",
        (Route("POST", "/v1/ack"),),
        {"lease": "LEASE"},
    ),
    Operation(
        Nack,
        Settled,
        POP,
        "messages",
        "Report messages as failed",
        (Route("POST", "/v1/nack"),),
        {"lease": "LEASE", "error": "no such address"},
    ),
    Operation(
        Release,
        Settled,
        POP,
        "messages",
        "Give messages back",
        (Route("POST", "/v1/release"),),
        {"lease": "LEASE"},
    ),
    Operation(
        Extend,
        Extended,
        POP,
        "messages",
        "Extend leases",
        (Route("POST", "/v1/extend"),),
        {"lease": "LEASE", "lease_ms": 60_000},
    ),
]
