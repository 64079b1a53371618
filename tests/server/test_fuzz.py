"""Tens of thousands of broken frames and lines, driven through a connection without a socket.

Every stream is also cut up by a plain reading of the framing rules, so that it is known how many answers
there have to be. Waiting pops are answered by ringing every timer after each stream.
"""

import asyncio
import json
import logging
import random
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest

from forebay.broker.node import Node
from forebay.core.bounds import Limits
from forebay.core.errors import CODES
from forebay.server.operations import codec
from forebay.server.operations.table import COMMANDS as CARRIED
from forebay.server.tcp.connection import Connection, TcpLimits
from forebay.server.tcp.server import TcpServer
from forebay.store.memory import MemoryStore
from forebay.wire.framing import ABSURD
from forebay.wire.table import OPERATIONS
from tests.serving import framed, lined, packed

FRAME_BYTES_MAX = 8_192
REQUESTS = 40_000
STREAMS = 5_000
FRAMES = 50_000
"""At least this many in all."""
MESSAGES_MAX = 2_000
"""Messages at which the server is replaced by a fresh one, so that its answers stay small."""


class Timer:
    """A call that waits to be made by hand."""

    def __init__(self, at: float, call: Callable[[], None]) -> None:
        self.at = at
        self.call = call
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """As much of an event loop as a node and a listener need; it runs when it is told to."""

    def __init__(self) -> None:
        self._soon: deque[Callable[[], None]] = deque()
        self._timers: list[Timer] = []
        self._time = 0.0

    def time(self) -> float:
        self._time += 1e-6
        return self._time

    def call_soon(self, call: Callable[..., None], *arguments: Any) -> None:
        self._soon.append(lambda: call(*arguments))

    def call_later(self, delay_s: float, call: Callable[..., None], *arguments: Any) -> Timer:
        return self.call_at(self._time + delay_s, call, *arguments)

    def call_at(self, at: float, call: Callable[..., None], *arguments: Any) -> Timer:
        timer = Timer(at, lambda: call(*arguments))
        self._timers.append(timer)
        return timer

    def run(self) -> None:
        """Make every call that is due."""
        while self._soon:
            self._soon.popleft()()

    def ring(self) -> None:
        """Let every timer end that is set now."""
        timers, self._timers = self._timers, []
        for timer in timers:
            if not timer.cancelled:
                self._time = max(self._time, timer.at)
                timer.call()
        self.run()


class Wires(asyncio.Transport):
    """What a connection writes, kept."""

    def __init__(self) -> None:
        super().__init__()
        self.out = bytearray()
        self.closed = False
        self.reading = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def writelines(self, parts: Any) -> None:
        assert not self.closed, "nothing is written after the end"
        self.out += b"".join(parts)

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True


class Client:
    """A connection and the other end of it, which talks in frames or in lines."""

    def __init__(self, house: "House", *, lines: bool = False) -> None:
        self._lines = lines
        self._loop = house.loop
        self._wires = Wires()
        self._connection = Connection(house.server)
        self._connection.connection_made(self._wires)

    def say(self, *chunks: bytes) -> list[bytes]:
        """Send chunks; the answers to them."""
        for chunk in chunks:
            if not self._wires.closed:
                assert self._wires.reading, "reading goes on when there is nothing to wait for"
                self._connection.data_received(chunk)
                self._loop.run()
        self._loop.ring()
        return self._taken()

    def _taken(self) -> list[bytes]:
        out, self._wires.out = bytes(self._wires.out), bytearray()
        if self._lines:
            *lines, rest = out.split(b"\n")
            assert not rest, "answers are whole lines"
            return lines
        answers = []
        while out:
            end = 4 + int.from_bytes(out[:4], "big")
            assert end <= len(out), "answers are whole frames"
            answers.append(out[4:end])
            out = out[end:]
        return answers

    def ask(self, **request: Any) -> dict[str, Any]:
        (answer,) = self.say(lined(request) if self._lines else packed(request))
        reply: dict[str, Any] = json.loads(answer)
        return reply

    @property
    def closed(self) -> bool:
        return self._wires.closed

    def end(self) -> list[bytes]:
        """Say that nothing more is sent; the answers that come then."""
        self._connection.eof_received()
        self._loop.run()
        return self._taken()

    def leave(self) -> None:
        if not self.closed:
            self._connection.eof_received()
            self._loop.run()
            assert self.closed
        self._connection.connection_lost(None)
        self._loop.run()


class House:
    """A node with its listener, and someone who looks at it now and then."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.now = 1_700_000_000_000
        limits = Limits(
            pop_creates_queues=True,
            queues_max=12,
            partitions_max=4,
            groups_max=4,
            batch_max=1_000,
            payload_bytes_max=2_000,
        )
        loop = cast(AbstractEventLoop, self.loop)
        self._node = Node(MemoryStore(), loop, lambda: self.now, limits, shards=4)
        limits_of = TcpLimits(frame_bytes_max=FRAME_BYTES_MAX)
        self.server = TcpServer(self._node, loop, limits_of, codec, None)
        self._looker = Client(self)

    def look(self) -> list[bytes]:
        """Everything that can be counted."""
        return self._looker.say(packed({"cmd": "STATS"}, {"cmd": "QUEUES"}))

    def is_full(self) -> bool:
        counts = self._looker.ask(cmd="STATS")["counts"]
        return bool(counts["waiting"] + counts["active"] + counts["completed"] > MESSAGES_MAX)

    def works(self) -> None:
        """A message can be pushed, popped and acked, whatever came before."""
        client = Client(self)
        queue = next(iter(self._queues()), "fresh")
        client.ask(cmd="RESUME", queue=queue)
        push = client.ask(cmd="PUSH", queue=queue, payload="still here")
        assert push["ok"], push
        while True:
            (message,) = client.ask(cmd="POP", queue=queue)["messages"]
            assert client.ask(cmd="ACK", ids=[message["id"]]) == {"ok": True, "count": 1, "refused": []}
            if message["id"] == push["id"]:
                assert message["payload"] == "still here"
                break
        client.leave()

    def _queues(self) -> list[str]:
        queues = [each["queue"] for each in self._looker.ask(cmd="QUEUES")["queues"]]
        options = [self._looker.ask(cmd="QUEUE", queue=name) for name in queues]
        return [
            each["queue"] for each in options if "default" in [at["partition"] for at in each["partitions"]]
        ]


def check_answer(answer: bytes) -> bool:
    """Whether it is a good answer that says ok."""
    reply = json.loads(answer) if answer.startswith(b"{") else msgspec.msgpack.decode(answer)
    assert isinstance(reply["ok"], bool)
    if not reply["ok"]:
        assert reply["error"]["code"] in CODES
        assert isinstance(reply["error"]["message"], str)
        assert reply["error"]["code"] != "busy" or "bug" not in reply["error"]["message"]
    return bool(reply["ok"])


def answers_due(stream: bytes) -> tuple[int, bool]:
    """How many answers a stream has to get, and whether it has to be closed after them."""
    count = at = 0
    while len(stream) - at >= 4:
        length = int.from_bytes(stream[at : at + 4], "big")
        if length > ABSURD * FRAME_BYTES_MAX:
            return count + 1, True
        if length <= FRAME_BYTES_MAX and at + 4 + length > len(stream):
            break
        if length > FRAME_BYTES_MAX and len(stream) == at + 4:
            break  # its first byte says in what form it is answered
        count += 1
        at += 4 + length
    return count, False


# What is sent.

VALID: list[dict[str, Any]] = [
    {"cmd": "PUSH", "queue": "a", "payload": {"n": 1}, "partition": "p"},
    {"cmd": "PUSH", "queue": "b", "payload": "text"},
    {"cmd": "PUSH", "queue": "a", "messages": [1, [2], {"three": 3}]},
    {"cmd": "PUSH", "queue": "b", "items": [{"payload": 1, "partition": "p"}, {"payload": [2]}]},
    {"cmd": "POP", "queue": "a", "wait_ms": 1_000, "group": "g", "lease_ms": 1_000, "from": "all"},
    {"cmd": "POP", "queue": "empty", "partition": "p", "from": 5},
    {"cmd": "POP", "queue": "a", "count": 3, "min_count": 2, "wait_ms": 0, "compact": True},
    {"cmd": "POP", "queue": "b", "count": 2, "wait_ms": 0},
    {"cmd": "ACK", "ids": [17179869184]},
    {"cmd": "ACK", "lease": "79228162532711081671548469249"},
    {"cmd": "ACK", "ids": [17179869184, "17179869185"], "group": "g"},
    {"cmd": "NACK", "ids": ["018bcfe5-67ff-7000-8001-040000000400"], "error": "boom"},
    {"cmd": "NACK", "ids": [17179869184], "lease": "1"},
    {"cmd": "EXTEND", "ids": [17179869184], "lease_ms": 5_000},
    {"cmd": "READ", "queue": "a", "offset": 0, "partition": "p", "max_count": 5, "max_bytes": 500},
    {"cmd": "OFFSETS", "queue": "a", "at": 1_700_000_000_000},
    {"cmd": "QUEUE", "queue": "a"},
    {"cmd": "QUEUE", "queue": "c", "options": {"lease_ms": 5_000, "completed_retention_ms": 0}},
    {"cmd": "QUEUES"},
    {"cmd": "STATE", "id": 17179869184, "group": "g"},
    {"cmd": "STATS"},
    {"cmd": "PUSH", "queue": "a", "payload": 1, "priority": 3, "delay_ms": 60_000},
    {"cmd": "CANCEL", "ids": [17179869184, 17179869187], "group": "g"},
    {"cmd": "PROMOTE", "ids": [17179869185]},
    {"cmd": "DELAY", "ids": [17179869186], "delay_ms": 5},
    {"cmd": "PRIORITY", "ids": [17179869185], "priority": 5},
    {"cmd": "DISCARD", "ids": [17179869188], "group": "g"},
    {"cmd": "DEAD", "queue": "a", "limit": 5, "skip": 1, "group": "g"},
    {"cmd": "REQUEUE", "queue": "a", "ids": [17179869188]},
    {"cmd": "DEADPURGE", "queue": "a", "dry_run": True},
    {"cmd": "MESSAGE", "id": 17179869184},
    {"cmd": "MESSAGES", "ids": [17179869184, 17179869185]},
    {"cmd": "GROUP", "queue": "a"},
    {"cmd": "ACK", "ids": [17179869184], "result": {"sum": 3}},
    {"cmd": "ACK", "ids": [17179869184, 17179869185], "results": [1, None]},
    {"cmd": "RESULT", "id": 17179869184},
    {"cmd": "RESULT", "id": 17179869185, "wait_ms": 1_000, "group": "g"},
    {"cmd": "SETPROGRESS", "id": 17179869184, "progress": 50, "message": "half"},
    {"cmd": "PROGRESS", "id": 17179869184},
    {"cmd": "LOG", "id": 17179869184, "message": "line", "level": "info"},
    {"cmd": "LOGS", "id": 17179869184},
    {"cmd": "PARTIAL", "id": 17179869184, "payload": [1]},
    {"cmd": "UPDATE", "id": 17179869185, "payload": {"n": 2}},
    {"cmd": "SEEK", "queue": "a", "group": "g", "to": "all", "partition": "p", "offset": 0},
    {"cmd": "DRAIN", "queue": "b", "group": "g"},
    {"cmd": "PURGE", "queue": "a", "states": ["dead"], "grace_ms": 0, "limit": 5},
    {"cmd": "QUEUEDELETE", "force": True, "queue": "c"},
    {"cmd": "QUEUE", "queue": "a", "options": {"retention_ms": 60_000}, "partition": "p"},
    {"cmd": "STAGE", "queue": "a", "stage": "s", "messages": [1, "2"], "part": 0, "query": "x", "batch": 1},
    {"cmd": "STAGE", "queue": "a", "stage": "s", "body": "AAAAAAEAAAAx", "count": 1, "expire_ms": 5_000},
    {"cmd": "STAGE", "queue": "b", "stage": "t", "messages": [1], "runs": [{"count": 1, "priority": 1}]},
    {"cmd": "STAGE", "queue": "b", "stage": "t", "messages": [1, 2], "unique_keys": ["k", None]},
    {"cmd": "ADOPT", "queue": "a", "query": "x", "batch": 1, "stages": ["s"], "count": 2},
    {"cmd": "ADOPT", "queue": "b", "query": "x", "batch": 2, "stages": ["t"], "keep_ms": 60_000},
    {"cmd": "UNSTAGE", "queue": "a", "stages": ["s", "t"]},
]
"""Requests with more fields than the examples of the declarations have."""
LEFT_OUT = ("HOLD", "BACKUP", "WORKER", "WORKERS")
"""What would end the life of the server, or write to the disk; and what this listener knows nothing of."""
FILLED = {"LEASE": "79228162532711081671548469249", "ID": 17179869184}
"""What stands for the placeholders of examples."""


def filled(value: Any) -> Any:
    """An example with its placeholders filled in."""
    match value:
        case dict():
            return {name: filled(each) for name, each in value.items()}
        case list():
            return list(map(filled, value))
        case str():
            return FILLED.get(value, value)
    return value


VALID += [{"cmd": each.name, **filled(each.example)} for each in OPERATIONS if each.name not in LEFT_OUT]
FIELDS = sorted(
    {each.encode_name for kind in CARRIED.values() for each in msgspec.structs.fields(kind)} | {"colour", ""}
)
COMMANDS = [*(name for name in CARRIED if name not in LEFT_OUT), "nope", ""]
STRANGE: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    1e308,
    1 << 31,
    (1 << 53) - 1,
    1 << 53,
    (1 << 63) - 1,
    1 << 63,
    1 << 64,
    -(1 << 63),
    -(1 << 70),
    10**40,
    "",
    "a",
    "all",
    "default",
    "\0",
    "é漢🦀\u202e",
    "x" * 300,
    "-1",
    "٣",
    "18446744073709551616",
    [],
    [1],
    [None],
    {},
    {"payload": 1},
    {"lease_ms": -5},
    [[1]] * 3,
    {"a": {"b": "[{"}},
    list(range(1_100)),
]
TEXTS = [
    b"NaN",
    b"1e999",
    b"-0",
    b"01",
    b"1.",
    b'"\\ud800"',
    b'"\\ud83e\\udd80"',
    b'"\\u0000"',
    b'"\\x"',
    b'"\x01"',
    b'"\xff"',
    b'"\xed\xa0\x80"',
    b"[" * 300 + b"]" * 300,
    b"[" * 3_000 + b"]" * 3_000,
    b'{"a":' * 700 + b"1" + b"}" * 700,
    b"[" * 2_000,
    b"9" * 4_500,
    b"tru",
    b"{",
    b"",
]
"""Values as they stand in a frame, good and bad."""


def written(request: dict[str, Any]) -> bytes:
    return json.dumps(request, ensure_ascii=False).encode()


class Sender:
    """Makes frames out of chance."""

    strange = STRANGE

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._kinds = [
            self.noise,
            self.valid,
            self.flipped,
            self.cut,
            self.swapped,
            self.mistyped,
            self.mistyped,
            self.misspelt,
            self.misspelt,
            self.doubled,
            self.spliced,
        ]

    def body(self) -> bytes:
        return self.random.choice(self._kinds)()[:FRAME_BYTES_MAX]

    def request(self) -> dict[str, Any]:
        request = dict(self.random.choice(VALID))
        if self.random.random() < 0.3:
            request["reqId"] = self.random.choice([1, "r", 1 << 70, -5])
        return request

    def written(self, request: dict[str, Any]) -> bytes:
        return written(request)

    def valid(self) -> bytes:
        return self.written(self.request())

    def noise(self) -> bytes:
        begin = self.random.choice([b"", b"{", b'{"', b'{"cmd":"', b"\x81\xa3cmd"])
        return begin + self.random.randbytes(self.random.choice([0, 1, 2, 10, 100]))

    def flipped(self) -> bytes:
        """Some bits are wrong."""
        body = bytearray(self.valid())
        for _ in range(self.random.choice([1, 1, 1, 2, 10])):
            body[self.random.randrange(len(body))] ^= 1 << self.random.randrange(8)
        return bytes(body)

    def cut(self) -> bytes:
        """Something is missing or repeated."""
        body = self.valid()
        low, high = sorted(self.random.choices(range(len(body) + 1), k=2))
        return body[:low] + body[high:] if self.random.random() < 0.5 else body[:high] + body[low:]

    def swapped(self) -> bytes:
        """The command of one request with the fields of another."""
        request = self.request()
        request["cmd"] = self.random.choice(COMMANDS)
        if self.random.random() < 0.5:
            request.pop(self.random.choice(list(request)))
        return self.written(request)

    def mistyped(self) -> bytes:
        """A field has a value of another kind, or there is one that is not known."""
        request = self.request()
        field = self.random.choice(list(request) if self.random.random() < 0.7 else FIELDS)
        request[field] = self.random.choice(self.strange)
        return self.written(request)

    def misspelt(self) -> bytes:
        """A field has a value that JSON does not know, or that is nested deep."""
        request = self.request()
        request[self.random.choice(list(request) if self.random.random() < 0.7 else FIELDS)] = "@"
        return self.written(request).replace(b'"@"', self.random.choice(TEXTS), 1)

    def doubled(self) -> bytes:
        """Fields come twice."""
        return self.valid()[:-1] + b"," + self.written(self.request())[1:]

    def spliced(self) -> bytes:
        """Two requests, run together."""
        between = self.random.choice([b"", b" ", b"\n", b",", b"\0"])
        return self.valid() + between + self.valid()

    def stream(self) -> bytes:
        """A few frames, some with a wrong length."""
        stream = b"".join(self._framed(self.body()) for _ in range(self.random.randrange(1, 5)))
        if self.random.random() < 0.2:
            place = self.random.randrange(len(stream))
            stream = stream[:place] + self.random.randbytes(self.random.randrange(1, 9)) + stream[place:]
        return stream if stream[:1] not in (b"{", b"\r", b"\n") else b"\0" + stream  # else it would be lines

    def _framed(self, body: bytes) -> bytes:
        chance = self.random.random()
        if chance < 0.7:
            return framed(body)
        if chance < 0.8:
            return framed(body)[:-1]
        if chance < 0.9:
            length = max(len(body) + self.random.randrange(-3, 4), 0)
        elif chance < 0.95:
            length = self.random.choice([FRAME_BYTES_MAX, FRAME_BYTES_MAX + 1, ABSURD * FRAME_BYTES_MAX])
            body = body.ljust(self.random.choice([0, FRAME_BYTES_MAX, FRAME_BYTES_MAX + 1]))
        else:
            length = self.random.choice([ABSURD * FRAME_BYTES_MAX + 1, (1 << 32) - 1, 0x47455420])
        return length.to_bytes(4, "big") + body

    def chunks(self, stream: bytes) -> list[bytes]:
        """The stream in pieces, cut anywhere."""
        chunks = []
        while stream:
            size = self.random.choice([1, 3, 4, 5, 50, 500, len(stream)])
            chunks.append(stream[:size])
            stream = stream[size:]
        return chunks

    def lines(self) -> bytes:
        """A few lines, some of them blank, cut by a line break, or without an end."""
        ends = [b"\n", b"\n", b"\r\n", b"\n\n", b" \n\t\n", b" ", b"\r"]
        stream = self.random.choice([b"", b"\n", b"\r\n \n"])
        for _ in range(self.random.randrange(1, 6)):
            body = self.body()
            if self.random.random() < 0.05:
                body = body.ljust(self.random.choice([FRAME_BYTES_MAX, FRAME_BYTES_MAX + 1, 50_000]), b"x")
            stream += body + self.random.choice(ends)
        return stream if stream[:1] in (b"{", b"\r", b"\n") else b"\n" + stream


pack = msgspec.msgpack.encode
PACKED_STRANGE: list[Any] = [
    *(each for each in STRANGE if not isinstance(each, int) or -(1 << 63) <= each < 1 << 64),
    b"",
    b"binary \xcb\x7f\xf0",
    float("nan"),
    float("-inf"),
    [1, {"a": [float("inf")]}],
    {1: 2},
    {1: 2, "1": 3},
    {None: 1},
    {b"a": 1},
    {"a": {1.5: 1}},
    [msgspec.msgpack.Ext(5, b"x")],
    msgspec.msgpack.Ext(-1, b"\0\0\0\0"),
    msgspec.msgpack.Ext(-1, b"\xff" * 12),
]
PACKED_TEXTS = [
    b"",
    b"\xc1",
    b"\xa1\xff",
    b"\xa3\xed\xa0\x80",
    b"\x81\xa1\xff\x01",
    b"\x81\x81\x01\x01\x01",
    b"\x82\xa1a\x01\xa1a\x02",
    b"\xca\x7f\x80\0\0",
    b"\xca\x7f\x7f\xff\xff",
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff\xa1a",
    b"\xc6\xff\xff\xff\xff",
    b"\xdb\0\0\0\0",
    b"\x91" * 128 + b"\x01",
    b"\x91" * 129 + b"\x01",
    b"\x81\xa1a" * 500 + b"\x01",
    b"\x91" * 5_000 + b"\x01",
    b"\x91" * 5_000,
]
"""Values as they stand in a map of MessagePack, good and bad."""


class PackedSender(Sender):
    """The same in MessagePack."""

    strange = PACKED_STRANGE

    def written(self, request: dict[str, Any]) -> bytes:
        if type(request.get("reqId")) is int and request["reqId"] > 1 << 64:
            request["reqId"] = "large"
        return pack(request)

    def noise(self) -> bytes:
        begin = self.random.choice([b"\x81", b"\x82\xa3cmd\xa4PUSH", b"\x9f", b"\xde\0\x03", b"\xff"])
        return begin + self.random.randbytes(self.random.choice([0, 1, 2, 10, 100]))

    def misspelt(self) -> bytes:
        """A field has a value that MessagePack or JSON does not know, or that is nested deep."""
        request = self.request()
        request[self.random.choice(list(request) if self.random.random() < 0.7 else FIELDS)] = "@"
        return self.written(request).replace(b"\xa1@", self.random.choice(PACKED_TEXTS), 1)

    def doubled(self) -> bytes:
        """Fields come twice."""
        one, other = self.valid(), self.valid()
        return bytes([one[0] + (other[0] & 0x0F)]) + one[1:] + other[1:]


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Warnings, but for the lines of requests that were slow beside a busy machine, or refused."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.WARNING and record.name != "forebay.access"
    ]


@pytest.mark.parametrize(("kind", "requests"), [(Sender, REQUESTS), (PackedSender, REQUESTS // 2)])
def test_every_broken_request_gets_one_answer_and_changes_nothing(
    caplog: pytest.LogCaptureFixture, kind: type[Sender], requests: int
) -> None:
    sender = kind(seed=1)
    house = House()
    client = Client(house)
    seen: list[bytes] | None = None
    oks = 0
    for number in range(requests):
        body = sender.body()
        seen = seen or house.look()
        answers = client.say(framed(body))
        assert len(answers) == 1, body
        assert not client.closed, body
        if check_answer(answers[0]):
            oks += 1
            house.now += 100
            seen = None
        else:
            assert house.look() == seen, body
        assert answers[0].startswith(b"{") != codec.is_packed(body), "in the form of the request"
        if number % 500 == 0 and house.is_full():
            house.works()
            house, seen = House(), None
            client = Client(house)
    house.works()
    assert requests // 30 < oks < requests // 2
    assert complaints(caplog) == []


@pytest.mark.parametrize("kind", [Sender, PackedSender])
def test_every_frame_of_a_broken_stream_gets_one_answer_or_the_stream_is_closed(
    caplog: pytest.LogCaptureFixture, kind: type[Sender]
) -> None:
    sender = kind(seed=2)
    house = House()
    frames = ends = 0
    for number in range(STREAMS):
        client = Client(house)
        stream = sender.stream()
        answers = client.say(*sender.chunks(stream))
        count, closed = answers_due(stream)
        assert (len(answers), client.closed) == (count, closed), stream
        for answer in answers:
            check_answer(answer)
        client.leave()
        frames += count
        ends += closed
        if number % 500 == 0 and house.is_full():
            house.works()
            house = House()
    house.works()
    assert ends > STREAMS // 50
    assert REQUESTS + frames >= FRAMES
    assert complaints(caplog) == []


def test_every_line_of_a_broken_stream_gets_one_answer_and_the_stream_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sender = Sender(seed=4)
    house = House()
    lines = oks = 0
    for number in range(STREAMS):
        client = Client(house, lines=True)
        stream = sender.lines()
        answers = client.say(*sender.chunks(stream))
        due = sum(bool(line.strip(b" \t\r")) for line in stream.split(b"\n")[:-1])
        assert len(answers) == due, stream
        assert not client.closed
        last = bool(stream.rpartition(b"\n")[2].strip(b" \t\r"))
        answers += client.end()
        assert len(answers) == due + last, stream
        assert client.closed
        lines += due + last
        oks += sum(map(check_answer, answers))
        client.leave()
        if number % 500 == 0 and house.is_full():
            house.works()
            house = House()
    house.works()
    assert lines // 25 < oks < lines // 2
    assert complaints(caplog) == []
