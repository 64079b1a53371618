"""A file that keeps disk space back, and goes when the disk is full."""

import os
from contextlib import suppress
from pathlib import Path


class Reserve:
    """One such file of a data directory."""

    def __init__(self, directory: Path, name: str, size: int) -> None:
        self._directory = directory
        self._path = directory / name
        self.size = size

    @property
    def missing(self) -> int:
        """Bytes that are to be kept back and are not."""
        return max(self.size - self.held(), 0)

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

    def restore(self, *, leave: int) -> None:
        """Keep the space back, if so much is still free then; or as much less as keeps that free."""
        held = self.held()
        if held == self.size:
            return
        try:
            if held > self.size:
                self._path.unlink()
                held = 0
            size = min(self.size, held + free_bytes(self._directory) - leave)
            if size > held:
                self._make(size)
        except OSError:
            self.release()

    def _make(self, size: int) -> None:
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(file, 0, size)
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
