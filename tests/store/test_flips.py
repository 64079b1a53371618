"""A flipped bit is told, or harmless: no silent loss, no other bytes, no hang and no crash."""

from pathlib import Path

import pytest

from forebay.core.records import keyspace
from forebay.core.records.commit import Commit
from forebay.store.base import StoreError
from forebay.store.rocksdb.store import RocksStore
from tests.store import faults, flips
from tests.store.flips import GOOD, Flip

SEED = 1
PREFIX = keyspace.prefix(1, 1)


def test_a_hundred_flipped_bits_are_told_or_harmless() -> None:
    outcomes = flips.run(100, SEED)
    assert len(outcomes) == 100
    bad = [(flip, outcome) for flip, outcome in outcomes if outcome.kind not in GOOD]
    assert not bad, bad
    kinds = {outcome.kind for _, outcome in outcomes}
    assert kinds == set(GOOD), "each of the good ends is met"


def test_a_flipped_bit_in_a_body_costs_that_body_alone() -> None:
    with flips.built() as home:
        blob = sorted((home / "db").glob("*.blob"))[0]
        chosen = [Flip(f"db/{blob.name}", blob.stat().st_size * part // 10, 3) for part in range(1, 9)]
        for flip, outcome in flips.try_all(home, chosen):
            assert outcome.kind == "damaged", (flip, outcome)
            assert outcome.text.startswith("body of "), (flip, outcome)
            assert ";" not in outcome.text, (flip, outcome)


def test_a_flipped_length_in_the_log_is_not_taken_for_its_end() -> None:
    _told("*.log", slice(-3, -1), 1, 7)


def test_a_flipped_length_in_the_manifest_is_not_taken_for_its_end() -> None:
    _told("MANIFEST-*", slice(6, 9), 1, 7)


def test_a_flipped_type_in_the_log_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "CHILD_S", 4.0)
    _told("*.log", slice(-2, -1), 2, 2)


def _told(pattern: str, records: slice, byte: int, bit: int) -> None:
    """Flip a bit of the length, or of the type that follows it, in some records of a file."""
    with flips.built() as home:
        (file,) = (home / "db").glob(pattern)
        lengths = sorted(flips.spans(file))[::3]
        chosen = [Flip(f"db/{file.name}", length + byte, bit) for length in lengths[records]]
        bad = [each for each in flips.try_all(home, chosen) if each[1].kind not in GOOD]
        assert not bad, bad


@pytest.mark.parametrize("pattern", ["*.sst", "*.blob"])
def test_a_damaged_file_that_rocksdb_would_rewrite_stops_nobody_for_long(
    tmp_path: Path, pattern: str
) -> None:
    """RocksDB takes no more writes once a compaction has met damage; opened again, it compacts no more."""
    store = RocksStore(tmp_path)
    store.shards(1)
    epoch = store.claim(0).epoch
    for number in range(3):
        _some(store, epoch, number)
    store.close()
    file = sorted((tmp_path / "db").glob(pattern))[0]
    content = bytearray(file.read_bytes())
    content[len(content) // 3] ^= 1
    file.write_bytes(content)
    store = RocksStore(tmp_path)
    epoch, failures = store.claim(0).epoch, 0
    for number in range(12):
        try:
            _some(store, epoch, number)
        except StoreError:
            failures += 1
            epoch = store.claim(0).epoch
    assert failures <= 1
    last = keyspace.body_key(PREFIX, 11_000)
    assert store.bodies([last]) == [bytes(500)]
    store.close()


def _some(store: RocksStore, epoch: int, number: int) -> None:
    """Commits of keys that are overwritten again and again, in a file of their own."""
    for at in range(200):
        puts = [(PREFIX + b"c%d%06d" % (number % 2, at), bytes(50))]
        bodies = [(keyspace.body_key(PREFIX, number * 1_000 + at), bytes(500))]
        store.commit([Commit(0, epoch, 1, puts, [], bodies)], sync=False)
    store._flush(wait=True)
