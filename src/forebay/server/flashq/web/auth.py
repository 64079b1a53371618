"""Bearer tokens: every request has to carry one, if the door or the server asks for any."""

from urllib.parse import parse_qs

from starlette.types import ASGIApp, Receive, Scope, Send

from forebay.broker.auth import Auth
from forebay.core.api.principals import READ, WRITE, Principal
from forebay.core.bounds import Limits
from forebay.core.errors import ForebayError
from forebay.core.words import DEFAULT
from forebay.server.flashq.door import Door
from forebay.server.flashq.web.commands import Refused, refused
from forebay.server.flashq.web.envelope import send_refusal
from forebay.server.http.endpoint import stop_reading
from forebay.server.http.headers import header
from forebay.server.http.identity import AUTH, CONTEXT, GENERATION, TENANT, check_in_use, of_certificate
from forebay.server.operations import codec

OPEN = ("/health",)
METRICS = "/metrics/prometheus"
"""Needs no token of the door, as in flashQ, but one of the server if that asks for them."""
OPEN_BELOW = "/docs"
"""Paths that need no token, as in flashQ."""
INCOMING = "/webhooks/incoming/"
"""Paths that need no token if they need a signature instead."""
STREAMS = ("/ws", "/events")
"""Paths whose token may stand in the query: a browser can't send headers with these."""
NO_LIMITS = Limits()
FIELDS_MAX = 100
"""Fields of a query with a token."""
OF_SIGNATURE = Principal(DEFAULT, WRITE, "signature")
"""Who signs an incoming webhook."""


class Bearers:
    """Lets requests with a token through, and tells what is behind it whose that is."""

    def __init__(self, app: ASGIApp, door: Door, auth: Auth, *, incoming_signed: bool) -> None:
        """``incoming_signed`` says whether incoming webhooks are refused without a signature."""
        self._app, self._door, self._auth, self._incoming_signed = app, door, auth, incoming_signed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            principal = self._principal(scope)
        except Refused as error:
            if scope["type"] == "websocket":
                await receive()
            await send_refusal(scope, send, error, stop_reading(scope) if scope["type"] == "http" else [])
            return
        if principal is not None:
            scope[CONTEXT] = codec.context(0, NO_LIMITS, principal)
            scope[AUTH], scope[GENERATION] = self._auth, self._auth.generation
        await self._app(scope, receive, send)

    def _principal(self, scope: Scope) -> Principal | None:
        """Return who sends a request; None for a path that is open; raise if that is nobody."""
        path: str = scope["path"]
        if header(scope, TENANT):
            raise Refused(400, "X-Forebay-Tenant is not taken here: a token says the tenant")
        if path in OPEN or path.startswith(OPEN_BELOW) or (path == METRICS and self._auth.is_open):
            return None
        if token := _given(scope):
            found = self._of(token)
        else:
            found = self._certified(scope) or self._door.anonymous(self._auth)
            if found is None and self._incoming_signed and path.startswith(INCOMING):
                found = OF_SIGNATURE
        if found is None:
            raise Refused(401, "Invalid or missing authentication token")
        try:
            check_in_use(self._auth, found)
        except ForebayError as error:
            raise refused(error) from None
        if path == METRICS and not (found.may((READ,)) and found.tenant == DEFAULT and not found.queues):
            raise Refused(403, "These metrics are for tokens of the tenant default with the role read")
        return found

    def _certified(self, scope: Scope) -> Principal | None:
        try:
            return of_certificate(scope, self._auth)
        except ForebayError:
            return None

    def _of(self, token: str) -> Principal | None:
        try:
            found = self._door.identify(token, self._auth)
            self._auth.use(found)
        except ForebayError:
            return None
        return found


def _given(scope: Scope) -> str:
    kind, _, token = header(scope, b"authorization").partition(b" ")
    if kind.lower() == b"bearer":
        return token.strip().decode(errors="replace")
    if scope["path"].startswith(STREAMS):
        query: str = scope["query_string"].decode("latin-1")
        try:
            return parse_qs(query, max_num_fields=FIELDS_MAX).get("token", [""])[0]
        except ValueError:
            return ""
    return ""
