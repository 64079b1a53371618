"""The embedded store: RocksDB in a directory, nothing else to install.

Records and bodies live in two column families that share one write-ahead log (WAL). Bodies go to blob files,
so compaction seldom moves them. The store's own records have keys that no tenant has:

    0xff * 8, E, shard + 1 u32    epoch, time of the last commit, restores seen
    0xff * 8, I, number u64       intent: the names of the bodies of a large commit in progress

A commit is a write without fsync, which holds the GIL and therefore stays small, followed by an fsync of the
WAL, which releases it. A commit above ``BATCH_BYTES`` writes an intent, then its bodies one by one, then a
batch with all its records that also deletes the intent. The WAL keeps this order, and a crash cuts off only
its end. So an intent found when the store is opened names bodies without a commit, and they are deleted.

Traps of rocksdict 0.3.29, found by running it: ``write`` uses up its batch even if it fails, so a retry needs
a new one; ``items`` ends at a damaged block as if it were the last; ``close`` fails on a full disk;
``set_iterate_lower_bound`` sets the upper bound.
"""

import gc
import logging
import shutil
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

from msgspec import msgpack
from rocksdict import (
    Checkpoint,
    ColumnFamily,
    DbClosedError,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from forebay.core.bounds import SEGMENT_BYTES_MAX
from forebay.core.errors import Damaged
from forebay.core.records.commit import Commit, Record
from forebay.core.records.keyspace import is_body
from forebay.store.base import SHARDS_EMBEDDED, Broken, CantOpen, Claim, Fenced, Full, Lost, Room, StoreError
from forebay.store.rocksdb import format as formats
from forebay.store.rocksdb.format import Format
from forebay.store.rocksdb.opening import BODIES, open_db
from forebay.store.rocksdb.options import NEVER_BYTES
from forebay.store.rocksdb.space import Deleted, Space, has_failed, is_full

logger = logging.getLogger("forebay.store")

BATCH_BYTES = SEGMENT_BYTES_MAX
"""Most bytes of bodies in one batch: 1 ms with the GIL held."""
MEMTABLE_BYTES = 64 * 1024 * 1024
"""Bytes written before the memtables are flushed and a new WAL begins."""
FLUSH_BYTES_MIN = 256 * 1024
"""The same on the smallest disk."""
LOG_TIMES = 4
"""How many times as much may be in all logs before RocksDB flushes by itself, see ``_flush``."""
STALL_WAIT_S = 0.002
STALL_WAITS = 30_000
"""Retries of a write while RocksDB stalls: a minute in all."""
WRITER_FAILED = "Writer has previous error"
"""In the error of a sync of a log that RocksDB writes no more to, since a write to it failed."""

UNFLUSHED = "rocksdb.num-immutable-mem-table"
"""Property: how many memtables wait for their flush, or are being flushed."""
OWN = b"\xff" * 8
_EPOCH = struct.Struct(">8scI")
_INTENT = struct.Struct(">8scQ")
_unpack_epoch = msgpack.Decoder(tuple[int, int, int]).decode
_unpack_intent = msgpack.Decoder(list[bytes]).decode

Fill = Callable[[WriteBatch], None]


class RocksReader:
    """Reads from an open database."""

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
            except (Damaged, StoreError) as error:  # a missing or unreadable file is damage too
                found.append(Damaged(str(error)))
        return found

    def body_keys(self) -> Iterator[bytes]:
        """Yield the keys of all bodies. Ends at a damaged one."""
        yield from self._bodies.keys()

    def last_claims(self, format: Format) -> dict[int, Claim]:
        """Return the last claim of each shard, as a store of this format counts restores."""
        found: dict[int, Claim] = {}
        for key, value in scan(self._db, OWN + b"E", OWN + b"F"):
            epoch, committed_at, seen = _unpack_epoch(value)
            passed = format.skip if seen < format.restored else 0
            found[_EPOCH.unpack(key)[2] - 1] = Claim(epoch, committed_at, passed)
        return found

    def close(self) -> None:
        for each in (self._bodies, self._db):
            try:
                each.close()
            except DbClosedError:
                pass
            except Exception as error:  # it flushes its memtables, which fails on a full disk
                logger.warning("closing: %s", error)


class RocksStore(RocksReader):
    """Records and bodies in a directory that only this process has open."""

    durability = "fsync"
    blocking = True
    far = False
    shards_default = SHARDS_EMBEDDED

    def __init__(self, directory: Path, free_min_bytes: int = 0) -> None:
        """Open or create the directory. Raise CantOpen with the reason.

        Below ``free_min_bytes`` of free disk space nothing grows: half as much is kept back in a file.
        """
        self.name = f"rocksdb:{directory}"
        self._directory = directory
        self._body_family: ColumnFamily | None = None
        self._epochs: dict[int, int] = {}
        self._lost: str | None = None
        """Why this process must never write again; set when an fsync failed."""
        self._failed = False
        """A write failed: RocksDB takes no more until it is reopened."""
        self._is_full = False
        """Whether that was for lack of room."""
        self._compacts = True
        """Whether RocksDB compacts. Off once it met a damaged file: a failed compaction stops all writes."""
        self._intents = 0
        self._writing = threading.RLock()
        """Held while a commit is written and synced; and while another thread begins a new WAL, for a backup
        or to make room, or opens the database again."""
        self._tidying = threading.Lock()
        """Held while room is made, in another thread, and while the store is opened again. Comes first."""
        self._patience = threading.Event()
        """Never set: the commit thread sleeps on it between retries."""
        self._write_options = WriteOptions()
        # A stalled write fails at once instead of sleeping inside RocksDB, where it would hold the GIL.
        self._write_options.no_slowdown = True
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CantOpen(f"{directory} can't be made: {error.strerror}") from None
        self._space = Space(directory, free_min_bytes)
        # On a full disk memory is flushed into what the reserve gives free.
        reserve = self._space.reserve.size
        kept = max(reserve // 2, FLUSH_BYTES_MIN) if reserve else MEMTABLE_BYTES
        self._flush_bytes = min(MEMTABLE_BYTES, kept)
        self._log_bytes = LOG_TIMES * self._flush_bytes if reserve else NEVER_BYTES
        self._thrifty = False
        """Whether the database was opened with next to no room."""
        self._deleted = Deleted()
        self._format = formats.read(directory)
        try:
            self._open_with_reserve()
            if self._format is None and self._epochs:
                self._close()
                raise CantOpen(
                    f"{directory} has lost its file {formats.NAME}. Restore a backup; or, if it is a copy"
                    " that was not finished, remove it and copy again"
                )
            self._undo_intents()
        except Damaged as error:
            self._close()
            raise Broken(f"{directory} is damaged: {error.message}. Restore a backup") from None

    # Opening and closing.

    def _open_with_reserve(self) -> None:
        self._thrifty = self._space.is_short(self._unread()) or (self._is_full and self._space.is_watched)
        while True:
            try:
                self._open()
                break
            except CantOpen as error:
                if not is_full(str(error)) or (self._thrifty and not self._space.give_up_for_open()):
                    raise
                self._thrifty = True
        if self._thrifty:
            self._deleted.add_all()  # what was deleted before is not known any more
        self._space.opened(thrifty=self._thrifty)
        if not self._space.is_watched:  # nobody will ask for the room
            self._space.adapt(self._db, self._bodies, self._compacts)

    def _open(self) -> None:
        unread = self._unread()
        opened = open_db(
            self._directory / "db",
            new=self._format is None,
            compacts=self._compacts,
            log_bytes=self._log_bytes,
            thrifty=self._thrifty,
        )
        super().__init__(*opened)
        if unread:  # said only now: before, it may be the log of a server that runs
            logger.info("not closed cleanly: %d bytes of log were read again", unread)
        self._body_family = self._db.get_column_family_handle(BODIES)
        self._failed = self._is_full = False
        self._unflushed = unread if self._thrifty else 0
        self._flushing = 0
        """Bytes of older logs, whose flush may not be done yet."""
        found = scan(self._db, OWN + b"E", OWN + b"F")
        self._epochs = {_EPOCH.unpack(key)[2] - 1: _unpack_epoch(value)[0] for key, value in found}

    def _unread(self) -> int:
        return sum(log.stat().st_size for log in (self._directory / "db").glob("*.log"))

    def _undo_intents(self) -> None:
        """Delete the bodies of large commits that a crash cut off."""
        for key, value in scan(self._db, OWN + b"I", OWN + b"J"):
            self._write(partial(self._undo, key, _unpack_intent(value)))
            self._intents = _INTENT.unpack(key)[2]

    def _undo(self, intent: bytes, bodies: list[bytes], batch: WriteBatch) -> None:
        for body in bodies:
            batch.delete(body, self._body_family)
        batch.delete(intent)

    def close(self) -> None:
        """Flush and close. After a flush the next open has no WAL to replay."""
        if self._lost is None and not self._failed:
            try:
                self._flush(wait=True)
            except StoreError as error:  # everything is in the WAL: the next open takes longer
                logger.error("memory could not be written to files: %s", error)
        self._close()

    def _close(self) -> None:
        self._body_family = None  # a live handle would keep the database open
        super().close()

    def _reopen(self) -> None:
        """Reopen after a failed write: RocksDB takes no more until it has replayed its WAL."""
        # A compaction that runs would keep the database open. It is cut short: its files go with the next
        # open.
        with suppress(DbClosedError):
            self._db.cancel_all_background(False)
        with self._tidying, self._writing:
            self._reopen_alone()

    def _reopen_alone(self) -> None:
        self._failed = True  # until it is open again
        self._close()
        gc.collect()  # frames of an exception may hold a handle, which keeps the database open
        self._open_with_reserve()
        self._undo_intents()

    # Reading.

    def bodies(self, keys: Sequence[bytes]) -> list[bytes | Damaged | None]:
        try:
            return super().bodies(keys)
        except DbClosedError:  # it is being opened again, by another thread
            with self._writing:
                return super().bodies(keys)

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
        restored = self._format.skip if self._format is not None and seen < self._format.restored else 0
        # Not fsynced here: ``load`` calls ``sync`` once for all shards, before a name of the new epoch is
        # issued.
        epoch += 1 + restored
        self._write(partial(_put, key, msgpack.encode((epoch, committed_at, seen))))
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
        with self._writing:  # all of it: what is written to nothing but an intent is undone by an open
            if sum(len(value) for _, value in bodies) > BATCH_BYTES:
                self._commit_large(group, bodies)
            elif group:
                self._write(lambda batch: self._fill(batch, group, bodies))
            if sync:
                self.sync()

    def _commit_large(self, group: Sequence[Commit], bodies: list[Record]) -> None:
        self._intents += 1
        intent = _INTENT.pack(OWN, b"I", self._intents)
        self._write(partial(_put, intent, msgpack.encode([key for key, _ in bodies])))
        for key, value in bodies:
            self._write(partial(self._put_body, key, value))

        def rest(batch: WriteBatch) -> None:
            # The atomic switch: until this batch is in the WAL, the intent undoes the commit at the next
            # open.
            self._fill(batch, group, [])
            batch.delete(intent)

        self._write(rest)

    def _put_body(self, key: bytes, value: bytes, batch: WriteBatch) -> None:
        batch.put(key, value, self._body_family)

    def _fill(self, batch: WriteBatch, group: Sequence[Commit], bodies: list[Record]) -> None:
        family = self._body_family
        for commit in group:
            # Clears come before puts, and puts before deletes: a commit may put again what it clears.
            for lower, upper in commit.clears:
                batch.delete_range(lower, upper)
            for key, value in commit.puts:
                batch.put(key, value)
            batch.put(_epoch_key(commit.shard), msgpack.encode((commit.epoch, commit.at, self._restored)))
        for key, value in bodies:
            batch.put(key, value, family)
        for commit in group:
            for key in commit.deletes:
                if is_body(key):
                    batch.delete(key, family)
                    self._deleted.add(key, key + b"\0")
                else:
                    batch.delete(key)
            for lower, upper in commit.ranges:
                batch.delete_range(lower, upper)
            for lower, upper in commit.body_ranges:
                batch.delete_range(lower, upper, family)
                self._deleted.add(lower, upper)

    def sync(self) -> None:
        with self._writing:
            self._sync_alone()

    def _sync_alone(self) -> None:
        self._check_not_lost()
        if self._failed:
            self._refuse()
        try:
            self._sync_log()
        except Exception as error:
            if WRITER_FAILED in str(error):  # the disk was not asked: a write failed before, and was told
                self._fail(str(error))
            # After a failed fsync the kernel may drop the dirty pages and report success the next time. A
            # retry proves nothing, so this process never writes again.
            self._lost = f"the disk failed to sync: {error}"
            raise Lost(self._lost) from None

    def _check_not_lost(self) -> None:
        if self._lost is not None:
            raise Lost(self._lost)

    def _write(self, fill: Fill) -> None:
        """Write a batch, retrying while RocksDB stalls."""
        with self._writing:
            self._write_alone(fill)

    def _write_alone(self, fill: Fill) -> None:
        if self._failed:
            self._refuse()
        is_long = self._unflushed > self._flush_bytes or self._flushing + self._unflushed > self._log_bytes
        if is_long and not self._space.is_thrifty:
            self._begin_log()
        elif is_long or self._space.is_tight(self._unflushed):
            with self._space.room_for(self._unflushed) as fits:
                if fits:  # without room memory waits in the log, which takes what is written meanwhile
                    self._begin_log()
        for _ in range(STALL_WAITS):
            # A new batch for each try: ``write`` uses it up even when it fails.
            batch = WriteBatch(raw_mode=True)
            fill(batch)
            size = batch.size_in_bytes()
            try:
                self._write_batch(batch)
                self._unflushed += size
                return
            except Exception as error:
                if not str(error).startswith("Result incomplete"):
                    self._fail(str(error))
            self._patience.wait(STALL_WAIT_S)
        raise StoreError("RocksDB is behind with its files for a minute: the disk is too slow")

    def _refuse(self) -> NoReturn:
        kind = Full if self._is_full else StoreError
        raise kind("a write failed before; the store has to be opened again")

    def _fail(self, why: str) -> NoReturn:
        self._failed, self._is_full = True, is_full(why)
        if why.startswith("Corruption"):
            self._compacts = False
            logger.error("a file is damaged, so files are not compacted any more: %s", why)
        if not self._is_full:
            raise StoreError(why) from None
        self._space.give_up()
        raise Full(why) from None

    def _begin_log(self) -> None:
        """Flush in the background, unless the logs that are still needed would grow too long."""
        if not any(db.property_int_value(UNFLUSHED) for db in (self._bodies, self._db)):
            self._flushing = 0
        self.sync()
        behind = self._flushing + self._unflushed > self._log_bytes
        self._flush(wait=behind or self._space.is_thrifty)

    def _flush(self, *, wait: bool) -> None:
        """Flush the memtables and begin a new WAL.

        RocksDB would do so by itself, and write to the new WAL while the end of the old one is not synced: a
        power loss could then take records from the middle. So it never gets there: its memtables may grow to
        ``NEVER_BYTES``, its logs to ``_log_bytes``. The callers sync first and hold ``_writing``.
        """
        self._flushing = 0 if wait else self._flushing + self._unflushed
        self._unflushed = 0
        try:
            self._bodies.flush(wait)
            self._db.flush(wait)
        except Exception as error:
            self._fail(str(error))

    # Room on the disk.

    def room(self, now: float) -> Room:
        with self._tidying:
            if self._lost is None and not self._failed:
                try:
                    self._mend(now)
                    self._space.tidy(
                        self._db, self._bodies, self._deleted, self._compacts, now, self._flush_all
                    )
                except StoreError as error:
                    self._space.rest(now)
                    logger.error("deleted messages still take room: %s", error)
            self._space.restore()
            return Room(self._space.free_bytes())

    def _mend(self, now: float) -> None:
        """Open the database again if a flush or a compaction of its own met the end of the disk.

        RocksDB goes on with neither, and has whoever asks for one wait, until so much is free as all
        memtables may grow to: 4 GB and more, whatever the size of the disk.
        """
        if self._compacts and has_failed(self._db) and self._space.may_reopen(now):
            logger.warning("RocksDB could not write a file, so the database is opened again")
            with self._writing:
                self._reopen_alone()

    def _flush_all(self) -> bool:
        """Flush what is in the log; return whether there was room for it."""
        with self._writing, self._space.room_for(self._unflushed) as fits:
            if not fits:
                return False
            self.sync()
            try:
                self._flush(wait=True)
            except StoreError:
                # RocksDB takes no more now. No commit shall be refused for that: nobody asked for the flush.
                self._reopen_alone()
                raise
            return True

    # The two calls that reach the disk; tests replace them to inject faults.

    def _write_batch(self, batch: WriteBatch) -> None:
        self._db.write(batch, self._write_options)

    def _sync_log(self) -> None:
        self._db.flush_wal(True)

    # Backups and copies.

    def claims(self) -> dict[int, Claim]:
        return self.last_claims(self._format or Format(0))

    def be_copy(self, shards: int, claims: Mapping[int, Claim]) -> None:
        for shard in [known for known in self._epochs if known not in claims]:
            self._write(partial(_delete, _epoch_key(shard)))
        for shard, claim in claims.items():
            packed = msgpack.encode((claim.epoch, claim.committed_at, 0 if claim.restored else 1))
            self._write(partial(_put, _epoch_key(shard), packed))
        self._epochs = {shard: claim.epoch for shard, claim in claims.items()}
        self.sync()
        # Last: a directory without FORMAT is refused, so an unfinished copy is never served.
        self._format = Format(shards, 1, max((claim.restored for claim in claims.values()), default=0))
        formats.write(self._directory, self._format)

    def backup(self, directory: str) -> None:
        """Copy the files as they are, mostly by hard links: fast, and at first without disk space."""
        self._check_not_lost()
        assert self._format is not None, "a store that is served has a format"
        target = Path(directory).resolve()
        draft = target.parent / f"{target.name}.part"
        if target.is_relative_to(self._directory.resolve()):
            raise StoreError(f"{target} is inside the data directory; name one outside of it")
        try:
            if target.exists() or draft.exists():
                raise StoreError(f"{target if target.exists() else draft} exists; name another")
            draft.mkdir(parents=True)
        except OSError as error:
            raise StoreError(f"{directory} can't be made: {error.strerror}") from None
        try:
            with self._writing:  # commits wait: like a flush, a checkpoint begins a new WAL
                self.sync()
                # A checkpoint holds the GIL while it flushes (72 ms for a memtable), an explicit flush does
                # not.
                self._flush(wait=True)
                Checkpoint(self._db).create_checkpoint(str(draft / "db"))
            formats.write(draft, self._format)
            draft.rename(target)
            formats.sync_directory(target.parent)
        except Exception as error:
            shutil.rmtree(draft, ignore_errors=True)
            raise StoreError(f"{directory} can't be written: {error}") from None


def scan(db: Rdict, lower: bytes, upper: bytes) -> Iterator[Record]:
    """Yield the records with lower <= key < upper; every scan is bounded on both sides."""
    options = ReadOptions()
    options.set_iterate_upper_bound(upper)
    if lower >= upper:
        return
    last = None
    try:
        for record in db.items(from_key=lower, read_opt=options):
            last = record[0]
            yield record  # type: ignore[misc]
        # The iterator ends at a damaged block as at the last record: only its status tells the two apart.
        rest = db.iter(options)
        rest.seek(last or lower)
        if last is not None and rest.valid():
            rest.next()
        rest.status()
    except Exception as error:
        raise _explained(error) from None


def _read(db: Rdict, key: bytes) -> bytes | None:
    try:
        value: bytes | None = db.get(key)
    except DbClosedError:
        raise
    except Exception as error:
        raise _explained(error) from None
    return value


def _explained(error: Exception) -> Exception:
    said = str(error)
    return Damaged(said) if said.startswith("Corruption") else StoreError(said)


def _epoch_key(shard: int) -> bytes:
    return _EPOCH.pack(OWN, b"E", shard + 1)


def _delete(key: bytes, batch: WriteBatch) -> None:
    batch.delete(key)


def _put(key: bytes, value: bytes, batch: WriteBatch) -> None:
    batch.put(key, value)
