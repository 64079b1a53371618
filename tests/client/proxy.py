"""A proxy between a client and a server that sees each request and each answer, and may do something to them.

It knows where a frame, or a message of HTTP, ends. Rules are asked about each, on threads of the proxy: one
that blocks holds back what it was asked about, and all that comes behind it on that connection.
"""

import socket
import threading
import time
from collections.abc import Callable
from enum import Enum
from itertools import count

from tests.serving import PATIENCE_S

CHUNK = 1 << 18


class Do(Enum):
    """What becomes of a request, or of an answer."""

    PASS = "pass"
    CUT = "cut"
    """It does not arrive, and its connection ends on both sides."""
    PASS_AND_CUT = "pass and cut"
    """It arrives, and then its connection ends on both sides."""
    SWALLOW = "swallow"
    """It does not arrive, and nobody is told."""


Rule = Callable[[bytes], Do]


def let(_: bytes) -> Do:
    return Do.PASS


def first(*deeds: Do) -> Rule:
    """Do these to the first ones, and let the rest pass."""
    left = iter(deeds)
    return lambda _: next(left, Do.PASS)


class Gate:
    """Holds back what comes until it is opened, and lets a test wait until something has come."""

    def __init__(self, wanted: Callable[[bytes], bool] = lambda _: True) -> None:
        self._wanted = wanted
        self._come = threading.Event()
        self._open = threading.Event()

    def __call__(self, body: bytes) -> Do:
        if self._wanted(body):
            self._come.set()
            assert self._open.wait(PATIENCE_S)
        return Do.PASS

    def wait(self) -> None:
        """Wait until something is held back."""
        assert self._come.wait(PATIENCE_S)

    def open(self) -> None:
        self._open.set()


class Proxy:
    """Listens on a port of its own, and connects to ``target``, HOST:PORT, for each connection that comes."""

    def __init__(self, target: str, port: int = 0) -> None:
        self.target = target
        self._port = port
        self.requests: list[bytes] = []
        """Bodies of all requests that have come."""
        self.on_request: Rule = let
        self.on_answer: Rule = let
        self.refuses = False
        """Whether connections are closed as soon as they are made."""
        self.connections = 0
        self._sockets: dict[int, tuple[socket.socket, socket.socket]] = {}
        self._numbers = count()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> "Proxy":
        self._listener = socket.create_server(("127.0.0.1", self._port), backlog=1_000)
        host, port = self._listener.getsockname()
        self.address = f"{host}:{port}"
        self.url = f"http://{self.address}"
        self._run(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self.on_request = self.on_answer = let
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut_all()
        for thread in list(self._threads):
            thread.join(PATIENCE_S)

    def commands(self, name: str) -> list[bytes]:
        """The requests with this command."""
        return [each for each in list(self.requests) if f'"cmd":"{name}"'.encode() in each]

    def cut_all(self) -> None:
        """End every connection there is."""
        with self._lock:
            pairs = list(self._sockets.values())
        for pair in pairs:
            _end(*pair)

    def ends(self, patience_s: float) -> bool:
        """Whether every connection is closed by its client within some time."""
        until = time.monotonic() + patience_s
        while self._sockets and time.monotonic() < until:
            time.sleep(0.005)
        return not self._sockets

    def _run(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            if self.refuses:
                client.close()
                continue
            host, _, port = self.target.rpartition(":")
            try:
                server = socket.create_connection((host, int(port)))
            except OSError:
                client.close()
                continue
            for each in (client, server):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._join(client, server)

    def _join(self, client: socket.socket, server: socket.socket) -> None:
        number = next(self._numbers)
        left = iter((True, False))
        """Whether the other direction still runs when one has ended."""
        with self._lock:
            self._sockets[number] = (client, server)

        def carry(source: socket.socket, target: socket.socket, is_request: bool) -> None:
            try:
                self._carry(source, target, is_request)
            except OSError:
                _end(client, server)
            with self._lock:
                if not next(left):
                    del self._sockets[number]
                    client.close()
                    server.close()

        self._run(lambda: carry(client, server, True))
        self._run(lambda: carry(server, client, False))

    def _carry(self, source: socket.socket, target: socket.socket, is_request: bool) -> None:
        got = bytearray()
        while data := source.recv(CHUNK):
            got += data
            while size := _size(got):
                whole = bytes(got[:size])
                del got[:size]
                if is_request:
                    self.requests.append(_body(whole))
                deed = (self.on_request if is_request else self.on_answer)(_body(whole))
                if deed in (Do.PASS, Do.PASS_AND_CUT):
                    target.sendall(whole)
                if deed in (Do.CUT, Do.PASS_AND_CUT):
                    _end(source, target)
                    return
        if got:
            target.sendall(got)
        target.shutdown(socket.SHUT_WR)


def _end(*sockets: socket.socket) -> None:
    for each in sockets:
        try:
            each.shutdown(socket.SHUT_RDWR)
        except OSError:
            continue  # it has ended already


def _is_http(data: bytes | bytearray) -> bool:
    return data[:4] in (b"POST", b"HTTP")


def _size(got: bytearray) -> int:
    """How many bytes the first request or answer has, or 0 if it is not all there."""
    if len(got) < 4:
        return 0
    if not _is_http(got):
        size = 4 + int.from_bytes(got[:4], "big")
        return size if len(got) >= size else 0
    head = got.find(b"\r\n\r\n") + 4
    if head < 4:
        return 0
    lines = bytes(got[:head]).lower().split(b"\r\n")
    lengths = [line.partition(b":")[2] for line in lines if line.startswith(b"content-length:")]
    size = head + int(lengths[0])
    return size if len(got) >= size else 0


def _body(whole: bytes) -> bytes:
    return whole.partition(b"\r\n\r\n")[2] if _is_http(whole) else whole[4:]
