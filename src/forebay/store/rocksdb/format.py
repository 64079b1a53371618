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

FORMAT = 6
"""The format this version writes, and the newest it reads.

2 added attributes, dead letters and outcomes; 3 notes, successors and stragglers; 4 keys, dependencies,
crons, limits and values; 5 stages and adoptions; 6 events, and queues in deletion.
"""
OLDEST = 1
"""The oldest format it reads; a server upgrades such a directory when it first opens it."""
NAME = "FORMAT"


class Format(Struct, forbid_unknown_fields=True):
    shards: int
    restored: int = 0
    """Number of restores from a backup."""
    skip: int = 0
    """Names each shard skips, because some were issued after the backup. Random, so that copies differ."""
    format: int = FORMAT


class _Any(Struct):
    format: int


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
        found = msgspec.json.decode(line, type=_Any).format
        if OLDEST <= found <= FORMAT:
            return msgspec.json.decode(line, type=Format)
    except msgspec.DecodeError as error:
        raise CantOpen(f"{directory / NAME} is damaged: {error}; restore a backup") from None
    raise CantOpen(
        f"{directory} is in format {found}, and this version reads formats {OLDEST} to {FORMAT}: "
        f"run the version of Forebay that wrote it, or a newer one"
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
