"""Named limits that several queues share."""

from forebay.core.api import commands as core, jobs as job_commands, queries
from forebay.core.state import NamedLimit
from forebay.server.operations.carried import Carried, Context
from forebay.server.options import rate_of, shown_rate
from forebay.wire.operations import limits as wire
from forebay.wire.operations.crons import Gone
from forebay.wire.operations.limits import Limit, Limits


class PutLimit(Carried, wire.PutLimit):
    def command(self, context: Context) -> core.Command:
        limit = NamedLimit(rate_of(self.rate_limit), rate_of(self.byte_limit), self.concurrency)
        return job_commands.LimitPut(context.tenant, self.name, limit)

    def reply(self, reply: queries.LimitsFound, context: Context) -> Gone:
        return Gone(name=self.name)


class DeleteLimit(Carried, wire.DeleteLimit):
    def command(self, context: Context) -> core.Command:
        return job_commands.LimitPut(context.tenant, self.name, None)

    def reply(self, reply: queries.LimitsFound, context: Context) -> Gone:
        return Gone(name=self.name)


class ListLimits(Carried, wire.ListLimits):
    def command(self, context: Context) -> core.Command:
        return queries.LimitList(context.tenant)

    def reply(self, reply: queries.LimitsFound, context: Context) -> Limits:
        return Limits(
            limits=[
                Limit(
                    name=each.name,
                    rate_limit=shown_rate(each.limit.rate_limit),
                    byte_limit=shown_rate(each.limit.byte_limit),
                    concurrency=each.limit.concurrency,
                    active=each.active,
                )
                for each in reply.limits
            ]
        )
