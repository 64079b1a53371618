"""PULL and PULLB, and the commands that settle or extend their leases: ACK, ACKB, FAIL, RELEASE, EXTEND."""

from collections.abc import Iterable, Sequence
from itertools import chain, repeat

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from forebay.core import ids
from forebay.core.api import commands as core
from forebay.core.errors import Invalid
from forebay.core.words import DEFAULT
from forebay.server import labels as server_labels
from forebay.server.flashq import replies
from forebay.server.flashq.replies import Id, shown, shown_all
from forebay.server.flashq.request import Context, Request, addresses
from forebay.server.labels import array, labelled, labels_of


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
            each.priority,
            reply.lease,
            each.expires_at,
            *labels_of(each),
        )
        return replies.OkJob(ok=True, job=job, reqId=self.reqId)


def _jobs(popped: core.Popped) -> list[replies.Job]:
    """Return one job per message, built by loops in C."""
    return list(
        chain.from_iterable(
            _jobs_of(popped, each, *part) for each in popped.deliveries for part in labelled(each)
        )
    )


def _jobs_of(
    popped: core.Popped,
    each: core.Delivery,
    start: int,
    count: int,
    payloads: Iterable[bytes],
    labels: server_labels.Labels,
) -> "map[replies.Job]":
    first, offset = each.first + start, each.offset + start
    numbers: Sequence[Id] = range(first, first + count)
    return map(
        replies.Job,
        shown_all(numbers),  # type: ignore[arg-type]
        repeat(popped.queue.name),
        repeat(each.partition),
        range(offset, offset + count),
        map(Raw, payloads),
        repeat(each.created_at),
        repeat(each.failures),
        repeat(each.priority),
        repeat(popped.lease),
        repeat(each.expires_at),
        repeat(labels[0]),
        repeat(labels[1]),
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
                shown(each.first + start),
                each.offset + start,
                each.created_at,
                each.failures,
                each.priority,
                each.expires_at,
                array(payloads),
                *labels,
            )
            for each in reply.deliveries
            for start, _, payloads, labels in labelled(each)
        ]
        return replies.OkRuns(ok=True, lease=reply.lease, runs=runs, reqId=self.reqId)


class Settle(Request, gc=False, kw_only=True):
    """Fields of ACK, ACKB, FAIL, RELEASE and EXTEND."""

    id: Id | UnsetType = UNSET
    ids: list[Id] | UnsetType = UNSET
    lease: str | None = None
    group: str | None = None

    def meant(self) -> list[int] | None:
        """Return the ids given, or None for the whole lease."""
        if self.id is not UNSET:
            if self.ids is not UNSET:
                raise Invalid("id", "given without ids")
            return [ids.parse(self.id)]
        if self.ids is not UNSET:
            return addresses(self.ids)
        if self.lease is None:
            raise Invalid("id", "given, or else ids or lease")
        return None


class Ack(Settle, tag="ACK", gc=False, kw_only=True):
    result: Raw | UnsetType = UNSET

    def nested(self) -> tuple[int, int]:
        return (0, 0) if self.result is UNSET else (1, len(self.result))

    def command(self, context: Context) -> core.Command:
        meant = self.meant()
        results = None if self.result is UNSET else [bytes(self.result)]
        if results is not None and (meant is None or len(meant) != 1):
            raise Invalid("result", "given with one id; ACKB takes results for many")
        return core.Ack(context.tenant, self.lease, meant, self.group, context.owner, results=results)

    def reply(self, reply: core.Settled, context: Context) -> Struct:
        return replies.Ok(ok=True, reqId=self.reqId)


class AckBatch(Settle, tag="ACKB", gc=False, kw_only=True):
    results: list[Raw] | UnsetType = UNSET

    def nested(self) -> tuple[int, int]:
        return (0, 0) if self.results is UNSET else (2, max(map(len, self.results), default=0))

    def command(self, context: Context) -> core.Command:
        results = None if self.results is UNSET else list(map(bytes, self.results))
        common = (context.tenant, self.lease, self.meant(), self.group, context.owner)
        return core.Ack(*common, partial=True, results=results)

    def reply(self, reply: core.Settled, context: Context) -> Struct:
        return replies.OkCount(ok=True, count=reply.count, refused=shown_all(reply.refused), reqId=self.reqId)


class Fail(Settle, tag="FAIL", gc=False, kw_only=True):
    error: str | None = None
    delay: int | None = None
    final: bool = False

    def command(self, context: Context) -> core.Command:
        return core.Nack(
            context.tenant,
            self.lease,
            self.meant(),
            self.group,
            context.owner,
            error=self.error,
            delay_ms=self.delay,
            final=self.final,
        )

    def reply(self, reply: core.Settled, context: Context) -> Struct:
        return replies.OkCount(ok=True, count=reply.count, refused=shown_all(reply.refused), reqId=self.reqId)


class Release(Settle, tag="RELEASE", gc=False, kw_only=True):
    """Return messages as if they had never been delivered."""

    def command(self, context: Context) -> core.Command:
        return core.Nack(
            context.tenant, self.lease, self.meant(), self.group, context.owner, undelivered=True
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
            cancelled=reply.cancelled,
            count=reply.count,
            refused=shown_all(reply.refused),
            reqId=self.reqId,
        )


class Heartbeat(Extend, tag="HEARTBEAT", gc=False, kw_only=True):
    """An extend that a worker sends to show that it is alive."""
