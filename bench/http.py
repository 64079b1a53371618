"""HTTP beside a bare application: what a push costs over what its framework costs, and streams of lines.

The bare application answers a constant on the same uvicorn and uvloop, with the same settings, in the same
run: the ratio says more than the rates, which are this machine's.
"""

import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.wire import BUFFER, CORES, best, connect, running

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


@contextmanager
def serving(core: int | None, store: str = "memory:") -> Iterator[tuple[int, int]]:
    """A server of ours; its port and process."""
    command = [sys.executable, "-m", "penstock", "serve", "--tcp", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    with running([*command, "--store", store], core) as process:
        assert process.stdout is not None
        yield int(json.loads(process.stdout.readline())["http"].rpartition(":")[2]), process.pid


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
    with serving(CORES[-1]) as (port, _), bare(CORES[-1]) as other:
        for _ in range(3):
            ours = max(ours, best(port, PUSH, 50, 60, read_answer))
            theirs = max(theirs, best(other, PUSH, 50, 60, read_answer))
        popped = best(port, POP, 50, 60, read_answer)
    print(
        f"  single pushes over 50 connections: {ours / theirs:.2f} of a bare Starlette application"
        f" ({ours:,.0f}/s, bare {theirs:,.0f}/s); single pops {popped:,.0f}/s"
    )


def stream(lines: int = 500_000) -> None:
    """One stream of lines to a store on disk, each chunk synced."""
    with (
        tempfile.TemporaryDirectory(dir=".") as directory,
        serving(None, f"rocksdb:{Path(directory).absolute()}") as (port, _),
        connect(port) as connection,
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
    with serving(None) as (port, process):
        before = resident(process)
        fresh = [connect(port) for _ in range(count)]
        time.sleep(0.5)
        silent = resident(process) - before
        request = b"GET /v1/stats HTTP/1.1\r\nHost: bench\r\n\r\n"
        for connection in fresh:
            connection.sendall(request)
        for connection in fresh:
            read_answer(connection)
        spoken = resident(process) - before
        for connection in fresh:
            connection.close()
    print(
        f"  {count:,} idle connections: {silent / count / 1024:.1f} KiB each before their first request,"
        f" {spoken / count / 1024:.1f} KiB after it"
    )


def main() -> None:
    os.sched_setaffinity(0, {CORES[0]})
    print(f"HTTP, {len(CORES)} cores")
    single_pushes()
    os.sched_setaffinity(0, set(CORES))
    stream()
    idle()


if __name__ == "__main__":
    main()
