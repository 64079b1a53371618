"""Consumer groups over HTTP: list, create, delete, seek."""

import msgspec
from msgspec import Struct

from forebay.core.api import commands as core, queries
from forebay.core.errors import Invalid
from forebay.core.words import DEFAULT
from forebay.server.http.operation import Asked, Request
from forebay.server.http.operations.queues import GroupSummary, counted


class Cursor(Struct, gc=False):
    """Cursor of a group in a partition."""

    partition: str
    cursor: int


class Sought(Struct, gc=False, kw_only=True):
    """Cursors of the group after a seek."""

    partitions: list[Cursor]


class Seek(Request, kw_only=True):
    """Move the cursors of a group: to ``all``, ``new``, a time, or an offset in one partition."""

    group: str = DEFAULT
    to: int | str | None = None
    partition: str | None = None
    offset: int | None = None

    def command(self, asked: Asked) -> core.Seek:
        if (self.to is None) == (self.offset is None):
            raise Invalid("to", "given, or else an offset, and only one of them")
        where = ("all" if self.to is None else self.to, self.partition, self.offset)
        return core.Seek(asked.tenant, asked.queue, self.group, *where)

    def reply(self, reply: core.Sought, asked: Asked) -> Struct:
        return Sought(partitions=[Cursor(name, cursor) for name, cursor in reply.cursors.items()])


class Groups(Struct, gc=False, kw_only=True):
    """The groups of a queue."""

    queue: str
    groups: list[GroupSummary]


class ListGroups(Request, kw_only=True):
    """List the groups of a queue."""

    def command(self, asked: Asked) -> core.Command:
        return queries.Describe(asked.tenant, asked.queue)

    def reply(self, reply: queries.QueueFound, asked: Asked) -> Struct:
        return _groups(reply)


def _groups(found: queries.QueueFound) -> Groups:
    groups = [GroupSummary(group=each.name, counts=counted(each.counts)) for each in found.groups]
    return Groups(queue=found.queue, groups=groups)


class Group(Request, kw_only=True):
    """Return one group of a queue. A group that does not exist has all messages waiting or delayed."""

    def command(self, asked: Asked) -> core.Command:
        return queries.GroupCounts(asked.tenant, asked.queue, asked.path["group"])

    def reply(self, reply: queries.Counts, asked: Asked) -> Struct:
        return GroupSummary(group=asked.path["group"], counts=counted(reply))


class PutGroup(Request, kw_only=True):
    """Create a group that starts at ``all``, ``new`` or a time; an existing group stays as it is."""

    start: int | str = msgspec.field(default="all", name="from")

    def command(self, asked: Asked) -> core.Command:
        return core.GroupPut(asked.tenant, asked.queue, asked.path["group"], self.start)

    def reply(self, reply: queries.QueueFound, asked: Asked) -> Struct:
        return _groups(reply)


class DeleteGroup(Request, kw_only=True):
    """Delete a group, with its leases, its schedule and its dead letters."""

    def command(self, asked: Asked) -> core.Command:
        return core.GroupDelete(asked.tenant, asked.queue, asked.path["group"])

    def reply(self, reply: queries.QueueFound, asked: Asked) -> Struct:
        return _groups(reply)
