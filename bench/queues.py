"""What do many queues cost? Ten thousand in one server: its start, its rest, and scrapes beside pushes.

    python -m bench.queues
    python -m bench.queues --queues 1000

Each queue has two messages that wait and one that was acked, on the embedded store. A server process starts
on them: how long until it says that it is ready, and how much of a core it takes while nobody asks, beside
one with a single queue. Then one client pushes a message every few ms, each synced, in turns without and with
a scrape of /metrics every 2 s, and with scrapes whose clients give up at once. The ratio of the slowest
hundredths says what a scrape costs those who push.
"""

import argparse
import http.client
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.http import Serving, serving
from bench.tenants import AT_ONCE, load, wall
from bench.wire import CORES, PAYLOAD, connect, framed, framed_reply
from forebay.core.api.commands import Ack, Pop, Popped, Push
from forebay.core.words import DEFAULT
from forebay.store.rocksdb.store import RocksStore

PAUSE_S = 0.002
"""Time between a push's answer and the next push."""
TURN_S = 5.0
ROUNDS = 3
SETTLE_S = 22.0
"""Time after the start in which the sweeps that every start plans are done."""
IDLE_S = 20.0
SCRAPES = 20
EVERY_S = 2.0
SCRAPER = """
import http.client, sys, time
port, every, patience = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
while True:
    for _ in range(1 if not patience else 5):
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("GET", "/metrics")
        if patience:
            time.sleep(patience)
        else:
            connection.getresponse().read()
        connection.close()
    time.sleep(every)
"""
"""Scrapes in a process of its own, so that it takes no time of the client that pushes."""


def fill(directory: Path, queues: int) -> None:
    """Make a store with so many queues."""
    store = RocksStore(directory)
    engine, now = load(store), wall()
    for number in range(queues):
        queue = f"queue-{number}"
        engine.apply(Push(DEFAULT, queue, [b'{"n":1}', b'{"n":2}', b'{"n":3}']), now)
        popped = engine.apply(Pop(DEFAULT, queue), now)
        assert isinstance(popped, Popped)
        assert popped.lease is not None
        engine.apply(Ack(DEFAULT, popped.lease), now)
        if number % AT_ONCE == AT_ONCE - 1:
            store.commit(engine.seal(now))
            engine.take_sealed()
    store.commit(engine.seal(now))
    store.close()


def cpu_s(process: int) -> float:
    """Return the processor time of a process, all its threads included."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def scrape(port: int) -> int:
    """Return the bytes of one scrape."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/metrics")
    size = len(connection.getresponse().read())
    connection.close()
    return size


def push_for(connection: socket.socket, seconds: float) -> list[float]:
    """Push one message after the other; return how long each took, in s."""
    push = framed({"cmd": "PUSH", "queue": "queue-0", "payload": PAYLOAD})
    took: list[float] = []
    end = time.perf_counter() + seconds
    while (begin := time.perf_counter()) < end:
        connection.sendall(push)
        framed_reply(connection)
        took.append(time.perf_counter() - begin)
        time.sleep(PAUSE_S)
    return took


@contextmanager
def scraping(port: int, patience_s: float) -> Iterator[None]:
    """Scrape every 2 s; with ``patience_s``, five clients at a time that hang up after it."""
    asked = [sys.executable, "-c", SCRAPER, str(port), str(EVERY_S), str(patience_s)]
    process = subprocess.Popen(asked)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def p99(took: list[float]) -> float:
    return statistics.quantiles(took, n=100)[98] * 1000


def beside_scrapes(server: Serving) -> None:
    connection = connect(server.tcp)
    push_for(connection, 1.0)
    quiet: list[float] = []
    scraped: list[float] = []
    given_up: list[float] = []
    for _ in range(ROUNDS):
        quiet += push_for(connection, TURN_S)
        with scraping(server.http, 0.0):
            scraped += push_for(connection, TURN_S)
        with scraping(server.http, 0.01):
            given_up += push_for(connection, TURN_S)
    connection.close()
    print(f"  push, p50 {statistics.median(quiet) * 1000:.2f} ms, p99 {p99(quiet):.1f} ms")
    for name, took in (("a scrape every 2 s", scraped), ("five scrapes given up every 2 s", given_up)):
        print(f"  the same beside {name}: p99 {p99(took):.1f} ms, {p99(took) / p99(quiet):.2f} times")


def scrapes(server: Serving) -> None:
    scrape(server.http)
    begin, before = time.perf_counter(), cpu_s(server.process)
    for _ in range(SCRAPES):
        size = scrape(server.http)
    wall_ms = (time.perf_counter() - begin) / SCRAPES * 1000
    cpu_ms = (cpu_s(server.process) - before) / SCRAPES * 1000
    print(f"  a scrape: {size / 1e6:.2f} MB, {wall_ms:.0f} ms, of these {cpu_ms:.0f} ms of the processor")


def measure(directory: Path, queues: int) -> None:
    fill(directory, queues)
    begin = time.perf_counter()
    core = CORES[0] if len(CORES) > 1 else None
    with serving(core, f"rocksdb:{directory}") as server:
        print(f"{queues:,} queues: ready in {time.perf_counter() - begin:.2f} s")
        time.sleep(SETTLE_S)
        before = cpu_s(server.process)
        time.sleep(IDLE_S)
        print(f"  idle: {(cpu_s(server.process) - before) / IDLE_S:.2%} of a core")
        scrapes(server)
        beside_scrapes(server)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--queues", type=int, default=10_000)
    many = parser.parse_args().queues
    if len(CORES) > 1:
        os.sched_setaffinity(0, {CORES[1]})
    for queues in (1, many):
        with tempfile.TemporaryDirectory(prefix="bench-queues-") as directory:
            measure(Path(directory) / "data", queues)


if __name__ == "__main__":
    main()
