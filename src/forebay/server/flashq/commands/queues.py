"""Commands on whole queues, and on the server. A queue that does not exist is empty, and not paused."""

from typing import Any, ClassVar

from msgspec import Struct

from forebay.core.api import commands as core, queries
from forebay.core.errors import ForebayError, NotFound
from forebay.core.state import Rate
from forebay.core.words import DEAD, PUSHED, SETTLED
from forebay.server.flashq import answers
from forebay.server.flashq.caller import Caller
from forebay.server.flashq.command import COMPLETED_MAX, OUR_STATES, Asked, Whole, ask
from forebay.server.flashq.errors import Refused
from forebay.server.measure import measure_tenant
from forebay.server.tcp.codec import Services

DESCRIBED_MAX = 1_000
"""Queues whose limits are shown by LISTQUEUES and METRICS; of further ones none are."""
MEASURED_MAX = 5_000
"""Queues that METRICS lists at most; its totals are those of all."""
CLEANED = ("waiting", "delayed", "completed", "failed")


class OnQueue(Asked, gc=False, kw_only=True):
    """Commands on a queue that are answered with ok, also if there is no such queue."""

    queue: str

    def reply(self, reply: Any, caller: Caller) -> Struct:
        return answers.Answer()

    def otherwise(self, error: ForebayError) -> Struct | ForebayError:
        return answers.Answer() if isinstance(error, NotFound) else error


class Pause(OnQueue, tag="PAUSE", gc=False, kw_only=True):
    def asked(self, caller: Caller) -> core.Command:
        return core.Pause(caller.tenant, self.queue, completed_count=COMPLETED_MAX, create=True)


class Resume(OnQueue, tag="RESUME", gc=False, kw_only=True):
    def asked(self, caller: Caller) -> core.Command:
        return core.Resume(caller.tenant, self.queue)


class IsPaused(OnQueue, tag="ISPAUSED", gc=False, kw_only=True):
    def asked(self, caller: Caller) -> core.Command:
        return queries.Describe(caller.tenant, self.queue)

    def reply(self, reply: queries.QueueFound, caller: Caller) -> Struct:
        return answers.Paused(paused=reply.paused.paused)

    def otherwise(self, error: ForebayError) -> Struct | ForebayError:
        return answers.Paused(paused=False) if isinstance(error, NotFound) else error


class RateLimit(OnQueue, tag="RATELIMIT", gc=False, kw_only=True):
    limit: Whole

    def asked(self, caller: Caller) -> core.Command:
        rate_limit = Rate(self.limit) if self.limit else None
        return core.Configure(caller.tenant, self.queue, completed_count=COMPLETED_MAX, rate_limit=rate_limit)


class Unlimited(OnQueue, gc=False, kw_only=True):
    """Commands that take a limit away. They make no queue: one that does not exist has no limits."""

    is_command = False
    taken_away: ClassVar[dict[str, Any]] = {}

    async def steps(self, services: Services, caller: Caller) -> Any:
        await ask(services, caller, queries.Describe(caller.tenant, self.queue))
        return await ask(services, caller, core.Configure(caller.tenant, self.queue, **self.taken_away))


class RateLimitClear(Unlimited, tag="RATELIMITCLEAR", gc=False, kw_only=True):
    taken_away: ClassVar[dict[str, Any]] = {"rate_limit": None}


class ClearConcurrency(Unlimited, tag="CLEARCONCURRENCY", gc=False, kw_only=True):
    taken_away: ClassVar[dict[str, Any]] = {"concurrency": 0}


class SetConcurrency(OnQueue, tag="SETCONCURRENCY", gc=False, kw_only=True):
    limit: Whole

    def asked(self, caller: Caller) -> core.Command:
        return core.Configure(
            caller.tenant, self.queue, completed_count=COMPLETED_MAX, concurrency=self.limit
        )


class GetJobCounts(OnQueue, tag="GETJOBCOUNTS", gc=False, kw_only=True):
    def asked(self, caller: Caller) -> core.Command:
        return queries.GroupCounts(caller.tenant, self.queue)

    def reply(self, reply: queries.Counts, caller: Caller) -> Struct:
        return answers.Counts(
            waiting=reply.waiting,
            active=reply.active,
            delayed=reply.delayed,
            completed=reply.completed,
            failed=reply.dead,
        )

    def otherwise(self, error: ForebayError) -> Struct | ForebayError:
        return answers.Counts() if isinstance(error, NotFound) else error


class Count(OnQueue, tag="COUNT", gc=False, kw_only=True):
    """Jobs that wait for anything: for their turn, their time, or other jobs."""

    def asked(self, caller: Caller) -> core.Command:
        return queries.GroupCounts(caller.tenant, self.queue)

    def reply(self, reply: queries.Counts, caller: Caller) -> Struct:
        return answers.Count(count=reply.waiting + reply.delayed + reply.parked)

    def otherwise(self, error: ForebayError) -> Struct | ForebayError:
        return answers.Count(count=0) if isinstance(error, NotFound) else error


class Clearing(Asked, gc=False, kw_only=True):
    """Commands that remove jobs and say how many."""

    is_command = False
    queue: str

    def reply(self, reply: int, caller: Caller) -> Struct:
        return answers.Count(count=reply)


async def _clear(services: Services, caller: Caller, command: core.Clean | core.Obliterate) -> int:
    """Carry out a command until nothing is left to remove; return how many jobs it removed."""
    count = 0
    most = command.count if isinstance(command, core.Clean) else None
    try:
        while most is None or count < most:
            if isinstance(command, core.Clean) and most is not None:
                command.count = most - count
            done = await ask(services, caller, command)
            assert isinstance(done, core.Cleaned)
            count += done.count
            if not done.more or not done.count:
                break
    except NotFound:
        pass
    return count


class Drain(Clearing, tag="DRAIN", gc=False, kw_only=True):
    async def steps(self, services: Services, caller: Caller) -> int:
        states = ("waiting", "delayed", "parked")
        return await _clear(services, caller, core.Clean(caller.tenant, self.queue, states))


class Clean(Clearing, tag="CLEAN", gc=False, kw_only=True):
    grace: Whole
    state: str
    limit: Whole | None = None

    async def steps(self, services: Services, caller: Caller) -> int:
        state = self.state.lower()
        if state not in CLEANED:
            raise Refused("state", f"Invalid state. Use: {', '.join(CLEANED)}")
        if self.limit == 0:
            return 0
        states = (OUR_STATES[state],)
        return await _clear(
            services,
            caller,
            core.Clean(caller.tenant, self.queue, states, grace_ms=self.grace, count=self.limit),
        )


class Obliterate(Clearing, tag="OBLITERATE", gc=False, kw_only=True):
    async def steps(self, services: Services, caller: Caller) -> int:
        return await _clear(services, caller, core.Obliterate(caller.tenant, self.queue))


async def _limits(services: Services, caller: Caller, names: list[str]) -> dict[str, tuple[Any, Any]]:
    """Return rate limit and concurrency of queues that have any."""
    found = {}
    for name in names[:DESCRIBED_MAX]:
        try:
            queue = await ask(services, caller, queries.Describe(caller.tenant, name))
        except NotFound:  # removed meanwhile
            continue
        assert isinstance(queue, queries.QueueFound)
        rate = queue.options.rate_limit
        found[name] = (None if rate is None else rate.limit, queue.options.concurrency or None)
    return found


class ListQueues(Asked, tag="LISTQUEUES", gc=False, kw_only=True):
    is_command = False

    async def steps(self, services: Services, caller: Caller) -> list[answers.QueueShown]:
        found = await ask(services, caller, queries.ListQueues(caller.tenant, caller.queues))
        assert isinstance(found, queries.QueuesFound)
        limits = await _limits(services, caller, [each.name for each in found.queues])
        return [
            answers.QueueShown(
                each.name,
                each.counts.waiting,
                each.counts.active,
                each.counts.completed,
                each.counts.delayed,
                each.counts.dead,
                each.paused,
                *limits.get(each.name, (None, None)),
            )
            for each in found.queues
        ]

    def reply(self, reply: list[answers.QueueShown], caller: Caller) -> Struct:
        return answers.Queues(queues=reply)


class Stats(Asked, tag="STATS", gc=False, kw_only=True):
    def asked(self, caller: Caller) -> core.Command:
        return queries.Stats(caller.tenant, caller.queues)

    def reply(self, reply: queries.StatsFound, caller: Caller) -> Struct:
        counts = reply.counts
        return answers.Stats(
            queued=counts.waiting,
            processing=counts.active,
            delayed=counts.delayed,
            dlq=counts.dead,
            completed=counts.completed,
        )


class Metrics(Asked, tag="METRICS", gc=False, kw_only=True):
    """Totals since the server started, and the queues that have something to do."""

    is_command = False

    async def steps(self, services: Services, caller: Caller) -> answers.MetricsTold:
        caller.check_whole()
        found = await measure_tenant(services.questions, caller.tenant, MEASURED_MAX)
        mine = found.queues
        tallies = [each.tally for each in (*mine, *found.rest) if each.tally is not None]
        completed = sum(each.counts[SETTLED] for each in tallies)
        busy = [each for each in mine if each.counts.waiting or each.counts.active or each.counts.dead]
        limits = await _limits(services, caller, [each.queue for each in busy])
        return answers.MetricsTold(
            total_pushed=sum(each.counts[PUSHED] for each in tallies),
            total_completed=completed,
            total_failed=sum(each.counts[DEAD] for each in tallies),
            jobs_per_second=caller.completions.rate(found.now, completed),
            avg_latency_ms=sum(each.spent_ms for each in tallies) / completed if completed else 0.0,
            queues=[
                answers.QueueMetrics(
                    each.queue,
                    each.counts.waiting,
                    each.counts.active,
                    each.counts.dead,
                    limits.get(each.queue, (None, None))[0],
                )
                for each in busy
            ],
        )

    def reply(self, reply: answers.MetricsTold, caller: Caller) -> Struct:
        return answers.Metrics(metrics=reply)
