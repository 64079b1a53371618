"""Pop, and the operations on its leases: ack, nack, extend."""

from collections.abc import Iterator, Sequence

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from forebay.core.api import commands as core
from forebay.core.errors import Invalid
from forebay.core.words import DEFAULT
from forebay.server.http.operation import Asked, Id, Request, addresses, longest, shown, shown_all
from forebay.server.labels import array, labelled


class Delivered(Struct, gc=False, omit_defaults=True):
    """A message leased to the consumer that popped it."""

    id: Id
    queue: str
    partition: str
    offset: int
    payload: Raw
    created_at: int
    deliveries: int
    failures: int
    priority: int
    lease: str | None
    expires_at: int
    headers: dict[str, str] | UnsetType = UNSET
    tags: tuple[str, ...] | UnsetType = UNSET


class Run(Struct, gc=False, omit_defaults=True):
    """Consecutive messages: their ids and offsets follow each other."""

    partition: str
    first: Id
    offset: int
    created_at: int
    deliveries: int
    failures: int
    priority: int
    expires_at: int
    payloads: Raw
    headers: dict[str, str] | UnsetType = UNSET
    tags: tuple[str, ...] | UnsetType = UNSET


class Popped(Struct, gc=False, omit_defaults=True, kw_only=True):
    """The messages leased: as ``messages``, or as ``runs`` if the request was ``compact``."""

    lease: str | None
    messages: list[Delivered] | UnsetType = UNSET
    runs: list[Run] | UnsetType = UNSET


def delivered(popped: core.Popped) -> Iterator[Delivered]:
    """Yield the messages of a pop one by one."""
    queue, lease = popped.queue.name, popped.lease
    for each in popped.deliveries:
        for start, _, payloads, labels in labelled(each):
            at = start
            for payload in payloads:
                yield Delivered(
                    shown(each.first + at),
                    queue,
                    each.partition,
                    each.offset + at,
                    Raw(payload),
                    each.created_at,
                    each.deliveries,
                    each.failures,
                    each.priority,
                    lease,
                    each.expires_at,
                    *labels,
                )
                at += 1


class Pop(Request, kw_only=True):
    """Lease up to ``count`` messages for a group; wait up to ``wait_ms`` if there are none."""

    count: int = 1
    min_count: int = 1
    wait_ms: int = 0
    group: str = DEFAULT
    partition: str | None = None
    lease_ms: int | None = None
    start: int | str = msgspec.field(default="all", name="from")
    compact: bool = False

    def command(self, asked: Asked) -> core.Pop:
        return core.Pop(
            asked.tenant,
            asked.queue,
            self.group,
            self.count,
            self.min_count,
            self.partition,
            self.lease_ms,
            self.start,
            self.wait_ms,
            asked.owner,
        )

    def reply(self, reply: core.Popped, asked: Asked) -> Struct:
        if not self.compact:
            return Popped(lease=reply.lease, messages=list(delivered(reply)))
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


class Settled(Struct, gc=False, kw_only=True):
    """How many messages were settled, and which of the ids given were not."""

    count: int
    refused: Sequence[Id]


class Extended(Struct, gc=False, kw_only=True):
    """When the first of the leases expires; ``cancelled`` if a message was cancelled meanwhile."""

    count: int
    expires_at: int
    cancelled: bool
    refused: Sequence[Id]


class Settle(Request, kw_only=True):
    """A whole ``lease``, or ``ids`` (of that lease, if it is given as well)."""

    lease: str | None = None
    ids: list[Id] | UnsetType = UNSET
    group: str | None = None

    def meant(self) -> list[int] | None:
        if self.ids is UNSET:
            if self.lease is None:
                raise Invalid("lease", "given, or else ids")
            return None
        return addresses(self.ids)

    def reply(self, reply: core.Settled, asked: Asked) -> Struct:
        return Settled(count=reply.count, refused=shown_all(reply.refused))


class Ack(Settle, kw_only=True):
    """Acknowledge messages. ``results``, one for each of the ids, are kept with the messages."""

    results: list[Raw] | UnsetType = UNSET

    def nested(self) -> tuple[int, int]:
        return (0, 0) if self.results is UNSET else (2, longest(self.results))

    def command(self, asked: Asked) -> core.Ack:
        results = None if self.results is UNSET else list(map(bytes, self.results))
        return core.Ack(asked.tenant, self.lease, self.meant(), self.group, asked.owner, results=results)


class Nack(Settle, kw_only=True):
    """Report messages as failed: retry after their backoff or ``delay_ms``; never, if ``final``."""

    error: str | None = None
    delay_ms: int | None = None
    final: bool = False

    def command(self, asked: Asked) -> core.Nack:
        return core.Nack(
            asked.tenant,
            self.lease,
            self.meant(),
            self.group,
            asked.owner,
            error=self.error,
            delay_ms=self.delay_ms,
            final=self.final,
        )


class Extend(Settle, kw_only=True):
    """Extend the leases of messages."""

    lease_ms: int | None = None

    def command(self, asked: Asked) -> core.Extend:
        return core.Extend(
            asked.tenant, self.lease, self.meant(), self.group, asked.owner, lease_ms=self.lease_ms
        )

    def reply(self, reply: core.Extended, asked: Asked) -> Struct:  # type: ignore[override]
        return Extended(
            count=reply.count,
            expires_at=reply.expires_at,
            cancelled=reply.cancelled,
            refused=shown_all(reply.refused),
        )
