"""One HTTP connection: uvicorn's protocol, with limits on what a client may send and how long it may take.

    requests ──> parser ──> pipeline ──> running ──> reply
                   │
                   └── input that can't be parsed is refused after the replies to the requests before it

Data behind requests that wait is held back unparsed. After the last reply, data that still arrives is read
and dropped for a while: closing a socket with unread data resets the connection, and the client may lose the
reply.
"""

import asyncio
import logging
import secrets
import socket
import struct
import sys
from collections.abc import Container
from typing import Any, Protocol, cast

from httptools import HttpParserUpgrade, HttpRequestParser
from msgspec import Struct
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from forebay.core.api.principals import Principal
from forebay.core.errors import Busy, ForebayError, Invalid
from forebay.server.access_log import SLOW_MS
from forebay.server.http.headers import header
from forebay.server.http.push_stream import LINES

logger = logging.getLogger("forebay.http")

BODY_STALLS = 10
"""A body that is not a stream must be complete within this many times ``stall_ms``."""
PIECE_BYTES = 16 * 1024
"""Bytes parsed at a time: bounds how many pipelined requests are parsed before the rest is held back."""
HELD_BYTES_MAX = 64 * 1024
"""Bytes of one connection held back unparsed; beyond this, reading pauses."""
LINGER_S = 2.0
"""How long data is still read and dropped after the last reply."""


class HttpLimits(Struct, frozen=True):
    """Limits of one connection and of all, and settings of the HTTP listener."""

    body_bytes_max: int = 64 * 1024 * 1024
    """Bytes of a body that is not a stream of lines, and of one line of a stream."""
    head_bytes_max: int = 64 * 1024
    """Bytes of a request line and its headers."""
    connections_max: int = 10_000
    stall_ms: int = 30_000
    """How long a client may pause within a request, or in reading its reply."""
    idle_ms: int = 75_000
    """How long a connection may be idle between requests."""
    origins: tuple[str, ...] = ()
    """Origins whose pages may use this server from a browser; ``*`` allows all."""
    webhooks_private: bool = False
    """Whether webhooks may post to addresses that are not public."""
    slow_ms: int = SLOW_MS
    """How long a request may take before the log tells of it, on any listener."""
    webhook_secret: str = ""
    """Secret that incoming webhooks must be signed with; empty if they need no signature."""
    metrics_queues_max: int = 1_000
    """Queues with metrics of their own; those of all others are summed."""


class Listener(Protocol):
    """The listener that a connection belongs to."""

    limits: HttpLimits
    websockets: Container[str]
    """Paths that accept an upgrade to WebSocket; elsewhere the upgrade is ignored."""

    def error_body(self, error: ForebayError) -> bytes: ...

    def certified(self, transport: asyncio.BaseTransport) -> Principal | None:
        """Return the principal of the certificate that a client showed."""
        ...


class Connection(HttpToolsProtocol):
    """One client connection. Pipelined requests are carried out and answered one after the other."""

    listener: Listener

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.is_secured = transport.get_extra_info("sslcontext") is not None
        self.certified = self.listener.certified(transport)
        """The principal of the client's certificate."""
        self.running: RequestResponseCycle | None = None
        """The request being carried out, or the last one."""
        self.held = bytearray()
        """Data behind requests that wait for their turn; not parsed before they are answered."""
        self.is_upgrade = False
        """Whether the last request upgrades the connection to WebSocket."""
        self.offer_at: int | None = None
        """Bytes parsed up to the end of a head with an Upgrade that is ignored; None if there is none."""
        self.refusal: tuple[int, ForebayError] | None = None
        """Error to send after the last reply: the data behind its request can't be parsed."""
        self.broken: tuple[int, Invalid] | None = None
        """Why the body of the running request can't continue; the request itself reports it."""
        self.read_in_parts: RequestResponseCycle | None = None
        """The request that reads its body in parts, if one does or did."""
        self.deaf = False
        """Received data is ignored from now on."""
        self.eof = False
        """The client has closed its sending side."""
        self.lingers_since = 0.0
        """When the last reply was sent to a client that may still be sending; 0 if it was not."""
        self.began_at = 0.0
        """When the request began whose head is incomplete; 0 if there is none."""
        self.body_at = 0.0
        """When the body began that is incomplete; 0 if there is none."""
        self.head_bytes = 0
        """Bytes since the last part of a body: of headers, trailers, or chunk sizes."""
        self.came_at = self.idle_since = self.loop.time()
        self.went_at = 0.0
        self.unsent = 0
        limit = self.listener.limits.connections_max
        if len(self.connections) > limit:
            self._say(503, Busy(f"the server takes at most {limit} connections"))
            self.transport.close()

    # Incoming data.

    def data_received(self, data: bytes) -> None:
        if self.deaf or self.transport.is_closing():
            return
        self.came_at = self.loop.time()
        # The parser would start any number of pipelined requests: data behind a waiting one stays unparsed.
        if self.pipeline or self.held:
            self.held += data
            if len(self.held) > HELD_BYTES_MAX:
                self.flow.pause_reading()
        elif len(data) <= PIECE_BYTES:
            self._take(data)
        else:
            self._take_pieces(data)

    def _take_pieces(self, data: bytes) -> None:
        """Parse data until a request has to wait; hold back the rest."""
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
        # The parser has no limit of its own on heads, trailers and chunk sizes.
        if not self.deaf and (self.began_at or self.body_at):
            self.head_bytes = len(data) + (self.head_bytes if self.scope is before else 0)
            if self.head_bytes > self.listener.limits.head_bytes_max:
                self._refuse_head()

    def _refuse_head(self) -> None:
        most = self.listener.limits.head_bytes_max
        self._fail(431, Invalid("headers", f"at most {most} bytes, the request line included"))

    def _pass_over_offer(self, rest: bytes) -> None:
        """Parse a request again without its Upgrade header, then the data behind its head.

        Java's client offers HTTP/2 in its first request and continues in HTTP/1.1 if the offer is ignored.
        The parser takes the data behind such a head, the body, for the other protocol.
        """
        self.offer_at = None
        headers = [(name, value) for name, value in self.headers if name != b"upgrade"]
        if len(headers) == len(self.headers):  # it is a CONNECT
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
            self.flow.resume_reading()  # while reading is paused, a disconnect goes unnoticed

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
        """Let a client that sends nothing more read its replies; it waits for nothing and gets no leases."""
        self.eof = True
        if self.is_secured:  # over TLS there is no half of a connection
            return False
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

    # Requests.

    @property
    def is_busy(self) -> bool:
        """Whether a request is being carried out."""
        return self.running is not None and not self.running.response_complete

    @property
    def is_gone(self) -> bool:
        """Whether the client has gone, or may have: then nothing must be leased to it."""
        return self.eof or bool(self.lingers_since) or self.transport.is_closing()

    def _is_incomplete(self, cycle: RequestResponseCycle | None) -> bool:
        """Return whether more of the body of a request is to arrive."""
        return bool(self.body_at) and self.cycle is cycle

    def _drop_incomplete(self) -> None:
        """Drop a waiting request that will never be complete."""
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
        """Abandon the running request: its client has gone."""
        if self.running is not None:
            _abandon(self.running)
        if not self.lingers_since:
            self.transport.close()

    # Refusals.

    def send_400_response(self, msg: str) -> None:
        if self.began_at and self._has_too_large_head():
            self._refuse_head()
        else:
            self._fail(400, Invalid("request", "HTTP/1.1, well-formed"))

    def _is_stream(self) -> bool:
        """Return whether the body being received is a stream of lines."""
        return header(dict(self.scope), b"content-type").lower().startswith(LINES)

    def _fail(self, status: int, error: Invalid) -> None:
        """Refuse the data being received, after the replies to the requests before it."""
        self.deaf = True
        running = self.running
        if self._is_incomplete(running) and self.is_busy and self.read_in_parts is running:
            assert running is not None
            self.broken = (status, error)  # only the request knows how many lines were pushed
            running.message_event.set()
            return
        if self._is_incomplete(self.running) or not self.is_busy:
            self.refuse(status, error)
        else:
            self._drop_incomplete()
            self.refusal = (status, error)
        self.began_at = self.body_at = 0.0

    def refuse(self, status: int, error: ForebayError) -> None:
        """Send an error, and end the connection."""
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
        """Return whether the request being received has been answered already."""
        return self._is_incomplete(self.running) and not self.is_busy

    def _say(self, status: int, error: ForebayError) -> None:
        body = self.listener.error_body(error)
        retry = b"retry-after: 1\r\n" if status == 503 else b""
        name = secrets.token_hex(8).encode()
        self.transport.write(
            b"HTTP/1.1 %d \r\ncontent-type: application/json\r\n%scontent-length: %d\r\n"
            b"x-request-id: %s\r\nconnection: close\r\n\r\n%s" % (status, retry, len(body), name, body)
        )

    def linger(self) -> None:
        """End the connection, but read on for LINGER_S: a client that is still sending must see its reply."""
        if self.lingers_since or self.transport.is_closing():
            return
        self.deaf, self.lingers_since = True, self.loop.time()
        if self.eof or self.is_secured:  # TLS reads on by itself until the client closes
            self.transport.close()
        else:
            self.transport.write_eof()
            self.flow.resume_reading()

    def stop_reading(self) -> bool:
        """Return whether the running request has more to arrive; if so, its reply ends the connection."""
        if not self._is_incomplete(self.running):
            return False
        assert self.running is not None
        self.running.transport = Farewell(self)  # type: ignore[assignment]
        return True

    # Timeouts.

    def check_stall(self, now: float) -> None:
        """Close the connection if the client stalls."""
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
        """Return whether the client takes too long with a body, while the server is ready to read it."""
        if self.flow.read_paused or self.held:
            return False
        if now - self.came_at > stall_s:
            return True
        if self._is_answered():
            return now - self.idle_since > stall_s
        return not self._is_stream() and now - self.body_at > BODY_STALLS * stall_s

    def cut(self, why: str) -> None:
        """Abort the connection and discard its unsent data, including what the kernel has buffered."""
        logger.warning("connection of %s closed: it %s", self.client, why)
        sock = self.transport.get_extra_info("socket")
        # A linger time of 0 sends a reset instead of the rest of the data.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()


def _abandon(cycle: RequestResponseCycle) -> None:
    """End a request without a reply."""
    cycle.disconnected, cycle.waiting_for_100_continue = True, False
    cycle.message_event.set()


CONTINUE = b"HTTP/1.1 100 "


class Joined:
    """A transport that sends the head of a reply and the first part of its body in one write."""

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
        """Send a head that no body follows."""
        if self._head is not None and not self._begun:
            self.write(b"")

    def close(self) -> None:
        self.flush()
        self._transport.close()


class Farewell(Joined):
    """A transport whose close lingers, so that a client that is still sending can read the reply."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection.transport)
        self._end = connection.linger

    def close(self) -> None:
        self.flush()
        self._end()
