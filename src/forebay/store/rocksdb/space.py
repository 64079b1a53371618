"""How the store behaves as its disk fills up: in steps, each with less need for room.

    free, in marks
      4     blob files are rewritten only as far as there is room for, and only by ``tidy``
      1.5   thrifty: nothing is compacted by itself any more, memory is flushed only where it has room
      1     what grows is refused (by the node)
      0     RESERVE is given up: what drains is written into its room
            RESERVE_OPEN is lent to what gives more room back at once: an open, and a flush, which ends a log

RocksDB by itself compacts when it likes, and copies what lives of old blob files as it does: on a full disk
that takes the last bytes from the commits that would make room.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rocksdict import Rdict

from forebay.store.rocksdb.options import NEVER_FILES, STOP_FILES
from forebay.store.rocksdb.reserve import Reserve, free_bytes

logger = logging.getLogger("forebay.store")

RESERVE_MAX = 128 * 1024 * 1024
"""Largest reserve: twice what RocksDB keeps in its log."""
OPENING_MAX = 16 * 1024 * 1024
"""Largest reserve for an open, which writes a manifest anew: 200 bytes for each file, and 50 KB beside."""
GENTLE_TIMES = 4
"""How many times the mark has to be free for RocksDB to rewrite blob files by itself."""
THRIFTY_TIMES = 1.5
"""How many times the mark has to be free for RocksDB to compact by itself."""
LEAVE_TIMES = 1.25
"""How many times as much has to be free to leave such a state; and how many marks to keep a reserve again."""
TIDY_S = 5.0
"""Least time between two times that room is made."""
TIDY_SHORT_S = 1.0
"""The same while what grows is refused."""
TIDY_COST = 10
"""How many times as long as it took room is not made again, up to ``TIDY_REST_S_MAX``."""
TIDY_REST_S_MAX = 60.0
TIDY_FILES = 16
"""Files that were not compacted yet, at which a thrifty store compacts what it has room for."""
RANGES_MAX = 64
"""Ranges of deleted bodies that are known apart."""
TIGHT_TIMES = 3
"""How many times what is in the log has to be free for it not to be flushed while that still fits."""
TIGHT_BYTES_MIN = 64 * 1024
"""Least that is flushed for that."""
BACKGROUND_ERRORS = "rocksdb.background-errors"
"""Property: how many flushes and compactions failed since the database was opened."""
PREFIX_BYTES = 8
"""Bytes of a key that name tenant and queue."""
EVERYTHING = (b"", b"\xff" * 64)

NO_SPACE = ("No space left", "File too large", "Disk quota exceeded", "Space limit reached")
"""How a full disk is told: ENOSPC, EFBIG, EDQUOT, and RocksDB itself."""


def is_full(why: str) -> bool:
    """Whether an error of RocksDB says that there is no room."""
    return any(each in why for each in NO_SPACE)


class Deleted:
    """Ranges of bodies in which some were deleted, and whose room was not asked back yet."""

    def __init__(self) -> None:
        self._ranges: dict[bytes, tuple[bytes, bytes]] = {}
        """By queue; when there are too many, one for all."""

    def __len__(self) -> int:
        return len(self._ranges)

    def add(self, lower: bytes, upper: bytes) -> None:
        """Note that bodies with lower <= key < upper were deleted."""
        queue = b"" if b"" in self._ranges else lower[:PREFIX_BYTES]
        known = self._ranges.get(queue)
        if known is not None:
            lower, upper = min(lower, known[0]), max(upper, known[1])
        self._ranges[queue] = (lower, upper)
        if len(self._ranges) > RANGES_MAX:
            ranges = self._ranges.values()
            self._ranges = {b"": (min(each[0] for each in ranges), max(each[1] for each in ranges))}

    def add_all(self) -> None:
        """Note that any bodies may have been deleted."""
        self._ranges = {b"": EVERYTHING}

    def take(self) -> list[tuple[bytes, bytes]]:
        """Return all, and forget them."""
        taken, self._ranges = self._ranges, {}
        return list(taken.values())


class Space:
    """Room on the disk of a data directory."""

    def __init__(self, directory: Path, mark: int) -> None:
        """``mark``: what grows is refused when less is free; with 0 nothing here happens by itself."""
        self._directory = directory
        self._mark = mark
        self.is_watched = bool(mark)
        self.reserve = Reserve(directory, "RESERVE", min(mark // 2, RESERVE_MAX))
        self.opening = Reserve(directory, "RESERVE_OPEN", min(mark // 4, OPENING_MAX))
        self.is_thrifty = self._is_gentle = False
        self._tidied_at: float | None = None
        """When room was made, until it is known how long that took."""
        self._rests_until = self._reopens_at = float("-inf")

    def free_bytes(self) -> int:
        """Return what is free beside what is kept back, or is to be."""
        return max(free_bytes(self._directory) - self.reserve.missing - self.opening.missing, 0)

    def is_short(self, log_bytes: int) -> bool:
        """Whether a plain open is not sure to have room: it writes the whole log again."""
        return self.is_watched and self.free_bytes() < self._mark + 2 * log_bytes

    # The reserves.

    def give_up(self) -> bool:
        """Give up the reserve; return whether there was one."""
        self._drop_old_notes()
        if not self.reserve.release():
            return False
        logger.error("the disk is full: the reserve of the data directory was given up")
        return True

    def give_up_for_open(self) -> bool:
        """Give up what is kept back for an open, then the reserve; return whether there was anything."""
        return bool(self.opening.release()) or self.give_up()

    def opened(self, *, thrifty: bool) -> None:
        """Note that the store was opened; with ``thrifty`` options nothing is compacted."""
        self.is_thrifty = self._is_gentle = thrifty
        # Now, before anything else takes what the open gave back. A part of it, if there is no more: the
        # first commits have to be written, too.
        self.opening.restore(leave=min(self.opening.size, free_bytes(self._directory) // 4))
        self.restore()

    def restore(self) -> None:
        """Keep space back again once there is clearly room: below the mark what drains needs it."""
        self.opening.restore(leave=self.opening.size if self.opening.missing < self.opening.size else 0)
        if free_bytes(self._directory) >= self.reserve.missing + LEAVE_TIMES * self._mark:
            self.reserve.restore(leave=0)

    def is_tight(self, log_bytes: int) -> bool:
        """Whether what is in the log should be flushed now, as later there may be no room for it.

        What drains goes into the log, too. If that took the last byte, nothing could end the log any more.
        """
        if not self.is_thrifty or log_bytes < TIGHT_BYTES_MIN:
            return False
        return free_bytes(self._directory) < TIGHT_TIMES * log_bytes

    @contextmanager
    def room_for(self, log_bytes: int) -> Iterator[bool]:
        """Tell whether so much of the log can be flushed, if need be into what is kept back.

        A flush gives back more than it takes, as it ends the log: what is kept back for an open is only lent.
        """
        if self._fits(log_bytes) or (self.give_up() and self._fits(log_bytes)):
            yield True
        elif self._fits(log_bytes - self.opening.held()) and self.opening.release():
            try:
                yield True
            finally:
                self.opening.restore(leave=0)
        else:
            yield False

    def _fits(self, size: int) -> bool:
        return free_bytes(self._directory) > size

    def _drop_old_notes(self) -> None:
        """Drop what RocksDB wrote for people, all but the newest: a megabyte on a disk that has none left."""
        for notes in (self._directory / "db").glob("LOG.old.*"):
            with suppress(OSError):
                notes.unlink()

    # Compactions.

    def tidy(
        self,
        db: Rdict,
        bodies: Rdict,
        deleted: Deleted,
        compacts: bool,
        now: float,
        flush: Callable[[], bool],
    ) -> None:
        """Have RocksDB do what there is room for, and drop deleted bodies if there is little.

        By itself it drops them after more writes, and those are refused. ``flush`` has what is in the log
        flushed, and tells whether there was room for that.
        """
        free = self.free_bytes()
        self.adapt(db, bodies, compacts)
        if not compacts or self._rests(free, now) or has_failed(db):
            return
        if self._is_gentle and deleted:
            if not self._reclaim(bodies, deleted, flush):
                self.rest(now)
                return
        elif self.is_thrifty:
            for family in (db, bodies):
                if _files_of(family) >= TIDY_FILES and 2 * _table_bytes(family) < free_bytes(self._directory):
                    _compact(family, *EVERYTHING)
        else:
            return
        self._tidied_at = now

    def may_reopen(self, now: float) -> bool:
        """Whether the store may be opened again for an error of RocksDB's own work."""
        if now < self._reopens_at:
            return False
        self._reopens_at = now + TIDY_REST_S_MAX
        return True

    def rest(self, now: float) -> None:
        """Do not make room again for as long as that may ever be."""
        self._rests_until = now + TIDY_REST_S_MAX

    def _rests(self, free: int, now: float) -> bool:
        if self._tidied_at is not None:
            took, self._tidied_at = now - self._tidied_at, None
            least = TIDY_S if free >= LEAVE_TIMES * self._mark else TIDY_SHORT_S
            self._rests_until = now + min(max(least, TIDY_COST * took), TIDY_REST_S_MAX)
        return now < self._rests_until

    def adapt(self, db: Rdict, bodies: Rdict, compacts: bool) -> None:
        """Have RocksDB compact by itself as much as there is room for."""
        free = self.free_bytes()
        thrifty = _is_below(free, THRIFTY_TIMES * self._mark, self.is_thrifty)
        gentle = _is_below(free, GENTLE_TIMES * self._mark, self._is_gentle)
        if thrifty != self.is_thrifty:
            stop = NEVER_FILES if thrifty or not compacts else STOP_FILES
            for family in (db, bodies):
                _set(
                    family,
                    disable_auto_compactions=_told(thrifty or not compacts),
                    level0_slowdown_writes_trigger=str(stop),
                    level0_stop_writes_trigger=str(stop),
                )
        if gentle != self._is_gentle:
            _set(bodies, enable_blob_garbage_collection=_told(not gentle))
            _set(bodies, blob_garbage_collection_age_cutoff=str(AGE_CUTOFF))
        self.is_thrifty, self._is_gentle = thrifty, gentle

    def _reclaim(self, bodies: Rdict, deleted: Deleted, flush: Callable[[], bool]) -> bool:
        """Drop blob files of which nothing lives, and rewrite as many of the oldest as there is room for.

        Return whether that was done.
        """
        if not flush() or not self._fits(_table_bytes(bodies)):
            return False
        ranges = deleted.take()
        share = self._share()
        if share:
            _set(
                bodies,
                enable_blob_garbage_collection="true",
                blob_garbage_collection_age_cutoff=f"{share:.6f}",
            )
        try:
            for lower, upper in ranges:
                _compact(bodies, lower, upper)
        except Exception as error:
            for lower, upper in ranges:
                deleted.add(lower, upper)
            logger.error("deleted messages still take room: %s", error)
            return False
        finally:
            if share:
                _set(bodies, enable_blob_garbage_collection="false")
        return True

    def _share(self) -> float:
        """Return the share of the blob files, oldest first, whose copies would take half of what is free."""
        files = sorted((self._directory / "db").glob("*.blob"))
        left, count = free_bytes(self._directory) // 2, 0
        for file in files:
            left -= file.stat().st_size
            if left < 0:
                break
            count += 1
        return min((count + 0.5) / len(files), AGE_CUTOFF) if count else 0.0


AGE_CUTOFF = 0.25
"""Share of blob files that are rewritten when they are met, oldest first: RocksDB's default."""


def _is_below(free: int, level: float, was: bool) -> bool:
    return free < (LEAVE_TIMES * level if was else level)


def has_failed(family: Rdict) -> bool:
    """Whether a flush or compaction failed: another one might wait for room without an end."""
    return bool(family.property_int_value(BACKGROUND_ERRORS))


def _told(wanted: bool) -> str:
    return "true" if wanted else "false"


def _set(family: Rdict, **options: str) -> None:
    try:
        family.set_options(options)
    except Exception as error:  # they are set, but could not be written to a file
        logger.info("options of the store are not written: %s", error)


def _compact(family: Rdict, lower: bytes, upper: bytes) -> None:
    family.compact_range(lower, upper)


def _files_of(family: Rdict) -> int:
    return int(family.property_value("rocksdb.num-files-at-level0") or 0)


def _table_bytes(family: Rdict) -> int:
    return family.property_int_value("rocksdb.total-sst-files-size") or 0
