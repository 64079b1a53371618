"""A client for HTTP that sends whatever it is told to: one connection that is kept, JSON there and back."""

import gzip
import http.client
import json
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote, urlencode

from msgspec import Struct

from tests.serving import PATIENCE_S

LINES = "application/x-ndjson"


class Answer(Struct, frozen=True):
    """What came back."""

    status: int
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The code of an error, which looks as every error does."""
        assert set(self.json) == {"error"}, self.json
        error = self.json["error"]
        assert set(error) - {"details"} == {"code", "message"}, error
        assert error["message"]
        assert self.headers["content-type"] == "application/json"
        code: str = error["code"]
        return code

    @property
    def details(self) -> dict[str, Any]:
        found: dict[str, Any] = self.json["error"].get("details", {})
        return found


def bearer(token: str) -> dict[str, str]:
    """Headers of a request that shows a token."""
    return {"authorization": f"Bearer {token}"}


class Http:
    """One connection."""

    def __init__(self, address: str, token: str = "") -> None:
        host, _, port = address.rpartition(":")
        self.connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)
        self._always = bearer(token) if token else {}

    def send(
        self,
        method: str,
        path: str,
        body: bytes | Iterable[bytes] | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """Bytes as they are; several pieces go in chunks."""
        chunked = body is not None and not isinstance(body, bytes)
        also = {"transfer-encoding": "chunked"} if chunked else {}
        self.connection.request(
            method, path, body, {**self._always, **also, **(headers or {})}, encode_chunked=chunked
        )
        answer = self.connection.getresponse()
        said = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, said, answer.read())

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: dict[str, str] | None = None,
        **query: Any,
    ) -> Answer:
        """A body is sent as JSON, ``query`` as the query: a list is given often, ``from_`` means from."""
        fields = {name.rstrip("_"): _text(value) for name, value in query.items()}
        whole = f"{path}?{urlencode(fields, doseq=True)}" if fields else path
        return self.send(method, whole, None if body is None else json.dumps(body).encode(), headers)

    # What must work, and what it says.

    def get(self, path: str, **query: Any) -> Any:
        return _good(self.ask("GET", path, **query))

    def post(self, path: str, **fields: Any) -> Any:
        return _good(self.ask("POST", path, fields))

    def put(self, path: str, **fields: Any) -> Any:
        return _good(self.ask("PUT", path, fields))

    def text(self, path: str) -> str:
        answer = self.ask("GET", path)
        assert answer.status == 200, answer
        return answer.body.decode()

    def delete(self, path: str, **query: Any) -> Any:
        return _good(self.ask("DELETE", path, **query))

    def lines(self, queue: str, body: bytes | Iterable[bytes], **headers: str) -> Answer:
        """Push a stream of lines."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.send("POST", f"{at(queue)}/messages", body, {"content-type": LINES, **named})

    # Questions that many tests ask.

    def push(self, queue: str, *payloads: Any, **options: Any) -> int:
        """Push payloads; the id of the first."""
        first: int = self.post(f"{at(queue)}/messages", messages=list(payloads), **options)["first"]
        return first

    def pop(self, queue: str, count: int = 1, **fields: Any) -> Any:
        return self.post(f"{at(queue)}/pop", count=count, **fields)

    def popped(self, queue: str, count: int = 1_000, **fields: Any) -> list[Any]:
        """The payloads of a pop."""
        return [each["payload"] for each in self.pop(queue, count, **fields)["messages"]]

    def state(self, queue: str, message: int, **query: Any) -> str:
        state: str = self.get(f"{at(queue)}/messages/{message}", **query)["state"]
        return state

    def counts(self, queue: str, group: str = "default") -> dict[str, int]:
        """How many are in each state; states nobody is in are left out."""
        found = self.get(f"/v1/groups/{queue}/{group}")["counts"]
        return {state: count for state, count in found.items() if count}

    def close(self) -> None:
        self.connection.close()

    def __enter__(self) -> "Http":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def at(queue: str) -> str:
    """The path of a queue."""
    return f"/v1/queues/{quote(queue, safe='')}"


def packed(body: bytes) -> bytes:
    return gzip.compress(body, mtime=0)


def lines_of(*messages: Any) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in messages)


def _good(answer: Answer) -> Any:
    assert answer.status == 200, answer
    return answer.json


def _text(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return value
