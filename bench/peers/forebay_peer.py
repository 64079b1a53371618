"""Forebay with coroutines: every push is on disk, synced, before its answer leaves.

All settings are the defaults. Pushes at the same time share a request, as they do for every user.
"""

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import msgspec

from bench.peers.contract import AsyncSender, Peer, main, ran
from forebay.client.tasks.app import App
from forebay.client.worker.main import run_worker
from forebay.client.worker.worker import CONCURRENCY

app = App("bench", queue="tasks")


@app.task
async def task(stamp: int) -> None:
    ran(stamp)


class ForebaySender:
    async def one(self, stamp: int) -> None:
        await task.apush(stamp)

    async def many(self, stamps: Sequence[int]) -> None:
        await task.apush_many(stamps)


@asynccontextmanager
async def async_sender(url: str) -> AsyncIterator[AsyncSender]:
    app.server = url
    yield ForebaySender()
    await app.aclose()


def work(url: str) -> None:
    run_worker(app, server=url)


@contextmanager
def server(directory: Path) -> Iterator[str]:
    """A server with its defaults."""
    places = ["--tcp", "127.0.0.1:0", "--http", "off", "--data", str(directory / "data")]
    process = subprocess.Popen(
        [sys.executable, "-m", "forebay", "serve", *places], stdout=subprocess.PIPE, cwd=directory
    )
    try:
        assert process.stdout is not None
        yield msgspec.json.decode(process.stdout.readline())["tcp"]
    finally:
        process.terminate()
        process.wait()


PEER = Peer(
    name="Forebay",
    package="forebay",
    worker=f"{CONCURRENCY} coroutines, fsync",
    async_sender=async_sender,
    work=work,
    bulk=True,
    server=server,
)

if __name__ == "__main__":
    main(PEER)
