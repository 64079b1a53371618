"""How a real server treats its connections: good ones, broken ones, slow ones, too many."""

import select
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forebay.server.tcp.connection import TcpLimits
from tests.serving import (
    PATIENCE_S,
    Raw,
    Server,
    framed,
    packed,
    pop,
    push,
    refused,
    state,
    wait_for_pop,
)

# Frames that are no requests.

DEEP = b"[" * 5_000 + b"]" * 5_000


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        (b"", "invalid", "frame"),
        (b"nonsense", "invalid", "frame"),
        (b"[]", "invalid", "frame"),
        (b' {"cmd":"STATS"}', "invalid", "frame"),
        (b"\0", "invalid", "frame"),
        (b"{", "invalid", "frame"),
        (b'{"cmd":"STATS"', "invalid", "frame"),
        (b'{"cmd":"STATS"}}', "invalid", "frame"),
        (b'{"cmd":"PUSH","queue":"q","payload":"\xff"}', "invalid", "frame"),
        (b'{"cmd":"PUSH","queue":"q","payload":"\xed\xa0\x80"}', "invalid", "frame"),
        (b'{"cmd":"PUSH","queue":"q","payload":%s}' % DEEP, "invalid", "payload"),
        (b'{"cmd":"PUSH","queue":"q","other":%s}' % DEEP, "invalid", None),
        (b'{"cmd":%s' % (b"[" * 100_000), "invalid", None),
        (b"{}", "invalid", "cmd"),
        (b'{"cmd":"NOPE"}', "invalid", "cmd"),
        (b'{"cmd":"PUSH"}', "invalid", "queue"),
        (b'{"cmd":"PULL","queue":"q"}', "invalid", "cmd"),
        (b'{"cmd":"STAGE","queue":"q"}', "invalid", "stage"),
        (b'{"cmd":"PUSH","queue":"q","payload":1,"data":5}', "invalid", "data"),
    ],
    ids=lambda value: repr(value[:40]) if isinstance(value, bytes) else None,
)
def test_a_malformed_frame_is_answered_and_the_connection_goes_on(
    client: Raw, body: bytes, code: str, field: str | None
) -> None:
    client.send(framed(body), {"cmd": "STATS"})
    reply = client.receive()
    assert refused(reply, code, field)
    assert set(reply) == {"ok", "error"}
    assert set(reply["error"]) <= {"code", "message", "details"}
    assert client.receive()["ok"]


def test_a_bad_request_is_answered_with_its_req_id(client: Raw) -> None:
    for request in ({"cmd": "NOPE"}, {"cmd": "TX"}, {"cmd": "PUSH"}, {"cmd": "POP", "queue": ""}):
        assert client.ask({**request, "reqId": "mine"})["reqId"] == "mine"


def test_a_request_cut_into_single_bytes_is_answered(client: Raw) -> None:
    client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in packed({"cmd": "STATS"}):
        client.send(bytes([byte]))
    assert client.receive()["ok"]


@pytest.mark.parametrize(
    "stream", [b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"POST /v1", b'["no", "line"]\n', b"\xff" * 100]
)
def test_a_stream_that_has_no_frames_gets_one_error_and_is_closed(client: Raw, stream: bytes) -> None:
    client.send(stream)
    assert refused(client.receive(), "invalid", "frame")
    assert client.eof()


def test_requests_before_a_stream_breaks_are_answered(client: Raw, queue: str) -> None:
    client.send({"cmd": "PUSH", "queue": queue, "payload": 1, "reqId": "before"}, b"\xff\xff\xff\xff")
    replies = [client.receive(), client.receive()]
    assert sorted(reply["ok"] for reply in replies) == [False, True]
    assert client.eof()


# Clients that leave.


def test_a_client_that_sends_nothing_more_still_gets_its_answers(client: Raw, queue: str) -> None:
    client.send(packed(*({"cmd": "PUSH", "queue": queue, "payload": at} for at in range(1_000))))
    client.half_close()
    ids = [client.receive()["id"] for _ in range(1_000)]
    assert ids == list(range(ids[0], ids[0] + 1_000))
    assert client.eof()


def test_a_client_that_sends_nothing_more_does_not_wait(client: Raw, other: Raw, queue: str) -> None:
    client.send({"cmd": "POP", "queue": queue, "wait_ms": 60_000})
    client.half_close()
    assert client.receive() == {"ok": True, "lease": None, "messages": []}
    assert client.eof()
    push(other, queue, "kept")
    assert pop(other, queue)["payload"] == "kept"


def test_a_client_that_leaves_in_the_middle_of_a_frame_is_let_go(client: Raw) -> None:
    client.send(packed({"cmd": "STATS"})[:-1])
    client.half_close()
    assert client.eof()


def close(client: Raw) -> None:
    client.close()


def reset(client: Raw) -> None:
    """Close without a word of farewell."""
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def admitted(server: Server) -> Raw:
    """A connection, as soon as there is room for one."""
    while True:
        client = server.connect()
        try:
            if client.ask({"cmd": "STATS"})["ok"]:
                return client
        except (EOFError, ConnectionError):
            pass
        client.close()


@pytest.fixture(scope="module")
def crowded() -> Iterator[Server]:
    """A server for two."""
    with Server("--connections-max", "2") as running:
        yield running


@pytest.mark.parametrize("leave", [close, reset])
def test_a_client_that_left_while_its_pop_waited_takes_no_message(
    crowded: Server, queue: str, leave: Callable[[Raw], None]
) -> None:
    with admitted(crowded) as stays:
        leaves = admitted(crowded)
        wait_for_pop(leaves, queue)
        leave(leaves)
        # There is room again: the server has seen it leave.
        with admitted(crowded) as comes:
            message = push(stays, queue, "kept")
            assert pop(comes, queue)["payload"] == "kept"
            assert state(comes, message)["failures"] == 0


def test_one_connection_too_many_is_told_busy_and_closed(crowded: Server) -> None:
    with admitted(crowded) as first, admitted(crowded) as second:
        with crowded.connect() as third:
            assert refused(third.receive(), "busy")
            assert third.eof()
        assert first.ask({"cmd": "STATS"})["ok"]
        assert second.ask({"cmd": "STATS"})["ok"]
    with admitted(crowded) as again:
        assert again.ask({"cmd": "STATS"})["ok"]


# Clients that are slow.


def test_a_client_that_never_finishes_a_frame_is_closed() -> None:
    with Server("--stall-ms", "200") as server, server.connect() as idle, server.connect() as client:
        client.send(packed({"cmd": "STATS"})[:-1])
        assert client.eof()
        assert idle.ask({"cmd": "STATS"})["ok"]


def test_a_client_that_never_reads_is_closed(queue: str) -> None:
    with Server("--stall-ms", "200") as server, server.connect() as idle, server.connect() as client:
        push(client, queue, "x" * 1_000_000)
        client.send(packed(*[{"cmd": "READ", "queue": queue, "offset": 0}] * 50))
        # Time for the server to look for such clients more than once.
        assert idle.ask({"cmd": "POP", "queue": f"{queue}.none", "wait_ms": 2_500})["messages"] == []
        assert len(client.drain()) < 50


ECHOES = 2_000
PAYLOAD = "x" * 100_000
MEMORY_BYTES = 200 << 20
"""Far less than all the answers, far more than a server needs that does not make them ahead of time."""


def echo(queue: str, at: int) -> bytes:
    """Push a large message and read it back."""
    return packed(
        {"cmd": "PUSH", "queue": queue, "messages": [PAYLOAD]},
        {"cmd": "READ", "queue": queue, "offset": at, "max_count": 1},
    )


class Echoes:
    """Sends many of them, reading the answers or not."""

    def __init__(self, client: Raw, queue: str) -> None:
        self.socket = client.socket
        self.socket.setblocking(False)
        self._unsent = (echo(queue, at) for at in range(ECHOES))
        self._rest = memoryview(b"")
        self.all_sent = False
        self._got = bytearray()
        self.sizes: list[int] = []
        """Bytes of each answer so far."""

    def send_until_stuck(self) -> None:
        while not self.all_sent and select.select([], [self.socket], [], 1.0)[1]:
            self._send()

    def send_and_read(self) -> None:
        """Send the rest and read all the answers."""
        while len(self.sizes) < 2 * ECHOES:
            wants = [] if self.all_sent else [self.socket]
            readable, writable, _ = select.select([self.socket], wants, [], PATIENCE_S)
            assert readable or writable, "the server went silent"
            if writable:
                self._send()
            if readable:
                self._read()

    def _send(self) -> None:
        if not self._rest:
            self._rest = memoryview(next(self._unsent, b""))
            self.all_sent = not self._rest
        self._rest = self._rest[self.socket.send(self._rest) :]

    def _read(self) -> None:
        chunk = self.socket.recv(1 << 20)
        assert chunk, "the server closed the connection"
        self._got += chunk
        while len(self._got) >= 4 and len(self._got) >= 4 + (size := int.from_bytes(self._got[:4], "big")):
            assert self._got[4:15] == b'{"ok":true,'
            self.sizes.append(size)
            del self._got[: 4 + size]


def test_a_client_that_does_not_read_fills_its_own_buffers_and_not_the_server_s_memory(queue: str) -> None:
    with Server() as server, server.connect() as client:
        push(client, queue, PAYLOAD)
        before = server.rss_bytes()
        echoes = Echoes(client, queue)
        echoes.send_until_stuck()
        assert not echoes.all_sent
        assert server.rss_bytes() < before + MEMORY_BYTES
        echoes.send_and_read()
        assert all(size > len(PAYLOAD) for size in echoes.sizes[1::2])
        assert all(size < 100 for size in echoes.sizes[::2])


# The Unix socket, and the end.


def test_a_unix_socket_serves_the_same_queues_and_is_gone_with_the_server(queue: str) -> None:
    with Server("--unix", "forebay.sock") as server:
        with server.connect() as client, server.connect_unix() as local:
            push(local, queue, 1)
            assert pop(client, queue)["payload"] == 1
        assert server.unix is not None
        assert Path(server.unix).is_socket()
        server.terminate()
        assert server.wait() == 0
        assert not Path(server.unix).exists()


def test_a_server_that_is_told_to_stop_answers_who_waits_and_ends_well(queue: str) -> None:
    with Server() as server, server.connect() as client, server.connect() as idle:
        wait_for_pop(client, queue)
        server.terminate()
        assert client.receive() == {"reqId": "waiting", "ok": True, "lease": None, "messages": []}
        assert client.eof()
        assert idle.eof()
        assert server.wait() == 0


def test_a_server_that_has_stopped_takes_no_connections() -> None:
    with Server() as server:
        server.terminate()
        assert server.wait() == 0
        with pytest.raises(ConnectionRefusedError):
            server.connect()


def test_a_server_that_is_told_to_stop_does_not_wait_for_half_a_frame() -> None:
    with Server() as server, server.connect() as client:
        client.send(packed({"cmd": "STATS"}), packed({"cmd": "STATS"})[:-1])
        assert client.receive()["ok"]
        server.terminate()
        assert client.eof()
        assert server.wait() == 0


def test_a_client_that_sends_nothing_more_gets_all_its_answers(client: Raw, queue: str) -> None:
    """Also those of requests that take several steps: only waits end with what a client sends."""
    push(client, queue, 1, 2)
    client.send(
        {"cmd": "BROWSE", "queue": queue},
        {"cmd": "BULK", "queue": queue, "action": "cancel"},
        {"cmd": "WEBHOOKS"},
        {"cmd": "EVENTS", "after": "", "queues": ["none"], "wait_ms": 60_000},
        {"cmd": "STATE", "id": 1},
    )
    client.half_close()
    browsed, acted, listed, polled, missing = client.drain()
    assert [each["payload"] for each in browsed["messages"]] == [1, 2]
    assert acted["count"] == 2
    assert listed["ok"] is polled["ok"] is True
    assert (polled["events"], refused(missing, "not_found")) == ([], True)


def test_requests_of_several_steps_are_carried_out_some_at_a_time(client: Raw, queue: str) -> None:
    push(client, queue, *range(3))
    count = 5 * TcpLimits().tasks_max
    client.send(*({"cmd": "BROWSE", "queue": queue, "limit": 1 + at % 3} for at in range(count)))
    found = [len(client.receive()["messages"]) for _ in range(count)]
    assert found == [1 + at % 3 for at in range(count)]
