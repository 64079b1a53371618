"""EVENTS: poll for events. Listeners carry this one out; it is not a command of the core."""

import asyncio
from typing import ClassVar

import msgspec
from msgspec import Raw, Struct

from forebay.core.api.commands import Command
from forebay.core.errors import Unsupported
from forebay.server.events.hub import BEGINNING
from forebay.server.events.poll import Polls, Told
from forebay.server.flashq import replies
from forebay.server.flashq.request import Context, Request
from forebay.server.tcp.codec import Services


class Events(Request, tag="EVENTS", gc=False, kw_only=True):
    is_command: ClassVar[bool] = False
    queues: list[str] = msgspec.field(default_factory=list)
    kinds: list[str] = msgspec.field(default_factory=list)
    after: str | None = None
    timeout: int = 0

    def command(self, context: Context) -> Command:
        raise Unsupported("this listener has no events")

    async def told(self, polls: Polls, context: Context) -> Told:
        return await polls.events(context.tenant, self.queues, self.kinds, self.after, self.timeout)

    async def carry_out(self, services: Services, context: Context) -> Told:
        try:
            return await self.told(services.polls, context)
        except asyncio.CancelledError:
            return [], self.after or BEGINNING

    def reply(self, reply: Told, context: Context) -> Struct:
        events, after = reply
        return replies.OkEvents(ok=True, events=list(map(Raw, events)), after=after, reqId=self.reqId)
