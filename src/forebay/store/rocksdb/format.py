"""The file FORMAT of a data directory: its format, number of shards, and how often it was restored.

    DIR/FORMAT    one line of JSON, and a checksum; written when the store is created and when it is restored
    DIR/db/       RocksDB's own files

The file is written under another name, fsynced and renamed, so a crash never leaves half of it.
"""

import os
import zlib
from pathlib import Path

import msgspec
from msgspec import Struct

from forebay.store.base import CantOpen

FORMAT = 1
"""The format this version reads and writes."""
NAME = "FORMAT"
BEFORE_RELEASE = "a version of Forebay before its first release, which this one does not read"
"""Who wrote a store that is refused as too old."""


class Format(Struct, forbid_unknown_fields=True):
    shards: int
    restored: int = 0
    """Number of restores from a backup."""
    skip: int = 0
    """Names each shard skips, because some were issued after the backup. Random, so that copies differ."""
    version: int = FORMAT
    """The format itself."""


class _Any(Struct):
    """The part of the file that is read in any format."""

    version: int | None = None
    format: int | None = None
    """The format as versions before the first release wrote it, and no later one."""


def read(directory: Path) -> Format | None:
    """Return the directory's format, None if it has none. Raise CantOpen if this version can't read it."""
    try:
        text = (directory / NAME).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CantOpen(f"{directory / NAME} can't be read: {error.strerror}") from None
    line, _, checksum = text.partition(b"\n")
    if checksum.strip() != b"%08x" % zlib.crc32(line):
        raise CantOpen(f"{directory / NAME} is damaged: its checksum is wrong; restore a backup")
    try:
        found = msgspec.json.decode(line, type=_Any)
        if found.version == FORMAT:
            return msgspec.json.decode(line, type=Format)
    except msgspec.DecodeError as error:
        raise CantOpen(f"{directory / NAME} is damaged: {error}; restore a backup") from None
    if found.version is not None:
        raise other_format(str(directory), found.version)
    if found.format is not None:
        raise CantOpen(
            f"{directory} was written by {BEFORE_RELEASE}: start with a new directory,"
            " or go on with the version that wrote it"
        )
    raise CantOpen(f"{directory / NAME} is damaged: it names no format; restore a backup")


def other_format(name: str, version: int) -> CantOpen:
    """Return the error about a store in a format that this version does not read."""
    return CantOpen(
        f"{name} is in format {version}, and this version reads format {FORMAT}:"
        " run the version of Forebay that wrote it, or a newer one"
    )


def write(directory: Path, format: Format) -> None:
    """Write the format durably."""
    line = msgspec.json.encode(format)
    target, draft = directory / NAME, directory / f"{NAME}.new"
    with draft.open("wb") as file:
        file.write(line + b"\n%08x\n" % zlib.crc32(line))
        file.flush()
        os.fsync(file.fileno())
    draft.rename(target)
    sync_directory(directory)


def sync_directory(directory: Path) -> None:
    """Fsync a directory, so that its entries survive power loss."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
