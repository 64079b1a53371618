"""What a peer of bench/tasks.py is: one file in this folder.

A peer is a program with a few commands, each of which prints one line of JSON, but for the worker. In
Python the file is called ``NAME_peer.py``, makes a ``Peer`` and ends with ``main(PEER)``; other languages
speak the same commands, as ``bullmq.mjs`` does:

    about                   {"name", "language", "worker", "bulk", "own_server"}: what the table says of it
    enqueue URL COUNT       {"seconds"} for COUNT tasks, one by one
    bulk URL COUNT          {"seconds"} for COUNT tasks, CHUNK at a time (only if "bulk" is true)
    feed URL COUNT RATE     {"seconds"} for COUNT tasks, RATE a second
    worker URL OUT COUNT S  run tasks until killed; write OUT once COUNT of them ran, or S seconds went by
    server DIRECTORY        {"url"}, and serves until killed (only if "own_server" is true; else: a Redis)

Commands that send begin with one task more, for which no clock runs: connections are open then. A task
takes one number, its stamp: the monotonic clock in nanoseconds when ``feed`` handed it over, else 0. All it
does is to call ``ran(stamp)``, which counts, and keeps the age of what has a stamp. OUT.first appears with
the first task. OUT is {"tasks", "seconds", "ages"}: how many ran after the first, in how many seconds, and
ages in nanoseconds.

To be fair: one process does the work, results are off where they can be, and a worker does not take more
than a few hundredths of all tasks ahead, because what it took before its first task ran costs it nothing.
"""

import asyncio
import gc
import json
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Protocol

import uvloop

CHUNK = 1_000
"""Tasks in one call of a bulk API, and sends at a time of an asyncio library."""


class Sender(Protocol):
    """Hands over tasks and returns when the server has them."""

    def one(self, stamp: int) -> object: ...

    def many(self, stamps: Sequence[int]) -> object:
        """All in one call. Peers with ``bulk=False`` are never asked to."""


class AsyncSender(Protocol):
    """The same for a library that is called from asyncio."""

    def one(self, stamp: int) -> Awaitable[object]: ...

    def many(self, stamps: Sequence[int]) -> Awaitable[object]: ...


@dataclass(frozen=True, kw_only=True)
class Peer:
    """One task queue. Give ``sender`` or ``async_sender``."""

    name: str
    package: str
    """Whose version is shown beside the name."""
    worker: str
    """How its worker runs, in a few words, for the table."""
    work: Callable[[str], object]
    """Runs the worker of the server at this URL in this process, for ever."""
    sender: Callable[[str], AbstractContextManager[Sender]] | None = None
    async_sender: Callable[[str], AbstractAsyncContextManager[AsyncSender]] | None = None
    bulk: bool = False
    """Is there a call that hands over many tasks in one step?"""
    server: Callable[[Path], AbstractContextManager[str]] | None = None
    """A server of its own with its data in this directory, instead of Redis; its URL."""


class NoBulk:
    """What senders without a bulk API are made from."""

    def many(self, stamps: Sequence[int]) -> Awaitable[object]:
        raise NotImplementedError


# In the worker.


class Record:
    """Counts tasks and writes down how it went when it has seen enough. Threads may share it."""

    def __init__(self, out: Path, count: int, seconds: float) -> None:
        self.out = out
        self.count = count
        self.span = round(seconds * 1e9)
        self.tasks = 0
        self.first = 0
        self.done = False
        self.ages: list[int] = []
        self.lock = threading.Lock()

    def ran(self, stamp: int) -> None:
        now = time.monotonic_ns()
        with self.lock:
            self.tasks += 1
            if self.tasks == 1:
                self.first = now
                Path(f"{self.out}.first").touch()
            if stamp:
                self.ages.append(now - stamp)
            if not self.done and (self.tasks == self.count or now - self.first > self.span):
                self.write(now)

    def write(self, last: int) -> None:
        """Write what was seen, so that whoever sees the file sees all of it."""
        self.done = True
        made = Path(f"{self.out}.made")
        found = {"tasks": self.tasks - 1, "seconds": (last - self.first) / 1e9, "ages": self.ages}
        made.write_text(json.dumps(found))
        made.rename(self.out)


record: Record | None = None


def ran(stamp: int) -> None:
    """What every task does."""
    assert record is not None, "tasks run in workers only"
    record.ran(stamp)


async def ran_async(stamp: int) -> None:
    """The same, for libraries whose tasks are coroutines."""
    ran(stamp)


# In the producer.


def one_by_one(sender: Sender, count: int) -> None:
    for _ in range(count):
        sender.one(0)


async def one_by_one_async(sender: AsyncSender, count: int) -> None:
    for stamps in chunks(count):
        await asyncio.gather(*map(sender.one, stamps))


def in_bulk(sender: Sender, count: int) -> None:
    for stamps in chunks(count):
        sender.many(stamps)


async def in_bulk_async(sender: AsyncSender, count: int) -> None:
    for stamps in chunks(count):
        await sender.many(stamps)


def chunks(count: int) -> Iterator[list[int]]:
    """So many stamps that say nothing, ``CHUNK`` at a time."""
    for at in range(0, count, CHUNK):
        yield [0] * min(CHUNK, count - at)


def feed(sender: Sender, count: int, rate: float) -> None:
    start = time.monotonic()
    for at in range(count):
        ahead = start + at / rate - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)
        sender.one(time.monotonic_ns())


async def feed_async(sender: AsyncSender, count: int, rate: float) -> None:
    async with asyncio.TaskGroup() as sends:
        async for _ in due(count, rate):
            sends.create_task(send(sender))


async def due(count: int, rate: float) -> AsyncIterator[int]:
    """Numbers, each when its time has come, or a little later: loops wake up every millisecond at best."""
    start = time.monotonic()
    for at in range(count):
        ahead = start + at / rate - time.monotonic()
        if ahead > 0:
            await asyncio.sleep(ahead)
        yield at


async def send(sender: AsyncSender) -> None:
    await sender.one(time.monotonic_ns())


# The commands.


def main(peer: Peer) -> None:
    """Do what the arguments say."""
    match sys.argv[1:]:
        case ["about"]:
            say(about(peer))
        case ["enqueue" | "bulk" | "feed" as command, url, count, *rate]:
            say({"seconds": produce(peer, command, url, int(count), *map(float, rate))})
        case ["worker", url, out, count, seconds]:
            global record
            record = Record(Path(out), int(count), float(seconds))
            peer.work(url)
        case ["server", directory]:
            serve(peer, Path(directory))
        case _:
            sys.exit(__doc__)


def about(peer: Peer) -> dict[str, object]:
    return {
        "name": f"{peer.name} {version(peer.package)}",
        "language": "Python",
        "worker": peer.worker,
        "bulk": peer.bulk,
        "own_server": peer.server is not None,
    }


def say(answer: dict[str, object]) -> None:
    print(json.dumps(answer), flush=True)


def produce(peer: Peer, command: str, url: str, count: int, rate: float = 0) -> float:
    """Seconds that so many tasks took to be handed over, after one that opened the connections."""
    gc.freeze()
    if peer.async_sender is not None:
        return uvloop.run(produce_async(peer.async_sender(url), command, count, rate))
    assert peer.sender is not None, "a peer has a sender"
    with peer.sender(url) as sender:
        sender.one(0)
        start = time.perf_counter()
        match command:
            case "enqueue":
                one_by_one(sender, count)
            case "bulk":
                in_bulk(sender, count)
            case _:
                feed(sender, count, rate)
        return time.perf_counter() - start


async def produce_async(
    opened: AbstractAsyncContextManager[AsyncSender], command: str, count: int, rate: float
) -> float:
    async with opened as sender:
        await sender.one(0)
        start = time.perf_counter()
        match command:
            case "enqueue":
                await one_by_one_async(sender, count)
            case "bulk":
                await in_bulk_async(sender, count)
            case _:
                await feed_async(sender, count, rate)
        return time.perf_counter() - start


def serve(peer: Peer, directory: Path) -> None:
    assert peer.server is not None, "only peers with own_server are asked to serve"
    with peer.server(directory) as url:
        say({"url": url})
        signal.pause()
