"""One HTTP connection: uvicorn's protocol, with limits on what a client may send and how long it may take.

    requests ──> parser ──> pipeline ──> running ──> answer
                   │
                   └── what can't be read is refused behind the answers to what came before it

What comes behind requests that wait is held back unread, and what a client sends when it has had its last
answer is thrown away for a while: a socket that is closed with something unread in it takes the answer along.
"""

import asyncio
import logging
import secrets
import socket
import struct
import sys
from typing import Any, Protocol, cast

from httptools import HttpParserUpgrade, HttpRequestParser
from msgspec import Struct
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from forebay.core.errors import Busy, ForebayError, Invalid
from forebay.server.http.endpoint import Errors, Problem
from forebay.server.http.operation import encode
from forebay.server.http.push_stream import LINES
from forebay.server.http.request_body import header

logger = logging.getLogger("forebay.http")

BODY_STALLS = 10
"""A body that is no stream must be complete within this many times ``stall_ms``."""
PIECE_BYTES = 16 * 1024
"""Bytes that are looked at at a time: only so many requests can be pipelined before they wait unread."""
HELD_BYTES_MAX = 64 * 1024
"""Bytes of one connection that wait unread; with more, reading stops."""
LINGER_S = 2.0
"""How long what comes is still read, and thrown away, when the last answer has been given."""


class HttpLimits(Struct, frozen=True):
    """What one connection, and all of them, may take up."""

    body_bytes_max: int = 64 * 1024 * 1024
    """Bytes of a body that is no stream of lines, and of one line of a stream."""
    head_bytes_max: int = 64 * 1024
    """Bytes of a request line and headers."""
    connections_max: int = 10_000
    stall_ms: int = 30_000
    """How long a client may take to send more of what it began, or to read more of what it was sent."""
    idle_ms: int = 75_000
    """How long a connection may be idle between requests."""
    origins: tuple[str, ...] = ()
    """Origins whose pages may use this server from a browser; ``*`` is any."""
    webhooks_private: bool = False
    """Whether webhooks may lead to addresses that are not public."""
    webhook_secret: str = ""
    """What incoming webhooks must be signed with; empty if they need not be."""


class Listener(Protocol):
    """Whose connections they are."""

    limits: HttpLimits
    websockets: frozenset[str]
    """Paths where a connection may turn into a WebSocket; elsewhere it is asked as any other."""


class Connection(HttpToolsProtocol):
    """One client. Its requests may be pipelined; they are carried out and answered one after the other."""

    listener: Listener

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.running: RequestResponseCycle | None = None
        """The request that is carried out, or was last."""
        self.held = bytearray()
        """What came behind requests that wait for their turn; it is not looked at before they have it."""
        self.is_upgrade = False
        """Whether the request that came last turns the connection into a WebSocket."""
        self.offer_at: int | None = None
        """How far what came was read before an offer to speak another protocol; None if there is none."""
        self.refusal: tuple[int, ForebayError] | None = None
        """What to say behind the last answer: what came behind its request can't be read."""
        self.broken: tuple[int, Invalid] | None = None
        """Why the body of the request that is carried out does not go on: it will say so itself."""
        self.read_in_parts: RequestResponseCycle | None = None
        """The request that reads its body as it comes, if one does or did."""
        self.deaf = False
        """Nothing that comes is looked at any more."""
        self.eof = False
        """The client sends nothing more."""
        self.lingers_since = 0.0
        """When the last answer was given to a client that may still be sending; 0 if it was not."""
        self.began_at = 0.0
        """When the request began whose headers are not complete; 0 if there is none."""
        self.body_at = 0.0
        """When the body began that is not complete; 0 if there is none."""
        self.head_bytes = 0
        """Bytes that came since the last of a body: of headers, trailers, or sizes of chunks."""
        self.came_at = self.idle_since = self.loop.time()
        self.went_at = 0.0
        self.unsent = 0
        limit = self.listener.limits.connections_max
        if len(self.connections) > limit:
            self._say(503, Busy(f"the server takes at most {limit} connections"))
            self.transport.close()

    # What comes in.

    def data_received(self, data: bytes) -> None:
        if self.deaf or self.transport.is_closing():
            return
        self.came_at = self.loop.time()
        if self.pipeline or self.held:
            self.held += data
            if len(self.held) > HELD_BYTES_MAX:
                self.flow.pause_reading()
        elif len(data) <= PIECE_BYTES:
            self._take(data)
        else:
            self._take_pieces(data)

    def _take_pieces(self, data: bytes) -> None:
        """Look at some data as far as its requests can be carried out; the rest waits."""
        view = memoryview(data)
        for at in range(0, len(data), PIECE_BYTES):
            if self.pipeline:
                self.held += view[at:]
                self.flow.pause_reading()
                break
            self._take(bytes(view[at : at + PIECE_BYTES]))
            if self.deaf or self.transport.is_closing():
                break

    def _take(self, data: bytes) -> None:
        before = self.scope
        super().data_received(data)
        if self.offer_at is not None:
            self._pass_over_offer(data[self.offer_at :])
            return
        if not self.deaf and (self.began_at or self.body_at):
            self.head_bytes = len(data) + (self.head_bytes if self.scope is before else 0)
            if self.head_bytes > self.listener.limits.head_bytes_max:
                self._refuse_head()

    def _refuse_head(self) -> None:
        most = self.listener.limits.head_bytes_max
        self._fail(431, Invalid("headers", f"at most {most} bytes, the request line included"))

    def _pass_over_offer(self, rest: bytes) -> None:
        """Read a request again without its offer to speak another protocol, and what came behind its head.

        Java's client makes that offer with its first request, and goes on in HTTP/1.1 if it is passed over.
        The parser takes what is behind such a head, its body, for something of the other protocol.
        """
        self.offer_at = None
        headers = [(name, value) for name, value in self.headers if name != b"upgrade"]
        if len(headers) == len(self.headers):  # it asks for a tunnel
            self._fail(400, Invalid("request", "no CONNECT"))
            return
        first = b"%s %s HTTP/%s" % (
            self.parser.get_method(),
            self.url,
            self.parser.get_http_version().encode(),
        )
        lines = [first, *(name + b": " + value for name, value in headers), b"", b""]
        self.parser = HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._take(b"\r\n".join(lines))
        if rest and not self.deaf and not self.transport.is_closing():
            self._take(rest)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.began_at, self.head_bytes = self.came_at, 0

    def _has_too_large_head(self) -> bool:
        headers = sum(len(name) + len(value) + len(": \r\n") for name, value in self.headers)
        return len(self.url) + headers > self.listener.limits.head_bytes_max

    def on_headers_complete(self) -> None:
        if self.head_bytes and self._has_too_large_head():
            raise ValueError("the head is too large")
        self.is_upgrade = bool(self.listener.websockets) and self._wants_websocket()
        self.scope["forebay.connection"] = self  # type: ignore[typeddict-unknown-key]
        if self.parser.should_upgrade() and not self.is_upgrade:
            return
        super().on_headers_complete()
        if self.parser.should_upgrade():
            return
        self.cycle.transport = Joined(self.transport)  # type: ignore[assignment]
        self.began_at, self.body_at, self.head_bytes = 0.0, self.came_at, 0
        if self.pipeline:
            self.flow.resume_reading()  # or else it is not seen that the client goes away

    def on_body(self, body: bytes) -> None:
        self.head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self.body_at = 0.0
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def _wants_websocket(self) -> bool:
        path = self.url.partition(b"?")[0].decode("latin-1")
        return path in self.listener.websockets and not self.is_busy and self._get_upgrade() == b"websocket"

    def _should_upgrade(self) -> bool:
        return self.is_upgrade

    def _unsupported_upgrade_warning(self) -> None:
        offer = sys.exc_info()[1]
        assert isinstance(offer, HttpParserUpgrade)
        self.offer_at = offer.args[0]

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends nothing more. It may read its answers, but it does not wait nor get leases."""
        self.eof = True
        if self.lingers_since or not self.is_busy or self._is_incomplete(self.running):
            return False
        assert self.running is not None
        self._drop_incomplete()
        self.running.message_event.set()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        for cycle in (self.running, *(waiting for waiting, _ in self.pipeline)):
            if cycle is not None and not cycle.response_complete:
                _abandon(cycle)
        self.pipeline.clear()
        self.held.clear()
        super().connection_lost(exc)

    # What is carried out.

    @property
    def is_busy(self) -> bool:
        """Whether a request is carried out right now."""
        return self.running is not None and not self.running.response_complete

    @property
    def is_gone(self) -> bool:
        """Whether nobody is known to be there to whom something can be leased."""
        return self.eof or bool(self.lingers_since) or self.transport.is_closing()

    def _is_incomplete(self, cycle: RequestResponseCycle | None) -> bool:
        """Whether more of the body of a request is to come."""
        return bool(self.body_at) and self.cycle is cycle

    def _drop_incomplete(self) -> None:
        """Forget a request that will never be complete, if its turn has not come."""
        if self.pipeline and self._is_incomplete(self.pipeline[0][0]):
            self.pipeline.popleft()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self.running = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        self.idle_since = self.loop.time()
        if self.running is not None:
            cast(Joined, self.running.transport).flush()
        if self.lingers_since or self.transport.is_closing():
            return
        if self.broken is not None:
            self.linger()
            return
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif self.refusal is not None:
            self.refuse(*self.refusal)
            return
        elif self.eof:
            self.transport.close()
            return
        if self.held and not self.pipeline:
            held, self.held = bytes(self.held), bytearray()
            self._take_pieces(held)
        if len(self.held) <= HELD_BYTES_MAX:
            self.flow.resume_reading()

    def let_go(self) -> None:
        """Nobody is there to be answered."""
        if self.running is not None:
            _abandon(self.running)
        if not self.lingers_since:
            self.transport.close()

    # What is refused.

    def send_400_response(self, msg: str) -> None:
        if self.began_at and self._has_too_large_head():
            self._refuse_head()
        else:
            self._fail(400, Invalid("request", "HTTP/1.1, well-formed"))

    def _is_stream(self) -> bool:
        """Whether the body that is coming in is a stream of lines."""
        return header(dict(self.scope), b"content-type").lower().startswith(LINES)

    def _fail(self, status: int, error: Invalid) -> None:
        """Refuse what is coming in, behind the answers to what came before it."""
        self.deaf = True
        running = self.running
        if self._is_incomplete(running) and self.is_busy and self.read_in_parts is running:
            assert running is not None
            self.broken = (status, error)  # only the request knows how much of it was kept
            running.message_event.set()
            return
        if self._is_incomplete(self.running) or not self.is_busy:
            self.refuse(status, error)
        else:
            self._drop_incomplete()
            self.refusal = (status, error)
        self.began_at = self.body_at = 0.0

    def refuse(self, status: int, error: ForebayError) -> None:
        """Say why, and end the connection."""
        running = self.running
        if running is not None and self.is_busy:
            if running.response_started:
                self.transport.abort()
                return
            _abandon(running)
        if not self._is_answered():
            self._say(status, error)
        self.linger()

    def _is_answered(self) -> bool:
        """Whether the request that is coming in has been answered already."""
        return self._is_incomplete(self.running) and not self.is_busy

    def _say(self, status: int, error: ForebayError) -> None:
        body = encode(Errors(Problem(error.code, error.message, error.details)))
        retry = b"retry-after: 1\r\n" if status == 503 else b""
        name = secrets.token_hex(8).encode()
        self.transport.write(
            b"HTTP/1.1 %d \r\ncontent-type: application/json\r\n%scontent-length: %d\r\n"
            b"x-request-id: %s\r\nconnection: close\r\n\r\n%s" % (status, retry, len(body), name, body)
        )

    def linger(self) -> None:
        """End the connection, but read on for a while: who still sends might not see its answer otherwise."""
        if self.lingers_since or self.transport.is_closing():
            return
        self.deaf, self.lingers_since = True, self.loop.time()
        if self.eof:
            self.transport.close()
        else:
            self.transport.write_eof()
            self.flow.resume_reading()

    def stop_reading(self) -> bool:
        """Whether the request that is carried out has more to come; if so, its answer ends the connection."""
        if not self._is_incomplete(self.running):
            return False
        assert self.running is not None
        self.running.transport = Farewell(self)  # type: ignore[assignment]
        return True

    # Time.

    def check_stall(self, now: float) -> None:
        """Close the connection if the client has not done its part for too long."""
        limits = self.listener.limits
        stall_s = limits.stall_ms / 1000
        unsent, before = self.transport.get_write_buffer_size(), self.unsent
        if unsent < before or not before:
            self.went_at = now
        self.unsent = unsent
        if unsent and now - self.went_at > stall_s:
            self.cut("did not read its answer")
        elif self.lingers_since:
            if not unsent and now - self.lingers_since > LINGER_S:
                self.transport.abort()
        elif self.broken is not None and self.is_busy:
            pass
        elif self.body_at and self._body_stalls(now, stall_s):
            self._fail(408, Invalid("body", f"complete, or more of it within {limits.stall_ms} ms"))
        elif self.is_busy:
            pass
        elif self.began_at and now - self.began_at > stall_s:
            self._fail(408, Invalid("request", f"complete within {limits.stall_ms} ms"))
        elif now - self.idle_since > limits.idle_ms / 1000 and not self.began_at:
            self.transport.close()

    def _body_stalls(self, now: float, stall_s: float) -> bool:
        """Whether the client takes too long with a body, if it is up to the client."""
        if self.flow.read_paused or self.held:
            return False
        if now - self.came_at > stall_s:
            return True
        if self._is_answered():
            return now - self.idle_since > stall_s
        return not self._is_stream() and now - self.body_at > BODY_STALLS * stall_s

    def cut(self, why: str) -> None:
        """End the connection with all that is under way, in the buffers of the system, too."""
        logger.warning("connection of %s closed: it %s", self.client, why)
        sock = self.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()


def _abandon(cycle: RequestResponseCycle) -> None:
    """Have a request end without an answer."""
    cycle.disconnected, cycle.waiting_for_100_continue = True, False
    cycle.message_event.set()


CONTINUE = b"HTTP/1.1 100 "


class Joined:
    """A transport that sends the head of an answer along with what comes first behind it, in one call."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head: bytes | None = None
        self._begun = False
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        if self._begun:
            self._transport.write(data)
        elif self._head is not None:
            self._begun = True
            self._transport.write(self._head + data)
        elif data.startswith(CONTINUE):
            self._transport.write(data)
        else:
            self._head = data

    def flush(self) -> None:
        """There is nothing behind the head."""
        if self._head is not None and not self._begun:
            self.write(b"")

    def close(self) -> None:
        self.flush()
        self._transport.close()


class Farewell(Joined):
    """One whose end waits until the client had time to read."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection.transport)
        self._end = connection.linger

    def close(self) -> None:
        self.flush()
        self._end()
