"""The RocksDB store keeps every store's promises, and those of its own: files, failures, stalls."""

import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from rocksdict import WriteBatch

from forebay.core.bounds import SEGMENT_BYTES_MAX
from forebay.core.records import keyspace
from forebay.core.records.commit import Commit, Record
from forebay.core.records.keyspace import CONTROL
from forebay.store.base import CantOpen, Lost, Store, StoreError
from forebay.store.rocksdb import format as formats
from forebay.store.rocksdb.offline import looking_at, repair, restore
from forebay.store.rocksdb.opening import open_db
from forebay.store.rocksdb.store import RocksStore
from tests.store.conformance import HIGHEST, LOWEST, StoreConformance, StoreMachine, body_key, key

LARGE = bytes(SEGMENT_BYTES_MAX)


class Directories:
    """Stores in temporary directories, opened again where they were."""

    def make(self) -> Store:
        self.home = tempfile.TemporaryDirectory(prefix="forebay-store-")
        return RocksStore(Path(self.home.name) / "data")

    def reopen(self, store: Store) -> Store:
        store.shards(64)  # what has no number of shards yet is not whole
        store.close()
        return RocksStore(Path(self.home.name) / "data")

    def open_copy(self, directory: Path) -> Store:
        return RocksStore(directory)


class TestRocks(Directories, StoreConformance):
    @pytest.fixture(autouse=True)
    def _cleaned(self) -> Iterator[None]:
        yield
        self.home.cleanup()


class RocksMachine(Directories, StoreMachine):
    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "home"):
            self.home.cleanup()


TestRocksMachine = RocksMachine.TestCase
# Every restart opens the database again, which takes 30 ms.
TestRocksMachine.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)


class FaultyStore(RocksStore):
    """A store that reaches the disk only when it is allowed to."""

    def __init__(self, directory: Path, before_write: Callable[[int], None] = lambda number: None) -> None:
        self.writes = 0
        """Batches tried so far."""
        self.before_write = before_write
        """Asked before each batch, with its number; what it raises is raised in its place."""
        self.sync_error: Exception | None = None
        super().__init__(directory)

    def _write_batch(self, batch: WriteBatch) -> None:
        self.writes += 1
        self.before_write(self.writes)
        super()._write_batch(batch)

    def _sync_log(self) -> None:
        if self.sync_error is not None:
            raise self.sync_error
        super()._sync_log()

    def abandon(self) -> None:
        """Let go of the files as they are, as a process does that ends. More than once is no error."""
        self._close()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "data"


Open = Callable[[], FaultyStore]


@pytest.fixture
def opened(home: Path) -> Iterator[Open]:
    """Opens the directory; whatever the last one left open is abandoned first."""
    stores: list[FaultyStore] = []

    def again() -> FaultyStore:
        while stores:
            stores.pop().abandon()
        stores.append(FaultyStore(home))
        stores[-1].shards(8)
        return stores[-1]

    yield again
    for store in stores:
        store.abandon()


def commit(
    store: Store,
    epoch: int,
    puts: list[Record],
    bodies: list[Record] | None = None,
    deletes: list[bytes] | None = None,
) -> None:
    store.commit([Commit(0, epoch, 1, puts, deletes or [], bodies or [])])


def found(store: RocksStore) -> tuple[list[Record], list[bytes]]:
    """Every record and the key of every body."""
    return list(store.scan(LOWEST, HIGHEST)), sorted(store.body_keys())


# The directory.


def made(home: Path) -> None:
    """A directory that a store was in."""
    store = RocksStore(home)
    store.shards(8)
    commit(store, store.claim(0).epoch, [(key("a"), b"1")], [(body_key(1), b"one")])
    store.close()


def refusal(home: Path) -> str:
    with pytest.raises(CantOpen) as refused:
        RocksStore(home)
    return str(refused.value)


def test_a_directory_has_one_owner_at_a_time(home: Path) -> None:
    store = RocksStore(home)
    store.shards(8)
    assert refusal(home) == f"{home} is in use by another server; stop that one, or use another directory"
    commit(store, store.claim(0).epoch, [(key("a"), b"1")])
    store.close()
    RocksStore(home).close()


def written(home: Path, line: bytes) -> None:
    (home / formats.NAME).write_bytes(line + b"\n%08x\n" % zlib.crc32(line))


def left_as_it_is(home: Path) -> dict[Path, bytes]:
    """Every file of a directory, but RocksDB's log for people."""
    return {
        path: path.read_bytes()
        for path in home.glob("**/*")
        if path.is_file() and not path.name.startswith("LOG")
    }


@pytest.mark.parametrize("format", range(1, 7))
def test_a_directory_from_before_the_first_release_is_refused_and_left_as_it_is(
    home: Path, format: int
) -> None:
    made(home)
    written(home, b'{"shards":8,"restored":0,"skip":0,"format":%d}' % format)
    before = left_as_it_is(home)
    said = (
        f"{home} was written by a version of Forebay before its first release, which this one does not read:"
        " start with a new directory, or go on with the version that wrote it"
    )
    assert refusal(home) == said
    for work in (
        lambda: looking_at(home).__enter__(),
        lambda: restore(home, home.parent / "other", 0.5, lambda done, of: None),
        lambda: repair(home, 0.5),
    ):
        with pytest.raises(CantOpen) as refused:
            work()
        assert str(refused.value) == said
    assert left_as_it_is(home) == before
    assert not (home.parent / "other").exists()


def test_a_directory_in_a_newer_format_is_refused_and_left_as_it_is(home: Path) -> None:
    made(home)
    written(home, b'{"version":2,"shards":8,"colour":"red","format":1}')
    before = left_as_it_is(home)
    assert refusal(home) == (
        f"{home} is in format 2, and this version reads format 1:"
        " run the version of Forebay that wrote it, or a newer one"
    )
    assert left_as_it_is(home) == before


@pytest.mark.parametrize(
    "line",
    [
        b"{}",
        b'{"shards":8}',
        b'{"version":null,"shards":8}',
        b'{"version":"1","shards":8}',
        b'{"version":1}',
        b"[1]",
    ],
)
def test_a_directory_that_names_no_format_is_damaged(home: Path, line: bytes) -> None:
    made(home)
    written(home, line)
    assert refusal(home).startswith(f"{home / formats.NAME} is damaged: ")


def test_the_format_is_written_under_a_name_that_older_versions_do_not_use(home: Path) -> None:
    made(home)
    line = (home / formats.NAME).read_bytes().partition(b"\n")[0]
    assert line == b'{"shards":8,"restored":0,"skip":0,"version":1}'


def test_a_directory_whose_format_is_damaged_is_refused(home: Path) -> None:
    made(home)
    whole = (home / formats.NAME).read_bytes()
    for at in range(len(whole) - 1):
        (home / formats.NAME).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert "damaged" in refusal(home), at
    for length in range(len(whole) - 1):
        (home / formats.NAME).write_bytes(whole[:length])
        assert "damaged" in refusal(home), length
    (home / formats.NAME).write_bytes(whole)
    RocksStore(home).close()


def test_a_directory_whose_database_was_removed_is_refused_not_begun_anew(home: Path) -> None:
    made(home)
    shutil.rmtree(home / "db")
    assert "has lost its database" in refusal(home)
    assert not (home / "db" / "CURRENT").exists()


def test_a_directory_that_was_only_half_made_is_opened(home: Path) -> None:
    home.mkdir()
    for handle in reversed(open_db(home / "db", new=True)):
        handle.close()
    store = RocksStore(home)
    assert store.shards(16) == 16
    assert found(store) == ([], [])
    store.close()


def test_a_draft_of_the_format_counts_for_nothing(home: Path) -> None:
    made(home)
    (home / f"{formats.NAME}.new").write_bytes(b"half")
    store = RocksStore(home)
    assert store.shards(1) == 8
    store.close()


def test_a_place_that_can_not_be_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    assert f"{tmp_path / 'file'} can't be made" in refusal(tmp_path / "file")
    assert f"{tmp_path / 'file' / 'data'} can't be made" in refusal(tmp_path / "file" / "data")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_store_that_is_closed_leaves_everything_in_its_files(home: Path) -> None:
    made(home)
    for log in (home / "db").glob("*.log"):
        assert log.stat().st_size == 0
    store = RocksStore(home)
    assert found(store) == ([(key("a"), b"1")], [body_key(1)])
    store.close()


# Restored from a backup.


def test_a_restored_directory_is_claimed_past_every_epoch_it_may_have_had(home: Path) -> None:
    made(home)
    formats.write(home, formats.Format(8, restored=1, skip=70_000))
    store = RocksStore(home)
    first = store.claim(0)
    assert first.restored == 70_000
    assert first.epoch > 70_000
    again = store.claim(0)
    assert again.restored, "nothing was committed since"
    assert again.epoch > first.epoch
    commit(store, again.epoch, [(key("b"), b"2")])
    assert not store.claim(0).restored
    assert store.claim(1).restored
    store.close()


# Large commits that do not end.


def large(epoch: int) -> Commit:
    bodies = [(body_key(number), LARGE) for number in range(2, 5)]
    return Commit(0, epoch, 9, [(key("a"), b"2"), (key("b"), b"2")], [key("c"), body_key(1)], bodies)


LARGE_WRITES = 5
"""The intent, three bodies, the rest."""


@pytest.mark.parametrize("reopened", [True, False])
@pytest.mark.parametrize("number", range(1, LARGE_WRITES + 1))
def test_nothing_is_left_of_a_large_commit_whose_nth_write_failed(
    opened: Open, number: int, reopened: bool
) -> None:
    store = opened()
    before = [(key("a"), b"1"), (key("c"), b"1")]
    epoch = store.claim(0).epoch
    commit(store, epoch, before, [(body_key(1), b"1")])
    kept = store.writes

    def fail(at: int) -> None:
        if at == kept + number:
            raise OSError("no space left on device")

    store.before_write = fail
    with pytest.raises(StoreError, match="no space left"):
        store.commit([large(epoch)])
    if reopened:
        store = opened()
    claim = store.claim(0)
    assert claim.committed_at == 1
    assert found(store) == (before, [body_key(1)])
    store.commit([large(claim.epoch)])
    after = [(key("a"), b"2"), (key("b"), b"2")], [body_key(at) for at in range(2, 5)]
    assert found(store) == after
    assert found(opened()) == after


def test_a_large_commit_is_as_many_writes_as_the_tests_of_its_failure_say(opened: Open) -> None:
    store = opened()
    epoch = store.claim(0).epoch
    kept = store.writes
    store.commit([large(epoch)])
    assert store.writes == kept + LARGE_WRITES


def failing(number: int) -> Callable[[int], None]:
    """Fails at one write, by its number."""

    def fail(at: int) -> None:
        if at == number:
            raise OSError("gone")

    return fail


def test_undoing_what_is_left_of_a_large_commit_may_itself_be_cut_off(home: Path, opened: Open) -> None:
    store = opened()
    epoch = store.claim(0).epoch
    store.before_write = failing(store.writes + LARGE_WRITES)
    with pytest.raises(StoreError):
        store.commit([large(epoch)])
    assert found(store)[1] == [body_key(at) for at in range(2, 5)]
    store.abandon()
    half = FaultyStore.__new__(FaultyStore)
    with pytest.raises(StoreError):
        half.__init__(home, failing(1))  # type: ignore[misc]
    half.abandon()
    assert found(opened()) == ([], [])


# Stalls and failures.


@pytest.mark.parametrize("times", [1, 2, 7])
def test_a_write_that_is_turned_away_is_tried_again_with_all_that_is_in_it(opened: Open, times: int) -> None:
    store = opened()
    turned_away: list[int] = []

    def stall(_: int) -> None:
        if len(turned_away) % (times + 1) < times:
            turned_away.append(1)
            raise Exception("Result incomplete: Write stall")
        turned_away.append(0)

    store.before_write = stall
    epoch = store.claim(0).epoch
    commit(store, epoch, [(key("a"), b"1"), (key("b"), b"1")], [(body_key(1), b"1")])
    store.commit([large(epoch)])
    assert sum(turned_away) >= times * (LARGE_WRITES + 2)
    wanted = [(key("a"), b"2"), (key("b"), b"2")], [body_key(at) for at in range(2, 5)]
    assert found(store) == wanted
    assert found(opened()) == wanted


def test_after_a_sync_that_failed_this_process_writes_no_more(opened: Open) -> None:
    store = opened()
    store.shards(8)
    epoch = store.claim(0).epoch
    commit(store, epoch, [(key("a"), b"1")])
    store.sync_error = OSError("input/output error")
    with pytest.raises(Lost, match="input/output error"):
        commit(store, epoch, [(key("a"), b"2")])
    store.sync_error = None
    writes = store.writes
    for call in (
        lambda: commit(store, epoch, [(key("a"), b"3")]),
        lambda: store.commit([], sync=False),
        lambda: store.claim(0),
        lambda: store.claim(CONTROL),
        store.sync,
        lambda: store.backup(str(store._directory) + "-copy"),
    ):
        with pytest.raises(Lost, match="input/output error"):
            call()
    assert store.writes == writes
    store.close()


def test_a_sync_alone_that_failed_is_as_bad(opened: Open) -> None:
    store = opened()
    epoch = store.claim(0).epoch
    store.commit([Commit(0, epoch, 1, [(key("a"), b"1")], [], [])], sync=False)
    store.sync_error = OSError("input/output error")
    with pytest.raises(Lost):
        store.sync()
    store.sync_error = None
    with pytest.raises(Lost):
        store.claim(0)


def test_after_a_write_that_failed_the_next_claim_opens_the_store_again(opened: Open) -> None:
    store = opened()
    store.shards(8)
    epoch = store.claim(0).epoch
    commit(store, epoch, [(key("a"), b"1")], [(body_key(1), b"1")])

    def fail(_: int) -> None:
        raise OSError("no space left on device")

    store.before_write = fail
    with pytest.raises(StoreError, match="no space left"):
        commit(store, epoch, [(key("a"), b"2")])
    store.before_write = lambda number: None
    with pytest.raises(StoreError, match="opened again"):
        commit(store, epoch, [(key("a"), b"3")])
    assert found(store) == ([(key("a"), b"1")], [body_key(1)]), "it can be read meanwhile"
    claim = store.claim(0)
    assert claim.epoch > epoch
    commit(store, claim.epoch, [(key("a"), b"4")])
    assert found(store) == ([(key("a"), b"4")], [body_key(1)])
    assert found(opened()) == ([(key("a"), b"4")], [body_key(1)])


def test_a_store_that_could_not_be_opened_again_is_tried_at_the_next_claim(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened()
    epoch = store.claim(0).epoch
    commit(store, epoch, [(key("a"), b"1")])

    def fail(_: int) -> None:
        raise OSError("gone")

    store.before_write = fail
    with pytest.raises(StoreError):
        commit(store, epoch, [(key("a"), b"2")])
    store.before_write = lambda number: None

    def refuse(*_: object, **__: object) -> None:
        raise CantOpen("gone")

    with monkeypatch.context() as patched:
        patched.setattr("forebay.store.rocksdb.store.open_db", refuse)
        for _ in range(2):
            with pytest.raises(StoreError):
                store.claim(0)
    claim = store.claim(0)
    commit(store, claim.epoch, [(key("a"), b"3")])
    assert found(store) == ([(key("a"), b"3")], [])


# Keys, as the design has them worked out.


def test_the_key_of_a_queue_begins_with_its_tenant_and_its_number() -> None:
    prefix = keyspace.prefix(42, 7)
    assert prefix.hex(" ") == "00 00 00 2a 00 00 00 07"
    for name in (
        keyspace.queue_key(prefix),
        keyspace.cursor_key(prefix, 1, 2),
        keyspace.header_key(prefix, 1, 2),
        keyspace.scheduled_key(prefix, 1, 2, 3, 4),
        keyspace.body_key(prefix, 1),
    ):
        assert name.startswith(prefix)


@pytest.mark.parametrize(
    "named",
    [
        lambda number: keyspace.prefix(number, 1),
        lambda number: keyspace.prefix(1, number),
        lambda number: keyspace.queue_name_key(number, 1, "q"),
        lambda number: keyspace.queue_name_key(1, number, "q"),
        lambda number: keyspace.tenant_key(number, "t"),
        lambda number: keyspace.numbers_key(number),
        lambda number: keyspace.group_key(bytes(8), number),
        lambda number: keyspace.partition_key(bytes(8), number),
        lambda number: keyspace.header_key(bytes(8), 1, number),
        lambda number: keyspace.dead_key(bytes(8), 1, 1, number),
        lambda number: keyspace.scheduled_key(bytes(8), 1, 1, number, 1),
        lambda number: keyspace.lease_key(bytes(8), number),
        lambda number: keyspace.body_key(bytes(8), number),
    ],
)
def test_keys_have_one_width_and_sort_by_the_numbers_in_them(named: Callable[[int], bytes]) -> None:
    numbers = [0, 1, 2, 127, 128, 255, 256, 65_535, 65_536, (1 << 24) - 1, 1 << 24, (1 << 32) - 1]
    keys = [named(number) for number in numbers]
    assert keys == sorted(keys)
    assert len(set(keys)) == len(numbers)
    assert len(set(map(len, keys))) == 1


def test_scheduled_runs_lie_in_the_store_by_due_time(opened: Open) -> None:
    prefix = keyspace.prefix(42, 7)
    due = 1_699_999_999_999
    name = keyspace.scheduled_key(prefix, 1, 2, due, 5)
    assert name[:9] == prefix + b"v"
    assert name[17:25] == due.to_bytes(8, "big") == bytes.fromhex("0000018bcfe567ff")
    store = opened()
    times = [due, 1, due + 1, 255, 256, due - 1, 1 << 40]
    puts = [(keyspace.scheduled_key(prefix, 1, 2, at, 5), at.to_bytes(8, "big")) for at in times]
    commit(store, store.claim(0).epoch, puts)
    between = store.scan(*keyspace.queue_bounds(prefix))
    assert [int.from_bytes(value, "big") for _, value in between] == sorted(times)
