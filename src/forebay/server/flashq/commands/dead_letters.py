"""DLQ, RETRYDLQ and PURGEDLQ. A queue that does not exist has no dead letters."""

from msgspec import Struct

from forebay.core.api import commands as core, queries
from forebay.core.bounds import DEAD_SHOWN_MAX
from forebay.core.errors import Conflict, ForebayError, NotFound
from forebay.server.flashq import answers, job
from forebay.server.flashq.caller import Caller
from forebay.server.flashq.command import Asked, Whole, ask, parse_id
from forebay.server.tcp.codec import Ready, Services
from forebay.wire.types import Id

SHOWN = 100
"""Dead letters that DLQ shows if it gives no count."""


class DeadLetters(Asked, tag="DLQ", gc=False, kw_only=True):
    queue: str
    count: Whole | None = None

    def asked(self, caller: Caller) -> core.Command:
        count = SHOWN if self.count is None else min(self.count, DEAD_SHOWN_MAX)
        if not count:
            raise Ready(None)
        return queries.ListDead(caller.tenant, self.queue, count=count)

    def reply(self, reply: queries.DeadFound | None, caller: Caller) -> Struct:
        return answers.Jobs(jobs=[] if reply is None else job.dead(reply, caller.limits.lease_ms_max))

    def otherwise(self, error: ForebayError) -> Struct | ForebayError:
        return answers.Jobs(jobs=[]) if isinstance(error, NotFound) else error


async def _all(services: Services, caller: Caller, command: core.Requeue | core.Purge) -> int:
    """Carry out a command until nothing is left; return how many dead letters it was about."""
    count = 0
    try:
        while True:
            done = await ask(services, caller, command)
            assert isinstance(done, core.Buried)
            count += done.count
            if command.ids is not None or not done.left or not done.count:
                return count
    except (NotFound, Conflict):
        return count


class RetryDead(Asked, tag="RETRYDLQ", gc=False, kw_only=True):
    """Deliver dead letters again, one or all. As flashQ does, it answers with how many, as a list."""

    is_command = False
    queue: str
    id: Id | None = None

    async def steps(self, services: Services, caller: Caller) -> int:
        ids = None if self.id is None else [parse_id(self.id)]
        return await _all(services, caller, core.Requeue(caller.tenant, self.queue, ids=ids))

    def reply(self, reply: int, caller: Caller) -> Struct:
        return answers.WithIds(ids=[reply])


class PurgeDead(Asked, tag="PURGEDLQ", gc=False, kw_only=True):
    is_command = False
    queue: str

    async def steps(self, services: Services, caller: Caller) -> int:
        return await _all(services, caller, core.Purge(caller.tenant, self.queue))

    def reply(self, reply: int, caller: Caller) -> Struct:
        return answers.Count(count=reply)
