"""The envelope of every answer: ``{"ok": true, "data": …}`` or ``{"ok": false, "error": "…"}``."""

from collections.abc import Mapping

import msgspec
from msgspec import Raw, Struct
from starlette.types import Receive, Scope, Send

from forebay.core.errors import Busy, ForebayError
from forebay.server.flashq.web.calls import Call
from forebay.server.flashq.web.commands import Commands, Refused
from forebay.server.flashq.web.routes import Route
from forebay.server.http.endpoint import LEASED, Headers, respond, stop_reading
from forebay.server.http.guard import Guard
from forebay.server.http.request_body import Gone

_encode = msgspec.json.Encoder().encode


class Failure(Struct, gc=False):
    ok: bool
    error: str


def success(data: Raw) -> bytes:
    return b'{"ok":true,"data":%s}' % bytes(data)


def failure(text: str) -> bytes:
    return _encode(Failure(False, text))


async def send_refusal(scope: Scope, send: Send, refused: Refused, headers: Headers | None = None) -> None:
    """Answer with an error; a WebSocket that is not open yet gets it as the answer to its handshake."""
    headers = list(headers or [])
    if refused.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if refused.status in (429, 503):
        after_ms = refused.retry_after_ms if refused.retry_after_ms is not None else 1_000
        headers.append((b"retry-after", b"%d" % -(-after_ms // 1_000)))
    body = failure(refused.error)
    if scope["type"] != "websocket":
        await respond(scope, send, refused.status, body, headers)
        return
    headers += [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    start = {"type": "websocket.http.response.start", "status": refused.status, "headers": headers}
    await send(start)
    await send({"type": "websocket.http.response.body", "body": body})


class Guarded(Guard):
    """The guard of the door: the same checks as on the native API, answered in flashQ's envelope."""

    async def refuse(self, scope: Scope, send: Send, error: ForebayError) -> None:
        after_ms = error.retry_after_ms if isinstance(error, Busy) else None
        await send_refusal(scope, send, Refused(error.status, error.message, after_ms))

    def leases(self, scope: Scope) -> bool:
        """A GET of a queue's jobs pulls them: a page elsewhere must not have a browser do that."""
        path: str = scope["path"]
        return path.startswith("/queues/") and path.endswith("/jobs")


class Resource:
    """One path, with a route per method."""

    def __init__(self, commands: Commands, body_bytes_max: int, routes: Mapping[str, Route]) -> None:
        self._commands, self._body_bytes_max = commands, body_bytes_max
        self._routes = dict(routes)
        self._allowed = ", ".join(sorted(routes)).encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._routes.get(scope["method"])
        if route is None:
            refused = Refused(405, f"{scope['method']} is not supported here, only {self._allowed.decode()}")
            await send_refusal(scope, send, refused, [(b"allow", self._allowed), *stop_reading(scope)])
            return
        call = Call(self._commands, scope, receive, self._body_bytes_max)
        try:
            if route.needs:
                call.require(route.needs, f"{route.method} {route.path}", of_server=route.of_server)
            data = await route.handler(call)
        except Refused as refused:
            await send_refusal(scope, send, refused, stop_reading(scope))
            return
        try:
            await respond(scope, send, 200, bytes(data) if route.is_plain else success(data))
        except Gone:
            if LEASED in scope:
                self._commands.node.give_back(scope[LEASED])
            raise


async def nothing_here(scope: Scope, receive: Receive, send: Send) -> None:
    await send_refusal(scope, send, Refused(404, f"There is nothing at {scope['path']}; see /docs"))
