"""A real server with flashQ's door open, and a connection that speaks each of the door's three forms."""

import json
from typing import Any

import msgspec

from tests.serving import Raw, Reply, Request, Server, framed

FORMS = ("lines", "json", "packed")
"""Lines of JSON, length-prefixed JSON, length-prefixed MessagePack."""


class FlashqServer(Server):
    """A server that listens for clients of flashQ."""

    def __init__(self, *flags: str, at: str = "127.0.0.1:0") -> None:
        super().__init__("--flashq", at, *flags)

    def __enter__(self) -> "FlashqServer":
        super().__enter__()
        return self

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.flashq.rpartition(":")
        return host, int(port)

    def talk(self, form: str = "lines") -> "Talk":
        return Talk(Raw(self.address), form)


class Talk:
    """One connection in one of the forms."""

    def __init__(self, raw: Raw, form: str) -> None:
        self.raw = raw
        self.form = form

    def send(self, *requests: Request) -> None:
        self.raw.send(b"".join(map(self._encoded, requests)))

    def _encoded(self, request: Request) -> bytes:
        if self.form == "packed":
            return framed(msgspec.msgpack.encode(request))
        body = json.dumps(request).encode()
        return body + b"\n" if self.form == "lines" else framed(body)

    def receive_bytes(self) -> bytes:
        """The body of the next answer, as it came."""
        if self.form == "lines":
            while (end := self.raw._got.find(b"\n")) < 0:
                self.raw._more()
            return self.raw._exactly(end + 1)[:-1]
        return self.raw._exactly(int.from_bytes(self.raw._exactly(4), "big"))

    def receive(self) -> Reply:
        body = self.receive_bytes()
        reply: Reply = msgspec.msgpack.decode(body) if self.form == "packed" else json.loads(body)
        return reply

    def ask(self, cmd: str, **fields: Any) -> Reply:
        """The answer to a command, whatever it is."""
        self.send({"cmd": cmd, **fields})
        return self.receive()

    def do(self, cmd: str, **fields: Any) -> Reply:
        """The answer to a command that must be carried out."""
        reply = self.ask(cmd, **fields)
        assert reply["ok"] is True, (cmd, fields, reply)
        return reply

    def push(self, queue: str, data: Any = None, **options: Any) -> Any:
        return self.do("PUSH", queue=queue, data=data, **options)["id"]

    def pull(self, queue: str) -> Reply:
        job: Reply | None = self.do("PULL", queue=queue, timeout=0)["job"]
        assert job is not None, "nothing to pull"
        return job

    def state(self, job: Any) -> str:
        state: str = self.do("GETSTATE", id=job)["state"]
        return state

    def close(self) -> None:
        self.raw.close()

    def __enter__(self) -> "Talk":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
