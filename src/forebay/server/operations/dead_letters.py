"""Dead letters: list, requeue, purge."""

from collections.abc import Iterator
from itertools import repeat
from typing import ClassVar

from msgspec import UNSET, Raw

from forebay.core import ids
from forebay.core.api import commands as core, queries
from forebay.core.api.causes import Cause, CausesFound, GetCauses, join
from forebay.core.bounds import check_range
from forebay.server.labels import labels_of
from forebay.server.operations.carried import Carried, Context, addresses, ask, shown, shown_all
from forebay.server.tcp.codec import Services
from forebay.wire.operations import dead_letters as wire
from forebay.wire.operations.dead_letters import (
    Buried,
    DeadGroup,
    DeadGroups,
    DeadLetter,
    DeadLetters,
    Requeued,
)

GROUPS_MAX = 10_000
"""Causes that one request tells apart; dead letters of further ones are among the rest."""
GROUPS_SHOWN_MAX = 1_000


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
            error_type=each.error_type or UNSET,
            deliveries=each.deliveries,
            failures=each.failures,
            priority=each.priority,
            damaged=not each.segment.present,
            headers=headers,
            tags=tags,
            task=each.segment.run_at(each.start)[2].task or UNSET,
        )


class GroupDead(Carried, wire.GroupDead):
    is_command: ClassVar[bool] = False

    async def carry_out(self, services: Services, context: Context) -> DeadGroups:
        check_range("limit", self.limit, 1, GROUPS_SHOWN_MAX)
        found: dict[tuple[str, str, str], Cause] = {}
        total, after = 0, None
        while True:
            asked = GetCauses(context.tenant, self.queue, self.group, after)
            reply = await ask(services, context, asked)
            assert isinstance(reply, CausesFound)
            for each in reply.causes:
                total += each.count
                if (key := (each.task, each.type, each.pattern)) in found:
                    join(found[key], each)
                elif len(found) < GROUPS_MAX:
                    found[key] = each
            if (after := reply.next) is None:
                break
        most = sorted(found.values(), key=_by_count)[: self.limit]
        rest = total - sum(each.count for each in most)
        return DeadGroups(groups=list(map(_group, most)), total=total, rest=rest)

    def reply(self, reply: DeadGroups, context: Context) -> DeadGroups:
        return reply


def _by_count(cause: Cause) -> tuple[int, int, int]:
    return -cause.count, cause.first_at, cause.example


def _group(cause: Cause) -> DeadGroup:
    about = (cause.count, cause.pattern, cause.first_at, cause.last_at, shown(cause.example))
    return DeadGroup(*about, cause.task or UNSET, cause.type or UNSET)


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
