"""EVENTS: poll for events. Listeners carry this one out; it is not a command of the core."""

import msgspec
from msgspec import Raw, Struct

from forebay.core.api.commands import Command
from forebay.core.errors import Unsupported
from forebay.server.events.poll import Polls, Told
from forebay.server.flashq import replies
from forebay.server.flashq.request import Context, Request


class Events(Request, tag="EVENTS", gc=False, kw_only=True):
    queues: list[str] = msgspec.field(default_factory=list)
    kinds: list[str] = msgspec.field(default_factory=list)
    after: str | None = None
    timeout: int = 0

    def command(self, context: Context) -> Command:
        raise Unsupported("this listener has no events")

    async def told(self, polls: Polls, context: Context) -> Told:
        return await polls.events(context.tenant, self.queues, self.kinds, self.after, self.timeout)

    def reply(self, reply: Told, context: Context) -> Struct:
        events, after = reply
        return replies.OkEvents(ok=True, events=list(map(Raw, events)), after=after, reqId=self.reqId)
