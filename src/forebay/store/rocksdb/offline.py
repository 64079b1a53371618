"""Work on a data directory that no server has open: read, restore, repair."""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from forebay.core.bounds import NUMBERS_MAX
from forebay.store.base import Broken, CantOpen, Claim
from forebay.store.rocksdb import format as formats, lock, wal_check
from forebay.store.rocksdb.format import Format
from forebay.store.rocksdb.opening import DROP_AFTER_DAMAGE, open_db
from forebay.store.rocksdb.store import RocksReader

SKIP = 4096
"""Names skipped after a restore, plus a random number up to the same again.

More than a shard issues between two backups, and few enough that ids stay below 2**53 for a while.
"""


class Looker(RocksReader):
    """Reads a directory that no server has open."""

    def __init__(self, directory: Path, format: Format) -> None:
        super().__init__(*open_db(directory / "db", read_only=True))
        self._format = format

    def claims(self) -> dict[int, Claim]:
        return self.last_claims(self._format)


@contextmanager
def looking_at(directory: Path) -> Iterator[tuple[Looker, int]]:
    """Open a store read-only; yields it and its number of shards, while no server can open it."""
    format = _format_of(directory)
    with _alone(directory):
        reader = Looker(directory, format)
        try:
            yield reader, format.shards
        finally:
            reader.close()


def _format_of(directory: Path) -> Format:
    format = formats.read(directory)
    if format is None:
        raise CantOpen(f"{directory} is no data directory: it has no file {formats.NAME}")
    return format


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Hold the lock of the directory. Raise CantOpen if a server holds it."""
    file = directory / "db" / "LOCK"
    if not file.exists():  # a backup that was never served
        yield
        return
    try:
        writable = os.access(file, os.W_OK)
        held = file.open("r+b" if writable else "rb")
    except OSError as error:
        raise CantOpen(f"{file} can't be opened: {error.strerror}") from None
    with held:
        try:
            fcntl.lockf(held, (fcntl.LOCK_EX if writable else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except OSError:
            raise CantOpen(f"{lock.in_use(directory)}, or take a backup of it") from None
        yield


def restore(backup: Path, directory: Path, chance: float, progress: Callable[[int, int], None]) -> None:
    """Copy a backup into a data directory. ``progress`` is called with files done and files in total.

    Names issued after the backup are unknown to the copy. So it is marked as restored: partitions take fresh
    numbers, and no id or lease is issued twice. ``chance``, from 0 to 1, keeps two copies of one backup from
    issuing the same names.
    """
    format = _format_of(backup)
    with looking_at(backup):  # proves that it opens, and keeps servers away
        if directory.resolve().is_relative_to(backup.resolve()):
            raise CantOpen(f"{directory} is inside the backup; name another")
        try:
            directory.mkdir(parents=True, exist_ok=True)
            if any(directory.iterdir()):
                raise CantOpen(f"{directory} is not empty; move what is there away first")
            _copy_all(backup / "db", directory / "db", progress)
            # Last: a directory without FORMAT is refused, so an unfinished copy is never served.
            formats.write(directory, _passing_over(format, chance))
        except OSError as error:
            raise CantOpen(f"{directory} can't be written: {error.strerror}") from None


def _passing_over(format: Format, chance: float) -> Format:
    """Return the format of a directory that has lost track of names it issued."""
    skip = min(SKIP, max(NUMBERS_MAX // format.shards // 256, 1))
    return Format(format.shards, format.restored + 1, skip + int(skip * chance))


def _copy_all(source: Path, target: Path, progress: Callable[[int, int], None]) -> None:
    draft = target.with_name(f"{target.name}.part")
    try:
        draft.mkdir()
        files = sorted(path for path in source.iterdir() if path.is_file() and path.name != "LOCK")
        for done, file in enumerate(files):
            progress(done, len(files))
            _copy(file, draft / file.name)
        progress(len(files), len(files))
        formats.sync_directory(draft)
        draft.rename(target)
    except OSError:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def _copy(source: Path, target: Path) -> None:
    with source.open("rb") as old, target.open("wb") as new:
        shutil.copyfileobj(old, new, 1 << 20)
        new.flush()
        os.fsync(new.fileno())


def repair(directory: Path, chance: float) -> bool:
    """Truncate a damaged WAL so that the directory opens with the commits before the damage.

    Return False if it opens as it is; then nothing is changed. Commits after the damage are lost for good,
    although they were confirmed. As after a restore, none of their names is issued again.
    """
    format = _format_of(directory)
    try:
        with looking_at(directory):
            return False
    except Broken:
        pass
    with _alone(directory):
        formats.write(directory, _passing_over(format, chance))
        _cut_logs(directory / "db")
        db, bodies = open_db(directory / "db", recovery=DROP_AFTER_DAMAGE)
        bodies.flush(True)
        db.flush(True)
        RocksReader(db, bodies).close()
    return True


def _cut_logs(db: Path) -> None:
    """Truncate the logs at the first bad header. RocksDB itself cuts where a checksum is wrong."""
    cut = False
    for log in sorted(db.glob("*.log")):
        at = 0 if cut else wal_check.damaged_at(log)
        if at is not None:
            cut = True
            os.truncate(log, at)
