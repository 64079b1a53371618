"""Pops that nobody waits for any more give back what they leased."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from forebay.client.aio.client import Client
from forebay.client.errors import Disconnected
from forebay.client.sync.client import SyncClient
from tests.client.proxy import Gate, Proxy
from tests.serving import PATIENCE_S, Server

WAIT_MS = int(1000 * PATIENCE_S)
GIVEN_BACK_S = 3.0
"""How long it may take until something is given back: far less than a lease lasts."""


def comes_back(direct: SyncClient, queue: str) -> bool:
    """Whether a message can be popped again, and has not failed."""
    found = direct.pop(queue, wait_ms=int(1000 * GIVEN_BACK_S))
    return [each.failures for each in found] == [0]


async def waits(direct: SyncClient, proxy: Proxy) -> None:
    """Return when the server has got a pop that waits."""
    while not proxy.commands("POP"):
        await asyncio.sleep(0.001)
    await asyncio.to_thread(direct.ping)


async def cancelled(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.fixture(params=["TCP", "HTTP"])
def between(request: pytest.FixtureRequest, proxy: Proxy, web_proxy: Proxy) -> Proxy:
    """A proxy before either listener."""
    if request.param == "TCP":
        return proxy
    web_proxy.address = web_proxy.url
    return web_proxy


def run(work: Callable[[Client], Awaitable[None]], server: str, **settings: Any) -> None:
    async def working() -> None:
        async with Client(server, **settings) as client:
            await work(client)

    asyncio.run(working())


def test_a_pop_that_is_cancelled_while_it_waits_takes_nothing(
    between: Proxy, direct: SyncClient, queue: str
) -> None:
    direct.configure(queue)

    async def work(client: Client) -> None:
        popping = asyncio.create_task(client.pop(queue, wait_ms=WAIT_MS))
        await waits(direct, between)
        await cancelled(popping)
        await asyncio.to_thread(direct.push, queue, 1)
        assert await asyncio.to_thread(comes_back, direct, queue)

    run(work, between.address)


def test_a_pop_that_is_cancelled_while_its_answer_is_on_its_way_gives_back(
    proxy: Proxy, direct: SyncClient, queue: str
) -> None:
    """Over HTTP, where a connection has one direction at a time, its lease has to end."""
    between = proxy
    gate = Gate()
    between.on_answer = gate
    direct.configure(queue)

    async def work(client: Client) -> None:
        popping = asyncio.create_task(client.pop(queue, wait_ms=WAIT_MS))
        await waits(direct, between)
        await asyncio.to_thread(direct.push, queue, 1)
        await asyncio.to_thread(gate.wait)
        await cancelled(popping)
        gate.open()
        assert await asyncio.to_thread(comes_back, direct, queue)

    run(work, between.address)


def test_a_pop_that_does_not_wait_gives_back_if_it_is_cancelled(
    between: Proxy, direct: SyncClient, queue: str
) -> None:
    gate = Gate()
    between.on_answer = gate
    direct.push(queue, 1)

    async def work(client: Client) -> None:
        popping = asyncio.create_task(client.pop(queue))
        await asyncio.to_thread(gate.wait)
        await cancelled(popping)
        gate.open()
        assert await asyncio.to_thread(comes_back, direct, queue)

    run(work, between.address)


@pytest.mark.parametrize("turns", range(4))
def test_a_pop_that_is_cancelled_in_the_moment_its_answer_comes_gives_back(
    turns: int, between: Proxy, direct: SyncClient, queue: str
) -> None:
    gate = Gate()
    between.on_answer = gate
    direct.configure(queue)

    async def work(client: Client) -> None:
        popping = asyncio.create_task(client.pop(queue, wait_ms=WAIT_MS))
        await waits(direct, between)
        await asyncio.to_thread(direct.push, queue, 1)
        await asyncio.to_thread(gate.wait)
        gate.open()
        time.sleep(0.05)  # the answer is in the socket, and the loop has not looked yet
        for _ in range(turns):
            await asyncio.sleep(0)
        popping.cancel()
        try:
            await popping
        except asyncio.CancelledError:
            assert await asyncio.to_thread(comes_back, direct, queue)

    run(work, between.address)


def test_a_pop_that_is_cancelled_gives_back_even_if_the_client_is_closed_at_once(
    proxy: Proxy, direct: SyncClient, queue: str
) -> None:
    gate = Gate()
    proxy.on_answer = gate
    direct.configure(queue)

    async def work() -> None:
        async with Client(proxy.address) as client:
            popping = asyncio.create_task(client.pop(queue, wait_ms=WAIT_MS))
            await waits(direct, proxy)
            await asyncio.to_thread(direct.push, queue, 1)
            await asyncio.to_thread(gate.wait)
            await cancelled(popping)
            opening.start()

    opening = threading.Timer(0.1, gate.open)
    asyncio.run(work())
    opening.join()
    assert comes_back(direct, queue)


def test_what_is_given_back_is_not_taken_from_who_has_it_by_now(
    proxy: Proxy, direct: SyncClient, queue: str
) -> None:
    """The lease of a pop whose answer comes late is over, and somebody else has the message."""
    gate = Gate()
    proxy.on_answer = gate
    direct.configure(queue, on_lease_expiry="requeue")

    async def work(client: Client) -> None:
        popping = asyncio.create_task(client.pop(queue, wait_ms=WAIT_MS, lease_ms=50))
        await waits(direct, proxy)
        await asyncio.to_thread(direct.push, queue, 1)
        await asyncio.to_thread(gate.wait)
        (other,) = await asyncio.to_thread(direct.pop, queue, wait_ms=WAIT_MS)
        await cancelled(popping)
        gate.open()
        for _ in range(50):  # until it has said that it gives it back, if it does
            await asyncio.sleep(0.01 if len(proxy.requests) == 1 else 0)
        await client.close()  # which waits for the answer
        assert (await asyncio.to_thread(direct.ack, other)).count == 1

    run(work, proxy.address)


def test_a_timeout_around_a_pop_gives_back(server: Server, direct: SyncClient, queue: str) -> None:
    direct.configure(queue)

    async def work(client: Client) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await client.pop(queue, wait_ms=WAIT_MS)
        await client.push(queue, 1)
        assert (await client.pop(queue, wait_ms=WAIT_MS)).payloads == [1]

    run(work, server.tcp)


def test_messages_of_a_block_that_is_cancelled_come_back_at_once(
    server: Server, direct: SyncClient, queue: str
) -> None:
    direct.push(queue, 1)

    async def work(client: Client) -> None:
        begun = asyncio.Event()

        async def block() -> None:
            async with client.leased(queue):
                begun.set()
                await asyncio.sleep(PATIENCE_S)

        working = asyncio.create_task(block())
        await begun.wait()
        await cancelled(working)
        found = await client.pop(queue, wait_ms=int(1000 * GIVEN_BACK_S))
        assert found.payloads == [1]

    run(work, server.tcp)


def test_other_requests_go_on_when_one_is_cancelled(proxy: Proxy, direct: SyncClient, queue: str) -> None:
    gate = Gate()

    async def work(client: Client) -> None:
        await client.ping()
        proxy.on_answer = gate
        one = asyncio.create_task(client.kv.set([queue], 1))
        two = asyncio.create_task(client.kv.get([queue]))
        await asyncio.to_thread(gate.wait)
        await cancelled(one)
        gate.open()
        await two
        assert await client.kv.get([queue]) == 1
        assert proxy.connections == 1

    run(work, proxy.address)


def test_a_pop_that_waits_ends_when_its_client_is_closed(
    between: Proxy, direct: SyncClient, queue: str
) -> None:
    direct.configure(queue)

    async def work(client: Client) -> None:
        popping = asyncio.create_task(client.pop(queue, wait_ms=WAIT_MS))
        await waits(direct, between)
        await client.close()
        with pytest.raises(Disconnected):
            await popping
        await asyncio.to_thread(direct.push, queue, 1)
        assert await asyncio.to_thread(comes_back, direct, queue)

    run(work, between.address)


def test_a_pop_whose_client_is_closed_while_it_connects_takes_nothing(
    between: Proxy, direct: SyncClient, queue: str
) -> None:
    direct.configure(queue)

    async def work(client: Client) -> None:
        popping = asyncio.create_task(client.pop(queue, wait_ms=WAIT_MS))
        for _ in range(2):
            await asyncio.sleep(0)
        await client.close()
        with pytest.raises(Disconnected):
            await popping
        await asyncio.to_thread(direct.push, queue, 1)
        assert await asyncio.to_thread(comes_back, direct, queue)

    run(work, between.address)
