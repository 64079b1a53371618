"""Streams of events and of messages: server-sent events and WebSockets."""

import asyncio
from asyncio import AbstractEventLoop, Future, TimerHandle
from functools import partial
from typing import ClassVar

import msgspec
from starlette.types import Message, Receive, Scope, Send

from forebay.broker.node import Node
from forebay.core.api.commands import Pop, Popped, Reply
from forebay.core.api.principals import POP, READ
from forebay.core.bounds import check_range
from forebay.core.errors import ForebayError, Invalid
from forebay.core.words import DEFAULT
from forebay.server.events.backlog import Backlog, Lost as Lost
from forebay.server.events.hub import (
    Batch,
    Hub,
    Listener,
    Positions,
    Wanted,
    kinds_of,
    shown_positions,
)
from forebay.server.http.endpoint import Patient, send_error, told, until_gone
from forebay.server.http.headers import header
from forebay.server.http.identity import context_of, lasting, require
from forebay.server.http.operation import Query, encode
from forebay.server.http.request_body import Reader
from forebay.server.node_client import NodeClient
from forebay.server.operations.carried import Context
from forebay.server.operations.pop import delivered

PING_S = 15.0
"""Silence on a stream before a ping is sent."""
WAIT_MS = 60_000
"""Wait of each pop of a message stream."""
REASON_BYTES_MAX = 123
"""Bytes of a WebSocket's close reason, at most: a control frame has no room for more."""
LOOK_S = 1.0
"""Interval of pops where the server's wait limit is shorter than this."""
HELD_MAX = 1_000
"""Messages that one connection may hold leased, at most."""
STREAM = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class Events(Query, kw_only=True):
    """Which events to send, and where to start: after the id ``after``, or ``from`` all that are kept."""

    needs: ClassVar[tuple[str, ...]] = (READ,)
    queue: list[str] = msgspec.field(default_factory=list)
    kind: list[str] = msgspec.field(default_factory=list)
    after: str | None = None
    start: str = msgspec.field(default="new", name="from")

    def wanted(self, context: Context) -> Wanted:
        if self.start not in ("new", "all"):
            raise Invalid("from", "new or all")
        for queue in self.queue:
            context.check_queue(queue)
        return Wanted(context.tenant, frozenset(self.queue), kinds_of(self.kind), context.queues)

    def begin(self, scope: Scope, hub: Hub) -> Positions | None:
        """Return the positions to start from; None to start with new events."""
        last = header(scope, b"last-event-id").decode("latin-1") or self.after
        if last is not None:
            return hub.parse(last)
        return {} if self.start == "all" else None


class EventStream(Backlog):
    """Lifecycle events as server-sent events."""

    def __init__(self, hub: Hub, questions: NodeClient) -> None:
        super().__init__(hub, questions)
        self._reader = Reader(Events)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            request = self._reader.query(scope["query_string"])
            assert isinstance(request, Events)
            context = require(scope, request.needs, "EVENTS")
            wanted, begin = request.wanted(context), request.begin(scope, self.hub)
        except ForebayError as error:
            await send_error(scope, send, error)
            return
        out = Out(send)
        listener, end = self.hub.join(wanted)
        listener.on_drop = partial(scope["forebay.connection"].cut, "did not read its events")
        gone = asyncio.ensure_future(_end_with(scope, receive, listener))
        pings = Pings(listener)
        watch = lasting(scope)
        try:
            if begin is None:
                await self.check_kept(end)
            if begin is None:
                await out.start(b"id: %s\n: listening\n\n" % shown_positions(end).encode())
            else:
                await out.start(b": resuming\n\n")
                async for batch in self.missed(wanted, begin, end):
                    caught_up = b"id: %s\n: caught up\n\n" % batch.after.encode()
                    await out.send(batch.as_stream() if batch.events else caught_up)
            while not (listener.ended or listener.dropped):
                await listener.wait()
                # A ping carries the current id: few matching events must not mean resuming far back.
                reached = self.hub.reached(wanted.tenant) if pings.is_due else ""
                chunk = b"".join(stream for _, stream in listener.take())
                if chunk or pings.is_due:
                    await out.send(chunk or b"id: %s\nevent: ping\ndata:\n\n" % reached.encode())
                    pings.again()
            if listener.dropped:
                await gone
            else:
                await out.end()
        except ForebayError as error:
            await out.fail(scope, error)
        finally:
            watch()
            pings.stop()
            gone.cancel()
            self.hub.leave(wanted, listener)


class Out:
    """The response of a stream."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._started = False

    async def start(self, first: bytes = b": listening\n\n") -> None:
        """Send the head together with a first chunk."""
        self._started = True
        await self._send({"type": "http.response.start", "status": 200, "headers": list(STREAM)})
        await self.send(first)

    async def fail(self, scope: Scope, error: ForebayError) -> None:
        """Send an error: as the last event if the stream has begun, else as the response."""
        if self._started:
            await self.send(b"event: error\ndata: %s\n\n" % encode(told(error)))
            await self.end()
        else:
            await send_error(scope, self._send, error)

    async def send(self, chunk: bytes) -> None:
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": b""})


async def _end_with(scope: Scope, receive: Receive, listener: Listener) -> None:
    """End a subscription when its client disconnects."""
    await until_gone(scope, receive)
    listener.end()


class Pings:
    """Wakes a subscription when nothing was sent for PING_S."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._loop: AbstractEventLoop = asyncio.get_running_loop()
        self._sent_at = self._loop.time()
        self.is_due = False
        self._timer: TimerHandle = self._loop.call_later(PING_S, self._ring)

    def again(self) -> None:
        self._sent_at, self.is_due = self._loop.time(), False

    def _ring(self) -> None:
        due_at = self._sent_at + PING_S
        if due_at <= self._loop.time():
            self.is_due = True
            self._listener.wake()
            due_at = self._loop.time() + PING_S
        self._timer = self._loop.call_at(due_at, self._ring)

    def stop(self) -> None:
        self._timer.cancel()


class EventSocket(Backlog):
    """Lifecycle events as text frames of a WebSocket, one event each; the last of a batch has an ``id``."""

    def __init__(self, hub: Hub, questions: NodeClient) -> None:
        super().__init__(hub, questions)
        self._reader = Reader(Events)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        try:
            request = self._reader.query(scope["query_string"])
            assert isinstance(request, Events)
            context = require(scope, request.needs, "EVENTS")
            wanted, begin = request.wanted(context), request.begin(scope, self.hub)
        except ForebayError as error:
            # Browsers show the reason of a close only for a WebSocket that was accepted.
            await send({"type": "websocket.accept"})
            await send(_closing(1008, error))
            return
        listener, end = self.hub.join(wanted)
        listener.on_drop = partial(scope["forebay.connection"].cut, "did not read its events")
        gone = asyncio.ensure_future(_end_with(scope, receive, listener))
        watch = lasting(scope)
        try:
            await send({"type": "websocket.accept"})
            if begin is None:
                await self.check_kept(end)
                listening = b'{"kind":"listening"}'
                await _send_frames(send, Batch([("listening", listening)], shown_positions(end)))
            else:
                async for batch in self.missed(wanted, begin, end):
                    await _send_frames(send, batch)
            while not (listener.ended or listener.dropped):
                await listener.wait()
                for batch, _ in listener.take():
                    await _send_frames(send, batch)
            await gone
        except ForebayError as error:
            await send(_closing(1013, error))
        except OSError:
            pass  # the client disconnected
        finally:
            watch()
            gone.cancel()
            self.hub.leave(wanted, listener)


def _closing(code: int, error: ForebayError) -> Message:
    reason = error.message.encode()[:REASON_BYTES_MAX].decode(errors="ignore")
    return {"type": "websocket.close", "code": code, "reason": reason}


async def _send_frames(send: Send, batch: Batch) -> None:
    last = len(batch.events) - 1
    for at, (_, payload) in enumerate(batch.events):
        if at == last:
            payload = b'{"id":"%s",' % batch.after.encode() + payload[1:]
        await send({"type": "websocket.send", "text": payload.decode()})


class Listen(Query, kw_only=True):
    """Which messages to lease to this connection: at most ``max`` at a time that are not settled."""

    needs: ClassVar[tuple[str, ...]] = (POP,)

    group: str = DEFAULT
    partition: str | None = None
    lease_ms: int | None = None
    max: int = 100
    start: int | str = msgspec.field(default="all", name="from")
    create: bool | None = None


class Holding:
    """Leases of one connection that are not settled."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._leases: dict[str, Popped] = {}

    def add(self, popped: Popped) -> None:
        assert popped.lease is not None
        self._leases[popped.lease] = Popped(popped.queue, popped.lease, [])

    def count(self) -> int:
        """Return how many messages are still held; drop leases that have ended."""
        held = 0
        for token in list(self._leases):
            unsettled = self._node.engine.unsettled(token)
            if unsettled is None:
                del self._leases[token]
            else:
                held += unsettled
        return held

    def give_back(self) -> None:
        """Return all messages held as if they had never been delivered: the connection has closed."""
        for popped in self._leases.values():
            self._node.give_back(popped)
        self._leases.clear()


class ListenStream(Backlog):
    """Messages of a queue as server-sent events, leased to the connection until they are settled."""

    def __init__(self, hub: Hub, questions: NodeClient) -> None:
        super().__init__(hub, questions)
        self._reader = Reader(Listen)
        self._owners = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            request = self._reader.query(scope["query_string"])
            assert isinstance(request, Listen)
            check_range("max", request.max, 1, HELD_MAX)
            require(scope, request.needs, "POP").check_queue(scope["path_params"]["queue"])
        except ForebayError as error:
            await send_error(scope, send, error)
            return
        self._owners -= 1
        await _Listening(self, request, scope, receive, send, self._owners).run()


class _Listening(Patient):
    """One connection that leases messages."""

    def __init__(
        self, streams: ListenStream, request: Listen, scope: Scope, receive: Receive, send: Send, owner: int
    ) -> None:
        super().__init__(streams.questions.node)
        self._hub = streams.hub
        self._request, self._scope, self._receive = request, scope, receive
        self._send, self._owner = send, owner
        self._queue: str = scope["path_params"]["queue"]
        self._tenant = context_of(scope).tenant
        self._out = Out(send)
        self._holding = Holding(self.node)

    async def run(self) -> None:
        # Any event of the queue (an ack, for example) may mean that there is room for more messages.
        wanted = Wanted(self._tenant, frozenset({self._queue}))
        listener, _ = self._hub.join(wanted)
        gone = asyncio.ensure_future(_end_with(self._scope, self._receive, listener))
        pings = Pings(listener)
        pop: Future[Reply | ForebayError] | None = None
        loop = asyncio.get_running_loop()
        look: TimerHandle | None = None
        watch = lasting(self._scope)
        try:
            first = await self.ask(self._pop(self._request.max, wait_ms=0))
            if isinstance(first, ForebayError):
                await self._out.fail(self._scope, first)
                return
            assert isinstance(first, Popped)
            await self._out.start()
            await self._deliver(first, pings)
            while not listener.ended and not self.node.draining:
                if pop is None and (room := self._request.max - self._holding.count()) > 0:
                    pop = self.ask(self._pop(room))
                    pop.add_done_callback(lambda _: listener.wake())
                if pop is not None and pop.done():
                    popped, pop = pop.result(), None
                    if isinstance(popped, ForebayError):
                        await self._out.fail(self._scope, popped)
                        return
                    assert isinstance(popped, Popped)
                    await self._deliver(popped, pings)
                    if popped.lease is not None or self.node.limits.wait_ms_max >= 1000 * LOOK_S:
                        continue
                    look = loop.call_later(LOOK_S, listener.wake)
                await listener.wait()
                listener.take()
                listener.dropped = False  # events are only a wake-up here: a dropped buffer loses nothing
                if pings.is_due:
                    await self._out.send(b"event: ping\ndata:\n\n")
                    pings.again()
            await self._out.end()
        finally:
            watch()
            pings.stop()
            if look is not None:
                look.cancel()
            gone.cancel()
            self._hub.leave(wanted, listener)
            if pop is not None:
                if pop.done():
                    self.node.give_back(pop.result())
                pop.cancel()
            self.node.forget(self)
            self._holding.give_back()

    def _pop(self, room: int, wait_ms: int = WAIT_MS) -> Pop:
        request = self._request
        return Pop(
            self._tenant,
            self._queue,
            request.group,
            room,
            1,
            request.partition,
            request.lease_ms,
            request.start,
            min(wait_ms, self.node.limits.wait_ms_max),
            self._owner,
            create=request.create,
        )

    async def _deliver(self, popped: Popped, pings: Pings) -> None:
        if popped.lease is None:
            return
        self._holding.add(popped)
        out = (
            b"event: message\nid: %s\ndata: %s\n\n" % (str(each.id).encode(), _one_line(encode(each)))
            for each in delivered(popped)
        )
        await self._out.send(b"".join(out))
        pings.again()


def _one_line(body: bytes) -> bytes:
    """Return JSON without line breaks, which a payload as pushed may have between its values."""
    return body.replace(b"\r", b" ").replace(b"\n", b" ") if b"\n" in body or b"\r" in body else body
