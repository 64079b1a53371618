"""The TCP listener: accepts connections and checks them for stalls."""

import asyncio
from asyncio import AbstractEventLoop
from itertools import count

from forebay.broker.node import Node
from forebay.core.api.principals import Principal
from forebay.server.access_log import AccessLog
from forebay.server.tcp.codec import Codec, Services
from forebay.server.tcp.connection import STALL_CHECK_S, Connection, TcpLimits
from forebay.server.tls import Tls

OWNERS = count(1)
"""Numbers of connections, of all listeners: leases are known by them."""


class TcpServer:
    """All connections of all sockets, TCP and Unix."""

    def __init__(
        self,
        node: Node,
        loop: AbstractEventLoop,
        limits: TcpLimits,
        codec: Codec,
        services: Services | None,
        carrier: str = "tcp",
        tls: Tls | None = None,
    ) -> None:
        """``tls`` is for its TCP sockets; Unix sockets are plain."""
        self.node = node
        self.loop = loop
        self.limits = limits
        self.codec = codec
        self.services = services
        """None: requests that are more than one command of the core are refused."""
        self.carrier = carrier
        """What lines of the log call it."""
        self._tls = tls
        self.access = AccessLog(loop) if services is None else services.access
        self._connections: dict[Connection, None] = {}
        self._listeners: list[asyncio.Server] = []
        self._check = loop.call_later(STALL_CHECK_S, self._check_stalls)
        self._empty: asyncio.Future[None] | None = None

    async def listen_tcp(self, host: str, port: int) -> str:
        """Accept TCP connections; return the address in use."""
        secured = {} if self._tls is None else self._tls.listening()
        listener = await self.loop.create_server(lambda: Connection(self), host, port, **secured)
        self._listeners.append(listener)
        bound = listener.sockets[0].getsockname()
        return f"[{bound[0]}]:{bound[1]}" if ":" in bound[0] else f"{bound[0]}:{bound[1]}"

    async def listen_unix(self, path: str) -> str:
        """Accept connections on a Unix socket; return its path."""
        listener = await self.loop.create_unix_server(lambda: Connection(self), path)
        self._listeners.append(listener)
        return path

    def certified(self, transport: asyncio.BaseTransport) -> Principal | None:
        """Return the principal of the certificate that a client showed."""
        return None if self._tls is None else self._tls.principal(transport)

    @property
    def connections(self) -> int:
        return len(self._connections)

    def next_owner(self) -> int:
        return next(OWNERS)

    def admit(self, connection: Connection) -> bool:
        """Add a connection; return whether it is within the limit."""
        self._connections[connection] = None
        return len(self._connections) <= self.limits.connections_max

    def gone(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        if not self._connections and self._empty is not None and not self._empty.done():
            self._empty.set_result(None)

    def stop_accepting(self) -> None:
        for listener in self._listeners:
            listener.close()

    def end_all(self) -> None:
        """Accept no more requests; every connection closes after its last reply."""
        for connection in list(self._connections):
            connection.end()

    async def close(self, grace_s: float) -> None:
        """Wait until every connection has closed; abort those left after ``grace_s``."""
        self._check.cancel()
        self.end_all()
        if self._connections:
            self._empty = self.loop.create_future()
            cut = self.loop.call_later(grace_s, self._abort_all)
            await self._empty
            cut.cancel()

    def _abort_all(self) -> None:
        for connection in list(self._connections):
            connection.abort()

    def _check_stalls(self) -> None:
        now = self.loop.time()
        for connection in list(self._connections):
            connection.check_stall(now)
        self._check = self.loop.call_later(STALL_CHECK_S, self._check_stalls)
