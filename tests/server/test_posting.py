"""Where a letter may go, and what may come back."""

import asyncio
import socket
import threading
from contextlib import suppress
from typing import Any

import pytest

from forebay.server.webhooks.post import (
    CONNECT_S,
    RECEIVED_BYTES_MAX,
    Letter,
    Posting,
    Refused,
    addresses_of,
    target_of,
)
from tests.serving import PATIENCE_S


def resolving(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> list[str]:
    """Have names mean these addresses; which were asked for."""
    asked: list[str] = []

    def found(host: str, port: int, *_: object, **__: object) -> list[Any]:
        asked.append(host)
        return [
            (socket.AF_INET6 if ":" in each else socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port))
            for each in addresses
        ]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    return asked


@pytest.mark.parametrize(
    "addresses",
    [
        ("127.0.0.1",),
        ("1.1.1.1", "10.0.0.1"),
        ("192.0.0.9",),
        ("192.88.99.1",),
        ("::1",),
        ("::ffff:169.254.169.254",),
        ("2606::1", "fe80::1"),
    ],
)
def test_a_name_is_refused_if_any_of_its_addresses_is_not_public(
    addresses: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    resolving(monkeypatch, *addresses)
    with pytest.raises(Refused, match="not a public address") as refused:
        addresses_of(target_of("http://innocent.example/"), private=False)
    assert not any(each in str(refused.value) for each in addresses)


def deliver(url: str, private: bool) -> str | None:
    async def posted() -> str | None:
        return await Posting(asyncio.get_running_loop(), Letter(url, {}, b"{}", private)).outcome

    return asyncio.run(posted())


def test_a_name_that_means_something_else_at_delivery_is_refused_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://rebound.example:{listener.getsockname()[1]}/"
        resolving(monkeypatch, "1.1.1.1")
        assert addresses_of(target_of(url), private=False) == [(socket.AF_INET, "1.1.1.1")]
        resolving(monkeypatch, "127.0.0.1")
        assert (
            deliver(url, private=False)
            == "rebound.example is not a public address, or has one that is not; webhooks_private allows it"
        )
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_the_connection_goes_to_the_address_that_was_checked_and_keeps_the_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = resolving(monkeypatch, "127.0.0.1")
    came: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                while not came or not came[-1].endswith(b"{}"):
                    came.append(connection.recv(65_536))
                connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        assert deliver(f"http://named.example:{port}/a?b=c", private=True) is None
        thread.join()
    assert asked == ["named.example"]
    request = b"".join(came)
    assert request.startswith(b"POST /a?b=c HTTP/1.1\r\n")
    assert b"\r\nHost: named.example:%d\r\n" % port in request


def test_an_answer_that_is_no_answer_is_a_failure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(b"what?\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        assert "BadStatusLine" in str(deliver(f"http://127.0.0.1:{listener.getsockname()[1]}/", private=True))
        thread.join()


def test_a_letter_that_is_cut_off_ends_at_once() -> None:
    async def cut(url: str, reached: threading.Event) -> str | None:
        posting = Posting(asyncio.get_running_loop(), Letter(url, {}, b"{}", True))
        await asyncio.to_thread(reached.wait, PATIENCE_S)
        posting.cut()
        return await asyncio.wait_for(posting.outcome, CONNECT_S / 2)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        came = threading.Event()
        held: list[socket.socket] = []

        def hold() -> None:
            held.append(listener.accept()[0])
            held[0].recv(65_536)
            came.set()

        thread = threading.Thread(target=hold)
        thread.start()
        assert asyncio.run(cut(f"http://127.0.0.1:{listener.getsockname()[1]}/", came)) is not None
        thread.join()
        held[0].close()


CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LARGE = b"HTTP/1.1 200 OK\r\n" + b"".join(b"x-%d: %s\r\n" % (at, b"x" * 2_000) for at in range(50))


@pytest.mark.parametrize("head", [CONTINUE * (RECEIVED_BYTES_MAX // len(CONTINUE) + 1), LARGE])
def test_an_answer_whose_head_does_not_end_is_a_failure(head: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                connection.recv(65_536)
                connection.sendall(head + (b"" if head is LARGE else b"HTTP/1.1 200 OK\r\n") + b"\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        problem = deliver(f"http://127.0.0.1:{listener.getsockname()[1]}/", private=True)
        assert problem == f"HTTPException: the answer is longer than {RECEIVED_BYTES_MAX} bytes"
        thread.join()


def test_an_answer_may_be_announced_a_few_times() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(CONTINUE * 3 + b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 2 * RECEIVED_BYTES_MAX)

        thread = threading.Thread(target=answer)
        thread.start()
        assert deliver(f"http://127.0.0.1:{listener.getsockname()[1]}/", private=True) is None
        thread.join()
