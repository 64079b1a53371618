"""Makes requests out of chance: good ones from the classes of the operations, then broken."""

import gzip
import json
import random
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin
from urllib.parse import quote

import msgspec
from msgspec import NODEFAULT, UNSET, Raw, Struct, UnsetType

from forebay.core.api import commands as core, jobs as job_commands
from forebay.server.cursors import shown_version
from forebay.server.decode_errors import HIDDEN
from forebay.server.http.operation import Bound
from forebay.server.http.routes import ROUTES as ALL_ROUTES
from forebay.wire.operations.messages import ACTIONS
from tests.server.test_fuzz import STRANGE, TEXTS

LEFT_OUT = ("Hold", "Backup")
"""What would end the life of the server, or write to the disk."""
ROUTES = [each for each in ALL_ROUTES if each.name not in LEFT_OUT]
NAMED: dict[str, list[Any]] = {
    "queue": ["a", "b", "c"],
    "group": ["default", "default", "g"],
    "partition": ["default", "p"],
    "key": ["k", ["k", 1]],
    "prefix": ["k", "k/1", ""],
    "state": ["waiting", "active", "dead", "completed", "delayed"],
    "states": [["waiting"], ["dead", "completed"]],
    "action": list(ACTIONS),
    "durability": ["fsync", "os", "memory"],
    "kind": ["set", "delete", "sum", "max", "append", "expire"],
    "from": ["all", "new", 1_700_000_000_000],
    "to": ["all", "new", 1_700_000_000_000],
    "offset": [0, 1, 5],
    "count": [1, 2, 10],
    "limit": [1, 10, 100],
    "min_count": [1, 2],
    "wait_ms": [0, 0, 1, 1_000],
    "lease_ms": [1, 1_000, 60_000],
    "delay_ms": [0, 1, 60_000],
    "priority": [0, 1, -5],
    "ttl_ms": [0, 1, 60_000],
    "schedule": ["* * * * *", "0 0 1 1 *", "@daily"],
    "every_ms": [1_000, 60_000],
    "timezone": ["UTC", "Europe/Berlin"],
    "missed": ["last", "skip", "all"],
    "dedup": ["drop", "replace"],
    "unique_key": ["u", "v"],
    "on_failed": ["fail", "ignore"],
    "cursor": ["65.0", "65.3"],
    "tag": ["t"],
    "text": ["1", "a"],
}
"""What fields may hold that would be refused at once otherwise."""
LIKELY = {"payload", "lease", "ids", "schedule", "mutations", "to", "options"}
"""Fields without which hardly anything is carried out."""
NAMES = ["a", "b", "c", "p", "g", "default", "x" * 300, "", "é漢🦀", "\0", "..", "a b", "%", "a/b", "\ud800"]
HEADERS = [
    b"Content-Type: application/x-ndjson",
    b"Content-Type: application/x-ndjson",
    b"Content-Type: text/plain",
    b"Content-Encoding: gzip",
    b"Content-Encoding: br",
    b"Accept-Encoding: gzip",
    b"Expect: 100-continue",
    b"Expect: 200-maybe",
    b"Connection: close",
    b"Connection: Upgrade\r\nUpgrade: websocket",
    b"Connection: upgrade\r\nUpgrade: h2c",
    b"Origin: http://evil.example",
    b"Origin: http://x",
    b"X-Request-ID: mine",
    b"X-Request-ID: \xff\xfe",
    b"Content-Length: 5",
    b"Content-Length: 0",
    b"Content-Length: 99999999999999999999",
    b"Content-Length: -1",
    b"Content-Length: 5\r\nContent-Length: 6",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: chunked, gzip",
    b"Transfer-Encoding : chunked",
    b"Authorization: Bearer x",
    b" folded: line",
    b"No-Colon",
    b": nothing",
    b"X-Nul: \0",
    b"X-Cr: a\rb",
    b"X-Long: " + b"y" * 5_000,
    b"Trailer: x",
    b"\xff: 1",
]
PLACES = {"key": ["k", "k/1"], "name": ["cron", "cron/2"]}
IN_QUERIES = [b"%", b"%ff", b"%zz", b"&&", b"=", b"\xff", b"+", b"#"]
METHODS = [b"GET", b"HEAD", b"PUT", b"DELETE", b"OPTIONS", b"PATCH", b"get", b"X", b""]
TARGETS = [b"", b"*", b"http://h/v1/stats", b"//", b"/%", b"/\xff", b"/docs", b"/a b"]
ENDS = [b"\r\n", b"\r\n", b"\r\n", b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r", b"\r\r\n", b""]


fields = cache(msgspec.structs.fields)


class Seen:
    """Names that were given out: cases that use them reach further."""

    def __init__(self) -> None:
        self.ids: list[int] = [17179869184]
        self.leases: list[str] = ["1"]
        self.versions: list[str] = ["1"]

    def note(self, reply: Any) -> None:
        match reply:
            case core.Pushed():
                self.ids = [*self.ids[-8:], reply.first]
            case job_commands.PushedJobs():
                self.ids = [*self.ids[-8:], *reply.ids[:3]]
            case core.Popped() if reply.lease is not None:
                self.leases = [*self.leases[-3:], reply.lease]
                self.ids = [*self.ids[-8:], reply.deliveries[0].first]
            case job_commands.KvWritten():
                self.versions = [*self.versions[-3:], shown_version(reply.version)]


class Maker:
    """Requests of one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.seen = Seen()
        self._breaking = [
            self._mistyped,
            self._mistyped,
            self._misspelt,
            self._misspelt,
            self._missing,
            self._flipped,
            self._cut,
            self._noise,
            self._doubled,
        ]

    # Good ones.

    def good(self, kind: type[Struct]) -> dict[str, Any]:
        """What a class may hold."""
        found: dict[str, Any] = {}
        tag = kind.__struct_config__.tag
        if tag is not None:
            found[str(kind.__struct_config__.tag_field)] = tag
        for each in fields(kind):
            if each.encode_name.startswith(HIDDEN):
                continue
            is_needed = each.default is NODEFAULT and each.default_factory is NODEFAULT
            is_likely = each.encode_name in (
                "payload",
                "lease",
                "ids",
                "schedule",
                "mutations",
                "to",
                "options",
            )
            if is_needed or self.random.random() < (0.5 if is_likely else 0.08):
                found[each.encode_name] = self._value(each.encode_name, each.type)
        return found

    def _value(self, name: str, kind: Any) -> Any:
        chance = self.random
        if name in ("ids", "id", "depends_on"):
            return chance.choices(self.seen.ids, k=chance.choice([1, 1, 2]))
        if name == "lease":
            return chance.choice(self.seen.leases)
        if name == "version":
            return chance.choice([None, *self.seen.versions])
        if name in NAMED and chance.random() < 0.95:
            return chance.choice(NAMED[name])
        return self._of_kind(name, kind)

    def _of_kind(self, name: str, kind: Any) -> Any:
        chance = self.random
        origin = get_origin(kind)
        if hasattr(kind, "__metadata__"):
            return self._of_kind(name, get_args(kind)[0])
        if origin in (Union, UnionType):
            kinds = [each for each in get_args(kind) if each not in (type(None), UnsetType)]
            return self._of_kind(name, chance.choice(kinds))
        if origin in (list, tuple):
            return [self._of_kind(name, get_args(kind)[0]) for _ in range(chance.choice([0, 1, 1, 2, 3]))]
        if origin is dict:
            return {"h": "1"}
        if isinstance(kind, type) and issubclass(kind, Struct):
            return self.good(kind)
        if kind in (Raw, Any):
            return chance.choice([1, "a", None, [1, {"n": 2}], {"n": 1}, 1.5, True])
        by_kind = {str: "a", int: chance.choice([0, 1, 5, 1_000]), float: 1.5, bool: chance.random() < 0.5}
        return by_kind.get(kind, "a")

    # Bodies.

    def body(self, bound: Bound) -> bytes:
        """A body for an operation, good or broken."""
        given = self.good(bound.kind)
        if self.random.random() < 0.35:
            return json.dumps(given).encode()
        return self.random.choice(self._breaking)(given)[:20_000]

    def _place(self, given: dict[str, Any]) -> tuple[Any, Any]:
        """Something in a body that can be replaced: a container, and where in it."""
        at: Any = given
        while True:
            places = list(at) if isinstance(at, dict) else list(range(len(at)))
            if not places:
                return given, "colour"
            place = self.random.choice(places)
            inner = at[place]
            if not isinstance(inner, dict | list) or self.random.random() < 0.4:
                return at, place
            at = inner

    def _mistyped(self, given: dict[str, Any]) -> bytes:
        given = json.loads(json.dumps(given))
        at, place = self._place(given) if self.random.random() < 0.8 else (given, self._other_field())
        at[place] = self.random.choice(STRANGE)
        return json.dumps(given, ensure_ascii=self.random.random() < 0.5).encode(errors="surrogatepass")

    def _misspelt(self, given: dict[str, Any]) -> bytes:
        given = json.loads(json.dumps(given))
        at, place = self._place(given)
        at[place] = "@@"
        return json.dumps(given).encode().replace(b'"@@"', self.random.choice(TEXTS), 1)

    def _missing(self, given: dict[str, Any]) -> bytes:
        if given:
            given.pop(self.random.choice(list(given)))
        if self.random.random() < 0.3:
            given[self._other_field()] = 1
        return json.dumps(given).encode()

    def _other_field(self) -> str:
        kind: type[Struct] = self.random.choice(ROUTES).kind
        return self.random.choice([*(each.encode_name for each in fields(kind)), "colour", ""])

    def _flipped(self, given: dict[str, Any]) -> bytes:
        body = bytearray(json.dumps(given).encode())
        for _ in range(self.random.choice([1, 1, 2, 8])):
            body[self.random.randrange(len(body))] ^= 1 << self.random.randrange(8)
        return bytes(body)

    def _cut(self, given: dict[str, Any]) -> bytes:
        body = json.dumps(given).encode()
        low, high = sorted(self.random.choices(range(len(body) + 1), k=2))
        return body[:low] + body[high:] if self.random.random() < 0.5 else body[:high] + body[low:]

    def _noise(self, given: dict[str, Any]) -> bytes:
        return self.random.choice([b"", b"{", b"[]", b"null", b'"a"']) + self.random.randbytes(
            self.random.choice([0, 1, 5, 50])
        )

    def _doubled(self, given: dict[str, Any]) -> bytes:
        body = json.dumps(given).encode()
        return body[:-1] + b"," + body[1:] if self.random.random() < 0.5 else body + body

    # Queries and paths.

    def query(self, bound: Bound) -> bytes:
        chance = self.random
        given = self.good(bound.kind)
        parts: list[tuple[str, Any]] = []
        for name, value in given.items():
            parts += [(name, each) for each in value] if isinstance(value, list) else [(name, value)]
        if chance.random() < 0.5:
            parts.append((self._other_field(), chance.choice(STRANGE)))
        if chance.random() < 0.05:
            parts += parts
        if chance.random() < 0.01:
            parts += [("ids", number) for number in range(1_100)]
        text = "&".join(f"{name}={_quoted(value)}" for name, value in parts).encode(errors="surrogatepass")
        if chance.random() < 0.2 and text:
            at = chance.randrange(len(text))
            text = (
                text[:at]
                + chance.choice([b"%", b"%ff", b"%zz", b"&&", b"=", b"\xff", b"+", b"#"])
                + text[at:]
            )
        return text

    def path(self, bound: Bound) -> dict[str, str]:
        """What stands in the places of a path."""
        found = {}
        for place in bound.route.places:
            found[place] = str(self._at(place))
        return found

    def _at(self, place: str) -> Any:
        if self.random.random() < 0.1:
            return self.random.choice(NAMES)
        if place == "id":
            return self.random.choice(self.seen.ids)
        return self.random.choice(
            {"key": ["k", "k/1"], "name": ["cron", "cron/2"]}.get(place, ["a", "b", "g"])
        )

    # Raw bytes.

    def stream(self) -> bytes:
        """What one connection sends: one request, or some."""
        chance = self.random
        sent = b"".join(self.request() for _ in range(chance.choice([1, 1, 1, 1, 2, 3, 6])))
        if chance.random() < 0.15 and sent:
            at = chance.randrange(len(sent))
            sent = sent[:at] + chance.choice([b"\r", b"\n", b"\0", b"\xff", b" ", b"\r\n\r\n"]) + sent[at:]
        if chance.random() < 0.1:
            sent = sent[: chance.randrange(len(sent) + 1)]
        if chance.random() < 0.05:
            sent += chance.randbytes(chance.choice([1, 10, 100]))
        return sent

    def pieces(self, sent: bytes) -> list[bytes]:
        """The same, cut anywhere."""
        if self.random.random() < 0.7:
            return [sent] if sent else []
        found = []
        while sent:
            size = self.random.choice([1, 7, 50, 500, len(sent)])
            found.append(sent[:size])
            sent = sent[size:]
        return found

    def request(self) -> bytes:
        chance = self.random
        bound = chance.choice(ROUTES)
        path = bound.route.path
        for place, name in self.path(bound).items():
            path = path.replace(f"{{{place}}}", quote(name.encode(errors="surrogatepass"), safe="/"))
        target = path.encode()
        if not bound.route.has_body and chance.random() < 0.7:
            target += b"?" + self.query(bound).replace(b" ", b"+")
        method = bound.route.method.encode()
        if chance.random() < 0.1:
            method = chance.choice(
                [b"GET", b"HEAD", b"PUT", b"DELETE", b"OPTIONS", b"PATCH", b"get", b"X", b""]
            )
        if chance.random() < 0.03:
            target = chance.choice(
                [b"", b"*", b"http://h/v1/stats", b"//", b"/%", b"/\xff", b"/docs", b"/a b"]
            )
        version = b"HTTP/1.1"
        if chance.random() < 0.05:
            version = chance.choice([b"HTTP/1.0", b"HTTP/2", b"HTTP/0.9", b"", b"HTTP/1.1 ", b"http/1.1"])
        lines = [b" ".join([method, target, version]), b"Host: x"]
        body = self._sent_body(bound, lines) if bound.route.has_body else b""
        while chance.random() < 0.25:
            lines.insert(chance.randrange(1, len(lines) + 1), chance.choice(HEADERS))
        end = chance.choice(ENDS) if chance.random() < 0.1 else b"\r\n"
        return end.join(lines) + end + end + body

    def _sent_body(self, bound: Bound, lines: list[bytes]) -> bytes:
        chance = self.random
        body = self.body(bound)
        if bound.name == "Push" and chance.random() < 0.3:
            lines.append(b"Content-Type: application/x-ndjson")
            body = chance.choice([b"\n", b"\n", b"\r\n", b"\n\n", b""]).join(
                self.body(bound) if chance.random() < 0.3 else b'{"payload": 1}'
                for _ in range(chance.choice([1, 2, 5]))
            )
        if chance.random() < 0.05:
            lines.append(b"Content-Encoding: gzip")
            body = gzip.compress(body, 1) if chance.random() < 0.7 else body
            if chance.random() < 0.3:
                body = body[:-3] if chance.random() < 0.5 else body + b"more"
        if chance.random() < 0.2:
            lines.append(b"Transfer-Encoding: chunked")
            return self._chunked(body)
        length = len(body)
        if chance.random() < 0.05:
            length = max(length + chance.choice([-2, -1, 1, 2, 100]), 0)
        lines.append(b"Content-Length: %d" % length)
        return body

    def _chunked(self, body: bytes) -> bytes:
        chance = self.random
        sent = bytearray()
        while body:
            size = chance.choice([1, 3, 20, len(body)])
            piece, body = body[:size], body[size:]
            said = len(piece) if chance.random() < 0.97 else len(piece) + chance.choice([-1, 1, 1 << 40])
            extension = b";a=b" if chance.random() < 0.05 else b""
            sent += b"%x%s\r\n%s\r\n" % (max(said, 0), extension, piece)
        sent += chance.choice([b"0\r\n\r\n"] * 9 + [b"0\r\nX: y\r\n\r\n", b"0\r\n", b"", b"0\n\n"])
        return bytes(sent)


def _quoted(value: Any) -> str:
    if value is None or value is UNSET:
        return ""
    if isinstance(value, dict | list):
        value = json.dumps(value)
    return quote(str(value).encode(errors="surrogatepass"), safe="")
