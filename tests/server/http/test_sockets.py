"""Lifecycle events over WebSockets: the same filters and the same ids."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from forebay.core.bounds import Limits
from forebay.server.events import hub
from forebay.server.http.connection import HttpLimits
from forebay.store.base import StoreError
from tests.broker.loop import SlowStore
from tests.server.http.streaming import Here, get, narrow
from tests.serving import PATIENCE_S, Raw, Server, pop, push

Told = dict[str, Any]
LAZY: dict[str, Any] = {"max_queue": 1, "compression": None}
"""How one connects that does not read."""


@contextmanager
def listen(server: Server | Here, query: str = "", **more: Any) -> Iterator[ClientConnection]:
    with connect(
        f"ws://{server.http}/v1/events/ws?{query}", open_timeout=PATIENCE_S, close_timeout=1, **more
    ) as socket:
        yield socket


def take(socket: ClientConnection, count: int = 1) -> list[Told]:
    return [json.loads(socket.recv(PATIENCE_S)) for _ in range(count)]


def brief(found: list[Told]) -> list[tuple[str, int]]:
    return [(each["kind"], each.get("count", 0)) for each in found]


def begun(server: Server | Here, query: str = "") -> str:
    """An id to go on from: of the present."""
    with listen(server, query) as socket:
        (first,) = take(socket)
        assert first["kind"] == "listening"
        last: str = first["id"]
        return last


def test_events_come_as_text(server: Server, client: Raw, queue: str) -> None:
    with listen(server, f"queue={queue}") as socket:
        assert brief(take(socket)) == [("listening", 0)]
        push(client, queue, 1, 2)
        created, pushed = take(socket, 2)
        assert brief([created, pushed]) == [("created", 0), ("pushed", 2)]
        pop(client, queue)
        assert brief(take(socket)) == [("popped", 1)]


def test_filters_are_those_of_the_stream(server: Server, client: Raw, queue: str) -> None:
    with listen(server, f"queue={queue}&queue={queue}.b&kind=settled&kind=popped") as socket:
        take(socket)
        for name in (queue, f"{queue}.c", f"{queue}.b"):
            push(client, name, 1)
            client.ask({"cmd": "ACK", "ids": [pop(client, name)["id"]]})
        found = take(socket, 4)
        assert [(each["queue"], each["kind"]) for each in found] == [
            (queue, "popped"),
            (queue, "settled"),
            (f"{queue}.b", "popped"),
            (f"{queue}.b", "settled"),
        ]


def test_one_goes_on_after_the_last_id(server: Server, client: Raw, queue: str) -> None:
    last = begun(server)
    got: list[tuple[str, int]] = []
    for at in range(1, 20):
        push(client, queue, *range(at))
        with listen(server, f"queue={queue}&after={last}") as socket:
            if at % 2:
                push(client, f"{queue}.other", 1)
            while not got or got[-1] != ("pushed", at):
                (found,) = take(socket)
                got += brief([found])
                last = found.get("id", last)
    assert got == [("created", 0), *(("pushed", at) for at in range(1, 20))]


def test_an_id_of_a_stream_is_one_of_a_socket(server: Server, client: Raw, queue: str) -> None:
    last = begun(server)
    push(client, queue, 1)
    with listen(server, f"queue={queue}", additional_headers={"Last-Event-ID": last}) as socket:
        assert brief(take(socket, 2)) == [("created", 0), ("pushed", 1)]
    with listen(server, f"queue={queue}&from=all") as socket:
        assert brief(take(socket, 2)) == [("created", 0), ("pushed", 1)]


@pytest.mark.parametrize("query", ["kind=nothing", "from=never", "after=x", "colour=red"])
def test_a_bad_question_is_closed_with_its_reason(server: Server, query: str) -> None:
    with listen(server, query) as socket, pytest.raises(ConnectionClosed) as closed:
        socket.recv(PATIENCE_S)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1008
    assert query.partition("=")[0] in closed.value.rcvd.reason


def test_a_long_reason_is_cut_where_a_character_ends(server: Server) -> None:
    with listen(server, "%C3%A4" * 100 + "=1") as socket, pytest.raises(ConnectionClosed) as closed:
        socket.recv(PATIENCE_S)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1008


def test_pages_of_foreign_origins_are_refused(server: Server) -> None:
    for origin in ("http://evil.example", "null"):
        with pytest.raises(InvalidStatus) as refused, listen(server, origin=origin):
            pass
        assert refused.value.response.status_code == 403
    with listen(server, origin=f"http://{server.http}") as socket:
        assert brief(take(socket)) == [("listening", 0)]


def test_pages_of_origins_that_are_allowed_are_welcome() -> None:
    with (
        Here(http=HttpLimits(origins=("http://good.example",))) as here,
        listen(here, origin="http://good.example") as socket,
    ):
        assert brief(take(socket)) == [("listening", 0)]


def test_a_plain_request_is_told_what_is_missing(server: Server) -> None:
    assert get(server.http, "/v1/events/ws")[0] in (400, 404, 426)


def test_what_a_client_says_is_passed_over(server: Server, client: Raw, queue: str) -> None:
    with listen(server, f"queue={queue}") as socket:
        take(socket)
        for said in ("hello", b"\x00\x01", "{}"):
            socket.send(said)
        push(client, queue, 1)
        assert brief(take(socket, 2)) == [("created", 0), ("pushed", 1)]
        socket.ping().wait(PATIENCE_S)


def test_a_server_that_stops_says_that_it_goes_away() -> None:
    with Server("--store", "memory:") as server, server.connect() as client:
        with listen(server) as one, listen(server) as other:
            push(client, "q", 1)
            server.terminate()
            for socket in (one, other):
                with pytest.raises(ConnectionClosed) as closed:
                    take(socket, 1_000)
                assert closed.value.rcvd is not None
                assert closed.value.rcvd.code == 1001
        assert server.wait() == 0


def noisy(client: Raw, count: int = 50_000) -> None:
    """Most of a megabyte of events: an ack here and there, so that each has a thousand runs."""
    first = push(client, "q", *[0] * count)
    client.ask({"cmd": "POP", "queue": "q", "count": count, "wait_ms": 0})
    client.ask({"cmd": "ACK", "ids": list(range(first, first + count, 2))})


def test_one_that_does_not_read_is_dropped_and_nobody_else_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "WAITING_BYTES_MAX", 50_000)
    with Here() as here, here.connect() as client, listen(here, "queue=q&kind=pushed") as good:
        take(good)
        with listen(here, sock=narrow(here.http, 4_096), **LAZY):
            for _ in range(40):
                noisy(client)
                assert brief(take(good)) == [("pushed", 50_000)]
                if here.call(lambda: here.server.hub.count) == 1:
                    break
            else:
                raise AssertionError("it was not dropped")
            push(client, "q", 1)
            assert brief(take(good)) == [("pushed", 1)]


def test_one_that_does_not_read_what_little_there_is_is_cut_after_a_while() -> None:
    with Here(http=HttpLimits(stall_ms=1)) as here, here.connect() as client:

        def unsent() -> bool:
            there = here.server._state.connections
            return any(each.transport.get_write_buffer_size() for each in there)

        with listen(here, sock=narrow(here.http, 4_096), **LAZY):
            while not here.call(unsent):
                noisy(client)
            while here.call(lambda: here.server.hub.count):
                client.ask({"cmd": "POP", "queue": "none", "wait_ms": 50})


def test_one_that_leaves_while_it_is_told_something_is_forgotten(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Here() as here, here.connect() as client:
        for _ in range(10):
            with listen(here, "queue=q", compression=None) as socket:
                take(socket)
                client.send({"cmd": "PUSH", "queue": "q", "payload": 1})
                socket.socket.close()
            assert client.receive()["ok"]
        while here.call(lambda: here.server.hub.count):
            push(client, "q", 1)
    assert "bug" not in caplog.text


def test_without_a_log_sockets_are_told_all_the_same() -> None:
    limits = Limits(events_bytes_max=0)
    with Here(limits=limits) as here, here.connect() as client, listen(here) as socket:
        take(socket)
        push(client, "q", 1)
        assert brief(take(socket, 2)) == [("created", 0), ("pushed", 1)]


def test_one_who_comes_while_the_store_fails_is_told_to_come_again() -> None:
    store = SlowStore()
    store.open_gate()
    with Here(store) as here, here.connect() as client:
        push(client, "q", 1)
        store.shut()
        client.send({"cmd": "PUSH", "queue": "q", "payload": 2})
        while not here.call(lambda: here.node._committer.busy):
            pass
        with listen(here) as socket:
            while not here.call(lambda: here.server.hub.count):
                pass
            store.commit_error = StoreError("no")
            store.open_gate()
            with pytest.raises(ConnectionClosed) as closed:
                socket.recv(PATIENCE_S)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1013
        assert "could not keep" in closed.value.rcvd.reason
