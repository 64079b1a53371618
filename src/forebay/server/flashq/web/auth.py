"""Bearer tokens: every request has to carry one of the tokens that are set, if any are."""

from urllib.parse import parse_qs

from starlette.types import ASGIApp, Receive, Scope, Send

from forebay.server.flashq.caller import Tokens
from forebay.server.flashq.web.commands import Refused
from forebay.server.flashq.web.envelope import send_refusal
from forebay.server.http.endpoint import stop_reading
from forebay.server.http.request_body import header

OPEN = ("/health", "/metrics/prometheus")
OPEN_BELOW = "/docs"
"""Paths that need no token, as in flashQ."""
INCOMING = "/webhooks/incoming/"
"""Paths that need no token if they need a signature instead."""
STREAMS = ("/ws", "/events")
"""Paths whose token may stand in the query: a browser can't send headers with these."""

FIELDS_MAX = 100
"""Fields of a query with a token."""


class Bearers:
    """Lets requests with a token through."""

    def __init__(self, app: ASGIApp, tokens: Tokens, *, incoming_signed: bool) -> None:
        """``incoming_signed`` says whether incoming webhooks are refused without a signature."""
        self._app, self._tokens = app, tokens
        self._open_below = (OPEN_BELOW, INCOMING) if incoming_signed else (OPEN_BELOW,)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._tokens and not self._is_open(scope["path"]) and not self._tokens.has(_given(scope)):
            if scope["type"] == "websocket":
                await receive()
            refused = Refused(401, "Invalid or missing authentication token")
            await send_refusal(scope, send, refused, stop_reading(scope) if scope["type"] == "http" else [])
            return
        await self._app(scope, receive, send)

    def _is_open(self, path: str) -> bool:
        return path in OPEN or path.startswith(self._open_below)


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
