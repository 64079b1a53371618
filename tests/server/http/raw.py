"""An HTTP client that sends whatever it is told to, byte by byte if need be."""

import json
import os
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from tests.serving import PATIENCE_S, Raw, Server


class Answer(NamedTuple):
    """One answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """Why it is refused."""
        code: str = self.json["error"]["code"]
        return code


def request(method: str, path: str, body: Any = None, **headers: str) -> bytes:
    """A request; what is not bytes becomes JSON."""
    if body is None:
        data = b""
    else:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: test"]
    if body is not None and "transfer_encoding" not in headers:
        headers.setdefault("content_length", str(len(data)))
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def chunk(data: bytes) -> bytes:
    """A chunk of a body that comes in chunks."""
    return b"%x\r\n%s\r\n" % (len(data), data)


class Http(Raw):
    """One connection."""

    def __init__(self, server: Server) -> None:
        host, _, port = server.http.rpartition(":")
        super().__init__((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def answer(self, *, head: bool = False) -> Answer:
        """The next answer. Raises EOFError if the server closes the connection before."""
        status, *lines = self._until(b"\r\n\r\n").decode("latin-1").splitlines()
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        number = int(status.split()[1])
        body = b"" if head or number == 100 else self._exactly(int(headers["content-length"]))
        return Answer(number, headers, body)

    def _until(self, end: bytes) -> bytes:
        while end not in self._got:
            some = self.socket.recv(1 << 16)
            if not some:
                raise EOFError(f"the server closed the connection after {bytes(self._got)!r}")
            self._got += some
        found, _, rest = self._got.partition(end)
        self._got = rest
        return bytes(found)

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        self.send(request(method, path, body, **headers))
        return self.answer()

    def good(self, method: str, path: str, body: Any = None) -> Any:
        answer = self.call(method, path, body)
        assert answer.status == 200, answer
        return answer.json

    def reset(self) -> None:
        """Close without a word of farewell."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def __enter__(self) -> "Http":
        return self


def wait_until(holds: Callable[[], bool]) -> None:
    """Come back when something holds; fail if it never does."""
    until = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < until, "what was waited for does not come"


def open_files(pid: int) -> int:
    """How many sockets a process has open."""
    found = 0
    for name in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):
            found += os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:")
    return found


# What many tests ask for.

LINES = "application/x-ndjson"


def messages(queue: str) -> str:
    return f"/v1/queues/{queue}/messages"


def pop(queue: str) -> str:
    return f"/v1/queues/{queue}/pop"


def streaming(queue: str) -> bytes:
    """The head of a stream of lines."""
    return request("POST", messages(queue), b"", content_type=LINES, transfer_encoding="chunked")


def push(client: Http, queue: str, payload: Any) -> Any:
    return client.good("POST", messages(queue), {"payload": payload})


def popped(client: Http, queue: str, **fields: Any) -> list[Any]:
    found: list[Any] = client.good("POST", pop(queue), fields)["messages"]
    return found


def counts(client: Http, queue: str) -> dict[str, int]:
    (group,) = client.good("GET", f"/v1/queues/{queue}")["groups"] or [{"counts": {}}]
    found: dict[str, int] = group["counts"]
    return found


def size(client: Http, queue: str) -> int:
    """Messages that were ever pushed to a queue."""
    answer = client.call("GET", f"/v1/queues/{queue}")
    if answer.status == 404:
        return 0
    return sum(each["end"] for each in answer.json["partitions"])


def is_refused(answer: Answer, status: int, code: str = "invalid") -> bool:
    return (answer.status, answer.code) == (status, code) and answer.headers["connection"] == "close"
