"""The native API over HTTP: its routes, streams and pages, on a listener of their own."""

import asyncio
from asyncio import AbstractEventLoop
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING

from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute, Route, Router, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from forebay.broker.auth import Auth
from forebay.broker.node import Node
from forebay.core.errors import NotFound, Unsupported
from forebay.server.access_log import AccessLog
from forebay.server.events.hub import Hub
from forebay.server.events.poll import Polls
from forebay.server.events.workers import tell_of_worker
from forebay.server.http.connection import HttpLimits
from forebay.server.http.docs.openapi import document
from forebay.server.http.docs.page import page
from forebay.server.http.endpoint import Endpoint, Resource, respond, send_error
from forebay.server.http.event_streams import EventSocket, EventStream, ListenStream
from forebay.server.http.guard import Guard, refuse
from forebay.server.http.health import Healthz, Readyz
from forebay.server.http.identity import Identified, Identities
from forebay.server.http.incoming import IncomingEndpoint
from forebay.server.http.listener import HttpListener
from forebay.server.http.metrics import Metrics
from forebay.server.http.operation import Bound, encode
from forebay.server.http.push_stream import PushEndpoint
from forebay.server.http.routes import QUEUE, ROUTES, VIEWS
from forebay.server.http.wire_command import CommandEndpoint
from forebay.server.node_client import NodeClient
from forebay.server.tcp.codec import Services
from forebay.server.tls import Tls
from forebay.server.webhooks.registry import Webhooks
from forebay.server.workers import Workers

if TYPE_CHECKING:
    from forebay.broker.jwt import Jwt

EVENTS_SOCKET = "/v1/events/ws"
INCOMING = "/v1/webhooks/"
"""Where other systems post, which have a signature and no token."""


class HttpServer(HttpListener):
    """All connections of the native API."""

    websockets = frozenset({EVENTS_SOCKET})

    def __init__(
        self,
        node: Node,
        loop: AbstractEventLoop,
        limits: HttpLimits,
        version: str,
        connections: Callable[[], dict[str, int]] = dict,
        *,
        clock: Callable[[], int],
        admin_token: str = "",
        jwt: "Jwt | None" = None,
        tls: Tls | None = None,
    ) -> None:
        """Set up the routes; ``connections`` returns the connections of other listeners, for metrics."""
        super().__init__(loop, limits, tls)
        self.node = node
        self._version = version
        self._others = connections
        self.hub = Hub(node, loop)
        self._clock = clock
        questions = NodeClient(node)
        self.polls = Polls(self.hub, questions)
        self.webhooks = Webhooks(self.hub, questions, loop, clock, private=limits.webhooks_private)
        self.workers = Workers(clock, loop, partial(tell_of_worker, self.hub))
        access = AccessLog(loop, limits.slow_ms)
        closed = tls is not None and tls.has_principals
        self.auth = Auth(node, loop, admin_token, jwt, closed=closed)
        self.services = Services(questions, self.polls, self.webhooks, access, self.workers, self.auth)
        self.serve(self._app(questions))

    def _app(self, questions: NodeClient) -> ASGIApp:
        self.routes: list[BaseRoute] = [
            *_routes(self.services, self.limits.body_bytes_max, self._endpoints()),
            *self._streams(questions),
            *self._pages(questions),
        ]
        # Router without Starlette around it: Starlette would answer exceptions itself, before the guard does.
        app: ASGIApp = Router(self.routes, redirect_slashes=False, default=_not_found)
        is_signed = bool(self.limits.webhook_secret)
        app = Identified(app, Identities(self.auth, self.node.limits), refuse, INCOMING, signed=is_signed)
        if self.limits.origins:
            app = CORSMiddleware(
                app,
                allow_origins=list(self.limits.origins),
                allow_methods=["GET", "POST", "PUT", "DELETE"],
                allow_headers=["*"],
                expose_headers=["x-request-id", "retry-after"],
            )
        return Guard(app, self.limits.origins, self.services.access)

    def _endpoints(self) -> dict[str, "EndpointKind"]:
        """Return the endpoints of operations whose bodies are read in a way of their own."""
        return {
            "Push": PushEndpoint,
            "Command": CommandEndpoint,
            "Incoming": partial(IncomingEndpoint, secret=self.limits.webhook_secret, clock=self._clock),
        }

    def _streams(self, questions: NodeClient) -> list[BaseRoute]:
        return [
            Route(f"{QUEUE}/listen", GetOnly(ListenStream(self.hub, questions), head=False)),
            Route("/v1/events", GetOnly(EventStream(self.hub, questions), head=False)),
            WebSocketRoute(EVENTS_SOCKET, EventSocket(self.hub, questions)),
        ]

    def _pages(self, questions: NodeClient) -> list[BaseRoute]:
        described = cache(partial(document, ROUTES, VIEWS, self._version))
        return [
            Route("/healthz", GetOnly(Healthz())),
            Route("/readyz", GetOnly(Readyz(self.node))),
            Route("/metrics", GetOnly(self._metrics(questions))),
            Route("/openapi.json", GetOnly(Page(lambda: encode(described()), b"application/json"))),
            Route("/docs", GetOnly(Page(lambda: page(described()).encode(), b"text/html; charset=utf-8"))),
        ]

    def _metrics(self, questions: NodeClient) -> Metrics:
        queues_max = self.limits.metrics_queues_max
        return Metrics(questions, self.hub, self.workers, self._all_connections, queues_max)

    def _all_connections(self) -> dict[str, int]:
        return {"http": self.connections, **self._others()}

    def end_all(self) -> None:
        self.hub.end()
        self.workers.close()
        super().end_all()


EndpointKind = Callable[[Bound, Services, int], Endpoint]


def _routes(services: Services, body_bytes_max: int, kinds: dict[str, EndpointKind]) -> list[BaseRoute]:
    """Return one route per path, with all its methods."""
    by_path: dict[str, dict[str, Endpoint]] = {}
    for each in ROUTES:
        kind = kinds.get(each.name, Endpoint)
        endpoint = kind(each, services, body_bytes_max)
        by_path.setdefault(each.route.path, {})[each.route.method] = endpoint
    return [Route(_with_slashes(path), Resource(methods)) for path, methods in by_path.items()]


def _with_slashes(path: str) -> str:
    """Let keys, job ids, and names of groups, crons and stages contain slashes."""
    for place in ("key", "group", "name", "job_id", "stage"):
        path = path.replace(f"{{{place}}}", f"{{{place}:path}}")
    return path


class GetOnly:
    """Refuses all methods but GET, and HEAD unless it is a stream."""

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
    """A constant page, generated on the first request: that takes about 0.1 s."""

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
        await refuse(scope, send, error)
    else:
        await send_error(scope, send, error)
