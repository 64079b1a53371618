"""CRON, CRONDELETE and CRONLIST."""

from msgspec import UNSET, Raw, Struct

from forebay.core.api import commands as core, jobs as job_commands, queries
from forebay.core.bounds import NEVER
from forebay.core.errors import Invalid
from forebay.core.state import Cron as CoreCron
from forebay.server.flashq import replies
from forebay.server.flashq.push import Pushing, job_of
from forebay.server.flashq.request import Context, Request


class Cron(Pushing, tag="CRON", gc=False, kw_only=True):
    name: str
    data: Raw
    schedule: str | None = None
    repeat_every: int | None = None
    timezone: str = "UTC"
    limit: int | None = None
    missed: str = "last"

    def nested(self) -> tuple[int, int]:
        return 1, len(self.data)

    def command(self, context: Context) -> core.Command:
        for field in ("durability", "idempotency_key", "job_id", "transaction_id", "depends_on", "on_failed"):
            if getattr(self, field) is not None:
                raise Invalid(field, "left out: a cron has none")
        for field in ("producer", "idempotency_ms"):
            if getattr(self, field):
                raise Invalid(field, "left out: a cron has none")
        return job_commands.CronPut(
            context.tenant,
            self.name,
            self.queue,
            job_of(self, self.data),
            self.schedule,
            self.repeat_every,
            self.timezone,
            self.limit or 0,
            self.missed,
        )

    def reply(self, reply: queries.CronsFound, context: Context) -> Struct:
        (cron,) = reply.crons
        return replies.OkCron(ok=True, name=cron.name, next_run=_next(cron), reqId=self.reqId)


def _next(cron: CoreCron) -> int | None:
    return cron.next_at if cron.next_at != NEVER else None


class CronDelete(Request, tag="CRONDELETE", gc=False, kw_only=True):
    name: str

    def command(self, context: Context) -> core.Command:
        return job_commands.CronDelete(context.tenant, self.name)

    def reply(self, reply: job_commands.CronDeleted, context: Context) -> Struct:
        return replies.Ok(ok=True, reqId=self.reqId)


class CronList(Request, tag="CRONLIST", gc=False, kw_only=True):
    after: str | None = None

    def command(self, context: Context) -> core.Command:
        return queries.CronList(context.tenant, self.after)

    def reply(self, reply: queries.CronsFound, context: Context) -> Struct:
        crons = list(map(_shown, reply.crons))
        return replies.OkCrons(ok=True, crons=crons, more=reply.more or UNSET, reqId=self.reqId)


def _shown(cron: CoreCron) -> dict[str, object]:
    return {
        "name": cron.name,
        "queue": cron.queue,
        "partition": cron.partition,
        "data": Raw(cron.payload),
        "schedule": cron.schedule or None,
        "repeat_every": cron.every_ms or None,
        "timezone": cron.zone,
        "priority": cron.attributes.priority,
        "limit": cron.limit or None,
        "missed": cron.missed,
        "executions": cron.fired,
        "last_run": cron.last_slot or None,
        "next_run": _next(cron),
        "skipped": cron.skipped,
        "error": cron.error or None,
    }
