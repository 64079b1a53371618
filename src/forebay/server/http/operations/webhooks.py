"""Webhooks: outgoing ones that post events, and incoming requests that become messages."""

from base64 import b64encode
from collections.abc import Callable

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field
from starlette.types import Receive, Scope

from forebay.core.api.jobs import Job, PushedJobs, PushJobs
from forebay.core.bounds import HEADER_BYTES_MAX, HEADERS_MAX, NAME_BYTES_MAX
from forebay.core.errors import Denied, ForebayError, Invalid
from forebay.core.state import Attributes
from forebay.server.http.endpoint import Endpoint
from forebay.server.http.operation import Asked, Operation, Request, encode, shown
from forebay.server.http.operations.push import Pushed
from forebay.server.http.request_body import header, whole
from forebay.server.node_client import NodeClient
from forebay.server.webhooks.courier import Webhook as Kept
from forebay.server.webhooks.forwarder import Figures
from forebay.server.webhooks.registry import Webhooks, new_id, new_secret
from forebay.server.webhooks.signatures import is_signed
from forebay.wire.text import check_depth, check_text

KEYS = (b"idempotency-key", b"x-github-delivery", b"x-forebay-delivery")
"""Headers with an idempotency key: a request with the same one is the same request."""
SECRET_WORDS = ("signature", "token", "secret", "auth", "cookie", "api-key", "apikey", "password")
"""Headers with one of these words in their names are credentials, not shown to readers of the message."""
ENCODING = "x-forebay-encoding"
"""Header of a message whose payload is an encoding of the body received, such as base64."""


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


class WebhookList(Struct, gc=False, kw_only=True):
    """The webhooks in the order they were registered."""

    webhooks: list[Webhook]


class ListWebhooks(Request, kw_only=True):
    """List the webhooks, without their secrets."""


class Registered(Struct, gc=False, kw_only=True, omit_defaults=True):
    """The new webhook. ``secret`` is there only if the request gave none; it is not shown again."""

    id: str
    secret: str | UnsetType = UNSET


class RegisterWebhook(Request, kw_only=True):
    """Post events to a ``url`` from now on: of some ``queues`` and ``kinds``, or of all."""

    url: str
    secret: str | None = None
    queues: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)


class Unregistered(Struct, gc=False, kw_only=True):
    """The webhook that was deleted."""

    id: str


class DeleteWebhook(Request, kw_only=True):
    """Delete a webhook. Events that were not delivered yet are dropped."""


class Incoming(Request, kw_only=True):
    """Push the body to the queue of this name: JSON unchanged, other text as a string, bytes as base64."""


class WebhookEndpoint(Endpoint):
    """Registers, lists and deletes webhooks."""

    def __init__(
        self, operation: Operation, questions: NodeClient, body_bytes_max: int, *, webhooks: Webhooks
    ) -> None:
        super().__init__(operation, questions, body_bytes_max)
        self._webhooks = webhooks

    async def _answer(self, scope: Scope, receive: Receive) -> Struct:
        request = await self._request(scope, receive)
        asked = Asked(path=scope["path_params"])
        match request:
            case RegisterWebhook():
                return await self._register(request, asked)
            case DeleteWebhook():
                await self._webhooks.delete(asked.tenant, asked.path["name"])
                return Unregistered(id=asked.path["name"])
        return WebhookList(webhooks=[_shown(*each) for each in await self._webhooks.all(asked.tenant)])

    async def _register(self, request: RegisterWebhook, asked: Asked) -> Registered:
        secret = new_secret() if request.secret is None else request.secret
        kept = Kept(
            id=new_id(),
            tenant=asked.tenant,
            url=request.url,
            secret=secret,
            queues=request.queues,
            kinds=request.kinds,
        )
        await self._webhooks.register(kept)
        return Registered(id=kept.id, secret=UNSET if request.secret is not None else secret)


def _shown(kept: Kept, figures: Figures) -> Webhook:
    return Webhook(
        id=kept.id,
        url=kept.url,
        queues=kept.queues or None,
        kinds=kept.kinds or None,
        created_at=kept.created_at,
        **msgspec.structs.asdict(figures),
    )


# Incoming webhooks.


class IncomingEndpoint(Endpoint):
    """Pushes the request of another system as a message."""

    def __init__(
        self,
        operation: Operation,
        questions: NodeClient,
        body_bytes_max: int,
        *,
        secret: str,
        clock: Callable[[], int],
    ) -> None:
        super().__init__(operation, questions, body_bytes_max)
        self._secret = secret
        self._clock = clock

    async def _answer(self, scope: Scope, receive: Receive) -> Struct:
        # The query is not checked: it may be meant for a proxy in front of this server.
        body = await whole(scope, receive, self._body_bytes_max)
        if self._secret and not is_signed(self._secret, body, _text_of(scope), self._clock()):
            raise Denied("the request has no signature, or not that of this server's webhook_secret")
        payload, encoding = payload_of(body, header(scope, b"content-type").decode("latin-1"))
        headers = headers_of(scope["headers"])
        if encoding:
            headers[ENCODING] = encoding
        asked = Asked(path=scope["path_params"])
        job = Job(payload, attributes=Attributes(headers=tuple(headers.items())))
        reply = await self._questions.ask(
            PushJobs(asked.tenant, asked.path["name"], [job], request=_named(scope))
        )
        if isinstance(reply, ForebayError):
            raise reply
        assert isinstance(reply, PushedJobs)
        duplicate = True if reply.duplicates else UNSET
        return Pushed(id=shown(reply.ids[0]), durability=reply.durability, duplicate=duplicate)


def _text_of(scope: Scope) -> Callable[[str], str]:
    return lambda name: header(scope, name.encode()).decode("latin-1")


def _named(scope: Scope) -> tuple[str, str] | None:
    """Return the name and the value of the idempotency key of a request, or None."""
    for name in KEYS:
        value = header(scope, name)
        if value:
            return name.decode(), _decoded(value)
    return None


def payload_of(body: bytes, kind: str) -> tuple[bytes, str]:
    """Return a body as JSON, and the name of the encoding if the payload is not its text.

    >>> payload_of(b' {"a": 1}', "application/json"), payload_of(b"a=1", "text/plain")
    ((b'{"a": 1}', ''), (b'"a=1"', ''))
    >>> payload_of(b"\\xff", "")
    (b'"/w=="', 'base64')
    """
    essence = kind.partition(";")[0].strip().lower()
    is_json = essence == "application/json" or essence.endswith("+json")
    if is_json or not essence:
        try:
            return _as_json(body), ""
        except Invalid:
            if is_json:
                raise
    try:
        return encode(body.decode()), ""
    except UnicodeDecodeError:
        return encode(b64encode(body).decode()), "base64"


def _as_json(body: bytes) -> bytes:
    try:
        check_text(body)
        found = bytes(msgspec.json.decode(body, type=Raw))
    except (msgspec.DecodeError, UnicodeDecodeError, Invalid):
        raise Invalid("body", "JSON in UTF-8, as its Content-Type says") from None
    except RecursionError:
        raise Invalid("body", "nested less deep") from None
    check_depth(found, 0, len(found))
    return found


def headers_of(given: list[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return the headers of a request that are kept with its message, as far as they fit."""
    found: dict[str, str] = {}
    room = HEADER_BYTES_MAX - len(ENCODING) - len("base64")
    for raw, value in given:
        name, text = raw.decode("latin-1").lower(), _decoded(value)
        if name != "content-type" and (
            not name.startswith("x-") or name == ENCODING or any(word in name for word in SECRET_WORDS)
        ):
            continue
        size = len(name.encode()) + len(text.encode())
        fits = len(name.encode()) <= NAME_BYTES_MAX and size <= room and len(found) < HEADERS_MAX - 1
        if fits and name not in found:
            found[name] = text
            room -= size
    return found


def _decoded(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
