"""Broken requests by the hundred thousand, over HTTP and TCP: python -m tests.server.fuzz --cases N --seed S.

Most cases go in-process: bodies and queries through the classes that read them to a node in memory, raw bytes
through a connection without a socket, frames through the TCP listener. Some go to a real server. Whatever
comes in, these hold:

- every answer is well-formed; a refusal has a code of ours and a status that is not the server's fault;
- what was refused changed nothing: the store has seen no commit;
- nothing is logged that is a bug, and the server works afterwards, with no more memory than before.

The same seed makes the same cases. A failure names the case; ``--cases`` up to it replays what led there.
"""

import argparse
import asyncio
import gzip
import json
import logging
import random
import sys
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, cast

from forebay.broker.node import Node
from forebay.core.bounds import Limits
from forebay.core.errors import CODES, ForebayError
from forebay.core.records.commit import Commit
from forebay.server.http.connection import Connection, HttpLimits
from forebay.server.http.operation import Bound, encode
from forebay.server.http.request_body import Reader
from forebay.server.http.server import HttpServer
from forebay.server.operations.carried import Carried, Context
from forebay.store.memory import MemoryStore
from tests.server.fuzzing import ROUTES, Maker, Seen
from tests.server.http.raw import Http
from tests.server.test_fuzz import Client, House, Loop, Sender, check_answer
from tests.serving import PATIENCE_S, Server, framed

LIMITS = Limits(
    pop_creates_queues=True,
    queues_max=12,
    partitions_max=4,
    groups_max=4,
    batch_max=1_000,
    payload_bytes_max=2_000,
)
BODY_BYTES_MAX = 50_000
FRESH = 1_000
"""Cases of one kind after which a node is replaced by a fresh one, so that its answers stay small."""
SOCKETS = 20
"""Connections to the real server at a time."""
GROWTH_BYTES_MAX = 100 << 20
"""How much more memory the real server may take up at the end than after its first cases."""


def decode(body: bytes) -> Any:
    """What is said in JSON; of a number that Python would not read, that it is one."""
    return json.loads(body, parse_int=lambda digits: int(digits) if len(digits) < 4_000 else 0)


class Broken(AssertionError):
    """A promise that was not kept."""


def promise(kept: bool, what: str) -> None:
    if not kept:
        raise Broken(what)


class CountingStore(MemoryStore):
    """Knows how many commits it has kept."""

    commits = 0

    def commit(self, group: Sequence[Commit], *, sync: bool = True) -> None:
        self.commits += len(group)
        super().commit(group, sync=sync)


class Complaints(logging.Handler):
    """What must not be logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info or record.levelno >= logging.ERROR or "bug" in record.getMessage():
            self.found.append(self.format(record))


def check_status(status: int, code: str) -> None:
    promise(code in CODES, f"{code} is no code")
    promise(400 <= status < 500 or status in (501, 503), f"status {status}")


# Bodies and queries, without a connection.


class Asker:
    """Takes the answers of a node."""

    def __init__(self) -> None:
        self.answers: list[Any] = []

    def answered(self, ticket: object, reply: Any) -> None:
        self.answers.append(reply)

    def flush(self) -> None:
        pass


class Direct:
    """Requests read, carried out and answered, as an endpoint does it."""

    def __init__(self, maker: Maker) -> None:
        self._maker = maker
        self._readers = [
            (bound, Reader(bound.kind))
            for bound in ROUTES
            if issubclass(bound.kind, Carried) and bound.kind.is_command  # others need more than a node
        ]
        self._left = 0
        self.good = 0

    def _renew(self) -> None:
        self._left = FRESH
        self._now = 1_700_000_000_000
        self._loop, self._store = Loop(), CountingStore()
        loop = cast(AbstractEventLoop, self._loop)
        self._node = Node(self._store, loop, lambda: self._now, LIMITS, shards=4)
        self._loop.run()
        self._maker.seen = Seen()

    def case(self) -> bytes:
        """Carry one out; what it was."""
        if not self._left:
            self._renew()
        self._left -= 1
        bound, reader = self._maker.random.choice(self._readers)
        given = self._maker.body(bound) if bound.route.has_body else self._maker.query(bound)
        path = self._maker.path(bound)
        what = f"{bound.route.method} {bound.route.path} {path} ".encode(errors="replace") + given
        before = self._store.commits
        try:
            self._ask(bound, reader, given, path)
        except ForebayError as error:
            check_status(error.status, error.code)
            promise("bug" not in error.message, f"{error.message}: {what!r}")
            encode(error.details)
            changed = self._store.commits != before
            promise(not changed, f"it was refused ({error}) and changed something: {what!r}")
        except Exception as error:
            raise Broken(f"{type(error).__name__}: {error}: {what!r}") from error
        return what

    def _ask(self, bound: Bound, reader: Reader, given: bytes, path: dict[str, str]) -> None:
        request = reader.body(given) if bound.route.has_body else reader.query(given)
        for name, value in {**bound.unset, **path}.items():
            setattr(request, name, value)
        context = Context()
        command = request.command(context)
        asker = Asker()
        self._node.ask(asker, 0, command)
        self._loop.run()
        if not asker.answers:
            self._loop.ring()
        (reply,) = asker.answers
        if isinstance(reply, ForebayError):
            raise reply
        self._maker.seen.note(reply)
        decode(encode(request.reply(reply, context)))
        self.good += 1
        self._now += 100
        self._loop.ring()  # what is due now is no later case's doing


# Raw bytes, without a socket.


class Pipe(asyncio.Transport):
    """What a connection writes, kept."""

    def __init__(self) -> None:
        super().__init__()
        self.out = bytearray()
        self.closed = False
        self.ended = False

    def write(self, data: Any) -> None:
        promise(not self.ended, "nothing is written behind the end")
        if not self.closed:
            self.out += data

    def write_eof(self) -> None:
        self.ended = True

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close


class Piped:
    """Bytes fed to a connection of the HTTP listener."""

    def __init__(self, maker: Maker) -> None:
        self._maker = maker
        self._left = 0
        self.answers = 0
        self._loop = asyncio.new_event_loop()

    def _renew(self) -> None:
        self._left = FRESH
        self._maker.seen = Seen()
        self._store = CountingStore()
        self._now = 1_700_000_000_000
        self._loop.run_until_complete(self._open())

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        self._node = Node(self._store, loop, lambda: self._now, LIMITS, shards=4)
        self._server = HttpServer(
            self._node, loop, HttpLimits(body_bytes_max=BODY_BYTES_MAX), "0", clock=lambda: self._now
        )

    def case(self) -> bytes:
        if not self._left:
            self._renew()
        self._left -= 1
        sent = self._maker.stream()
        before = self._store.commits
        try:
            out, is_over = self._loop.run_until_complete(self._talk(self._maker.pieces(sent)))
            answers = split(out)
        except (Broken, ValueError, KeyError, IndexError) as error:
            raise Broken(f"{error!r}: {sent!r}") from error
        self.answers += len(answers)
        refused = bool(answers) and all(
            status >= 400 and not kept((status, body)) for status, body in answers
        )
        if refused and is_over:
            promise(self._store.commits == before, f"it was refused and changed something: {sent!r}")
        return sent

    async def _talk(self, pieces: list[bytes]) -> tuple[bytes, bool]:
        """Send pieces, then leave; what was answered, and whether all was that was carried out."""
        server, pipe = self._server, Pipe()
        kind: Any = server._config.http_protocol_class
        connection: Connection = kind(server._config, server._state, {}, self._loop)
        connection.connection_made(pipe)
        for piece in pieces:
            connection.data_received(piece)
            await asyncio.sleep(0)
        for _ in range(1_000):
            if not connection.is_busy or connection._is_incomplete(connection.running):
                break
            if self._waits(connection):
                break
            await asyncio.sleep(0)
        if not connection.eof_received():
            pipe.close()
        for _ in range(20_000):
            if not connection.is_busy or pipe.closed:
                break
            await asyncio.sleep(0)
        connection.connection_lost(None)
        if server._state.tasks:
            await asyncio.wait(list(server._state.tasks), timeout=PATIENCE_S)
        promise(not server._state.tasks, "a request never ends")
        promise(not server._state.connections, "a connection is never forgotten")
        return bytes(pipe.out), connection.running is not None and connection.running.response_complete

    def _waits(self, connection: Connection) -> bool:
        return bool(self._node._waiters.count or self._node._watchers.count or self._node._key_watchers.count)

    def end(self) -> None:
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


Given = tuple[int, Any]
"""Status and body of an answer."""


def split(out: bytes) -> list[Given]:
    """The answers in what was written, all of them well-formed."""
    answers: list[Given] = []
    while out:
        head, end, rest = out.partition(b"\r\n\r\n")
        if not end:
            break  # the client left before it was written
        status, *lines = head.decode("latin-1").split("\r\n")
        promise(status.startswith("HTTP/1.1 "), f"no status line: {status!r}")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        number = int(status.split()[1])
        if number == 100:
            out = rest
            continue
        size = int(headers["content-length"])
        body, out = rest[:size], rest[size:]
        if not body:
            answers.append((number, None))  # of a HEAD
            # A HEAD has the length of a body that does not come.
            continue
        if body.startswith(b"HTTP/1.1 "):
            out = rest
            answers.append((number, None))
            continue
        if len(body) < size:
            break
        if headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        found = decode(body) if "json" in headers["content-type"] else {}
        if number >= 400:
            check_status(number, found["error"]["code"])
            promise("bug" not in found["error"]["message"], f"{found}")
        answers.append((number, found))
    return answers


def kept(answer: Given) -> bool:
    """Whether a stream was refused after some of it had been kept."""
    status, body = answer
    return status >= 400 and bool(body) and body["error"].get("details", {}).get("kept", 0) > 0


# Bytes to a real server.


class Sockets:
    """A real server, some connections at a time."""

    def __init__(self, maker: Maker) -> None:
        self._maker = maker
        self._server = Server("--store", "memory:", "--queues-max", "12", "--batch-max", "1000")
        self._open: list[tuple[Http, bytes]] = []
        self._rss = 0
        self.answers = 0

    def __enter__(self) -> "Sockets":
        self._server.__enter__()
        return self

    def __exit__(self, *why: Any) -> None:
        for client, _ in self._open:
            client.close()
        self._server.__exit__(*why)

    def case(self) -> bytes:
        sent = self._maker.stream()
        client = Http(self._server)
        try:
            client.send(sent)
            client.half_close()
        except OSError:
            pass  # the server had enough before
        self._open.append((client, sent))
        if len(self._open) >= SOCKETS:
            self.settle()
        return sent

    def settle(self) -> None:
        """Read what was answered to those that are open."""
        waiting, self._open = self._open, []
        for client, sent in waiting:
            with client:
                try:
                    self.answers += len(split(_all(client)))
                except (Broken, ValueError, KeyError, IndexError) as error:
                    raise Broken(f"{error!r}: {sent!r}") from error
        if not self._rss:
            self._rss = self._server.rss_bytes()

    def end(self) -> None:
        self.settle()
        with Http(self._server) as client:
            answer = client.call("POST", "/v1/queues/a/messages", {"payload": "still here"})
            promise(answer.status in (200, 409), f"it does not work any more: {answer}")
        growth = self._server.rss_bytes() - self._rss
        promise(growth < GROWTH_BYTES_MAX, f"it takes up {growth >> 20} MiB more")


def _all(client: Http) -> bytes:
    found = bytearray()
    try:
        while some := client.socket.recv(1 << 16):
            found += some
    except ConnectionResetError:
        pass
    return bytes(found)


# Frames of the TCP listener.


class Frames:
    def __init__(self, seed: int) -> None:
        self._sender = Sender(seed)
        self._left = 0

    def case(self) -> bytes:
        if not self._left:
            self._left = FRESH
            self._house = House()
            self._client = Client(self._house)
        self._left -= 1
        body = self._sender.body()
        answers = self._client.say(framed(body))
        promise(len(answers) == 1 and not self._client.closed, f"one answer: {body!r}")
        try:
            if check_answer(answers[0]):
                self._house.now += 100
        except AssertionError as error:
            raise Broken(f"{error}: {body!r}") from error
        return body


class Kind(Protocol):
    def case(self) -> bytes:
        """Carry a case out; what was sent."""


SHARES = {"direct": 70, "piped": 12, "sockets": 3, "frames": 15}
"""Of a hundred cases."""


def run(cases: int, seed: int, tell: Callable[[str], None] = lambda line: None) -> None:
    """Carry out so many cases; raises if a promise is broken."""
    complaints = Complaints()
    logging.getLogger().addHandler(complaints)
    chance = random.Random(seed)
    direct = Direct(Maker(seed))
    piped = Piped(Maker(seed + 1))
    manager: AbstractContextManager[Sockets] = Sockets(Maker(seed + 2))
    number = 0
    kinds = chance.choices(list(SHARES), list(SHARES.values()), k=cases)
    began = time.monotonic()
    try:
        with manager as sockets:
            by_name: dict[str, Kind] = {
                "direct": direct,
                "piped": piped,
                "sockets": sockets,
                "frames": Frames(seed),
            }
            for number, name in enumerate(kinds):
                sent = by_name[name].case()
                promise(not complaints.found, f"{complaints.found[:1]} at {sent!r}")
                if number % 50_000 == 49_999:
                    tell(f"{number + 1:,} cases, {(number + 1) / (time.monotonic() - began):,.0f} a second")
            sockets.end()
        promise(direct.good * 20 > kinds.count("direct"), "hardly anything was good enough to be carried out")
    except Broken as error:
        raise Broken(f"--seed {seed}, case {number}: {error}") from error
    finally:
        piped.end()
        logging.getLogger().removeHandler(complaints)
    took = time.monotonic() - began
    good = f"{direct.good:,} of {kinds.count('direct'):,} requests were good"
    tell(f"{cases:,} cases in {took:.0f} s: {good}, {piped.answers + sockets.answers:,} answers over HTTP")


def tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description="Broken requests, over HTTP and TCP.")
    parser.add_argument("--cases", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    run(options.cases, options.seed, tell)


if __name__ == "__main__":
    main()
