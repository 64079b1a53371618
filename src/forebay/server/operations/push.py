"""Push: one message, many alike, or many with options each."""

from collections.abc import Iterable, Sequence
from itertools import chain
from operator import attrgetter

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from forebay.core.api import commands as core, jobs as job_commands
from forebay.core.bounds import DEPENDENCIES_MAX, check_name
from forebay.core.errors import Invalid
from forebay.core.ids import spans_of
from forebay.core.state import PLAIN, Attributes, Identity
from forebay.core.words import DEFAULT, DROP, FAIL, IGNORE
from forebay.server.operations.carried import (
    Carried,
    Context,
    addresses,
    longest,
    packed,
    shown,
    shown_all,
)
from forebay.server.options import backoff_of
from forebay.wire.operations import push as wire
from forebay.wire.operations.push import Item, Options, Pushed, RunOptions

RUN_FIELDS = tuple(each.name for each in msgspec.structs.fields(RunOptions))
OWN_FIELDS = tuple(
    each.name
    for each in msgspec.structs.fields(Options)
    if each.name not in (*RUN_FIELDS, "partition", "depends_on", "on_failed")
)
"""Options that make up a message's identity, which only PushJobs can carry."""


def _defaults(names: Sequence[str]) -> tuple[object, ...]:
    known = {each.name: each.default for each in msgspec.structs.fields(Options)}
    return tuple(known[name] for name in names)


_run = attrgetter(*RUN_FIELDS)
_lane = attrgetter("partition", *RUN_FIELDS)
_own = attrgetter(*OWN_FIELDS)
_linked = attrgetter(*OWN_FIELDS, "depends_on", "on_failed")
_payload = attrgetter("payload")
_NO_RUN = _defaults(RUN_FIELDS)
_NO_OWN = _defaults(OWN_FIELDS)
_NOT_LINKED = (*_NO_OWN, None, None)


def run_attributes(given: RunOptions) -> Attributes:
    """Return the attributes of messages without their dependencies; the shared PLAIN if they have none."""
    if _run(given) == _NO_RUN:
        return PLAIN
    return Attributes(
        given.priority,
        given.delay_ms,
        given.lifo,
        given.ttl_ms,
        given.timeout_ms,
        given.max_attempts,
        None if given.backoff is None else backoff_of(given.backoff),
        headers=tuple(given.headers.items()) if given.headers else (),
        tags=tuple(given.tags) if given.tags else (),
        task=given.task,
    )


def attributes_of(given: Options, *, waits: bool = False) -> Attributes:
    """Return the attributes of a message; ``waits`` if it depends on messages it does not name."""
    if given.depends_on is None and given.on_failed is None:
        return run_attributes(given)
    if not given.depends_on and not waits:
        raise Invalid("depends_on", f"a list of 1 to {DEPENDENCIES_MAX} ids, also if on_failed is given")
    try:
        named = spans_of(addresses(given.depends_on or []))
    except Invalid as error:
        raise Invalid("depends_on", f"a list of ids, and one of them {error.accepted}") from None
    return replace(run_attributes(given), depends_on=named, on_failed=given.on_failed or FAIL)


def job_of(given: Options, payload: bytes, *, waits: bool = False) -> job_commands.Job:
    """Return a message with its identity and attributes."""
    partition = given.partition
    if given.key is not None:
        check_name("key", given.key)
        if given.key == DEFAULT or partition != DEFAULT:
            raise Invalid("key", f"given without partition, and another name than {DEFAULT}")
        partition = given.key
    attributes = attributes_of(given, waits=waits)
    return job_commands.Job(payload, partition, attributes, own_of(given), given.key is not None)


def own_of(given: Options) -> Identity | None:
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


def are_linked(items: Iterable[Options]) -> bool:
    """Return whether any message has an identity or dependencies, which only PushJobs can carry."""
    return any(map(_NOT_LINKED.__ne__, map(_linked, items)))


def are_alike(items: list[Item]) -> bool:
    """Return whether messages go to one partition with the same options, and none has an identity."""
    if are_linked(items):
        return False
    lanes = list(map(_lane, items))
    return lanes.count(lanes[0]) == len(lanes)


def push_of(tenant: str, queue: str, items: list[Item]) -> core.Push | job_commands.PushJobs:
    """Return the command that pushes messages: one batch if they are alike."""
    if not are_alike(items):
        return job_commands.PushJobs(tenant, queue, [job_of(each, each.payload) for each in items])
    payloads = list(map(_payload, items))
    return core.Push(tenant, queue, payloads, items[0].partition, None, run_attributes(items[0]))


def runs_of(items: list[Item]) -> list[tuple[str, list[bytes], Attributes]]:
    """Group messages by partition, keeping their order; a new group starts where attributes change."""
    # Most batches share partition and options: found by loops in C, with one Attributes for all.
    lanes = list(map(_lane, items))
    if lanes.count(lanes[0]) == len(lanes):
        return [(items[0].partition, list(map(_payload, items)), run_attributes(items[0]))]
    found: list[tuple[str, list[bytes], Attributes]] = []
    newest: dict[str, tuple[str, list[bytes], Attributes]] = {}
    for item in items:
        attributes = run_attributes(item)
        last = newest.get(item.partition)
        if last is not None and last[2] == attributes:
            last[1].append(item.payload)
        else:
            newest[item.partition] = (item.partition, [item.payload], attributes)
            found.append(newest[item.partition])
    return found


def in_order(items: list[Item], pushed: list[core.Pushed]) -> Sequence[int]:
    """Return the ids of runs that were pushed, in the order of the messages."""
    if len(pushed) == 1:
        return list(range(pushed[0].first, pushed[0].first + pushed[0].count))
    by_partition: dict[str, list[range]] = {}
    for (partition, *_), each in zip(runs_of(items), pushed, strict=True):
        by_partition.setdefault(partition, []).append(range(each.first, each.first + each.count))
    next_id = {name: chain.from_iterable(theirs) for name, theirs in by_partition.items()}
    return [next(next_id[item.partition]) for item in items]


def _first_given(given: Options, names: Sequence[str]) -> str:
    """Return the first of some fields that is not at its default."""
    defaults = dict(zip(names, _defaults(names), strict=True))
    return next(name for name in names if getattr(given, name) != defaults[name])


class Push(Carried, wire.Push):
    def nested(self) -> tuple[int, int]:
        if self.payload is not UNSET:
            return 1, len(self.payload)
        also = 0 if self.on_complete is None else len(self.on_complete.payload)
        if self.messages is not UNSET:
            return 2, max(also, longest(self.messages))
        if self.items is not UNSET:
            return 3, max(also, longest(list(map(_payload, self.items))))
        return 2, also

    def command(self, context: Context) -> core.Command:
        tenant, queue = context.tenant, self.queue
        if self.payload is not UNSET and self.messages is UNSET and self.items is UNSET:
            if _own(self) != _NO_OWN or self.is_known or self.on_complete is not None:
                return self.jobs_command(context)
            attributes = attributes_of(self)
            return core.Push(tenant, queue, [self.payload], self.partition, self.durability, attributes)
        if self.is_known or self.on_complete is not None:
            return self.jobs_command(context)
        self.check()
        if self.messages is not UNSET:
            payloads: list[bytes] = self.messages  # type: ignore[assignment]
            return core.Push(tenant, queue, payloads, self.partition, self.durability, attributes_of(self))
        assert self.items is not UNSET
        if are_linked(self.items):
            return self.jobs_command(context)
        return core.PushMany(tenant, queue, runs_of(self.items), self.durability)

    @property
    def is_known(self) -> bool:
        """Whether it asks to be recognized when it is repeated."""
        return self.idempotency_key is not None or bool(self.producer or self.idempotency_ms)

    def check(self) -> None:
        """Raise unless the fields go together."""
        given = [each for each in (self.payload, self.messages, self.items) if each is not UNSET]
        if len(given) != 1:
            raise Invalid("payload", "given, or else messages or items, and only one of them")
        if self.payload is not UNSET:
            if self.on_complete is not None:
                raise Invalid("on_complete", "given with messages or items: it waits for all of them")
            return
        if not given[0]:
            name = "messages" if self.messages is not UNSET else "items"
            raise Invalid(name, "a list of one or more")
        if self.messages is not UNSET and _own(self) != _NO_OWN:
            raise Invalid(_first_given(self, OWN_FIELDS), "given in items, each its own")
        if self.items is not UNSET and (_lane(self) != (DEFAULT, *_NO_RUN) or are_linked([self])):
            named = ("partition", *RUN_FIELDS, *OWN_FIELDS, "depends_on", "on_failed")
            raise Invalid(_first_given(self, named), "given in each of the items")

    def jobs_command(self, context: Context) -> job_commands.PushJobs:
        self.check()
        if self.payload is not UNSET:
            jobs = [job_of(self, self.payload)]
        elif self.items is not UNSET:
            jobs = [job_of(each, each.payload) for each in self.items]
        else:
            assert self.messages is not UNSET
            attributes = attributes_of(self)
            jobs = [job_commands.Job(each, self.partition, attributes) for each in self.messages]
        known, then = self._request(), self._then()
        return job_commands.PushJobs(
            context.tenant, self.queue, jobs, self.durability, known, then, self.idempotency_ms
        )

    def _then(self) -> tuple[str, job_commands.Job] | None:
        if self.on_complete is None:
            return None
        job = job_of(self.on_complete, self.on_complete.payload, waits=True)
        job.attributes = replace(job.attributes, on_failed=self.on_complete.on_failed or IGNORE)
        return self.on_complete.queue, job

    def _request(self) -> tuple[str, str] | None:
        if self.idempotency_key is None:
            for name in ("producer", "idempotency_ms"):
                if getattr(self, name):
                    raise Invalid(name, "given along with an idempotency_key")
            return None
        return self.producer, self.idempotency_key

    def reply(
        self, reply: core.Pushed | list[core.Pushed] | job_commands.PushedJobs, context: Context
    ) -> Pushed:
        if isinstance(reply, core.Pushed):  # the usual one first
            if self.payload is not UNSET:
                return Pushed(id=shown(reply.first), durability=reply.durability)
            return Pushed(first=shown(reply.first), count=reply.count, durability=reply.durability)
        if isinstance(reply, job_commands.PushedJobs):
            return self._reply_jobs(reply)
        assert self.items is not UNSET
        ids = shown_all(in_order(self.items, reply))
        return Pushed(ids=ids, count=len(ids), durability=reply[0].durability)

    def _reply_jobs(self, reply: job_commands.PushedJobs) -> Pushed:
        found = Pushed(durability=reply.durability)
        if reply.then is not None:
            found.completion_id = shown(reply.then)
        if self.payload is not UNSET:
            found.id = shown(reply.ids[0])
            found.duplicate, found.replaced = bool(reply.duplicates), bool(reply.replaced)
        elif self.messages is not UNSET:
            found.first, found.count = shown(reply.ids[0]), len(reply.ids)
            found.duplicate = bool(reply.duplicates)
        else:
            found.ids, found.count = shown_all(reply.ids), len(reply.ids)
            found.duplicates = reply.duplicates or UNSET
            found.replacements = reply.replaced or UNSET
        return found
