"""Commands on messages that need not be leased, including dead letters."""

from collections.abc import Iterator, Sequence
from itertools import chain, islice, repeat

from msgspec import UNSET, Raw, Struct, UnsetType

from forebay.core import ids
from forebay.core.api import commands as core, queries
from forebay.core.errors import Invalid, NotFound
from forebay.core.words import DEFAULT
from forebay.server.cursors import EFFORT, cursor_of, holds, parse_cursor
from forebay.server.flashq import replies
from forebay.server.flashq.replies import Id, packed_run, shown, shown_all
from forebay.server.flashq.request import STATES, Context, Request, addresses, our_state
from forebay.server.labels import array, labelled, labels_of


class ByIds(Request, gc=False, kw_only=True):
    """Commands on messages by id, leased or not."""

    id: Id | UnsetType = UNSET
    ids: list[Id] | UnsetType = UNSET

    def meant(self) -> list[int]:
        if (self.id is UNSET) == (self.ids is UNSET):
            raise Invalid("id", "given, or else ids, but not both")
        return [ids.parse(self.id)] if self.id is not UNSET else addresses(self.ids)  # type: ignore[arg-type]

    def reply(self, reply: core.Settled, context: Context) -> Struct:
        return replies.OkCount(ok=True, count=reply.count, refused=shown_all(reply.refused), reqId=self.reqId)


class Cancel(ByIds, tag="CANCEL", gc=False, kw_only=True):
    group: str | None = None

    def command(self, context: Context) -> core.Command:
        return core.Cancel(context.tenant, self.meant(), self.group)


class Promote(ByIds, tag="PROMOTE", gc=False, kw_only=True):
    group: str = DEFAULT

    def command(self, context: Context) -> core.Command:
        return core.Move(context.tenant, self.meant(), self.group, delay_ms=0, only_delayed=True)


class MoveToDelayed(ByIds, tag="MOVETODELAYED", gc=False, kw_only=True):
    delay: int
    group: str = DEFAULT

    def command(self, context: Context) -> core.Command:
        return core.Move(context.tenant, self.meant(), self.group, delay_ms=self.delay)


class ChangePriority(ByIds, tag="CHANGEPRIORITY", gc=False, kw_only=True):
    priority: int
    group: str = DEFAULT

    def command(self, context: Context) -> core.Command:
        return core.Move(context.tenant, self.meant(), self.group, priority=self.priority)


class UpdateJob(Request, tag="UPDATEJOB", gc=False, kw_only=True):
    id: Id
    data: Raw

    def nested(self) -> tuple[int, int]:
        return 1, len(self.data)

    def command(self, context: Context) -> core.Command:
        return core.Update(context.tenant, ids.parse(self.id), bytes(self.data))

    def reply(self, reply: core.Pushed, context: Context) -> Struct:
        return replies.OkId(ok=True, id=shown(reply.first), durability=reply.durability, reqId=self.reqId)


class UpdateAlias(UpdateJob, tag="UPDATE", gc=False, kw_only=True):
    """Alias that flashQ's Python client sends."""


class Discard(ByIds, tag="DISCARD", gc=False, kw_only=True):
    group: str = DEFAULT

    def command(self, context: Context) -> core.Command:
        return core.Discard(context.tenant, self.meant(), self.group)


class DeadLetters(Request, tag="DLQ", gc=False, kw_only=True):
    queue: str
    count: int = 100
    offset: int = 0
    group: str = DEFAULT

    def command(self, context: Context) -> core.Command:
        return queries.ListDead(context.tenant, self.queue, self.group, self.count, self.offset)

    def reply(self, reply: queries.DeadFound, context: Context) -> Struct:
        jobs = [job for each in reply.deliveries for job in _dead(reply, each)]
        return replies.OkDead(ok=True, jobs=jobs, total=reply.total, reqId=self.reqId)


def _dead(found: queries.DeadFound, each: queries.DeadLetter) -> Iterator[replies.DeadJob]:
    payloads = each.payloads() if each.segment.present else repeat(b"null", each.count)
    headers, tags = labels_of(each)
    for at, payload in enumerate(payloads):
        yield replies.DeadJob(
            id=shown(each.first + at),
            uuid=ids.to_uuid(each.first + at, each.created_at),
            queue=found.queue.name,
            group=found.group,
            partition=each.partition,
            offset=each.offset + at,
            data=Raw(payload),
            damaged=True if not each.segment.present else UNSET,
            created_at=each.created_at,
            priority=each.priority,
            attempts=each.failures,
            deliveries=each.deliveries,
            error=each.error,
            failed_at=each.dead_at,
            headers=headers,
            tags=tags,
        )


class OfDead(Request, gc=False, kw_only=True):
    """Fields of RETRYDLQ and PURGEDLQ: some dead letters of a group, or all."""

    queue: str
    id: Id | UnsetType = UNSET
    ids: list[Id] | UnsetType = UNSET
    group: str = DEFAULT

    def meant(self) -> list[int] | None:
        if self.id is not UNSET and self.ids is not UNSET:
            raise Invalid("id", "given without ids")
        if self.id is not UNSET:
            return [ids.parse(self.id)]
        return addresses(self.ids) if self.ids is not UNSET else None

    def reply(self, reply: core.Buried, context: Context) -> Struct:
        return replies.OkBuried(
            ok=True,
            count=reply.count,
            left=reply.left,
            refused=shown_all(reply.refused),
            reqId=self.reqId,
        )


class RetryDead(OfDead, tag="RETRYDLQ", gc=False, kw_only=True):
    dry_run: bool = False

    def command(self, context: Context) -> core.Command:
        if self.dry_run:
            return core.Purge(context.tenant, self.queue, self.group, self.meant(), dry_run=True)
        return core.Requeue(context.tenant, self.queue, self.group, self.meant())


class PurgeDead(OfDead, tag="PURGEDLQ", gc=False, kw_only=True):
    dry_run: bool = False

    def command(self, context: Context) -> core.Command:
        return core.Purge(context.tenant, self.queue, self.group, self.meant(), self.dry_run)


class Read(Request, tag="READ", gc=False, kw_only=True):
    queue: str
    offset: int
    partition: str = DEFAULT
    max_bytes: int | None = None
    max_count: int | None = None

    def command(self, context: Context) -> core.Command:
        return queries.Read(
            context.tenant, self.queue, self.offset, self.partition, self.max_count, self.max_bytes
        )

    def packed_command(self, context: Context) -> core.Command:
        how_much = (self.max_count, self.max_bytes)
        return queries.Read(context.tenant, self.queue, self.offset, self.partition, *how_much, whole=True)

    def packed_reply(self, reply: queries.LogSlice, context: Context) -> Struct:
        return replies.OkPackedLog(
            ok=True,
            partition=reply.partition,
            number=reply.key,
            next=reply.next,
            end=reply.end,
            runs=list(map(packed_run, reply.runs)),
            reqId=self.reqId,
        )

    def reply(self, reply: queries.LogSlice, context: Context) -> Struct:
        runs = [
            replies.LogRun(
                shown(run.first + start), run.offset + start, run.created_at, array(payloads), *labels
            )
            for run in reply.runs
            for start, _, payloads, labels in labelled(run)
        ]
        return replies.OkLog(
            ok=True, partition=reply.partition, next=reply.next, end=reply.end, runs=runs, reqId=self.reqId
        )


class GetState(Request, tag="GETSTATE", gc=False, kw_only=True):
    id: Id
    group: str = DEFAULT

    def command(self, context: Context) -> core.Command:
        return queries.State(context.tenant, ids.parse(self.id), self.group)

    def reply(self, reply: queries.StateFound, context: Context) -> Struct:
        return replies.OkState(
            ok=True,
            id=shown(reply.id),
            uuid=ids.to_uuid(reply.id, reply.created_at),
            state=STATES.get(reply.state, reply.state),
            created_at=reply.created_at,
            attempts=reply.failures,
            deliveries=reply.deliveries,
            priority=reply.priority,
            error=reply.error or UNSET,
            run_at=UNSET if reply.due_at is None else reply.due_at,
            ended_at=UNSET if reply.ended_at is None else reply.ended_at,
            reqId=self.reqId,
        )


class GetJob(Request, tag="GETJOB", gc=False, kw_only=True):
    id: Id
    group: str = DEFAULT

    def command(self, context: Context) -> core.Command:
        return queries.Show(context.tenant, [ids.parse(self.id)], self.group)

    def reply(self, reply: queries.ShownAll, context: Context) -> Struct:
        if not reply.deliveries:
            raise NotFound("there is no such message, or it is no longer kept")
        (job,) = map(_shown, reply.deliveries)
        return replies.OkShown(ok=True, job=job, state=job.state, reqId=self.reqId)


BROWSED = (
    "waiting",
    "delayed",
    "waiting-children",
    "active",
    "completed",
    "failed",
    "expired",
    "cancelled",
    "evicted",
    "discarded",
)
"""States that GETJOBS and BROWSE accept."""


class BrowseJobs(Request, tag="GETJOBS", gc=False, kw_only=True):
    queue: str
    state: str | None = None
    limit: int = 100
    offset: int = 0
    group: str = DEFAULT

    def command(self, context: Context) -> core.Command:
        state = our_state(self.state, BROWSED) if self.state is not None else None
        return queries.Browse(context.tenant, self.queue, state, self.group, self.limit, self.offset)

    def reply(self, reply: queries.ShownAll, context: Context) -> Struct:
        jobs = list(map(_shown, reply.deliveries))
        return replies.OkBrowsed(ok=True, jobs=jobs, total=reply.total, reqId=self.reqId)


class Browse(Request, tag="BROWSE", gc=False, kw_only=True):
    queue: str
    state: str | None = None
    group: str = DEFAULT
    partition: str | None = None
    tag: str | None = None
    since: int | None = None
    before: int | None = None
    text: str | None = None
    limit: int = 100
    cursor: str | None = None

    def command(self, context: Context) -> core.Command:
        return queries.Browse(
            context.tenant,
            self.queue,
            our_state(self.state, BROWSED) if self.state is not None else None,
            self.group,
            self.limit,
            0,
            self.partition,
            self.tag,
            self.since,
            self.before,
            parse_cursor(self.cursor),
            True,
            EFFORT,
        )

    def reply(self, reply: queries.ShownAll, context: Context) -> Struct:
        text = None if self.text is None else self.text.encode()
        found = [each for each in reply.deliveries if text is None or holds(each, text)]
        return replies.OkPage(
            ok=True,
            jobs=list(map(_shown, found)),
            total=reply.total,
            cursor=cursor_of(reply.next),
            reqId=self.reqId,
        )


class GetJobs(Request, tag="GETJOBSBATCH", gc=False, kw_only=True):
    ids: list[Id]
    group: str = DEFAULT

    def command(self, context: Context) -> core.Command:
        return queries.Show(context.tenant, addresses(self.ids), self.group)

    def reply(self, reply: queries.ShownAll, context: Context) -> Struct:
        jobs = list(map(_shown, reply.deliveries))
        return replies.OkShownAll(ok=True, jobs=jobs, reqId=self.reqId)


def _shown(found: queries.Shown) -> replies.ShownJob:
    state = found.state
    (payload,) = found.payloads() if found.segment.present else (b"null",)
    headers, tags = labels_of(found)
    return replies.ShownJob(
        id=shown(state.id),
        uuid=ids.to_uuid(state.id, state.created_at),
        queue=found.queue.name,
        partition=found.partition,
        offset=found.offset,
        data=Raw(payload),
        damaged=UNSET if found.segment.present else True,
        state=STATES.get(state.state, state.state),
        created_at=state.created_at,
        attempts=state.failures,
        deliveries=state.deliveries,
        priority=state.priority,
        error=state.error or UNSET,
        run_at=UNSET if state.due_at is None else state.due_at,
        ended_at=UNSET if state.ended_at is None else state.ended_at,
        job_id=UNSET if state.job_id is None else state.job_id,
        unique_key=UNSET if state.unique_key is None else state.unique_key,
        depends_on=shown_spans(state.depends_on) if state.depends_on else UNSET,
        headers=headers,
        tags=tags,
    )


DEPENDENCIES_SHOWN = 1_000
"""Ids in ``depends_on`` that are shown with a message, at most."""


def shown_spans(spans: tuple[tuple[int, int], ...]) -> Sequence[Id]:
    """Return the ids of spans (first, count)."""
    every = chain.from_iterable(range(first, first + count) for first, count in spans)
    return shown_all(list(islice(every, DEPENDENCIES_SHOWN)))


class GetJobByCustomId(Request, tag="GETJOBBYCUSTOMID", gc=False, kw_only=True):
    job_id: str | UnsetType = UNSET
    customId: str | UnsetType = UNSET
    queue: str | None = None

    def command(self, context: Context) -> core.Command:
        given = [each for each in (self.job_id, self.customId) if each is not UNSET]
        if len(given) != 1:
            raise Invalid("job_id", "given")
        return queries.FindJob(context.tenant, given[0], self.queue)

    def reply(self, reply: queries.ShownAll, context: Context) -> Struct:
        (job,) = map(_shown, reply.deliveries)
        return replies.OkShown(ok=True, job=job, state=job.state, reqId=self.reqId)


class GetChildren(Request, tag="GETCHILDREN", gc=False, kw_only=True):
    parent_id: Id

    def command(self, context: Context) -> core.Command:
        return queries.Children(context.tenant, ids.parse(self.parent_id))

    def reply(self, reply: queries.ChildrenFound, context: Context) -> Struct:
        jobs = list(map(_shown, reply.shown.deliveries))
        for job, found in zip(jobs, reply.results, strict=True):
            results = [result for kind in found.notes for result in kind if result.segment.present]
            if results:
                (payload,) = results[-1].payloads()
                job.result = Raw(payload)
        return replies.OkChildren(
            ok=True,
            parent_id=shown(reply.id),
            children=jobs,
            completed=reply.completed,
            total=reply.total,
            reqId=self.reqId,
        )
