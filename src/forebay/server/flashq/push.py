"""PUSH and PUSHB, and the options of a message."""

from collections.abc import Sequence
from itertools import chain
from operator import attrgetter
from typing import Protocol

from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from forebay.core.api import commands as core, jobs as job_commands
from forebay.core.bounds import DEPENDENCIES_MAX, check_name
from forebay.core.errors import Conflict, Invalid
from forebay.core.ids import spans_of
from forebay.core.state import PLAIN, Attributes, Identity
from forebay.core.words import DEFAULT, DROP, FAIL, IGNORE, THROTTLE
from forebay.server.flashq import replies
from forebay.server.flashq.replies import Id, shown, shown_all
from forebay.server.flashq.request import Context, KeyIn, Request, addresses, packed
from forebay.server.options import AnyBackoff, backoff_of


class JobIn(Struct, forbid_unknown_fields=True, gc=False, kw_only=True):
    """One of the jobs of a PUSHB."""

    data: Raw
    partition: str = DEFAULT
    durability: str | None = None
    priority: int = 0
    delay: int = 0
    ttl: int = 0
    timeout: int = 0
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
    keys_if_undelivered: list[KeyIn] | None = None
    key: str | None = None
    group_id: str | None = None
    debounce_id: str | None = None
    debounce_ttl: int | None = None
    headers: dict[str, str] | None = None
    tags: list[str] | None = None


class Pushing(Request, gc=False, kw_only=True):
    """Fields that PUSH and PUSHB share. They repeat JobIn: msgspec allows no second base with fields."""

    queue: str
    partition: str = DEFAULT
    durability: str | None = None
    priority: int = 0
    delay: int = 0
    ttl: int = 0
    timeout: int = 0
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
    keys_if_undelivered: list[KeyIn] | None = None
    key: str | None = None
    group_id: str | None = None
    debounce_id: str | None = None
    debounce_ttl: int | None = None
    headers: dict[str, str] | None = None
    tags: list[str] | None = None
    idempotency_key: str | None = None
    producer: str = ""
    idempotency_ms: int = 0


_lane = attrgetter("partition", "priority", "delay", "ttl", "timeout", "max_attempts", "lifo")
_given_rare = attrgetter("backoff", "headers", "tags")
_NO_RARE = (None, None, None)
_options = attrgetter("priority", "delay", "ttl", "timeout", "max_attempts", "lifo")
_NO_OPTIONS = (0, 0, 0, 0, None, False)


_own_options = attrgetter(
    "unique_key",
    "dedup",
    "dedup_window_ms",
    "dedup_max_ms",
    "job_id",
    "transaction_id",
    "keys_if_undelivered",
    "key",
    "group_id",
    "debounce_id",
    "debounce_ttl",
)
_NO_OWN = (None, None, 0, 0, None, None, None, None, None, None, None)
DEBOUNCE_MS = 5_000
"""Default hold time of a debounce_id."""


def _is_own(job: JobIn) -> bool:
    """Return whether a job has an identity or dependencies, which only PushJobs can carry."""
    return _own_options(job) != _NO_OWN or job.depends_on is not None or job.on_failed is not None


def own_of(given: JobIn | Pushing) -> Identity | None:
    """Return the dedup identity of a job, or None."""
    if _own_options(given) == _NO_OWN:
        return None
    key, mode, window_ms = given.unique_key, given.dedup, given.dedup_window_ms
    if given.debounce_id is not None:
        if key is not None or mode is not None or window_ms or given.dedup_max_ms:
            raise Invalid("debounce_id", "given without unique_key, dedup, dedup_window_ms and dedup_max_ms")
        ttl = DEBOUNCE_MS if given.debounce_ttl is None else given.debounce_ttl
        key, mode, window_ms = given.debounce_id, THROTTLE, ttl
    elif given.debounce_ttl is not None:
        raise Invalid("debounce_ttl", "given along with a debounce_id")
    elif mode is not None and key is None:
        raise Invalid("unique_key", "given along with dedup, dedup_window_ms and dedup_max_ms")
    return Identity(
        key,
        DROP if mode is None else mode,
        window_ms,
        given.dedup_max_ms,
        given.job_id,
        given.transaction_id,
        tuple(packed(each) for each in given.keys_if_undelivered or ()),
    )


def job_of(given: JobIn | Pushing, data: bytes, *, waits: bool = False) -> job_commands.Job:
    """Return a job with identity and attributes; ``waits`` if it depends on jobs it does not name."""
    lanes = {given.key, given.group_id} - {None}
    if len(lanes) > 1 or (lanes and given.partition != DEFAULT):
        raise Invalid("key", "given without group_id and partition: it is the name of a partition")
    lane = lanes.pop() if lanes else None
    if lane is not None:
        check_name("key", lane)
        if lane == DEFAULT:
            raise Invalid("key", f"another name than {DEFAULT}, which is where everything else goes")
    partition = given.partition if lane is None else lane
    return job_commands.Job(
        data, partition, attributes_of(given, waits=waits), own_of(given), lane is not None
    )


def attributes_of(given: JobIn | Pushing, *, waits: bool = False) -> Attributes:
    """Return the attributes of a job; the shared PLAIN if it has none."""
    if given.depends_on is None and given.on_failed is None:
        return plain_attributes(given)
    if not given.depends_on and not waits:
        raise Invalid("depends_on", f"a list of 1 to {DEPENDENCIES_MAX} ids, also if on_failed is given")
    try:
        named = spans_of(addresses(given.depends_on or []))
    except Invalid as error:
        raise Invalid("depends_on", f"a list of ids, and one of them {error.accepted}") from None
    return replace(plain_attributes(given), depends_on=named, on_failed=given.on_failed or FAIL)


class Given(Protocol):
    """Anything with the delivery options of a message."""

    priority: int
    delay: int
    ttl: int
    timeout: int
    max_attempts: int | None
    backoff: AnyBackoff | None
    lifo: bool
    headers: dict[str, str] | None
    tags: list[str] | None


def plain_attributes(given: Given) -> Attributes:
    """Return the attributes of a job without its dependencies; the shared PLAIN if it has none."""
    if _options(given) == _NO_OPTIONS and _given_rare(given) == _NO_RARE:
        return PLAIN
    return Attributes(
        given.priority,
        given.delay,
        given.lifo,
        given.ttl,
        given.timeout,
        given.max_attempts,
        None if given.backoff is None else backoff_of(given.backoff),
        headers=tuple(given.headers.items()) if given.headers else (),
        tags=tuple(given.tags) if given.tags else (),
    )


class Push(Pushing, tag="PUSH", gc=False, kw_only=True):
    data: Raw

    def nested(self) -> tuple[int, int]:
        return 1, len(self.data)

    def command(self, context: Context) -> core.Command:
        if _own_options(self) != _NO_OWN or is_known(self):
            return self.jobs_command(context)
        attributes = attributes_of(self)
        return core.Push(context.tenant, self.queue, [self.data], self.partition, self.durability, attributes)

    def jobs_command(self, context: Context) -> job_commands.PushJobs:
        jobs = [job_of(self, self.data)]
        known_ms = self.idempotency_ms
        return job_commands.PushJobs(
            context.tenant, self.queue, jobs, self.durability, _request(self), known_ms=known_ms
        )

    def reply(self, reply: core.Pushed | job_commands.PushedJobs, context: Context) -> Struct:
        if isinstance(reply, core.Pushed):
            return replies.OkId(ok=True, id=shown(reply.first), durability=reply.durability, reqId=self.reqId)
        if reply.throttled and self.debounce_id is not None:
            raise Conflict(f"Debounced: {self.debounce_id} was pushed a little while ago")
        return self.known_or_not(reply)

    def known_or_not(self, reply: job_commands.PushedJobs) -> Struct:
        return replies.OkId(
            ok=True,
            id=shown(reply.ids[0]),
            durability=reply.durability,
            duplicate=True if reply.duplicates else UNSET,
            replaced=True if reply.replaced else UNSET,
            reqId=self.reqId,
        )


def is_known(given: Pushing) -> bool:
    """Return whether a request asks to be recognized when it is repeated."""
    return given.idempotency_key is not None or bool(given.producer or given.idempotency_ms)


def _request(given: Pushing) -> tuple[str, str] | None:
    if given.idempotency_key is None:
        for name in ("producer", "idempotency_ms"):
            if getattr(given, name):
                raise Invalid(name, "given along with an idempotency_key")
        return None
    return given.producer, given.idempotency_key


_data = attrgetter("data")
_durability = attrgetter("durability")


class Completion(JobIn, gc=False, kw_only=True):
    """The completion callback: a message that waits for the whole batch."""

    queue: str


class PushBatch(Pushing, tag="PUSHB", gc=False, kw_only=True):
    messages: list[Raw] | UnsetType = UNSET
    jobs: list[JobIn] | UnsetType = UNSET
    on_complete: Completion | None = None

    def nested(self) -> tuple[int, int]:
        longest = 0 if self.on_complete is None else len(self.on_complete.data)
        if self.jobs is not UNSET:
            return 3, max(longest, max(map(len, map(_data, self.jobs)), default=0))
        return 2, max(longest, max(map(len, self.messages), default=0) if self.messages is not UNSET else 0)

    def command(self, context: Context) -> core.Command:
        self._check()
        if is_known(self) or self.on_complete is not None:
            return self.jobs_command(context)
        if self.jobs is UNSET:
            payloads: list[bytes] = self.messages  # type: ignore[assignment]
            attributes = attributes_of(self)
            return core.Push(
                context.tenant, self.queue, payloads, self.partition, self.durability, attributes
            )
        if any(map(_is_own, self.jobs)):
            return self.jobs_command(context)
        return core.PushMany(context.tenant, self.queue, self._pushes(self.jobs), self.durability)

    def _check(self) -> None:
        """Raise unless the fields go together."""
        if self.jobs is UNSET:
            if self.messages is UNSET:
                raise Invalid("messages", "given, or else jobs")
            if not self.messages:
                raise Invalid("messages", "a list of one or more")
            if _own_options(self) != _NO_OWN:
                raise Invalid("keys and ids of a message", "given in jobs, each its own")
            return
        if self.messages is not UNSET:
            raise Invalid("jobs", "given without messages")
        if not self.jobs:
            raise Invalid("jobs", "a list of one or more")
        shared = (
            self.partition != DEFAULT or plain_attributes(self) is not PLAIN or _own_options(self) != _NO_OWN
        )
        if shared or self.depends_on is not None or self.on_failed is not None:
            raise Invalid("partition and the options of a message", "given in each of the jobs")
        if set(map(_durability, self.jobs)) != {None}:
            raise Invalid("durability", "given beside jobs: they are kept together")

    def jobs_command(self, context: Context) -> job_commands.PushJobs:
        self._check()
        if self.jobs is not UNSET:
            jobs = [job_of(job, job.data) for job in self.jobs]
        else:
            assert self.messages is not UNSET
            attributes = attributes_of(self)
            jobs = [job_commands.Job(data, self.partition, attributes) for data in self.messages]
        then = None
        if self.on_complete is not None:
            if self.on_complete.durability is not None:
                raise Invalid("on_complete.durability", "left out: it is kept with the batch")
            job = job_of(self.on_complete, self.on_complete.data, waits=True)
            policy = self.on_complete.on_failed or IGNORE
            job.attributes = replace(job.attributes, on_failed=policy)
            then = (self.on_complete.queue, job)
        known_ms = self.idempotency_ms
        return job_commands.PushJobs(
            context.tenant, self.queue, jobs, self.durability, _request(self), then, known_ms
        )

    def _pushes(self, jobs: list[JobIn]) -> list[tuple[str, list[bytes], Attributes]]:
        """Group jobs by partition, keeping their order; a new group starts where attributes change."""
        # Most batches share partition and options: found by loops in C, with one Attributes for all.
        without_rare = list(map(_given_rare, jobs)).count(_NO_RARE) == len(jobs)
        alike = without_rare and len(set(map(_lane, jobs))) == 1
        if alike:
            return [(jobs[0].partition, list(map(_data, jobs)), plain_attributes(jobs[0]))]
        found: list[tuple[str, list[bytes], Attributes]] = []
        newest: dict[str, tuple[str, list[bytes], Attributes]] = {}
        for job in jobs:
            attributes = plain_attributes(job)
            last = newest.get(job.partition)
            if last is not None and last[2] == attributes:
                last[1].append(job.data)
            else:
                newest[job.partition] = (job.partition, [job.data], attributes)
                found.append(newest[job.partition])
        return found

    def reply(
        self, reply: core.Pushed | job_commands.PushedJobs | list[core.Pushed], context: Context
    ) -> Struct:
        if isinstance(reply, job_commands.PushedJobs):
            return self._reply_jobs(reply)
        if isinstance(reply, core.Pushed):
            return replies.OkFirst(
                ok=True,
                first=shown(reply.first),
                count=reply.count,
                durability=reply.durability,
                reqId=self.reqId,
            )
        ids = shown_all(self._in_order(reply))
        return replies.OkIds(ok=True, ids=ids, durability=reply[0].durability, reqId=self.reqId)

    def _reply_jobs(self, reply: job_commands.PushedJobs) -> Struct:
        then = UNSET if reply.then is None else shown(reply.then)
        if self.jobs is UNSET:
            return replies.OkFirst(
                ok=True,
                first=shown(reply.ids[0]),
                count=len(reply.ids),
                durability=reply.durability,
                duplicate=True if reply.duplicates else UNSET,
                completion_id=then,
                reqId=self.reqId,
            )
        return replies.OkIds(
            ok=True,
            ids=shown_all(reply.ids),
            durability=reply.durability,
            duplicates=reply.duplicates or UNSET,
            replaced=reply.replaced or UNSET,
            completion_id=then,
            reqId=self.reqId,
        )

    def _in_order(self, pushed: list[core.Pushed]) -> Sequence[int]:
        """Return the ids in the order of the jobs."""
        given = [range(each.first, each.first + each.count) for each in pushed]
        if len(given) == 1:
            return list(given[0])
        assert self.jobs is not UNSET
        by_partition: dict[str, list[range]] = {}
        for (partition, *_), ids_ in zip(self._pushes(self.jobs), given, strict=True):
            by_partition.setdefault(partition, []).append(ids_)
        next_id = {name: chain.from_iterable(theirs) for name, theirs in by_partition.items()}
        return [next(next_id[job.partition]) for job in self.jobs]
