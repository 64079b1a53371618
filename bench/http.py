"""HTTP beside a bare application: what a push costs over what its framework costs; streams, events.

The bare application answers a constant on the same uvicorn and uvloop, with the same settings, in the same
run: the ratio says more than the rates, which are this machine's.
"""

import json
import os
import select
import selectors
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread
from typing import NamedTuple

from bench.wire import BUFFER, CORES, best, connect, framed, framed_reply, load, running

BARE = """
import asyncio, sys
import uvicorn, uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

async def push(request: Request) -> JSONResponse:
    return JSONResponse({"id": 1, "durability": "memory"})

app = Starlette(routes=[Route("/v1/queues/{queue}/messages", push, methods=["POST"])])
config = uvicorn.Config(app, host="127.0.0.1", port=0, http="httptools", loop="uvloop", lifespan="off",
                        log_config=None, access_log=False, server_header=False, proxy_headers=False,
                        timeout_keep_alive=76)

class Told(uvicorn.Server):
    async def startup(self, sockets=None):
        await super().startup(sockets)
        print(self.servers[0].sockets[0].getsockname()[1], flush=True)

with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(Told(config).serve())
"""


def posted(path: str, body: bytes, kind: str = "application/json") -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


PUSH = posted("/v1/queues/single/messages", json.dumps({"payload": {"to": "a@b.c", "n": 1}}).encode())
POP = posted("/v1/queues/single/pop", b"{}")
LINE = b'{"payload": {"n": 1}}\n'


class Serving(NamedTuple):
    """A server of ours."""

    http: int
    tcp: int
    process: int


@contextmanager
def serving(core: int | None, store: str = "memory:", *flags: str) -> Iterator[Serving]:
    command = [sys.executable, "-m", "forebay", "serve", "--tcp", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    with running([*command, "--store", store, *flags], core) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        http, tcp = (int(ready[name].rpartition(":")[2]) for name in ("http", "tcp"))
        yield Serving(http, tcp, process.pid)


@contextmanager
def bare(core: int) -> Iterator[int]:
    with running([sys.executable, "-c", BARE], core) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())


def read_answer(connection: socket.socket) -> None:
    """Read one answer that has a length."""
    got = connection.recv_into(BUFFER)
    while (end := BUFFER.find(b"\r\n\r\n", 0, got)) < 0:
        got += connection.recv_into(memoryview(BUFFER)[got:])
    head = bytes(BUFFER[:end]).lower()
    length = int(head.partition(b"content-length:")[2].partition(b"\r")[0])
    while got < end + 4 + length:
        got += connection.recv_into(memoryview(BUFFER)[got:])
    assert head.startswith(b"http/1.1 200"), head


def single_pushes() -> None:
    """Pushes and the constant in turns, so that both meet the same machine."""
    ours = theirs = 0.0
    with serving(CORES[-1]) as server, bare(CORES[-1]) as other:
        for _ in range(3):
            ours = max(ours, best(server.http, PUSH, 50, 60, read_answer))
            theirs = max(theirs, best(other, PUSH, 50, 60, read_answer))
        popped = best(server.http, POP, 50, 60, read_answer)
    print(
        f"  single pushes over 50 connections: {ours / theirs:.2f} of a bare Starlette application"
        f" ({ours:,.0f}/s, bare {theirs:,.0f}/s); single pops {popped:,.0f}/s"
    )


def stream(lines: int = 500_000) -> None:
    """One stream of lines to a store on disk, each chunk synced."""
    with (
        tempfile.TemporaryDirectory(dir=".") as directory,
        serving(None, f"rocksdb:{Path(directory).absolute()}") as server,
        connect(server.http) as connection,
    ):
        rates = []
        for _ in range(3):
            start = time.perf_counter()
            connection.sendall(posted("/v1/queues/lines/messages", LINE * lines, "application/x-ndjson"))
            read_answer(connection)
            rates.append(lines / (time.perf_counter() - start))
    print(f"  a stream of lines, fsync, RocksDB on disk: {max(rates):,.0f} msg/s (of {lines:,} lines each)")


def resident(process: int) -> int:
    pages = Path(f"/proc/{process}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def idle(count: int = 2_000) -> None:
    with serving(None) as server:
        before = resident(server.process)
        fresh = [connect(server.http) for _ in range(count)]
        time.sleep(0.5)
        silent = resident(server.process) - before
        request = b"GET /v1/stats HTTP/1.1\r\nHost: bench\r\n\r\n"
        for connection in fresh:
            connection.sendall(request)
        for connection in fresh:
            read_answer(connection)
        spoken = resident(server.process) - before
        for connection in fresh:
            connection.close()
    print(
        f"  {count:,} idle connections: {silent / count / 1024:.1f} KiB each before their first request,"
        f" {spoken / count / 1024:.1f} KiB after it"
    )


# Events.

BATCH = framed({"cmd": "PUSH", "queue": "batches", "messages": [{"to": "a@b.c", "n": n} for n in range(100)]})
TAKE = framed({"cmd": "POP", "queue": "batches", "count": 100, "compact": True, "wait_ms": 0})


def cycles(port: int, connections: int, rounds: int) -> float:
    """Messages a second that are pushed, popped and acked by the hundred."""
    open_ = [connect(port) for _ in range(connections)]
    start = time.perf_counter()
    for _ in range(rounds):
        for request in (BATCH, TAKE):
            for connection in open_:
                connection.sendall(request)
            leases = []
            for connection in open_:
                framed_reply(connection)
                leases.append(_lease())
        for connection, lease in zip(open_, leases, strict=True):
            connection.sendall(framed({"cmd": "ACK", "lease": lease}))
        for connection in open_:
            framed_reply(connection)
    took = time.perf_counter() - start
    for connection in open_:
        connection.close()
    return 100 * connections * rounds / took


def _lease() -> str:
    """The lease of a reply that has just been read, if it has one."""
    return BUFFER[:400].partition(b'"lease":"')[2].partition(b'"')[0].decode()


def cost_of_events(turns: int = 15) -> None:
    """The same work on a server that keeps events and on one that keeps none, in turns."""
    for name, on_disk in (("in memory", False), ("fsync, RocksDB on disk", True)):
        pushed: list[float] = []
        cycled: list[float] = []
        with ExitStack() as stack:
            servers = []
            for kept in ("67108864", "0"):
                store = "memory:"
                if on_disk:
                    directory = stack.enter_context(tempfile.TemporaryDirectory(dir="."))
                    store = f"rocksdb:{Path(directory).absolute()}"
                core = None if on_disk else CORES[-1]
                server = stack.enter_context(serving(core, store, "--events-bytes-max", kept))
                servers.append(server.tcp)
            for turn in range(turns):
                order = servers if turn % 2 else servers[::-1]
                rates = {port: load(port, BATCH, 16, 40) for port in order}
                pushed.append(rates[servers[1]] / rates[servers[0]])
                rates = {port: cycles(port, 16, 10) for port in order}
                cycled.append(rates[servers[1]] / rates[servers[0]])
        push, cycle = statistics.median(pushed), statistics.median(cycled)
        print(
            f"  events kept, batches of 100, {name}: a push takes {push:.3f} times as long as without;"
            f" push, pop and ack {cycle:.3f} times (medians of {turns} turns)"
        )


QUEUES = 10
DATA = b"\ndata: {"


def listeners(count: int = 100, seconds: int = 20) -> None:
    """Many who hear of the same 1,000 events a second, and one who does not read."""
    pushes = b"".join(framed({"cmd": "PUSH", "queue": f"q{n}", "payload": 1}) for n in range(QUEUES))
    rounds = seconds * 1_000 // QUEUES
    with serving(CORES[-1]) as server, selectors.DefaultSelector() as selector, connect(server.tcp) as pusher:
        ask = b"GET /v1/events?kind=pushed HTTP/1.1\r\nHost: bench\r\n\r\n"
        heard: dict[socket.socket, tuple[int, bytes]] = {}
        for _ in range(count):
            connection = connect(server.http)
            connection.sendall(ask)
            while b"listening" not in connection.recv(4096):
                pass
            selector.register(connection, selectors.EVENT_READ)
            heard[connection] = 0, b""
        deaf = socket.socket()
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        deaf.connect(("127.0.0.1", server.http))
        deaf.sendall(ask)

        def push() -> None:
            begin = time.perf_counter()
            for at in range(rounds):
                time.sleep(max(0.0, begin + at * QUEUES / 1_000 - time.perf_counter()))
                push_once()

        def push_once() -> None:
            pusher.sendall(pushes)
            for _ in range(QUEUES):
                head = pusher.recv(4, socket.MSG_WAITALL)
                pusher.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL)

        begin, spent = time.perf_counter(), processor_s(server.process)
        thread = Thread(target=push)
        thread.start()
        grown: list[int] = []
        while ready := selector.select(timeout=1.0):
            for key, _ in ready:
                assert isinstance(key.fileobj, socket.socket)
                size = key.fileobj.recv_into(BUFFER)
                number, tail = heard[key.fileobj]
                data = tail + BUFFER[:size]
                heard[key.fileobj] = number + data.count(DATA), bytes(data[1 - len(DATA) :])
            took = time.perf_counter() - begin
            if took > seconds / 4 * (len(grown) + 1):
                grown.append(resident(server.process))
        thread.join()
        spent = processor_s(server.process) - spent
        counts = [number for number, _ in heard.values()]
        for connection in heard:
            connection.close()
        more = 0
        while not is_cut(deaf) and more < 100_000:  # the system's own buffers take some megabytes first
            push_once()
            more += QUEUES
        fate = f"{'dropped' if is_cut(deaf) else 'KEPT'} after {seconds * 1_000 + more:,} events"
        deaf.close()
    lowest, highest = min(counts) / seconds, max(counts) / seconds
    print(
        f"  {count} listeners to server-sent events: {lowest:,.0f} to {highest:,.0f} events/s"
        f" each for {seconds} s, {spent / seconds:.0%} of one core,"
        f" memory {grown[0] / 2**20:.0f} MiB after a quarter and {grown[-1] / 2**20:.0f} MiB at the end;"
        f" one that does not read was {fate}"
    )


def processor_s(process: int) -> float:
    """Seconds of processor time that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def is_cut(connection: socket.socket) -> bool:
    """Whether the other side has cut a connection off, whatever lies unread in it."""
    poll = select.poll()
    poll.register(connection, select.POLLHUP)
    return bool(poll.poll(0))


def main() -> None:
    os.sched_setaffinity(0, {CORES[0]})
    print(f"HTTP, {len(CORES)} cores")
    single_pushes()
    listeners()
    os.sched_setaffinity(0, set(CORES))
    cost_of_events()
    stream()
    idle()


if __name__ == "__main__":
    main()
