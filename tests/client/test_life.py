"""A client's life: servers that go and come back, threads, processes, loops, and its end."""

import asyncio
import gc
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from forebay.client.aio import client as aio
from forebay.client.aio.client import Client
from forebay.client.errors import Disconnected
from forebay.client.sync import client as sync
from forebay.client.sync.client import SyncClient
from forebay.core.errors import ForebayError, NotFound
from tests.client.blocking import Blocking
from tests.client.conftest import Dial
from tests.client.proxy import Gate, Proxy
from tests.serving import PATIENCE_S, Server


class Lasting:
    """A server that can be killed and started again, on the same directory and the same ports."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._server = self._started("127.0.0.1:0", "127.0.0.1:0")
        self.tcp, self.http = self._server.tcp, self._server.http

    def _started(self, tcp: str, http: str) -> Server:
        return Server("--data", str(self._home / "data"), "--tcp", tcp, "--http", http).__enter__()

    def kill(self) -> None:
        self._server.kill()
        self._server.__exit__(None)

    def start(self) -> None:
        self._server = self._started(self.tcp, self.http)

    def stop(self) -> None:
        self._server.__exit__(None)


@pytest.fixture
def lasting(tmp_path: Path) -> Iterator[Lasting]:
    running = Lasting(tmp_path)
    yield running
    running.stop()


def test_after_a_kill_a_client_goes_on_with_what_is_kept(dial: Dial, lasting: Lasting, queue: str) -> None:
    tcp, web = dial(lasting.tcp), dial(f"http://{lasting.http}")
    ids = [tcp.push(queue, "tcp").id, web.push(queue, "web").id]
    begun = next(tcp.events([queue], start="all"))
    lasting.kill()
    impatient = dial(lasting.tcp, retry_s=0)
    with pytest.raises(Disconnected, match="forebay serve"):
        impatient.ping()
    starting = threading.Thread(target=lasting.start)
    starting.start()
    assert tcp.push(queue, "again").id == ids[-1] + 1
    starting.join()
    assert web.pop(queue, 9).payloads == ["tcp", "web", "again"]
    impatient.ping()
    told = [each for each in tcp.events([queue], after=begun.after, wait_s=0.2) if each.kind == "pushed"]
    first = [each for each in tcp.events([queue], start="all", wait_s=0.2) if each.kind == "pushed"]
    assert sum(each.count for each in first) == 3
    assert 1 <= sum(each.count for each in told) <= 3


def test_a_pop_that_waits_lives_through_a_kill(dial: Dial, lasting: Lasting, queue: str) -> None:
    client = dial(lasting.tcp)
    client.configure(queue)

    def restart() -> None:
        lasting.kill()
        lasting.start()
        with SyncClient(lasting.tcp) as other:
            other.push(queue, 1)

    timer = threading.Timer(0.1, restart)
    timer.start()
    assert client.pop(queue, wait_ms=30_000).payloads == [1]
    timer.join()


def test_a_server_that_stops_in_good_order_answers_what_it_has(tmp_path: Path, queue: str) -> None:
    with Server("--data", str(tmp_path / "data")) as first:
        target = first.tcp

        async def push() -> list[int | BaseException]:
            async with Client(target, retry_s=0) as client:
                for at in range(7):
                    await client.push(f"{queue}-{at}", "before")
                pushes = [asyncio.create_task(client.push(f"{queue}-{at % 7}", at)) for at in range(500)]
                popping = asyncio.create_task(client.pop(queue, wait_ms=30_000))
                await client.ping()
                first.terminate()
                pushed = await asyncio.gather(*pushes, return_exceptions=True)
                with suppress(Disconnected):
                    assert not await popping
                return [each if isinstance(each, BaseException) else each.id for each in pushed]

        found = asyncio.run(push())
        first.wait()
    with Server("--data", str(tmp_path / "data")) as second, SyncClient(second.tcp) as client:
        kept = {each.id for at in range(7) for each in client.records(f"{queue}-{at}")}
    assert {each for each in found if isinstance(each, int)} <= kept
    assert all(isinstance(each, int | ForebayError) for each in found)


@pytest.mark.parametrize("web", [False, True])
def test_the_log_tells_once_that_the_server_is_lost_and_once_that_it_is_back(
    web: bool, dial: Dial, server: Server, proxy: Proxy, web_proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    way = web_proxy if web else proxy
    client = dial(way.url if web else way.address, retry_s=0)
    with caplog.at_level(logging.INFO, "forebay.client"):
        client.ping()
        assert not caplog.messages
        way.refuses = True
        way.cut_all()
        for _ in range(3):
            with pytest.raises(Disconnected):
                client.ping()
        way.refuses = False
        for _ in range(2):
            with pytest.raises(NotFound):
                client.state(1 << 50)
        address = way.url if web else way.address
        told = [each for each in caplog.messages if address in each]
    lost, back = told
    assert lost.startswith(f"disconnected from {address}: ")
    assert back == f"connected to {address} again"


def test_the_log_has_a_reason_whatever_it_is(dial: Dial, caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        others = [socket.socket() for _ in range(4)]  # they fill the line of those that want in
        for each in others:
            each.setblocking(False)
            each.connect_ex(address)
        with caplog.at_level(logging.INFO, "forebay.client"), pytest.raises(Disconnected):
            dial("{}:{}".format(*address), timeout_s=0.2, retry_s=0).pop("q", wait_ms=1)
        for each in others:
            each.close()
    assert [each for each in caplog.messages if not each.endswith(": ")] == caplog.messages != []


# Events.


def test_events_come_in_order_and_none_is_missed_behind_any_of_them(either: Blocking, queue: str) -> None:
    for at in range(3):
        either.push(queue, at)
    told = list(either.events([queue], ["pushed"], start="all", wait_s=0.1))
    assert [(each.kind, each.queue, each.count) for each in told] == [("pushed", queue, 1)] * 3
    assert list(either.events([queue], ["pushed"], after=told[-1].after, wait_s=0.1)) == []
    behind = list(either.events([queue], ["pushed"], after=told[0].after, wait_s=0.1))
    assert [each.fields for each in behind][-2:] == [each.fields for each in told[1:]]


def test_events_from_now_on_have_nothing_of_before(either: Blocking, direct: SyncClient, queue: str) -> None:
    direct.push(queue, "before")
    timer = threading.Timer(0.2, lambda: direct.push(queue, "after"))
    timer.start()
    told = next(either.events([queue], ["pushed"]))
    timer.join()
    assert told.fields["runs"][0][1] == 1


def test_events_go_on_after_a_connection_is_lost_late(
    dial: Dial, proxy: Proxy, direct: SyncClient, queue: str
) -> None:
    client = dial(proxy.address, retry_s=0.3)
    direct.push(queue, 0)
    told = client.events([queue], ["pushed"], start="all")
    next(told)

    def cut() -> None:
        proxy.cut_all()
        direct.push(queue, 1)

    timer = threading.Timer(0.5, cut)
    timer.start()
    try:
        assert next(told).fields["runs"][0][1] == 1
    finally:
        timer.join()


def test_updates_tell_that_a_message_is_due_when_it_is(
    either: Blocking, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (aio, sync):
        monkeypatch.setattr(module, "LOOK_S", 1e9)  # a poll for so long would be refused
    told = either.updates(either.push(queue, 1, delay_ms=500).id)
    assert [next(told).state for _ in range(2)] == ["delayed", "waiting"]


# Threads and processes.


WAYS: dict[str, Callable[[Server], str]] = {
    "TCP": lambda server: server.tcp,
    "Unix socket": lambda server: f"unix://{server.unix}",
    "HTTP": lambda server: f"http://{server.http}",
}


@pytest.mark.parametrize("way", WAYS)
def test_threads_may_share_a_client(way: str, server: Server, queue: str) -> None:
    ids: dict[tuple[int, int], int] = {}
    popped: list[int] = []
    with SyncClient(WAYS[way](server)) as client:

        def work(mine: int) -> None:
            for at in range(10):
                ids[mine, at] = client.push(queue, [mine, at]).id
            for _ in range(10):
                with client.leased(queue, wait_ms=10_000) as batch:
                    popped.extend(each.id for each in batch)
            client.kv.add([queue])

        threads = [threading.Thread(target=work, args=[at]) for at in range(20)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert {tuple(each.payload): each.id for each in client.records(queue)} == ids
        assert sorted(popped) == sorted(ids.values())
        assert client.kv.get([queue]) == 20


FORKED = """
import os, sys
from forebay import SyncClient
client = SyncClient(sys.argv[1], timeout_s=10, retry_s=10)
client.push(sys.argv[2], "before")
child = os.fork()
for at in range(20):
    client.push(sys.argv[2], f"{'parent' if child else 'child'} {at}")
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize("web", [False, True])
def test_a_client_that_was_made_before_a_fork_loses_nothing(
    web: bool, server: Server, direct: SyncClient, queue: str
) -> None:
    address = f"http://{server.http}" if web else server.tcp
    subprocess.run([sys.executable, "-c", FORKED, address, queue], timeout=PATIENCE_S, check=True)
    wanted = {"before", *(f"{who} {at}" for who in ("parent", "child") for at in range(20))}
    assert {each.payload for each in direct.records(queue)} == wanted


def test_an_interrupt_ends_a_pop_that_waits(server: Server, direct: SyncClient, queue: str) -> None:
    direct.configure(queue)
    program = (
        "import sys; from forebay import SyncClient\n"
        "client = SyncClient(sys.argv[1]); client.ping(); print('ready', flush=True)\n"
        "client.pop(sys.argv[2], wait_ms=60_000)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, server.tcp, queue], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"ready\n"
        while not _waits(direct, queue):
            pass
        os.kill(running.pid, signal.SIGINT)
        running.communicate(timeout=PATIENCE_S)
    direct.push(queue, 1)
    assert direct.pop(queue, wait_ms=3_000).payloads == [1]


def _waits(direct: SyncClient, queue: str) -> bool:
    """Whether somebody has begun to pop."""
    return any(each.group == "default" for each in direct.groups(queue))


# Loops.


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("web", [False, True])
def test_a_client_can_be_used_in_one_loop_after_another(web: bool, server: Server, queue: str) -> None:
    async def work(client: Client, at: int) -> list[object]:
        async with asyncio.timeout(PATIENCE_S / 10):
            await client.push(queue, at)
            return (await client.pop(queue, wait_ms=1_000)).payloads

    def work_often(client: Client) -> list[list[object]]:
        return [asyncio.run(work(client, at)) for at in range(3)]

    found = work_often(Client(f"http://{server.http}" if web else server.tcp))
    gc.collect()  # what the loops that are over have left open is complained about here, if at all
    assert found == [[0], [1], [2]]


# The end.


@pytest.mark.parametrize("way", WAYS)
def test_a_client_that_was_closed_says_so(way: str, dial: Dial, server: Server, queue: str) -> None:
    client = dial(WAYS[way](server))
    client.ping()
    client.close()
    client.close()
    asking = client.ping, lambda: client.pop(queue, wait_ms=1), lambda: client.kv.add(queue)
    for ask in (*asking, lambda: client.push_later(queue, 1)):
        with pytest.raises(ForebayError, match="closed"):
            ask()


def test_pushes_on_their_way_when_a_client_is_closed_end(proxy: Proxy, queue: str) -> None:
    gate = Gate()

    async def work() -> None:
        client = Client(proxy.address)
        await client.ping()
        proxy.on_answer = gate
        pushes = [asyncio.create_task(client.push(queue, at)) for at in range(5)]
        await asyncio.to_thread(gate.wait)
        closing = asyncio.create_task(client.close())
        await asyncio.sleep(0.05)
        gate.open()
        async with asyncio.timeout(PATIENCE_S / 3):
            ended = await asyncio.gather(*pushes, return_exceptions=True)
            await closing
        assert all(not isinstance(each, BaseException) or isinstance(each, ForebayError) for each in ended)
        assert proxy.connections == 1, "it has connected again after it was closed"

    asyncio.run(work())


def test_a_client_that_was_closed_leaves_no_connections(dial: Dial, proxy: Proxy, queue: str) -> None:
    client = dial(proxy.address)
    client.push(queue, 1)
    client.pop(queue, wait_ms=1_000)
    client.close()
    assert proxy.ends(PATIENCE_S / 3)


def test_a_client_needs_no_loop_and_no_server_to_be_made() -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        Client(f"127.0.0.1:{nobody.getsockname()[1]}")
    SyncClient("127.0.0.1:1").close()


def test_the_server_is_the_one_in_the_environment(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    monkeypatch.setenv("FOREBAY_SERVER", server.tcp)
    with SyncClient() as client:
        client.ping()
        assert client.server == server.tcp
