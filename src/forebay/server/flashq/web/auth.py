"""Bearer tokens: every request has to carry one of the tokens that are set, if any are."""

from urllib.parse import parse_qs

from starlette.types import ASGIApp, Receive, Scope, Send

from forebay.server.flashq.caller import Tokens
from forebay.server.flashq.web.commands import Refused
from forebay.server.flashq.web.envelope import send_refusal
from forebay.server.http.endpoint import stop_reading
from forebay.server.http.request_body import header

OPEN = ("/health", "/metrics/prometheus")
OPEN_BELOW = ("/docs", "/webhooks/incoming/")
"""Paths that need no token, as in flashQ. Incoming webhooks are signed instead."""
STREAMS = ("/ws", "/events")
"""Paths whose token may stand in the query: a browser can't send headers with these."""

FIELDS_MAX = 100
"""Fields of a query with a token."""


class Bearers:
    """Lets requests with a token through."""

    def __init__(self, app: ASGIApp, tokens: Tokens) -> None:
        self._app, self._tokens = app, tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._tokens and not _is_open(scope["path"]) and not self._tokens.has(_given(scope)):
            if scope["type"] == "websocket":
                await receive()
            refused = Refused(401, "Invalid or missing authentication token")
            await send_refusal(scope, send, refused, stop_reading(scope) if scope["type"] == "http" else [])
            return
        await self._app(scope, receive, send)


def _is_open(path: str) -> bool:
    return path in OPEN or path.startswith(OPEN_BELOW)


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
