"""Commands on whole queues, and on the server."""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, Struct, UnsetType

from forebay.core.api import commands as core, queries
from forebay.core.errors import Invalid
from forebay.core.words import DEFAULT
from forebay.server.flashq import replies
from forebay.server.flashq.replies import RequestId
from forebay.server.flashq.request import Context, Request, our_state
from forebay.server.options import OptionsIn, configure, shown_options


class Pause(Request, tag="PAUSE", gc=False, kw_only=True):
    queue: str
    until: int | None = None

    def command(self, context: Context) -> core.Command:
        return core.Pause(context.tenant, self.queue, self.until)

    def reply(self, reply: queries.Paused, context: Context) -> Struct:
        return _paused(reply, self.reqId)


class Resume(Request, tag="RESUME", gc=False, kw_only=True):
    queue: str

    def command(self, context: Context) -> core.Command:
        return core.Resume(context.tenant, self.queue)

    def reply(self, reply: queries.Paused, context: Context) -> Struct:
        return _paused(reply, self.reqId)


class IsPaused(Request, tag="ISPAUSED", gc=False, kw_only=True):
    queue: str

    def command(self, context: Context) -> core.Command:
        return queries.Describe(context.tenant, self.queue)

    def reply(self, reply: queries.QueueFound, context: Context) -> Struct:
        return _paused(reply.paused, self.reqId)


def _paused(found: queries.Paused, request_id: RequestId | UnsetType) -> Struct:
    until = UNSET if found.until is None else found.until
    return replies.OkPaused(ok=True, paused=found.paused, until=until, reqId=request_id)


class GetJobCounts(Request, tag="GETJOBCOUNTS", gc=False, kw_only=True):
    queue: str
    group: str = DEFAULT

    def command(self, context: Context) -> core.Command:
        return queries.GroupCounts(context.tenant, self.queue, self.group)

    def reply(self, reply: queries.Counts, context: Context) -> Struct:
        return replies.OkCounts(
            ok=True,
            waiting=reply.waiting,
            active=reply.active,
            delayed=reply.delayed,
            completed=reply.completed,
            failed=reply.dead,
            expired=reply.expired,
            cancelled=reply.cancelled,
            evicted=reply.evicted,
            discarded=reply.discarded,
            waiting_children=reply.parked,
            reqId=self.reqId,
        )


class Count(Request, tag="COUNT", gc=False, kw_only=True):
    queue: str
    group: str = DEFAULT

    def command(self, context: Context) -> core.Command:
        return queries.GroupCounts(context.tenant, self.queue, self.group)

    def reply(self, reply: queries.Counts, context: Context) -> Struct:
        waiting = reply.waiting + reply.delayed + reply.parked
        return replies.OkTotal(ok=True, count=waiting, reqId=self.reqId)


class Seek(Request, tag="SEEK", gc=False, kw_only=True):
    queue: str
    group: str = DEFAULT
    to: int | str | UnsetType = UNSET
    partition: str | None = None
    offset: int | None = None

    def command(self, context: Context) -> core.Command:
        if self.to is not UNSET and self.offset is not None:
            raise Invalid("to", "left out if an offset is given")
        where = ("all" if self.to is UNSET else self.to, self.partition, self.offset)
        return core.Seek(context.tenant, self.queue, self.group, *where)

    def reply(self, reply: core.Sought, context: Context) -> Struct:
        partitions = [{"partition": name, "cursor": cursor} for name, cursor in reply.cursors.items()]
        return replies.OkOffsets(ok=True, partitions=partitions, reqId=self.reqId)


DRAINED = ("waiting", "delayed", "waiting-children")
PURGED = (*DRAINED, "failed", "completed")


class Clearing(Request, gc=False, kw_only=True):
    """Fields of DRAIN and PURGE: clear messages of a group in some states, or only count them."""

    queue: str
    group: str = DEFAULT
    dry_run: bool = False

    def cleared(self) -> Sequence[str]:
        return DRAINED

    def command(self, context: Context) -> core.Command:
        states = tuple(our_state(each, PURGED) for each in self.cleared())
        kind = queries.WouldClean if self.dry_run else core.Clean
        return kind(context.tenant, self.queue, states, self.group)

    def reply(self, reply: core.Cleaned, context: Context) -> Struct:
        return _cleaned(reply, self.reqId)


class Drain(Clearing, tag="DRAIN", gc=False, kw_only=True):
    """Cancel messages that are waiting, delayed or waiting for other messages."""


class Purge(Clearing, tag="PURGE", gc=False, kw_only=True):
    states: list[str] | None = None

    def cleared(self) -> Sequence[str]:
        if self.states is not None and not self.states:
            raise Invalid("states", f"a list of some of {', '.join(PURGED)}")
        return PURGED if self.states is None else self.states


class Clean(Request, tag="CLEAN", gc=False, kw_only=True):
    queue: str
    state: str
    grace: int
    limit: int | None = None
    group: str = DEFAULT

    def command(self, context: Context) -> core.Command:
        states = (our_state(self.state, ("waiting", "delayed", "waiting-children", "failed", "completed")),)
        return core.Clean(context.tenant, self.queue, states, self.group, self.grace, self.limit)

    def reply(self, reply: core.Cleaned, context: Context) -> Struct:
        return _cleaned(reply, self.reqId)


class Delete(Request, tag="DELETE", gc=False, kw_only=True):
    queue: str

    def command(self, context: Context) -> core.Command:
        return core.Delete(context.tenant, self.queue)

    def reply(self, reply: core.Closed, context: Context) -> Struct:
        return replies.OkDeleted(
            ok=True,
            queue=reply.queue,
            deleted=not reply.active,
            active=reply.active,
            until=reply.until,
            reqId=self.reqId,
        )


class PutGroup(Request, tag="GROUP", gc=False, kw_only=True):
    queue: str
    group: str
    start: int | str = msgspec.field(default="all", name="from")

    def command(self, context: Context) -> core.Command:
        return core.GroupPut(context.tenant, self.queue, self.group, self.start)

    def reply(self, reply: queries.QueueFound, context: Context) -> Struct:
        return _groups(reply, self.reqId)


class DeleteGroup(Request, tag="GROUPDELETE", gc=False, kw_only=True):
    queue: str
    group: str

    def command(self, context: Context) -> core.Command:
        return core.GroupDelete(context.tenant, self.queue, self.group)

    def reply(self, reply: queries.QueueFound, context: Context) -> Struct:
        return _groups(reply, self.reqId)


def _groups(found: queries.QueueFound, request_id: RequestId | UnsetType) -> Struct:
    groups = [{"group": each.name, **_counts(each.counts)} for each in found.groups]
    return replies.OkGroups(ok=True, queue=found.queue, groups=groups, reqId=request_id)


class Obliterate(Request, tag="OBLITERATE", gc=False, kw_only=True):
    queue: str

    def command(self, context: Context) -> core.Command:
        return core.Obliterate(context.tenant, self.queue)

    def reply(self, reply: core.Cleaned, context: Context) -> Struct:
        return _cleaned(reply, self.reqId)


def _cleaned(found: core.Cleaned, request_id: RequestId | UnsetType) -> Struct:
    return replies.OkCleaned(ok=True, count=found.count, more=found.more, reqId=request_id)


class Offsets(Request, tag="OFFSETS", gc=False, kw_only=True):
    queue: str
    at: int | None = None
    since: dict[str, int] | None = None

    def command(self, context: Context) -> core.Command:
        return queries.Offsets(context.tenant, self.queue, self.at, self.since)

    def reply(self, reply: queries.OffsetsFound, context: Context) -> Struct:
        partitions = [
            {
                "partition": each.partition,
                "numbers": each.numbers,
                "first": each.first,
                "end": each.end,
                # A reply leaves after its commit, so everything up to ``end`` is stored.
                "synced": each.end,
                "at": each.at,
                "bytes": each.size,
                **({} if self.since is None else {"since": each.since}),
            }
            for each in reply.partitions
        ]
        return replies.OkOffsets(ok=True, partitions=partitions, reqId=self.reqId)


class Queue(Request, tag="QUEUE", gc=False, kw_only=True):
    queue: str
    options: OptionsIn | None = None
    partition: str | None = None

    def command(self, context: Context) -> core.Command:
        given = self.options
        if given is None:
            if self.partition is not None:
                raise Invalid("options", "given along with a partition")
            return queries.Describe(context.tenant, self.queue)
        return configure(context.tenant, self.queue, given, self.partition)

    def reply(self, reply: queries.QueueFound, context: Context) -> Struct:
        return replies.OkQueue(
            ok=True,
            queue=reply.queue,
            options=shown_options(reply.options),
            paused=reply.paused.paused,
            paused_until=UNSET if reply.paused.until is None else reply.paused.until,
            partitions=list(map(_partition, reply.partitions)),
            groups=[{"group": each.name, **_counts(each.counts)} for each in reply.groups],
            staged=msgspec.structs.asdict(reply.staged),
            reqId=self.reqId,
        )


def _partition(found: queries.PartitionFound) -> dict[str, object]:
    own = msgspec.structs.asdict(found.retention)
    return {
        "partition": found.name,
        "first": found.first,
        "end": found.end,
        "bytes": found.payload_bytes,
        **({"lane": True} if found.lane else {}),
        **{name: value for name, value in own.items() if value is not None},
    }


def _counts(counts: queries.Counts) -> dict[str, int]:
    return {
        "waiting": counts.waiting,
        "delayed": counts.delayed,
        "waiting-children": counts.parked,
        "active": counts.active,
        "completed": counts.completed,
        "failed": counts.dead,
        "expired": counts.expired,
        "cancelled": counts.cancelled,
        "evicted": counts.evicted,
        "discarded": counts.discarded,
    }


class ListQueues(Request, tag="LISTQUEUES", gc=False, kw_only=True):
    def command(self, context: Context) -> core.Command:
        return queries.ListQueues(context.tenant)

    def reply(self, reply: queries.QueuesFound, context: Context) -> Struct:
        queues = [
            {
                "name": each.name,
                "pending": each.counts.waiting,
                "processing": each.counts.active,
                "delayed": each.counts.delayed,
                "waiting-children": each.counts.parked,
                "dlq": each.counts.dead,
                "completed": each.counts.completed,
                "paused": each.paused,
            }
            for each in reply.queues
        ]
        return replies.OkQueues(ok=True, queues=queues, reqId=self.reqId)


class Stats(Request, tag="STATS", gc=False, kw_only=True):
    def command(self, context: Context) -> core.Command:
        return queries.Stats(context.tenant)

    def reply(self, reply: queries.StatsFound, context: Context) -> Struct:
        return replies.OkStats(
            ok=True,
            queues=reply.queues,
            queued=reply.counts.waiting,
            processing=reply.counts.active,
            delayed=reply.counts.delayed,
            waiting_children=reply.counts.parked,
            dlq=reply.counts.dead,
            completed=reply.counts.completed,
            reqId=self.reqId,
        )


class Hold(Request, tag="HOLD", gc=False, kw_only=True):
    held: bool = True

    def command(self, context: Context) -> core.Command:
        return core.Hold(context.tenant, self.held)

    def reply(self, reply: core.Held, context: Context) -> Struct:
        return replies.OkHeld(ok=True, held=reply.held, store=reply.store, reqId=self.reqId)


class Backup(Request, tag="BACKUP", gc=False, kw_only=True):
    directory: str

    def command(self, context: Context) -> core.Command:
        return core.Backup(context.tenant, self.directory)

    def reply(self, reply: core.BackedUp, context: Context) -> Struct:
        return replies.OkDirectory(ok=True, directory=reply.directory, reqId=self.reqId)
