"""What is leased for someone who went away is given back: at each moment between question and answer."""

import asyncio
import gzip
import json
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from forebay.broker.node import Node
from forebay.core.api.commands import Pop, Popped
from forebay.core.bounds import Limits
from forebay.core.words import DEFAULT
from forebay.server.access_log import AccessLog
from forebay.server.http.endpoint import Endpoint
from forebay.server.http.identity import CONTEXT
from forebay.server.http.request_body import Gone
from forebay.server.http.routes import ROUTES
from forebay.server.node_client import NodeClient
from forebay.server.operations.carried import Context
from forebay.server.tcp.codec import Services
from forebay.server.workers import Workers
from forebay.store.memory import MemoryStore

BOUND = {bound.name: bound for bound in ROUTES}
NOW = 1_700_000_000_000
LIMITS = Limits(pop_creates_queues=True)


class Flow:
    """Whether the client reads what it is sent."""

    def __init__(self) -> None:
        self.write_paused = False
        self._readable = asyncio.Event()

    async def drain(self) -> None:
        await self._readable.wait()

    def resume(self) -> None:
        self._readable.set()


class Fake:
    """As much of a connection as an endpoint looks at."""

    def __init__(self) -> None:
        self.is_gone = False
        self.flow = Flow()
        self.left = asyncio.Event()

    def stop_reading(self) -> bool:
        return False

    def leave(self) -> None:
        self.is_gone = True
        self.left.set()
        self.flow.resume()


class House:
    """A node and its endpoints, on a running loop."""

    def __init__(self) -> None:
        self.node = Node(MemoryStore(), asyncio.get_running_loop(), lambda: NOW, LIMITS, shards=1)
        self.questions = NodeClient(self.node)
        none: Any = None  # nobody polls for events, nor registers webhooks
        access = AccessLog(asyncio.get_running_loop())
        self._services = Services(self.questions, none, none, access, Workers(lambda: NOW), none)
        self.sent: list[Any] = []

    async def call(self, name: str, body: Any, connection: Fake, **headers: str) -> Any:
        """The body of the answer; raises if the client is gone."""
        bodies = [json.dumps(body).encode()]

        async def receive() -> Any:
            if bodies:
                return {"type": "http.request", "body": bodies.pop(), "more_body": False}
            await connection.left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            self.sent.append(message)

        scope = {
            "type": "http",
            "path_params": {"queue": "q"},
            "query_string": b"",
            "headers": [
                (key.replace("_", "-").encode(), value.encode("latin-1")) for key, value in headers.items()
            ],
            "forebay.connection": connection,
            CONTEXT: Context(),
        }
        await Endpoint(BOUND[name], self._services, 1_000_000)(scope, receive, send)
        return self.sent[-1]["body"]

    async def push(self, payload: Any) -> None:
        await self.call("Push", {"payload": payload}, Fake())
        self.sent.clear()

    async def pop_again(self) -> Popped:
        reply = await self.questions.ask(Pop(DEFAULT, "q"))
        assert isinstance(reply, Popped)
        return reply

    async def nothing_was_taken(self) -> None:
        assert self.sent == []
        (delivery,) = (await self.pop_again()).deliveries
        assert (delivery.failures, delivery.deliveries) == (0, 1)


def run(life: Callable[[House], Awaitable[None]]) -> None:
    async def inner() -> None:
        await life(House())

    asyncio.run(inner())


@pytest.mark.parametrize("wait_ms", [0, 60_000])
def test_a_client_that_leaves_between_the_commit_and_the_answer_takes_nothing(wait_ms: int) -> None:
    async def life(house: House) -> None:
        await house.push("kept")
        connection = Fake()
        asked = asyncio.ensure_future(house.call("Pop", {"wait_ms": wait_ms}, connection))
        await asyncio.sleep(0)
        connection.leave()
        with pytest.raises(Gone):
            await asked
        await house.nothing_was_taken()

    run(life)


@pytest.mark.parametrize("turns", range(8))
def test_a_client_that_leaves_at_any_turn_of_the_loop_takes_nothing_or_is_answered(turns: int) -> None:
    async def life(house: House) -> None:
        connection = Fake()
        asked = asyncio.ensure_future(house.call("Pop", {"wait_ms": 60_000}, connection))
        for _ in range(5):
            await asyncio.sleep(0)
        pushed = asyncio.ensure_future(house.call("Push", {"payload": "kept"}, Fake()))
        for _ in range(turns):
            await asyncio.sleep(0)
        connection.leave()
        await pushed
        try:
            assert b"kept" in await asked
        except Gone:
            house.sent.clear()
            await house.nothing_was_taken()

    run(life)


def test_a_client_that_leaves_while_it_does_not_read_takes_nothing() -> None:
    async def life(house: House) -> None:
        await house.push("kept")
        connection = Fake()
        connection.flow.write_paused = True
        asked = asyncio.ensure_future(house.call("Pop", {}, connection))
        for _ in range(10):
            await asyncio.sleep(0)
        assert (await house.pop_again()).deliveries == []
        connection.leave()
        with pytest.raises(Gone):
            await asked
        await house.nothing_was_taken()

    run(life)


def test_a_client_that_leaves_while_its_answer_is_packed_takes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, has_left = threading.Event(), threading.Event()

    def compress(body: bytes, *how: Any, **more: Any) -> bytes:
        begun.set()
        has_left.wait()
        return body

    monkeypatch.setattr(gzip, "compress", compress)

    async def life(house: House) -> None:
        await house.push("x" * 500_000)
        connection = Fake()
        asked = asyncio.ensure_future(house.call("Pop", {}, connection, accept_encoding="gzip"))
        while not begun.is_set():
            await asyncio.sleep(0)
        connection.leave()
        has_left.set()
        with pytest.raises(Gone):
            await asked
        await house.nothing_was_taken()

    run(life)
