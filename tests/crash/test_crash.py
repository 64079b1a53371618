"""A server that is killed keeps what it confirmed. ``make crash`` plays longer lives."""

import random
import select
import shutil
from pathlib import Path

import pytest

from tests.crash import harness
from tests.crash.check import Check
from tests.crash.harness import FLAGS, Life
from tests.crash.ledger import Violation
from tests.crash.load import now_ms
from tests.crash.process import DATA, Process
from tests.postgres import cluster

SEED = 1


def test_thirty_kills_lose_nothing_and_deliver_nothing_twice() -> None:
    figures = harness.run(30, SEED)
    assert figures.cycles == 30
    assert figures.messages > 1_000
    assert figures.acked > 1_000
    assert figures.cancelled > 100
    assert figures.purged > 10


def test_kills_of_a_server_on_a_database_lose_nothing_and_deliver_nothing_twice() -> None:
    figures = harness.run(10, SEED, store=cluster().database)
    assert figures.cycles == 10
    assert figures.messages > 500
    assert figures.acked > 500


def test_kills_of_the_database_lose_nothing_and_deliver_nothing_twice() -> None:
    cluster()  # skipped if there is none
    figures = harness.run_databases(6, SEED)
    assert figures.cycles == 6
    assert figures.messages > 300
    assert figures.acked > 300


def test_a_server_killed_while_it_starts_finds_everything_when_it_starts_again(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    life = Life(tmp_path, rng)
    life.cycle("c0")
    life.cycle("c1")
    for _ in range(10):
        server = life.process()
        try:
            server.said(rng.uniform(0.05, 0.5))
        finally:
            server.kill()
    life.end()


def test_a_backup_that_is_killed_is_whole_or_not_there(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    life = Life(tmp_path, rng)
    life.cycle("c0")
    life.cycle("c1")
    for number in range(8):
        target = tmp_path / f"backup-{number}"
        with life.process() as server:
            life.check(server, f"b{number}")
            with server.connect() as connection:
                connection.send({"cmd": "BACKUP", "directory": str(target)})
                select.select([connection.socket], [], [], rng.uniform(0.0, 0.012))
            server.kill()
        life.killed_at = now_ms()
        if target.exists():
            _check_backup(life, target, tmp_path / f"home-{number}")
    life.end()


def _check_backup(life: Life, target: Path, home: Path) -> None:
    home.mkdir()
    shutil.copytree(target, home / DATA)
    with Process(home, *FLAGS) as server, server.connect() as connection:
        Check(connection, life.ledger, random.Random(SEED), "backup").logs()


PLANTED = {
    "the last writes are held back": """
from forebay.store.rocksdb.store import RocksStore
write, held = RocksStore._write_batch, []
def late(self, batch):
    held.append(batch)
    if len(held) > 3:
        write(self, held.pop(0))
RocksStore._write_batch = late
""",
    "leases are not loaded": """
from forebay.core.loading import build
build._add_lease = lambda *arguments: None
""",
    "acks are not kept": """
from forebay.core.shard.changes import Changes
seal = Changes.seal
def forgetful(self, now):
    commit = seal(self, now)
    commit.deletes[:] = [key for key in commit.deletes if key[8:9] != b"l"]
    return commit
Changes.seal = forgetful
""",
    "cancels are not kept": """
from forebay.core.shard.changes import Changes
put_row = Changes.put_row
def forgetful(self, queue, key, value):
    if key[8:9] not in (b"e", b"o"):
        put_row(self, queue, key, value)
Changes.put_row = forgetful
""",
    "dead letters are not kept": """
from forebay.core.shard.changes import Changes
put_row = Changes.put_row
def forgetful(self, queue, key, value):
    if key[8:9] != b"d":
        put_row(self, queue, key, value)
Changes.put_row = forgetful
""",
    "results are not kept": """
from forebay.core.delivery import notes
notes.add = lambda *arguments: None
""",
    "large pushes are not whole": """
from forebay.core import handlers
push = handlers.push
def halved(shard, queue, partition, payloads, lengths, *others):
    done = push(shard, queue, partition, payloads[:1], lengths[:1], *others)
    done.count = len(payloads)
    return done
handlers.push = halved
""",
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str) -> None:
    with pytest.raises((Violation, AssertionError)) as found:
        harness.run(6, SEED, planted=PLANTED[name])
    (note,) = found.value.__notes__
    shutil.rmtree(note.rpartition(" ")[2])
