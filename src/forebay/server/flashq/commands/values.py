"""Keys and values. A key is a string; times to live are in ms."""

from msgspec import Raw, Struct

from forebay.core.api import commands as core, jobs as job_commands, queries
from forebay.core.errors import ForebayError, NotFound
from forebay.core.keyvalue import keys
from forebay.core.state import Value
from forebay.core.words import DELETE, EXPIRE, SET, SUM
from forebay.server.flashq import answers
from forebay.server.flashq.caller import Caller
from forebay.server.flashq.command import Asked, Whole, ask
from forebay.server.tcp.codec import Ready, Services

KEYS_MAX = 100_000
"""Keys that KVKEYS shows, at most."""
PAGE = 1_000


def _packed(key: str) -> bytes:
    return keys.pack([key])


def _raw(value: Value | None) -> Raw | None:
    return None if value is None else Raw(value.data)


class KvSet(Asked, tag="KVSET", gc=False, kw_only=True):
    key: str
    value: Raw
    ttl: Whole | None = None

    def nested(self) -> tuple[int, int]:
        return 1, len(self.value)

    def asked(self, caller: Caller) -> core.Command:
        change = job_commands.KvChange(SET, _packed(self.key), bytes(self.value), self.ttl)
        return job_commands.KvWrite(caller.tenant, [change])

    def reply(self, reply: job_commands.KvWritten, caller: Caller) -> Struct:
        return answers.Answer()


class Entry(Struct, gc=False):
    key: str
    value: Raw
    ttl: Whole | None = None


class KvSetMany(Asked, tag="KVMSET", gc=False, kw_only=True):
    entries: list[Entry]

    def nested(self) -> tuple[int, int]:
        return 3, max((len(each.value) for each in self.entries), default=0)

    def asked(self, caller: Caller) -> core.Command:
        if not self.entries:
            raise Ready(None)
        changes = [
            job_commands.KvChange(SET, _packed(each.key), bytes(each.value), each.ttl)
            for each in self.entries
        ]
        return job_commands.KvWrite(caller.tenant, changes)

    def reply(self, reply: job_commands.KvWritten | None, caller: Caller) -> Struct:
        return answers.Count(count=len(self.entries))


class KvDelete(Asked, tag="KVDEL", gc=False, kw_only=True):
    """Delete a key; the answer says whether it existed."""

    key: str

    def asked(self, caller: Caller) -> core.Command:
        return job_commands.KvWrite(caller.tenant, [job_commands.KvChange(DELETE, _packed(self.key))])

    def reply(self, reply: job_commands.KvWritten, caller: Caller) -> Struct:
        return answers.Exists(exists=reply.deleted > 0)


class KvExpire(Asked, tag="KVEXPIRE", gc=False, kw_only=True):
    """Give a key another time to live; the answer says whether it exists."""

    key: str
    ttl: Whole

    def asked(self, caller: Caller) -> core.Command:
        change = job_commands.KvChange(EXPIRE, _packed(self.key), ttl_ms=self.ttl)
        return job_commands.KvWrite(caller.tenant, [change])

    def reply(self, reply: job_commands.KvWritten, caller: Caller) -> Struct:
        return answers.Exists(exists=reply.values != [None])

    def otherwise(self, error: ForebayError) -> Struct | ForebayError:
        return answers.Exists(exists=False) if isinstance(error, NotFound) else error


class KvIncrement(Asked, tag="KVINCR", gc=False, kw_only=True):
    key: str
    by: int | None = None

    def asked(self, caller: Caller) -> core.Command:
        by = 1 if self.by is None else self.by
        change = job_commands.KvChange(SUM, _packed(self.key), str(by).encode())
        return job_commands.KvWrite(caller.tenant, [change])

    def reply(self, reply: job_commands.KvWritten, caller: Caller) -> Struct:
        (value,) = reply.values
        return answers.Value(value=_raw(value))


class KvGet(Asked, tag="KVGET", gc=False, kw_only=True):
    key: str

    def asked(self, caller: Caller) -> core.Command:
        return queries.KvGet(caller.tenant, [_packed(self.key)])

    def reply(self, reply: queries.KvFound, caller: Caller) -> Struct:
        (value,) = reply.values
        return answers.Value(value=_raw(value))


class KvGetMany(Asked, tag="KVMGET", gc=False, kw_only=True):
    keys: list[str]

    def asked(self, caller: Caller) -> core.Command:
        if not self.keys:
            raise Ready(queries.KvFound([]))
        return queries.KvGet(caller.tenant, list(map(_packed, self.keys)))

    def reply(self, reply: queries.KvFound, caller: Caller) -> Struct:
        return answers.Values(values=list(map(_raw, reply.values)))


class KvExists(KvGet, tag="KVEXISTS", gc=False, kw_only=True):
    def reply(self, reply: queries.KvFound, caller: Caller) -> Struct:
        return answers.Exists(exists=reply.values != [None])


class KvTtl(KvGet, tag="KVTTL", gc=False, kw_only=True):
    """What is left of a key's time; -1 if it has no end, -2 if there is no such key."""

    def reply(self, reply: queries.KvFound, caller: Caller) -> Struct:
        (value,) = reply.values
        ttl = -2 if value is None else max(value.expires_at - reply.now, 0) if value.expires_at else -1
        return answers.Ttl(ttl=ttl)


class KvKeys(Asked, tag="KVKEYS", gc=False, kw_only=True):
    is_command = False
    pattern: str | None = None

    async def steps(self, services: Services, caller: Caller) -> list[str]:
        found: list[str] = []
        low = b""
        while len(found) < KEYS_MAX:
            asked = queries.KvList(caller.tenant, low=low, pattern=self.pattern or "*", count=PAGE)
            page = await ask(services, caller, asked)
            assert isinstance(page, queries.KvListed)
            found += [str(keys.unpack(key)[0]) for key, _ in page.entries]
            if page.next is None:
                break
            low = page.next
        return found

    def reply(self, reply: list[str], caller: Caller) -> Struct:
        return answers.Keys(keys=reply)
