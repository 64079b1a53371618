"""The HTTP listener: uvicorn's protocol in our loop, with limits on connections, headers and time."""

import asyncio
import logging
import secrets
from asyncio import AbstractEventLoop
from collections.abc import Callable
from email.utils import formatdate
from itertools import count
from typing import Any
from urllib.parse import unquote_to_bytes

import uvicorn
from msgspec import Struct
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request as StarletteRequest
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from penstock.broker.node import Node
from penstock.core.errors import Busy, Denied, Invalid, NotFound, PenstockError, Unsupported
from penstock.server.http.base import encode
from penstock.server.http.bodies import Gone, header
from penstock.server.http.endpoints import (
    Endpoint,
    Errors,
    Problem,
    Questions,
    Resource,
    respond,
    send_error,
)
from penstock.server.http.events import EventSocket, EventStream, ListenStream
from penstock.server.http.health import Healthz, Metrics, Readyz
from penstock.server.http.openapi import document
from penstock.server.http.operations import OPERATIONS, QUEUE
from penstock.server.http.reference import page
from penstock.server.http.streams import BrowseEndpoint, BulkEndpoint, PushEndpoint
from penstock.server.hub import Hub

logger = logging.getLogger("penstock.http")

CHECK_S = 1.0
"""How often stalled clients are looked for, and the Date header is made anew."""
BODY_STALLS = 10
"""A body that is no stream must be complete within this many times ``stall_ms``."""
REQUEST_ID = b"x-request-id"
REQUEST_ID_MAX = 128
"""Characters of a request id that a client gives."""


class HttpLimits(Struct, frozen=True):
    """What one connection, and all of them, may take up."""

    body_bytes_max: int = 64 * 1024 * 1024
    """Bytes of a body that is no stream of lines, and of one line of a stream."""
    head_bytes_max: int = 64 * 1024
    """Bytes of a request line and headers."""
    connections_max: int = 10_000
    stall_ms: int = 30_000
    """How long a client may take to send more of what it began, or to read more of what it was sent."""
    idle_ms: int = 75_000
    """How long a connection may be idle between requests."""
    origins: tuple[str, ...] = ()
    """Origins whose pages may use this server from a browser; ``*`` is any."""


class Connection(HttpToolsProtocol):
    """One client."""

    listener: "HttpServer"

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.head_bytes = 0
        """Bytes of the request that has begun, while its headers are not complete."""
        self.began_at = 0.0
        """When the request began whose headers are not complete; 0 if there is none."""
        self.came_at = self.idle_since = self.loop.time()
        self.body_at = 0.0
        """When the body began that is not complete; 0 if there is none."""
        self.went_at = 0.0
        self.unsent = 0
        limit = self.listener.limits.connections_max
        if len(self.connections) > limit:
            self.refuse(503, Busy(f"the server takes at most {limit} connections"))

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self.came_at = self.loop.time()
        if not self.head_bytes and not self.body_at:
            self.began_at = self.came_at
        if not self.body_at:
            self.head_bytes += len(data)
        super().data_received(data)
        if self.head_bytes > self.listener.limits.head_bytes_max and not self.transport.is_closing():
            self._refuse_head()

    def on_headers_complete(self) -> None:
        most = self.listener.limits.head_bytes_max
        # What came may have more than the head in it: only if it is much, the head itself is measured.
        if self.head_bytes > most and len(self.url) + sum(len(a) + len(b) for a, b in self.headers) > most:
            self._refuse_head()
            raise ValueError("the head is too large")
        self.head_bytes, self.began_at = 0, 0.0
        self.body_at = self.came_at
        self.scope["penstock.connection"] = self  # type: ignore[typeddict-unknown-key]
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self.body_at = 0.0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self.idle_since = self.loop.time()
        super().on_response_complete()

    def _refuse_head(self) -> None:
        most = self.listener.limits.head_bytes_max
        self.refuse(431, Invalid("headers", f"at most {most} bytes, the request line included"))

    def send_400_response(self, msg: str) -> None:
        if not self.transport.is_closing():
            self.refuse(400, Invalid("request", "HTTP/1.1, well-formed"))

    def refuse(self, status: int, error: PenstockError) -> None:
        """Say why, and close."""
        body = encode(Errors(Problem(error.code, error.message, error.details)))
        retry = b"retry-after: 1\r\n" if status == 503 else b""
        self.transport.write(
            b"HTTP/1.1 %d \r\ncontent-type: application/json\r\n%scontent-length: %d\r\n"
            b"connection: close\r\n\r\n%s" % (status, retry, len(body), body)
        )
        self.transport.close()

    def check_stall(self, now: float) -> None:
        """Close the connection if the client has not done its part for too long."""
        limits = self.listener.limits
        stall_s = limits.stall_ms / 1000
        unsent, before = self.transport.get_write_buffer_size(), self.unsent
        if unsent < before or not before:
            self.went_at = now
        self.unsent = unsent
        is_idle = (self.cycle is None or self.cycle.response_complete) and not self.began_at
        reading = self.body_at and not self.flow.read_paused and now - self.came_at > stall_s
        if unsent and now - self.went_at > stall_s:
            self.cut("did not read its answer")
        elif self.began_at and now - self.began_at > stall_s:
            self.refuse(408, Invalid("request", f"complete within {limits.stall_ms} ms"))
        elif reading:
            self.cut("did not finish its request")
        elif is_idle and now - self.idle_since > limits.idle_ms / 1000:
            self.transport.close()

    def cut(self, why: str) -> None:
        logger.warning("connection of %s closed: it %s", self.client, why)
        self.transport.abort()


class HttpServer:
    """Every HTTP connection."""

    def __init__(
        self,
        node: Node,
        loop: AbstractEventLoop,
        limits: HttpLimits,
        version: str,
        connections: Callable[[], dict[str, int]] = dict,
    ) -> None:
        """``connections`` tells those of other listeners."""
        self.node = node
        self.limits = limits
        self._version = version
        self._others = connections
        self._loop = loop
        self._state = ServerState()
        self._listeners: list[asyncio.Server] = []
        self._check: asyncio.TimerHandle | None = None
        self.hub = Hub(node, loop)
        self._config = uvicorn.Config(
            self._app(),
            http=_connection_class(self),
            ws="websockets-sansio",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=limits.idle_ms // 1000 + 1,
        )
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        self._config.load()

    def _app(self) -> ASGIApp:
        questions = Questions(self.node)
        routes: list[BaseRoute] = [
            *_routes(questions, self.limits.body_bytes_max),
            *self._streams(questions),
            *self._pages(questions),
        ]
        middleware = []
        if self.limits.origins:
            middleware.append(
                Middleware(
                    CORSMiddleware,
                    allow_origins=list(self.limits.origins),
                    allow_methods=["GET", "POST", "PUT", "DELETE"],
                    allow_headers=["*"],
                    expose_headers=["x-request-id", "retry-after"],
                )
            )
        app = Starlette(routes=routes, middleware=middleware, exception_handlers={404: _not_found})
        app.router.redirect_slashes = False
        return Guard(app, self.limits.origins)

    def _streams(self, questions: Questions) -> list[BaseRoute]:
        return [
            Route(f"{QUEUE}/listen", GetOnly(ListenStream(self.hub, questions), head=False)),
            Route("/v1/events", GetOnly(EventStream(self.hub, questions), head=False)),
            WebSocketRoute("/v1/events/ws", EventSocket(self.hub, questions)),
        ]

    def _pages(self, questions: Questions) -> list[BaseRoute]:
        described = document(OPERATIONS, self._version)
        return [
            Route("/healthz", GetOnly(Healthz())),
            Route("/readyz", GetOnly(Readyz(self.node))),
            Route("/metrics", GetOnly(Metrics(questions, self._all_connections))),
            Route("/openapi.json", GetOnly(Page(encode(described), b"application/json"))),
            Route("/docs", GetOnly(Page(page(described).encode(), b"text/html; charset=utf-8"))),
        ]

    async def listen(self, host: str, port: int) -> str:
        """Accept connections; the address in use."""
        state, config = self._state, self._config
        kind: Any = config.http_protocol_class
        listener = await self._loop.create_server(lambda: kind(config, state, {}, self._loop), host, port)
        self._listeners.append(listener)
        self._tick()
        bound = listener.sockets[0].getsockname()
        return f"[{bound[0]}]:{bound[1]}" if ":" in bound[0] else f"{bound[0]}:{bound[1]}"

    def _all_connections(self) -> dict[str, int]:
        return {"http": len(self._state.connections), "streams": self.hub.count, **self._others()}

    def _tick(self) -> None:
        now = self._loop.time()
        self._state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
        for connection in list(self._state.connections):
            if isinstance(connection, Connection):
                connection.check_stall(now)
        self._check = self._loop.call_later(CHECK_S, self._tick)

    # The end.

    def stop_accepting(self) -> None:
        for listener in self._listeners:
            listener.close()

    def end_all(self) -> None:
        """Take no more requests; every connection closes with its last answer."""
        self.hub.end()
        for connection in list(self._state.connections):
            connection.shutdown()

    async def close(self, grace_s: float) -> None:
        """Wait until every connection has ended; those that take longer are cut."""
        if self._check is not None:
            self._check.cancel()
        until = self._loop.time() + grace_s
        while self._state.connections and self._loop.time() < until:
            self.end_all()
            await asyncio.sleep(0.01)
        for connection in list(self._state.connections):
            if isinstance(connection, Connection):
                connection.transport.abort()


def _connection_class(listener: HttpServer) -> type[Connection]:
    return type("Connection", (Connection,), {"listener": listener})


def _routes(questions: Questions, body_bytes_max: int) -> list[BaseRoute]:
    """One route a path, whatever can be done there."""
    kinds: dict[str, type[Endpoint]] = {
        "Push": PushEndpoint,
        "Browse": BrowseEndpoint,
        "Bulk": BulkEndpoint,
    }
    by_path: dict[str, dict[str, Endpoint]] = {}
    for operation in OPERATIONS:
        kind = kinds.get(operation.name, Endpoint)
        endpoint = kind(operation, questions, body_bytes_max)
        by_path.setdefault(operation.path, {})[operation.method] = endpoint
    return [Route(_with_slashes(path), Resource(methods)) for path, methods in by_path.items()]


def _with_slashes(path: str) -> str:
    """Keys, and names of groups and crons, may have slashes in them."""
    for place in ("key", "group", "name"):
        path = path.replace(f"{{{place}}}", f"{{{place}:path}}")
    return path


class GetOnly:
    """A path that can only be looked at."""

    def __init__(self, app: ASGIApp, *, head: bool = True) -> None:
        self._app = app
        self._allowed = ("GET", "HEAD") if head else ("GET",)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in self._allowed:
            allowed = ", ".join(self._allowed)
            error = Unsupported(f"{scope['method']} is not supported here, only {allowed}")
            await send_error(scope, send, error, status=405, headers=[(b"allow", allowed.encode())])
            return
        await self._app(scope, receive, send)


class Page:
    """Something that is always the same."""

    def __init__(self, body: bytes, kind: bytes) -> None:
        self._body, self._kind = body, kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await respond(scope, send, 200, self._body, kind=self._kind)


async def _not_found(request: StarletteRequest, error: Exception) -> Response:
    problem = NotFound(f"there is nothing at {request.url.path}; see /docs")
    return Response(
        encode(Errors(Problem(problem.code, problem.message))), 404, media_type="application/json"
    )


def check_path(path: bytes) -> None:
    """Raise unless a path is UTF-8: names that are not would all look the same."""
    try:
        unquote_to_bytes(path).decode()
    except UnicodeDecodeError:
        raise Invalid("path", "UTF-8, where it is escaped") from None


class Guard:
    """Around everything: gives requests their ids, keeps foreign pages out, and answers what broke."""

    def __init__(self, app: ASGIApp, origins: tuple[str, ...]) -> None:
        self._app = app
        self._origins = frozenset(origins)
        self._numbers = count(1)
        self._run = secrets.token_hex(4)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = self._request_id(scope)
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"].append((REQUEST_ID, request_id))
            await send(message)

        try:
            if not self._is_welcome(scope):
                await _close(scope, send_with_id, Denied("pages of this origin may not use this server"))
                return
            if b"%" in scope.get("raw_path", b""):
                check_path(scope["raw_path"])
            await self._app(scope, receive, send_with_id)
        except Invalid as error:
            await send_error(scope, send_with_id, error)
        except Gone:
            pass
        except Exception:
            logger.exception("bug: request %s of %s broke", request_id.decode(), scope.get("path"))
            if not started:
                await _close(scope, send_with_id, Busy("the server met a bug of its own"))

    def _request_id(self, scope: Scope) -> bytes:
        given = header(scope, REQUEST_ID)
        if 0 < len(given) <= REQUEST_ID_MAX and given.isascii() and given.decode().isprintable():
            return given
        return f"{self._run}-{next(self._numbers):x}".encode()

    def _is_welcome(self, scope: Scope) -> bool:
        """Whether the request is of no page, of one of ours, or of an origin that is allowed.

        A page anywhere may have a browser send it, and a queue on this machine must not do what it says.
        """
        origin = header(scope, b"origin")
        if not origin or (scope["type"] == "http" and scope["method"] in ("GET", "HEAD", "OPTIONS")):
            return True
        name = origin.decode("latin-1")
        return (
            "*" in self._origins
            or name in self._origins
            or name.partition("://")[2].encode() == header(scope, b"host")
        )


async def _close(scope: Scope, send: Send, error: PenstockError) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": error.message})
    else:
        await send_error(scope, send, error, headers=[(b"connection", b"close")])
