"""What can be done with a data directory while no server has it open: look at it, put a backup in place."""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.store import format as formats
from penstock.store.base import CantOpen
from penstock.store.rocks import DROP_AFTER_DAMAGE, IN_USE, RocksReader, open_db


@contextmanager
def looking_at(directory: Path) -> Iterator[tuple[RocksReader, int]]:
    """A store opened only to read, and its number of shards; no server can open it meanwhile."""
    format = formats.read(directory)
    if format is None:
        raise CantOpen(f"{directory} is no data directory: it has no file {formats.NAME}")
    try:
        lock = (directory / "db" / "LOCK").open("ab")
    except OSError as error:
        raise CantOpen(f"{directory} can't be opened: {error.strerror}") from None
    with lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CantOpen(f"{directory} {IN_USE}, or look at a backup of it") from None
        reader = RocksReader(*open_db(directory / "db", read_only=True))
        try:
            yield reader, format.shards
        finally:
            reader.close()


def restore(backup: Path, directory: Path, progress: Callable[[int, int], None]) -> None:
    """Copy a backup to where a server will find it. ``progress`` is told files done, and of how many.

    The copy knows that it was restored: what was given out after the backup was made is lost, so partitions
    take fresh numbers and no id or lease is ever given out twice.
    """
    format = formats.read(backup)
    if format is None:
        raise CantOpen(f"{backup} is no backup: it has no file {formats.NAME}")
    if directory.exists() and any(directory.iterdir()):
        raise CantOpen(f"{directory} is not empty; move it away first")
    draft = directory.with_name(directory.name + ".part")
    if draft.exists():
        raise CantOpen(f"{draft} is left from a restore that was interrupted; remove it first")
    try:
        (draft / "db").mkdir(parents=True)
        files = sorted(path for path in (backup / "db").iterdir() if path.is_file() and path.name != "LOCK")
        for done, file in enumerate(files):
            progress(done, len(files))
            _copy(file, draft / "db" / file.name)
        progress(len(files), len(files))
        formats.sync_directory(draft / "db")
        format.restored += 1
        formats.write(draft, format)
        if directory.exists():
            directory.rmdir()
        draft.rename(directory)
        formats.sync_directory(directory.absolute().parent)
    except OSError as error:
        raise CantOpen(f"{directory} can't be written: {error.strerror}") from None


def repair(directory: Path) -> None:
    """Make a directory whose log is damaged open again, with what was kept before the damage.

    What came after is gone for good, although it was confirmed. As after a restore, no name of it is given
    out again.
    """
    format = formats.read(directory)
    if format is None:
        raise CantOpen(f"{directory} is no data directory: it has no file {formats.NAME}")
    format.restored += 1
    formats.write(directory, format)
    db, bodies = open_db(directory / "db", recovery=DROP_AFTER_DAMAGE)
    reader = RocksReader(db, bodies)
    bodies.flush(True)
    db.flush(True)
    reader.close()


def _copy(source: Path, target: Path) -> None:
    with source.open("rb") as old, target.open("wb") as new:
        shutil.copyfileobj(old, new, 1 << 20)
        new.flush()
        os.fsync(new.fileno())
