"""Between this client's types and the requests and answers of the wire, which have the same names."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, cast

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from forebay.client.payloads import bytes_of, decoder, encode, is_bytes
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
    Pushed,
    Record,
    RunningJob,
    Seen,
    Settling,
    WorkerInfo,
)
from forebay.core.errors import Invalid
from forebay.wire.operations import crons, messages, pop, push, queues, workers
from forebay.wire.operations.tenants import Auth
from forebay.wire.text import BASE64, ENCODING

EACH_ITS_OWN = frozenset(each.name for each in msgspec.structs.fields(push.Options)) - frozenset(
    (*(each.name for each in msgspec.structs.fields(push.RunOptions)), "partition", "depends_on", "on_failed")
)
"""Options that can't be shared by the messages of a batch: what each is known by, and its key."""
OF_ALL = frozenset({"durability", "idempotency_key"})
"""Options of a request as a whole."""

_encode = msgspec.json.Encoder().encode
_payloads = msgspec.json.Decoder(list[Raw]).decode


def body_of(request: Struct | Mapping[str, Any]) -> bytes:
    """Encode a request."""
    try:
        return _encode(request)
    except (TypeError, ValueError) as error:
        raise Invalid("request", f"something that can be sent as JSON; {error}") from None


def for_tenant(request: Struct, tenant: str) -> None:
    """Have a request name the tenant that it is for, unless it names one, or is about the caller himself."""
    if getattr(request, "tenant", None) is UNSET and not isinstance(request, Auth):
        request.tenant = tenant  # type: ignore[attr-defined]


OPTIONS = frozenset(Options.__annotations__)


def options_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a message that are given. Raise on an unknown one."""
    if not options.keys() <= OPTIONS:
        unknown = sorted(options.keys() - OPTIONS)[0]
        meant = get_close_matches(unknown, OPTIONS, 1)
        hint = f"; {meant[0]} was meant?" if meant else "."
        raise Invalid(unknown, f"left out{hint} Known are {', '.join(sorted(OPTIONS))}")
    return {name: value for name, value in options.items() if value is not None}


def message_of(payload: Any, options: Mapping[str, Any]) -> tuple[bytes, dict[str, Any]]:
    """Return a payload as it travels, and the options of its message: a header says that it was bytes."""
    given = options_of(options)
    if is_bytes(payload):
        given["headers"] = {**given.get("headers", {}), ENCODING: BASE64}
    return encode(payload), given


def item_of(item: Any, shared: Mapping[str, Any]) -> push.Item:
    """Return a payload, or a message with options of its own, as one of the items of a push."""
    if isinstance(item, New):
        for name in OF_ALL & item.options.keys():
            raise Invalid(f"items.{name}", "given beside the messages: they are kept together")
        payload, options = message_of(item.payload, {**shared, **options_of(item.options)})
        return push.Item(payload=Raw(payload), **options)
    return push.Item(payload=Raw(encode(item)), **shared)


def filter_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what selects messages, in the words of the wire."""
    known = {each.name for each in msgspec.structs.fields(messages.Filter)} - {"queue", "limit", "cursor"}
    for name in given.keys() - known:
        raise Invalid(name, f"left out: messages are selected by {', '.join(sorted(known))}")
    found = {name: value for name, value in given.items() if value is not None}
    for name in found:
        if found[name] == "":
            raise Invalid(name, "left out, or a text: an empty one selects nothing in particular")
    return found


# Pushes.


def pushed_one(answer: push.Pushed, options: Mapping[str, Any]) -> Pushed:
    """Return the result of one push. Only a push that says what it is known by can be a duplicate."""
    known = answer.duplicate and bool(options.keys() & {*EACH_ITS_OWN, "idempotency_key"})
    assert answer.id is not UNSET
    return Pushed(int(answer.id), answer.durability, known, answer.replaced)


def ids_pushed(answer: push.Pushed) -> list[int]:
    """Return the ids of many messages that were pushed."""
    if answer.first is UNSET:
        return list(map(int, answer.ids or ()))
    first = int(answer.first)
    assert answer.count is not UNSET
    return list(range(first, first + answer.count))


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


# Messages.


def delivered(
    popped: pop.Popped, queue: str, group: str, kind: Any
) -> tuple[list[Message], list[tuple[int, str]]]:
    """Return the delivered messages, and the ids of undecodable ones with the reason."""
    lease = popped.lease or ""
    found: list[Message] = []
    bad: list[tuple[int, str]] = []
    for run in popped.runs or ():
        first = int(run.first)
        about: Any = (
            run.created_at,
            run.failures,
            run.priority,
            lease,
            run.expires_at,
            run.headers or {},
            run.tags or (),
            run.deliveries,
        )
        decode = decoder_of(kind, run.headers)
        for at, payload in enumerate(_payloads(run.payloads)):
            try:
                value = decode(payload)
            except (ValueError, NotImplementedError) as error:
                bad.append((first + at, str(error)))
            else:
                place = (queue, group, run.partition, run.offset + at)
                found.append(Message(first + at, value, *place, *about))
    return found, bad


def decoder_of(kind: Any, headers: Mapping[str, str] | UnsetType) -> Callable[[Any], Any]:
    """Return what decodes payloads to a type; without one, to bytes if that is what was pushed."""
    if kind is Any and headers and headers.get(ENCODING) == BASE64:
        return bytes_of
    return decoder(kind)


def records(stretch: messages.Stretch, kind: Any) -> list[Record]:
    return [
        Record(
            int(run.first) + at,
            stretch.partition,
            run.offset + at,
            run.created_at,
            decode(payload),
            run.headers or {},
            run.tags or (),
        )
        for run in stretch.runs
        for decode in (decoder_of(kind, run.headers),)
        for at, payload in enumerate(_payloads(run.payloads))
    ]


def seen(found: messages.Seen, kind: Any) -> Seen:
    return Seen(
        id=int(found.id),
        uuid=found.uuid,
        queue=found.queue,
        partition=found.partition,
        offset=found.offset,
        payload=None if found.damaged else decoder_of(kind, found.headers)(found.payload),
        state=found.state,
        created_at=found.created_at,
        failures=found.failures,
        deliveries=found.deliveries,
        priority=found.priority,
        error=found.error or None,
        error_type=found.error_type or None,
        due_at=found.due_at or None,
        leased_at=found.leased_at or None,
        lease_until=found.lease_until or None,
        holder=found.holder or None,
        ended_at=found.ended_at or None,
        job_id=found.job_id or None,
        unique_key=found.unique_key or None,
        depends_on=list(map(int, found.depends_on or ())),
        headers=found.headers or {},
        tags=found.tags or (),
        task=found.task or None,
        damaged=found.damaged,
    )


def counts_of(found: queues.Counted) -> Counts:
    return Counts(**msgspec.structs.asdict(found))


def groups_of(found: Sequence[queues.GroupSummary]) -> list[Group]:
    return [Group(each.group, counts_of(each.counts), each.oldest_at) for each in found]


def cron_of(found: crons.Cron) -> Cron:
    return Cron(
        name=found.name,
        queue=found.queue,
        payload=decoder_of(Any, found.headers)(found.payload),
        partition=found.partition,
        schedule=found.schedule,
        every_ms=found.every_ms,
        timezone=found.timezone,
        limit=found.limit,
        missed=found.missed,
        fired=found.fired,
        skipped=found.skipped,
        last_at=found.last_at,
        next_at=found.next_at,
        error=found.error,
    )


def worker_of(found: workers.WorkerShown) -> WorkerInfo:
    running = [RunningJob(int(each.id), each.task, each.since) for each in found.running]
    return WorkerInfo(**{**msgspec.structs.asdict(found), "running": running})
