"""What do many tenants cost? Ten thousand with one queue each, on the embedded store.

    python -m bench.tenants
    python -m bench.tenants --tenants 100000

Each has a queue with a message that waits and one that is leased, a value and a group. Figures are of a fresh
process that loads them: how long until it may answer, how much memory it has then, and what a tick costs when
nothing is due, beside one of a store with a single tenant.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.core import resident
from forebay.broker.load import claim_all
from forebay.core.api.commands import Pop, Push
from forebay.core.api.jobs import KvChange, KvWrite
from forebay.core.bounds import Limits
from forebay.core.engine import Engine
from forebay.core.keyvalue.keys import pack
from forebay.store.rocksdb.store import RocksStore

SHARDS = RocksStore.shards_default
TICKS = 10_000
AT_ONCE = 1_000
"""Tenants of one commit."""


def wall() -> int:
    return time.time_ns() // 1_000_000


def load(store: RocksStore) -> Engine:
    engine, _ = claim_all(store, store.shards(SHARDS), Limits(), wall, None, None)
    return engine


def fill(directory: Path, tenants: int) -> None:
    """Make a store with so many tenants."""
    store = RocksStore(directory)
    engine, now = load(store), wall()
    key = pack(["settings"])
    for number in range(tenants):
        tenant = f"tenant-{number}"
        engine.apply(Push(tenant, "jobs", [b'{"n":1}', b'{"n":2}']), now)
        engine.apply(Pop(tenant, "jobs", lease_ms=3_600_000), now)
        engine.apply(KvWrite(tenant, [KvChange("set", key, b"1")]), now)
        if number % AT_ONCE == AT_ONCE - 1:
            store.commit(engine.seal(now))
            engine.take_sealed()
    store.commit(engine.seal(now))
    store.close()


def measure(directory: Path) -> tuple[float, float, float]:
    """Seconds to load, MiB in memory, and µs of a tick with nothing due."""
    begin = time.perf_counter()
    store = RocksStore(directory)
    engine = load(store)
    loaded = time.perf_counter() - begin
    store.commit(engine.seal(engine.now))
    engine.tick(engine.now + 20_000)
    while engine.next_due_at() <= engine.now:  # the sweeps that every start plans
        engine.tick(engine.now)
    store.commit(engine.seal(engine.now))
    memory = resident() / (1 << 20)
    begin = time.perf_counter()
    for _ in range(TICKS):
        engine.tick(engine.now)
    return loaded, memory, (time.perf_counter() - begin) / TICKS * 1e6


def measured(tenants: int) -> tuple[float, float, float]:
    """The figures of a fresh process."""
    with tempfile.TemporaryDirectory(prefix="bench-tenants-") as directory:
        fill(Path(directory) / "data", tenants)
        code = "import sys; from bench.tenants import *; print(*measure(Path(sys.argv[1])))"
        asked = [sys.executable, "-c", code, f"{directory}/data"]
        told = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    first, second, third = map(float, told.split())
    return first, second, third


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tenants", type=int, default=10_000)
    many = parser.parse_args().tenants
    print(f"{SHARDS} shards, RocksDB")
    for tenants in (1, many):
        loaded, memory, tick = measured(tenants)
        print(
            f"{tenants:>7,} tenants: loaded in {loaded:.2f} s, {memory:.0f} MiB, an idle tick {tick:.1f} µs"
        )


if __name__ == "__main__":
    main()
