"""One WebSocket: uvicorn's protocol, but slow readers are cut off, and a shutdown is announced."""

import asyncio
import logging
from typing import Any

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from forebay.server.http.connection import Listener

logger = logging.getLogger("forebay.http")


class Socket(WebSocketsSansIOProtocol):
    """One WebSocket client."""

    listener: Listener

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.certified = self.listener.certified(transport)
        """The principal of the client's certificate."""
        self.went_at = 0.0
        self.unsent = 0

    def handle_connect(self, event: Any) -> None:
        super().handle_connect(event)
        if not self.close_sent:
            self.scope["forebay.connection"] = self  # type: ignore[typeddict-unknown-key]

    @property
    def is_gone(self) -> bool:
        return self.transport.is_closing()

    async def send(self, message: Any) -> None:
        await self.writable.wait()
        if self.close_sent:
            raise ClientDisconnected
        await super().send(message)

    def shutdown(self) -> None:
        """Close with status 1001: the server shuts down."""
        if self.handshake_complete and not self.close_sent:
            self.stop_keepalive()
            self.conn.send_close(1001, "the server is stopping")
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
            self.queue.put_nowait({"type": "websocket.disconnect", "code": 1001})
            self.transport.close()
        else:
            super().shutdown()

    def check_stall(self, now: float) -> None:
        """Abort the connection if the client stops reading."""
        unsent, before = self.transport.get_write_buffer_size(), self.unsent
        if unsent < before or not before:
            self.went_at = now
        self.unsent = unsent
        if unsent and now - self.went_at > self.listener.limits.stall_ms / 1000:
            self.cut("did not read its events")

    def cut(self, why: str) -> None:
        logger.warning("connection of %s closed: it %s", self.client, why)
        self.transport.abort()
