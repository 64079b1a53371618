"""Delivery limits: of one queue, and named ones that several queues share."""

from msgspec import UNSET, Struct

from forebay.core.api import commands as core, jobs as job_commands, queries
from forebay.core.errors import Invalid
from forebay.core.state import NamedLimit, Rate
from forebay.server.flashq import replies
from forebay.server.flashq.request import Context, Request
from forebay.server.options import AnyRate, rate_of, shown_rate


class Limiting(Request, gc=False, kw_only=True):
    """Commands that set a limit of one queue and are answered with ok."""

    queue: str

    def reply(self, reply: queries.QueueFound, context: Context) -> Struct:
        return replies.Ok(ok=True, reqId=self.reqId)


class RateLimit(Limiting, tag="RATELIMIT", gc=False, kw_only=True):
    limit: int | None = None
    per_ms: int = 1_000
    burst: int = 0
    bytes: int | None = None

    def command(self, context: Context) -> core.Command:
        if self.limit is None and self.bytes is None:
            raise Invalid("limit", "given, or else bytes")
        if self.limit is None and self.burst:
            raise Invalid("burst", "given along with limit: bytes have none")
        for field in ("limit", "bytes", "per_ms"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise Invalid(field, "1 or more; RATELIMITCLEAR takes a limit away")
        return core.Configure(
            context.tenant,
            self.queue,
            rate_limit=UNSET if self.limit is None else Rate(self.limit, self.per_ms, self.burst),
            byte_limit=UNSET if self.bytes is None else Rate(self.bytes, self.per_ms),
        )


class RateLimitClear(Limiting, tag="RATELIMITCLEAR", gc=False, kw_only=True):
    def command(self, context: Context) -> core.Command:
        return core.Configure(context.tenant, self.queue, rate_limit=None, byte_limit=None)


class SetConcurrency(Limiting, tag="SETCONCURRENCY", gc=False, kw_only=True):
    limit: int

    def command(self, context: Context) -> core.Command:
        if self.limit < 1:
            raise Invalid("limit", "1 or more; CLEARCONCURRENCY takes it away")
        return core.Configure(context.tenant, self.queue, concurrency=self.limit)


class ClearConcurrency(Limiting, tag="CLEARCONCURRENCY", gc=False, kw_only=True):
    def command(self, context: Context) -> core.Command:
        return core.Configure(context.tenant, self.queue, concurrency=0)


class Limit(Request, tag="LIMIT", gc=False, kw_only=True):
    name: str
    rate_limit: AnyRate | None = None
    byte_limit: AnyRate | None = None
    concurrency: int = 0

    def command(self, context: Context) -> core.Command:
        limit = NamedLimit(rate_of(self.rate_limit), rate_of(self.byte_limit), self.concurrency)
        return job_commands.LimitPut(context.tenant, self.name, limit)

    def reply(self, reply: queries.LimitsFound, context: Context) -> Struct:
        return replies.Ok(ok=True, reqId=self.reqId)


class LimitDelete(Request, tag="LIMITDELETE", gc=False, kw_only=True):
    name: str

    def command(self, context: Context) -> core.Command:
        return job_commands.LimitPut(context.tenant, self.name, None)

    def reply(self, reply: queries.LimitsFound, context: Context) -> Struct:
        return replies.Ok(ok=True, reqId=self.reqId)


class LimitList(Request, tag="LIMITLIST", gc=False, kw_only=True):
    def command(self, context: Context) -> core.Command:
        return queries.LimitList(context.tenant)

    def reply(self, reply: queries.LimitsFound, context: Context) -> Struct:
        limits = [
            {
                "name": each.name,
                "rate_limit": shown_rate(each.limit.rate_limit),
                "byte_limit": shown_rate(each.limit.byte_limit),
                "concurrency": each.limit.concurrency,
                "active": each.active,
            }
            for each in reply.limits
        ]
        return replies.OkLimits(ok=True, limits=limits, reqId=self.reqId)
