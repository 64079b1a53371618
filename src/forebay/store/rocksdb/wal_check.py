"""Check of the record headers in RocksDB's logs, before RocksDB opens them.

RocksDB trusts the length and type of a record before it verifies the checksum. One flipped bit in a length
near the end makes it silently take the rest for a torn tail; one in a type makes it hang.
A log is a sequence of 32 KiB blocks. No record crosses one. A header is checksum u32, length u16, type u8.
"""

import mmap
from pathlib import Path

BLOCK = 32 * 1024
HEADER = 7
TYPES = range(1, 5)
"""Full, first, middle and last fragment of a record. Recycled logs have other types; ours never are."""


def damaged_at(path: Path) -> int | None:
    """Return the offset of damage that RocksDB would not report; None if there is none, or a torn tail."""
    with path.open("rb") as file:
        if not path.stat().st_size:
            return None
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as log:
            return _damaged_at(log)


def _damaged_at(log: mmap.mmap) -> int | None:
    at, size = 0, len(log)
    while at + HEADER <= size:
        room = BLOCK - at % BLOCK
        if room < HEADER:
            at += room
            continue
        length, kind = log[at + 4] | log[at + 5] << 8, log[at + 6]
        if not kind and not any(log[at:size]):
            return None  # preallocated and never written
        if kind not in TYPES or HEADER + length > room:
            return at
        if at + HEADER + length > size:
            return at if _would_fit(log, at, length, kind) else None
        at += HEADER + length
    return None


def _would_fit(log: mmap.mmap, at: int, length: int, kind: int) -> bool:
    """Return whether the last record is whole but for a flipped bit in its length: its checksum tells."""
    wanted = int.from_bytes(log[at : at + 4], "little")
    for bit in range(16):
        other = length ^ 1 << bit
        end = at + HEADER + other
        if end <= len(log) and _checksum(bytes([kind]) + log[at + HEADER : end]) == wanted:
            return True
    return False


def _table() -> list[int]:
    table = []
    for number in range(256):
        for _ in range(8):
            number = number >> 1 ^ (0x82F63B78 if number & 1 else 0)
        table.append(number)
    return table


_TABLE = _table()


def _checksum(data: bytes) -> int:
    """CRC-32C, masked as RocksDB stores it. Slow, but used for one record at most."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return (crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8 & 0xFFFFFFFF
