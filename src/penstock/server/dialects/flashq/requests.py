"""Every command of the wire: the core command it stands for, and how the core's reply is put."""

from collections.abc import Sequence
from itertools import chain, repeat
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from penstock.core import commands as core
from penstock.core import ids
from penstock.core.errors import Invalid
from penstock.core.model import DEFAULT
from penstock.server.dialects.flashq import replies
from penstock.server.dialects.flashq.replies import Id, RequestId, array, shown, shown_all

WAIT_MS = 60_000
"""How long PULL and PULLB wait when they do not say, if the server lets anyone wait that long."""


class Context(Struct, frozen=True, gc=False):
    """Who asks."""

    tenant: str
    owner: int
    """Number of the connection."""
    wait_ms: int = WAIT_MS
    """How long PULL and PULLB wait when they do not say."""


class Request(Struct, tag_field="cmd", forbid_unknown_fields=True, gc=False, kw_only=True):
    """What all commands share."""

    reqId: RequestId | UnsetType = UNSET

    def nested(self) -> tuple[int, int]:
        """Levels of nesting around its payloads, and the length of the longest; 0 if it has none."""
        return 0, 0

    def command(self, context: Context) -> core.Command:
        raise NotImplementedError

    def reply(self, reply: Any, context: Context) -> Struct:
        raise NotImplementedError


# Requests.


class Push(Request, tag="PUSH", gc=False, kw_only=True):
    queue: str
    data: Raw
    partition: str = DEFAULT
    durability: str | None = None

    def nested(self) -> tuple[int, int]:
        return 1, len(self.data)

    def command(self, context: Context) -> core.Command:
        return core.Push(context.tenant, self.queue, [self.data], self.partition, self.durability)

    def reply(self, reply: core.Pushed, context: Context) -> Struct:
        return replies.OkId(ok=True, id=shown(reply.first), durability=reply.durability, reqId=self.reqId)


class JobIn(Struct, forbid_unknown_fields=True, gc=False):
    data: Raw
    partition: str = DEFAULT
    durability: str | None = None


_data = attrgetter("data")
_partition = attrgetter("partition")
_durability = attrgetter("durability")


class PushBatch(Request, tag="PUSHB", gc=False, kw_only=True):
    queue: str
    messages: list[Raw] | UnsetType = UNSET
    jobs: list[JobIn] | UnsetType = UNSET
    partition: str = DEFAULT
    durability: str | None = None

    def nested(self) -> tuple[int, int]:
        if self.jobs is not UNSET:
            return 3, max(map(len, map(_data, self.jobs)), default=0)
        return 2, max(map(len, self.messages), default=0) if self.messages is not UNSET else 0

    def command(self, context: Context) -> core.Command:
        if self.jobs is UNSET:
            if self.messages is UNSET:
                raise Invalid("messages", "given, or else jobs")
            payloads: list[bytes] = self.messages  # type: ignore[assignment]
            return core.Push(context.tenant, self.queue, payloads, self.partition, self.durability)
        if self.messages is not UNSET:
            raise Invalid("jobs", "given without messages")
        if not self.jobs:
            raise Invalid("jobs", "a list of one or more")
        if self.partition != DEFAULT:
            raise Invalid("partition", "given in each of the jobs")
        if set(map(_durability, self.jobs)) != {None}:
            raise Invalid("durability", "given beside jobs: they are kept together")
        return core.PushMany(context.tenant, self.queue, self._by_partition(self.jobs), self.durability)

    def _by_partition(self, jobs: list[JobIn]) -> list[tuple[str, list[bytes]]]:
        names = set(map(_partition, jobs))
        if len(names) == 1:
            return [(names.pop(), list(map(_data, jobs)))]
        found: dict[str, list[bytes]] = {}
        for job in jobs:
            found.setdefault(job.partition, []).append(job.data)
        return list(found.items())

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
        names = dict.fromkeys(map(_partition, self.jobs))
        next_id = dict(zip(names, map(iter, given), strict=True))
        return [next(next_id[job.partition]) for job in self.jobs]


class Pull(Request, tag="PULL", gc=False, kw_only=True):
    queue: str
    timeout: int | UnsetType = UNSET
    group: str = DEFAULT
    partition: str | None = None
    lease_ms: int | None = None
    start: int | str = msgspec.field(default="all", name="from")

    def command(self, context: Context) -> core.Command:
        return core.Pop(
            context.tenant,
            self.queue,
            self.group,
            1,
            1,
            self.partition,
            self.lease_ms,
            self.start,
            context.wait_ms if self.timeout is UNSET else self.timeout,
            context.owner,
        )

    def reply(self, reply: core.Popped, context: Context) -> Struct:
        if not reply.deliveries:
            return replies.OkJob(ok=True, job=None, reqId=self.reqId)
        (each,) = reply.deliveries
        (payload,) = each.payloads()
        job = replies.Job(
            shown(each.first),
            reply.queue.name,
            each.partition,
            each.offset,
            Raw(payload),
            each.created_at,
            each.failures,
            0,
            reply.lease,
            each.expires_at,
        )
        return replies.OkJob(ok=True, job=job, reqId=self.reqId)


def _jobs(popped: core.Popped) -> list[replies.Job]:
    """One job a message, made by loops in C."""
    return list(chain.from_iterable(_jobs_of(popped, each) for each in popped.deliveries))


def _jobs_of(popped: core.Popped, each: core.Delivery) -> "map[replies.Job]":
    numbers: Sequence[Id] = range(each.first, each.first + each.count)
    return map(
        replies.Job,
        shown_all(numbers),  # type: ignore[arg-type]
        repeat(popped.queue.name),
        repeat(each.partition),
        range(each.offset, each.offset + each.count),
        map(Raw, each.payloads()),
        repeat(each.created_at),
        repeat(each.failures),
        repeat(0),
        repeat(popped.lease),
        repeat(each.expires_at),
    )


class PullBatch(Pull, tag="PULLB", gc=False, kw_only=True):
    count: int
    min_count: int = 1
    compact: bool = False

    def command(self, context: Context) -> core.Command:
        return core.Pop(
            context.tenant,
            self.queue,
            self.group,
            self.count,
            self.min_count,
            self.partition,
            self.lease_ms,
            self.start,
            context.wait_ms if self.timeout is UNSET else self.timeout,
            context.owner,
        )

    def reply(self, reply: core.Popped, context: Context) -> Struct:
        if not self.compact:
            return replies.OkJobs(ok=True, jobs=_jobs(reply), reqId=self.reqId)
        runs = [
            replies.DeliveredRun(
                each.partition,
                shown(each.first),
                each.offset,
                each.created_at,
                each.failures,
                each.expires_at,
                array(each),
            )
            for each in reply.deliveries
        ]
        return replies.OkRuns(ok=True, lease=reply.lease, runs=runs, reqId=self.reqId)


def _addresses(given: list[Id]) -> list[int]:
    """The ids of a request as numbers; all at once if they came as numbers."""
    if given and set(map(type, given)) == {int} and min(given) >= 0 and max(given) < 1 << 64:  # type: ignore[operator]
        return given  # type: ignore[return-value]
    return list(map(ids.parse, given))


class Settle(Request, gc=False, kw_only=True):
    """What ACK, ACKB, FAIL and EXTEND are about."""

    id: Id | UnsetType = UNSET
    ids: list[Id] | UnsetType = UNSET
    lease: str | None = None
    group: str | None = None

    def meant(self) -> list[int] | None:
        """The messages named, or None for all of the lease."""
        if self.id is not UNSET:
            if self.ids is not UNSET:
                raise Invalid("id", "given without ids")
            return [ids.parse(self.id)]
        if self.ids is not UNSET:
            return _addresses(self.ids)
        if self.lease is None:
            raise Invalid("id", "given, or else ids or lease")
        return None


class Ack(Settle, tag="ACK", gc=False, kw_only=True):
    def command(self, context: Context) -> core.Command:
        return core.Ack(context.tenant, self.lease, self.meant(), self.group, context.owner)

    def reply(self, reply: core.Settled, context: Context) -> Struct:
        return replies.Ok(ok=True, reqId=self.reqId)


class AckBatch(Settle, tag="ACKB", gc=False, kw_only=True):
    def command(self, context: Context) -> core.Command:
        return core.Ack(context.tenant, self.lease, self.meant(), self.group, context.owner, partial=True)

    def reply(self, reply: core.Settled, context: Context) -> Struct:
        return replies.OkCount(ok=True, count=reply.count, refused=shown_all(reply.refused), reqId=self.reqId)


class Fail(Settle, tag="FAIL", gc=False, kw_only=True):
    error: str | None = None

    def command(self, context: Context) -> core.Command:
        return core.Nack(
            context.tenant, self.lease, self.meant(), self.group, context.owner, error=self.error
        )

    def reply(self, reply: core.Settled, context: Context) -> Struct:
        return replies.OkCount(ok=True, count=reply.count, refused=shown_all(reply.refused), reqId=self.reqId)


class Extend(Settle, tag="EXTEND", gc=False, kw_only=True):
    lease_ms: int | None = None

    def command(self, context: Context) -> core.Command:
        return core.Extend(
            context.tenant, self.lease, self.meant(), self.group, context.owner, lease_ms=self.lease_ms
        )

    def reply(self, reply: core.Extended, context: Context) -> Struct:
        return replies.OkExtended(
            ok=True,
            expires_at=reply.expires_at,
            cancelled=False,
            count=reply.count,
            refused=shown_all(reply.refused),
            reqId=self.reqId,
        )


class Read(Request, tag="READ", gc=False, kw_only=True):
    queue: str
    offset: int
    partition: str = DEFAULT
    max_bytes: int | None = None
    max_count: int | None = None

    def command(self, context: Context) -> core.Command:
        return core.Read(
            context.tenant, self.queue, self.offset, self.partition, self.max_count, self.max_bytes
        )

    def reply(self, reply: core.Log, context: Context) -> Struct:
        runs = [
            replies.LogRun(shown(run.first), run.offset, run.created_at, array(run)) for run in reply.runs
        ]
        return replies.OkLog(
            ok=True, partition=reply.partition, next=reply.next, end=reply.end, runs=runs, reqId=self.reqId
        )


class Offsets(Request, tag="OFFSETS", gc=False, kw_only=True):
    queue: str
    at: int | None = None

    def command(self, context: Context) -> core.Command:
        return core.Offsets(context.tenant, self.queue, self.at)

    def reply(self, reply: core.OffsetsFound, context: Context) -> Struct:
        partitions = [
            {
                "partition": each.partition,
                "numbers": each.numbers,
                "first": each.first,
                "end": each.end,
                # An answer leaves after its commit, so all of the log it speaks of is kept.
                "synced": each.end,
                "at": each.at,
            }
            for each in reply.partitions
        ]
        return replies.OkOffsets(ok=True, partitions=partitions, reqId=self.reqId)


class OptionsIn(Struct, forbid_unknown_fields=True, gc=False):
    lease_ms: int | UnsetType = UNSET
    completed_retention_ms: int | UnsetType = UNSET
    completed_retention_bytes: int | UnsetType = UNSET
    durability: str | UnsetType = UNSET


class Queue(Request, tag="QUEUE", gc=False, kw_only=True):
    queue: str
    options: OptionsIn | None = None

    def command(self, context: Context) -> core.Command:
        given = self.options
        if given is None:
            return core.Describe(context.tenant, self.queue)
        return core.Configure(
            context.tenant,
            self.queue,
            given.lease_ms,
            given.completed_retention_ms,
            given.completed_retention_bytes,
            given.durability,
        )

    def reply(self, reply: core.QueueFound, context: Context) -> Struct:
        return replies.OkQueue(
            ok=True,
            queue=reply.queue,
            options=msgspec.to_builtins(reply.options),
            partitions=[
                {"partition": each.name, "first": each.first, "end": each.end, "bytes": each.payload_bytes}
                for each in reply.partitions
            ],
            groups=[{"group": each.name, **_counts(each.counts)} for each in reply.groups],
            reqId=self.reqId,
        )


def _counts(counts: core.Counts) -> dict[str, int]:
    return {"waiting": counts.waiting, "active": counts.active, "completed": counts.completed}


class ListQueues(Request, tag="LISTQUEUES", gc=False, kw_only=True):
    def command(self, context: Context) -> core.Command:
        return core.ListQueues(context.tenant)

    def reply(self, reply: core.QueuesFound, context: Context) -> Struct:
        queues = [
            {
                "name": each.name,
                "pending": each.counts.waiting,
                "processing": each.counts.active,
                "completed": each.counts.completed,
            }
            for each in reply.queues
        ]
        return replies.OkQueues(ok=True, queues=queues, reqId=self.reqId)


class GetState(Request, tag="GETSTATE", gc=False, kw_only=True):
    id: Id
    group: str = DEFAULT

    def command(self, context: Context) -> core.Command:
        return core.State(context.tenant, ids.parse(self.id), self.group)

    def reply(self, reply: core.StateFound, context: Context) -> Struct:
        return replies.OkState(
            ok=True,
            id=shown(reply.id),
            uuid=ids.to_uuid(reply.id, reply.created_at),
            state=reply.state,
            created_at=reply.created_at,
            attempts=reply.failures,
            error=reply.error or UNSET,
            reqId=self.reqId,
        )


class Stats(Request, tag="STATS", gc=False, kw_only=True):
    def command(self, context: Context) -> core.Command:
        return core.Stats(context.tenant)

    def reply(self, reply: core.StatsFound, context: Context) -> Struct:
        return replies.OkStats(
            ok=True,
            queues=reply.queues,
            queued=reply.counts.waiting,
            processing=reply.counts.active,
            # There are no delays and no dead letters in this version, so there is nothing to count.
            delayed=0,
            dlq=0,
            completed=reply.counts.completed,
            reqId=self.reqId,
        )


class Backup(Request, tag="BACKUP", gc=False, kw_only=True):
    directory: str

    def command(self, context: Context) -> core.Command:
        return core.Backup(context.tenant, self.directory)

    def reply(self, reply: core.BackedUp, context: Context) -> Struct:
        return replies.OkDirectory(ok=True, directory=reply.directory, reqId=self.reqId)


AnyRequest = (
    Push
    | PushBatch
    | Pull
    | PullBatch
    | Ack
    | AckBatch
    | Fail
    | Extend
    | Read
    | Offsets
    | Queue
    | ListQueues
    | GetState
    | Stats
    | Backup
)
