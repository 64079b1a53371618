"""Little room on the disk: what the store keeps back, what it puts off, and what it does as there is more."""

import threading
from pathlib import Path

import pytest

from forebay.core.records import keyspace
from forebay.core.records.commit import Commit
from forebay.store.base import CantOpen, Claim, Full
from forebay.store.rocksdb import space as spaces, store as stores
from forebay.store.rocksdb.space import RANGES_MAX, TIDY_REST_S_MAX, Deleted
from forebay.store.rocksdb.store import RocksStore
from tests.store.faults import Faulty, copy_open
from tests.store.test_faults import commit, numbers

MARK = 4 << 20
NO_SPACE = "IO error: No space left on device"
OPENING = "RESERVE_OPEN"


class Disk:
    """How much is free, as the store sees it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, free: int) -> None:
        self.free = free
        monkeypatch.setattr(spaces, "free_bytes", lambda _: self.free)


def begun_with_mark(data: Path) -> tuple[RocksStore, Claim]:
    store = RocksStore(data, MARK)
    store.shards(1)
    return store, store.claim(0)


def held(data: Path, name: str) -> bool:
    return (data / name).exists()


def deletion(claim_epoch: int, number: int) -> Commit:
    prefix = keyspace.prefix(1, number)
    key = keyspace.body_key(prefix, 1)
    return Commit(0, claim_epoch, number, [], [], [], body_ranges=[(key, key + b"\xff")])


def run_compactions(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Where compactions by hand begin, from now on."""
    began: list[bytes] = []
    real = spaces._compact

    def compact(family: object, lower: bytes, upper: bytes) -> None:
        began.append(lower)
        real(family, lower, upper)  # type: ignore[arg-type]

    monkeypatch.setattr(spaces, "_compact", compact)
    return began


# What is kept back.


def test_a_full_disk_gives_up_the_reserve_and_not_what_an_open_needs(tmp_path: Path) -> None:
    data = tmp_path / "data"
    store = Faulty(data, MARK)
    store.shards(1)
    claim = store.claim(0)
    store.full_in = 0
    with pytest.raises(Full):
        store.commit(commit(claim, 1))
    assert not held(data, "RESERVE")
    assert held(data, OPENING)
    store.full_in = None
    store.claim(0)
    assert held(data, OPENING)
    store.close()


def test_an_open_without_room_gives_up_first_what_is_kept_for_it_and_makes_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    store, claim = begun_with_mark(data)
    store.commit(commit(claim, 1))
    store._close()  # as kill -9 leaves it
    seen: list[tuple[bool, bool]] = []
    real = RocksStore._open

    def cramped(self: RocksStore) -> None:
        seen.append((held(data, OPENING), held(data, "RESERVE")))
        if seen[-1][0]:
            raise CantOpen(NO_SPACE)
        real(self)

    monkeypatch.setattr(RocksStore, "_open", cramped)
    again = RocksStore(data, MARK)
    assert seen[-1] == (False, True)
    assert held(data, OPENING)
    assert numbers(again) == [1]
    again.close()


def test_the_reserve_is_kept_again_only_with_clearly_more_room_than_the_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    store, _ = begun_with_mark(data)
    disk = Disk(monkeypatch, 0)
    assert store._space.give_up()
    enough = store._space.reserve.size + round(spaces.LEAVE_TIMES * MARK)
    disk.free = enough - 1
    store.room(0)
    assert not held(data, "RESERVE")
    disk.free = enough
    store.room(0)
    assert held(data, "RESERVE")
    store.close()


# A thrifty open.


def test_a_store_opened_without_room_writes_no_table_and_has_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    store, claim = begun_with_mark(data)
    for number in range(1, 4):
        store.commit(commit(claim, number))
    copy = tmp_path / "copy"
    copy_open(data, copy)
    store.close()
    before = {file.name for file in (copy / "db").glob("*.sst")}
    Disk(monkeypatch, 1 << 20)
    again = RocksStore(copy, MARK)
    assert {file.name for file in (copy / "db").glob("*.sst")} == before
    assert numbers(again) == [1, 2, 3]
    claimed = again.claim(0)
    again.commit(commit(claimed, 4))
    again._close()
    once_more = RocksStore(copy, MARK)
    assert numbers(once_more) == [1, 2, 3, 4]
    once_more.close()


def test_a_flush_may_borrow_what_is_kept_back_for_an_open_if_it_fits_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    store, _ = begun_with_mark(data)
    space = store._space
    Disk(monkeypatch, 0)
    with space.room_for(space.opening.size) as fits:
        assert not fits  # there must be more than that
        assert not held(data, "RESERVE")
        assert held(data, OPENING)
    with space.room_for(space.opening.size - 1) as fits:
        assert fits
        assert not held(data, OPENING)
    assert held(data, OPENING)
    store.close()


def test_with_little_room_the_log_is_flushed_while_that_still_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, claim = begun_with_mark(tmp_path / "data")
    disk = Disk(monkeypatch, MARK)
    store.room(0)
    disk.free = 3 * 200_000
    longest = 0
    for number in range(1, 41):
        store.commit(commit(claim, number, 20_000))
        longest = max(longest, store._unflushed)
    assert 200_000 < longest < 250_000
    store.close()


def test_the_database_is_opened_again_if_rocksdb_stopped_its_own_work_but_not_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, claim = begun_with_mark(tmp_path / "data")
    opened: list[bool] = []
    real = RocksStore._open

    def opens(self: RocksStore) -> None:
        opened.append(True)
        real(self)

    monkeypatch.setattr(RocksStore, "_open", opens)
    monkeypatch.setattr(stores, "has_failed", lambda _: True)
    store.commit(commit(claim, 1))
    store.room(0)
    store.commit(commit(claim, 2))  # the claim still holds
    store.room(TIDY_REST_S_MAX - 1)
    assert len(opened) == 1
    store.room(TIDY_REST_S_MAX)
    assert len(opened) == 2
    assert numbers(store) == [1, 2]
    store.close()


def test_bodies_are_read_when_a_database_that_is_opened_again_is_there(tmp_path: Path) -> None:
    store, claim = begun_with_mark(tmp_path / "data")
    (one,) = commit(claim, 1)
    store.commit([one])
    found: list[object] = []
    with store._writing:
        store._close()
        reading = threading.Thread(target=lambda: found.extend(store.bodies([one.bodies[0][0]])))
        reading.start()
        store._open()
    reading.join(30)
    assert found == [one.bodies[0][1]]
    store.close()


# What was deleted.


def test_the_ranges_of_deleted_bodies_are_bounded_and_cover_all() -> None:
    deleted = Deleted()
    keys = [b"%08d" % number for number in range(10 * RANGES_MAX)]
    for key in keys:
        deleted.add(key, key + b"\0")
        assert len(deleted) <= RANGES_MAX
    ranges = deleted.take()
    assert all(any(lower <= key < upper for lower, upper in ranges) for key in keys)
    assert not deleted


def low_store(data: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[RocksStore, int, Disk]:
    store, claim = begun_with_mark(data)
    disk = Disk(monkeypatch, 2 * MARK)
    store.room(-1_000)
    return store, claim.epoch, disk


def test_deleted_bodies_are_dropped_at_once_and_then_not_before_a_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, epoch, _ = low_store(tmp_path / "data", monkeypatch)
    began = run_compactions(monkeypatch)
    now = 0.0
    for number in range(1, 101):
        store.commit([deletion(epoch, number)])
        store.room(now)
        now += 0.05
    assert len(began) == 1
    store.room(now + TIDY_REST_S_MAX)
    assert len(began) > 1
    assert len(store._deleted) == 0
    store.close()


def test_ranges_whose_compaction_or_flush_fails_are_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, epoch, _ = low_store(tmp_path / "data", monkeypatch)
    store.commit([deletion(epoch, 1)])

    def fail(*_: object) -> None:
        raise RuntimeError(NO_SPACE)

    with monkeypatch.context() as patched:
        patched.setattr(spaces, "_compact", fail)
        store.room(0)
    assert len(store._deleted) == 1
    with monkeypatch.context() as patched:
        patched.setattr(store, "_flush", lambda **_: store._fail(NO_SPACE))
        store.room(1_000)
    assert len(store._deleted) == 1
    store.commit([deletion(epoch, 2)])  # is not refused for a flush that nobody asked for
    began = run_compactions(monkeypatch)
    store.room(2_000)
    assert began
    store.close()


def test_below_the_mark_nothing_is_compacted_by_itself_and_with_room_again_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _, disk = low_store(tmp_path / "data", monkeypatch)
    told: dict[str, str] = {}
    monkeypatch.setattr(spaces, "_set", lambda _, **options: told.update(options))
    disk.free = MARK - 1
    store.room(0)
    assert told["disable_auto_compactions"] == "true"
    disk.free = round(1.6 * MARK)  # clearly more is wanted
    store.room(100)
    assert told["disable_auto_compactions"] == "true"
    disk.free = 10 * MARK
    store.room(200)
    assert told["disable_auto_compactions"] == "false"
    assert told["enable_blob_garbage_collection"] == "true"
    store.close()


def test_a_reload_waits_until_no_room_is_made_in_another_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, epoch, _ = low_store(tmp_path / "data", monkeypatch)
    store.commit([deletion(epoch, 1)])
    inside, leave, order = threading.Event(), threading.Event(), list[str]()

    def compact(*_: object) -> None:
        inside.set()
        assert leave.wait(30)
        order.append("compacted")

    monkeypatch.setattr(spaces, "_compact", compact)
    tidying = threading.Thread(target=store.room, args=(0,))
    tidying.start()
    assert inside.wait(30)

    def reload() -> None:
        store._failed = True
        store.claim(0)
        order.append("reloaded")

    reloading = threading.Thread(target=reload)
    reloading.start()
    leave.set()
    tidying.join(30)
    reloading.join(30)
    assert order == ["compacted", "reloaded"]
    store.close()
