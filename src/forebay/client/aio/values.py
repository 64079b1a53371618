"""Keys and values."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from msgspec import Raw, Struct

from forebay.client.aio.requests import Asking
from forebay.client.payloads import decoder, encode, value_of
from forebay.client.translate import OkCount
from forebay.client.types import Entry, Key, parts_of


class Found(Struct):
    """A value and its version; both null if there is none."""

    value: Raw = Raw(b"null")
    version: str | None = None


class Row(Struct):
    key: list[str | int | float | bool]
    value: Raw
    version: str
    expires_at: int | None = None


class Rows(Struct):
    entries: list[Row]
    cursor: str | None = None


class Watched(Struct):
    changed: bool
    values: list[Raw]
    versions: list[str | None]


class Values:
    """A small JSON key-value store beside the queues. A key is a string, or a list of parts."""

    def __init__(self, asking: Asking) -> None:
        self._ask = asking._ask

    async def get(self, key: Key, default: Any = None, *, type: Any = Any) -> Any:
        """Return the value under a key."""
        found: Found = await self._ask(Found, "KVGET", {"key": key})
        return default if found.version is None else value_of(found.value, type)

    async def entry(self, key: Key, *, type: Any = Any) -> Entry:
        """Return the value under a key with its version, which is None if there is none."""
        found: Found = await self._ask(Found, "KVGET", {"key": key})
        return Entry(parts_of(key), value_of(found.value, type), found.version)

    async def set(self, key: Key, value: Any, *, ttl_ms: int | None = None) -> str:
        """Set a value and return its version."""
        fields = {"key": key, "value": Raw(encode(value)), "ttl": ttl_ms}
        found: Found = await self._ask(Found, "KVSET", fields)
        return found.version or ""

    async def add(self, key: Key, amount: float = 1) -> Any:
        """Add to the number under a key (0 if there is none) and return the sum. Not retried."""
        found: Found = await self._ask(Found, "KVINCR", {"key": key, "by": amount}, again=False)
        return decoder()(found.value)

    async def delete(self, *keys: Key) -> int:
        """Delete keys and return how many there were."""
        found: OkCount = await self._ask(OkCount, "KVDEL", {"keys": list(keys)})
        return found.count

    async def write(
        self,
        mutations: Sequence[dict[str, Any]],
        checks: Sequence[dict[str, Any]] = (),
    ) -> str:
        """Write keys, all or none, if others have the given versions: see KVATOMIC. Not retried."""
        fields = {"mutations": list(mutations), "checks": list(checks)}
        found: Found = await self._ask(Found, "KVATOMIC", fields, again=False)
        return found.version or ""

    async def list(self, prefix: Key | None = None, *, reverse: bool = False) -> AsyncIterator[Entry]:
        """Yield keys and values in order, those below a prefix."""
        cursor: str | None = None
        parts = None if prefix is None else parts_of(prefix)
        while True:
            fields = {"prefix": parts, "reverse": reverse, "cursor": cursor}
            found: Rows = await self._ask(Rows, "KVLIST", fields)
            for each in found.entries:
                yield Entry(each.key, decoder()(each.value), each.version, each.expires_at)
            cursor = found.cursor
            if cursor is None:
                return

    async def watch(self, key: Key, version: str | None, *, wait_ms: int = 60_000) -> Entry | None:
        """Wait until a key has another version than this one; None on timeout."""
        fields = {"keys": [key], "versions": [version], "timeout": wait_ms}
        found: Watched = await self._ask(Watched, "KVWATCH", fields, wait_ms=wait_ms)
        if not found.changed:
            return None
        return Entry(parts_of(key), decoder()(found.values[0]), found.versions[0])
