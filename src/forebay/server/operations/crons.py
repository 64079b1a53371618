"""Crons: messages that are pushed on a schedule."""

from msgspec import Raw

from forebay.core.api import commands as core, jobs as job_commands, queries
from forebay.core.bounds import NEVER
from forebay.core.errors import Invalid
from forebay.core.state import Cron as Kept
from forebay.server.labels import labels
from forebay.server.operations.carried import Carried, Context
from forebay.server.operations.push import job_of
from forebay.wire.operations import crons as wire
from forebay.wire.operations.crons import Cron, Crons, Gone


def shown_cron(cron: Kept) -> Cron:
    return Cron(
        name=cron.name,
        queue=cron.queue,
        partition=cron.partition,
        payload=Raw(cron.payload),
        priority=cron.attributes.priority,
        schedule=cron.schedule or None,
        every_ms=cron.every_ms or None,
        timezone=cron.zone,
        limit=cron.limit or None,
        missed=cron.missed,
        fired=cron.fired,
        skipped=cron.skipped,
        last_at=cron.last_slot or None,
        next_at=cron.next_at if cron.next_at != NEVER else None,
        error=cron.error or None,
        headers=labels(cron.attributes)[0],
    )


class PutCron(Carried, wire.PutCron):
    def nested(self) -> tuple[int, int]:
        return 2, len(self.message.payload)

    def command(self, context: Context) -> core.Command:
        for name in ("job_id", "transaction_id", "depends_on", "on_failed"):
            if getattr(self.message, name) is not None:
                raise Invalid(f"message.{name}", "left out: a cron has none")
        return job_commands.CronPut(
            context.tenant,
            self.name,
            self.queue,
            job_of(self.message, self.message.payload),
            self.schedule,
            self.every_ms,
            self.timezone,
            self.limit or 0,
            self.missed,
        )

    def reply(self, reply: queries.CronsFound, context: Context) -> Cron:
        (cron,) = reply.crons
        return shown_cron(cron)


class ListCrons(Carried, wire.ListCrons):
    def command(self, context: Context) -> core.Command:
        return queries.CronList(context.tenant, self.after, within=context.queues)

    def reply(self, reply: queries.CronsFound, context: Context) -> Crons:
        return Crons(crons=list(map(shown_cron, reply.crons)), more=reply.more)


class GetCron(Carried, wire.GetCron):
    def command(self, context: Context) -> core.Command:
        return queries.CronList(context.tenant, name=self.name, within=context.queues)

    def reply(self, reply: queries.CronsFound, context: Context) -> Cron:
        (cron,) = reply.crons
        return shown_cron(cron)


class DeleteCron(Carried, wire.DeleteCron):
    def command(self, context: Context) -> core.Command:
        return job_commands.CronDelete(context.tenant, self.name)

    def reply(self, reply: job_commands.CronDeleted, context: Context) -> Gone:
        return Gone(name=reply.name)
