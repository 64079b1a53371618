"""The embedded store: RocksDB in a directory, nothing else to install.

Records and bodies live in two column families that share one write-ahead log. Bodies go to blob files, so
compaction never moves them. What the store keeps for itself has keys no tenant has:

    0xff * 8, E, shard + 1 u32    epoch, time of the last commit, restores seen
    0xff * 8, I, number u64       intent: names the bodies of a large commit that is being written

A commit is written without a sync, which holds the GIL and therefore stays small, and then the log is synced,
which releases it. A commit above ``BATCH_BYTES`` writes an intent, its bodies one by one, and last the batch
that holds everything else and deletes the intent. All of it goes to one log in order: what a crash cuts off
is the end, and an intent that is still there at the next open names bodies that nobody knows.

Two traps of rocksdict 0.3.29, both found by running it: ``write`` uses a batch up even if it fails, so what
is tried again needs a new one; and ``set_iterate_lower_bound`` sets the upper bound.
"""

import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import msgpack
from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    ColumnFamily,
    DbClosedError,
    DBRecoveryMode,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from penstock.core.errors import Damaged
from penstock.core.limits import SEGMENT_BYTES_MAX
from penstock.core.records import Commit, Record, is_body
from penstock.store import format as formats
from penstock.store.base import CantOpen, Claim, Fenced, Lost, StoreError
from penstock.store.format import Format

BATCH_BYTES = SEGMENT_BYTES_MAX
"""Bytes of bodies that are written in one batch: 1 ms with the GIL held."""
MEMTABLE_BYTES = 64 * 1024 * 1024
WAL_BYTES = 512 * 1024 * 1024
CACHE_BYTES = 32 * 1024 * 1024
STALL_WAIT_S = 0.002
STALL_WAITS = 30_000
"""How often a write that RocksDB turns away is tried again: for a minute."""
RESTORED_EPOCHS = 1 << 16
"""Epochs passed over after a restore: more than a shard has between two backups."""

IN_USE = "is in use by another server; stop that one"
OWN = b"\xff" * 8
BODIES = "bodies"
_EPOCH = struct.Struct(">8scI")
_INTENT = struct.Struct(">8scQ")
_unpack_epoch = msgpack.Decoder(tuple[int, int, int]).decode
_unpack_intent = msgpack.Decoder(list[bytes]).decode

Fill = Callable[[WriteBatch], None]


class RocksReader:
    """Reads a database that is open."""

    def __init__(self, db: Rdict, bodies: Rdict) -> None:
        self._db = db
        self._bodies = bodies

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [None if is_body(key) else _read(self._db, key) for key in keys]

    def scan(self, lower: bytes, upper: bytes) -> Iterable[Record]:
        return scan(self._db, lower, upper)

    def bodies(self, keys: Sequence[bytes]) -> list[bytes | Damaged | None]:
        found: list[bytes | Damaged | None] = []
        for key in keys:
            try:
                found.append(_read(self._bodies, key))
            except Damaged as error:
                found.append(error)
        return found

    def body_keys(self) -> Iterator[bytes]:
        """Every body there is, by key."""
        try:
            yield from self._bodies.keys()
        except Exception as error:
            raise _explained(error) from None

    def close(self) -> None:
        with suppress(DbClosedError):
            self._bodies.close()
            self._db.close()


class RocksStore(RocksReader):
    """Records and bodies in a directory that this process alone has open."""

    durability = "fsync"
    blocking = True

    def __init__(self, directory: Path) -> None:
        """Open the directory, or make it. ``CantOpen`` says why it can't be."""
        self.name = f"rocksdb:{directory}"
        self._directory = directory
        self._body_family: ColumnFamily | None = None
        self._epochs: dict[int, int] = {}
        self._lost: str | None = None
        """Why this process must not write any more."""
        self._failed = False
        """A write failed: RocksDB takes no more until it is opened again."""
        self._intents = 0
        self._patience = threading.Event()
        """Never set; waiting for it is how the committer's thread waits."""
        self._write_options = WriteOptions()
        self._write_options.no_slowdown = True
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CantOpen(f"{directory} can't be made: {error.strerror}") from None
        self._format = formats.read(directory)
        self._open()
        self._undo_intents()

    # Opening and closing.

    def _open(self) -> None:
        super().__init__(*open_db(self._directory / "db", new=self._format is None))
        self._body_family = self._db.get_column_family_handle(BODIES)
        self._failed = False
        found = scan(self._db, OWN + b"E", OWN + b"F")
        self._epochs = {_EPOCH.unpack(key)[2] - 1: _unpack_epoch(value)[0] for key, value in found}

    def _undo_intents(self) -> None:
        """Delete the bodies of large commits that were never finished."""
        for key, value in scan(self._db, OWN + b"I", OWN + b"J"):
            for body in _unpack_intent(value):
                self._write(_deleting(body, self._body_family))
            self._write(_deleting(key))
            self._intents = _INTENT.unpack(key)[2]

    def close(self) -> None:
        """Let go of everything. Memory goes to files first, so that the next open has no log to read."""
        if self._lost is None and not self._failed:
            self._bodies.flush(True)
            self._db.flush(True)
        self._close()

    def _close(self) -> None:
        self._body_family = None  # a handle that lives on would keep the database open
        super().close()

    def _reopen(self) -> None:
        """After a write failed RocksDB takes no more; what it holds is read again from the files."""
        self._close()
        self._open()
        self._undo_intents()

    # Claims.

    def shards(self, wanted: int) -> int:
        if self._format is None:
            self._format = Format(wanted)
            formats.write(self._directory, self._format)
        return self._format.shards

    def claim(self, shard: int) -> Claim:
        self._check_not_lost()
        if self._failed:
            self._reopen()
        key = _epoch_key(shard)
        found = _read(self._db, key)
        epoch, committed_at, seen = _unpack_epoch(found) if found is not None else (0, 0, 0)
        restored = seen < self._restored
        epoch += RESTORED_EPOCHS if restored else 1
        self._write(_putting(key, msgpack.encode((epoch, committed_at, seen))))
        self._epochs[shard] = epoch
        return Claim(epoch, committed_at, restored)

    @property
    def _restored(self) -> int:
        return self._format.restored if self._format is not None else 0

    # Committing.

    def commit(self, group: Sequence[Commit], *, sync: bool = True) -> None:
        self._check_not_lost()
        for commit in group:
            if self._epochs.get(commit.shard) != commit.epoch:
                raise Fenced(f"shard {commit.shard} was claimed again")
        bodies = [body for commit in group for body in commit.bodies]
        if sum(len(value) for _, value in bodies) > BATCH_BYTES:
            self._commit_large(group, bodies)
        elif group:
            self._write(lambda batch: self._fill(batch, group, bodies))
        if sync:
            self.sync()

    def _commit_large(self, group: Sequence[Commit], bodies: list[Record]) -> None:
        self._intents += 1
        intent = _INTENT.pack(OWN, b"I", self._intents)
        self._write(_putting(intent, msgpack.encode([key for key, _ in bodies])))
        for key, value in bodies:
            self._write(_putting(key, value, self._body_family))

        def rest(batch: WriteBatch) -> None:
            self._fill(batch, group, [])
            batch.delete(intent)

        self._write(rest)

    def _fill(self, batch: WriteBatch, group: Sequence[Commit], bodies: list[Record]) -> None:
        family = self._body_family
        for commit in group:
            for key, value in commit.puts:
                batch.put(key, value)
            batch.put(_epoch_key(commit.shard), msgpack.encode((commit.epoch, commit.at, self._restored)))
        for key, value in bodies:
            batch.put(key, value, family)
        for commit in group:
            for key in commit.deletes:
                if is_body(key):
                    batch.delete(key, family)
                else:
                    batch.delete(key)
            for lower, upper in commit.ranges:
                batch.delete_range(lower, upper)

    def sync(self) -> None:
        self._check_not_lost()
        try:
            self._sync_log()
        except Exception as error:
            self._lost = f"the disk failed to sync: {error}"
            raise Lost(self._lost) from None

    def _check_not_lost(self) -> None:
        if self._lost is not None:
            raise Lost(self._lost)

    def _write(self, fill: Fill) -> None:
        """Write a batch; while RocksDB is behind with its files, wait and try again."""
        if self._failed:
            raise StoreError("a write failed before; the store has to be opened again")
        for _ in range(STALL_WAITS):
            batch = WriteBatch(raw_mode=True)
            fill(batch)
            try:
                self._write_batch(batch)
                return
            except Exception as error:
                if not str(error).startswith("Result incomplete"):
                    self._failed = True
                    raise StoreError(str(error)) from None
            self._patience.wait(STALL_WAIT_S)
        raise StoreError("RocksDB is behind with its files for a minute: the disk is too slow")

    # The two calls that reach the disk; tests put faults in their place.

    def _write_batch(self, batch: WriteBatch) -> None:
        self._db.write(batch, self._write_options)

    def _sync_log(self) -> None:
        self._db.flush_wal(True)

    # Backups.

    def backup(self, directory: str) -> None:
        """A copy of the files as they are, mostly by linking them: it takes no time and at first no room."""
        self._check_not_lost()
        assert self._format is not None, "a store that is served has a format"
        target = Path(directory)
        draft = target.with_name(target.name + ".part")
        if target.exists() or draft.exists():
            raise StoreError(f"{target if target.exists() else draft} exists; name a directory that does not")
        try:
            draft.mkdir(parents=True)
            # A checkpoint holds the GIL (72 ms when it had a memtable to flush); these two do not.
            self._bodies.flush(True)
            self._db.flush(True)
            Checkpoint(self._db).create_checkpoint(str(draft / "db"))
            formats.write(draft, self._format)
            draft.rename(target)
            formats.sync_directory(target.parent)
        except OSError as error:
            raise StoreError(f"{directory} can't be written: {error.strerror}") from None
        except Exception as error:
            raise StoreError(f"{directory} can't be written: {error}") from None


REFUSE_DAMAGE = DBRecoveryMode.tolerate_corrupted_tail_records()
"""A record that is cut off at the end of the log was never confirmed; all else that is wrong is damage."""
DROP_AFTER_DAMAGE = DBRecoveryMode.point_in_time()
"""RocksDB's default: opens a damaged log in silence, with what comes before the damage."""


def open_db(
    path: Path,
    *,
    new: bool = False,
    read_only: bool = False,
    recovery: DBRecoveryMode = REFUSE_DAMAGE,
) -> tuple[Rdict, Rdict]:
    """The database, and its bodies; ``CantOpen`` says why not."""
    access = AccessType.read_only(False) if read_only else AccessType.read_write()
    try:
        options = _options(new)
        options.set_wal_recovery_mode(recovery)
        db = Rdict(str(path), options, {BODIES: _body_options()}, access)
        return db, db.get_column_family(BODIES)
    except Exception as error:
        raise CantOpen(_why(path, str(error))) from None


def _why(path: Path, said: str) -> str:
    where = path.parent
    if "/LOCK" in said or "lock hold" in said:
        return f"{where} {IN_USE}, or use another directory"
    if said.startswith("Corruption"):
        return (
            f"{where} is damaged and was left as it is: {said}. Nothing was dropped. "
            f"Restore a backup; or, to go on without what came after the damage, penstock repair"
        )
    if "does not exist" in said:
        return f"{where} has lost its database: {said}. Restore a backup"
    return f"{where} can't be opened: {said}"


def _options(new: bool) -> Options:
    options = _family_options(16 * 1024 * 1024)
    options.create_if_missing(new)
    options.create_missing_column_families(new)
    options.set_max_total_wal_size(WAL_BYTES)
    options.set_max_background_jobs(4)
    options.set_bytes_per_sync(1024 * 1024)
    options.set_keep_log_file_num(4)
    options.set_max_log_file_size(4 * 1024 * 1024)
    options.set_stats_dump_period_sec(0)
    return options


def _body_options() -> Options:
    options = _family_options(MEMTABLE_BYTES)
    options.set_enable_blob_files(True)
    options.set_min_blob_size(0)
    options.set_blob_file_size(256 * 1024 * 1024)
    options.set_enable_blob_gc(True)
    return options


def _family_options(memtable_bytes: int) -> Options:
    options = Options(raw_mode=True)
    options.set_write_buffer_size(memtable_bytes)
    options.set_max_write_buffer_number(3)
    # Only full stops, no slowing down: a slowed write is turned away all the same.
    options.set_level_zero_slowdown_writes_trigger(64)
    options.set_level_zero_stop_writes_trigger(64)
    table = BlockBasedOptions()
    table.set_block_cache(_CACHE)
    options.set_block_based_table_factory(table)
    return options


_CACHE = Cache(CACHE_BYTES)


def scan(db: Rdict, lower: bytes, upper: bytes) -> Iterator[Record]:
    """Records between two bounds: every scan has both."""
    options = ReadOptions()
    options.set_iterate_upper_bound(upper)
    try:
        if lower < upper:
            yield from db.items(from_key=lower, read_opt=options)
    except Exception as error:
        raise _explained(error) from None


def _read(db: Rdict, key: bytes) -> bytes | None:
    try:
        value: bytes | None = db.get(key)
    except Exception as error:
        raise _explained(error) from None
    return value


def _explained(error: Exception) -> Exception:
    said = str(error)
    return Damaged(said) if said.startswith("Corruption") else StoreError(said)


def _epoch_key(shard: int) -> bytes:
    return _EPOCH.pack(OWN, b"E", shard + 1)


def _putting(key: bytes, value: bytes, family: ColumnFamily | None = None) -> Fill:
    return lambda batch: batch.put(key, value, family)


def _deleting(key: bytes, family: ColumnFamily | None = None) -> Fill:
    return lambda batch: batch.delete(key, family)
