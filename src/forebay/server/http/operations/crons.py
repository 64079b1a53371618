"""Crons over HTTP."""

from msgspec import Raw, Struct

from forebay.core.api import commands as core, jobs as job_commands, queries
from forebay.core.bounds import NEVER
from forebay.core.errors import Invalid
from forebay.core.state import Cron as CoreCron
from forebay.server.http.operation import Asked, Request
from forebay.server.http.operations.push import Message, job_of


class Cron(Struct, gc=False, kw_only=True):
    """A cron: a message that is pushed on a schedule."""

    name: str
    queue: str
    partition: str
    payload: Raw
    schedule: str | None
    every_ms: int | None
    timezone: str
    limit: int | None
    missed: str
    fired: int
    skipped: int
    last_at: int | None
    next_at: int | None
    error: str | None


def shown_cron(cron: CoreCron) -> Cron:
    return Cron(
        name=cron.name,
        queue=cron.queue,
        partition=cron.partition,
        payload=Raw(cron.payload),
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
    )


class PutCron(Request, kw_only=True):
    """Push a ``message`` to a ``queue`` on a ``schedule``, or every ``every_ms``."""

    queue: str
    message: Message
    schedule: str | None = None
    every_ms: int | None = None
    timezone: str = "UTC"
    limit: int | None = None
    missed: str = "last"

    def nested(self) -> tuple[int, int]:
        return 2, len(self.message.payload)

    def command(self, asked: Asked) -> core.Command:
        for name in ("job_id", "transaction_id", "depends_on", "on_failed"):
            if getattr(self.message, name) is not None:
                raise Invalid(f"message.{name}", "left out: a cron has none")
        return job_commands.CronPut(
            asked.tenant,
            asked.path["name"],
            self.queue,
            job_of(self.message, self.message.payload),
            self.schedule,
            self.every_ms,
            self.timezone,
            self.limit or 0,
            self.missed,
        )

    def reply(self, reply: queries.CronsFound, asked: Asked) -> Struct:
        (cron,) = reply.crons
        return shown_cron(cron)


class Crons(Struct, gc=False, kw_only=True):
    """Crons by name. With ``more``, ask again with the last name as ``after``."""

    crons: list[Cron]
    more: bool


class ListCrons(Request, kw_only=True):
    """List crons by name."""

    after: str | None = None

    def command(self, asked: Asked) -> core.Command:
        return queries.CronList(asked.tenant, self.after)

    def reply(self, reply: queries.CronsFound, asked: Asked) -> Struct:
        return Crons(crons=list(map(shown_cron, reply.crons)), more=reply.more)


class GetCron(Request, kw_only=True):
    """Return one cron."""

    def command(self, asked: Asked) -> core.Command:
        return queries.CronList(asked.tenant, name=asked.path["name"])

    def reply(self, reply: queries.CronsFound, asked: Asked) -> Struct:
        (cron,) = reply.crons
        return shown_cron(cron)


class Gone(Struct, gc=False, kw_only=True):
    """The cron that was deleted."""

    name: str


class DeleteCron(Request, kw_only=True):
    """Delete a cron: its message is pushed no more."""

    def command(self, asked: Asked) -> core.Command:
        return job_commands.CronDelete(asked.tenant, asked.path["name"])

    def reply(self, reply: job_commands.CronDeleted, asked: Asked) -> Struct:
        return Gone(name=reply.name)
