"""The HTTP listener: uvicorn's protocol in our loop, with limits on connections, headers and time."""

import asyncio
import logging
import secrets
from asyncio import AbstractEventLoop
from collections.abc import Callable
from email.utils import formatdate
from functools import cache, partial
from ipaddress import ip_address
from itertools import count
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit

import uvicorn
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute, Route, Router, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.server import ServerState

from forebay.broker.node import Node
from forebay.core.errors import Busy, Denied, ForebayError, Invalid, NotFound, Unsupported
from forebay.server.http.base import Operation, encode
from forebay.server.http.bodies import Gone, header
from forebay.server.http.commands import CommandEndpoint
from forebay.server.http.connections import Connection, HttpLimits
from forebay.server.http.endpoints import Endpoint, Resource, respond, send_error
from forebay.server.http.events import EventSocket, EventStream, ListenStream
from forebay.server.http.health import Healthz, Metrics, Readyz
from forebay.server.http.openapi import document
from forebay.server.http.operations import OPERATIONS, QUEUE, VIEWS
from forebay.server.http.reference import page
from forebay.server.http.sockets import Socket
from forebay.server.http.streams import BrowseEndpoint, BulkEndpoint, PushEndpoint
from forebay.server.http.webhooks import IncomingEndpoint, WebhookEndpoint
from forebay.server.hub import Hub
from forebay.server.polls import Polls
from forebay.server.questions import Questions
from forebay.server.webhooks import Webhooks

logger = logging.getLogger("forebay.http")

CHECK_S = 1.0
"""How often stalled clients are looked for, and the Date header is made anew."""
LAST_S = 0.5
"""How long requests of connections that were cut get to come to their end."""
EVENTS_SOCKET = "/v1/events/ws"
REQUEST_ID = b"x-request-id"
REQUEST_ID_MAX = 128
"""Characters of a request id that a client gives."""


class HttpServer:
    """Every HTTP connection."""

    def __init__(
        self,
        node: Node,
        loop: AbstractEventLoop,
        limits: HttpLimits,
        version: str,
        connections: Callable[[], dict[str, int]] = dict,
        *,
        clock: Callable[[], int],
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
        self.websockets = frozenset({EVENTS_SOCKET})
        self._clock = clock
        questions = Questions(node)
        self.polls = Polls(self.hub, questions)
        self.webhooks = Webhooks(self.hub, questions, loop, clock, private=limits.webhooks_private)
        self._config = uvicorn.Config(
            self._app(questions),
            http=_connection_class(self),
            ws=_socket_class(self),
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=limits.idle_ms // 1000 + 1,
        )
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        self._config.load()

    def _app(self, questions: Questions) -> ASGIApp:
        self.routes: list[BaseRoute] = [
            *_routes(questions, self.limits.body_bytes_max, self._endpoints()),
            *self._streams(questions),
            *self._pages(questions),
        ]
        # No Starlette around the router: it would answer what breaks in its own way, before the guard can.
        app: ASGIApp = Router(self.routes, redirect_slashes=False, default=_not_found)
        if self.limits.origins:
            app = CORSMiddleware(
                app,
                allow_origins=list(self.limits.origins),
                allow_methods=["GET", "POST", "PUT", "DELETE"],
                allow_headers=["*"],
                expose_headers=["x-request-id", "retry-after"],
            )
        return Guard(app, self.limits.origins)

    def _endpoints(self) -> dict[str, "EndpointKind"]:
        """How operations are answered that take more than one step."""
        webhooks = partial(WebhookEndpoint, webhooks=self.webhooks)
        return {
            "Push": PushEndpoint,
            "Command": partial(CommandEndpoint, polls=self.polls),
            "Browse": BrowseEndpoint,
            "Bulk": BulkEndpoint,
            "ListWebhooks": webhooks,
            "RegisterWebhook": webhooks,
            "DeleteWebhook": webhooks,
            "Incoming": partial(IncomingEndpoint, secret=self.limits.webhook_secret, clock=self._clock),
        }

    def _streams(self, questions: Questions) -> list[BaseRoute]:
        return [
            Route(f"{QUEUE}/listen", GetOnly(ListenStream(self.hub, questions), head=False)),
            Route("/v1/events", GetOnly(EventStream(self.hub, questions), head=False)),
            WebSocketRoute(EVENTS_SOCKET, EventSocket(self.hub, questions)),
        ]

    def _pages(self, questions: Questions) -> list[BaseRoute]:
        described = cache(partial(document, OPERATIONS, VIEWS, self._version))
        return [
            Route("/healthz", GetOnly(Healthz())),
            Route("/readyz", GetOnly(Readyz(self.node))),
            Route("/metrics", GetOnly(Metrics(questions, self.hub, self._all_connections))),
            Route("/openapi.json", GetOnly(Page(lambda: encode(described()), b"application/json"))),
            Route("/docs", GetOnly(Page(lambda: page(described()).encode(), b"text/html; charset=utf-8"))),
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
        return {"http": len(self._state.connections), **self._others()}

    def _tick(self) -> None:
        now = self._loop.time()
        self._state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
        for connection in list(self._state.connections):
            if isinstance(connection, Connection | Socket):
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
            connection.transport.abort()
        while self._state.tasks and self._loop.time() < until + LAST_S:
            await asyncio.sleep(0.01)


def _connection_class(listener: HttpServer) -> type[Connection]:
    return type("Connection", (Connection,), {"listener": listener})


def _socket_class(listener: HttpServer) -> type[Socket]:
    return type("Socket", (Socket,), {"listener": listener})


EndpointKind = Callable[[Operation, Questions, int], Endpoint]


def _routes(questions: Questions, body_bytes_max: int, kinds: dict[str, EndpointKind]) -> list[BaseRoute]:
    """One route a path, whatever can be done there."""
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
    """Something that is always the same, and made when somebody wants to see it: that takes some 0.1 s."""

    def __init__(self, make: Callable[[], bytes], kind: bytes) -> None:
        self._make, self._kind = make, kind
        self._body: bytes | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._body is None:
            self._body = await asyncio.to_thread(self._make)
        await respond(scope, send, 200, self._body, kind=self._kind)


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    error = NotFound(f"there is nothing at {scope['path']}; see /docs")
    if scope["type"] == "websocket":
        await _close(scope, send, error)
    else:
        await send_error(scope, send, error)


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
            connection = scope.get("forebay.connection")
            if connection is not None:
                connection.let_go()
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
        if scope["path"].endswith("/listen"):  # it leases messages, though it is a GET
            if not origin and header(scope, b"sec-fetch-site") in (b"cross-site", b"same-site"):
                return False
        elif scope["type"] == "http" and scope["method"] in ("GET", "HEAD", "OPTIONS"):
            return True
        if not origin:
            return True
        name = origin.decode("latin-1")
        if "*" in self._origins or name in self._origins:
            return True
        place = name.partition("://")[2]
        return place.encode("latin-1") == header(scope, b"host") and _is_certain(place)


def _is_certain(place: str) -> bool:
    """Whether a host can't be made to mean another: names can, so they have to be allowed.

    >>> [_is_certain(each) for each in ("127.0.0.1:8080", "[::1]:8080", "localhost", "queue.example:80")]
    [True, True, True, False]
    """
    try:
        host = urlsplit(f"//{place}").hostname or ""
        return host == "localhost" or bool(ip_address(host))
    except ValueError:
        return False


async def _close(scope: Scope, send: Send, error: ForebayError) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": error.message})
    else:
        await send_error(scope, send, error)
