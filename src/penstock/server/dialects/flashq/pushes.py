"""PUSH and PUSHB, and the options of a message."""

from collections.abc import Sequence
from itertools import chain
from operator import attrgetter

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from penstock.core import commands as core
from penstock.core.errors import Invalid
from penstock.core.limits import DELAY_MS_MAX
from penstock.core.model import DEFAULT, EXPONENTIAL, FIXED, LIST, NONE, PLAIN, Attributes, Backoff
from penstock.core.retry import BASE_MS, DOUBLINGS
from penstock.server.dialects.flashq import replies
from penstock.server.dialects.flashq.base import Context, Request
from penstock.server.dialects.flashq.replies import shown, shown_all


class BackoffIn(Struct, forbid_unknown_fields=True, gc=False):
    """How long to wait before a retry."""

    kind: str = EXPONENTIAL
    base_ms: int | None = None
    cap_ms: int | None = None
    jitter: float = 0.0
    steps: list[int] | None = None


AnyBackoff = int | list[int] | BackoffIn
_USED = {
    NONE: (),
    FIXED: ("base_ms", "jitter"),
    EXPONENTIAL: ("base_ms", "cap_ms", "jitter"),
    LIST: ("steps", "jitter"),
}
"""What a backoff of each kind may have."""


def backoff_of(given: AnyBackoff) -> Backoff:
    """A number is the base of an exponential backoff, 0 none; a list has one wait a retry."""
    if isinstance(given, int):
        given = BackoffIn(base_ms=given) if given else BackoffIn(NONE)
    elif isinstance(given, list):
        given = BackoffIn(LIST, steps=given)
    used = _USED.get(given.kind, ("base_ms", "cap_ms", "jitter", "steps"))
    for name in ("base_ms", "cap_ms", "jitter", "steps"):
        if getattr(given, name) and name not in used:
            raise Invalid(f"backoff.{name}", f"left out: a backoff of kind {given.kind} has none")
    base = BASE_MS if given.base_ms is None else given.base_ms
    cap = min(base << DOUBLINGS, DELAY_MS_MAX) if given.cap_ms is None else given.cap_ms
    if given.kind in (NONE, LIST):
        base = cap = 0
    return Backoff(given.kind, base, cap, given.jitter, tuple(given.steps or ()))


def shown_backoff(backoff: Backoff) -> object:
    """The shortest form that means the same."""
    if backoff.kind == LIST and not backoff.jitter:
        return list(backoff.steps)
    shown = msgspec.structs.asdict(backoff)
    unused = {NONE: ("base_ms", "cap_ms", "steps"), FIXED: ("cap_ms", "steps"), LIST: ("base_ms", "cap_ms")}
    return {name: shown[name] for name in shown if name not in unused.get(backoff.kind, ("steps",))}


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


class Pushing(Request, gc=False, kw_only=True):
    """What PUSH and PUSHB share: msgspec can't have the options of a job as a second base."""

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


_lane = attrgetter("partition", "priority", "delay", "ttl", "timeout", "max_attempts", "lifo")
_given_backoff = attrgetter("backoff")
_NO_OPTIONS = (0, 0, 0, 0, None, False)


def _has_options(given: JobIn | Pushing) -> bool:
    return _lane(given)[1:] != _NO_OPTIONS or given.backoff is not None


def _attributes(given: JobIn | Pushing) -> Attributes:
    """The attributes of a job, made only if it has any."""
    if not _has_options(given):
        return PLAIN
    return Attributes(
        given.priority,
        given.delay,
        given.lifo,
        given.ttl,
        given.timeout,
        given.max_attempts,
        None if given.backoff is None else backoff_of(given.backoff),
    )


class Push(Pushing, tag="PUSH", gc=False, kw_only=True):
    data: Raw

    def nested(self) -> tuple[int, int]:
        return 1, len(self.data)

    def command(self, context: Context) -> core.Command:
        attributes = _attributes(self)
        return core.Push(context.tenant, self.queue, [self.data], self.partition, self.durability, attributes)

    def reply(self, reply: core.Pushed, context: Context) -> Struct:
        return replies.OkId(ok=True, id=shown(reply.first), durability=reply.durability, reqId=self.reqId)


_data = attrgetter("data")
_durability = attrgetter("durability")


class PushBatch(Pushing, tag="PUSHB", gc=False, kw_only=True):
    messages: list[Raw] | UnsetType = UNSET
    jobs: list[JobIn] | UnsetType = UNSET

    def nested(self) -> tuple[int, int]:
        if self.jobs is not UNSET:
            return 3, max(map(len, map(_data, self.jobs)), default=0)
        return 2, max(map(len, self.messages), default=0) if self.messages is not UNSET else 0

    def command(self, context: Context) -> core.Command:
        if self.jobs is UNSET:
            if self.messages is UNSET:
                raise Invalid("messages", "given, or else jobs")
            payloads: list[bytes] = self.messages  # type: ignore[assignment]
            attributes = _attributes(self)
            return core.Push(
                context.tenant, self.queue, payloads, self.partition, self.durability, attributes
            )
        if self.messages is not UNSET:
            raise Invalid("jobs", "given without messages")
        if not self.jobs:
            raise Invalid("jobs", "a list of one or more")
        if self.partition != DEFAULT or _has_options(self):
            raise Invalid("partition and the options of a message", "given in each of the jobs")
        if set(map(_durability, self.jobs)) != {None}:
            raise Invalid("durability", "given beside jobs: they are kept together")
        return core.PushMany(context.tenant, self.queue, self._pushes(self.jobs), self.durability)

    def _pushes(self, jobs: list[JobIn]) -> list[tuple[str, list[bytes], Attributes]]:
        """The jobs of each partition in their order, cut where attributes change."""
        without_backoff = list(map(_given_backoff, jobs)).count(None) == len(jobs)
        alike = without_backoff and len(set(map(_lane, jobs))) == 1
        if alike:
            return [(jobs[0].partition, list(map(_data, jobs)), _attributes(jobs[0]))]
        found: list[tuple[str, list[bytes], Attributes]] = []
        newest: dict[str, tuple[str, list[bytes], Attributes]] = {}
        for job in jobs:
            attributes = _attributes(job)
            last = newest.get(job.partition)
            if last is not None and last[2] == attributes:
                last[1].append(job.data)
            else:
                newest[job.partition] = (job.partition, [job.data], attributes)
                found.append(newest[job.partition])
        return found

    def reply(self, reply: core.Pushed | list[core.Pushed], context: Context) -> Struct:
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

    def _in_order(self, pushed: list[core.Pushed]) -> Sequence[int]:
        """The ids in the order of the jobs."""
        given = [range(each.first, each.first + each.count) for each in pushed]
        if len(given) == 1:
            return list(given[0])
        assert self.jobs is not UNSET
        by_partition: dict[str, list[range]] = {}
        for (partition, *_), ids_ in zip(self._pushes(self.jobs), given, strict=True):
            by_partition.setdefault(partition, []).append(ids_)
        next_id = {name: chain.from_iterable(theirs) for name, theirs in by_partition.items()}
        return [next(next_id[job.partition]) for job in self.jobs]
