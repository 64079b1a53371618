"""The server itself: hold and back up its store, poll its events, register webhooks."""

import asyncio
from typing import ClassVar

import msgspec
from msgspec import UNSET, Raw

from forebay.core.api import commands as core
from forebay.server.events.hub import BEGINNING
from forebay.server.events.poll import Told
from forebay.server.operations.carried import Carried, Context
from forebay.server.tcp.codec import Services
from forebay.server.webhooks.courier import Webhook as Kept
from forebay.server.webhooks.forwarder import Figures
from forebay.server.webhooks.registry import new_id, new_secret
from forebay.wire.operations import server as wire
from forebay.wire.operations.server import (
    BackedUp,
    Held,
    Polled,
    Registered,
    Unregistered,
    Webhook,
    WebhookList,
)


class Hold(Carried, wire.Hold):
    def command(self, context: Context) -> core.Command:
        return core.Hold(context.tenant, self.held)

    def reply(self, reply: core.Held, context: Context) -> Held:
        return Held(held=reply.held, store=reply.store)


class Backup(Carried, wire.Backup):
    def command(self, context: Context) -> core.Command:
        return core.Backup(context.tenant, self.directory)

    def reply(self, reply: core.BackedUp, context: Context) -> BackedUp:
        return BackedUp(directory=reply.directory)


class PollEvents(Carried, wire.PollEvents):
    is_command: ClassVar[bool] = False

    async def carry_out(self, services: Services, context: Context) -> Told:
        what = (self.queues, self.kinds, self.after, self.wait_ms)
        for queue in self.queues:
            context.check_queue(queue)
        try:
            return await services.polls.events(context.tenant, *what, within=context.queues)
        except asyncio.CancelledError:  # a client that sends no more still reads what there is
            if self.after is None:
                return [], services.polls.hub.reached(context.tenant)
            return [], self.after or BEGINNING

    def reply(self, reply: Told, context: Context) -> Polled:
        events, after = reply
        return Polled(events=list(map(Raw, events)), after=after)


class ListWebhooks(Carried, wire.ListWebhooks):
    is_command: ClassVar[bool] = False

    async def carry_out(self, services: Services, context: Context) -> WebhookList:
        context.check_whole()
        return WebhookList(webhooks=[_shown(*each) for each in await services.webhooks.all(context.tenant)])

    def reply(self, reply: WebhookList, context: Context) -> WebhookList:
        return reply


def _shown(kept: Kept, figures: Figures) -> Webhook:
    return Webhook(
        id=kept.id,
        url=kept.url,
        queues=kept.queues or None,
        kinds=kept.kinds or None,
        created_at=kept.created_at,
        **msgspec.structs.asdict(figures),
    )


class RegisterWebhook(Carried, wire.RegisterWebhook):
    is_command: ClassVar[bool] = False

    async def carry_out(self, services: Services, context: Context) -> Registered:
        context.check_whole()
        secret = new_secret() if self.secret is None else self.secret
        kept = Kept(
            id=new_id(),
            tenant=context.tenant,
            url=self.url,
            secret=secret,
            queues=self.queues,
            kinds=self.kinds,
        )
        await services.webhooks.register(kept)
        return Registered(id=kept.id, secret=UNSET if self.secret is not None else secret)

    def reply(self, reply: Registered, context: Context) -> Registered:
        return reply


class DeleteWebhook(Carried, wire.DeleteWebhook):
    is_command: ClassVar[bool] = False

    async def carry_out(self, services: Services, context: Context) -> Unregistered:
        context.check_whole()
        await services.webhooks.delete(context.tenant, self.id)
        return Unregistered(id=self.id)

    def reply(self, reply: Unregistered, context: Context) -> Unregistered:
        return reply
