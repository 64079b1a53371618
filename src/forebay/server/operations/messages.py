"""Messages that need not be leased: look at them, change them, read the log."""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import chain, islice
from typing import Any

from msgspec import UNSET, Raw, UnsetType

from forebay.core import ids
from forebay.core.api import commands as core, queries
from forebay.core.errors import NotFound
from forebay.core.log.bodies import body_part, pack_body
from forebay.core.state import Attributes, Segment, count_sets, set_at
from forebay.server.labels import array, labelled, labels_of
from forebay.server.operations.carried import (
    Carried,
    Context,
    addresses,
    given_or_unset,
    shown,
    shown_all,
)
from forebay.wire.operations import messages as wire
from forebay.wire.operations.messages import (
    Found,
    LogRun,
    OffsetsFound,
    PackedRun,
    PackedStretch,
    PartitionOffsets,
    Seen,
    Stands,
    Stretch,
)
from forebay.wire.operations.pop import Settled
from forebay.wire.operations.push import Pushed
from forebay.wire.text import PLAINLY
from forebay.wire.types import Id

DEPENDENCIES_SHOWN = 1_000
"""Ids in ``depends_on`` that are shown with a message, at most."""


def seen(found: queries.Shown, context: Context) -> Seen:
    state = found.state
    (payload,) = found.payloads() if found.segment.present else (b"null",)
    headers, tags = labels_of(found)
    return Seen(
        id=shown(state.id),
        uuid=ids.to_uuid(state.id, state.created_at),
        queue=found.queue.name,
        partition=found.partition,
        offset=found.offset,
        payload=Raw(payload),
        state=state.state,
        created_at=state.created_at,
        deliveries=state.deliveries,
        failures=state.failures,
        priority=state.priority,
        damaged=not found.segment.present,
        error=state.error or UNSET,
        error_type=state.error_type or UNSET,
        due_at=given_or_unset(state.due_at),
        leased_at=leased_at(state),
        lease_until=given_or_unset(state.lease_until),
        holder=state.worker or UNSET,
        ended_at=given_or_unset(state.ended_at),
        job_id=given_or_unset(state.job_id),
        unique_key=given_or_unset(state.unique_key),
        depends_on=shown_spans(state.depends_on) if state.depends_on else UNSET,
        headers=headers,
        tags=tags,
        task=state.attributes.task or UNSET,
    )


def leased_at(state: queries.StateFound) -> int | UnsetType:
    """Return when the delivery of a leased message began, if that is known."""
    return UNSET if state.lease_until is None or state.leased_at is None else state.leased_at


def shown_spans(spans: tuple[tuple[int, int], ...]) -> Sequence[Id]:
    """Return the ids of spans (first, count), the first of them."""
    every = chain.from_iterable(range(first, first + count) for first, count in spans)
    return shown_all(list(islice(every, DEPENDENCIES_SHOWN)))


def missing() -> NotFound:
    return NotFound("there is no such message, or it is no longer kept")


class GetMessage(Carried, wire.GetMessage):
    def command(self, context: Context) -> core.Command:
        return queries.Show(context.tenant, [ids.parse(self.id)], self.group)

    def reply(self, reply: queries.ShownAll, context: Context) -> Seen:
        if not reply.deliveries or self.queue not in (None, reply.deliveries[0].queue.name):
            raise missing()
        return seen(reply.deliveries[0], context)


class GetMessages(Carried, wire.GetMessages):
    def command(self, context: Context) -> core.Command:
        return queries.Show(context.tenant, addresses(self.ids), self.group)

    def reply(self, reply: queries.ShownAll, context: Context) -> Found:
        return Found(messages=[seen(each, context) for each in reply.deliveries])


class FindMessage(Carried, wire.FindMessage):
    def command(self, context: Context) -> core.Command:
        return queries.FindJob(context.tenant, self.job_id, self.queue, context.queues)

    def reply(self, reply: queries.ShownAll, context: Context) -> Seen:
        (message,) = reply.deliveries
        return seen(message, context)


class GetState(Carried, wire.GetState):
    def command(self, context: Context) -> core.Command:
        return queries.State(context.tenant, ids.parse(self.id), self.group, by_result=True)

    def reply(self, reply: queries.StateFound, context: Context) -> Stands:
        return Stands(
            id=shown(reply.id),
            uuid=ids.to_uuid(reply.id, reply.created_at),
            state=reply.state,
            created_at=reply.created_at,
            deliveries=reply.deliveries,
            failures=reply.failures,
            priority=reply.priority,
            error=reply.error or UNSET,
            due_at=given_or_unset(reply.due_at),
            leased_at=leased_at(reply),
            lease_until=given_or_unset(reply.lease_until),
            holder=reply.worker or UNSET,
            ended_at=given_or_unset(reply.ended_at),
        )


# Changes.


def settled(reply: core.Settled) -> Settled:
    return Settled(count=reply.count, refused=shown_all(reply.refused))


class Cancel(Carried, wire.Cancel):
    def command(self, context: Context) -> core.Command:
        return core.Cancel(context.tenant, addresses(self.ids), self.group)

    def reply(self, reply: core.Settled, context: Context) -> Settled:
        return settled(reply)


class OfGroup(Carried, wire.OfGroup):
    def reply(self, reply: core.Settled, context: Context) -> Settled:
        return settled(reply)


class Promote(OfGroup, wire.Promote):
    def command(self, context: Context) -> core.Command:
        return core.Move(context.tenant, addresses(self.ids), self.group, delay_ms=0, only_delayed=True)


class Delay(OfGroup, wire.Delay):
    def command(self, context: Context) -> core.Command:
        return core.Move(context.tenant, addresses(self.ids), self.group, delay_ms=self.delay_ms)


class Prioritise(OfGroup, wire.Prioritise):
    def command(self, context: Context) -> core.Command:
        return core.Move(context.tenant, addresses(self.ids), self.group, priority=self.priority)


class Discard(OfGroup, wire.Discard):
    def command(self, context: Context) -> core.Command:
        return core.Discard(context.tenant, addresses(self.ids), self.group)


class Update(Carried, wire.Update):
    def nested(self) -> tuple[int, int]:
        return 1, len(self.payload)

    def command(self, context: Context) -> core.Command:
        headers = {**PLAINLY, **(self.headers or {})}
        return core.Update(context.tenant, ids.parse(self.id), bytes(self.payload), tuple(headers.items()))

    def reply(self, reply: core.Pushed, context: Context) -> Pushed:
        return Pushed(id=shown(reply.first), durability=reply.durability)


# The log.


class ReadLog(Carried, wire.ReadLog):
    def command(self, context: Context) -> core.Command:
        return queries.Read(
            context.tenant, self.queue, self.offset, self.partition, self.max_count, self.max_bytes
        )

    def reply(self, reply: queries.LogSlice, context: Context) -> Stretch:
        runs = [
            LogRun(shown(run.first + start), run.offset + start, run.created_at, array(payloads), *labels)
            for run in reply.runs
            for start, _, payloads, labels in labelled(run)
        ]
        return Stretch(partition=reply.partition, next=reply.next, end=reply.end, runs=runs)

    def packed_command(self, context: Context) -> core.Command:
        how_much = (self.max_count, self.max_bytes)
        return queries.Read(context.tenant, self.queue, self.offset, self.partition, *how_much, whole=True)

    def packed_reply(self, reply: queries.LogSlice, context: Context) -> PackedStretch:
        return PackedStretch(
            partition=reply.partition,
            number=reply.key,
            next=reply.next,
            end=reply.end,
            runs=list(map(packed_run, reply.runs)),
        )


def packed_run(run: queries.ReadRun) -> PackedRun:
    """Return a slice of a segment as it is stored, with the time and attributes of its runs."""
    segment, start, count = run.segment, run.start, run.count
    body = segment.body if segment.body is not None else pack_body(*_forming(segment))
    found = PackedRun(
        run.first, run.offset, run.created_at, count, body_part(body, segment.count, start, count)
    )
    if segment.spread or segment.sets:
        _add_runs(found, segment, start)
    return found


def _forming(segment: Segment) -> tuple[list[bytes], list[int]]:
    assert segment.payloads is not None, "the body is read before the payloads are"
    assert segment.lengths is not None
    return segment.payloads, segment.lengths


def _add_runs(found: PackedRun, segment: Segment, start: int) -> None:
    if segment.spread:
        ends, times = segment.run_ends, segment.run_times
        low, high = bisect_right(ends, start), bisect_left(ends, start + found.count) + 1
        cut = [min(end - start, found.count) for end in ends[low:high]]
        found.ends = struct.pack(f"<{len(cut)}I", *cut)
        found.times = struct.pack(f"<{len(cut)}I", *times[low:high])
        if segment.which:
            which = memoryview(segment.which).cast("I")[low:high]
            found.which = struct.pack(f"<{len(cut)}I", *which)
    if segment.sets:
        sets = [set_at(segment.sets, at) for at in range(count_sets(segment.sets))]
        found.attributes = list(map(_shown_attributes, sets))


def _shown_attributes(attributes: Attributes) -> dict[str, Any]:
    """Return the attributes that are shown to a reader of the log."""
    found: dict[str, Any] = {"priority": attributes.priority}
    if attributes.headers:
        found["headers"] = dict(attributes.headers)
    if attributes.tags:
        found["tags"] = attributes.tags
    return found


class Offsets(Carried, wire.Offsets):
    def command(self, context: Context) -> core.Command:
        return queries.Offsets(context.tenant, self.queue, self.at, self.since)

    def reply(self, reply: queries.OffsetsFound, context: Context) -> OffsetsFound:
        return OffsetsFound(
            partitions=[
                PartitionOffsets(
                    partition=each.partition,
                    numbers=each.numbers,
                    first=each.first,
                    end=each.end,
                    # A reply leaves after its commit, so everything up to ``end`` is stored.
                    synced=each.end,
                    at=each.at,
                    bytes=each.size,
                    since=UNSET if self.since is None else each.since,
                )
                for each in reply.partitions
            ]
        )
