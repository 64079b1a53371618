"""Incoming webhooks: requests of other systems that become messages."""

from base64 import b64encode
from collections.abc import Callable

import msgspec
from msgspec import Raw, Struct
from starlette.types import Receive, Scope

from forebay.core.api.jobs import Job, PushedJobs, PushJobs
from forebay.core.bounds import HEADER_BYTES_MAX, HEADERS_MAX, NAME_BYTES_MAX
from forebay.core.errors import Denied, Invalid
from forebay.core.state import Attributes
from forebay.server.http.endpoint import Endpoint
from forebay.server.http.headers import header
from forebay.server.http.identity import context_of
from forebay.server.http.operation import Bound, Query, encode
from forebay.server.http.request_body import whole
from forebay.server.operations.carried import Context, ask, shown
from forebay.server.tcp.codec import Services
from forebay.server.webhooks.signatures import is_signed
from forebay.wire.operations.push import Pushed
from forebay.wire.text import ENCODING, check_depth, check_text

KEYS = (b"idempotency-key", b"x-github-delivery", b"x-forebay-delivery")
"""Headers with an idempotency key: a request with the same one is the same request."""
SECRET_WORDS = ("signature", "token", "secret", "auth", "cookie", "api-key", "apikey", "password")
"""Headers with one of these words in their names are credentials, not shown to readers of the message."""


SIGNED = Context()
"""The context of a signed request without a token: it pushes for the tenant of the signature's secret."""


class Incoming(Query, kw_only=True):
    """Push the body to the queue of this name: JSON unchanged, other text as a string, bytes as base64."""


class IncomingEndpoint(Endpoint):
    """Pushes the request of another system as a message."""

    def __init__(
        self, bound: Bound, services: Services, body_bytes_max: int, *, secret: str, clock: Callable[[], int]
    ) -> None:
        super().__init__(bound, services, body_bytes_max)
        self._secret = secret
        self._clock = clock

    async def _answer(self, scope: Scope, receive: Receive) -> Struct:
        # The query is not checked: it may be meant for a proxy in front of this server.
        context = context_of(scope)
        if context.principal is None:  # nobody that has a token: the signature stands for it
            context = SIGNED
        else:
            self.check_role(scope)
        body = await whole(scope, receive, self._body_bytes_max)
        if self._secret and not is_signed(self._secret, body, _text_of(scope), self._clock()):
            raise Denied("the request has no signature, or not that of this server's webhook_secret")
        payload, encoding = payload_of(body, header(scope, b"content-type").decode("latin-1"))
        headers = headers_of(scope["headers"])
        if encoding:
            headers[ENCODING] = encoding
        queue = scope["path_params"]["id"]
        job = Job(payload, attributes=Attributes(headers=tuple(headers.items())))
        push = PushJobs(context.tenant, queue, [job], request=_named(scope))
        reply = await ask(self._services, context, push)
        assert isinstance(reply, PushedJobs)
        known = bool(reply.duplicates)
        return Pushed(id=shown(reply.ids[0]), durability=reply.durability, duplicate=known)


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
