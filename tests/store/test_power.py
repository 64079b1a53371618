"""What was synced survives power loss, the rest is lost from its end. ``make faults`` plays more lives."""

import random
import threading
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from forebay.core.records import keyspace
from forebay.core.records.commit import Commit
from forebay.core.shard.changes import Changes
from forebay.core.stages import adopt as stage_adopt
from forebay.store.rocksdb import store as rocksdb
from forebay.store.rocksdb.space import Space
from forebay.store.rocksdb.store import RocksStore
from tests.sim.plant import Planted, planted
from tests.store import power
from tests.store.faults import PowerCut

LIVES = 40
"""Of three power losses each."""


def test_a_hundred_and_twenty_power_losses_take_nothing_that_was_synced() -> None:
    told: Counter[str] = Counter()
    for seed in range(LIVES):
        told += power.run(seed)
    assert told[power.BYTES_LOST] > 0, "a loss that loses nothing proves nothing"
    for what in ("kept", "lost", "repeated", "made again"):
        assert told[f"adoptions {what}"] > 5, told


def test_power_losses_take_nothing_where_a_database_is_opened_with_next_to_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such an open leaves what it read in the old log: here that is every other one."""
    opens = count()
    monkeypatch.setattr(Space, "is_short", lambda self, log_bytes: bool(next(opens) % 2))
    for seed in range(20):
        power.run(seed)
    assert next(opens) > 40


def _live(step: int = 1) -> None:
    """Every life, or every ``step``-th of them."""
    for seed in range(0, LIVES, step):
        power.run(seed)


def _nothing(*_: object) -> None:
    pass


PLANTED: dict[str, tuple[type, str, Callable[..., None]]] = {
    "large commits stay half done": (RocksStore, "_undo_intents", _nothing),
    "what is confirmed is not synced": (RocksStore, "sync", _nothing),
    "ids of lost messages are given out again": (Changes, "mark_os", _nothing),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*PLANTED[name])
    with pytest.raises(AssertionError, match="seed"):
        _live()


STAGES: dict[str, Planted] = {
    "an adoption is confirmed before it is synced": (
        stage_adopt.adopt,
        "must_sync = True",
        "must_sync = False",
    ),
    "ids of a lost adoption are given out again": (
        stage_adopt._adopt_part,
        "part.count, durability, now)",
        'part.count, "", now)',
    ),
    "an adopted body goes with its stage": (
        stage_adopt.adopt,
        "forget_stage(shard, queue, stage)",
        "(forget_stage(shard, queue, stage), "
        "shard.changes.deletes.extend("
        "keyspace.body_key(queue.prefix, each.body_name) for each in stage.parts))",
    ),
    "an adoption is kept bit by bit": (
        RocksStore.commit,
        "self._write(lambda batch: self._fill(batch, group, bodies))",
        "self._write(lambda batch: self._fill(batch, [], bodies)); "
        "[self._write(partial(_put, *put)) for commit in group for put in commit.puts]; "
        "self._write(lambda batch: self._fill(batch, group, []))",
    ),
}


@pytest.mark.parametrize("name", STAGES)
def test_a_bug_that_is_planted_in_stages_is_found(name: str) -> None:
    with planted(*STAGES[name]), pytest.raises(AssertionError, match="seed"):
        _live(2)


def test_a_log_is_synced_before_the_next_one_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power loss may leave the new log and take the end of the old one: a hole, not a beginning."""
    monkeypatch.setattr(rocksdb, "MEMTABLE_BYTES", 1 << 20)
    with power.opened(tmp_path / "data") as store:
        store.shards(1)
        epoch = store.claim(0).epoch
        store.sync()
        for number in range(100):
            body = (keyspace.body_key(power.PREFIX, number), bytes(100_000))
            store.commit([Commit(0, epoch, number, [], [], [body])], sync=False)
            assert not store.torn(), "a closed log is not synced, and the next one is written"


def test_a_small_disk_begins_no_log_by_itself_either(tmp_path: Path) -> None:
    """RocksDB may keep few logs there: it would begin one when those that are being flushed are too long."""
    rng = random.Random(1)
    store = PowerCut(tmp_path / "data", free_min_bytes=4 << 20)
    store.shards(1)
    epoch = store.claim(0).epoch
    store.sync()
    for number in range(200):
        body = (keyspace.body_key(power.PREFIX, number), bytes(rng.choice((1_000, 500_000, 2_500_000))))
        store.commit([Commit(0, epoch, number, [], [], [body])], sync=False)
        assert not store.torn(), "a closed log is not synced, and the next one is written"
    store.close()


class Strict(PowerCut):
    """A store that may begin a new log only when everything in the old one is synced."""

    def _flush(self, *, wait: bool) -> None:
        assert all(self._synced.get(name, 0) == size for name, size in self._sizes().items())
        super()._flush(wait=wait)


def test_a_backup_begins_a_new_log_only_when_everything_is_synced(tmp_path: Path) -> None:
    store = Strict(tmp_path / "data")
    store.shards(1)
    epoch = store.claim(0).epoch
    store.sync()
    over = threading.Event()

    def write() -> None:
        number = 0
        while not over.is_set():
            number += 1
            body = (keyspace.body_key(power.PREFIX, number), bytes(1_000))
            store.commit([Commit(0, epoch, number, [], [], [body])], sync=False)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(5):
            store.backup(str(tmp_path / f"backup {number}"))
    finally:
        over.set()
        writer.join()
    store.sync()
    store.close()
