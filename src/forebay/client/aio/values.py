"""Keys and values."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from msgspec import Raw

from forebay.client.aio.requests import Asking
from forebay.client.payloads import decoder, encode, value_of
from forebay.client.types import Entry, Key, parts_of
from forebay.core.errors import NotFound
from forebay.wire.operations import values as wire


class Values:
    """A small JSON key-value store beside the queues. A key is a string, or a list of parts."""

    def __init__(self, asking: Asking) -> None:
        self._ask = asking._ask

    async def get(self, key: Key, default: Any = None, *, type: Any = Any) -> Any:
        """Return the value under a key."""
        try:
            found: wire.Entry = await self._ask(wire.GetValue(key=parts_of(key)))
        except NotFound:
            return default
        return value_of(found.value, type)

    async def entry(self, key: Key, *, type: Any = Any) -> Entry:
        """Return the value under a key with its version, which is None if there is none."""
        try:
            found: wire.Entry = await self._ask(wire.GetValue(key=parts_of(key)))
        except NotFound:
            return Entry(parts_of(key), None, None)
        return Entry(parts_of(key), value_of(found.value, type), found.version, found.expires_at or None)

    async def set(self, key: Key, value: Any, *, ttl_ms: int | None = None) -> str:
        """Set a value and return its version."""
        request = wire.SetValue(key=parts_of(key), value=Raw(encode(value)), ttl_ms=ttl_ms)
        found: wire.Written = await self._ask(request)
        return found.version

    async def add(self, key: Key, amount: float = 1) -> Any:
        """Add to the number under a key (0 if there is none) and return the sum. Not retried."""
        found: wire.Entry = await self._ask(wire.AddValue(key=parts_of(key), by=amount), again=False)
        return decoder()(found.value)

    async def delete(self, *keys: Key) -> int:
        """Delete keys and return how many there were."""
        gone = [wire.Mutation("delete", parts_of(key)) for key in keys]
        found: wire.Written = await self._ask(wire.WriteValues(mutations=gone))
        return found.deleted

    async def write(
        self,
        mutations: Sequence[dict[str, Any]],
        checks: Sequence[dict[str, Any]] = (),
    ) -> str:
        """Write keys, all or none, if others have the given versions: see KVWRITE. Not retried."""
        request: Any = {"mutations": list(mutations), "checks": list(checks)}
        found: wire.Written = await self._ask(wire.WriteValues(**request), again=False)
        return found.version

    async def list(self, prefix: Key | None = None, *, reverse: bool = False) -> AsyncIterator[Entry]:
        """Yield keys and values in order, those below a prefix."""
        cursor: str | None = None
        parts = None if prefix is None else parts_of(prefix)
        while True:
            found: wire.Listed = await self._ask(
                wire.ListValues(prefix=parts, reverse=reverse, cursor=cursor)
            )
            for each in found.entries:
                yield Entry(each.key, decoder()(each.value), each.version, each.expires_at or None)
            cursor = found.cursor
            if cursor is None:
                return

    async def watch(self, key: Key, version: str | None, *, wait_ms: int = 60_000) -> Entry | None:
        """Wait until a key has another version than this one; None on timeout."""
        request = wire.WatchValues(keys=[parts_of(key)], versions=[version], wait_ms=wait_ms)
        found: wire.Watched = await self._ask(request)
        if not found.changed:
            return None
        (value,), (found_version,) = found.values, found.versions
        return Entry(parts_of(key), decoder()(value), found_version)
