"""Errors have a type, fields, and words that help."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from forebay.client.aio.client import Client
from forebay.client.errors import Disconnected, NotForebay
from forebay.client.raw import Wire
from forebay.client.sync.client import SyncClient
from forebay.client.tasks.app import App
from forebay.client.types import New
from forebay.core.errors import Busy, Conflict, ForebayError, Invalid, NotFound
from tests.client.blocking import Blocking
from tests.client.conftest import Dial
from tests.client.proxy import Do, Gate, Proxy
from tests.serving import PATIENCE_S, Server


def log(client: SyncClient, queue: str) -> list[Any]:
    return [each.payload for each in client.records(queue)]


def test_errors_are_of_the_kind_that_the_server_says(either: Blocking, queue: str) -> None:
    with pytest.raises(Invalid) as invalid:
        either.push(queue, 1, priority="high")
    assert (invalid.value.field, invalid.value.code) == ("priority", "invalid")
    assert "integer" in invalid.value.accepted
    assert invalid.value.details == {"field": "priority", "accepted": invalid.value.accepted}
    with pytest.raises(NotFound):
        either.queue(queue)
    with pytest.raises(NotFound):
        either.state(1 << 50)
    with pytest.raises(Conflict):
        either.ack(lease="0" * 39)
    with pytest.raises(Invalid, match="cmd"):
        either.ask("NOSUCHTHING")
    with pytest.raises(ForebayError):
        either.delete_cron("nobody")


def test_a_queue_that_is_full_is_busy_and_says_when_to_come_back(
    dial: Dial, server: Server, queue: str
) -> None:
    client = dial(server.tcp, retry_s=0)
    client.configure(queue, max_size=1)
    client.push(queue, 1)
    with pytest.raises(Busy) as busy:
        client.push(queue, 2)
    assert busy.value.retry_after_ms > 0
    assert busy.value.details["retry_after_ms"] == busy.value.retry_after_ms


def test_a_queue_that_has_room_again_takes_what_was_tried_again(
    client: Blocking, direct: SyncClient, queue: str
) -> None:
    direct.configure(queue, max_size=1)
    direct.push(queue, 1)
    timer = threading.Timer(0.1, lambda: direct.ack(direct.pop(queue)))
    timer.start()
    client.push(queue, 2)
    timer.join()
    assert direct.pop(queue).payloads == [2]


@pytest.mark.parametrize(
    "what", ["127.0.0.1:1", "/nowhere/socket", "http://127.0.0.1:1", "nowhere.invalid:1"]
)
def test_without_a_server_an_error_says_what_to_do(what: str, dial: Dial) -> None:
    with pytest.raises(Disconnected, match="forebay serve") as raised:
        dial(what, retry_s=0).ping()
    assert what in str(raised.value)
    assert not raised.value.sent


@pytest.mark.parametrize("what", ["nonsense:port", "tcp://", "tcp://host", "ftp://host:1"])
def test_a_server_that_can_not_be_meant_is_refused_at_once(what: str) -> None:
    for kind in (Client, SyncClient):
        with pytest.raises(Invalid, match="HOST:PORT"):
            kind(what)


def test_an_answer_that_does_not_come_in_time_is_a_lost_connection(
    dial: Dial, proxy: Proxy, web_proxy: Proxy
) -> None:
    for address, each in ((proxy.address, proxy), (web_proxy.url, web_proxy)):
        each.on_answer = lambda _: Do.SWALLOW
        with pytest.raises(Disconnected, match=r"did not answer within 0.2 s") as raised:
            dial(address, timeout_s=0.2, retry_s=0).ping()
        assert raised.value.sent


def test_after_an_answer_that_did_not_come_the_next_one_does(dial: Dial, proxy: Proxy) -> None:
    client = dial(proxy.address, timeout_s=1.5, retry_s=0)
    proxy.on_answer = lambda _: Do.SWALLOW
    with pytest.raises(Disconnected, match=r"within 1.5 s"):
        client.ping()
    proxy.on_answer = lambda _: Do.PASS
    client.ping()


def test_a_command_that_waits_by_itself_may_wait_longer_than_an_answer_takes(
    dial: Dial, server: Server, direct: SyncClient, queue: str
) -> None:
    client = dial(server.tcp, timeout_s=0.8, retry_s=0)
    direct.configure(queue)
    timer = threading.Timer(1.0, lambda: direct.push(queue, 1))
    timer.start()
    try:
        assert client.ask("POP", queue=queue, wait_ms=60_000)["messages"][0]["payload"] == 1
    finally:
        timer.join()


def test_one_answer_that_does_not_come_does_not_fail_what_others_wait_for(proxy: Proxy, queue: str) -> None:
    """Of two that count, only the one whose answer is lost may be unsure."""

    async def work() -> None:
        async with Client(proxy.address, timeout_s=1.5, retry_s=0) as client:
            await client.ping()
            proxy.on_answer = lambda body: Do.SWALLOW if b'"reqId":2,' in body + b"," else Do.PASS
            lost = asyncio.create_task(client.kv.add([queue, "lost"]))
            await asyncio.sleep(0.5)
            pop = asyncio.create_task(client.kv.watch([queue, "other"], None, wait_ms=1_300))
            with pytest.raises(Disconnected):
                await lost
            assert await pop is None

    asyncio.run(work())


def test_a_push_that_times_out_takes_no_other_request_along(
    proxy: Proxy, direct: SyncClient, queue: str
) -> None:
    """The connection on which nothing came is left to those that wait longer; others take a new one."""

    async def work() -> None:
        async with Client(proxy.address) as client:
            await client.ping()
            gate = Gate()
            proxy.on_answer = gate
            added = asyncio.create_task(client.kv.add([queue]))
            await asyncio.to_thread(gate.wait)
            with pytest.raises(Disconnected, match=r"within 0.1 s") as raised:
                await client.push(queue, "late", timeout_s=0.1, retry_s=0)
            assert raised.value.sent
            proxy.on_answer = lambda _: Do.PASS
            await client.push(queue, "next")
            assert not added.done()
            gate.open()
            assert await added == 1
            await client.ping()
            assert proxy.connections == 2

    asyncio.run(work())
    assert sorted(log(direct, queue)) == ["late", "next"]


def test_an_answer_that_comes_too_late_is_dropped_and_its_lease_given_back(
    proxy: Proxy, direct: SyncClient, queue: str
) -> None:
    direct.push(queue, 1)

    async def work() -> None:
        async with Client(proxy.address, timeout_s=0.5, retry_s=0) as client:
            await client.ping()
            gate = Gate()
            proxy.on_answer = gate
            more = asyncio.create_task(client.push(queue, 2, timeout_s=PATIENCE_S))
            with pytest.raises(Disconnected, match=r"within 0.5 s"):
                await client.pop(queue)
            gate.open()
            await more
            await client.close()

    asyncio.run(work())
    assert sorted(direct.pop(queue, 2, min_count=2, wait_ms=int(PATIENCE_S * 1000)).payloads) == [1, 2]


def test_while_others_are_answered_a_request_that_times_out_costs_no_connection(
    proxy: Proxy, queue: str
) -> None:
    async def work() -> None:
        async with Client(proxy.address) as client:
            await client.ping()
            proxy.on_answer = lambda body: Do.SWALLOW if b'"durability"' in body else Do.PASS
            late = asyncio.create_task(client.push(queue, 1, timeout_s=0.3, retry_s=0))
            while not late.done():
                await client.ping()
            assert isinstance(late.exception(), Disconnected)
            assert proxy.connections == 1

    asyncio.run(work())


def test_requests_that_can_not_connect_do_not_wait_in_line(queue: str) -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        others = [socket.socket() for _ in range(4)]  # they fill the line of those that want in
        for each in others:
            each.setblocking(False)
            each.connect_ex(address)

        async def ask() -> None:
            async with Client("{}:{}".format(*address), timeout_s=0.5, retry_s=0) as client:
                asked = await asyncio.gather(*(client.ping() for _ in range(20)), return_exceptions=True)
                assert {type(each) for each in asked} == {Disconnected}

        begun = time.monotonic()
        asyncio.run(ask())
        for each in others:
            each.close()
        assert time.monotonic() - begun < 20 * 0.5


def test_a_request_behind_one_that_the_server_does_not_take_ends_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        host, port = deaf.getsockname()

        async def ask() -> None:
            async with Client(f"{host}:{port}", timeout_s=0.2, retry_s=0) as client:
                large = asyncio.create_task(client.kv.set("k", "x" * (8 << 20)))
                await asyncio.sleep(0.1)
                large.cancel()
                async with asyncio.timeout(PATIENCE_S):
                    with pytest.raises(Disconnected):
                        await client.ping()

        asyncio.run(ask())


def test_one_connection_too_many_is_refused_and_tried_again(dial: Dial) -> None:
    """What the server says of it may get lost, because it closes the connection right behind it."""
    with Server("--connections-max", "1") as small:
        with small.connect() as only:
            only.ask({"cmd": "STATS"})
            with pytest.raises((Busy, Disconnected), match=r"at most 1 connections|was lost"):
                dial(small.tcp, retry_s=0).ping()
            timer = threading.Timer(0.2, only.close)
            timer.start()
            patient = dial(small.tcp)
            patient.ping()
            timer.join()
        patient.close()


def test_a_port_of_the_other_kind_is_named_with_the_address_to_use(dial: Dial, server: Server) -> None:
    with pytest.raises(NotForebay) as raised:
        dial(server.http).ping()
    use = f"use http://{server.http}, or the TCP port (6780 by default)"
    assert str(raised.value) == f"{server.http} speaks HTTP: {use}"
    with pytest.raises(NotForebay) as raised:
        dial(f"http://{server.tcp}").ping()
    use = f"use {server.tcp} if that is TCP, or the HTTP port (8080 by default)"
    assert str(raised.value) == f"{server.tcp} does not speak HTTP: {use}"
    with pytest.raises(NotForebay) as raised:
        dial(f"https://{server.http}").ping()
    use = f"use http://{server.http} if that is HTTP, or {server.http} if it is TCP"
    assert str(raised.value) == f"{server.http} does not speak TLS: {use}"
    with pytest.raises(NotForebay) as raised:
        dial(f"https://{server.tcp}").ping()
    assert str(raised.value).endswith(f"or {server.tcp} if it is TCP")


@contextmanager
def stranger(answer: bytes) -> Iterator[tuple[str, list[object]]]:
    """Something that answers this to everybody, its address, and who came."""
    came: list[object] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def greet() -> None:
            while True:
                connection, peer = listening.accept()
                with connection:
                    if came and came[-1] is None:
                        return
                    came.append(peer)
                    connection.sendall(answer)
                    while connection.recv(1 << 16):
                        pass

        thread = threading.Thread(target=greet)
        thread.start()
        try:
            yield "{}:{}".format(*listening.getsockname()), came
        finally:
            came.append(None)
            socket.create_connection(listening.getsockname()).close()
            thread.join()


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        (
            b"SSH-2.0-OpenSSH_9.2\r\n",
            "is no Forebay server, and answered SSH-2.0-OpenSSH_9.2; use the TCP port",
        ),
        (b"<!DOCTYPE html>\r\n", "is no Forebay server, and answered <!DOCTYPE html>; use the TCP port"),
        (b"\x15\x03\x01\x00\x02\x02\x0a", "speaks TLS: use tls://127.0.0.1:"),
        (b'\x00\x00\x00\x12{"ok":false,"a":1}', 'is no Forebay server, and answered {"ok":false,"a":1}; use'),
    ],
)
def test_what_is_no_server_is_named_with_what_it_said_and_asked_once(
    answer: bytes, shown: str, dial: Dial
) -> None:
    with stranger(answer) as (address, came):
        client = dial(address)
        with pytest.raises(NotForebay) as raised:
            client.ping()
        client.close()
        assert address in str(raised.value)
        assert shown in str(raised.value)
        assert len(came) == 1


def test_the_small_client_names_the_address_too(server: Server) -> None:
    with Wire(server.http) as wire, pytest.raises(NotForebay, match=f"{server.http} speaks HTTP: use http"):
        wire.ask("STATS")


def test_a_page_at_a_url_is_shown_on_one_line_with_the_address(dial: Dial, server: Server) -> None:
    with gateway(server, 404, forwards=False) as url, pytest.raises(Disconnected) as raised:
        dial(url, retry_s=0).ping()
    page = "<html> Bad Gateway</html>"
    assert str(raised.value) == f"{url} answered HTTP 404, and not as a Forebay server does: {page}"


@contextmanager
def gateway(server: Server, status: int, *, forwards: bool) -> Iterator[str]:
    """Something between that answers in HTML, whatever became of the request."""

    class Gateway(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if forwards:
                httpx.post(f"http://{server.http}{self.path}", content=body)
            page = b"<html>\n  Bad Gateway</html>"
            self.send_response(status)
            self.send_header("content-length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *_: object) -> None:
            pass

    running = HTTPServer(("127.0.0.1", 0), Gateway)
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{running.server_port}"
    finally:
        running.shutdown()
        running.server_close()
        thread.join()


@pytest.mark.parametrize("status", [200, 403, 404, 500, 502, 504])
def test_a_page_of_a_gateway_is_an_error_that_shows_it(status: int, dial: Dial, server: Server) -> None:
    with gateway(server, status, forwards=False) as url, pytest.raises(ForebayError) as raised:
        dial(url, retry_s=0).ping()
    assert "Bad Gateway" in str(raised.value)
    assert f"HTTP {status}" in str(raised.value)


@pytest.mark.parametrize("status", [502, 504])
def test_a_gateway_that_gave_up_may_have_passed_it_on_so_it_is_not_sent_again(
    status: int, dial: Dial, server: Server, direct: SyncClient, queue: str
) -> None:
    with gateway(server, status, forwards=True) as url, pytest.raises(ForebayError):
        dial(url, retry_s=2.5).kv.add([queue])
    assert direct.kv.get([queue]) == 1


def test_a_url_with_a_path_is_asked_there(dial: Dial, server: Server, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        dial(f"http://{server.http}/elsewhere", retry_s=0).ping()
    dial(f"http://{server.http}/").ping()


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("delay_ms", lambda client: client.push("q", 1, delay_ms=-1)),
        ("items[1].ttl_ms", lambda client: client.push_many("q", [1, New(2, {"ttl_ms": "x"})])),  # type: ignore[typeddict-item]
        ("unique_key", lambda client: client.push("q", 1, unique_key="")),
        ("wait_ms", lambda client: client.pop("q", wait_ms=-1)),
        ("lease_ms", lambda client: client.pop("q", lease_ms=0)),
        ("every_ms", lambda client: client.set_cron("c", "q", 1, every_ms=-1)),
        ("limit", lambda client: client.page("q", limit=0)),
    ],
)
def test_an_error_names_the_field_as_this_client_does(
    field: str, wrong: Callable[[Blocking], object], either: Blocking
) -> None:
    with pytest.raises(Invalid) as raised:
        wrong(either)
    assert raised.value.field == field


BAD_TIMES: dict[str, dict[str, Any]] = {
    "no time": {"timeout_s": 0},
    "less than none": {"timeout_s": -1.0},
    "not a number": {"timeout_s": float("nan")},
    "for ever": {"timeout_s": float("inf")},
    "text": {"timeout_s": "5"},
    "yes": {"timeout_s": True},
    "more than a clock counts": {"timeout_s": 10**400},
    "a retry of less than no time": {"retry_s": -0.1},
    "a retry that is not a number": {"retry_s": float("nan")},
    "a retry for ever": {"retry_s": float("inf")},
    "a retry of text": {"retry_s": "5"},
}


@pytest.mark.parametrize("what", BAD_TIMES)
def test_times_that_can_not_be_meant_are_refused_at_once_wherever_they_are_given(
    what: str, client: Blocking, queue: str
) -> None:
    bad = BAD_TIMES[what]
    (field,) = bad
    job = App("times", server="127.0.0.1:1").task(name="job")(lambda number: None)
    ways: list[Callable[[], object]] = [
        lambda: Client("127.0.0.1:1", **bad),
        lambda: SyncClient("127.0.0.1:1", **bad),
        lambda: App("times", server="127.0.0.1:1", **bad),
        lambda: client.push(queue, 1, **bad),
        lambda: client.push_many(queue, [1], **bad),
        lambda: client.push_later(queue, 1, **bad),
        lambda: job.options(**bad),
        lambda: job.push_many([1], **bad),
    ]
    for way in ways:
        with pytest.raises(Invalid) as raised:
            way()
        assert raised.value.field == field


@pytest.mark.parametrize("kind", ["TCP", "HTTP"])
def test_a_very_long_timeout_is_one(kind: str, dial: Dial, server: Server) -> None:
    dial(server.tcp if kind == "TCP" else f"http://{server.http}", timeout_s=1e300).ping()
