"""Key-value entries of a tenant, in key order."""

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence

from msgspec import Struct


class Value(Struct, frozen=True, gc=False, array_like=True):
    """A value of the key-value store."""

    data: bytes
    """JSON."""
    version: int
    expires_at: int = 0
    """0 if never."""


OVERHEAD = 200
"""Approximate overhead of an entry, in bytes."""
CHUNK = 1_024
"""Keys per chunk."""


class Keys:
    """Sorted keys; add and remove take about a microsecond at any size."""

    __slots__ = ("_chunks", "_lasts")

    def __init__(self, keys: Sequence[bytes] = ()) -> None:
        """``keys`` are in order."""
        self._chunks = [list(keys[at : at + CHUNK]) for at in range(0, len(keys), CHUNK)]
        self._lasts = [chunk[-1] for chunk in self._chunks]

    def add(self, key: bytes) -> None:
        at = min(bisect_left(self._lasts, key), len(self._chunks) - 1)
        if at < 0:
            self._chunks.append([key])
            self._lasts.append(key)
            return
        chunk = self._chunks[at]
        insort(chunk, key)
        if len(chunk) > 2 * CHUNK:
            self._chunks.insert(at + 1, chunk[CHUNK:])
            del chunk[CHUNK:]
            self._lasts.insert(at, chunk[-1])
        self._lasts[at] = chunk[-1]
        self._lasts[-1] = self._chunks[-1][-1]

    def remove(self, key: bytes) -> None:
        at = bisect_left(self._lasts, key)
        chunk = self._chunks[at]
        del chunk[bisect_left(chunk, key)]
        if chunk:
            self._lasts[at] = chunk[-1]
        else:
            del self._chunks[at], self._lasts[at]

    def between(self, low: bytes, high: bytes) -> Iterator[bytes]:
        """Yield the keys with low <= key < high, in order."""
        at = bisect_left(self._lasts, low)
        place = bisect_left(self._chunks[at], low) if at < len(self._chunks) else 0
        for chunk in self._chunks[at:]:
            for key in chunk[place:]:
                if key >= high:
                    return
                yield key
            place = 0

    def back(self, low: bytes, high: bytes) -> Iterator[bytes]:
        """Yield the same in reverse order."""
        at = min(bisect_left(self._lasts, high), len(self._chunks) - 1)
        while at >= 0:
            chunk = self._chunks[at]
            for key in reversed(chunk[: bisect_left(chunk, high)]):
                if key < low:
                    return
                yield key
            at -= 1


class Values:
    """The entries of a tenant."""

    __slots__ = ("entries", "keys", "size")

    def __init__(self, entries: dict[bytes, Value] | None = None) -> None:
        """``entries`` are in the order of their keys."""
        self.entries = entries if entries is not None else {}
        self.keys = Keys(list(self.entries))
        self.size = sum(weight(key, value) for key, value in self.entries.items())

    def get(self, key: bytes, now: int) -> Value | None:
        value = self.entries.get(key)
        return None if value is None or 0 < value.expires_at <= now else value


def weight(key: bytes, value: Value) -> int:
    return OVERHEAD + len(key) + len(value.data)
