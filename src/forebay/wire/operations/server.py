"""The server itself: hold and back up its store, poll its events, register webhooks."""

from msgspec import UNSET, Raw, Struct, UnsetType, field

from forebay.core.api.principals import ADMIN, OWNER, READ
from forebay.wire.operation import Answer, Operation, Request, Route


class Hold(Request, tag="HOLD", kw_only=True):
    """Freeze all state, timers included: the server answers what changes nothing. ``held: false`` ends it."""

    held: bool = True


class Held(Answer, kw_only=True):
    """Whether the server is held, and the address of its store."""

    held: bool
    store: str


class Backup(Request, tag="BACKUP", kw_only=True):
    """Copy the store into a new directory on the server's machine, while it goes on."""

    directory: str


class BackedUp(Answer, kw_only=True):
    """The directory of the copy."""

    directory: str


class PollEvents(Request, tag="EVENTS", kw_only=True):
    """Return lifecycle events after the id ``after``; wait up to ``wait_ms`` for one.

    Without ``after`` there are none, only the id to start from.
    """

    queues: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    after: str | None = None
    wait_ms: int = 0


class Polled(Answer, kw_only=True):
    """Events, and the id to pass as ``after`` next time."""

    events: list[Raw]
    after: str


class ListWebhooks(Request, tag="WEBHOOKS", kw_only=True):
    """List the webhooks, without their secrets."""


class Webhook(Struct, gc=False, kw_only=True):
    """A webhook and its events. ``delivered`` and ``failed`` count since the server started."""

    id: str
    url: str
    queues: list[str] | None
    kinds: list[str] | None
    created_at: int
    delivered: int
    failed: int
    waiting: int
    dead: int


class WebhookList(Answer, kw_only=True):
    """The webhooks in the order they were registered."""

    webhooks: list[Webhook]


class RegisterWebhook(Request, tag="WEBHOOKPUT", kw_only=True):
    """Post events to a ``url`` from now on: of some ``queues`` and ``kinds``, or of all."""

    url: str
    secret: str | None = None
    queues: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)


class Registered(Answer, kw_only=True):
    """The new webhook. ``secret`` is there only if the request gave none; it is not shown again."""

    id: str
    secret: str | UnsetType = UNSET


class DeleteWebhook(Request, tag="WEBHOOKDELETE", kw_only=True):
    """Delete a webhook. Events that were not delivered yet are dropped."""

    id: str


class Unregistered(Answer, kw_only=True):
    """The webhook that was deleted."""

    id: str


HOOKS = "/v1/webhooks"

OPERATIONS = [
    Operation(
        Hold,
        Held,
        ADMIN,
        "server",
        "Hold the server",
        (Route("POST", "/v1/hold"),),
        {"held": False},
    ),
    Operation(
        Backup,
        BackedUp,
        ADMIN,
        "server",
        "Back the store up",
        (Route("POST", "/v1/backup"),),
        {"directory": "DIRECTORY"},
    ),
    Operation(
        PollEvents,
        Polled,
        READ,
        "events",
        "Poll for events",
        (Route("GET", "/v1/events/poll"),),
        {"queues": ["emails"], "kinds": ["dead"]},
    ),
    Operation(ListWebhooks, WebhookList, OWNER, "webhooks", "List webhooks", (Route("GET", HOOKS),), {}),
    Operation(
        RegisterWebhook,
        Registered,
        OWNER,
        "webhooks",
        "Have events posted somewhere",
        (Route("POST", HOOKS),),
        {"url": "https://example.com/hook", "kinds": ["dead"]},
    ),
    Operation(
        DeleteWebhook,
        Unregistered,
        OWNER,
        "webhooks",
        "Delete a webhook",
        (Route("DELETE", f"{HOOKS}/{{id}}"),),
        {"id": "WEBHOOK"},
    ),
]
