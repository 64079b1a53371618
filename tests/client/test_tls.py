"""Clients over TLS: which servers they trust, and what they say of the others."""

import asyncio
import inspect
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from forebay import Client, Disconnected, Invalid, NotForebay, NotTrusted, SyncClient
from forebay.client import access, tls, web
from forebay.client.access import Access
from forebay.client.raw import Wire
from tests.client.certificates import Authority
from tests.client.conftest import Dial
from tests.client.tls_front import TlsFront
from tests.serving import PATIENCE_S, Server

Front = Callable[..., str]
"""Puts TLS before a listener, and returns the address."""


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in access.VARIABLES.values():
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(params=["TLS", "HTTPS"])
def front(request: pytest.FixtureRequest, server: Server, authority: Authority) -> Iterator[Front]:
    with ExitStack() as stack:

        def made(name: str = "127.0.0.1", *, asks: bool = False) -> str:
            target = server.tcp if request.param == "TLS" else server.http
            running = stack.enter_context(TlsFront(target, authority.served(name, asks=asks)))
            return running.address if request.param == "TLS" else running.url

        yield made


def test_a_client_trusts_the_authority_that_it_is_given(
    dial: Dial, front: Front, authority: Authority, queue: str
) -> None:
    client = dial(front(), ca=str(authority.path))
    client.push(queue, {"n": 1})
    batch = client.pop(queue, 1, wait_ms=1_000)
    assert batch[0].payload == {"n": 1}
    client.ack(batch)


def test_the_authority_can_be_named_in_the_environment(
    dial: Dial, front: Front, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_CA", str(authority.path))
    dial(front()).ping()


def test_an_authority_that_nobody_vouches_for_is_not_trusted_and_asked_once(
    dial: Dial, front: Front, authority: Authority, tmp_path: Path
) -> None:
    other = Authority(tmp_path, "other")
    for ca in (None, str(other.path)):
        with pytest.raises(
            NotTrusted, match=r"the certificate of 127.0.0.1:\d+ is not trusted .*as ca"
        ) as raised:
            dial(front(), ca=ca, retry_s=5).ping()
        assert raised.value.code == "disconnected"
        assert not raised.value.sent


def test_a_certificate_for_another_name_is_not_trusted(
    dial: Dial, front: Front, authority: Authority
) -> None:
    with pytest.raises(NotTrusted, match="use the name that the server's certificate is for"):
        dial(front("queue.example"), ca=str(authority.path), retry_s=5).ping()


def test_a_server_may_ask_for_a_certificate_of_the_client(
    dial: Dial, front: Front, authority: Authority, queue: str
) -> None:
    address, ca = front(asks=True), str(authority.path)
    cert, key = authority.make("mailer")
    dial(address, ca=ca, cert=cert, key=key).push(queue, 1)
    with pytest.raises(Disconnected, match="asks clients for a certificate, name its files as cert and key"):
        dial(address, ca=ca, retry_s=0).ping()


def test_a_server_that_says_so_asks_once_for_a_certificate(dial: Dial, authority: Authority) -> None:
    context = authority.served("127.0.0.1", asks=True)
    refused: list[object] = []
    answering: list[threading.Thread] = []

    def answer(connection: socket.socket) -> None:
        with connection.dup() as plain, suppress(OSError):
            plain.settimeout(PATIENCE_S)
            connection.settimeout(PATIENCE_S)
            with context.wrap_socket(connection, True, do_handshake_on_connect=False) as secured:
                try:
                    secured.do_handshake()
                except ssl.SSLError as error:
                    refused.append(error.reason)
                    # What it said must arrive: a connection with unread data is reset when it is closed.
                    plain.shutdown(socket.SHUT_WR)
                    while plain.recv(1 << 12):
                        pass

    def accept(listening: socket.socket) -> None:
        with suppress(OSError):  # until it is shut down
            while True:
                answering.append(threading.Thread(target=answer, args=listening.accept()[:1]))
                answering[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        accepting = threading.Thread(target=accept, args=[listening])
        accepting.start()
        address = f"tls://127.0.0.1:{listening.getsockname()[1]}"
        try:
            with pytest.raises(
                NotTrusted, match="asks clients for a certificate: name its files as cert and key"
            ):
                dial(address, ca=str(authority.path), retry_s=5).ping()
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            accepting.join(PATIENCE_S)
    for each in answering:
        each.join(PATIENCE_S)
    assert refused.count("PEER_DID_NOT_RETURN_A_CERTIFICATE") == 1


def test_files_that_are_none_are_named(authority: Authority, tmp_path: Path) -> None:
    bad: list[tuple[dict[str, Any], str]] = [
        ({"ca": "missing.pem"}, "ca must be a PEM file of certificates; missing.pem: No such file"),
        ({"ca": __file__}, "ca must be a PEM file of certificates"),
        ({"cert": "missing.pem"}, "cert must be a PEM file, with its private key in it or in key"),
        ({"key": "key.pem"}, "cert must be given along with key"),
    ]
    for settings, what in bad:
        with pytest.raises(Invalid, match=what):
            SyncClient("tls://127.0.0.1:1", **settings)
    hidden = Authority(tmp_path).make("hidden", password=b"secret")
    with pytest.raises(Invalid, match="without a password"):
        SyncClient("tls://127.0.0.1:1", cert=hidden[0], key=hidden[1])


def test_a_server_without_tls_is_named(dial: Dial, server: Server) -> None:
    with pytest.raises(NotForebay, match="does not speak TLS"):
        dial(f"tls://{server.tcp}", retry_s=5).ping()
    with pytest.raises(NotForebay, match="does not speak TLS"):
        dial(f"tls://{server.http}", retry_s=5).ping()


def test_a_lost_connection_is_opened_again(
    dial: Dial, server: Server, authority: Authority, queue: str
) -> None:
    with TlsFront(server.tcp, authority.served("127.0.0.1")) as running:
        client = dial(running.address, ca=str(authority.path))
        for number in range(3):
            client.push(queue, number)
            running.cut_all()
        assert running.connections == 3
        assert [each.payload for each in client.pop(queue, 10)] == [0, 1, 2]
        client.close()


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_cancelled_pop_leaves_nothing_leased(
    loop: Callable[[], asyncio.AbstractEventLoop], server: Server, authority: Authority, queue: str
) -> None:
    with TlsFront(server.tcp, authority.served("127.0.0.1")) as running:

        async def main() -> None:
            async with Client(running.address, ca=str(authority.path)) as client:
                await client.configure(queue)
                waiting = asyncio.create_task(client.pop(queue, wait_ms=60_000))
                while not client._link._busy:  # type: ignore[attr-defined]
                    await asyncio.sleep(0)
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
                await asyncio.to_thread(running.wait_for_end)
                await client.push(queue, "left")
                assert [each.payload for each in await client.pop(queue, wait_ms=10_000)] == ["left"]

        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(main())


def test_many_large_answers_come_whole(dial: Dial, server: Server, authority: Authority, queue: str) -> None:
    with TlsFront(server.tcp, authority.served("127.0.0.1")) as running:
        client = dial(running.address, ca=str(authority.path))
        client.push_many(queue, ["x" * 50_000] * 40)
        assert sum(len(each.payload) for each in client.pop(queue, 100)) == 2_000_000
        client.close()


def test_the_small_client_speaks_tls(server: Server, authority: Authority) -> None:
    with TlsFront(server.tcp, authority.served("127.0.0.1")) as running:
        with Wire(running.address, access=Access(ca=str(authority.path))) as wire:
            assert wire.ask("STATS")["ok"]
        with pytest.raises(NotTrusted):
            Wire(running.address)


def test_nothing_switches_the_check_off(authority: Authority) -> None:
    made = tls.context(Access(ca=str(authority.path)))
    assert (made.verify_mode, made.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert made.minimum_version >= ssl.TLSVersion.TLSv1_2
    for module in (tls, web, access):
        source = inspect.getsource(module)
        assert not [
            word for word in ("CERT_NONE", "verify=False", "check_hostname = False") if word in source
        ]
