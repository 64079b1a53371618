"""CRON, CRONDELETE and CRONLIST."""

from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType

from forebay.core.api import commands as core, jobs as job_commands, queries
from forebay.core.bounds import NEVER
from forebay.core.errors import ForebayError, Invalid, NotFound
from forebay.core.state import Cron as CoreCron
from forebay.server.flashq import answers
from forebay.server.flashq.caller import Caller
from forebay.server.flashq.command import COMPLETED_MAX, Asked, Command, Whole, ask
from forebay.server.flashq.commands.options import Options, job_of
from forebay.server.flashq.commands.push import NULL
from forebay.server.flashq.errors import Refused
from forebay.server.tcp.codec import Services
from forebay.wire.types import RequestId

NOT_OF_CRONS = ("delay", "job_id", "jobId", "customId", "custom_id")
"""Options that are ignored here, as flashQ's crons have none of them."""


class CronOptions(Options, gc=False, kw_only=True):
    """Options of the jobs of a cron, as flashQ's Python SDK sends them."""

    data: Raw | None = None
    limit: Whole | None = None


class Cron(Options, Command, tag_field="cmd", tag="CRON", gc=False, kw_only=True):
    """Push a job again and again; a cron of the same name is replaced."""

    reqId: RequestId | UnsetType | None = UNSET  # type: ignore[assignment]
    name: str
    queue: str
    data: Raw | UnsetType = UNSET
    schedule: str | None = None
    repeat_every: Whole | None = None
    limit: Whole | None = None
    options: CronOptions | None = None

    def nested(self) -> tuple[int, int]:
        given = [self.data, self.options.data if self.options is not None else None]
        return 2, max(len(each) for each in (*given, b"") if isinstance(each, bytes | Raw))

    def asked(self, caller: Caller) -> core.Command:
        if self.schedule is None and self.repeat_every is None:
            raise Refused("schedule", "Either schedule or repeat_every is required")
        options = self.options or CronOptions()
        inner = {name: getattr(options, name) for name in Options.__struct_fields__}
        inner |= {name: getattr(self, name) for name in inner if getattr(self, name) is not None}
        # A cron says when, and pushes a new job each time: with an id, only the first push would make one.
        inner |= dict.fromkeys(NOT_OF_CRONS)
        data = options.data if self.data is UNSET else self.data
        job = job_of(Options(**inner), bytes(NULL if data is None else data), caller.limits)
        limit = self.limit if self.limit is not None else options.limit
        return job_commands.CronPut(
            caller.tenant,
            self.name,
            self.queue,
            job,
            self.schedule,
            self.repeat_every,
            limit=limit or 0,
            completed_count=COMPLETED_MAX,
        )

    def reply(self, reply: queries.CronsFound, caller: Caller) -> Struct:
        return answers.Answer()

    def otherwise(self, error: ForebayError) -> Struct | ForebayError:
        if isinstance(error, Invalid) and error.field == "schedule":
            return Refused("schedule", "Invalid cron schedule")
        return error


class CronDelete(Asked, tag="CRONDELETE", gc=False, kw_only=True):
    name: str

    def asked(self, caller: Caller) -> core.Command:
        return job_commands.CronDelete(caller.tenant, self.name)

    def reply(self, reply: job_commands.CronDeleted, caller: Caller) -> Struct:
        return answers.Answer()

    def otherwise(self, error: ForebayError) -> Struct | ForebayError:
        return NotFound("Cron job not found") if isinstance(error, NotFound) else error


class CronList(Asked, tag="CRONLIST", gc=False, kw_only=True):
    is_command = False

    async def steps(self, services: Services, caller: Caller) -> Any:
        found: list[CoreCron] = []
        while True:
            after = found[-1].name if found else None
            page = await ask(services, caller, queries.CronList(caller.tenant, after, within=caller.queues))
            assert isinstance(page, queries.CronsFound)
            found += page.crons
            if not page.more or not page.crons:
                return found

    def reply(self, reply: list[CoreCron], caller: Caller) -> Struct:
        return answers.Crons(crons=list(map(_shown, reply)))


def _shown(cron: CoreCron) -> answers.CronShown:
    return answers.CronShown(
        name=cron.name,
        queue=cron.queue,
        data=Raw(cron.payload),
        schedule=cron.schedule or None,
        repeat_every=cron.every_ms or None,
        priority=cron.attributes.priority,
        next_run=cron.next_at if cron.next_at != NEVER else 0,
        executions=cron.fired,
        limit=cron.limit or None,
    )
