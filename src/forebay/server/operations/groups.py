"""Consumer groups: list, create, delete, seek."""

from forebay.core.api import commands as core, queries
from forebay.core.errors import Invalid
from forebay.server.operations.carried import Carried, Context
from forebay.server.operations.queues import group_of
from forebay.wire.operations import groups as wire
from forebay.wire.operations.groups import Cursor, Groups, Sought
from forebay.wire.operations.queues import GroupSummary


def _groups(found: queries.QueueFound) -> Groups:
    return Groups(queue=found.queue, groups=list(map(group_of, found.groups)))


class ListGroups(Carried, wire.ListGroups):
    def command(self, context: Context) -> core.Command:
        return queries.Describe(context.tenant, self.queue)

    def reply(self, reply: queries.QueueFound, context: Context) -> Groups:
        return _groups(reply)


class GetGroup(Carried, wire.GetGroup):
    def command(self, context: Context) -> core.Command:
        return queries.DescribeGroup(context.tenant, self.queue, self.group)

    def reply(self, reply: queries.GroupFound, context: Context) -> GroupSummary:
        return group_of(reply)


class PutGroup(Carried, wire.PutGroup):
    def command(self, context: Context) -> core.Command:
        return core.GroupPut(context.tenant, self.queue, self.group, self.start)

    def reply(self, reply: queries.QueueFound, context: Context) -> Groups:
        return _groups(reply)


class DeleteGroup(Carried, wire.DeleteGroup):
    def command(self, context: Context) -> core.Command:
        return core.GroupDelete(context.tenant, self.queue, self.group)

    def reply(self, reply: queries.QueueFound, context: Context) -> Groups:
        return _groups(reply)


class Seek(Carried, wire.Seek):
    def command(self, context: Context) -> core.Command:
        if (self.to is None) == (self.offset is None):
            raise Invalid("to", "given, or else an offset, and only one of them")
        where = ("all" if self.to is None else self.to, self.partition, self.offset)
        return core.Seek(context.tenant, self.queue, self.group, *where)

    def reply(self, reply: core.Sought, context: Context) -> Sought:
        return Sought(partitions=[Cursor(name, cursor) for name, cursor in reply.cursors.items()])
