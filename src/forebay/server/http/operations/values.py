"""Keys and values over HTTP."""

from typing import Any
from urllib.parse import unquote

from msgspec import UNSET, Raw, Struct, UnsetType, field

from forebay.core.api import commands as core, jobs as job_commands, queries
from forebay.core.errors import Invalid, NotFound
from forebay.core.keyvalue import keys
from forebay.core.state import Value
from forebay.core.words import DELETE, EXPIRE, SET
from forebay.server.cursors import parse_version, shown_version
from forebay.server.http.operation import Asked, Key, KeyPart, Request, packed

VALUES = "/v1/kv/"
"""Path in front of a key."""


class Entry(Struct, gc=False, kw_only=True, omit_defaults=True):
    """A key and its value. ``version`` sorts as text."""

    key: list[Any]
    value: Raw
    version: str
    expires_at: int | UnsetType = UNSET


def entry(key: bytes, value: Value) -> Entry:
    parts = [part.hex() if isinstance(part, bytes) else part for part in keys.unpack(key)]
    return Entry(
        key=parts,
        value=Raw(value.data),
        version=shown_version(value.version),
        expires_at=value.expires_at or UNSET,
    )


def key_of(asked: Asked) -> bytes:
    """Return the key in a path: each part of the path is a string, in which %2F is a slash."""
    if b"%2f" in asked.raw_path.lower():
        parts = list(map(unquote, asked.raw_path.decode().removeprefix(VALUES).split("/")))
    else:
        parts = asked.path["key"].split("/")
    if not all(parts):
        raise Invalid("key", "parts that are not empty, with / between them")
    return packed(list(parts))


class GetValue(Request, kw_only=True):
    """Return the value of a key: each part of the path is a part of the key."""

    def command(self, asked: Asked) -> core.Command:
        return queries.KvGet(asked.tenant, [key_of(asked)])

    def reply(self, reply: queries.KvFound, asked: Asked) -> Struct:
        (value,) = reply.values
        if value is None:
            raise NotFound("there is no such key")
        return entry(key_of(asked), value)


class Written(Struct, gc=False, kw_only=True):
    """``version`` of everything that was written, and how many keys were ``deleted``."""

    version: str
    deleted: int


class Writing(Request, kw_only=True):
    def reply(self, reply: job_commands.KvWritten, asked: Asked) -> Struct:
        return Written(version=shown_version(reply.version), deleted=reply.deleted)


class PutValue(Writing, kw_only=True):
    """Set the value of a key. With ``version``, only if the key is at that version (null: does not exist)."""

    value: Raw
    ttl_ms: int | None = None
    version: str | UnsetType | None = UNSET

    def nested(self) -> tuple[int, int]:
        return 1, len(self.value)

    def command(self, asked: Asked) -> core.Command:
        key = key_of(asked)
        checks = [] if self.version is UNSET else [(key, parse_version(self.version))]
        return job_commands.KvWrite(
            asked.tenant, [job_commands.KvChange(SET, key, bytes(self.value), self.ttl_ms)], checks
        )


class DeleteValue(Writing, kw_only=True):
    """Delete a key. With ``version``, only if the key is at that version."""

    version: str | None = None

    def command(self, asked: Asked) -> core.Command:
        key = key_of(asked)
        checks = [] if self.version is None else [(key, parse_version(self.version))]
        return job_commands.KvWrite(asked.tenant, [job_commands.KvChange(DELETE, key)], checks)


class Listed(Struct, gc=False, kw_only=True):
    """Keys and values in the order of their keys. With a ``cursor`` there are more."""

    entries: list[Entry]
    cursor: str | None


class ListValues(Request, kw_only=True):
    """List keys and values below a ``prefix`` like ``users/7``."""

    prefix: str | None = None
    limit: int = 100
    reverse: bool = False
    cursor: str | None = None

    def command(self, asked: Asked) -> core.Command:
        parts: list[KeyPart] = [part for part in (self.prefix or "").split("/") if part]
        prefix = packed(parts) if parts else b""
        low, high = b"", None
        if self.cursor is not None:
            try:
                going_on = bytes.fromhex(self.cursor)
            except ValueError:
                raise Invalid("cursor", "what the answer before had") from None
            low, high = (b"", going_on) if self.reverse else (going_on, None)
        return queries.KvList(asked.tenant, prefix, low, high, self.limit, self.reverse)

    def reply(self, reply: queries.KvListed, asked: Asked) -> Struct:
        entries = [entry(key, value) for key, value in reply.entries]
        return Listed(entries=entries, cursor=None if reply.next is None else reply.next.hex())


class Check(Struct, forbid_unknown_fields=True, gc=False):
    """A key, and the version it must be at; null if it must not exist."""

    key: Key
    version: str | None


class Mutation(Struct, forbid_unknown_fields=True, gc=False):
    """A change of a key: set, delete, sum, max, min, append, prepend or expire."""

    kind: str
    key: Key
    value: Raw | UnsetType = UNSET
    ttl_ms: int | None = None


def writing(tenant: str, checks: list[Check], mutations: list[Mutation]) -> job_commands.KvWrite:
    if not checks and not mutations:
        raise Invalid("mutations", "given, or else checks")
    known = [(packed(each.key), parse_version(each.version)) for each in checks]
    return job_commands.KvWrite(tenant, list(map(_change, mutations)), known)


def _change(given: Mutation) -> job_commands.KvChange:
    bare = given.kind in (DELETE, EXPIRE)
    if bare != (given.value is UNSET):
        raise Invalid("mutations.value", f"left out: {given.kind} takes none" if bare else "given")
    data = b"null" if given.value is UNSET else bytes(given.value)
    return job_commands.KvChange(given.kind, packed(given.key), data, given.ttl_ms)


class WriteValues(Writing, kw_only=True):
    """Change several keys, all or none; only if the keys in ``checks`` are at the versions given."""

    checks: list[Check] = field(default_factory=list)
    mutations: list[Mutation] = field(default_factory=list)

    def nested(self) -> tuple[int, int]:
        return 3, max((len(each.value) for each in self.mutations if each.value is not UNSET), default=0)

    def command(self, asked: Asked) -> core.Command:
        return writing(asked.tenant, self.checks, self.mutations)
