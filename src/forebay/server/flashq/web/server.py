"""flashQ's HTTP door: its routes, streams and pages, on a listener of their own."""

import html
from asyncio import AbstractEventLoop
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgspec
from msgspec import Raw
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute, Route as Path, Router, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from forebay.broker.auth import Auth
from forebay.broker.node import Node
from forebay.core.api.principals import READ
from forebay.core.errors import ForebayError
from forebay.server.flashq.door import Door
from forebay.server.flashq.web.answers import everything
from forebay.server.flashq.web.auth import Bearers
from forebay.server.flashq.web.calls import Call
from forebay.server.flashq.web.commands import CARRIER, Commands, Refused
from forebay.server.flashq.web.envelope import Guarded, Resource, failure, nothing_here, send_refusal
from forebay.server.flashq.web.feeds import Feeds
from forebay.server.flashq.web.figures import History
from forebay.server.flashq.web.routes import TABLE, Route
from forebay.server.flashq.web.streams import Dashboard, EventSocket, EventStream
from forebay.server.flashq.web.system import Facts, System
from forebay.server.flashq.web.webhooks import WebhookRoutes
from forebay.server.flashq.web.workers import WorkerRoutes, shown
from forebay.server.http.connection import HttpLimits
from forebay.server.http.endpoint import respond, while_there
from forebay.server.http.listener import HttpListener
from forebay.server.tcp.codec import Services
from forebay.server.tls import Tls

_encode = msgspec.json.Encoder().encode
TEXT = b"text/plain; version=0.0.4; charset=utf-8"
HTML = b"text/html; charset=utf-8"


class Sockets:
    """The paths of WebSockets: a queue's name may follow."""

    def __contains__(self, path: object) -> bool:
        return path == "/ws" or (isinstance(path, str) and path.startswith("/ws/"))


class FlashqHttp(HttpListener):
    """All HTTP connections of flashQ's clients."""

    websockets = Sockets()

    def __init__(
        self,
        node: Node,
        loop: AbstractEventLoop,
        limits: HttpLimits,
        door: Door,
        services: Services,
        *,
        tokens: int,
        version: str,
        clock: Callable[[], int],
        connections: Callable[[], Mapping[str, int]] = dict,
        tls: Tls | None = None,
    ) -> None:
        """Set up the routes; ``connections`` returns those of all listeners, ``tokens`` is their number."""
        super().__init__(loop, limits, tls)
        questions = services.questions
        self.feeds = Feeds(services.polls.hub, questions, loop, clock)
        self._access = services.access
        self._workers = door.workers
        self._commands = Commands(door, services, self.feeds)
        self._history = History(questions, door.workers, loop, clock)
        facts = Facts(version, clock(), tokens)
        self.system = System(node, facts, clock, connections)
        self._clock = clock
        webhooks = WebhookRoutes(services, limits.webhook_secret, clock)
        self.table: tuple[Route, ...] = (
            *TABLE,
            *self._own_routes(),
            *WorkerRoutes(door.workers).routes(),
            *webhooks.routes(),
            *self.system.routes(),
        )
        self.serve(self._app(door, services.auth))

    def error_body(self, error: ForebayError) -> bytes:
        return failure(error.message)

    async def listen(self, host: str, port: int) -> str:
        address = await super().listen(host, port)
        self.system.places["http"] = int(address.rpartition(":")[2])
        await self._history.start()
        return address

    def end_all(self) -> None:
        self._history.stop()
        self.feeds.end()
        super().end_all()

    # Routes.

    def _own_routes(self) -> list[Route]:
        return [
            Route("POST", "/api/command", self._command, "Alias: any command, as over TCP.", True),
            Route(
                "GET",
                "/metrics/history",
                self._samples,
                "Samples of the last hour.",
                needs=(READ,),
                of_server=True,
            ),
        ]

    def _app(self, door: Door, auth: Auth) -> ASGIApp:
        stream, socket = EventStream(self.feeds, self._commands), EventSocket(self.feeds, self._commands)
        routes: list[BaseRoute] = [
            Path("/metrics/prometheus", Text(self._history.prometheus, TEXT)),
            Path("/docs", Text(self._docs, HTML)),
            Path("/events", stream),
            Path("/events/job/{id}", stream),
            Path("/events/{queue}", stream),
            Path("/queues/{queue}/events", stream),
            WebSocketRoute("/ws", socket),
            WebSocketRoute("/ws/dashboard", Dashboard(self._dashboard, self._commands)),
            WebSocketRoute("/ws/{queue}", socket),
            *self._resources(),
        ]
        app: ASGIApp = Router(routes, redirect_slashes=False, default=nothing_here)
        app = Bearers(app, door, auth, incoming_signed=bool(self.limits.webhook_secret))
        if self.limits.origins:
            app = CORSMiddleware(
                app,
                allow_origins=list(self.limits.origins),
                allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
                allow_headers=["*"],
                expose_headers=["x-request-id", "retry-after"],
            )
        return Guarded(app, self.limits.origins, self._access, CARRIER)

    def _resources(self) -> list[BaseRoute]:
        """Return one route per path, with all its methods."""
        by_path: dict[str, dict[str, Route]] = {}
        for route in self.table:
            by_path.setdefault(route.path, {})[route.method] = route
        return [
            Path(path, Resource(self._commands, self.limits.body_bytes_max, routes))
            for path, routes in by_path.items()
        ]

    async def _command(self, call: Call) -> Raw:
        return Raw(_encode(await call.run(await call.body())))

    async def _samples(self, call: Call) -> Raw:
        return Raw(_encode(list(self._history.samples)))

    async def _dashboard(self, call: Call) -> bytes:
        """Return all figures, as flashQ's dashboard expects them."""
        return _encode(
            {
                "stats": everything(await call.ask("STATS")),
                "metrics": (await call.ask("METRICS"))["metrics"],
                "queues": (await call.ask("LISTQUEUES"))["queues"],
                "workers": shown(self._workers, call.context.tenant),
                "crons": (await call.ask("CRONLIST"))["crons"],
                "metrics_history": list(self._history.samples),
                "system_metrics": self.system.figures(),
                "sqlite_stats": None,
                "timestamp": self._clock(),
            }
        )

    async def _docs(self) -> bytes:
        rows = "".join(
            f"<tr><td>{each.method}</td><td><code>{html.escape(each.path.replace(':path', ''))}</code></td>"
            f"<td>{html.escape(each.about)}</td></tr>"
            for each in sorted(self.table, key=lambda each: (each.path, each.method))
        )
        return (
            "<!doctype html><html lang=en><meta charset=utf-8><title>flashQ's HTTP API</title>"
            f"<h1>flashQ's HTTP API</h1><table>{rows}</table></html>"
        ).encode()


class Text:
    """A page that is not JSON."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, bytes]], kind: bytes) -> None:
        self._make, self._kind = make, kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in ("GET", "HEAD"):
            refused = Refused(405, f"{scope['method']} is not supported here, only GET, HEAD")
            await send_refusal(scope, send, refused, [(b"allow", b"GET, HEAD")])
            return
        try:
            body = await while_there(scope, receive, self._make())
        except Refused as refused:
            await send_refusal(scope, send, refused)
            return
        await respond(scope, send, 200, body, kind=self._kind)
