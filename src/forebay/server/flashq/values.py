"""Keys and values: flashQ's commands, and Forebay's for prefixes, checks and watches."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from forebay.core.api import commands as core, jobs as job_commands, queries
from forebay.core.errors import Invalid
from forebay.core.keyvalue import keys
from forebay.core.state import Value
from forebay.core.words import DELETE, EXPIRE, SET, SUM
from forebay.server.cursors import parse_version, shown_version
from forebay.server.flashq import replies
from forebay.server.flashq.request import Context, KeyIn, Request, packed


def version_of(value: Value | None) -> str | None:
    """Return a version as text that sorts as versions do."""
    return None if value is None else shown_version(value.version)


def _raw(value: Value | None) -> Raw | None:
    return None if value is None else Raw(value.data)


def _shown(key: bytes) -> list[Any]:
    return [part.hex() if isinstance(part, bytes) else part for part in keys.unpack(key)]


class Writing(Request, gc=False, kw_only=True):
    """Writes that are answered with the version written."""

    def reply(self, reply: job_commands.KvWritten, context: Context) -> Struct:
        version = shown_version(reply.version)
        return replies.OkVersion(ok=True, version=version, reqId=self.reqId)


class KvSet(Writing, tag="KVSET", gc=False, kw_only=True):
    key: KeyIn
    value: Raw
    ttl: int | None = None

    def nested(self) -> tuple[int, int]:
        return 1, len(self.value)

    def command(self, context: Context) -> job_commands.KvWrite:
        change = job_commands.KvChange(SET, packed(self.key), bytes(self.value), self.ttl)
        return job_commands.KvWrite(context.tenant, [change])


class Entry(Struct, forbid_unknown_fields=True, gc=False):
    key: KeyIn
    value: Raw
    ttl: int | None = None


class KvSetMany(Writing, tag="KVMSET", gc=False, kw_only=True):
    entries: list[Entry]

    def nested(self) -> tuple[int, int]:
        return 3, max((len(each.value) for each in self.entries), default=0)

    def command(self, context: Context) -> job_commands.KvWrite:
        if not self.entries:
            raise Invalid("entries", "a list of one or more")
        changes = [
            job_commands.KvChange(SET, packed(each.key), bytes(each.value), each.ttl) for each in self.entries
        ]
        return job_commands.KvWrite(context.tenant, changes)


class KvDelete(Request, tag="KVDEL", gc=False, kw_only=True):
    key: KeyIn | UnsetType = UNSET
    keys: list[KeyIn] | UnsetType = UNSET

    def command(self, context: Context) -> job_commands.KvWrite:
        if (self.key is UNSET) == (self.keys is UNSET):
            raise Invalid("key", "given, or else keys, but not both")
        given = [self.key] if self.key is not UNSET else self.keys
        assert given is not UNSET
        if not given:
            raise Invalid("keys", "a list of one or more")
        return job_commands.KvWrite(
            context.tenant, [job_commands.KvChange(DELETE, packed(each)) for each in given]
        )

    def reply(self, reply: job_commands.KvWritten, context: Context) -> Struct:
        return replies.OkTotal(ok=True, count=reply.deleted, reqId=self.reqId)


class KvExpire(Request, tag="KVEXPIRE", gc=False, kw_only=True):
    key: KeyIn
    ttl: int

    def command(self, context: Context) -> job_commands.KvWrite:
        return job_commands.KvWrite(
            context.tenant, [job_commands.KvChange(EXPIRE, packed(self.key), ttl_ms=self.ttl)]
        )

    def reply(self, reply: job_commands.KvWritten, context: Context) -> Struct:
        return replies.Ok(ok=True, reqId=self.reqId)


class KvIncrement(Request, tag="KVINCR", gc=False, kw_only=True):
    key: KeyIn
    by: int | float = 1

    def command(self, context: Context) -> job_commands.KvWrite:
        change = job_commands.KvChange(SUM, packed(self.key), str(self.by).encode())
        return job_commands.KvWrite(context.tenant, [change])

    def reply(self, reply: job_commands.KvWritten, context: Context) -> Struct:
        (value,) = reply.values
        return replies.OkValue(ok=True, value=_raw(value), version=version_of(value), reqId=self.reqId)


class Check(Struct, forbid_unknown_fields=True, gc=False):
    key: KeyIn
    version: str | None


class Mutation(Struct, forbid_unknown_fields=True, gc=False):
    kind: str
    key: KeyIn
    value: Raw | UnsetType = UNSET
    ttl: int | None = None


class KvAtomic(Writing, tag="KVATOMIC", gc=False, kw_only=True):
    checks: list[Check] = msgspec.field(default_factory=list)
    mutations: list[Mutation] = msgspec.field(default_factory=list)

    def nested(self) -> tuple[int, int]:
        values = [each.value for each in self.mutations if each.value is not UNSET]
        return 3, max(map(len, values), default=0)

    def command(self, context: Context) -> job_commands.KvWrite:
        if not self.checks and not self.mutations:
            raise Invalid("mutations", "given, or else checks")
        checks = [(packed(each.key), parse_version(each.version)) for each in self.checks]
        return job_commands.KvWrite(context.tenant, list(map(_change, self.mutations)), checks)


def _change(given: Mutation) -> job_commands.KvChange:
    if given.value is not UNSET and given.kind in (DELETE, EXPIRE):
        raise Invalid("mutations.value", f"left out: {given.kind} takes none")
    if given.value is UNSET and given.kind not in (DELETE, EXPIRE):
        raise Invalid("mutations.value", "given")
    data = b"null" if given.value is UNSET else bytes(given.value)
    return job_commands.KvChange(given.kind, packed(given.key), data, given.ttl)


# Reading.


class KvGet(Request, tag="KVGET", gc=False, kw_only=True):
    key: KeyIn

    def command(self, context: Context) -> core.Command:
        return queries.KvGet(context.tenant, [packed(self.key)])

    def reply(self, reply: queries.KvFound, context: Context) -> Struct:
        (value,) = reply.values
        return replies.OkValue(ok=True, value=_raw(value), version=version_of(value), reqId=self.reqId)


class KvGetMany(Request, tag="KVMGET", gc=False, kw_only=True):
    keys: list[KeyIn]

    def command(self, context: Context) -> core.Command:
        return queries.KvGet(context.tenant, list(map(packed, self.keys)))

    def reply(self, reply: queries.KvFound, context: Context) -> Struct:
        return replies.OkValues(
            ok=True,
            values=list(map(_raw, reply.values)),
            versions=list(map(version_of, reply.values)),
            reqId=self.reqId,
        )


class KvExists(Request, tag="KVEXISTS", gc=False, kw_only=True):
    key: KeyIn

    def command(self, context: Context) -> core.Command:
        return queries.KvGet(context.tenant, [packed(self.key)])

    def reply(self, reply: queries.KvFound, context: Context) -> Struct:
        return replies.OkExists(ok=True, exists=reply.values != [None], reqId=self.reqId)


class KvTtl(Request, tag="KVTTL", gc=False, kw_only=True):
    key: KeyIn

    def command(self, context: Context) -> core.Command:
        return queries.KvGet(context.tenant, [packed(self.key)])

    def reply(self, reply: queries.KvFound, context: Context) -> Struct:
        (value,) = reply.values
        ttl = -2 if value is None else max(value.expires_at - reply.now, 0) if value.expires_at else -1
        return replies.OkTtl(ok=True, ttl=ttl, reqId=self.reqId)


class KvKeys(Request, tag="KVKEYS", gc=False, kw_only=True):
    pattern: str = "*"
    cursor: str | None = None

    def command(self, context: Context) -> core.Command:
        return queries.KvList(context.tenant, low=_cursor(self.cursor), pattern=self.pattern, count=1_000)

    def reply(self, reply: queries.KvListed, context: Context) -> Struct:
        found = [str(keys.unpack(key)[0]) for key, _ in reply.entries]
        return replies.OkKeys(ok=True, keys=found, cursor=_next(reply), reqId=self.reqId)


def _cursor(given: str | None) -> bytes:
    """Parse the cursor of a list; raise unless it is one that the server gave out."""
    try:
        return b"" if given is None else bytes.fromhex(given)
    except ValueError:
        raise Invalid("cursor", "what the answer before had") from None


def _next(reply: queries.KvListed) -> str | None:
    return None if reply.next is None else reply.next.hex()


class KvList(Request, tag="KVLIST", gc=False, kw_only=True):
    prefix: KeyIn | None = None
    start: KeyIn | None = None
    end: KeyIn | None = None
    limit: int = 100
    reverse: bool = False
    cursor: str | None = None

    def command(self, context: Context) -> core.Command:
        low, high = _bounds(self.start), _bounds(self.end)
        if self.cursor is not None:
            going_on = _cursor(self.cursor)
            low, high = (low, going_on) if self.reverse else (going_on, high)
        return queries.KvList(
            context.tenant, _bounds(self.prefix) or b"", low or b"", high, self.limit, self.reverse
        )

    def reply(self, reply: queries.KvListed, context: Context) -> Struct:
        entries = [_entry(key, value) for key, value in reply.entries]
        return replies.OkEntries(ok=True, entries=entries, cursor=_next(reply), reqId=self.reqId)


def _bounds(given: KeyIn | None) -> bytes | None:
    return None if given is None or given == [] else packed(given)


def _entry(key: bytes, value: Value) -> dict[str, Any]:
    shown = {"key": _shown(key), "value": Raw(value.data), "version": version_of(value)}
    return shown | ({"expires_at": value.expires_at} if value.expires_at else {})


class KvWatch(Request, tag="KVWATCH", gc=False, kw_only=True):
    keys: list[KeyIn]
    versions: list[str | None]
    timeout: int | UnsetType = UNSET

    def command(self, context: Context) -> core.Command:
        wait_ms = context.wait_ms if self.timeout is UNSET else self.timeout
        known = list(map(parse_version, self.versions))
        return queries.KvWatch(context.tenant, list(map(packed, self.keys)), known, wait_ms)

    def reply(self, reply: queries.KvFound, context: Context) -> Struct:
        versions: Sequence[str | None] = list(map(version_of, reply.values))
        return replies.OkValues(
            ok=True,
            changed=reply.changed,
            values=list(map(_raw, reply.values)),
            versions=list(versions),
            reqId=self.reqId,
        )
