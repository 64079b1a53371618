"""Translation between this client's names and those of the wire."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, cast

import msgspec
from msgspec import Raw, Struct

from forebay.client.payloads import decoder, encode
from forebay.client.types import (
    DEFAULT,
    Batch,
    Counts,
    Cron,
    Group,
    Id,
    Message,
    New,
    Options,
    Partition,
    Pushed,
    Queue,
    Record,
    Seen,
    Settling,
)
from forebay.core.errors import Invalid

THEIRS = {"delay_ms": "delay", "ttl_ms": "ttl", "timeout_ms": "timeout", "every_ms": "repeat_every"}
STATES = {"dead": "failed", "parked": "waiting-children"}
_OURS = {theirs: ours for ours, theirs in STATES.items()}

EACH_ITS_OWN = {
    "unique_key",
    "dedup",
    "dedup_window_ms",
    "dedup_max_ms",
    "job_id",
    "transaction_id",
    "key",
    "keys_if_undelivered",
}
"""Options that can't be shared by the messages of a batch."""

_encode = msgspec.json.Encoder().encode


def request(cmd: str, fields: Mapping[str, Any]) -> bytes:
    """Encode a request; fields that are None are left out."""
    given = {name: value for name, value in fields.items() if value is not None}
    try:
        return _encode({"cmd": cmd, **given})
    except (TypeError, ValueError) as error:
        raise Invalid("request", f"something that can be sent as JSON; {error}") from None


OPTIONS = frozenset(Options.__annotations__)


def options_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Translate options of a message for the wire. Raise on an unknown one."""
    if not options.keys() <= OPTIONS:
        unknown = sorted(options.keys() - OPTIONS)[0]
        meant = get_close_matches(unknown, OPTIONS, 1)
        hint = f"; {meant[0]} was meant?" if meant else "."
        raise Invalid(unknown, f"left out{hint} Known are {', '.join(sorted(OPTIONS))}")
    return {THEIRS.get(name, name): value for name, value in options.items() if value is not None}


def job_of(item: Any, shared: Mapping[str, Any]) -> dict[str, Any]:
    """Return a payload, or a message with options of its own, as one of the jobs of a PUSHB."""
    if isinstance(item, New):
        return {**shared, **options_of(item.options), "data": Raw(encode(item.payload))}
    return {**shared, "data": Raw(encode(item))}


WAITS_MS = {"PULL": 60_000, "PULLB": 60_000, "WAITJOB": 30_000, "KVWATCH": 60_000}
"""Default timeouts of commands that long-poll."""

OUR_WORDS = {
    "PULLB": {"timeout": "wait_ms", "from": "start"},
    "WAITJOB": {"timeout": "wait_ms"},
    "KVWATCH": {"timeout": "wait_ms"},
    "CRON": {"repeat_every": "every_ms"},
    "DLQ": {"count": "limit", "offset": "skip"},
}


def in_our_words(error: Invalid, cmd: str) -> Invalid:
    """Return an error about a field under the field's name in this client."""
    words = {**{theirs: ours for ours, theirs in THEIRS.items()}, "data": "payload", **OUR_WORDS.get(cmd, {})}
    path, dot, field = error.field.rpartition(".")
    ours = words.get(field)
    return error if ours is None else Invalid(f"{path}{dot}{ours}", error.accepted)


def pushed_one(answer: "OkId", options: Mapping[str, Any]) -> Pushed:
    """Return the result of one push. Only a push that says what it is known by can be a duplicate."""
    known = answer.duplicate and bool(options.keys() & {*EACH_ITS_OWN, "idempotency_key"})
    return Pushed(int(answer.id), answer.durability, known, answer.replaced)


def our_state(state: str) -> str:
    return _OURS.get(state, state)


def their_state(state: str | None) -> str | None:
    return None if state is None else STATES.get(state, state)


# Targets of a settle.


def meant(
    what: Settling | None, lease: str | None, group: str | None, results: Sequence[Any] | None = None
) -> list[dict[str, Any]]:
    """Return the fields of one request for each lease that ``what`` is about."""
    if what is None or (isinstance(what, Batch) and results is None):
        token = lease if what is None else what.lease
        if token is None:
            raise Invalid("what", "a batch that is not empty, messages, ids, or a lease")
        return [{"lease": token}]
    found = list(_each(what))
    if not found:
        raise Invalid("what", "one or more messages, or ids of messages")
    if results is not None and len(results) != len(found):
        raise Invalid("results", f"one for each message, {len(found)}; there are {len(results)}")
    by_lease: dict[tuple[str | None, str | None], dict[str, Any]] = {}
    for at, each in enumerate(found):
        # An id without a lease means a message of a group, which must not depend on the client: so it is
        # always named.
        of = (each.lease, None) if isinstance(each, Message) else (lease, None if lease else group or DEFAULT)
        fields = by_lease.setdefault(of, {"ids": [], "lease": of[0], "group": of[1]})
        fields["ids"].append(each.id if isinstance(each, Message) else each)
        if results is not None:
            fields.setdefault("results", []).append(Raw(encode(results[at])))
    return list(by_lease.values())


def _each(what: Settling) -> Iterable[Message | Id]:
    if isinstance(what, Message | int | str):
        return [what]
    return cast(Iterable[Message | Id], what)


def ids_of(what: Settling) -> list[Id]:
    """Return the ids of messages, or the ids given."""
    return [each.id if isinstance(each, Message) else each for each in _each(what)]


# Responses.


class Done(Struct):
    """A response without fields."""


class OkId(Struct):
    id: Id
    durability: str
    duplicate: bool = False
    replaced: bool = False


class OkMany(Struct):
    durability: str
    first: Id | None = None
    count: int = 0
    ids: list[Id] = []
    duplicate: bool = False
    duplicates: set[int] = set()
    replaced: set[int] = set()

    def all_ids(self) -> list[int]:
        if self.first is None:
            return list(map(int, self.ids))
        first = int(self.first)
        return list(range(first, first + self.count))


class Run(Struct):
    partition: str
    first: Id
    offset: int
    created_at: int
    expires_at: int
    messages: list[Raw]
    attempts: int = 0
    priority: int = 0
    headers: dict[str, str] = {}
    tags: tuple[str, ...] = ()


class OkRuns(Struct):
    lease: str | None
    runs: list[Run]

    def messages(
        self, queue: str, group: str, decode: Callable[[Any], Any]
    ) -> tuple[list[Message], list[tuple[int, str]]]:
        """Return the delivered messages, and the ids of undecodable ones with the reason."""
        lease = self.lease or ""
        found: list[Message] = []
        bad: list[tuple[int, str]] = []
        for run in self.runs:
            first = int(run.first)
            about: Any = (
                run.created_at,
                run.attempts,
                run.priority,
                lease,
                run.expires_at,
                run.headers,
                run.tags,
            )
            for at, payload in enumerate(run.messages):
                try:
                    value = decode(payload)
                except (ValueError, NotImplementedError) as error:
                    bad.append((first + at, str(error)))
                else:
                    place = (queue, group, run.partition, run.offset + at)
                    found.append(Message(first + at, value, *place, *about))
        return found, bad


class OkCount(Struct):
    count: int = 0
    refused: list[Id] = []
    left: int = 0
    more: bool = False


class OkExtended(Struct):
    expires_at: int
    cancelled: bool


class LogRun(Struct):
    first: Id
    offset: int
    created_at: int
    messages: list[Raw]
    headers: dict[str, str] = {}
    tags: tuple[str, ...] = ()


class OkLog(Struct):
    partition: str
    next: int
    end: int
    runs: list[LogRun]

    def records(self, kind: Any) -> list[Record]:
        decode = decoder(kind)
        return [
            Record(
                int(run.first) + at,
                self.partition,
                run.offset + at,
                run.created_at,
                decode(payload),
                run.headers,
                run.tags,
            )
            for run in self.runs
            for at, payload in enumerate(run.messages)
        ]


class Job(Struct):
    """A message as shown by the server."""

    id: Id
    uuid: str
    queue: str
    partition: str
    offset: int
    data: Raw
    created_at: int
    priority: int
    attempts: int
    deliveries: int = 0
    state: str = "failed"
    error: str | None = None
    run_at: int | None = None
    ended_at: int | None = None
    failed_at: int | None = None
    job_id: str | None = None
    unique_key: str | None = None
    depends_on: list[Id] = []
    headers: dict[str, str] = {}
    tags: tuple[str, ...] = ()
    damaged: bool = False

    def seen(self, kind: Any) -> Seen:
        return Seen(
            id=int(self.id),
            uuid=self.uuid,
            queue=self.queue,
            partition=self.partition,
            offset=self.offset,
            payload=None if self.damaged else decoder(kind)(self.data),
            state=our_state(self.state),
            created_at=self.created_at,
            failures=self.attempts,
            deliveries=self.deliveries,
            priority=self.priority,
            error=self.error,
            due_at=self.run_at,
            ended_at=self.failed_at if self.ended_at is None else self.ended_at,
            job_id=self.job_id,
            unique_key=self.unique_key,
            depends_on=list(map(int, self.depends_on)),
            headers=self.headers,
            tags=self.tags,
            damaged=self.damaged,
        )


class OkJob(Struct):
    job: Job


class OkJobs(Struct):
    jobs: list[Job]
    total: int = 0
    cursor: str | None = None


class OkState(Struct):
    state: str


class OkAwaited(Struct):
    id: Id
    done: bool
    state: str
    result: Raw = Raw(b"null")
    error: str | None = None


class OkQueue(Struct):
    queue: str
    options: dict[str, Any]
    paused: bool
    partitions: list[Partition]
    groups: list[dict[str, Any]]
    paused_until: int | None = None

    def shown(self) -> Queue:
        return Queue(
            self.queue,
            self.options,
            self.paused,
            self.paused_until,
            self.partitions,
            groups_of(self.groups),
        )


class OkGroups(Struct):
    groups: list[dict[str, Any]]


class OkRows(Struct):
    """Lists of several kinds."""

    queues: list[dict[str, Any]] = []
    partitions: list[dict[str, Any]] = []
    limits: list[dict[str, Any]] = []
    logs: list[dict[str, Any]] = []


class OkCrons(Struct):
    crons: list["CronRow"]
    more: bool = False


class CronRow(Struct):
    name: str
    queue: str
    partition: str
    data: Raw
    schedule: str | None = None
    repeat_every: int | None = None
    timezone: str | None = None
    limit: int | None = None
    missed: str = "last"
    executions: int = 0
    skipped: int = 0
    last_run: int | None = None
    next_run: int | None = None
    error: str | None = None

    def shown(self) -> Cron:
        return Cron(
            name=self.name,
            queue=self.queue,
            payload=decoder()(self.data),
            partition=self.partition,
            schedule=self.schedule,
            every_ms=self.repeat_every,
            timezone=self.timezone or "UTC",
            limit=self.limit,
            missed=self.missed,
            fired=self.executions,
            skipped=self.skipped,
            last_at=self.last_run,
            next_at=self.next_run,
            error=self.error,
        )


class OkEvents(Struct):
    events: list[dict[str, Any]]
    after: str


def groups_of(rows: list[dict[str, Any]]) -> list[Group]:
    return [Group(row["group"], counts_of(row)) for row in rows]


COUNTED = {
    "pending": "waiting",
    "queued": "waiting",
    "processing": "active",
    "dlq": "dead",
    "failed": "dead",
    "waiting-children": "parked",
}
"""Names on the wire of some counts."""


def counts_of(row: Mapping[str, Any]) -> Counts:
    ours = {COUNTED.get(name, name): value for name, value in row.items()}
    return Counts(**{name: ours.get(name, 0) for name in Counts.__struct_fields__})
