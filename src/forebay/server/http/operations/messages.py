"""Messages that need not be leased: browse, search, show, read the log, cancel, bulk actions."""

from msgspec import UNSET, Raw, Struct, UnsetType

from forebay.core import ids
from forebay.core.api import commands as core, queries
from forebay.core.api.queries import Spot
from forebay.core.bounds import DELAY_MS_MAX, PRIORITY_MAX, check_range
from forebay.core.errors import Invalid, NotFound
from forebay.core.words import DEFAULT
from forebay.server.cursors import EFFORT, cursor_of, parse_cursor
from forebay.server.http.operation import Asked, Id, Request, addresses, shown
from forebay.server.http.operations.pop import Settled
from forebay.server.labels import array, labelled, labels_of


class Seen(Struct, gc=False, omit_defaults=True, kw_only=True):
    """A message, and its state in a group."""

    id: Id
    uuid: str
    queue: str
    partition: str
    offset: int
    payload: Raw
    state: str
    created_at: int
    deliveries: int
    failures: int
    priority: int
    damaged: bool = False
    error: str | UnsetType = UNSET
    due_at: int | UnsetType = UNSET
    ended_at: int | UnsetType = UNSET
    job_id: str | UnsetType = UNSET
    unique_key: str | UnsetType = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    tags: tuple[str, ...] | UnsetType = UNSET


def seen(found: queries.Shown) -> Seen:
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
        due_at=UNSET if state.due_at is None else state.due_at,
        ended_at=UNSET if state.ended_at is None else state.ended_at,
        job_id=UNSET if state.job_id is None else state.job_id,
        unique_key=UNSET if state.unique_key is None else state.unique_key,
        headers=headers,
        tags=tags,
    )


class Browsed(Struct, gc=False, omit_defaults=True, kw_only=True):
    """Messages in order; ``total`` is how many are in that state. With a ``cursor`` there may be more."""

    messages: list[Seen]
    total: int
    cursor: str | None


class Filter(Request, kw_only=True):
    """Which messages of a queue to select."""

    state: str | None = None
    group: str = DEFAULT
    partition: str | None = None
    tag: str | None = None
    since: int | None = None
    before: int | None = None
    text: str | None = None
    limit: int = 100
    cursor: str | None = None

    def command(self, asked: Asked) -> queries.Browse:
        return self.browse(asked, self.limit, parse_cursor(self.cursor))

    def browse(self, asked: Asked, count: int, after: Spot | None, counted: bool = True) -> queries.Browse:
        return queries.Browse(
            asked.tenant,
            asked.queue,
            self.state,
            self.group,
            count,
            0,
            self.partition,
            self.tag,
            self.since,
            self.before,
            after,
            counted,
            EFFORT,
        )


class Browse(Filter, kw_only=True):
    """List messages of a queue by their state in a group. ``text`` is searched for in payloads, as pushed."""

    def reply(self, reply: queries.ShownAll, asked: Asked) -> Struct:
        return Browsed(
            messages=list(map(seen, reply.deliveries)), total=reply.total, cursor=cursor_of(reply.next)
        )


ACTIONS = {
    "cancel": ("waiting", "delayed", "parked", "active"),
    "promote": ("delayed",),
    "delay": ("waiting", "delayed", "active"),
    "priority": ("waiting", "delayed"),
    "discard": ("waiting", "delayed", "active"),
    "requeue": ("dead",),
    "purge": ("dead",),
}
"""Bulk actions, and the states of messages that each applies to."""


class Bulk(Filter, kw_only=True):
    """Act on all messages that match, at most ``limit`` at a time; ``dry_run`` only counts them."""

    action: str
    delay_ms: int | None = None
    priority: int | None = None
    dry_run: bool = False
    limit: int = 10_000

    def check(self) -> None:
        if self.action not in ACTIONS:
            raise Invalid("action", f"one of {', '.join(ACTIONS)}")
        if (self.action == "delay") != (self.delay_ms is not None):
            raise Invalid("delay_ms", "given with the action delay, and with no other")
        if (self.action == "priority") != (self.priority is not None):
            raise Invalid("priority", "given with the action priority, and with no other")
        if self.state not in (None, *ACTIONS[self.action]):
            raise Invalid("state", f"left out, or one of {', '.join(ACTIONS[self.action])}, to {self.action}")
        if self.delay_ms is not None:
            check_range("delay_ms", self.delay_ms, 0, DELAY_MS_MAX)
        if self.priority is not None:
            check_range("priority", self.priority, -PRIORITY_MAX, PRIORITY_MAX)

    def reaches(self, found: queries.Shown) -> bool:
        """Return whether the action applies to the state of a message."""
        return found.state.state in ACTIONS[self.action]

    def act(self, tenant: str, queue: str, messages: list[int]) -> core.Command:
        """Return the command that applies the action to some messages."""
        match self.action:
            case "cancel":
                return core.Cancel(tenant, messages, self.group)
            case "promote":
                return core.Move(tenant, messages, self.group, delay_ms=0, only_delayed=True)
            case "delay":
                return core.Move(tenant, messages, self.group, delay_ms=self.delay_ms)
            case "priority":
                return core.Move(tenant, messages, self.group, priority=self.priority)
            case "discard":
                return core.Discard(tenant, messages, self.group)
            case "requeue":
                return core.Requeue(tenant, queue, self.group, messages)
            case _:
                return core.Purge(tenant, queue, self.group, messages)


class Acted(Struct, gc=False, omit_defaults=True, kw_only=True):
    """How many messages matched, how many were changed, and a ``cursor`` if there may be more.

    Messages in a state that the action does not apply to, such as completed ones, do not match.
    """

    matched: int
    count: int
    dry_run: bool
    cursor: str | None


class GetMessage(Request, kw_only=True):
    """Return one message, and its state in a group."""

    group: str = DEFAULT

    def command(self, asked: Asked) -> queries.Show:
        return queries.Show(asked.tenant, [ids.parse(asked.path["id"])], self.group)

    def reply(self, reply: queries.ShownAll, asked: Asked) -> Struct:
        if not reply.deliveries or reply.deliveries[0].queue.name != asked.queue:
            raise NotFound("there is no such message, or it is no longer kept")
        return seen(reply.deliveries[0])


class Result(Request, kw_only=True):
    """Return the result of a message; wait up to ``wait_ms`` for its end."""

    wait_ms: int = 0
    group: str = DEFAULT

    def command(self, asked: Asked) -> queries.Await:
        return queries.Await(asked.tenant, ids.parse(asked.path["id"]), self.wait_ms, self.group)

    def reply(self, reply: queries.NotesFound, asked: Asked) -> Struct:
        if reply.queue.name != asked.queue:
            raise NotFound("there is no such message, or it is no longer kept")
        results = [each for kind in reply.notes for each in kind if each.segment.present]
        payload = next(iter(results[-1].payloads())) if results else b"null"
        return Came(
            id=shown(reply.state.id),
            state=reply.state.state,
            done=reply.is_over,
            result=Raw(payload),
            error=reply.state.error or UNSET,
        )


class Came(Struct, gc=False, omit_defaults=True, kw_only=True):
    """The result of a message; ``done`` says whether the message has ended."""

    id: Id
    state: str
    done: bool
    result: Raw
    error: str | UnsetType = UNSET


class Cancel(Request, kw_only=True):
    """Cancel messages: they are no longer delivered, to one group or to any."""

    ids: list[Id]
    group: str | None = None

    def command(self, asked: Asked) -> core.Cancel:
        return core.Cancel(asked.tenant, addresses(self.ids), self.group)

    def reply(self, reply: core.Settled, asked: Asked) -> Struct:
        return Settled(count=reply.count, refused=list(map(shown, reply.refused)))


class LogRun(Struct, gc=False, omit_defaults=True):
    """Consecutive messages: their ids and offsets follow each other."""

    first: Id
    offset: int
    created_at: int
    payloads: Raw
    headers: dict[str, str] | UnsetType = UNSET
    tags: tuple[str, ...] | UnsetType = UNSET


class Stretch(Struct, gc=False, kw_only=True):
    """Part of a log: ``next`` is the offset to continue from, ``end`` is where the log ends now."""

    partition: str
    next: int
    end: int
    runs: list[LogRun]


class ReadLog(Request, kw_only=True):
    """Read the log of a partition from an offset on, without leasing."""

    offset: int
    partition: str = DEFAULT
    max_bytes: int | None = None
    max_count: int | None = None

    def command(self, asked: Asked) -> queries.Read:
        how_much = (self.max_count, self.max_bytes)
        return queries.Read(asked.tenant, asked.queue, self.offset, self.partition, *how_much)

    def reply(self, reply: queries.LogSlice, asked: Asked) -> Struct:
        runs = [
            LogRun(shown(run.first + start), run.offset + start, run.created_at, array(payloads), *labels)
            for run in reply.runs
            for start, _, payloads, labels in labelled(run)
        ]
        return Stretch(partition=reply.partition, next=reply.next, end=reply.end, runs=runs)
