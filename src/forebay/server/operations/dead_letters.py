"""Dead letters: list, requeue, purge."""

from collections.abc import Iterator
from itertools import repeat

from msgspec import Raw

from forebay.core import ids
from forebay.core.api import commands as core, queries
from forebay.server.labels import labels_of
from forebay.server.operations.carried import Carried, Context, addresses, shown, shown_all
from forebay.wire.operations import dead_letters as wire
from forebay.wire.operations.dead_letters import Buried, DeadLetter, DeadLetters, Requeued


class ListDead(Carried, wire.ListDead):
    def command(self, context: Context) -> core.Command:
        return queries.ListDead(context.tenant, self.queue, self.group, self.limit, self.skip)

    def reply(self, reply: queries.DeadFound, context: Context) -> DeadLetters:
        found = [letter for each in reply.deliveries for letter in _letters(reply, each)]
        return DeadLetters(messages=found, total=reply.total)


def _letters(found: queries.DeadFound, each: queries.DeadLetter) -> Iterator[DeadLetter]:
    payloads = each.payloads() if each.segment.present else repeat(b"null", each.count)
    headers, tags = labels_of(each)
    for at, payload in enumerate(payloads):
        yield DeadLetter(
            id=shown(each.first + at),
            uuid=ids.to_uuid(each.first + at, each.created_at),
            queue=found.queue.name,
            group=found.group,
            partition=each.partition,
            offset=each.offset + at,
            payload=Raw(payload),
            state="dead",
            created_at=each.created_at,
            ended_at=each.dead_at,
            error=each.error,
            deliveries=each.deliveries,
            failures=each.failures,
            priority=each.priority,
            damaged=not each.segment.present,
            headers=headers,
            tags=tags,
        )


class OfDead(Carried, wire.OfDead):
    def meant(self) -> list[int] | None:
        return None if self.ids is None else addresses(self.ids)

    def reply(self, reply: core.Buried, context: Context) -> Buried:
        refused = shown_all(reply.refused)
        return Buried(count=reply.count, left=reply.left, dry_run=self.dry_run, refused=refused)


class RequeueDead(OfDead, wire.RequeueDead):
    def command(self, context: Context) -> core.Command:
        how = (self.dry_run, self.dependents)
        return core.Requeue(context.tenant, self.queue, self.group, self.meant(), *how)

    def reply(self, reply: core.Buried, context: Context) -> Requeued:
        return Requeued(
            count=reply.count,
            left=reply.left,
            dry_run=self.dry_run,
            refused=shown_all(reply.refused),
            dependents=reply.dependents,
        )


class PurgeDead(OfDead, wire.PurgeDead):
    def command(self, context: Context) -> core.Command:
        return core.Purge(context.tenant, self.queue, self.group, self.meant(), self.dry_run)
