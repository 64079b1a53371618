"""What stands before a listener and speaks TLS: what comes through it goes on without."""

import asyncio
import ssl
import threading
from contextlib import suppress

from tests.serving import PATIENCE_S

CHUNK = 1 << 16
TURNS = 10
"""Turns of the event loop in which all connections that were aborted are closed."""


class TlsFront:
    """Listens on a port of its own, and connects to ``target``, HOST:PORT, for each connection that comes."""

    def __init__(self, target: str, context: ssl.SSLContext) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._context = context
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._open: set[asyncio.Task[None]] = set()
        self.connections = 0
        """How many have passed its handshake."""
        self._ended = threading.Semaphore(0)

    def __enter__(self) -> "TlsFront":
        self._thread.start()
        starting = asyncio.start_server(self._join, "127.0.0.1", 0, ssl=self._context)
        self._server = asyncio.run_coroutine_threadsafe(starting, self._loop).result(PATIENCE_S)
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.address = f"tls://127.0.0.1:{self.port}"
        self.url = f"https://127.0.0.1:{self.port}"
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(PATIENCE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    async def _stop(self) -> None:
        self._server.close()
        while self._open:
            for each in list(self._open):
                each.cancel()
            await asyncio.gather(*self._open, return_exceptions=True)
        for _ in range(TURNS):
            await asyncio.sleep(0)

    def cut_all(self) -> None:
        """End every connection there is."""

        async def cut() -> None:
            for each in list(self._open):
                each.cancel()
            await asyncio.gather(*self._open, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(cut(), self._loop).result(PATIENCE_S)

    def wait_for_end(self) -> None:
        """Wait until a client has ended a connection, and the server has, too."""
        assert self._ended.acquire(timeout=PATIENCE_S)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        self.connections += 1
        ends, ways = [writer], list[asyncio.Future[None]]()
        try:
            their_reader, their_writer = await asyncio.open_connection(*self._target)
            ends.append(their_writer)
            ways += [
                asyncio.ensure_future(_carry(reader, their_writer)),
                asyncio.ensure_future(_carry(their_reader, writer)),
            ]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            if ways[0].done() and their_writer.can_write_eof():  # its server ends what waits, then closes
                their_writer.write_eof()
                await asyncio.wait(ways)
                self._ended.release()
        except asyncio.CancelledError:
            pass  # cut: not passed on, or the loop would be told of a connection without an end
        finally:
            for way in ways:
                way.cancel()
            for each in ends:
                each.transport.abort()
            self._open.discard(task)
            await asyncio.gather(*ways, return_exceptions=True)


async def _carry(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(CHUNK):
            if not target.is_closing():  # it has gone: what is said to it is heard by nobody
                target.write(data)
                await target.drain()
