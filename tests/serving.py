"""A real server in a process of its own, and a client that sends whatever it is told to."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Self

import msgspec

PATIENCE_S = 30.0
"""How long a test waits for what must come."""
HTTP = ("--http", "127.0.0.1:0")
"""Where servers of tests listen for HTTP, unless they say otherwise."""
STOP_S = 15.0
"""How long a server may take to stop."""

Request = dict[str, Any]
Reply = dict[str, Any]


def framed(body: bytes) -> bytes:
    """A body as a frame."""
    return len(body).to_bytes(4, "big") + body


def packed(*requests: Request) -> bytes:
    """Requests as frames, one behind the other."""
    return b"".join(framed(json.dumps(each).encode()) for each in requests)


def lined(*requests: Request) -> bytes:
    """Requests as lines."""
    return b"".join(json.dumps(each).encode() + b"\n" for each in requests)


class Raw:
    """One connection, byte by byte if need be."""

    def __init__(self, address: str | tuple[str, int]) -> None:
        self.socket = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
        self.socket.settimeout(PATIENCE_S)
        try:
            self.socket.connect(address)
        except OSError:
            self.socket.close()
            raise
        self._got = bytearray()

    def send(self, *parts: Request | bytes) -> None:
        """Requests as frames, bytes as they are; all in one write."""
        self.socket.sendall(b"".join(part if isinstance(part, bytes) else packed(part) for part in parts))

    def send_frame(self, body: bytes) -> None:
        self.socket.sendall(framed(body))

    def receive(self) -> Reply:
        """The next answer."""
        length = int.from_bytes(self._exactly(4), "big")
        reply: Reply = json.loads(self._exactly(length))
        return reply

    def ask(self, request: Request) -> Reply:
        self.send(request)
        return self.receive()

    def ask_packed(self, request: Request) -> Reply:
        """The same as MessagePack, there and back."""
        self.send_frame(msgspec.msgpack.encode(request))
        length = int.from_bytes(self._exactly(4), "big")
        reply: Reply = msgspec.msgpack.decode(self._exactly(length))
        return reply

    def receive_line(self) -> Reply:
        """The next answer, which is a line."""
        while (end := self._got.find(b"\n")) < 0:
            self._more()
        line = self._exactly(end + 1)
        assert b"\r" not in line
        reply: Reply = json.loads(line)
        return reply

    def ask_line(self, request: Request) -> Reply:
        """The same as a line of JSON, there and back."""
        self.send(lined(request))
        return self.receive_line()

    def drain(self) -> list[Reply]:
        """Every whole answer until the server closes the connection."""
        replies = []
        try:
            while True:
                replies.append(self.receive())
        except (EOFError, ConnectionResetError):
            return replies

    def eof(self) -> bool:
        """Whether the server closed the connection, and said nothing more before."""
        try:
            return not self._got and not self.socket.recv(1)
        except ConnectionResetError:
            return True

    def half_close(self) -> None:
        """Say that nothing more is sent, and go on reading."""
        self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.socket.close()

    def _exactly(self, count: int) -> bytes:
        while len(self._got) < count:
            self._more()
        taken = bytes(self._got[:count])
        del self._got[:count]
        return taken

    def _more(self) -> None:
        chunk = self.socket.recv(1 << 20)
        if not chunk:
            raise EOFError(f"the server closed the connection after {bytes(self._got)!r}")
        self._got += chunk

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Server:
    """A server with these flags, in a directory of its own, stopped by SIGTERM."""

    def __init__(self, *flags: str, complains: bool = False) -> None:
        self._flags = flags
        self._complains = complains
        """Whether a traceback or a bug may stand in its log."""
        self._was_killed = False

    def __enter__(self) -> "Server":
        self._directory = tempfile.TemporaryDirectory(prefix="forebay-test-")
        home = Path(self._directory.name)
        self._log = home / "log"
        self.data = home / "forebay-data"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
        environment["FOREBAY_POP_CREATES_QUEUES"] = "on"  # a flag may say something else
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "forebay", "serve", "--tcp", "127.0.0.1:0", *HTTP, *self._flags],
                cwd=home,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self.pid = self._process.pid
        ready = self._ready()
        self.tcp: str = ready["tcp"]
        self.http: str = ready["http"]
        self.unix: str | None = str(home / ready["unix"]) if ready["unix"] else None
        self.flashq: str = ready["flashq"] or ""
        """Where clients of flashQ connect to, if it listens for them."""
        self.flashq_http: str = ready["flashq_http"] or ""
        return self

    def _ready(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], PATIENCE_S)
        line = self._process.stdout.readline() if readable else b""
        if not line:
            self._process.kill()
            self._let_go()
            raise AssertionError(f"the server did not start:\n{self._read_log()}")
        ready: dict[str, Any] = json.loads(line)
        assert ready["ready"] is True
        return ready

    def connect(self) -> Raw:
        host, _, port = self.tcp.rpartition(":")
        return Raw((host, int(port)))

    def connect_flashq(self) -> Raw:
        host, _, port = self.flashq.rpartition(":")
        return Raw((host, int(port)))

    def connect_unix(self) -> Raw:
        assert self.unix is not None, "start it with --unix PATH"
        return Raw(self.unix)

    def said(self) -> str:
        """What stands in its log by now."""
        return self._read_log()

    def rss_bytes(self) -> int:
        """Memory the process takes up right now."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("the system does not say how much memory a process takes up")

    def terminate(self) -> None:
        """Tell it to stop; leaving the block waits until it has."""
        os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End it as a crash does; leaving the block asks for nothing more."""
        os.kill(self.pid, signal.SIGKILL)
        assert self.wait() == -signal.SIGKILL
        self._was_killed = True

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        return self._process.wait(STOP_S)

    def __exit__(self, kind: object, *_: object) -> None:
        if self._process.poll() is None:
            self.terminate()
        try:
            code = self.wait()
        finally:
            self._process.kill()
            self._let_go()
            log = self._read_log()
            self._directory.cleanup()
        if kind is None and not self._was_killed:
            assert code == 0, f"exit code {code}:\n{log}"
            assert self._complains or ("Traceback" not in log and "bug:" not in log), log

    def _let_go(self) -> None:
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _read_log(self) -> str:
        return self._log.read_text(errors="replace")


# Questions that many tests ask.


def push(client: Raw, queue: str, *payloads: Any, **fields: Any) -> int:
    """Push payloads; the id of the first."""
    reply = client.ask({"cmd": "PUSH", "queue": queue, "messages": list(payloads), **fields})
    assert reply["ok"], reply
    first: int = reply["first"]
    return first


def pop(client: Raw, queue: str, **fields: Any) -> Reply:
    """The next message; there must be one."""
    reply = client.ask({"cmd": "POP", "queue": queue, "wait_ms": 0, **fields})
    assert reply["ok"], reply
    assert reply["messages"], "nothing to pop"
    message: Reply = reply["messages"][0]
    return message


def pop_all(client: Raw, queue: str, **fields: Any) -> list[Any]:
    """The payloads of everything there is."""
    reply = client.ask({"cmd": "POP", "queue": queue, "count": 1_000, "wait_ms": 0, **fields})
    return [each["payload"] for each in reply["messages"]]


def state(client: Raw, message: int | str, **fields: Any) -> Reply:
    return client.ask({"cmd": "STATE", "id": message, **fields})


def refused(reply: Reply, code: str, field: str | None = None) -> bool:
    """Whether a reply is an error with this code, about this field."""
    if reply["ok"]:
        return False
    error = reply["error"]
    return error["code"] == code and (not field or error["details"]["field"] == field)


def wait_for_pop(client: Raw, queue: str, **fields: Any) -> None:
    """Have a POP wait; it does when this returns."""
    pop = {"cmd": "POP", "queue": queue, "wait_ms": 60_000, "reqId": "waiting", **fields}
    client.send(pop, {"cmd": "STATS", "reqId": "done"})
    assert client.receive()["reqId"] == "done"
