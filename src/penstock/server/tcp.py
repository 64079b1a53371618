"""The TCP and Unix socket listeners: frames in, frames out.

Requests may be pipelined. A request with a ``reqId`` is answered as soon as its answer is there; those
without one are answered in the order they came, so a waiting pop holds back the answers behind it (they are
carried out all the same).
"""

import asyncio
import logging
from asyncio import AbstractEventLoop
from typing import cast

from msgspec import UNSET, Struct

from penstock.broker.node import Node
from penstock.core.commands import Reply
from penstock.core.errors import Busy, Invalid, PenstockError, Unsupported
from penstock.core.model import DEFAULT
from penstock.server.dialects import flashq
from penstock.server.framing import Frames, Lost, TooLong, frame
from penstock.server.payloads import check_text

logger = logging.getLogger("penstock.tcp")

STALL_CHECK_S = 1.0
"""How often stalled clients are looked for."""
FRAME_STALLS = 10
"""A frame must be complete within this many times ``stall_ms``, however steadily it dribbles in."""


class TcpLimits(Struct, frozen=True):
    """What one connection, and all of them, may take up."""

    frame_bytes_max: int = 64 * 1024 * 1024
    """Bytes of one frame's body."""
    connections_max: int = 10_000
    """Connections at a time; one more is told ``busy`` and closed."""
    in_flight_max: int = 10_000
    """Requests of one connection that wait for their answers; reading stops until some have left."""
    turn_max: int = 256
    """Requests of one connection carried out before others get their turn."""
    turn_ms: int = 5
    """How long they may take together; the one that crosses the line is the last."""
    buffer_bytes_max: int = 1024 * 1024
    """Unsent bytes of one connection before reading from it stops."""
    stall_ms: int = 30_000
    """How long a client may take to finish a frame it began, or to read what it was sent."""


Ticket = tuple[flashq.Request, int]
"""A request, and its number among those answered in order (-1 if it has a reqId)."""


class Connection(asyncio.Protocol):
    """One client."""

    def __init__(self, server: "TcpServer") -> None:
        self._server = server
        self._node = server.node
        self._limits = server.limits
        self._frames = Frames(server.limits.frame_bytes_max)
        self._transport: asyncio.Transport
        self._out: list[bytes] = []
        self._in_flight = 0
        """Requests the node has and has not answered."""
        self._asked = 0
        """Requests without a reqId so far."""
        self._sent = 0
        """How many of them have been answered."""
        self._held: dict[int, bytes] = {}
        """Answers that are there before an earlier one is."""
        self._write_paused = False
        self._read_paused = False
        self._pump_planned = False
        self._ending = False
        """No more requests are taken; the connection closes with its last answer."""
        self._closed = False
        self._began_at = 0.0
        """When the client began the frame it has not finished; 0 if it owes nothing."""
        self._moved_at = 0.0
        """When bytes last moved while one side waited for the other."""
        self.context = flashq.Context(DEFAULT, server.next_owner(), self._node.durability)

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._limits.buffer_bytes_max)
        if not self._server.admit(self):
            self._refuse(Busy(f"the server takes at most {self._limits.connections_max} connections"))

    def data_received(self, data: bytes) -> None:
        if self._ending:
            return
        if not self._pump_planned and not self._read_paused:
            body = self._frames.whole(data)
            if body is not None:
                self._request(body)
                if self._blocked():
                    self._read_or_not(paused=True)
                return
        self._frames.feed(data)
        if not self._pump_planned:
            self._pump()

    def eof_received(self) -> bool:
        """The client sends nothing more: nobody waits for it, and what is in flight is answered first."""
        self._ending = True
        self._node.give_up(self)
        self._close_if_done()
        return True

    def connection_lost(self, error: Exception | None) -> None:
        self._ending = self._closed = True
        self._node.forget(self)
        self._server.gone(self)

    def pause_writing(self) -> None:
        self._write_paused = True
        self._moved_at = self._server.loop.time()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._plan_pump()

    # Requests.

    def _blocked(self) -> bool:
        return self._write_paused or self._in_flight >= self._limits.in_flight_max

    def _pump(self) -> None:
        """Carry out the frames that are complete: a turn's worth, and no more than can be answered."""
        self._pump_planned = False
        left = self._limits.turn_max
        over_at = self._server.loop.time() + self._limits.turn_ms / 1000
        frames = iter(self._frames)
        try:
            while left and not self._ending and not self._blocked():
                body = next(frames, None)
                if body is None:
                    break
                self._request(body)
                left = left - 1 if self._server.loop.time() < over_at else 0
        except Lost:
            accepted = (
                f"a 4-byte big-endian length up to {self._limits.frame_bytes_max}, then that many bytes"
            )
            self._refuse(Invalid("frame", accepted))
            return
        finally:
            frames.close()
        if not left:
            self._plan_pump()
        self._read_or_not(not left or self._blocked())

    def _plan_pump(self) -> None:
        if not self._pump_planned and not self._closed:
            self._pump_planned = True
            self._server.loop.call_soon(self._pump)

    def _read_or_not(self, paused: bool) -> None:
        if paused != self._read_paused and not self._closed:
            self._read_paused = paused
            if paused:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()
        if not paused and self._frames.partial:
            self._moved_at = self._server.loop.time()
            self._began_at = self._began_at or self._moved_at
        else:
            self._began_at = 0.0

    def _request(self, body: bytes | TooLong) -> None:
        try:
            if isinstance(body, TooLong):
                limit = self._limits.frame_bytes_max
                raise Invalid("frame", f"at most {limit} bytes; this one has {body.length} and was skipped")
            if not body.startswith(b"{"):
                raise _not_json(body)
            if not body.isascii():
                check_text(body)
            request = flashq.decode(body)
            command = request.command(self.context)
        except PenstockError as error:
            self._answer_at_once(body, error)
            return
        number = -1
        if request.reqId is UNSET:
            number = self._asked
            self._asked = number + 1
        self._in_flight += 1
        self._node.ask(self, (request, number), command)

    def _answer_at_once(self, body: bytes | TooLong, error: PenstockError) -> None:
        """A request that never reached the core: answered in its turn."""
        request_id = UNSET if isinstance(body, TooLong) else flashq.request_id(body)
        number = -1
        if request_id is UNSET:
            number = self._asked
            self._asked = number + 1
        self._send(number, flashq.encode_error(error, request_id))
        self.flush()

    # Answers: called by the node.

    def answered(self, ticket: object, reply: Reply | PenstockError) -> None:
        request, number = cast(Ticket, ticket)
        self._in_flight -= 1
        if self._closed:
            return
        try:
            body = flashq.encode(request, reply, self.context)
        except Exception:
            logger.exception("bug: the answer to %s could not be encoded", type(request).__name__)
            body = flashq.encode_error(Busy("the server met a bug of its own"), request.reqId)
        self._send(number, body)

    def _send(self, number: int, body: bytes) -> None:
        """Put an answer where ``flush`` takes it, in order if it has a number."""
        if number < 0:
            self._out += frame(body)
        elif number != self._sent:
            self._held[number] = body
        else:
            self._out += frame(body)
            self._sent = number + 1
            while self._held and self._sent in self._held:
                self._out += frame(self._held.pop(self._sent))
                self._sent += 1

    def flush(self) -> None:
        if self._out and not self._closed:
            out, self._out = self._out, []
            self._transport.writelines(out)
        if self._read_paused and not self._blocked():
            self._plan_pump()
        if self._ending:
            self._close_if_done()

    # The end.

    def _close_if_done(self) -> None:
        if not self._in_flight and not self._closed:
            self._closed = True
            self._transport.close()

    def _refuse(self, error: PenstockError) -> None:
        """Say why, and close once everything before it has been answered."""
        self._send(-1, flashq.encode_error(error))
        self._ending = True
        self.flush()

    def end(self) -> None:
        """Take no more requests; close with the last answer."""
        self._ending = True
        self._close_if_done()

    def abort(self) -> None:
        if not self._closed:
            self._transport.abort()

    def check_stall(self, now: float) -> None:
        """Close the connection if the client has not done its part for too long."""
        stall_s = self._limits.stall_ms / 1000
        if self._write_paused:
            stalled = now - self._moved_at > stall_s
        elif self._began_at:
            stalled = now - self._moved_at > stall_s or now - self._began_at > FRAME_STALLS * stall_s
        else:
            stalled = False
        if stalled:
            logger.warning("connection closed: the client stalled for %d ms", self._limits.stall_ms)
            self.abort()


def _not_json(body: bytes) -> PenstockError:
    if not body:
        return Invalid("frame", "one JSON object; this one is empty")
    return Unsupported("a frame that does not begin with { is MessagePack, which is not supported yet")


class TcpServer:
    """Every connection of every socket, TCP or Unix."""

    def __init__(self, node: Node, loop: AbstractEventLoop, limits: TcpLimits) -> None:
        self.node = node
        self.loop = loop
        self.limits = limits
        self._connections: dict[Connection, None] = {}
        self._owners = 0
        self._listeners: list[asyncio.Server] = []
        self._check = loop.call_later(STALL_CHECK_S, self._check_stalls)
        self._empty: asyncio.Future[None] | None = None

    async def listen_tcp(self, host: str, port: int) -> str:
        """Accept TCP connections; the address in use."""
        listener = await self.loop.create_server(lambda: Connection(self), host, port)
        self._listeners.append(listener)
        bound = listener.sockets[0].getsockname()
        return f"[{bound[0]}]:{bound[1]}" if ":" in bound[0] else f"{bound[0]}:{bound[1]}"

    async def listen_unix(self, path: str) -> str:
        """Accept connections on a Unix socket; its path."""
        listener = await self.loop.create_unix_server(lambda: Connection(self), path)
        self._listeners.append(listener)
        return path

    def next_owner(self) -> int:
        self._owners += 1
        return self._owners

    def admit(self, connection: Connection) -> bool:
        """Whether there is room for one more."""
        self._connections[connection] = None
        return len(self._connections) <= self.limits.connections_max

    def gone(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        if not self._connections and self._empty is not None and not self._empty.done():
            self._empty.set_result(None)

    def stop_accepting(self) -> None:
        for listener in self._listeners:
            listener.close()

    async def close(self, grace_s: float) -> None:
        """End every connection with its last answer; those that take longer are cut."""
        self._check.cancel()
        for connection in list(self._connections):
            connection.end()
        if self._connections:
            self._empty = self.loop.create_future()
            cut = self.loop.call_later(grace_s, self._abort_all)
            await self._empty
            cut.cancel()

    def _abort_all(self) -> None:
        for connection in list(self._connections):
            connection.abort()

    def _check_stalls(self) -> None:
        now = self.loop.time()
        for connection in list(self._connections):
            connection.check_stall(now)
        self._check = self.loop.call_later(STALL_CHECK_S, self._check_stalls)
