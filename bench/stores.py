"""How fast is what is kept on disk? Through a node, fsync before every answer, payloads of about 50 bytes.

    python -m bench.stores                      everything, about eight minutes
    python -m bench.stores --seconds 5 --backlog 1000000      a quick look
    python -m bench.stores --only backlog
    python -m bench.stores --only held          PostgreSQL while somebody holds a transaction open: 30 minutes

PostgreSQL has a file of its own, bench/databases.py.

The event loop is watched all the while: the longest time it could not turn is printed with every figure.
"""

import argparse
import asyncio
import gc
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import uvloop
from tests.store.faults import Faulty

from bench.wire import best as best_over_tcp, framed, redis, running_forebay
from forebay.app import clock
from forebay.broker.node import Node
from forebay.core.api.commands import Ack, Command, Pop, Popped, Push, Pushed, Reply
from forebay.core.bounds import Limits
from forebay.core.errors import ForebayError
from forebay.store.rocksdb.store import RocksStore

PAYLOAD = b'{"to":"user@example.com","subject":"hi","n":%06d}'
LONG = b'{"to":"user@example.com","subject":"' + b"x" * 50 + b'","n":%07d}'


class SlowDisk(Faulty):
    """Every sync takes 2 ms more, as on a disk that is not cached."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.sync_wait_s = 0.002


class Caller:
    """Asks a node and waits for the answer."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._loop = asyncio.get_running_loop()

    def ask(self, command: Command) -> "asyncio.Future[Reply]":
        future: asyncio.Future[Reply] = self._loop.create_future()
        self._node.ask(self, future, command)
        return future

    def answered(self, ticket: object, reply: Reply | ForebayError) -> None:
        assert isinstance(ticket, asyncio.Future)
        if isinstance(reply, ForebayError):
            ticket.set_exception(reply)
        else:
            ticket.set_result(reply)

    def flush(self) -> None:
        pass


class Watch:
    """The longest time the event loop did not turn."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self.longest = 0.0
        self._timer = self._loop.call_later(0.001, self._look)

    def _look(self) -> None:
        now = self._loop.time()
        self.longest = max(self.longest, now - self._last - 0.001)
        self._last = now
        self._timer = self._loop.call_later(0.001, self._look)

    def take(self) -> str:
        self._timer.cancel()
        return f"longest stall of the loop {self.longest * 1e3:.1f} ms"


@contextmanager
def home() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="forebay-bench-", dir=os.environ.get("BENCH_DIR")))
    try:
        yield path
    finally:
        shutil.rmtree(path)


@contextmanager
def node_on(directory: Path, store: type[RocksStore] = RocksStore) -> Iterator[Caller]:
    shards = store.shards_default
    node = Node(store(directory), asyncio.get_running_loop(), clock(), Limits(), shards=shards)
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    try:
        yield Caller(node)
    finally:
        node.close()


async def flow(
    workers: int, until: Callable[[], bool], step: Callable[[], Awaitable[int]]
) -> tuple[int, float]:
    """Several at a time, each one step after another; what the steps returned in all, and the seconds."""
    total = 0

    async def work() -> None:
        nonlocal total
        while not until():
            count = await step()
            total += count

    start = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(workers)))
    return total, time.perf_counter() - start


async def pushes(size: int, workers: int, seconds: float, gigabytes: float) -> None:
    """Sustained pushes of one size: for so long, and so much."""
    payloads = [PAYLOAD % number for number in range(size)]
    with home() as path, node_on(path) as caller:
        done = 0

        async def step() -> int:
            nonlocal done
            reply = await caller.ask(Push("default", "q", payloads))
            assert isinstance(reply, Pushed)
            done += reply.count
            return reply.count

        start, watch = time.perf_counter(), Watch()
        parts: list[tuple[float, int]] = [(start, 0)]

        def over() -> bool:
            now = time.perf_counter()
            if now - parts[-1][0] >= max(seconds / 10, 1):
                parts.append((now, done))
            return now - start >= seconds and done * len(payloads[0]) >= gigabytes * 1e9

        total, took = await flow(workers, over, step)
        rates = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(parts)]
        print(
            f"  push, batches of {size:>6,}, {workers} at a time: {total / took / 1e6:5.2f} M msg/s over"
            f" {took:.0f} s and {total * len(payloads[0]) / 1e9:.1f} GB"
            f" (slowest tenth {min(rates, default=0) / 1e6:.2f}); {watch.take()}; {resident()}"
        )


def resident() -> str:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return f"{pages * resource.getpagesize() / 2**20:,.0f} MiB resident"


async def singles(store: type[RocksStore], seconds: float) -> tuple[float, float]:
    """Single pushes a second: one at a time, and 64 at a time."""
    rates = []
    with home() as path, node_on(path, store) as caller:
        for workers in (1, 64):
            end = time.perf_counter() + seconds

            async def step() -> int:
                await caller.ask(Push("default", "q", [PAYLOAD % 1]))
                return 1

            total, took = await flow(workers, lambda end=end: time.perf_counter() > end, step)  # type: ignore[misc]
            rates.append(total / took)
    return rates[0], rates[1]


async def group_commit(seconds: float) -> None:
    for name, store in (("this disk", RocksStore), ("a disk with 2 ms more a sync", SlowDisk)):
        one, many = await singles(store, seconds)
        print(
            f"  single pushes on {name}: one at a time {one:,.0f}/s, 64 at a time {many:,.0f}/s:"
            f" {many / one:.1f} times as many"
        )


async def backlog(messages: int, batch: int, path: Path) -> None:
    """Push a backlog, and die."""
    payloads = [LONG % number for number in range(batch)]
    with node_on(path) as caller:
        left, watch = messages, Watch()

        async def push() -> int:
            nonlocal left
            left -= batch
            await caller.ask(Push("default", "q", payloads))
            return batch

        total, took = await flow(64, lambda: left <= 0, push)
        print(
            f"  {total / 1e6:.0f} M messages of {len(payloads[0])} bytes in batches of {batch}:"
            f" pushed at {total / took / 1e6:.2f} M msg/s; {watch.take()}; {resident()}",
            flush=True,
        )
        os._exit(0)  # as kill -9 would: what is loaded next was never closed


async def pop_through(path: Path, messages: int) -> None:
    start = time.perf_counter()
    with node_on(path) as caller:
        took = time.perf_counter() - start
        print(
            f"  after kill -9, opened and loaded {messages / 1e6:.0f} M waiting messages in {took:.2f} s;"
            f" {resident()}"
        )
        watch = Watch()
        empty = False

        async def pop() -> int:
            nonlocal empty
            reply = await caller.ask(Pop("default", "q", count=10_000))
            assert isinstance(reply, Popped)
            count = sum(each.count for each in reply.deliveries)
            for each in reply.deliveries:
                b",".join(each.payloads())
            empty = not count
            if reply.lease is not None:
                await caller.ask(Ack("default", reply.lease))
            return count

        total, took = await flow(2, lambda: empty, pop)
        print(
            f"  popped and acked all {total / 1e6:.1f} M in batches of 10,000:"
            f" {total / took / 1e6:.2f} M msg/s; {watch.take()}; {resident()}"
        )


def over_tcp() -> None:
    request = framed({"cmd": "PUSH", "queue": "single", "payload": {"to": "user@example.com", "n": 1}})
    cores = sorted(os.sched_getaffinity(0))
    with home() as path:
        os.sched_setaffinity(0, {cores[0]})
        # Not on one core: the committer has a thread of its own, and so has RocksDB.
        with running_forebay(None, f"rocksdb:{path}") as port:
            ours = best_over_tcp(port, request, 50, 400)
        lpush = b"*3\r\n$5\r\nLPUSH\r\n$1\r\nq\r\n$34\r\n%s\r\n" % (b"x" * 34)
        line = f"  TCP, 50 connections, single pushes, fsync: {ours:,.0f}/s"
        with redis(None, append_to=path) as peer:
            if peer:
                from bench.wire import redis_reply

                theirs = best_over_tcp(peer, lpush, 50, 400, redis_reply)
                line += (
                    f"; Redis LPUSH, appendfsync always: {theirs:,.0f}/s, we do {ours / theirs:.2f} of that"
                )
        print(line)
        os.sched_setaffinity(0, set(cores))


def apart(arguments: list[str], module: str = "bench.stores") -> None:
    """Run a part of this file, or another one, in a process of its own, so that its memory is its own."""
    import subprocess

    subprocess.run([sys.executable, "-m", module, *arguments], check=True)


def run(work: Awaitable[None]) -> None:
    async def main() -> None:
        await work

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


PARTS = ("pushes", "singles", "tcp", "backlog", "slow-backlog", "postgres")
LONG_PARTS = ("held",)
"""Those that are run only if they are asked for."""


def main() -> None:
    sys.setswitchinterval(1e-4)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--gigabytes", type=float, default=4)
    parser.add_argument("--backlog", type=int, default=20_000_000)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--only", choices=PARTS + LONG_PARTS)
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--path", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, default=100, help=argparse.SUPPRESS)
    given = parser.parse_args()
    match given.part:
        case "fill":
            run(backlog(given.backlog, given.batch, given.path))
            return
        case "drain":
            run(pop_through(given.path, given.backlog))
            return
    wanted = [given.only] if given.only else PARTS
    if not {"postgres", "held"}.issuperset(wanted):
        print("stores: RocksDB, fsync before every answer", flush=True)
    if "pushes" in wanted:
        run(pushes(10_000, 2, given.seconds, given.gigabytes))
        run(pushes(100, 32, given.seconds, 0))
    if "singles" in wanted:
        run(group_commit(min(given.seconds, 5)))
    if "tcp" in wanted:
        over_tcp()
    if "backlog" in wanted:
        with home() as path:
            for part in ("fill", "drain"):
                apart(["--part", part, "--path", str(path), "--backlog", str(given.backlog)])
    if "slow-backlog" in wanted:
        with home() as path:
            few = given.backlog // 20
            for part in ("fill", "drain"):
                apart(["--part", part, "--path", str(path), "--backlog", str(few), "--batch", "1"])
    if "postgres" in wanted:
        apart(["--seconds", str(min(given.seconds, 5))], "bench.databases")
    if "held" in wanted:
        apart(["--held", "--minutes", str(given.minutes)], "bench.databases")


if __name__ == "__main__":
    main()
