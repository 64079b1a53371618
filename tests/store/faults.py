"""A disk that fails under the store, and what a power loss leaves of it.

``Faulty`` fails where the store reaches the disk: a sync fails, the disk is full, slow or stalls.
``PowerCut`` knows what is synced, and ``lose`` makes the directory that a power loss at this instant could
leave: all that was synced, and of the rest any beginning, torn wherever it ends. RocksDB syncs its other
files before it uses them, and a log that it closes before it uses what it flushed (both seen with strace).

``in_child`` runs a function in a process of its own, for faults that take the whole process along.
"""

import multiprocessing
import random
import shutil
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rocksdict import WriteBatch

from forebay.store.rocksdb.store import RocksStore

CHILD_S = 30.0
"""How long a child may say nothing before it is said to hang."""


class Faulty(RocksStore):
    """A store whose disk does what it is told to."""

    def __init__(self, directory: Path, free_min_bytes: int = 0) -> None:
        self.full_in: int | None = None
        """Writes until the disk is full; it stays full until this is None."""
        self.stalls = 0
        """How many writes RocksDB turns away because it is behind."""
        self.sync_fails = False
        self.sync_wait_s = 0.0
        """What a sync takes on a slow disk: for benchmarks."""
        super().__init__(directory, free_min_bytes)

    def _write_batch(self, batch: WriteBatch) -> None:
        if self.full_in is not None:
            if self.full_in == 0:
                raise RuntimeError("IO error: No space left on device: While appending to file")
            self.full_in -= 1
        if self.stalls:
            self.stalls -= 1
            raise RuntimeError("Result incomplete: Write stall")
        super()._write_batch(batch)

    def _sync_log(self) -> None:
        if self.sync_fails:
            raise RuntimeError("IO error: While fdatasync: Input/output error")
        if self.sync_wait_s:
            time.sleep(self.sync_wait_s)
        super()._sync_log()


class PowerCut(RocksStore):
    """A store that knows what of it would survive power loss."""

    def __init__(self, directory: Path, free_min_bytes: int = 0) -> None:
        self._synced: dict[str, int] = {}
        """Bytes of each log that are synced."""
        super().__init__(directory, free_min_bytes)

    def _open(self) -> None:
        super()._open()
        self._synced = self._sizes()  # what an open finds it has made files of

    def _sync_log(self) -> None:
        sizes = self._sizes()
        super()._sync_log()
        self._synced.update(sizes)

    def flush(self, *, bodies: bool) -> None:
        """Have RocksDB write a family's memory to files. It syncs the log that it closes for that first."""
        sizes = self._sizes()
        (self._bodies if bodies else self._db).flush(True)
        self._synced.update(sizes)

    def _sizes(self) -> dict[str, int]:
        return _files(self._directory, "db/*.log")

    def torn(self) -> bool:
        """Whether a log was closed that this store never synced to its end.

        RocksDB syncs it in a while, but until then a power loss may take its end and leave the next log.
        """
        sizes = self._sizes()
        return any(self._synced.get(name, 0) < sizes[name] for name in sorted(sizes)[:-1])

    def lose(self, target: Path, rng: random.Random) -> int:
        """The power fails: what is left is in ``target``. How many bytes were lost. No call may follow."""
        copy_open(self._directory, target)
        lost = 0
        for log in sorted((target / "db").glob("*.log")):
            present = log.stat().st_size
            synced = self._synced.get(log.name, 0)
            left = rng.choice((synced, present, rng.randint(synced, present), rng.randint(synced, present)))
            with log.open("r+b") as file:
                file.truncate(left)
            lost += present - left
        self._close()
        return lost


def copy_open(directory: Path, target: Path) -> None:
    """Copy a directory that is open, as it is at one instant: again, if RocksDB changed files meanwhile."""
    while True:
        before = _files(directory)
        with suppress(shutil.Error, FileNotFoundError):
            shutil.copytree(directory, target, ignore=shutil.ignore_patterns("LOCK"))
            if before == _files(directory):
                return
        shutil.rmtree(target)


def _files(directory: Path, pattern: str = "**/*") -> dict[str, int]:
    """Names and sizes; RocksDB may delete files meanwhile, and writes its log for people at any time."""
    found: dict[str, int] = {}
    for each in directory.glob(pattern):
        with suppress(FileNotFoundError):
            if each.is_file() and not each.name.startswith("LOG"):
                found[each.name] = each.stat().st_size
    return found


def in_child(
    work: Callable[..., object], *arguments: Any, progress: Callable[[Any], object] | None = None
) -> Any:
    """What ``work`` returns in a process of its own; whatever happens to that process is an error here.

    ``work`` gets a function as its first argument, and what it passes to that comes to ``progress``.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_child, args=(theirs, work, arguments))
    child.start()
    theirs.close()
    try:
        while True:
            if not ours.poll(CHILD_S):
                raise AssertionError("the child hangs")
            kind, value = ours.recv()
            if kind == "result":
                return value
            if kind == "error":
                raise AssertionError(f"in the child:\n{value}")
            if progress is not None:
                progress(value)
    except EOFError:
        child.join()
        raise AssertionError(f"the child died with exit code {child.exitcode}") from None
    finally:
        child.kill()
        child.join()
        ours.close()


def _child(pipe: Connection, work: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    try:
        pipe.send(("result", work(lambda value: pipe.send(("progress", value)), *arguments)))
    except BaseException:
        pipe.send(("error", traceback.format_exc()))
