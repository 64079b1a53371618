"""Who holds the lock of a data directory: RocksDB locks the file LOCK for as long as it is open."""

import fcntl
import os
import struct
import sys
from pathlib import Path

_FLOCK = struct.Struct("hhqqi")
"""``struct flock`` of Linux: type, whence, start, length, pid."""


def in_use(directory: Path, *, here: bool = False) -> str:
    """Say that a directory is in use, and by which process, if that can be found out.

    ``here``: this process has it open, and must not open the file LOCK again, since closing that would
    release the lock.
    """
    pid = None if here else _holder(directory / "db" / "LOCK")
    who = f"another server (pid {pid})" if pid else "another server"
    return f"{directory} is in use by {who}; stop that one"


def _holder(lock: Path) -> int | None:
    """Return the pid of the process that holds a lock; None if there is none, or it is unknown here."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        with lock.open("rb") as file:
            asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            found = _FLOCK.unpack(fcntl.fcntl(file, fcntl.F_GETLK, asked))
    except OSError:
        return None
    # A process of another container has no pid here: 0 or less.
    return found[4] if found[0] != fcntl.F_UNLCK and found[4] > 0 else None
