"""Key-value store: JSON values under tuple keys, one store per tenant, held in memory and persisted.

One write gives everything it changes one version, higher than any before. Checks compare versions, and a
write applies all of its changes or none.
"""

from typing import Any

import msgspec
from msgspec import MsgspecError

from forebay.core.api.jobs import KvChange, KvWrite, KvWritten
from forebay.core.api.queries import KvFound, KvGet, KvList, KvListed, KvWatch
from forebay.core.bounds import (
    DELAY_MS_MAX,
    KV_BYTES_MAX,
    KV_LISTED_MAX,
    KV_WRITES_MAX,
    check_name,
    check_range,
)
from forebay.core.errors import Busy, Conflict, Invalid, NotFound
from forebay.core.keyvalue.keys import AFTER, unpack
from forebay.core.records import codec, keyspace
from forebay.core.shard.shard import Shard
from forebay.core.state import Value, Values, weight
from forebay.core.words import APPEND, CHANGE_KINDS, DELETE, EXPIRE, MAX, MIN, PREPEND, SET, SUM

LOOKED_AT_MAX = 10_000
"""Keys that one command scans."""
PATTERN_CHARS_MAX = 256
NUMBER_MAX = 1 << 63
"""Largest absolute value of a sum."""
_encode = msgspec.json.Encoder().encode


# Questions.


def get(shard: Shard, command: KvGet, now: int) -> KvFound:
    shard.names.check_own(command.tenant)
    check_range("keys", len(command.keys), 1, KV_LISTED_MAX)
    values = shard.values.by_tenant.get(command.tenant)
    found = [values.get(key, now) if values is not None else None for key in command.keys]
    return KvFound(_fitting(shard, found), now)


def _fitting(shard: Shard, found: list[Value | None]) -> list[Value | None]:
    """Return the values; raise if they exceed one reply."""
    most = shard.limits.read_bytes_max
    if len(found) > 1 and sum(len(value.data) for value in found if value is not None) > most:
        raise Invalid("keys", f"fewer: their values are more than {most} bytes")
    return found


def listed(shard: Shard, command: KvList, now: int) -> KvListed:
    """Return entries under a prefix, in order."""
    shard.names.check_own(command.tenant)
    check_range("limit", command.count, 1, KV_LISTED_MAX)
    if command.pattern is not None and len(command.pattern) > PATTERN_CHARS_MAX:
        raise Invalid("pattern", f"at most {PATTERN_CHARS_MAX} characters")
    values = shard.values.by_tenant.get(command.tenant)
    if values is None:
        return KvListed([])
    low, high = max(command.prefix, command.low), command.prefix + AFTER
    if command.high is not None:
        high = min(high, command.high)
    keys = values.keys.back(low, high) if command.reverse else values.keys.between(low, high)
    found: list[tuple[bytes, Value]] = []
    bytes_left = shard.limits.read_bytes_max
    for looked_at, key in enumerate(keys):
        value = values.get(key, now)
        if len(found) == command.count or bytes_left <= 0 or looked_at >= LOOKED_AT_MAX:
            return KvListed(found, key + b"\0" if command.reverse else key)
        if value is None or (command.pattern is not None and not _looks_like(command.pattern, key)):
            continue
        found.append((key, value))
        bytes_left -= weight(key, value)
    return KvListed(found)


def _looks_like(pattern: str, key: bytes) -> bool:
    parts = unpack(key)
    return len(parts) == 1 and isinstance(parts[0], str) and matches(pattern, parts[0])


def matches(pattern: str, text: str) -> bool:
    """Whether a text matches a pattern: * is any text, ? any one character.

    >>> matches("user:*:na?e", "user:7:name"), matches("*a", "b"), matches("*", "")
    (True, False, True)
    """
    at = place = 0
    star, back = -1, 0
    while place < len(text):
        if at < len(pattern) and pattern[at] == "*":
            star, back = at, place
            at += 1
        elif at < len(pattern) and pattern[at] in ("?", text[place]):
            at += 1
            place += 1
        elif star >= 0:
            back += 1
            at, place = star + 1, back
        else:
            return False
    return not pattern[at:].strip("*")


def watch(shard: Shard, command: KvWatch, now: int) -> KvFound:
    """Return entries, and whether any has another version than the given one."""
    check_range("wait_ms", command.wait_ms, 0, shard.limits.wait_ms_max)
    if len(command.versions) != len(command.keys):
        raise Invalid("versions", "as many as there are keys; null for one that is not there")
    found = get(shard, KvGet(command.tenant, command.keys), now)
    versions = [value.version if value is not None else None for value in found.values]
    return KvFound(found.values, now, changed=versions != command.versions)


# Writes: what they would leave is found first, then it is kept.

UNWRITTEN = -1
"""Version of a value that is not written yet."""
Left = dict[bytes, Value | None]
"""Values after a write, by key; None is deleted."""


def check(shard: Shard, command: KvWrite, now: int, before: Left | None = None) -> Left:
    """Return what a write would leave; raise unless it is valid. ``before`` is what earlier writes leave."""
    check_range("mutations", len(command.checks) + len(command.changes), 1, KV_WRITES_MAX)
    check_name("tenant", command.tenant)
    shard.names.check_count(command.tenant, 0)
    shard.names.check_own(command.tenant)
    values = shard.values.by_tenant.get(command.tenant) or Values()
    left: Left = dict(before or {})

    def current(key: bytes) -> Value | None:
        return left[key] if key in left else values.get(key, now)

    for key, version in command.checks:
        found = current(key)
        if (found.version if found is not None else None) != version:
            raise Conflict(f"key {shown(key)} has changed")
    changed: Left = {}
    for change in command.changes:
        left[change.key] = changed[change.key] = _changed(shard, change, current(change.key), now)
    grown = sum(
        (weight(key, value) if value is not None else 0) - (weight(key, old) if old is not None else 0)
        for key, value in left.items()
        for old in [values.entries.get(key)]
    )
    if grown > 0 and values.size + grown > KV_BYTES_MAX:
        raise Busy(f"keys and values of a tenant take at most {KV_BYTES_MAX} bytes; delete some")
    return changed


def _changed(shard: Shard, change: KvChange, found: Value | None, now: int) -> Value | None:
    """Return the value that a change leaves."""
    if change.kind not in CHANGE_KINDS:
        raise Invalid("kind", f"one of {', '.join(CHANGE_KINDS)}")
    if change.ttl_ms is not None:
        check_range("ttl_ms", change.ttl_ms, 0, DELAY_MS_MAX)
    if change.kind == DELETE:
        return None
    if change.kind == EXPIRE:
        if found is None:
            raise NotFound(f"there is no key {shown(change.key)}")
        return Value(found.data, UNWRITTEN, now + change.ttl_ms if change.ttl_ms else 0)
    data = change.data
    expires_at = now + change.ttl_ms if change.ttl_ms else 0
    if change.kind != SET:
        data = _combined(change, found)
        if change.ttl_ms is None and found is not None:
            expires_at = found.expires_at
    if len(data) > shard.limits.payload_bytes_max:
        raise Invalid("value", f"at most {shard.limits.payload_bytes_max} bytes; this has {len(data)}")
    return Value(data, UNWRITTEN, expires_at)


def _combined(change: KvChange, found: Value | None) -> bytes:
    """Combine the present value with the given one."""
    given = _decoded(change.data)
    old = _decoded(found.data) if found is not None else None
    if change.kind in (APPEND, PREPEND):
        given = given if isinstance(given, list) else [given]
        old = [] if old is None else old
        if not isinstance(old, list):
            raise Conflict(f"the value of key {shown(change.key)} is not a list")
        return _encode(old + given if change.kind == APPEND else given + old)
    if not _is_number(given):
        raise Invalid("value", f"a number, for {change.kind}")
    old = 0 if old is None and change.kind == SUM else old
    if old is None:
        old = given
    if not _is_number(old):
        raise Conflict(f"the value of key {shown(change.key)} is not a number")
    result = {SUM: lambda: old + given, MAX: lambda: max(old, given), MIN: lambda: min(old, given)}[
        change.kind
    ]()
    if not abs(result) < NUMBER_MAX:
        raise Conflict(f"the value of key {shown(change.key)} would be too far from 0")
    return _encode(result)


def _decoded(data: bytes) -> Any:
    """Decode a value that is combined with another."""
    try:
        return msgspec.json.decode(data)
    except (MsgspecError, RecursionError, ValueError) as error:
        raise Invalid("value", f"one that can be reckoned with: {error}") from None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def shown(key: bytes) -> str:
    """Return a packed key as text for people."""
    return "/".join(str(part) for part in unpack(key))


def apply(shard: Shard, tenant: str, left: Left) -> KvWritten:
    """Store what a checked write leaves."""
    own = shard.names.own_prefix(tenant)
    values = shard.values.by_tenant.get(tenant)
    if values is None:
        values = shard.values.by_tenant[tenant] = Values()
    version = shard.numbering.next_name()
    deleted = 0
    for key, value in left.items():
        old = values.entries.get(key)
        if old is None and value is None:
            continue
        if old is not None:
            _remove(shard, tenant, values, key, old)
        if value is not None:
            kept = Value(value.data, version, value.expires_at)
            values.entries[key] = kept
            values.keys.add(key)
            values.size += weight(key, kept)
            if kept.expires_at:
                shard.timers.values.add(kept.expires_at, (tenant, key))
                shard.timers.alarm.sooner(kept.expires_at)
            shard.changes.put_own(keyspace.value_key(own, key), codec.pack_value(kept))
        else:
            shard.changes.put_own(keyspace.value_key(own, key), None)
            deleted += 1
        if shard.values.is_watched:
            shard.values.touched[tenant, key] = None
    return KvWritten(version, [values.entries.get(key) for key in left], deleted)


def _remove(shard: Shard, tenant: str, values: Values, key: bytes, old: Value) -> None:
    del values.entries[key]
    values.keys.remove(key)
    values.size -= weight(key, old)
    if old.expires_at:
        shard.timers.values.remove(old.expires_at, (tenant, key))


def write(shard: Shard, command: KvWrite, now: int) -> KvWritten:
    return apply(shard, command.tenant, check(shard, command, now))


EXPIRED_AT_ONCE = 1_000
"""Expired entries removed per tick."""


def expire(shard: Shard, now: int) -> None:
    """Remove expired entries, up to ``EXPIRED_AT_ONCE``."""
    left = EXPIRED_AT_ONCE
    while left > 0 and (due := shard.timers.values.first_due(now)):
        by_tenant: dict[str, Left] = {}
        for tenant, key in due[:left]:
            by_tenant.setdefault(tenant, {})[key] = None
        for tenant, gone in by_tenant.items():
            apply(shard, tenant, gone)
        left -= len(due)
