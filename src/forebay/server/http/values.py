"""Keys and values, and crons."""

from typing import Any
from urllib.parse import unquote

from msgspec import UNSET, Raw, Struct, UnsetType, field

from forebay.core.api import commands as core, jobs as job_commands, queries
from forebay.core.errors import Invalid, NotFound
from forebay.core.keyvalue import keys
from forebay.core.state import Cron as CoreCron, Value
from forebay.core.structures.agenda import NEVER
from forebay.core.words import DELETE, EXPIRE, SET
from forebay.server.http.base import Asked, Key, KeyPart, Request, packed
from forebay.server.http.pushes import Message, job_of
from forebay.server.versions import parse_version, shown_version

VALUES = "/v1/kv/"
"""What keys in paths stand behind."""


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
    """The key in a path: each part of it a text, in which %2F is a slash."""
    if b"%2f" in asked.raw_path.lower():
        parts = list(map(unquote, asked.raw_path.decode().removeprefix(VALUES).split("/")))
    else:
        parts = asked.path["key"].split("/")
    if not all(parts):
        raise Invalid("key", "parts that are not empty, with / between them")
    return packed(list(parts))


class GetValue(Request, kw_only=True):
    """The value of a key: each part of the path is a part of the key."""

    def command(self, asked: Asked) -> core.Command:
        return queries.KvGet(asked.tenant, [key_of(asked)])

    def reply(self, reply: queries.KvFound, asked: Asked) -> Struct:
        (value,) = reply.values
        if value is None:
            raise NotFound("there is no such key")
        return entry(key_of(asked), value)


class Written(Struct, gc=False, kw_only=True):
    """``version`` is that of everything written by it; ``deleted`` counts keys that are there no more."""

    version: str
    deleted: int


class Writing(Request, kw_only=True):
    def reply(self, reply: job_commands.KvWritten, asked: Asked) -> Struct:
        return Written(version=shown_version(reply.version), deleted=reply.deleted)


class PutValue(Writing, kw_only=True):
    """Set the value of a key; only if it is of a ``version``, if that is given (null: if it is not there)."""

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
    """Delete a key; only if it is of a ``version``, if that is given."""

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
    """Keys and values below a ``prefix`` like ``users/7``."""

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
    """A key, and the version it must be of; null if it must not be there."""

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
    """Change some keys, all or none, if some keys are of the versions that are given."""

    checks: list[Check] = field(default_factory=list)
    mutations: list[Mutation] = field(default_factory=list)

    def nested(self) -> tuple[int, int]:
        return 3, max((len(each.value) for each in self.mutations if each.value is not UNSET), default=0)

    def command(self, asked: Asked) -> core.Command:
        return writing(asked.tenant, self.checks, self.mutations)


# Crons.


class Cron(Struct, gc=False, kw_only=True):
    """A message that is pushed again and again."""

    name: str
    queue: str
    partition: str
    payload: Raw
    schedule: str | None
    every_ms: int | None
    timezone: str
    limit: int | None
    missed: str
    fired: int
    skipped: int
    last_at: int | None
    next_at: int | None
    error: str | None


def shown_cron(cron: CoreCron) -> Cron:
    return Cron(
        name=cron.name,
        queue=cron.queue,
        partition=cron.partition,
        payload=Raw(cron.payload),
        schedule=cron.schedule or None,
        every_ms=cron.every_ms or None,
        timezone=cron.zone,
        limit=cron.limit or None,
        missed=cron.missed,
        fired=cron.fired,
        skipped=cron.skipped,
        last_at=cron.last_slot or None,
        next_at=cron.next_at if cron.next_at != NEVER else None,
        error=cron.error or None,
    )


class PutCron(Request, kw_only=True):
    """Have a ``message`` pushed to a ``queue`` by a ``schedule``, or every ``every_ms``."""

    queue: str
    message: Message
    schedule: str | None = None
    every_ms: int | None = None
    timezone: str = "UTC"
    limit: int | None = None
    missed: str = "last"

    def nested(self) -> tuple[int, int]:
        return 2, len(self.message.payload)

    def command(self, asked: Asked) -> core.Command:
        for name in ("job_id", "transaction_id", "depends_on", "on_failed"):
            if getattr(self.message, name) is not None:
                raise Invalid(f"message.{name}", "left out: a cron has none")
        return job_commands.CronPut(
            asked.tenant,
            asked.path["name"],
            self.queue,
            job_of(self.message, self.message.payload),
            self.schedule,
            self.every_ms,
            self.timezone,
            self.limit or 0,
            self.missed,
        )

    def reply(self, reply: queries.CronsFound, asked: Asked) -> Struct:
        (cron,) = reply.crons
        return shown_cron(cron)


class Crons(Struct, gc=False, kw_only=True):
    """By name; with ``more``, ask again with the last name as ``after``."""

    crons: list[Cron]
    more: bool


class ListCrons(Request, kw_only=True):
    """The crons, by name."""

    after: str | None = None

    def command(self, asked: Asked) -> core.Command:
        return queries.CronList(asked.tenant, self.after)

    def reply(self, reply: queries.CronsFound, asked: Asked) -> Struct:
        return Crons(crons=list(map(shown_cron, reply.crons)), more=reply.more)


class GetCron(Request, kw_only=True):
    """One cron."""

    def command(self, asked: Asked) -> core.Command:
        return queries.CronList(asked.tenant, name=asked.path["name"])

    def reply(self, reply: queries.CronsFound, asked: Asked) -> Struct:
        (cron,) = reply.crons
        return shown_cron(cron)


class Gone(Struct, gc=False, kw_only=True):
    """What is there no more."""

    name: str


class DeleteCron(Request, kw_only=True):
    """Have it pushed no more."""

    def command(self, asked: Asked) -> core.Command:
        return job_commands.CronDelete(asked.tenant, asked.path["name"])

    def reply(self, reply: job_commands.CronDeleted, asked: Asked) -> Struct:
        return Gone(name=reply.name)
