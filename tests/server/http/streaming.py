"""Who listens to a server over HTTP, and a server in a thread of the test, whose store and clock obey it."""

import json
import socket
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPConnection, HTTPException
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from forebay.broker.node import Node
from forebay.core.bounds import Limits
from forebay.server.http.connection import HttpLimits
from forebay.server.http.server import HttpServer
from forebay.store.base import Store
from forebay.testing.server_thread import Life
from tests.broker.loop import BEGIN, ObedientStore
from tests.serving import PATIENCE_S, Raw

T = TypeVar("T")

Answer = tuple[int, Any]
"""Status, and what the JSON says."""


class Sse(Struct, frozen=True):
    """One server-sent event."""

    name: str
    data: str
    id: str | None = None
    comment: str = ""

    @property
    def is_ready(self) -> bool:
        """Whether the server says that it has told everything up to now."""
        return self.comment not in ("", "resuming")

    @property
    def told(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.data)
        return found


class Stream:
    """A client of server-sent events, which remembers the last id as a browser does."""

    def __init__(
        self, address: str, path: str, headers: Mapping[str, str] | None = None, window: int | None = None
    ) -> None:
        """``window`` is how many bytes the system takes for it while it does not read."""
        host, _, port = address.rpartition(":")
        self._connection = HTTPConnection(host, int(port), timeout=PATIENCE_S)
        if window is not None:
            self._connection.sock = narrow(address, window)
        self._connection.request("GET", path, headers=dict(headers or {}))
        assert self._connection.sock is not None
        self.socket: socket.socket = self._connection.sock
        self.response = self._connection.getresponse()
        self.status = self.response.status
        self.last_id: str | None = None

    def ready(self) -> "Stream":
        """Once the server has said that it listens: what happens from here on is told."""
        assert self.status == 200, self.response.read()
        while True:
            block = self.block()
            assert block is not None
            if block.is_ready:
                return self

    def block(self) -> Sse | None:
        """What stands up to the next empty line; None when the stream is over."""
        lines: list[bytes] = []
        while True:
            line = self.response.readline()
            if not line:
                return None
            assert line.endswith(b"\n"), line
            if line == b"\n":
                return self._read(lines)
            lines.append(line[:-1])

    def _read(self, lines: list[bytes]) -> Sse:
        given: dict[str, str] = {}
        for line in lines:
            name, _, value = line.decode().partition(":")
            assert name not in given, lines
            given[name] = value.removeprefix(" ")
        assert given.keys() <= {"event", "data", "id", ""}, lines
        found = Sse(given.get("event", ""), given.get("data", ""), given.get("id"), given.get("", ""))
        if found.id is not None:
            self.last_id = found.id
        return found

    def __iter__(self) -> Iterator[Sse]:
        """Events, pings left out, until the stream ends."""
        while (block := self.block()) is not None:
            if block.name and block.name != "ping":
                yield block

    def next(self) -> Sse:
        for each in self:
            return each
        raise AssertionError("the stream is over")

    def take(self, count: int) -> list[Sse]:
        return [self.next() for _ in range(count)]

    def until(self, kind: str) -> list[Sse]:
        """Everything up to the first event of a kind."""
        found: list[Sse] = []
        for each in self:
            found.append(each)
            if each.name == kind:
                return found
        raise AssertionError(f"no {kind}: {found}")

    def is_over(self) -> bool:
        """Whether the server ends the stream, whatever it still says."""
        try:
            while self.block() is not None:
                pass
        except (HTTPException, OSError):
            return True
        return True

    def close(self) -> None:
        """Go away without a word."""
        self.response.close()
        self._connection.close()
        self.socket.close()

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def narrow(address: str, window: int) -> socket.socket:
    """A connection for which the system takes few bytes while nobody reads them."""
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
    found.settimeout(PATIENCE_S)
    host, _, port = address.rpartition(":")
    found.connect((host, int(port)))
    return found


def ask(
    address: str,
    method: str,
    path: str,
    body: object = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """One question over HTTP."""
    host, _, port = address.rpartition(":")
    connection = HTTPConnection(host, int(port), timeout=PATIENCE_S)
    try:
        sent = None if body is None else json.dumps(body).encode()
        connection.request(method, path, sent, dict(headers or {}))
        response = connection.getresponse()
        said = response.read()
        is_json = response.headers.get_content_type() == "application/json"
        return response.status, json.loads(said) if is_json and said else said.decode()
    finally:
        connection.close()


def get(address: str, path: str, headers: Mapping[str, str] | None = None) -> Answer:
    return ask(address, "GET", path, headers=headers)


class Here(Life):
    """A server in a thread of this process: its store does what it is told, its clock stands still."""

    def __init__(
        self,
        store: Store | None = None,
        limits: Limits | None = None,
        http: HttpLimits | None = None,
        at: int = BEGIN,
    ) -> None:
        self.store = store or ObedientStore()
        limits = replace(limits or Limits(events_bytes_max=1 << 20), pop_creates_queues=True)
        super().__init__(self.store, at=at, limits=limits, http_limits=http or HttpLimits())

    def __enter__(self) -> "Here":
        self.start()
        return self

    @property
    def now(self) -> int:
        return self._clock.now()

    @now.setter
    def now(self, at: int) -> None:
        self._clock.move_to(at)

    @property
    def node(self) -> Node:
        return self._node

    @property
    def server(self) -> HttpServer:
        return self._web

    @property
    def http(self) -> str:
        return self._http_at

    def call(self, function: Callable[[], T]) -> T:
        """Call something where the server runs."""
        return self._call(function)

    def connect(self) -> Raw:
        host, _, port = self.tcp.rpartition(":")
        return Raw((host, int(port)))

    def end(self) -> None:
        """As when it is told to stop: streams end, nobody waits any more."""
        self.call(self.server.end_all)
        self._run(self.node.drain())

    def __exit__(self, *_: object) -> None:
        self.stop()
