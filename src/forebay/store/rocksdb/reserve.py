"""A file that keeps disk space back. On a full disk it goes, and what drains can still be written."""

import os
from contextlib import suppress
from pathlib import Path

NAME = "RESERVE"
BYTES_MAX = 128 * 1024 * 1024
"""Largest reserve: twice what RocksDB keeps in its log, so a log can be read again, which writes it anew."""


class Reserve:
    """The reserve of a data directory."""

    def __init__(self, directory: Path, size: int) -> None:
        self._directory = directory
        self._path = directory / NAME
        self.size = min(size, BYTES_MAX)

    def held(self) -> int:
        """Return the bytes that are kept back now."""
        try:
            return self._path.stat().st_size
        except OSError:
            return 0

    def release(self) -> bool:
        """Give the space free; return whether there was any."""
        held = self.held()
        with suppress(OSError):
            self._path.unlink()
        return bool(held)

    def restore(self) -> None:
        """Keep the space back, if twice as much is free."""
        held = self.held()
        if held == self.size:
            return
        try:
            if held > self.size or not self.size:
                self._path.unlink(missing_ok=True)
            if self.size and free_bytes(self._directory) >= 2 * self.size:
                self._make()
        except OSError:
            self.release()

    def _make(self) -> None:
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(file, 0, self.size)
        finally:
            os.close(file)


def free_bytes(directory: Path) -> int:
    """Return how many bytes of its file system are free for us."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


def size_bytes(directory: Path) -> int:
    """Return the size of its file system."""
    found = os.statvfs(directory)
    return found.f_blocks * found.f_frsize
