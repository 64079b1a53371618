"""Queues: list, describe, configure, pause, drain, purge, delete; totals of all queues."""

from typing import Any

import msgspec
from msgspec import Struct

from forebay.core.api import commands as core, queries
from forebay.core.errors import Invalid
from forebay.core.words import DEFAULT
from forebay.server.http.operation import Asked, Request
from forebay.server.options import OptionsIn, configure, shown_options


class Counted(Struct, gc=False, kw_only=True):
    """Messages of a group by state."""

    waiting: int
    delayed: int
    parked: int
    active: int
    completed: int
    dead: int
    expired: int
    cancelled: int
    evicted: int
    discarded: int


def counted(counts: queries.Counts) -> Counted:
    return Counted(**{name: getattr(counts, name) for name in Counted.__struct_fields__})


class QueueSummary(Struct, gc=False, kw_only=True):
    """A queue, and the messages of its group ``default`` by state."""

    queue: str
    paused: bool
    counts: Counted


class Queues(Struct, gc=False, kw_only=True):
    """All queues."""

    queues: list[QueueSummary]


class ListQueues(Request, kw_only=True):
    """List all queues."""

    def command(self, asked: Asked) -> queries.ListQueues:
        return queries.ListQueues(asked.tenant)

    def reply(self, reply: queries.QueuesFound, asked: Asked) -> Struct:
        return Queues(
            queues=[
                QueueSummary(queue=each.name, paused=each.paused, counts=counted(each.counts))
                for each in reply.queues
            ]
        )


class Partition(Struct, gc=False, kw_only=True):
    """A partition: where its log begins and ends, and how many bytes of payloads it keeps."""

    partition: str
    first: int
    end: int
    bytes: int
    lane: bool
    retention: dict[str, int]
    """Retention options that differ from the queue's."""


class GroupSummary(Struct, gc=False, kw_only=True):
    """A group, and its messages by state."""

    group: str
    counts: Counted


class Queue(Struct, gc=False, kw_only=True, omit_defaults=True):
    """A queue with its options, partitions and groups."""

    queue: str
    options: dict[str, Any]
    paused: bool
    partitions: list[Partition]
    groups: list[GroupSummary]
    paused_until: int | None = None


def described(found: queries.QueueFound) -> Queue:
    return Queue(
        queue=found.queue,
        options=shown_options(found.options),
        paused=found.paused.paused,
        paused_until=found.paused.until,
        partitions=[
            Partition(
                partition=each.name,
                first=each.first,
                end=each.end,
                bytes=each.payload_bytes,
                lane=each.lane,
                retention={
                    name: value
                    for name, value in msgspec.structs.asdict(each.retention).items()
                    if value is not None
                },
            )
            for each in found.partitions
        ],
        groups=[GroupSummary(group=each.name, counts=counted(each.counts)) for each in found.groups],
    )


class Describing(Request, kw_only=True):
    """Operations that are answered with the whole description of a queue."""

    def reply(self, reply: queries.QueueFound, asked: Asked) -> Struct:
        return described(reply)


class Describe(Describing, kw_only=True):
    """Return one queue with its options, partitions and groups."""

    def command(self, asked: Asked) -> queries.Describe:
        return queries.Describe(asked.tenant, asked.queue)


class Configure(Describing, kw_only=True):
    """Create a queue if it is missing, and set the options given; of one partition, if it is named."""

    options: OptionsIn = msgspec.field(default_factory=OptionsIn)
    partition: str | None = None

    def command(self, asked: Asked) -> core.Configure:
        return configure(asked.tenant, asked.queue, self.options, self.partition)


class Deleted(Struct, gc=False, kw_only=True):
    """With ``active`` messages still leased, the queue is closed for now, and deleted by ``until``."""

    queue: str
    deleted: bool
    active: int
    until: int


class Delete(Request, kw_only=True):
    """Close a queue, and delete it when none of its messages is leased; with ``force``, at once."""

    force: bool = False

    def command(self, asked: Asked) -> core.Delete | core.Obliterate:
        if self.force:
            return core.Obliterate(asked.tenant, asked.queue)
        return core.Delete(asked.tenant, asked.queue)

    def reply(self, reply: core.Closed | core.Cleaned, asked: Asked) -> Struct:
        if isinstance(reply, core.Cleaned):
            return Deleted(queue=asked.queue, deleted=True, active=0, until=0)
        return Deleted(queue=reply.queue, deleted=not reply.active, active=reply.active, until=reply.until)


class Pausing(Struct, gc=False, kw_only=True, omit_defaults=True):
    """Whether a queue is paused, and until when, if that is known."""

    paused: bool
    until: int | None = None


class Pause(Request, kw_only=True):
    """Stop deliveries until the queue is resumed, or until a time."""

    until: int | None = None

    def command(self, asked: Asked) -> core.Command:
        return core.Pause(asked.tenant, asked.queue, self.until)

    def reply(self, reply: queries.Paused, asked: Asked) -> Struct:
        return Pausing(paused=reply.paused, until=reply.until)


class Resume(Request, kw_only=True):
    """Resume deliveries."""

    def command(self, asked: Asked) -> core.Command:
        return core.Resume(asked.tenant, asked.queue)

    def reply(self, reply: queries.Paused, asked: Asked) -> Struct:
        return Pausing(paused=reply.paused, until=reply.until)


class Cleared(Struct, gc=False, kw_only=True):
    """How many messages were cleared; with ``more``, repeat the request."""

    count: int
    more: bool
    dry_run: bool


DRAINED = ("waiting", "delayed", "parked")
PURGED = (*DRAINED, "dead", "completed")


class Clearing(Request, kw_only=True):
    """Operations that clear messages of a group."""

    group: str = DEFAULT
    dry_run: bool = False

    def cleared(self) -> tuple[str, ...]:
        return DRAINED

    def command(self, asked: Asked) -> core.Command:
        states = self.cleared()
        kind = queries.WouldClean if self.dry_run else core.Clean
        return kind(asked.tenant, asked.queue, states, self.group)

    def reply(self, reply: core.Cleaned, asked: Asked) -> Struct:
        return Cleared(count=reply.count, more=reply.more, dry_run=self.dry_run)


class Drain(Clearing, kw_only=True):
    """Cancel all messages of a group that are waiting, delayed or parked. Leased ones are not affected."""


class Purge(Clearing, kw_only=True):
    """Clear messages of a group in some ``states``; by default in all but the leased."""

    states: list[str] | None = None

    def cleared(self) -> tuple[str, ...]:
        states = tuple(PURGED if self.states is None else self.states)
        if not states or set(states) - set(PURGED):
            raise Invalid("states", f"a list of some of {', '.join(PURGED)}")
        return states


class Totals(Struct, gc=False, kw_only=True):
    """Messages of all queues by state, each in its group ``default``."""

    queues: int
    counts: Counted


class Stats(Request, kw_only=True):
    """Count the messages of all queues."""

    def command(self, asked: Asked) -> core.Command:
        return queries.Stats(asked.tenant)

    def reply(self, reply: queries.StatsFound, asked: Asked) -> Struct:
        return Totals(queues=reply.queues, counts=counted(reply.counts))
