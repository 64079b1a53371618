"""Single bits of a data directory flipped: what was written is read back as it was, or the damage is told.

    python -m tests.store.flips --flips 1000 --seed 1

One directory is built with everything in it: tables, blob files and a log that was not closed. Each flip gets
a copy of its own. Flips are tried in a child process, because RocksDB may take the process along.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from rocksdict import Cache

from forebay.core import engine as engines
from forebay.core.api import commands as c
from forebay.core.bounds import Limits
from forebay.core.engine import Engine
from forebay.core.errors import Damaged
from forebay.core.log.bodies import body_slices, is_whole
from forebay.core.records import keyspace
from forebay.core.records.keyspace import CONTROL
from forebay.core.state import PLAIN, Attributes, LeaseRun, Partition, Queue, Track
from forebay.store.base import CantOpen, Store
from forebay.store.rocksdb import options as rocksdb_options
from forebay.store.rocksdb.store import RocksStore
from tests.store.faults import copy_open, in_child

SHARDS = 3
NOW = 1_700_000_000_000
TENANTS = ("acme", "blue", "clay")
SPREAD = "clay"
"""The tenant whose queues live in different shards."""
QUEUES = ("jobs", "mails")
PARTITIONS = ("default", "other")
LEFT_OUT = ("LOG", "LOCK")
"""RocksDB's log for people, and a file that is always empty."""


class Flip(NamedTuple):
    """One bit of one file."""

    file: str
    byte: int
    bit: int


class Outcome(NamedTuple):
    kind: str
    """refused, damaged (told), fine, or what broke."""
    text: str = ""


GOOD = ("refused", "damaged", "fine")


# The directory.


def build(home: Path) -> None:
    """A directory as a server that was killed leaves it, in ``home``."""
    with tempfile.TemporaryDirectory(prefix="forebay-flips-") as name:
        directory = Path(name) / "data"
        store = RocksStore(directory)
        engine = load(store)
        engine.apply(c.TenantPut(SPREAD, spread=True), NOW)
        rng = random.Random(1)
        for at in range(60):
            _fill(engine, rng)
            store.commit(engine.seal(NOW + at))
            if at in (20, 40):
                store._bodies.flush(True)
                store._db.flush(True)
        copy_open(directory, home)
        store.close()


HAVING = (PLAIN, PLAIN, Attributes(priority=3), Attributes(delay_ms=9), Attributes(max_attempts=1))
"""What messages may have."""


def _fill(engine: Engine, rng: random.Random) -> None:
    """Messages for everybody, and somebody who takes and settles some."""
    for tenant in TENANTS:
        for queue in QUEUES:
            for partition in PARTITIONS:
                payloads = [rng.randbytes(rng.randrange(20, 200)) for _ in range(rng.randrange(1, 4))]
                having = rng.choice(HAVING)
                pushed = engine.apply(c.Push(tenant, queue, payloads, partition, None, having), engine.now)
                assert isinstance(pushed, c.Pushed)
                if rng.randrange(4) == 0:
                    engine.apply(c.Cancel(tenant, [pushed.first + len(payloads) - 1]), engine.now)
            popped = engine.apply(c.Pop(tenant, queue, count=rng.randrange(1, 4)), engine.now)
            assert isinstance(popped, c.Popped)
            match rng.randrange(3):
                case 0:
                    engine.apply(c.Ack(tenant, popped.lease), engine.now)
                case 1:
                    engine.apply(c.Nack(tenant, popped.lease, error="no"), engine.now)


def load(store: Store) -> Engine:
    """The engine of a store, as the node loads it."""
    shards = store.shards(SHARDS)
    control = store.claim(CONTROL)
    claims = {shard: engines.Taken(store.claim(shard).epoch) for shard in range(shards)}
    store.sync()
    return engines.load(Limits(pop_creates_queues=True), shards, claims, control.epoch, store.scan, NOW)


# What is in it, as plain values.

CONTROLLED = "(control records)"
Content = dict[str, dict[str, object]]
"""By tenant and queue: what the engine knows, and every payload."""


def content(store: RocksStore, engine: Engine) -> tuple[Content, list[str]]:
    """Everything that can be read, and what was told to be damaged."""
    found: Content = {
        CONTROLLED: {"tenants": repr(engine.control.tenants), "version": engine.control.version}
    }
    told = [f"queue {tenant}/{name}" for tenant, name in engine.damaged]
    for (tenant, name), queue in engine.queues.items():
        found[f"{tenant}/{name}"] = {
            "options": repr(queue.options),
            "groups": {group.name: _tracks(queue, group.tracks) for group in queue.groups.values()},
            "leases": _leases(engine, queue),
            "logs": {each.name: list(_log(store, queue, each, told)) for each in queue.partitions.values()},
        }
    return found, told


def _tracks(queue: Queue, tracks: dict[int, Track]) -> object:
    return sorted(
        (
            track.partition.name,
            track.cursor,
            track.turn,
            track.planned,
            [repr(run) for run in track.schedule],
            [repr(track.letters[first]) for first, _ in track.dead],
            list(track.skips),
            list(track.outcomes),
            list(track.partition.withdrawn),
        )
        for track in tracks.values()
    )


def _leases(engine: Engine, queue: Queue) -> object:
    leases = [lease for lease in engine.shards[queue.shard].leases.values() if lease.queue is queue]
    return sorted((lease.name, sorted(repr(_run(run)) for run in lease.runs.values())) for lease in leases)


def _run(run: LeaseRun) -> tuple[object, ...]:
    return tuple(getattr(run, name) for name in run.__struct_fields__)


def _log(store: RocksStore, queue: Queue, partition: Partition, told: list[str]) -> Iterator[str | None]:
    """Every payload by offset; None where the store says that it is damaged."""
    yield f"{partition.numbers} {partition.log.first} {partition.marks}"
    keys = [keyspace.body_key(queue.prefix, segment.body_name) for segment in partition.log.segments]
    for segment, body in zip(partition.log.segments, store.bodies(keys), strict=True):
        if isinstance(body, Damaged) or body is None or not is_whole(body, segment.count, segment.size):
            told.append(f"body of {queue.tenant}/{queue.name}")
            yield from [None] * segment.count
        else:
            for payload in body_slices(body, segment.count, 0, segment.count):
                yield f"{segment.created_at} {payload.hex()}"


# One flip.


def flips(home: Path, count: int, rng: random.Random) -> list[Flip]:
    """Random bits: every file is as likely as every other, and in logs every second is in ``spans``."""
    files = sorted(each for each in home.glob("**/*") if each.is_file() and each.stat().st_size)
    files = [each for each in files if not each.name.startswith(LEFT_OUT)]
    delicate = {file: sorted(spans(file)) for file in files}
    chosen: list[Flip] = []
    for _ in range(count):
        file = rng.choice(files)
        byte = rng.randrange(file.stat().st_size)
        if delicate[file] and rng.random() < 0.5:
            byte = rng.choice(delicate[file])
        chosen.append(Flip(str(file.relative_to(home)), byte, rng.randrange(8)))
    return chosen


BLOCK = 32 * 1024
HEADER = 7
"""Checksum (4 bytes), length (2) and type (1) of a record in RocksDB's logs."""


def spans(file: Path) -> set[int]:
    """The bytes of a log or a manifest that hold lengths and types of records.

    RocksDB checks them too late: it takes a record that seems to go past the end of the file for one that was
    cut off, and some types make it read on forever. So ``forebay.store.rocksdb.wal_check`` looks first.
    """
    found: set[int] = set()
    if file.suffix == ".log" or file.name.startswith("MANIFEST"):
        content = file.read_bytes()
        at = 0
        while at + HEADER <= len(content):
            if BLOCK - at % BLOCK < HEADER:
                at += BLOCK - at % BLOCK
                continue
            found.update(range(at + 4, at + HEADER))
            at += HEADER + int.from_bytes(content[at + 4 : at + 6], "little")
    return found


def attempt(home: Path, flip: Flip, wanted: Content) -> Outcome:
    """What becomes of a directory with one bit flipped."""
    with tempfile.TemporaryDirectory(dir=home.parent) as name:  # goes with it, should this process be killed
        directory = Path(name) / "data"
        shutil.copytree(home, directory)
        _turn(directory / flip.file, flip)
        # Blocks are cached under names that the copies share: a new cache has to read what was flipped.
        rocksdb_options._CACHE = Cache(rocksdb_options.CACHE_BYTES)
        try:
            store = RocksStore(directory)
        except CantOpen as error:
            return Outcome("refused" if str(error) else "refused without a word", str(error))
        except Exception as error:
            return Outcome("broke", f"opening: {error!r}")
        try:
            return _judge(store, wanted)
        finally:
            with suppress(Exception):  # RocksDB met the damage itself, and says so again
                store._close()


def _turn(path: Path, flip: Flip) -> None:
    content = bytearray(path.read_bytes())
    content[flip.byte] ^= 1 << flip.bit
    path.write_bytes(content)


def _judge(store: RocksStore, wanted: Content) -> Outcome:
    try:
        engine = load(store)
    except Damaged as error:
        return Outcome("refused", f"loading: {error}")
    except Exception as error:
        return Outcome("broke", f"loading: {error!r}")
    found, told = content(store, engine)
    told += [f"shard {number}" for number in engine.damaged_shards]
    for name, queue in wanted.items():
        if name != CONTROLLED and engine.shard_of(*name.split("/")) in engine.damaged_shards:
            continue
        if name not in found and f"queue {name}" not in told:
            return Outcome("silent", f"{name} is gone")
        if name in found and not _agrees(found[name], queue):
            return Outcome("silent", f"{name} differs: {_difference(found[name], queue)}")
    if found.keys() - wanted.keys():
        return Outcome("silent", f"nobody made {found.keys() - wanted.keys()}")
    return Outcome("damaged", "; ".join(sorted(set(told)))) if told else Outcome("fine")


def _agrees(found: dict[str, object], wanted: dict[str, object]) -> bool:
    """Whether all that could be read is as it was written."""
    for name, value in wanted.items():
        if name != "logs":
            if found[name] != value:
                return False
            continue
        logs = found[name]
        assert isinstance(logs, dict)
        assert isinstance(value, dict)
        if logs.keys() != value.keys() or any(len(logs[each]) != len(value[each]) for each in value):
            return False
        for each in value:
            pairs = zip(logs[each], value[each], strict=True)
            if any(got is not None and got != was for got, was in pairs):
                return False
    return True


def _difference(found: dict[str, object], wanted: dict[str, object]) -> str:
    return "; ".join(
        f"{name}: {json.dumps(found[name])[-200:]} for {json.dumps(wanted[name])[-200:]}"
        for name in wanted
        if found[name] != wanted[name]
    )


# Many.


def attempts(say: Callable[[object], None], home: Path, chosen: list[Flip], wanted: Content) -> None:
    """Try flips, in a child."""
    for flip in chosen:
        say((flip, attempt(home, flip, wanted)))


def run(count: int, seed: int) -> list[tuple[Flip, Outcome]]:
    """So many flips, and what became of each."""
    with built() as home:
        return try_all(home, flips(home, count, random.Random(seed)))


@contextmanager
def built() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="forebay-flips-") as name:
        home = Path(name) / "data"
        build(home)
        yield home


def try_all(home: Path, chosen: list[Flip]) -> list[tuple[Flip, Outcome]]:
    """What becomes of each flip; a child that dies or hangs names the one it was at."""
    outcomes: list[tuple[Flip, Outcome]] = []

    def progress(value: tuple[Flip, Outcome]) -> None:
        outcomes.append(value)

    wanted = in_child(original, home)
    while len(outcomes) < len(chosen):
        left = chosen[len(outcomes) :]
        try:
            in_child(attempts, home, left, wanted, progress=progress)
        except AssertionError as error:
            outcomes.append((chosen[len(outcomes)], Outcome("died", str(error))))
    return outcomes


def original(_: Callable[[object], None], home: Path) -> Content:
    """What the directory holds before any bit is flipped."""
    with tempfile.TemporaryDirectory(prefix="forebay-flips-") as name:
        directory = Path(name) / "data"
        shutil.copytree(home, directory)
        store = RocksStore(directory)
        found, told = content(store, load(store))
        assert not told
        store.close()
        return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.store.flips", description=__doc__)
    parser.add_argument("--flips", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    outcomes = run(given.flips, given.seed)
    kinds = Counter((flip.file.rpartition("/")[2], outcome.kind) for flip, outcome in outcomes)
    for (file, kind), number in sorted(kinds.items()):
        sys.stdout.write(f"{number:6} {kind:10} {file}\n")
    bad = [(flip, outcome) for flip, outcome in outcomes if outcome.kind not in GOOD]
    for flip, outcome in bad:
        sys.stdout.write(f"{flip}: {outcome}\n")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
