"""A listener for HTTP: uvicorn's protocol in our event loop, with limits on connections, headers and time.

What is served is an ASGI application. The native API and the doors of other systems each have a listener,
so limits, stalls and shutdown are the same on all of them.
"""

import asyncio
import logging
from asyncio import AbstractEventLoop
from collections.abc import Container
from email.utils import formatdate
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from forebay.core.api.principals import Principal
from forebay.core.errors import ForebayError
from forebay.server.http.connection import Connection, HttpLimits
from forebay.server.http.endpoint import told
from forebay.server.http.operation import encode
from forebay.server.http.websocket import Socket
from forebay.server.tls import Tls

CHECK_S = 1.0
"""Interval of the check for stalled clients, and of the Date header."""
LAST_S = 0.5
"""How long requests of aborted connections get to finish."""


class HttpListener:
    """All connections of one address."""

    websockets: Container[str] = frozenset()
    """Paths that accept an upgrade to WebSocket; elsewhere the upgrade is ignored."""

    def __init__(self, loop: AbstractEventLoop, limits: HttpLimits, tls: Tls | None = None) -> None:
        self.limits = limits
        self._tls = tls
        self._loop = loop
        self._state = ServerState()
        self._listeners: list[asyncio.Server] = []
        self._check: asyncio.TimerHandle | None = None

    def serve(self, app: ASGIApp) -> None:
        """Set what is served; once, before it listens."""
        self._config = uvicorn.Config(
            app,
            http=type("Connection", (Connection,), {"listener": self}),
            ws=type("Socket", (Socket,), {"listener": self}),
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=self.limits.idle_ms // 1000 + 1,
        )
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        self._config.load()

    def error_body(self, error: ForebayError) -> bytes:
        """Return the body of the response to a request that never reached the application."""
        return encode(told(error))

    @property
    def connections(self) -> int:
        return len(self._state.connections)

    def certified(self, transport: asyncio.BaseTransport) -> Principal | None:
        """Return the principal of the certificate that a client showed."""
        return None if self._tls is None else self._tls.principal(transport)

    async def listen(self, host: str, port: int) -> str:
        """Accept connections; return the address in use."""
        state, config = self._state, self._config
        kind: Any = config.http_protocol_class
        secured = {} if self._tls is None else self._tls.listening()
        listener = await self._loop.create_server(
            lambda: kind(config, state, {}, self._loop), host, port, **secured
        )
        self._listeners.append(listener)
        self._tick()
        bound = listener.sockets[0].getsockname()
        return f"[{bound[0]}]:{bound[1]}" if ":" in bound[0] else f"{bound[0]}:{bound[1]}"

    def _tick(self) -> None:
        now = self._loop.time()
        self._state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
        for connection in list(self._state.connections):
            if isinstance(connection, Connection | Socket):
                connection.check_stall(now)
        self._check = self._loop.call_later(CHECK_S, self._tick)

    # Shutdown.

    def stop_accepting(self) -> None:
        for listener in self._listeners:
            listener.close()

    def end_all(self) -> None:
        """Accept no more requests; every connection closes after its last reply."""
        for connection in list(self._state.connections):
            connection.shutdown()

    async def close(self, grace_s: float) -> None:
        """Wait until every connection has closed; abort those left after ``grace_s``."""
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
