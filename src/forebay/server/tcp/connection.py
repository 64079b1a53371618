"""One TCP or Unix socket connection: frames in and out, or lines of JSON in and out.

Requests may be pipelined. A request with a ``reqId`` is answered as soon as its reply is ready. Requests
without one are answered in the order they arrived, so a waiting pop holds back the replies behind it; those
requests are carried out all the same.
"""

import asyncio
import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from msgspec import UNSET, Struct, UnsetType

from forebay.broker.auth import REQUIRED, NotKnown
from forebay.core.api.commands import Popped, Reply
from forebay.core.errors import Busy, ForebayError, Invalid, Unsupported
from forebay.core.words import DEFAULT
from forebay.server.access_log import DONE, UNREAD, Asked, code_in, command_of, outcome_of
from forebay.server.decode_errors import Glimpse
from forebay.server.tcp.codec import Attends, Ready, Request, Services
from forebay.server.tcp.replies import rows
from forebay.server.tcp.who import ENDED, Who
from forebay.wire.framing import Frames, Lines, Lost, TooLong, cutter
from forebay.wire.text import check_text
from forebay.wire.types import RequestId

if TYPE_CHECKING:
    from forebay.server.tcp.server import TcpServer

logger = logging.getLogger("forebay.tcp")
STALL_CHECK_S = 1.0
"""Interval of the check for stalled clients."""
FAILED = b'{"ok":false'
"""How an error begins."""
WRITE_BYTES = 256 * 1024
"""Bytes of replies encoded per write to the socket."""
UNKNOWN_BYTES_MAX = 64 * 1024
"""Bytes of a frame as long as the client has shown no token: AUTH needs no more."""
FRAME_STALLS = 10
"""A frame must be complete within this many times ``stall_ms``, however steadily it trickles in."""


class TcpLimits(Struct, frozen=True):
    """Limits of one connection, and the number of connections."""

    frame_bytes_max: int = 64 * 1024 * 1024
    """Bytes of one frame's body."""
    connections_max: int = 10_000
    """Connections at a time; the next one gets ``busy`` and is closed."""
    in_flight_max: int = 10_000
    """Unanswered requests of one connection; reading stops until some replies have left."""
    rows_max: int = 20_000
    """Rows of unsent replies of one connection; its further requests wait."""
    tasks_max: int = 64
    """Requests of one connection that are carried out step by step at a time; its further requests wait."""
    turn_max: int = 256
    """Requests of one connection carried out before other connections get their turn."""
    turn_ms: int = 5
    """Time of one turn; the request that exceeds it is the last."""
    buffer_bytes_max: int = 1024 * 1024
    """Bytes of one connection that wait for the client to read them, or for the server to carry them out."""
    stall_ms: int = 30_000
    """How long a client may pause within a frame, or leave its replies unread."""


Ticket = tuple[Request, int, bool, float]
"""A request, its number among those answered in order (-1 if it has a reqId), whether it is MessagePack, and
when it came."""
Answer = tuple[Request | None, bool, Any, float]
"""A request, whether it is MessagePack, its reply, and how long that took in seconds. A reply of bytes is
encoded already, and told of; others are encoded when they leave."""
TOLD = -1.0
"""How long a reply took that the log need not tell of."""


class Connection(asyncio.Protocol):
    """One client connection."""

    def __init__(self, server: "TcpServer") -> None:
        self._server = server
        self._node = server.node
        self._limits = server.limits
        self._codec = server.codec
        self._frames: Frames | Lines = Frames(server.limits.frame_bytes_max)
        self._begun = False
        """Whether any data arrived: the first byte tells frames from lines."""
        self._transport: asyncio.Transport
        self._in_flight = 0
        """Requests whose replies have not left yet."""
        self._asked = 0
        """Requests without a reqId so far."""
        self._next = 0
        """Number of the next of them to be answered."""
        self._held: dict[int, Answer] = {}
        """Replies that are ready before an earlier one is."""
        self._ready: deque[Answer] = deque()
        """Replies that may leave, as fast as the client reads."""
        self._rows = 0
        """Rows of unsent replies: what they take up before they are encoded."""
        self._write_paused = False
        self._read_paused = False
        self._pump_planned = False
        self._eof = False
        """The client has closed its sending side."""
        self._ending = False
        """No more requests are accepted; the connection closes after its last reply."""
        self._lost = False
        """The connection is gone."""
        self._began_at = 0.0
        """When the client began the frame it has not finished; 0 if no frame is incomplete."""
        self._came_at = 0.0
        """When the last part of that frame arrived."""
        self._went_at = 0.0
        """When the client last read any of its replies."""
        self._unsent = 0
        """Bytes the client had not read at the last check."""
        self._tasks: dict[asyncio.Task[None], bool] = {}
        """Tasks of requests that are carried out step by step, and whether each waits for something."""
        self._room: asyncio.Future[None] | None = None
        """Resolved when the client has read enough for more that it did not ask for."""
        self._now = server.loop.time
        auth = server.services.auth if server.services is not None else None
        owner, limits = server.next_owner(), self._node.limits
        self._who = Who(server.codec, auth, owner, limits, self._now(), self._principal_ended)

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._limits.buffer_bytes_max)
        self._is_secured = transport.get_extra_info("sslcontext") is not None
        self._who.open(self._server.certified(transport))
        if isinstance(self._codec, Attends):
            self._codec.opened(self.context, self)
        if not self._server.admit(self):
            self._refuse(Busy(f"the server takes at most {self._limits.connections_max} connections"))

    def data_received(self, data: bytes) -> None:
        if self._ending:
            return
        self._who.is_used = True
        if not self._begun and data:
            self._begun = True
            self._frames = cutter(data[0], self._frame_bytes_max)
        # The fast path for one whole frame skips the buffer, but neither the turn nor the limits.
        if not self._pump_planned and not self._blocked():
            body = self._frames.whole(data)
            if body is not None:
                self._request(body)
                return
        self._frames.feed(data)
        if not self._pump_planned:
            self._pump()

    def eof_received(self) -> bool:
        """End waits of a client that sends nothing more, then answer the requests received.

        Over TLS there is no half of a connection: the event loop closes it after what is written already.
        What else there is to answer counts as not delivered, so that messages are not leased to nobody.
        """
        if self._is_secured:
            self._ending = self._lost = True
            return False
        self._eof = True
        self._frames.end()
        self._node.give_up(self)
        for task, waits in list(self._tasks.items()):
            if waits:
                task.cancel()
        if not self._pump_planned:
            self._pump()
        return True

    def connection_lost(self, error: Exception | None) -> None:
        self._ending = self._lost = True
        self._who.close()
        unsent = [*self._ready, *self._held.values()]
        self._ready.clear()
        self._held.clear()
        self._node.forget(self)
        for task in list(self._tasks):
            task.cancel()
        # Return leases of unsent replies now: their messages would be blocked until the leases expire.
        for _, _, reply, _ in unsent:
            if isinstance(reply, Popped):
                self._node.give_back(reply)
        if isinstance(self._codec, Attends):
            self._codec.ended(self.context)
        self._make_room()
        self._server.gone(self)

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        self.flush()
        self._make_room()

    # Who it is.

    @property
    def context(self) -> Any:
        return self._who.context

    @property
    def _frame_bytes_max(self) -> int:
        return self._limits.frame_bytes_max if self._who.is_known else UNKNOWN_BYTES_MAX

    def _authenticate(self, request: Request, packed: bool) -> None:
        """Take the token of a request; without one, answer who it is."""
        reply: Any
        before = self.context
        try:
            is_busy = bool(self._in_flight or self._tasks)
            reply = self._who.show(getattr(request, "token", None), is_busy=is_busy)
        except ForebayError as error:
            reply = error
        if isinstance(self._codec, Attends) and self.context is not before:
            self._codec.ended(before)
            self._codec.opened(self.context, self)
        self._frames.limit(self._frame_bytes_max)
        self._in_flight += 1
        self._put(self._number() if request.reqId is UNSET else -1, (request, packed, reply, 0.0))
        self.flush()

    def _principal_ended(self, before: Any) -> None:
        """Take nothing more, and send nothing more that was not asked for."""
        if isinstance(self._codec, Attends):
            self._codec.ended(before)
        for task in list(self._tasks):
            task.cancel()
        self._refuse(NotKnown(ENDED))

    # What is sent without being asked for.

    @property
    def services(self) -> Services | None:
        return self._server.services

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._server.loop

    async def tell(self, bodies: list[bytes]) -> None:
        """Send bodies that answer no request; return when there is room for more."""
        while self._write_paused and not self._lost:
            self._room = self._room or self._server.loop.create_future()
            await asyncio.shield(self._room)
        if not self._lost and not self._ending:
            self._write([part for body in bodies for part in self._frames.wrapped(body)])

    def _make_room(self) -> None:
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    # Requests.

    def _blocked(self) -> bool:
        limits = self._limits
        return (
            self._write_paused
            or self._in_flight >= limits.in_flight_max
            or self._rows >= limits.rows_max
            or len(self._tasks) >= limits.tasks_max
        )

    def _pump(self) -> None:
        """Carry out complete frames: at most one turn, and no more than can be answered."""
        self._pump_planned = False
        left = self._limits.turn_max
        over_at = self._server.loop.time() + self._limits.turn_ms / 1000
        frames = iter(self._frames)
        try:
            while left and not self._ending and not self._blocked():
                body = next(frames, None)
                if body is None:
                    self._ending = self._eof
                    break
                self._began_at = 0.0
                self._request(body)
                # A turn is bounded by time, too: slow requests of one client would delay the others.
                left = left - 1 if self._server.loop.time() < over_at else 0
        except Lost:
            if not self._who.is_known:
                self._refuse(NotKnown(REQUIRED))
                return
            limit = self._limits.frame_bytes_max
            accepted = f"a 4-byte big-endian length up to {limit}, then that many bytes"
            self._refuse(Invalid("frame", f"{accepted}; or else begin with {{ and send lines of JSON"))
            return
        finally:
            frames.close()
        # Pops carried out after the end of the stream must not wait either.
        if self._eof:
            self._node.give_up(self)
        if self._ending:
            self._close_if_done()
            return
        if not left:
            self._plan_pump()
        self._read_or_not(blocked=not left or self._blocked())

    def _plan_pump(self) -> None:
        if not self._pump_planned and not self._ending:
            self._pump_planned = True
            self._server.loop.call_soon(self._pump)

    def _read_or_not(self, blocked: bool) -> None:
        """Pause reading when too much has arrived that can't be carried out yet.

        A little is always read, because only reading reveals that a client has gone.
        """
        paused = blocked and self._frames.waiting > self._limits.buffer_bytes_max
        if paused != self._read_paused and not self._lost:
            self._read_paused = paused
            if paused:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()
        # Time counts against the client only while the server is ready for more.
        if not blocked and self._frames.partial:
            self._came_at = self._server.loop.time()
            self._began_at = self._began_at or self._came_at
        else:
            self._began_at = 0.0

    def _request(self, body: bytes | TooLong) -> None:
        request: Request | None = None
        try:
            if isinstance(body, TooLong):
                if not self._who.is_known:
                    raise NotKnown(REQUIRED)
                limit = self._limits.frame_bytes_max
                raise Invalid("frame", f"at most {limit} bytes; this one has {body.length} and was skipped")
            packed = False
            if body.startswith(b"{"):
                if not body.isascii():
                    check_text(body)
                request = self._codec.decode(body)
            elif packed := self._is_packed(body):
                request = self._codec.decode_packed(body)
            else:
                begins = f"begins with {body[:1]!r}" if body else "is empty"
                raise Invalid("frame", f"{self._frames.takes}; this one {begins}")
            context = self._who.context
            if type(request) not in context.may or request.tenant is not UNSET:
                if request.is_auth:
                    self._authenticate(request, packed)
                    return
                context = self._codec.allowed(request, context)
            if not request.is_command:
                self._start(request, packed, context, self._server.services)
                return
            command = request.packed_command(context) if packed else request.command(context)
            if context.is_narrow:
                context.check_command(self._node, command)
        except Ready as ready:
            assert request is not None
            self._in_flight += 1
            self._put(self._number() if request.reqId is UNSET else -1, (request, packed, ready.reply, 0.0))
            self.flush()
            return
        except ForebayError as error:
            self._answer_at_once(body, error, request)
            return
        except Exception:
            logger.exception("bug: a request could not be read")
            bug = Busy("the server met a bug of its own; nothing was carried out")
            self._answer_at_once(body, bug, request)
            return
        self._in_flight += 1
        number = self._number() if request.reqId is UNSET else -1
        self._node.ask(self, (request, number, packed, self._now()), command)

    def _start(self, request: Request, packed: bool, context: Any, services: Services | None) -> None:
        """Start a task that carries a request out step by step; its reply is queued in turn."""
        if services is None:
            raise Unsupported("this listener carries out commands only")
        ticket = (request, self._number() if request.reqId is UNSET else -1, packed, self._now())
        self._in_flight += 1
        waits = bool(getattr(request, "wait_ms", 0))
        task = self._server.loop.create_task(self._carry_out(ticket, context, services))
        self._tasks[task] = waits
        task.add_done_callback(partial(self._task_ended, ticket))
        if waits and self._eof:
            task.cancel()  # a client that sends nothing more does not wait either

    def _task_ended(self, ticket: Ticket, task: "asyncio.Task[None]") -> None:
        del self._tasks[task]
        if task.cancelled() and not self._lost:  # before its first step
            request, number, packed, _ = ticket
            ended = Busy("the connection ended before this was answered")
            self._put(number, (request, packed, ended, TOLD))
            self.flush()
        if (self._frames.waiting or self._eof) and not self._blocked():
            self._plan_pump()

    async def _carry_out(self, ticket: Ticket, context: Any, services: Services) -> None:
        request, number, packed, began = ticket
        reply: Any
        try:
            reply = await request.carry_out(services, context)
        except ForebayError as error:
            reply = error
        except asyncio.CancelledError:
            reply = Busy("the connection ended before this was answered")
        except Exception:
            logger.exception("bug: %s could not be carried out", type(request).__name__)
            reply = Busy("the server met a bug of its own")
        if not self._lost:
            self._rows += rows(reply)
            self._put(number, (request, packed, reply, self._now() - began))
            self.flush()

    def _is_packed(self, body: bytes) -> bool:
        return self._frames.packs and self._codec.is_packed(body)

    def _number(self) -> int:
        """Return the number of a request among those answered in order."""
        self._asked += 1
        return self._asked - 1

    def _answer_at_once(
        self, body: bytes | TooLong, error: ForebayError, request: Request | None = None
    ) -> None:
        """Answer a request that never reached the core, in its turn."""
        seen = Glimpse()
        packed = self._is_packed(body.begins if isinstance(body, TooLong) else body)
        if not isinstance(body, TooLong):
            seen = self._codec.glimpse(body)
        self._in_flight += 1
        number = self._number() if seen.reqId is UNSET else -1
        self._put(number, (None, packed, self._codec.encode_error(error, seen.reqId, packed=packed), TOLD))
        asked = self._asked_for(request, error, 0.0, seen.reqId)
        if request is None:
            asked.command, asked.given = seen.command or UNREAD, {"queue": seen.queue}
        self._server.access.tell(asked)
        self.flush()

    # Replies: called by the node.

    def answered(self, ticket: object, reply: Reply | ForebayError) -> None:
        if self._lost:
            self._node.give_back(reply)
            return
        request, number, packed, began = cast(Ticket, ticket)
        self._rows += rows(reply)
        self._put(number, (request, packed, reply, self._now() - began))

    def _put(self, number: int, answer: Answer) -> None:
        """Queue a reply for ``flush``, in order if it has a number."""
        if number < 0:
            self._ready.append(answer)
        elif number != self._next:
            self._held[number] = answer
        else:
            self._ready.append(answer)
            self._next = number + 1
            while self._held and self._next in self._held:
                self._ready.append(self._held.pop(self._next))
                self._next += 1

    def flush(self) -> None:
        """Send replies that may leave. Replies that the client can't read yet are not even encoded."""
        if self._lost:
            return
        ready, wrapped, access = self._ready, self._frames.wrapped, self._server.access
        over_s, is_act = access.over_s, access.is_act
        while ready and not self._write_paused:
            out: list[bytes] = []
            size = 0
            while ready and size < WRITE_BYTES:
                request, packed, reply, took = ready.popleft()
                self._rows -= rows(reply)
                body = self._encoded(request, packed, reply)
                if took >= over_s or is_act[type(request)] or isinstance(reply, ForebayError):
                    self._tell(request, reply, took, body)
                out += wrapped(body)
                size += len(body)
                self._in_flight -= 1
            self._write(out)
        # Replies that left made room: carry on with requests that waited for it.
        if (self._frames.waiting or self._eof) and not self._blocked():
            self._plan_pump()
        if self._ending:
            self._close_if_done()

    def _write(self, parts: list[bytes]) -> None:
        """Write what may be many small parts. Over TLS each would be a record of its own: they are joined."""
        if self._is_secured:
            parts = [b"".join(parts)]
        self._transport.writelines(parts)

    def _tell(self, request: Request | None, reply: Any, took: float, body: bytes) -> None:
        """Have the log tell of a request, if it is to."""
        if request is not None and took >= 0:
            asked = self._asked_for(request, reply, took, request.reqId)
            if asked.outcome == DONE and body.startswith(FAILED):  # found out while it was encoded
                asked.outcome = code_in(body)
            self._server.access.tell(asked)

    def _asked_for(
        self, request: Request | None, reply: Any, took: float, id: RequestId | UnsetType
    ) -> Asked:
        peer = self._transport.get_extra_info("peername")
        is_unix = not isinstance(peer, tuple)
        return Asked(
            command=UNREAD if request is None else command_of(type(request)),
            carrier="unix" if is_unix else self._server.carrier,
            tenant=self._tenant_of(request),
            request=request,
            reply=reply,
            outcome=outcome_of(reply),
            ms=took * 1000,
            id=id,
            peer=None if is_unix else peer,
        )

    def _tenant_of(self, request: Request | None) -> str:
        named = UNSET if request is None else request.tenant
        return named if isinstance(named, str) else getattr(self.context, "tenant", DEFAULT)

    def _encoded(self, request: Request | None, packed: bool, reply: Any) -> bytes:
        if isinstance(reply, bytes):
            return reply
        assert request is not None
        try:
            return self._codec.encode(request, reply, self._who.context, packed=packed)
        except Exception:
            logger.exception("bug: the answer to %s could not be encoded", type(request).__name__)
            self._node.give_back(reply)
            error = Busy("the server met a bug of its own")
            return self._codec.encode_error(error, request.reqId, packed=packed)

    # Shutdown.

    def _close_if_done(self) -> None:
        if not self._in_flight and not self._lost:
            self._transport.close()

    def _refuse(self, error: ForebayError) -> None:
        """Send an error after all earlier replies, and close."""
        self._ending = True
        self._node.give_up(self)
        self._in_flight += 1
        self._put(self._number(), (None, False, self._codec.encode_error(error), TOLD))
        self._server.access.tell(self._asked_for(None, error, 0.0, UNSET))
        self.flush()

    def end(self) -> None:
        """Accept no more requests; close after the last reply."""
        self._ending = True
        self._close_if_done()

    def abort(self) -> None:
        if not self._lost:
            self._transport.abort()

    def check_stall(self, now: float) -> None:
        """Abort the connection if the client stalls: no progress in a frame, or in reading its replies.

        One that shows no token has as long as a stalled one.
        """
        stall_s = self._limits.stall_ms / 1000
        self._who.note_use()
        unsent, before = self._transport.get_write_buffer_size(), self._unsent
        if unsent < before or not before:
            self._went_at = now
        self._unsent = unsent
        writing = unsent > 0 and now - self._went_at > stall_s
        reading = self._began_at > 0 and (
            now - self._came_at > stall_s or now - self._began_at > FRAME_STALLS * stall_s
        )
        if reading or writing or self._who.is_late(now - stall_s):
            peer = self._transport.get_extra_info("peername") or "unix socket"
            logger.warning("connection of %s closed: stalled for %d ms", peer, self._limits.stall_ms)
            self.abort()
