"""Queues: list, describe, configure, pause, drain, purge, delete; totals of all queues."""

import msgspec

from forebay.core.api import commands as core, queries
from forebay.core.api.principals import READ, Principal
from forebay.core.errors import Invalid
from forebay.server.operations.carried import Carried, Context, check_role
from forebay.server.options import configure, shown_options
from forebay.wire.operations import queues as wire
from forebay.wire.operations.queues import (
    DRAINED,
    PURGED,
    Cleared,
    Counted,
    Deleted,
    GroupSummary,
    Partition,
    Pausing,
    Queue,
    Queues,
    QueueSummary,
    StagedSummary,
    Totals,
)


def counted(counts: queries.Counts) -> Counted:
    return Counted(**{name: getattr(counts, name) for name in Counted.__struct_fields__})


def group_of(found: queries.GroupFound) -> GroupSummary:
    return GroupSummary(group=found.name, counts=counted(found.counts), oldest_at=found.oldest_at)


class ListQueues(Carried, wire.ListQueues):
    def command(self, context: Context) -> core.Command:
        return queries.ListQueues(context.tenant, context.queues)

    def reply(self, reply: queries.QueuesFound, context: Context) -> Queues:
        return Queues(queues=list(map(_summary, reply.queues)))


def _summary(found: queries.QueueCounts) -> QueueSummary:
    groups = list(map(group_of, found.groups))
    leads = (shown for shown, each in zip(groups, found.groups, strict=True) if each.counts is found.counts)
    lead = next(leads, None)
    return QueueSummary(
        queue=found.name,
        paused=found.paused,
        counts=lead.counts if lead is not None else counted(found.counts),
        oldest_at=found.oldest_at,
        groups=groups,
    )


class Configure(Carried, wire.Configure):
    def check_allowed(self, principal: Principal) -> None:
        if self.options is None:
            check_role(principal, (READ,), "QUEUE without options")
        else:
            super().check_allowed(principal)

    def command(self, context: Context) -> core.Command:
        if self.options is None:
            if self.partition is not None:
                raise Invalid("options", "given along with a partition")
            return queries.Describe(context.tenant, self.queue)
        return configure(context.tenant, self.queue, self.options, self.partition)

    def reply(self, reply: queries.QueueFound, context: Context) -> Queue:
        return Queue(
            queue=reply.queue,
            options=shown_options(reply.options),
            paused=reply.paused.paused,
            paused_until=reply.paused.until,
            partitions=list(map(_partition, reply.partitions)),
            groups=list(map(group_of, reply.groups)),
            staged=StagedSummary(**msgspec.structs.asdict(reply.staged)),
        )


def _partition(found: queries.PartitionFound) -> Partition:
    own = msgspec.structs.asdict(found.retention)
    return Partition(
        partition=found.name,
        first=found.first,
        end=found.end,
        bytes=found.payload_bytes,
        lane=found.lane,
        retention={name: value for name, value in own.items() if value is not None},
    )


class Delete(Carried, wire.Delete):
    def command(self, context: Context) -> core.Command:
        if self.force:
            return core.Obliterate(context.tenant, self.queue)
        return core.Delete(context.tenant, self.queue)

    def reply(self, reply: core.Closed | core.Cleaned, context: Context) -> Deleted:
        if isinstance(reply, core.Cleaned):
            return Deleted(queue=self.queue, deleted=True, active=0, until=0)
        return Deleted(queue=reply.queue, deleted=not reply.active, active=reply.active, until=reply.until)


class Pause(Carried, wire.Pause):
    def command(self, context: Context) -> core.Command:
        return core.Pause(context.tenant, self.queue, self.until)

    def reply(self, reply: queries.Paused, context: Context) -> Pausing:
        return Pausing(paused=reply.paused, until=reply.until)


class Resume(Carried, wire.Resume):
    def command(self, context: Context) -> core.Command:
        return core.Resume(context.tenant, self.queue)

    def reply(self, reply: queries.Paused, context: Context) -> Pausing:
        return Pausing(paused=reply.paused, until=reply.until)


class Clearing(Carried, wire.Clearing):
    def reply(self, reply: core.Cleaned, context: Context) -> Cleared:
        return Cleared(count=reply.count, more=reply.more, dry_run=self.dry_run, freed=reply.freed)


class Drain(Clearing, wire.Drain):
    def command(self, context: Context) -> core.Command:
        kind = queries.WouldClean if self.dry_run else core.Clean
        return kind(context.tenant, self.queue, DRAINED, self.group, create=False)


class Purge(Clearing, wire.Purge):
    def command(self, context: Context) -> core.Command:
        states = tuple(PURGED if self.states is None else self.states)
        if not states or set(states) - set(PURGED):
            raise Invalid("states", f"a list of some of {', '.join(PURGED)}")
        where = context.tenant, self.queue, states, self.group
        if not self.dry_run:
            return core.Clean(*where, self.grace_ms, self.limit, create=False)
        for name, value in (("grace_ms", self.grace_ms), ("limit", self.limit)):
            if value:
                raise Invalid(name, "left out of a dry run, which counts all")
        return queries.WouldClean(*where, create=False)


class CountAll(Carried, wire.CountAll):
    def command(self, context: Context) -> core.Command:
        return queries.Stats(context.tenant, context.queues)

    def reply(self, reply: queries.StatsFound, context: Context) -> Totals:
        return Totals(
            queues=reply.queues,
            counts=counted(reply.counts),
            oldest_at=reply.oldest_at,
            groups=list(map(group_of, reply.groups)),
        )
