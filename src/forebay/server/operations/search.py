"""Browse messages by a filter, and act on all that match: page by page, each page one command."""

from contextlib import suppress
from typing import ClassVar

from msgspec import Struct
from msgspec.structs import replace

from forebay.core.api import commands as core, queries
from forebay.core.api.jobs import Job, PushJobs
from forebay.core.api.queries import Shown, ShownAll, Spot
from forebay.core.bounds import DELAY_MS_MAX, PRIORITY_MAX, SHOWN_MAX, check_range
from forebay.core.errors import Busy, Conflict, ForebayError, Invalid, NotFound
from forebay.core.state import PLAIN, Attributes
from forebay.core.words import FAIL
from forebay.server.cursors import EFFORT, cursor_of, holds, parse_cursor
from forebay.server.operations.carried import Carried, Context, ask
from forebay.server.operations.messages import seen
from forebay.server.tcp.codec import Services
from forebay.wire.operations import messages as wire
from forebay.wire.operations.messages import ACTIONS, Acted, Browsed

PUSHED = "ops[0]."
"""How a transaction names the fields of its push."""
STEPS_MAX = 100
"""Pages that one search, or one bulk action, scans before it returns a cursor."""


ANY_DEAD = queries.OfDead()


class Changed(Struct):
    """How many messages were changed, how many others were parked again for that, and how many stayed."""

    count: int = 0
    dependents: int = 0
    kept: int = 0
    is_whole: bool = True
    """Whether all of them were tried."""
    problem: ForebayError | None = None
    """Why nothing was done, if so."""


class Filter(Carried, wire.Filter):
    is_command: ClassVar[bool] = False

    @property
    def dead(self) -> queries.OfDead | None:
        """Return which dead letters are meant; None if not only they can be."""
        of = queries.OfDead(self.error, self.error_type, self.dead_since, self.dead_before)
        return None if of == ANY_DEAD else of

    def browse(self, context: Context, count: int, after: Spot | None, counted: bool) -> queries.Browse:
        """Return the command that finds a page."""
        dead = self.dead
        return queries.Browse(
            context.tenant,
            self.queue,
            "dead" if self.state is None and dead is not None else self.state,
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
            self.task,
            dead,
        )

    async def page(
        self, services: Services, context: Context, count: int, after: Spot | None, *, counted: bool
    ) -> ShownAll:
        reply = await ask(services, context, self.browse(context, count, after, counted))
        assert isinstance(reply, ShownAll)
        return reply

    def matches(self, found: Shown) -> bool:
        if self.text == "":
            raise Invalid("text", "left out, or a text to find")
        return self.text is None or holds(found, self.text.encode())


def spot_of(found: Shown) -> Spot:
    """Return the position at which a browse resumes with this message."""
    return found.queue.partitions[found.partition].key, found.offset


class Browse(Filter, wire.Browse):
    async def carry_out(self, services: Services, context: Context) -> Browsed:
        check_range("limit", self.limit, 1, SHOWN_MAX)
        after = parse_cursor(self.cursor)
        found = Browsed(messages=[], total=0, cursor=None)
        for step in range(STEPS_MAX):
            wanted = self.limit - len(found.messages)
            count = wanted if self.text is None else SHOWN_MAX
            reply = await self.page(services, context, count, after, counted=not step)
            found.total, after = found.total + reply.total, reply.next
            for each in reply.deliveries:
                if self.matches(each):
                    if len(found.messages) == self.limit:
                        after = spot_of(each)
                        break
                    found.messages.append(seen(each, context))
            is_enough = len(found.messages) >= self.limit or (self.text is None and found.messages)
            if after is None or is_enough:
                break
        found.cursor = cursor_of(after)
        return found

    def reply(self, reply: Browsed, context: Context) -> Browsed:
        return reply


class Bulk(wire.Bulk, Filter):  # in this order: the default of its limit is not that of a filter
    def check(self) -> None:
        """Raise unless the fields go together."""
        if self.action not in ACTIONS:
            raise Invalid("action", f"one of {', '.join(ACTIONS)}")
        if (self.action == "delay") != (self.delay_ms is not None):
            raise Invalid("delay_ms", "given with the action delay, and with no other")
        if (self.action == "priority") != (self.priority is not None):
            raise Invalid("priority", "given with the action priority, and with no other")
        if (self.action == "move") != (self.to is not None):
            raise Invalid("to", "given with the action move, and with no other")
        if self.dead is not None and ACTIONS[self.action] != ("dead",):
            raise Invalid("action", "one for dead letters, with what selects them")
        if self.create and self.action != "move":
            raise Invalid("create", "given with the action move, and with no other")
        if self.to == self.queue:
            raise Invalid("to", "another queue; requeue delivers dead letters again in theirs")
        if self.state not in (None, *ACTIONS[self.action]):
            raise Invalid("state", f"left out, or one of {', '.join(ACTIONS[self.action])}, to {self.action}")
        if self.delay_ms is not None:
            check_range("delay_ms", self.delay_ms, 0, DELAY_MS_MAX)
        if self.priority is not None:
            check_range("priority", self.priority, -PRIORITY_MAX, PRIORITY_MAX)

    def matches(self, found: Shown) -> bool:
        return found.state.state in ACTIONS[self.action] and super().matches(found)

    async def carry_out(self, services: Services, context: Context) -> Acted:
        self.check()
        if len(states := ACTIONS[self.action]) == 1:
            (self.state,) = states
        check_range("limit", self.limit, 1, services.questions.node.limits.batch_max)
        after = parse_cursor(self.cursor)
        if self.to is not None:
            await self._check_target(services, context, self.to)
        done = Acted(matched=0, count=0, dry_run=self.dry_run, cursor=None)
        problem: ForebayError | None = None
        for step in range(STEPS_MAX):
            left = self.limit - done.matched
            most = min(SHOWN_MAX, left) if self.text is None else SHOWN_MAX
            reply = await self.page(services, context, most, after, counted=False)
            meant = list(filter(self.matches, reply.deliveries))
            try:
                if self.action == "cancel" and not (self.dry_run or step):
                    # Create the group first: in a group that does not exist yet, nothing can be cancelled.
                    await ask(services, context, core.GroupPut(context.tenant, self.queue, self.group))
                acted = await self._act(services, context, meant[:left])
            except ForebayError:
                if not done.count:
                    raise
                break  # the cursor continues with this page: it tells of the error
            problem = problem or acted.problem
            done.count += acted.count
            done.dependents += acted.dependents
            if not acted.is_whole:
                done.matched += acted.count
                after = spot_of(meant[0])  # the cursor continues with what is left of this page
                break
            done.kept += acted.kept
            done.matched += len(meant[:left])
            after = spot_of(meant[left]) if len(meant) > left else reply.next
            if after is None or done.matched >= self.limit:
                break
        if problem is not None and not done.count and after is None and self.cursor is None:
            raise problem  # nothing at all could be done
        done.cursor = cursor_of(after)
        return done

    def reply(self, reply: Acted, context: Context) -> Acted:
        return reply

    async def _act(self, services: Services, context: Context, meant: list[Shown]) -> Changed:
        if self.action == "move":
            return await self._move_all(services, context, meant)
        if self.action == "requeue":
            return await self._requeue(services, context, meant)
        if not meant or self.dry_run:
            return Changed()
        if self.action != "cancel":
            ids = [each.state.id for each in meant]
            return await _do(services, context, self._command(context.tenant, ids))
        parked = [each.state.id for each in meant if each.state.state == "parked"]  # in every group
        others = [each.state.id for each in meant if each.state.state != "parked"]
        done = [
            await _do(services, context, command)
            for ids, command in (
                (parked, core.Cancel(context.tenant, parked)),
                (others, self._command(context.tenant, others)),
            )
            if ids
        ]
        return Changed(sum(each.count for each in done))

    async def _requeue(self, services: Services, context: Context, meant: list[Shown]) -> Changed:
        """Requeue a page, but for what depends on a message that can't be completed any more."""
        ids = [each.state.id for each in meant if not each.state.lost]
        done = await _do(services, context, self._command(context.tenant, ids)) if ids else Changed()
        return Changed(0 if self.dry_run else done.count, done.dependents, len(meant) - len(ids))

    def _command(self, tenant: str, messages: list[int]) -> core.Command:
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
                how = (self.dry_run, self.dependents)
                return core.Requeue(tenant, self.queue, self.group, messages, *how)
            case _:
                return core.Purge(tenant, self.queue, self.group, messages)

    async def _check_target(self, services: Services, context: Context, queue: str) -> None:
        """Raise if there is no queue to move to, unless it is to be created."""
        try:
            await ask(services, context, queries.GroupCounts(context.tenant, queue))
        except Invalid as error:
            raise Invalid("to", error.accepted) from None
        except NotFound as error:
            if not self.create:
                error.place = "to"
                error.message += f"{'' if error.message.endswith('?') else '.'} Say create to have it made"
                raise

    async def _move_all(self, services: Services, context: Context, meant: list[Shown]) -> Changed:
        """Move a page; if that is refused because of some of it, the others one by one."""
        free = [each for each in meant if not each.state.bound and each.segment.present]
        done = Changed(kept=len(meant) - len(free))
        problem: ForebayError | None = None
        if not free or self.dry_run:
            return done
        with suppress(Conflict, Invalid, NotFound):
            await self._move(services, context, free)
            done.count = len(free)
            return done
        for each in free:
            try:
                await self._move(services, context, [each])
                done.count += 1
            except (Conflict, NotFound) as error:
                problem = error  # another client was faster
            except Invalid as error:
                problem = error  # the other queue does not take it
                done.kept += 1
            except Busy:
                if not done.count:
                    raise
                done.is_whole = False
                return done
        done.problem = problem
        return done

    async def _move(self, services: Services, context: Context, meant: list[Shown]) -> None:
        """Push dead letters to another queue, and purge them, in one commit."""
        assert self.to is not None
        jobs = [
            Job(payload, each.partition, _again(each), lane=each.queue.partitions[each.partition].lane)
            for each in meant
            for payload in each.payloads()
        ]
        ids = [each.state.id for each in meant]
        purge = core.Purge(context.tenant, self.queue, self.group, ids, unless_bound=True)
        try:
            pushes = PushJobs(context.tenant, self.to, jobs)
            await ask(services, context, core.Transact(context.tenant, [pushes, purge]))
        except Invalid as error:
            raise Invalid("to", f"a queue that takes them: {str(error).removeprefix(PUSHED)}") from None
        except ForebayError as error:  # as the request names it, not as an operation of a transaction
            error.message = error.message.removeprefix(f"{error.place}: ")
            error.place = "to" if error.place == "ops[0]" else ""
            raise


def _again(found: Shown) -> Attributes:
    """Return the attributes of a message for another queue: without what is about its first push."""
    plain = replace(found.state.attributes, origin=None, on_failed=FAIL, delay_ms=0, cleanup=None)
    return PLAIN if plain == PLAIN else plain


async def _do(services: Services, context: Context, command: core.Command) -> Changed:
    """Carry out a command."""
    try:
        reply = await ask(services, context, command)
    except (Conflict, NotFound):
        return Changed()  # another client was faster
    assert isinstance(reply, core.Settled | core.Buried)
    return Changed(reply.count, reply.dependents if isinstance(reply, core.Buried) else 0)
