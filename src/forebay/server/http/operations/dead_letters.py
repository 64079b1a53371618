"""Dead letters over HTTP: list, requeue, purge."""

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from forebay.core import ids
from forebay.core.api import commands as core, queries
from forebay.core.words import DEFAULT
from forebay.server.http.operation import Asked, Id, Request, addresses, shown, shown_all
from forebay.server.labels import labels_of


class DeadLetter(Struct, gc=False, kw_only=True, omit_defaults=True):
    """A message that failed too often."""

    id: Id
    uuid: str
    group: str
    partition: str
    offset: int
    payload: msgspec.Raw
    created_at: int
    dead_at: int
    error: str
    deliveries: int
    failures: int
    priority: int
    damaged: bool = False
    headers: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    tags: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET


class DeadLetters(Struct, gc=False, kw_only=True):
    """Some dead letters; ``total`` is how many there are."""

    messages: list[DeadLetter]
    total: int


class ListDead(Request, kw_only=True):
    """List the dead letters of a group."""

    group: str = DEFAULT
    limit: int = 100
    skip: int = 0

    def command(self, asked: Asked) -> queries.ListDead:
        return queries.ListDead(asked.tenant, asked.queue, self.group, self.limit, self.skip)

    def reply(self, reply: queries.DeadFound, asked: Asked) -> Struct:
        return DeadLetters(
            messages=[_letter(reply.group, each) for each in reply.deliveries], total=reply.total
        )


def _letter(group: str, found: queries.DeadLetter) -> DeadLetter:
    (payload,) = found.payloads() if found.segment.present else (b"null",)
    headers, tags = labels_of(found)
    return DeadLetter(
        id=shown(found.first),
        uuid=ids.to_uuid(found.first, found.created_at),
        group=group,
        partition=found.partition,
        offset=found.offset,
        payload=msgspec.Raw(payload),
        created_at=found.created_at,
        dead_at=found.dead_at,
        error=found.error,
        deliveries=found.deliveries,
        failures=found.failures,
        priority=found.priority,
        damaged=not found.segment.present,
        headers=headers,
        tags=tags,
    )


class Buried(Struct, gc=False, kw_only=True):
    """How many dead letters were requeued or purged, and how many are left."""

    count: int
    left: int
    dry_run: bool
    refused: Sequence[Id]


class RequeueDead(Request, kw_only=True):
    """Deliver dead letters again, as if for the first time: those with these ids, or all of them."""

    ids: list[Id] | None = None
    group: str = DEFAULT
    dry_run: bool = False

    def command(self, asked: Asked) -> core.Command:
        meant = None if self.ids is None else addresses(self.ids)
        if self.dry_run:
            return core.Purge(asked.tenant, asked.queue, self.group, meant, dry_run=True)
        return core.Requeue(asked.tenant, asked.queue, self.group, meant)

    def reply(self, reply: core.Buried, asked: Asked) -> Struct:
        return Buried(
            count=reply.count, left=reply.left, dry_run=self.dry_run, refused=shown_all(reply.refused)
        )


class PurgeDead(Request, kw_only=True):
    """Remove dead letters: those with these ids (``id`` may be repeated), or all of them."""

    id: list[Id] | None = None
    group: str = DEFAULT
    dry_run: bool = False

    def command(self, asked: Asked) -> core.Purge:
        meant = None if self.id is None else addresses(self.id)
        return core.Purge(asked.tenant, asked.queue, self.group, meant, self.dry_run)

    def reply(self, reply: core.Buried, asked: Asked) -> Struct:
        return Buried(
            count=reply.count, left=reply.left, dry_run=self.dry_run, refused=shown_all(reply.refused)
        )
