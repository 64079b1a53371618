"""Push, and the options of a message. They are declared here once for everything that pushes."""

from collections.abc import Sequence

from msgspec import UNSET, Raw, Struct, UnsetType

from forebay.core.api.principals import PUSH
from forebay.core.words import DEFAULT
from forebay.wire.operation import Answer, Operation, Route
from forebay.wire.options import AnyBackoff
from forebay.wire.types import Id, Key, RequestId


class RunOptions(Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False, kw_only=True):
    """Options that consecutive messages can share."""

    priority: int = 0
    delay_ms: int = 0
    ttl_ms: int = 0
    timeout_ms: int = 0
    max_attempts: int | None = None
    backoff: AnyBackoff | None = None
    lifo: bool = False
    headers: dict[str, str] | None = None
    tags: list[str] | None = None
    task: str = ""


class Options(RunOptions, kw_only=True):
    """All options of a message."""

    partition: str = DEFAULT
    key: str | None = None
    unique_key: str | None = None
    dedup: str | None = None
    dedup_window_ms: int = 0
    dedup_max_ms: int = 0
    job_id: str | None = None
    transaction_id: str | None = None
    depends_on: Sequence[Id] | None = None
    on_failed: str | None = None
    keys_if_undelivered: list[Key] | None = None


class Item(Options, kw_only=True):
    """A message to push."""

    payload: Raw


class Completion(Item, kw_only=True):
    """The completion callback of a batch: a message that waits for all of it."""

    queue: str


class Push(Options, tag_field="cmd", tag="PUSH", kw_only=True):
    """Push one message (``payload``), many that share options (``messages``), or many with options each.

    Options that ``messages`` share stand beside them; each of the ``items`` has its own. All of them are
    pushed, or none.
    """

    queue: str
    payload: Raw | UnsetType = UNSET
    messages: list[Raw] | UnsetType = UNSET
    items: list[Item] | UnsetType = UNSET
    durability: str | None = None
    idempotency_key: str | None = None
    producer: str = ""
    idempotency_ms: int = 0
    on_complete: Completion | None = None
    reqId: RequestId | UnsetType = UNSET
    tenant: str | UnsetType = UNSET


class Pushed(Answer, kw_only=True):
    """What was pushed: ``id`` of one message, ``first`` id of ``messages``, ``ids`` of ``items``."""

    id: Id | UnsetType = UNSET
    first: Id | UnsetType = UNSET
    ids: Sequence[Id] | UnsetType = UNSET
    count: int | UnsetType = UNSET
    durability: str
    duplicate: bool = False
    replaced: bool = False
    duplicates: list[int] | UnsetType = UNSET
    """Indexes of messages that were known already, and not pushed."""
    replacements: list[int] | UnsetType = UNSET
    """Indexes of messages that replaced others."""
    completion_id: Id | UnsetType = UNSET


OPERATIONS = [
    Operation(
        Push,
        Pushed,
        PUSH,
        "messages",
        "Push messages",
        (Route("POST", "/v1/queues/{queue}/messages"),),
        {"queue": "emails", "payload": {"to": "ada@example.com"}, "tags": ["welcome"]},
    ),
]
