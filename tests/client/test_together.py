"""Pushes that are made at the same time."""

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from forebay.client.aio.client import Client
from forebay.client.sync.client import SyncClient
from forebay.client.types import Pushed
from forebay.core.errors import Invalid, NotFound
from tests.client.proxy import Gate, Proxy
from tests.serving import PATIENCE_S, Server


def log(client: SyncClient, queue: str) -> list[Any]:
    return [each.payload for each in client.records(queue)]


def test_pushes_at_the_same_time_share_a_request_and_keep_their_order(
    proxy: Proxy, direct: SyncClient, queue: str
) -> None:
    async def push() -> list[Pushed]:
        async with Client(proxy.address) as client:
            return await asyncio.gather(*(client.push(queue, at) for at in range(1_000)))

    pushed = asyncio.run(push())
    assert len(proxy.requests) == 1
    assert log(direct, queue) == list(range(1_000))
    assert [each.id for each in pushed] == [each.id for each in direct.records(queue)]


def test_while_a_request_is_on_its_way_others_gather_for_the_next(
    proxy: Proxy, direct: SyncClient, queue: str
) -> None:
    gate = Gate()
    proxy.on_answer = gate

    async def push() -> None:
        async with Client(proxy.address) as client:
            first = asyncio.create_task(client.push(queue, "first"))
            await asyncio.to_thread(gate.wait)
            others = [asyncio.create_task(client.push(queue, at)) for at in range(100)]
            await asyncio.sleep(0)
            gate.open()
            await asyncio.gather(first, *others)

    asyncio.run(push())
    assert len(proxy.requests) == 2
    assert log(direct, queue) == ["first", *range(100)]


def test_pushes_to_several_queues_do_not_wait_for_each_other(
    proxy: Proxy, direct: SyncClient, queue: str
) -> None:
    async def push() -> None:
        async with Client(proxy.address) as client:
            await client.ping()
            gate = Gate(lambda body: b'"held"' in body)
            proxy.on_request = gate
            await asyncio.gather(*(client.push(f"{queue}-{at}", at) for at in range(5)))
            gate.open()

    asyncio.run(push())
    assert [log(direct, f"{queue}-{at}") for at in range(5)] == [[at] for at in range(5)]


def test_options_of_pushes_that_share_a_request_are_their_own(
    proxy: Proxy, direct: SyncClient, queue: str
) -> None:
    async def push() -> tuple[Pushed, ...]:
        async with Client(proxy.address) as client:
            return await asyncio.gather(
                client.push(queue, "low"),
                client.push(queue, "high", priority=5),
                client.push(queue, "one", unique_key="k"),
                client.push(queue, "two", unique_key="k"),
                client.push(queue, "three", unique_key="k", dedup="replace"),
                client.push(queue, "late", delay_ms=3_600_000),
            )

    pushed = asyncio.run(push())
    assert len(proxy.commands("PUSH")) == 1
    assert pushed[2].id == pushed[3].id == pushed[4].id
    assert [each.duplicate for each in pushed] == [False, False, False, True, False, False]
    assert pushed[4].replaced
    assert direct.pop(queue, 9).payloads == ["high", "low", "three"]


BAD: dict[str, tuple[dict[str, Any], type[Exception]]] = {
    "a priority that is no number": ({"priority": "high"}, Invalid),
    "an option that nobody knows": ({"surprise": 1}, Invalid),
    "a dependency that was never there": ({"depends_on": [1 << 50]}, NotFound),
}


@pytest.mark.parametrize("bad", BAD)
def test_one_bad_push_among_many_fails_alone(bad: str, proxy: Proxy, direct: SyncClient, queue: str) -> None:
    options, kind = BAD[bad]

    async def push() -> list[Pushed | BaseException]:
        async with Client(proxy.address) as client:
            return await asyncio.gather(
                *(client.push(queue, at) for at in range(10)),
                client.push(queue, "bad", **options),
                *(client.push(queue, at) for at in range(10, 20)),
                return_exceptions=True,
            )

    pushed = asyncio.run(push())
    assert isinstance(pushed[10], kind)
    assert [each for each in pushed if isinstance(each, Exception)] == [pushed[10]]
    assert log(direct, queue) == list(range(20))


def test_one_bad_push_among_many_does_not_cost_a_request_for_each(proxy: Proxy, queue: str) -> None:
    async def push() -> None:
        async with Client(proxy.address) as client:
            pushes = [client.push(queue, at) for at in range(1_000)]
            bad = client.push(queue, "bad", priority="high")  # type: ignore[arg-type]
            await asyncio.gather(*pushes, bad, return_exceptions=True)

    asyncio.run(push())
    assert len(proxy.requests) < 50


def test_a_payload_that_is_too_large_fails_alone(proxy: Proxy, direct: SyncClient, queue: str) -> None:
    async def push() -> list[Pushed | BaseException]:
        async with Client(proxy.address) as client:
            payloads = (1, "x" * (1 << 20), 2)
            return await asyncio.gather(
                *(client.push(queue, each) for each in payloads), return_exceptions=True
            )

    _, large, _ = asyncio.run(push())
    assert isinstance(large, Invalid)
    assert log(direct, queue) == [1, 2]


def test_a_push_that_is_given_up_before_it_is_sent_is_not_made(
    proxy: Proxy, direct: SyncClient, queue: str
) -> None:
    gate = Gate()
    proxy.on_answer = gate

    async def push() -> None:
        async with Client(proxy.address) as client:
            first = asyncio.create_task(client.push(queue, "first"))
            await asyncio.to_thread(gate.wait)
            second = asyncio.create_task(client.push(queue, "second"))
            third = asyncio.create_task(client.push(queue, "third"))
            await asyncio.sleep(0)
            second.cancel()
            gate.open()
            await asyncio.gather(first, third)

    asyncio.run(push())
    assert log(direct, queue) == ["first", "third"]


def test_a_push_that_is_given_up_on_its_way_does_not_take_others_with_it(
    proxy: Proxy, direct: SyncClient, queue: str
) -> None:
    gate = Gate()
    proxy.on_answer = gate

    async def push() -> Pushed:
        async with Client(proxy.address) as client:
            one = asyncio.create_task(client.push(queue, 1))
            two = asyncio.create_task(client.push(queue, 2))
            await asyncio.to_thread(gate.wait)
            one.cancel()
            gate.open()
            return await two

    assert asyncio.run(push()).id == list(direct.records(queue))[1].id
    assert log(direct, queue) == [1, 2]


def test_a_push_never_hangs_whatever_goes_wrong_below(queue: str, proxy: Proxy) -> None:
    async def push() -> None:
        client = Client(f"http://{proxy.address}")
        await client.close()
        async with asyncio.timeout(PATIENCE_S / 10):
            await client.push(queue, 1)

    with pytest.raises(Exception) as raised:
        asyncio.run(push())
    assert not isinstance(raised.value, TimeoutError)


GONE = """
import asyncio, sys
from forebay import Client

client = Client(sys.argv[1])
gone = asyncio.new_event_loop()
pushing = gone.create_task(client.push(sys.argv[2], 1))
while not client._pusher._waiting:
    gone.run_until_complete(asyncio.sleep(0))
gone.close()

async def pushed():
    async with asyncio.timeout(10):
        return (await client.push(sys.argv[2], 2)).durability

print(asyncio.run(pushed()))
"""


def test_a_push_is_not_held_up_by_one_whose_loop_is_gone(server: Server, queue: str) -> None:
    given = [sys.executable, "-c", GONE, server.tcp, queue]
    done = subprocess.run(given, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stdout == "fsync\n", done.stderr
