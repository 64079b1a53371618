"""What is sent again when a connection is lost, and what comes of it."""

import asyncio
import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from forebay.client.aio.client import Client
from forebay.client.backoff import Patience
from forebay.client.errors import Disconnected
from forebay.client.sync.client import SyncClient
from forebay.client.types import New, Pushed
from forebay.core.errors import Conflict, Invalid
from tests.client.conftest import Dial
from tests.client.proxy import Do, Proxy, first
from tests.serving import Server

SEEDS = range(2)


@pytest.fixture(params=["TCP", "HTTP"])
def between(request: pytest.FixtureRequest, server: Server) -> Iterator[Proxy]:
    """A proxy before either listener."""
    with Proxy(server.tcp if request.param == "TCP" else server.http) as running:
        if request.param == "HTTP":
            running.address = running.url
        yield running


def log(client: SyncClient, queue: str) -> list[Any]:
    return [each.payload for each in client.records(queue)]


LOST = {"the answer is lost": "on_answer", "the request is lost": "on_request"}


def lose(proxy: Proxy, which: str, *deeds: Do) -> None:
    setattr(proxy, LOST[which], first(*deeds or [Do.CUT]))


@pytest.mark.parametrize("which", LOST)
def test_a_push_is_made_once(which: str, dial: Dial, between: Proxy, direct: SyncClient, queue: str) -> None:
    client = dial(between.address)
    client.push(queue, 0)
    lose(between, which, Do.CUT, Do.CUT)
    pushed = client.push(queue, 1)
    assert len(between.requests) == 4
    assert log(direct, queue) == [0, 1]
    assert pushed.id == list(direct.records(queue))[1].id


def test_a_push_that_had_to_be_sent_again_is_no_duplicate(dial: Dial, proxy: Proxy, queue: str) -> None:
    client = dial(proxy.address)
    lose(proxy, "the answer is lost")
    assert not client.push(queue, 1).duplicate
    lose(proxy, "the answer is lost")
    assert client.push_many(queue, [1, 2]).duplicates == []
    lose(proxy, "the answer is lost")
    assert client.push_many(queue, [New(1), New(2, {"priority": 1})]).duplicates == []


@pytest.mark.parametrize("which", LOST)
def test_many_pushes_are_made_once(
    which: str, dial: Dial, between: Proxy, direct: SyncClient, queue: str
) -> None:
    client = dial(between.address)
    lose(between, which, Do.PASS, Do.CUT, Do.PASS, Do.CUT, Do.CUT)
    pushed = client.push_many(queue, range(50), batch=10)
    assert log(direct, queue) == list(range(50))
    assert pushed.ids == [each.id for each in direct.records(queue)]


@pytest.mark.parametrize("which", LOST)
def test_a_transaction_of_pushes_and_values_is_made_once(
    which: str, dial: Dial, between: Proxy, direct: SyncClient, queue: str
) -> None:
    client = dial(between.address)
    lose(between, which)
    with client.transaction() as transaction:
        transaction.push(queue, 1)
        transaction.push(queue, 2)
        transaction.set([queue], "done")
    assert log(direct, queue) == [1, 2]
    assert direct.kv.get([queue]) == "done"


@pytest.mark.parametrize("which", LOST)
def test_a_transaction_that_settles_and_counts_is_made_once_and_says_if_it_is_not_sure(
    which: str, dial: Dial, between: Proxy, direct: SyncClient, queue: str
) -> None:
    client = dial(between.address)
    direct.push(queue, "in")
    (message,) = client.pop(queue)
    lose(between, which)
    transaction = client.transaction()
    transaction.ack(message)
    transaction.push(f"{queue}-out", "out")
    transaction.add([queue])
    if which == "the request is lost":
        transaction.commit()
    else:
        with pytest.raises(Conflict) as raised:
            transaction.commit()
        assert any("may have been carried out" in note for note in raised.value.__notes__)
    assert log(direct, f"{queue}-out") == ["out"]
    assert (direct.kv.get([queue]), direct.state(message.id)) == (1, "completed")


def test_a_transaction_that_only_counts_is_sent_once(
    dial: Dial, between: Proxy, direct: SyncClient, queue: str
) -> None:
    client = dial(between.address)
    client.ping()
    lose(between, "the answer is lost")
    with pytest.raises(Disconnected) as raised, client.transaction() as transaction:
        transaction.add([queue])
    assert raised.value.sent
    assert direct.kv.get([queue]) == 1


def test_what_would_be_done_twice_is_sent_once(
    dial: Dial, between: Proxy, direct: SyncClient, queue: str
) -> None:
    client = dial(between.address)
    client.ping()
    lose(between, "the answer is lost")
    with pytest.raises(Disconnected) as raised:
        client.kv.add([queue])
    assert raised.value.sent
    assert direct.kv.get([queue]) == 1
    lose(between, "the answer is lost")
    with pytest.raises(Disconnected):
        client.kv.write([{"kind": "sum", "key": [queue], "value": 1}])
    assert direct.kv.get([queue]) == 2


def test_what_was_never_sent_is_sent_again_whatever_it_is(dial: Dial, server: Server, queue: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    client = dial(f"127.0.0.1:{port}", retry_s=10)
    with pytest.raises(Disconnected) as raised:
        dial(f"127.0.0.1:{port}", retry_s=0).kv.add([queue])
    assert not raised.value.sent
    late = Proxy(server.tcp, port)
    timer = threading.Timer(0.1, late.__enter__)
    timer.start()
    assert client.kv.add([queue]) == 1
    timer.join()
    late.__exit__()


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_is_cut_each_push_is_in_the_log_once(
    seed: int, proxy: Proxy, direct: SyncClient, queue: str
) -> None:
    cut_at_random(proxy, seed)

    async def push() -> list[Pushed]:
        async with Client(proxy.address, retry_s=60) as client:
            pushed: list[Pushed] = []
            chance = random.Random(seed)
            while len(pushed) < 200:
                together = range(len(pushed), min(len(pushed) + chance.randint(1, 20), 200))
                pushed += await asyncio.gather(*(client.push(queue, at) for at in together))
            return pushed

    ids = [each.id for each in asyncio.run(push())]
    assert log(direct, queue) == list(range(200))
    assert ids == [each.id for each in direct.records(queue)]


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_is_cut_each_push_of_a_thread_is_in_the_log_once(
    seed: int, between: Proxy, direct: SyncClient, queue: str
) -> None:
    cut_at_random(between, seed)
    found: dict[int, int] = {}
    with SyncClient(between.address, retry_s=60) as client:

        def push(mine: range) -> None:
            for at in mine:
                found[at] = client.push(queue, at).id
            many = [at + 1_000 for at in mine]
            found.update(zip(many, client.push_many(queue, many, batch=3).ids, strict=True))
            with client.transaction() as transaction:
                for at in mine:
                    transaction.push(queue, at + 2_000)

        threads = [threading.Thread(target=push, args=[range(at, 40, 4)]) for at in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    logged = {each.payload: each.id for each in direct.records(queue)}
    assert sorted(log(direct, queue)) == [at + more for more in (0, 1_000, 2_000) for at in range(40)]
    assert found.items() <= logged.items()


def cut_at_random(proxy: Proxy, seed: int) -> None:
    """Cut every fifth connection or so: before a request or behind it, before an answer or behind it."""
    chance = random.Random(seed)
    deeds = [Do.PASS] * 12 + [Do.CUT, Do.PASS_AND_CUT]
    proxy.on_request = proxy.on_answer = lambda _: chance.choice(deeds)


def test_a_pop_that_has_waited_longer_than_requests_are_tried_again_is_tried_again(
    dial: Dial, proxy: Proxy, direct: SyncClient, queue: str
) -> None:
    client = dial(proxy.address, retry_s=0.3)
    direct.configure(queue)

    def cut_late() -> None:
        proxy.cut_all()
        direct.push(queue, 1)

    timer = threading.Timer(0.5, cut_late)
    timer.start()
    assert client.pop(queue, wait_ms=20_000).payloads == [1]
    timer.join()


def test_a_request_that_can_not_be_read_fails_alone(proxy: Proxy, direct: SyncClient, queue: str) -> None:
    async def push() -> list[Any]:
        async with Client(proxy.address) as client:
            await client.push(queue, 0)

            async def broken() -> Pushed:
                await asyncio.sleep(0)  # so that it goes right behind the others
                await asyncio.sleep(0)
                return await client.push(f"{queue}-broken", msgspec.Raw(b"{broken"))

            pushes = (client.push(queue, at) for at in range(1, 5))
            return await asyncio.gather(*pushes, broken(), client.kv.add(queue), return_exceptions=True)

    *pushed, broken, added = asyncio.run(push())
    assert log(direct, queue) == [0, 1, 2, 3, 4]
    assert isinstance(broken, Invalid)
    assert added == 1 == direct.kv.get(queue)
    assert [each.id for each in pushed] == [each.id for each in direct.records(queue)][1:]


def test_a_nack_that_is_sent_again_does_not_fail_the_next_delivery(
    dial: Dial, proxy: Proxy, direct: SyncClient, queue: str
) -> None:
    """It came back at once, and somebody else has it when the nack comes again."""
    client = dial(proxy.address)
    pushed = client.push(queue, 1)
    client.pop(queue)
    again = iter([True])

    def cut(_: bytes) -> Do:
        if not next(again, False):
            return Do.PASS
        assert direct.pop(queue, wait_ms=10_000)
        return Do.CUT

    proxy.on_answer = cut
    with suppress(Conflict, Disconnected):
        client.nack(pushed.id, delay_ms=0)
    seen = direct.message(pushed.id)
    assert (seen.failures, seen.state) == (1, "active")


def test_a_pop_waits_no_longer_because_it_was_sent_again(
    dial: Dial, proxy: Proxy, direct: SyncClient, queue: str
) -> None:
    client = dial(proxy.address)
    client.configure(queue)

    def sent(times: int) -> None:
        while len(proxy.commands("POP")) < times:
            time.sleep(0.001)

    def cut() -> None:
        sent(1)
        time.sleep(0.3)  # so long it has waited at least: clients have no other clock than the real one
        proxy.cut_all()
        sent(2)
        direct.push(queue, 1)

    cutting = threading.Thread(target=cut)
    cutting.start()
    assert client.pop(queue, wait_ms=60_000)
    cutting.join()
    first, again = [msgspec.json.decode(each)["wait_ms"] for each in proxy.commands("POP")]
    assert first == 60_000
    assert again <= 60_000 - 300


def test_retries_end_a_while_after_the_first_failure_and_not_after_the_request_began() -> None:
    patience = Patience(1.0)
    pauses = [patience.pause_s(now) for now in (50.0, 50.1, 50.3)]
    assert all(pause is not None and pause < 0.3 for pause in pauses)
    assert patience.pause_s(50.4, least_s=0.5) == 0.5
    assert patience.pause_s(50.9, least_s=0.5) is None
    assert patience.failures == 5
    assert Patience(0.0).pause_s(50.0) is None
