"""Pop, and what settles a lease: ack, nack, release, extend."""

from collections.abc import Iterable
from itertools import chain, repeat

from msgspec import UNSET, Raw

from forebay.core.api import commands as core
from forebay.core.errors import Invalid
from forebay.server import labels as server_labels
from forebay.server.labels import array, labelled, labels_of
from forebay.server.operations.carried import Carried, Context, addresses, longest, shown, shown_all
from forebay.wire.operations import pop as wire
from forebay.wire.operations.pop import Delivered, Extended, Popped, Run, Settled
from forebay.wire.types import Id


def delivered(popped: core.Popped) -> list[Delivered]:
    """Return one message after the other, built by loops in C."""
    if len(popped.deliveries) == 1 and popped.deliveries[0].count == 1:
        return [_one(popped, popped.deliveries[0])]
    return list(
        chain.from_iterable(
            _messages(popped, each, *part) for each in popped.deliveries for part in labelled(each)
        )
    )


def _one(popped: core.Popped, each: core.Delivery) -> Delivered:
    """Return the only message of a pop, which is what most pops have."""
    (payload,) = each.payloads()
    return Delivered(
        shown(each.first),
        popped.queue.name,
        each.partition,
        each.offset,
        Raw(payload),
        each.created_at,
        each.deliveries,
        each.failures,
        each.priority,
        popped.lease,
        each.expires_at,
        *labels_of(each),
    )


def _messages(
    popped: core.Popped,
    each: core.Delivery,
    start: int,
    count: int,
    payloads: Iterable[bytes],
    labels: server_labels.Labels,
) -> "map[Delivered]":
    first, offset = each.first + start, each.offset + start
    numbers: Iterable[Id] = shown_all(range(first, first + count))
    return map(
        Delivered,
        numbers,
        repeat(popped.queue.name),
        repeat(each.partition),
        range(offset, offset + count),
        map(Raw, payloads),
        repeat(each.created_at),
        repeat(each.deliveries),
        repeat(each.failures),
        repeat(each.priority),
        repeat(popped.lease),
        repeat(each.expires_at),
        repeat(labels[0]),
        repeat(labels[1]),
    )


class Pop(Carried, wire.Pop):
    def command(self, context: Context) -> core.Pop:
        return core.Pop(
            context.tenant,
            self.queue,
            self.group,
            self.count,
            self.min_count,
            self.partition,
            self.lease_ms,
            self.start,
            self.wait_ms,
            context.owner,
            create=self.create,
            worker=self.worker or "",
        )

    def reply(self, reply: core.Popped, context: Context) -> Popped:
        if not self.compact:
            return Popped(lease=reply.lease, messages=delivered(reply))
        runs = [
            Run(
                each.partition,
                shown(each.first + start),
                each.offset + start,
                each.created_at,
                each.deliveries,
                each.failures,
                each.priority,
                each.expires_at,
                array(payloads),
                *labels,
            )
            for each in reply.deliveries
            for start, _, payloads, labels in labelled(each)
        ]
        return Popped(lease=reply.lease, runs=runs)


class Settling(Carried, wire.Settling):
    def meant(self) -> list[int] | None:
        """Return the ids given, or None for the whole lease."""
        if self.ids is UNSET:
            if self.lease is None:
                raise Invalid("lease", "given, or else ids")
            return None
        return addresses(self.ids)

    def reply(self, reply: core.Settled, context: Context) -> Settled:
        return Settled(count=reply.count, refused=shown_all(reply.refused))


class Ack(Settling, wire.Ack):
    def nested(self) -> tuple[int, int]:
        if self.results is not UNSET:
            return 2, longest(self.results)
        return (0, 0) if self.result is UNSET else (1, len(self.result))

    def command(self, context: Context) -> core.Ack:
        meant = self.meant()
        results = None if self.results is UNSET else list(map(bytes, self.results))
        if self.result is not UNSET:
            if results is not None or meant is None or len(meant) != 1:
                raise Invalid("result", "given with one id; results has one for each of many ids")
            results = [bytes(self.result)]
        return core.Ack(context.tenant, self.lease, meant, self.group, context.owner, results=results)


class Nack(Settling, wire.Nack):
    def command(self, context: Context) -> core.Nack:
        return core.Nack(
            context.tenant,
            self.lease,
            self.meant(),
            self.group,
            context.owner,
            error=self.error,
            delay_ms=self.delay_ms,
            final=self.final,
            error_type=self.error_type,
            traceback=self.traceback,
        )


class Release(Settling, wire.Release):
    def command(self, context: Context) -> core.Nack:
        if self.error is not None and self.defer_ms is None:
            raise Invalid("error", "left out, or given with defer_ms")
        return core.Nack(
            context.tenant,
            self.lease,
            self.meant(),
            self.group,
            context.owner,
            error=self.error,
            undelivered=True,
            defer_ms=self.defer_ms,
        )


class Extend(Settling, wire.Extend):
    def command(self, context: Context) -> core.Extend:
        return core.Extend(
            context.tenant, self.lease, self.meant(), self.group, context.owner, lease_ms=self.lease_ms
        )

    def reply(self, reply: core.Extended, context: Context) -> Extended:  # type: ignore[override]
        return Extended(
            count=reply.count,
            expires_at=reply.expires_at,
            cancelled=reply.cancelled,
            refused=shown_all(reply.refused),
        )
