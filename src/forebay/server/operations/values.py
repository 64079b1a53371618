"""Keys and values."""

from msgspec import UNSET, Raw

from forebay.core.api import commands as core, jobs as job_commands, queries
from forebay.core.errors import Invalid, NotFound
from forebay.core.keyvalue import keys
from forebay.core.state import Value
from forebay.core.words import DELETE, EXPIRE, SET, SUM
from forebay.server.cursors import parse_version, shown_version
from forebay.server.operations.carried import Carried, Context, longest, packed
from forebay.wire.operations import values as wire
from forebay.wire.operations.values import Entry, Listed, Mutation, Values, Watched, Written
from forebay.wire.types import Key


def entry(key: bytes, value: Value) -> Entry:
    parts = [part.hex() if isinstance(part, bytes) else part for part in keys.unpack(key)]
    return Entry(
        key=parts,
        value=Raw(value.data),
        version=shown_version(value.version),
        expires_at=value.expires_at or UNSET,
    )


def _version(value: Value | None) -> str | None:
    return None if value is None else shown_version(value.version)


def _raw(value: Value | None) -> Raw:
    return Raw(b"null" if value is None else value.data)


class GetValue(Carried, wire.GetValue):
    def command(self, context: Context) -> core.Command:
        return queries.KvGet(context.tenant, [packed(self.key)])

    def reply(self, reply: queries.KvFound, context: Context) -> Entry:
        (value,) = reply.values
        if value is None:
            raise NotFound("there is no such key")
        return entry(packed(self.key), value)


class GetValues(Carried, wire.GetValues):
    def command(self, context: Context) -> core.Command:
        return queries.KvGet(context.tenant, list(map(packed, self.keys)))

    def reply(self, reply: queries.KvFound, context: Context) -> Values:
        return Values(values=list(map(_raw, reply.values)), versions=list(map(_version, reply.values)))


def written(reply: job_commands.KvWritten) -> Written:
    return Written(version=shown_version(reply.version), deleted=reply.deleted)


class SetValue(Carried, wire.SetValue):
    def nested(self) -> tuple[int, int]:
        return 1, len(self.value)

    def command(self, context: Context) -> job_commands.KvWrite:
        key = packed(self.key)
        checks = [] if self.version is UNSET else [(key, parse_version(self.version))]
        change = job_commands.KvChange(SET, key, bytes(self.value), self.ttl_ms)
        return job_commands.KvWrite(context.tenant, [change], checks)

    def reply(self, reply: job_commands.KvWritten, context: Context) -> Written:
        return written(reply)


class DeleteValue(Carried, wire.DeleteValue):
    def command(self, context: Context) -> job_commands.KvWrite:
        key = packed(self.key)
        checks = [] if self.version is None else [(key, parse_version(self.version))]
        return job_commands.KvWrite(context.tenant, [job_commands.KvChange(DELETE, key)], checks)

    def reply(self, reply: job_commands.KvWritten, context: Context) -> Written:
        return written(reply)


class AddValue(Carried, wire.AddValue):
    def command(self, context: Context) -> job_commands.KvWrite:
        change = job_commands.KvChange(SUM, packed(self.key), str(self.by).encode())
        return job_commands.KvWrite(context.tenant, [change])

    def reply(self, reply: job_commands.KvWritten, context: Context) -> Entry:
        (value,) = reply.values
        assert value is not None, "a sum leaves a number"
        return entry(packed(self.key), value)


class WriteValues(Carried, wire.WriteValues):
    def nested(self) -> tuple[int, int]:
        return 3, longest([each.value for each in self.mutations if each.value is not UNSET])

    def command(self, context: Context) -> job_commands.KvWrite:
        if not self.checks and not self.mutations:
            raise Invalid("mutations", "given, or else checks")
        checks = [(packed(each.key), parse_version(each.version)) for each in self.checks]
        return job_commands.KvWrite(context.tenant, list(map(_change, self.mutations)), checks)

    def reply(self, reply: job_commands.KvWritten, context: Context) -> Written:
        return written(reply)


def _change(given: Mutation) -> job_commands.KvChange:
    bare = given.kind in (DELETE, EXPIRE)
    if bare != (given.value is UNSET):
        raise Invalid("mutations.value", f"left out: {given.kind} takes none" if bare else "given")
    data = b"null" if given.value is UNSET else bytes(given.value)
    return job_commands.KvChange(given.kind, packed(given.key), data, given.ttl_ms)


class ListValues(Carried, wire.ListValues):
    def command(self, context: Context) -> core.Command:
        low, high = _bound("start", self.start), _bound("end", self.end)
        if self.cursor is not None:
            going_on = _cursor(self.cursor)
            low, high = (low, going_on) if self.reverse else (going_on, high)
        prefix = _bound("prefix", self.prefix) or b""
        more = (self.limit, self.reverse, self.pattern)
        return queries.KvList(context.tenant, prefix, low or b"", high, *more)

    def reply(self, reply: queries.KvListed, context: Context) -> Listed:
        entries = [entry(key, value) for key, value in reply.entries]
        return Listed(entries=entries, cursor=None if reply.next is None else reply.next.hex())


def _bound(field: str, given: Key | None) -> bytes | None:
    try:
        return None if given is None or given == [] else packed(given)
    except Invalid as error:
        raise Invalid(field, error.accepted) from None


def _cursor(given: str) -> bytes:
    """Parse the cursor of a list; raise unless it is one that the server gave out."""
    try:
        return bytes.fromhex(given)
    except ValueError:
        raise Invalid("cursor", "what the answer before had") from None


class WatchValues(Carried, wire.WatchValues):
    def command(self, context: Context) -> core.Command:
        try:
            known = list(map(parse_version, self.versions))
        except Invalid as error:
            raise Invalid("versions", f"a list of versions, each {error.accepted}") from None
        return queries.KvWatch(context.tenant, list(map(packed, self.keys)), known, self.wait_ms)

    def reply(self, reply: queries.KvFound, context: Context) -> Watched:
        return Watched(
            changed=reply.changed,
            values=list(map(_raw, reply.values)),
            versions=list(map(_version, reply.values)),
        )
