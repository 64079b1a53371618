"""Connections that come back."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from forebay.client.errors import Refused
from forebay.spark.link import Link, StageWriter, Unreachable
from tests.serving import Raw, Server, framed
from tests.spark.talking import packed_body


class Flaky:
    """Stands between a client and a server, and cuts the connection when it is told to."""

    def __init__(self, server: str, is_cut: Callable[[int], bool]) -> None:
        self._server = server
        self._is_cut = is_cut
        """Whether the answer to the n-th question is lost, and the connection with it."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.asked = 0
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._serve(client)

    def _serve(self, client: socket.socket) -> None:
        host, _, port = self._server.rpartition(":")
        with client, socket.create_connection((host, int(port))) as server, suppress(ConnectionError):
            while True:
                question = _frame(client)
                if question is None:
                    return
                self.asked += 1
                server.sendall(framed(question))
                answer = _frame(server)
                assert answer is not None
                if self._is_cut(self.asked):
                    return
                client.sendall(framed(answer))

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # whoever waits for the next connection is told
        self._thread.join()
        self._listener.close()


def refusal(code: str) -> dict[str, Any]:
    return {"ok": False, "error": {"code": code, "message": "full"}}


def _frame(connection: socket.socket) -> bytes | None:
    """The next frame; None when the other side is gone."""
    head = connection.recv(4, socket.MSG_WAITALL)
    if len(head) < 4:
        return None
    return connection.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL)


def test_writes_to_a_stage_go_out_again_and_count_once(server: Server) -> None:
    flaky = Flaky(server.tcp, lambda number: number % 5 == 0)
    with Link(flaky.address, 10_000) as link, server.connect() as client:
        stage = StageWriter(link, queue="flaky", stage="s", query="q", batch=0, expire_ms=60_000)
        for at in range(30):
            stage.write(1, body=packed_body(b"%d" % at), partition="default")
        stage.finish()
        link.ask("ADOPT", queue="flaky", query="q", batch=0, stages=["s"], count=30)
        read = client.ask({"cmd": "READ", "queue": "flaky", "offset": 0})
        assert [each for run in read["runs"] for each in run["payloads"]] == list(range(30))
        assert flaky.asked > 31
    flaky.close()


def test_reads_go_on_where_they_were(server: Server) -> None:
    with server.connect() as client:
        client.ask({"cmd": "PUSH", "queue": "reads", "messages": ["x" * 1_000 for _ in range(5_000)]})
    flaky = Flaky(server.tcp, lambda number: number % 2 == 1)
    with Link(flaky.address, 10_000) as link:
        found = [run for log in link.read("reads", "default", 10, 4_990) for run in log.runs]
    assert found[0].offset == 10
    assert [run.offset for run in found[1:]] == [run.offset + run.count for run in found[:-1]]
    assert found[-1].offset + found[-1].count == 4_990
    flaky.close()


def test_what_is_refused_is_not_asked_again(server: Server) -> None:
    flaky = Flaky(server.tcp, lambda number: False)
    with Link(flaky.address, 10_000) as link:
        with pytest.raises(Refused, match="there is no queue"):
            link.ask("OFFSETS", queue="there-is-none")
        with pytest.raises(Refused, match="there is no queue"):
            list(link.read("there-is-none", "default", 0, 5))
    assert flaky.asked == 2
    flaky.close()


def test_a_server_that_stays_away_is_named() -> None:
    with Link("127.0.0.1:1", 100) as link, pytest.raises(Unreachable, match=r'option "server"'):
        link.queues()


def test_a_body_is_not_copied_on_its_way(server: Server) -> None:
    with server.connect() as client, Link(server.tcp, 1_000) as link:
        client.ask({"cmd": "PUSH", "queue": "views", "messages": [1, 2, 3]})
        (log,) = link.read("views", "default", 0, 3)
        assert isinstance(log.runs[0].payloads, memoryview)


def test_frames_of_both_forms_are_mixed(server: Server) -> None:
    with server.connect() as client:
        assert _packed(client, {"cmd": "OFFSETS", "queue": "none"})["error"]["code"] == "not_found"
        assert client.ask({"cmd": "OFFSETS", "queue": "none"})["error"]["code"] == "not_found"


def _packed(client: Raw, request: dict[str, Any]) -> dict[str, Any]:
    client.send_frame(msgspec.msgpack.encode(request))
    length = int.from_bytes(client._exactly(4), "big")
    reply: dict[str, Any] = msgspec.msgpack.decode(client._exactly(length))
    return reply


def test_a_busy_server_is_asked_again_with_everything_behind_it() -> None:
    """A scripted server: the first part is refused once, and so are those that came behind it."""
    asked: list[int] = []

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        asked.append(request["part"])
        if asked.count(0) == 1:
            return refusal("busy" if request["part"] == 0 else "conflict")
        return {"ok": True, "part": request["part"], "count": 1}

    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        for _ in range(2):
            client, _ = listener.accept()
            with client, suppress(ConnectionError):
                while (question := _frame(client)) is not None:
                    client.sendall(framed(msgspec.msgpack.encode(answer(msgspec.msgpack.decode(question)))))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with Link(f"127.0.0.1:{listener.getsockname()[1]}", 10_000) as link:
        stage = StageWriter(link, queue="q", stage="s")
        for _ in range(3):
            stage.write(1, body=packed_body(b"1"))
        stage.finish()
    thread.join()
    listener.close()
    assert asked[-3:] == [0, 1, 2]


def test_a_server_that_stays_busy_says_why() -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client, suppress(ConnectionError):
                while _frame(client) is not None:
                    client.sendall(framed(msgspec.msgpack.encode(refusal("busy"))))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with Link(f"127.0.0.1:{listener.getsockname()[1]}", 200) as link:
        stage = StageWriter(link, queue="q", stage="s")
        stage.write(1, body=packed_body(b"1"))
        with pytest.raises(Refused, match="full"):
            stage.finish()
    listener.shutdown(socket.SHUT_RDWR)
    thread.join()
    listener.close()
