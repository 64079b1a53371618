"""A whole server in a thread of this process: start, stop, restart, and calls into it."""

import asyncio
import secrets
import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from msgspec.structs import asdict, replace

from forebay.client.access import NO_ACCESS, Access
from forebay.client.sync.client import SyncClient
from forebay.core.bounds import Limits
from forebay.core.words import DEFAULT
from forebay.server.http.connection import HttpLimits
from forebay.server.http.server import HttpServer
from forebay.server.operations import codec
from forebay.server.tcp.connection import TcpLimits
from forebay.server.tcp.server import TcpServer
from forebay.store.base import Store
from forebay.testing.clock import BEGIN, Clock, Instant, ms_of
from forebay.testing.node import Ledger, SteeredNode
from forebay.testing.worker import PATIENCE_S

T = TypeVar("T")

HERE = "127.0.0.1"
STOP_S = 2.0
"""Time for connections to read their last responses."""


class Life:
    """A running server: a broker on a store in memory, a TCP and an HTTP listener."""

    def __init__(
        self,
        store: Store,
        *,
        at: int | Instant = BEGIN,
        going: bool = False,
        limits: Limits | None = None,
        http_limits: HttpLimits | None = None,
        asks: bool = False,
    ) -> None:
        self.admin_token = secrets.token_urlsafe() if asks else ""
        """Token of the admin of a server that asks everybody who he is; empty if it asks nobody."""
        self._limits = limits or Limits()
        self._http_limits = http_limits or HttpLimits(webhooks_private=True)
        self._kept_in = store
        self._ledger = Ledger()
        self._loop: AbstractEventLoop = asyncio.new_event_loop()
        self._clock = Clock(ms_of(at), self._loop.time, going=going)
        self._thread = threading.Thread(target=self._loop.run_forever, name="forebay-testing", daemon=True)
        self._clients: list[SyncClient] = []
        self._own: SyncClient | None = None
        self.tcp = f"{HERE}:0"
        """Address of the TCP listener."""
        self._http_at = f"{HERE}:0"

    # Start and stop.

    def start(self) -> None:
        self._thread.start()
        self._run(self._start())

    def stop(self) -> None:
        """Stop gracefully; clients that it made are closed."""
        for client in self._clients:
            client.close()
        try:
            self._run(self._stop())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(PATIENCE_S)
            self._loop.close()

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        self._node = SteeredNode(self._kept_in, loop, self._clock, self._limits, self._ledger)
        self._web = HttpServer(
            self._node,
            loop,
            self._http_limits,
            "testing",
            lambda: {"tcp": self._tcp.connections},
            clock=self._clock.now,
            admin_token=self.admin_token,
        )
        self._tcp = TcpServer(self._node, loop, TcpLimits(), codec, self._web.services)
        self._http_at = await self._web.listen(HERE, _port(self._http_at))
        self.tcp = await self._tcp.listen_tcp(HERE, _port(self.tcp))
        self._web.webhooks.start()

    async def _stop(self) -> None:
        for listener in (self._tcp, self._web):
            listener.stop_accepting()
            listener.end_all()
        self._web.webhooks.stop()
        await self._node.drain()
        closing = (self._tcp.close(STOP_S), self._web.close(STOP_S), self._web.webhooks.close(STOP_S))
        await asyncio.gather(*closing)
        self._node.close()
        await asyncio.get_running_loop().shutdown_default_executor()

    async def _restart(self) -> None:
        for listener in (self._tcp, self._web):
            listener.stop_accepting()
        self._web.webhooks.stop()
        self._web.hub.end()
        self._node.crash()
        await self._cut()
        await asyncio.gather(self._tcp.close(0.0), self._web.close(0.0), self._web.webhooks.close(0.0))
        self._ledger.forget_asked()
        await self._start()

    async def _cut(self) -> None:
        self._tcp._abort_all()
        for connection in list(self._web._state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)

    # Calls into it.

    @property
    def http(self) -> str:
        """URL of the HTTP listener."""
        return f"http://{self._http_at}"

    @property
    def access(self) -> Access:
        """How its admin gets in; the environment is for other servers than this."""
        return replace(NO_ACCESS, token=self.admin_token)

    def client(
        self,
        *,
        http: bool = False,
        token: str | None = None,
        tenant: str = "",
        timeout_s: float = 30.0,
        retry_s: float = 10.0,
    ) -> SyncClient:
        """Return a blocking client of it, over TCP or HTTP; it is closed with the server.

        It is the admin, unless it has another token, and may act for a tenant.
        """
        shows = asdict(self.access) | {"tenant": tenant} | ({} if token is None else {"token": token})
        made = SyncClient(self.http if http else self.tcp, **shows, timeout_s=timeout_s, retry_s=retry_s)
        self._clients.append(made)
        return made

    def token(self, role: str = "owner", tenant: str = DEFAULT, queues: Sequence[str] = ()) -> str:
        """Return a new token for a tenant, which is created if it is not there."""
        if tenant != DEFAULT:
            self._mine.tenants.create(tenant)
        return self._mine.tokens.create(role, queues=queues, tenant=tenant).token

    @property
    def _mine(self) -> SyncClient:
        if self._own is None:
            self._own = self.client()
        return self._own

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the server's event loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE_S)

    def _call(self, function: Callable[[], T]) -> T:
        """Call a function on the server's event loop."""

        async def called() -> T:
            return function()

        return self._run(called())

    def _settle(self) -> None:
        """Wait until everything is committed."""
        self._run(self._node.settled())


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])
