"""A server, workers and the ways between them in one event loop with simulated time.

Whoever tests what happens when a lease ends wants the lease to end when the test says so, and not when the
machine is busy. Jobs here are coroutines: threads and processes have a time of their own.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from forebay.broker.node import Node
from forebay.client.tasks.app import App
from forebay.core.bounds import Limits
from forebay.server.http.connection import HttpLimits
from forebay.server.http.server import HttpServer
from forebay.server.operations import codec
from forebay.server.tcp.connection import TcpLimits
from forebay.server.tcp.server import TcpServer
from forebay.store.memory import MemoryStore
from tests.client.worker.working import bounded
from tests.leaping import LeapingLoop

T = TypeVar("T")

BEGIN = 1_700_000_000_000
"""When time begins, in ms."""
WITHIN_S = 600.0
"""How long a life may take, in its own time."""
STOP_S = 1.0


class Simulated:
    """A server that runs while a life is played."""

    def __init__(self, address: str) -> None:
        self.address = address

    def app(self) -> App:
        return App("simulated", server=self.address, queue="jobs")

    def play(self, life: Coroutine[Any, Any, T]) -> T:
        """Return what a coroutine returns; the server is there until then."""

        async def played() -> T:
            async with self._serving():
                return await bounded(life, WITHIN_S)

        with asyncio.Runner(loop_factory=LeapingLoop) as runner:
            return runner.run(played())

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()

        def now() -> int:
            return BEGIN + round(loop.time() * 1000)

        node = Node(MemoryStore(), loop, now, Limits(), shards=1)
        web = HttpServer(node, loop, HttpLimits(), "simulated", dict, clock=now)
        server = TcpServer(node, loop, TcpLimits(), codec, web.services)
        await server.listen_unix(self.address)
        try:
            yield
        finally:
            server.stop_accepting()
            server.end_all()
            await node.drain()
            await asyncio.gather(server.close(STOP_S), web.close(STOP_S))
            node.close()


@pytest.fixture
def simulated() -> Iterator[Simulated]:
    # The path of a Unix socket has at most 107 bytes: pytest's own directories may be longer.
    with tempfile.TemporaryDirectory(prefix="forebay-") as directory:
        yield Simulated(str(Path(directory) / "server"))
