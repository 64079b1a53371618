"""Push: one message, many, or a stream of lines."""

from collections.abc import Sequence
from operator import attrgetter

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from forebay.core.api import commands as core, jobs as job_commands
from forebay.core.bounds import DEPENDENCIES_MAX, check_name
from forebay.core.errors import Invalid
from forebay.core.ids import spans_of
from forebay.core.state import PLAIN, Attributes, Identity
from forebay.core.words import DEFAULT, DROP, FAIL
from forebay.server.http.operation import (
    Asked,
    Id,
    Key,
    Request,
    addresses,
    longest,
    packed,
    shown,
    shown_all,
)
from forebay.server.options import AnyBackoff, backoff_of


class Message(Struct, forbid_unknown_fields=True, gc=False, kw_only=True):
    """A message to push."""

    payload: Raw
    partition: str = DEFAULT
    key: str | None = None
    priority: int = 0
    delay_ms: int = 0
    ttl_ms: int = 0
    timeout_ms: int = 0
    max_attempts: int | None = None
    backoff: AnyBackoff | None = None
    lifo: bool = False
    unique_key: str | None = None
    dedup: str | None = None
    dedup_window_ms: int = 0
    dedup_max_ms: int = 0
    job_id: str | None = None
    transaction_id: str | None = None
    depends_on: list[Id] | None = None
    on_failed: str | None = None
    keys_if_undelivered: list[Key] | None = None
    headers: dict[str, str] | None = None
    tags: list[str] | None = None


class Options(Request, kw_only=True):
    """Fields of a push beside its payloads: options of the message, and of the request."""

    partition: str = DEFAULT
    key: str | None = None
    priority: int = 0
    delay_ms: int = 0
    ttl_ms: int = 0
    timeout_ms: int = 0
    max_attempts: int | None = None
    backoff: AnyBackoff | None = None
    lifo: bool = False
    unique_key: str | None = None
    dedup: str | None = None
    dedup_window_ms: int = 0
    dedup_max_ms: int = 0
    job_id: str | None = None
    transaction_id: str | None = None
    depends_on: list[Id] | None = None
    on_failed: str | None = None
    keys_if_undelivered: list[Key] | None = None
    headers: dict[str, str] | None = None
    tags: list[str] | None = None
    durability: str | None = None
    idempotency_key: str | None = None
    producer: str = ""


_PLAIN_FIELDS = (
    "priority",
    "delay_ms",
    "ttl_ms",
    "timeout_ms",
    "max_attempts",
    "backoff",
    "lifo",
    "headers",
    "tags",
)
_OWN_FIELDS = (
    "key",
    "unique_key",
    "dedup",
    "dedup_window_ms",
    "dedup_max_ms",
    "job_id",
    "transaction_id",
    "keys_if_undelivered",
    "depends_on",
    "on_failed",
)
_plain = attrgetter(*_PLAIN_FIELDS)
_own = attrgetter(*_OWN_FIELDS)
_lane = attrgetter("partition", *_PLAIN_FIELDS)
_payload = attrgetter("payload")


def _defaults(names: Sequence[str]) -> tuple[object, ...]:
    known = {each.name: each.default for each in msgspec.structs.fields(Message)}
    return tuple(known[name] for name in names)


_NO_PLAIN = _defaults(_PLAIN_FIELDS)
_NO_OWN = _defaults(_OWN_FIELDS)
_NO_LANE = (DEFAULT, *_NO_PLAIN)

Given = Message | Options


def attributes_of(given: Given) -> Attributes:
    """Return the attributes of a message; the shared PLAIN if it has none."""
    if _plain(given) == _NO_PLAIN and given.depends_on is None and given.on_failed is None:
        return PLAIN
    found = Attributes(
        given.priority,
        given.delay_ms,
        given.lifo,
        given.ttl_ms,
        given.timeout_ms,
        given.max_attempts,
        None if given.backoff is None else backoff_of(given.backoff),
        headers=tuple(given.headers.items()) if given.headers else (),
        tags=tuple(given.tags) if given.tags else (),
    )
    if given.depends_on is None and given.on_failed is None:
        return found
    if not given.depends_on:
        raise Invalid("depends_on", f"a list of 1 to {DEPENDENCIES_MAX} ids, also if on_failed is given")
    try:
        named = spans_of(addresses(given.depends_on))
    except Invalid as error:
        raise Invalid("depends_on", f"a list of ids, and one of them {error.accepted}") from None
    return replace(found, depends_on=named, on_failed=given.on_failed or FAIL)


def job_of(given: Given, payload: bytes) -> job_commands.Job:
    """Return a message with its identity and attributes."""
    partition = given.partition
    if given.key is not None:
        check_name("key", given.key)
        if given.key == DEFAULT or partition != DEFAULT:
            raise Invalid("key", f"given without partition, and another name than {DEFAULT}")
        partition = given.key
    return job_commands.Job(payload, partition, attributes_of(given), own_of(given), given.key is not None)


def own_of(given: Given) -> Identity | None:
    """Return the dedup identity of a message, or None."""
    if _own(given) == _NO_OWN:
        return None
    if given.dedup is not None and given.unique_key is None:
        raise Invalid("unique_key", "given along with dedup, dedup_window_ms and dedup_max_ms")
    own = Identity(
        given.unique_key,
        DROP if given.dedup is None else given.dedup,
        given.dedup_window_ms,
        given.dedup_max_ms,
        given.job_id,
        given.transaction_id,
        tuple(packed(each) for each in given.keys_if_undelivered or ()),
    )
    return own if own != Identity() else None


def are_alike(messages: list[Message]) -> bool:
    """Return whether messages go to one partition with the same options, and none has an identity."""
    if any(map(_NO_OWN.__ne__, map(_own, messages))):
        return False
    lanes = list(map(_lane, messages))
    return lanes.count(lanes[0]) == len(lanes)


def push_of(tenant: str, queue: str, messages: list[Message], durability: str | None = None) -> core.Command:
    """Return the cheapest command that pushes messages: one batch if they are alike."""
    if are_alike(messages):
        first = messages[0]
        payloads = list(map(_payload, messages))
        return core.Push(tenant, queue, payloads, first.partition, durability, attributes_of(first))
    return job_commands.PushJobs(tenant, queue, [job_of(each, each.payload) for each in messages], durability)


class Pushed(Struct, omit_defaults=True, gc=False, kw_only=True):
    """What was pushed: ``id`` of one message, ``ids`` of ``messages``, ``first`` id of ``payloads``."""

    id: Id | UnsetType = UNSET
    ids: Sequence[Id] | UnsetType = UNSET
    first: Id | UnsetType = UNSET
    count: int | UnsetType = UNSET
    durability: str
    duplicate: bool | UnsetType = UNSET
    replaced: bool | UnsetType = UNSET
    duplicates: list[int] | UnsetType = UNSET
    """Indexes of messages that were known already, and not pushed."""
    replacements: list[int] | UnsetType = UNSET
    """Indexes of messages that replaced others."""


class Push(Options, kw_only=True):
    """Push one message (``payload``), many with options each (``messages``), or many alike (``payloads``)."""

    payload: Raw | UnsetType = UNSET
    messages: list[Message] | UnsetType = UNSET
    payloads: list[Raw] | UnsetType = UNSET

    def nested(self) -> tuple[int, int]:
        if self.payload is not UNSET:
            return 1, len(self.payload)
        if self.payloads is not UNSET:
            return 2, longest(self.payloads)
        return 3, longest(list(map(_payload, self.messages))) if self.messages is not UNSET else 0

    def command(self, asked: Asked) -> core.Command:
        return self.pushing(asked.tenant, asked.queue)

    def pushing(self, tenant: str, queue: str) -> core.Command:
        if self.payload is not UNSET and self.messages is UNSET and self.payloads is UNSET:
            if _own(self) == _NO_OWN and self.idempotency_key is None and not self.producer:
                attributes = attributes_of(self)
                return core.Push(tenant, queue, [self.payload], self.partition, self.durability, attributes)
            return self.jobs_command(tenant, queue)
        self.check()
        if self.idempotency_key is not None or self.producer:
            return self.jobs_command(tenant, queue)
        if self.payloads is not UNSET:
            payloads: list[bytes] = self.payloads  # type: ignore[assignment]
            return core.Push(tenant, queue, payloads, self.partition, self.durability, attributes_of(self))
        assert self.messages is not UNSET
        return push_of(tenant, queue, self.messages, self.durability)

    def check(self) -> None:
        """Raise unless the fields go together."""
        given = [each for each in (self.payload, self.messages, self.payloads) if each is not UNSET]
        if len(given) != 1:
            raise Invalid("payload", "given, or else messages or payloads, and only one of them")
        if self.payload is not UNSET:
            return
        if not given[0]:
            name = "messages" if self.messages is not UNSET else "payloads"
            raise Invalid(name, "a list of one or more")
        if self.messages is not UNSET and (_lane(self) != _NO_LANE or _own(self) != _NO_OWN):
            raise Invalid("partition and the options of a message", "given in each of the messages")
        if self.payloads is not UNSET and _own(self) != _NO_OWN:
            raise Invalid("keys and ids of a message", "given in messages, each its own")

    def jobs_command(self, tenant: str, queue: str) -> job_commands.PushJobs:
        self.check()
        if self.payload is not UNSET:
            jobs = [job_of(self, self.payload)]
        elif self.messages is not UNSET:
            jobs = [job_of(each, each.payload) for each in self.messages]
        else:
            assert self.payloads is not UNSET
            attributes = attributes_of(self)
            jobs = [job_commands.Job(each, self.partition, attributes) for each in self.payloads]
        return job_commands.PushJobs(tenant, queue, jobs, self.durability, self._request())

    def _request(self) -> tuple[str, str] | None:
        if self.idempotency_key is None:
            if self.producer:
                raise Invalid("producer", "given along with an idempotency_key")
            return None
        return self.producer, self.idempotency_key

    def reply(self, reply: core.Pushed | job_commands.PushedJobs, asked: Asked) -> Struct:
        if isinstance(reply, core.Pushed):
            return self._reply_run(reply)
        if self.payload is not UNSET:
            return Pushed(
                id=shown(reply.ids[0]),
                durability=reply.durability,
                duplicate=True if reply.duplicates else UNSET,
                replaced=True if reply.replaced else UNSET,
            )
        if self.payloads is not UNSET:
            return Pushed(
                first=shown(reply.ids[0]),
                count=len(reply.ids),
                durability=reply.durability,
                duplicate=True if reply.duplicates else UNSET,
            )
        return Pushed(
            ids=shown_all(reply.ids),
            count=len(reply.ids),
            durability=reply.durability,
            duplicates=reply.duplicates or UNSET,
            replacements=reply.replaced or UNSET,
        )

    def _reply_run(self, reply: core.Pushed) -> Struct:
        if self.payload is not UNSET:
            return Pushed(id=shown(reply.first), durability=reply.durability)
        if self.payloads is not UNSET:
            return Pushed(first=shown(reply.first), count=reply.count, durability=reply.durability)
        ids = shown_all(range(reply.first, reply.first + reply.count))
        return Pushed(ids=list(ids), count=reply.count, durability=reply.durability)
