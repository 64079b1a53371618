"""Events of jobs as server-sent events and over WebSockets, and the figures of a dashboard."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from starlette.types import Message, Receive, Scope, Send

from forebay.core import ids
from forebay.core.api.principals import READ, has_queue
from forebay.core.errors import ForebayError
from forebay.server.events.hub import Listener
from forebay.server.flashq.web.calls import Call
from forebay.server.flashq.web.commands import Commands, Refused
from forebay.server.flashq.web.envelope import send_refusal
from forebay.server.flashq.web.feed import TYPES, Interest
from forebay.server.flashq.web.feeds import Feeds
from forebay.server.http.endpoint import until_gone
from forebay.server.http.event_streams import Out, Pings
from forebay.server.http.identity import lasting
from forebay.server.http.request_body import Gone

EVERY = "events"
"""In the place of a queue's name, a WebSocket gets the events of all: flashQ's paper has /ws/events."""
DASHBOARD_S = 3.0
"""Interval of a dashboard's figures."""


def interest_of(call: Call) -> Interest:
    """Return which events a path and its query ask for."""
    principal = call.context.principal
    if principal is None or not principal.may((READ,)):
        raise Refused(403, "Events need the role read")
    path = call.path
    job: int | None = None
    if "id" in path:
        try:
            job = ids.parse(int(path["id"]) if path["id"].isascii() and path["id"].isdigit() else path["id"])
        except ForebayError:
            raise Refused(400, "id must be the id of a job") from None
    events = call.of_query(("events",)).get("events")
    types = frozenset(
        filter(None, bytes(events).decode().strip('"').replace(" ", "").split(",")) if events else ()
    )
    if not types <= set(TYPES):
        raise Refused(400, f"events must be some of {', '.join(TYPES)}")
    queue = path.get("queue")
    if queue == EVERY and call.scope["type"] == "websocket":
        queue = None
    if queue is not None and not has_queue(call.context.queues, queue):
        raise Refused(403, "This token is for other queues")
    return Interest(queue, job, types, call.context.queues)


class EventStream:
    """Events as server-sent events."""

    def __init__(self, feeds: Feeds, commands: Commands) -> None:
        self._feeds, self._commands = feeds, commands

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "GET":
            refused = Refused(405, f"{scope['method']} is not supported here, only GET")
            await send_refusal(scope, send, refused, [(b"allow", b"GET")])
            return
        try:
            call = Call(self._commands, scope, receive, 0)
            interest, tenant = interest_of(call), call.context.tenant
        except Refused as refused:
            await send_refusal(scope, send, refused)
            return
        out = Out(send)
        listener = self._feeds.join(tenant, interest)
        listener.on_drop = partial(scope["forebay.connection"].cut, "did not read its events")
        gone = asyncio.ensure_future(_end_with(scope, receive, listener))
        pings = Pings(listener)
        watch = lasting(scope)
        try:
            await out.start(b": listening\n\n")
            while not (listener.ended or listener.dropped):
                await listener.wait()
                chunk = b"".join(stream for _, stream in listener.take())
                if chunk or pings.is_due:
                    await out.send(chunk or b": ping\n\n")
                    pings.again()
            if listener.dropped:
                await gone
            else:
                await out.end()
        finally:
            watch()
            pings.stop()
            gone.cancel()
            self._feeds.leave(tenant, listener)


async def _end_with(scope: Scope, receive: Receive, listener: Listener) -> None:
    await until_gone(scope, receive)
    listener.end()


class EventSocket:
    """Events as text frames of a WebSocket."""

    def __init__(self, feeds: Feeds, commands: Commands) -> None:
        self._feeds, self._commands = feeds, commands

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        try:
            call = Call(self._commands, scope, receive, 0)
            interest, tenant = interest_of(call), call.context.tenant
        except Refused as refused:
            await send_refusal(scope, send, refused)
            return
        listener = self._feeds.join(tenant, interest)
        listener.on_drop = partial(scope["forebay.connection"].cut, "did not read its events")
        gone = asyncio.ensure_future(_end_with(scope, receive, listener))
        watch = lasting(scope)
        try:
            await send({"type": "websocket.accept"})
            while not (listener.ended or listener.dropped):
                await listener.wait()
                for batch, _ in listener.take():
                    for _, payload in batch.events:
                        await send({"type": "websocket.send", "text": payload.decode()})
            await gone
        except OSError:
            pass  # the client disconnected
        finally:
            watch()
            gone.cancel()
            self._feeds.leave(tenant, listener)


async def _nothing() -> Message:
    """Receive nothing, for ever."""
    return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]


class Dashboard:
    """All figures as one text frame, every DASHBOARD_S."""

    def __init__(self, figures: Callable[[Call], Awaitable[bytes]], commands: Commands) -> None:
        self._figures, self._commands = figures, commands

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        try:
            Call(self._commands, scope, receive, 0).require((READ,), "The dashboard", of_server=True)
        except Refused as refused:
            await send_refusal(scope, send, refused)
            return
        await send({"type": "websocket.accept"})
        gone = asyncio.ensure_future(until_gone(scope, receive))
        watch = lasting(scope)
        try:
            while not gone.done():
                # Only one may receive: else the figures would take the end of the connection from it.
                figures = await self._figures(Call(self._commands, scope, _nothing, 0))
                await send({"type": "websocket.send", "text": figures.decode()})
                await asyncio.wait({gone}, timeout=DASHBOARD_S)
        except (OSError, Gone):
            pass  # the client disconnected
        except Refused as refused:
            await send({"type": "websocket.close", "code": 1013, "reason": refused.error[:100]})
        finally:
            watch()
            gone.cancel()
