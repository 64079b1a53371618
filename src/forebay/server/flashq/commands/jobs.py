"""Commands about jobs that need not be active: look at them, change them, cancel them."""

from typing import Any

from msgspec import Raw, Struct

from forebay.core.api import commands as core, queries
from forebay.core.errors import ForebayError, NotFound
from forebay.server.flashq import answers, job
from forebay.server.flashq.browse import newest
from forebay.server.flashq.caller import Caller
from forebay.server.flashq.command import (
    OUR_STATES,
    UNKNOWN,
    AboutJob,
    Asked,
    Whole,
    parse_id,
    parse_ids,
    shown,
)
from forebay.server.flashq.errors import Refused
from forebay.server.tcp.codec import Ready, Services
from forebay.wire.text import PLAINLY
from forebay.wire.types import Id

JOBS_SHOWN = 100
"""Jobs that GETJOBS shows if it gives no limit."""


class Changing(AboutJob, gc=False, kw_only=True):
    """Commands that change one job and are answered with ok."""

    def reply(self, reply: Any, caller: Caller) -> Struct:
        return answers.Answer()


class Cancel(Changing, tag="CANCEL", gc=False, kw_only=True):
    def asked(self, caller: Caller) -> core.Command:
        return core.Cancel(caller.tenant, [self.number])


class Promote(Changing, tag="PROMOTE", gc=False, kw_only=True):
    def asked(self, caller: Caller) -> core.Command:
        return core.Move(caller.tenant, [self.number], delay_ms=0, only_delayed=True)


class MoveToDelayed(Changing, tag="MOVETODELAYED", gc=False, kw_only=True):
    delay: Whole

    def asked(self, caller: Caller) -> core.Command:
        return core.Move(caller.tenant, [self.number], delay_ms=self.delay)


class ChangePriority(Changing, tag="CHANGEPRIORITY", gc=False, kw_only=True):
    priority: int

    def asked(self, caller: Caller) -> core.Command:
        return core.Move(caller.tenant, [self.number], priority=self.priority)


class Discard(Changing, tag="DISCARD", gc=False, kw_only=True):
    def asked(self, caller: Caller) -> core.Command:
        return core.Discard(caller.tenant, [self.number])


class UpdateJob(Changing, tag="UPDATEJOB", gc=False, kw_only=True):
    """Replace the data of a job that was never pulled."""

    data: Raw

    def nested(self) -> tuple[int, int]:
        return 1, len(self.data)

    def asked(self, caller: Caller) -> core.Command:
        return core.Update(caller.tenant, self.number, bytes(self.data), tuple(PLAINLY.items()))


class Update(UpdateJob, tag="UPDATE", gc=False, kw_only=True):
    """The name that flashQ's Python SDK has for it."""


class GetState(AboutJob, tag="GETSTATE", gc=False, kw_only=True):
    def asked(self, caller: Caller) -> core.Command:
        return queries.State(caller.tenant, self.number)

    def reply(self, reply: queries.StateFound, caller: Caller) -> Struct:
        return answers.State(id=shown(reply.id), state=job.state_of(reply))

    def otherwise(self, error: ForebayError) -> Struct | ForebayError:
        return answers.State(id=self.id, state=UNKNOWN) if isinstance(error, NotFound) else error


class GetJob(AboutJob, tag="GETJOB", gc=False, kw_only=True):
    def asked(self, caller: Caller) -> core.Command:
        return queries.Show(caller.tenant, [self.number])

    def reply(self, reply: queries.ShownAll, caller: Caller) -> Struct:
        return _job_and_state(reply, caller)


def _job_and_state(found: queries.ShownAll, caller: Caller) -> Struct:
    """Return the job, or none: one that was cancelled or has expired is not known any more."""
    for each in found.deliveries:
        state = job.state_of(each.state)
        if state != UNKNOWN:
            shown_job = job.found(each, caller.limits.lease_ms_max, with_state=False)
            return answers.JobAndState(job=shown_job, state=state)
    return answers.JobAndState(job=None, state=UNKNOWN)


class GetJobByCustomId(Asked, tag="GETJOBBYCUSTOMID", gc=False, kw_only=True):
    job_id: str | None = None
    customId: str | None = None
    custom_id: str | None = None
    jobId: str | None = None

    def asked(self, caller: Caller) -> core.Command:
        given = (self.job_id, self.customId, self.custom_id, self.jobId)
        name = next((each for each in given if each is not None), None)
        if name is None:
            raise Refused("job_id", "Missing field: job_id")
        return queries.FindJob(caller.tenant, name, within=caller.queues)

    def reply(self, reply: queries.ShownAll, caller: Caller) -> Struct:
        return _job_and_state(reply, caller)

    def otherwise(self, error: ForebayError) -> Struct | ForebayError:
        return answers.JobAndState(job=None, state=UNKNOWN) if isinstance(error, NotFound) else error


class GetJobsBatch(Asked, tag="GETJOBSBATCH", gc=False, kw_only=True):
    ids: list[Id]

    def asked(self, caller: Caller) -> core.Command:
        if not self.ids:
            raise Ready(queries.ShownAll([]))
        return queries.Show(caller.tenant, parse_ids(self.ids))

    def reply(self, reply: queries.ShownAll, caller: Caller) -> Struct:
        most = caller.limits.lease_ms_max
        known = [each for each in reply.deliveries if job.state_of(each.state) != UNKNOWN]
        return answers.Jobs(jobs=[job.found(each, most, with_state=True) for each in known])


class GetJobs(Asked, tag="GETJOBS", gc=False, kw_only=True):
    """Jobs of a queue, or of all, the newest first. A state that flashQ does not know filters nothing."""

    is_command = False
    queue: str | None = None
    state: str | None = None
    limit: Whole | None = None
    offset: Whole | None = None

    async def steps(self, services: Services, caller: Caller) -> tuple[list[queries.Shown], int]:
        state = OUR_STATES.get(self.state) if self.state is not None else None
        limit = JOBS_SHOWN if self.limit is None else self.limit
        return await newest(services, caller, self.queue, state, limit, self.offset or 0)

    def reply(self, reply: tuple[list[queries.Shown], int], caller: Caller) -> Struct:
        found, total = reply
        most = caller.limits.lease_ms_max
        return answers.JobsOfTotal(
            jobs=[job.found(each, most, with_state=True) for each in found], total=total
        )


class GetChildren(Asked, tag="GETCHILDREN", gc=False, kw_only=True):
    parent_id: Id

    def asked(self, caller: Caller) -> core.Command:
        return queries.Children(caller.tenant, parse_id(self.parent_id), caller.queues)

    def reply(self, reply: queries.ChildrenFound, caller: Caller) -> Struct:
        most = caller.limits.lease_ms_max
        children = [job.found(each, most, with_state=False) for each in reply.shown.deliveries]
        return answers.Children(
            parent_id=shown(reply.id), children=children, completed=reply.completed, total=reply.total
        )

    def otherwise(self, error: ForebayError) -> Struct | ForebayError:
        if isinstance(error, NotFound):
            return NotFound(f"Parent job {self.parent_id} not found")
        return error
