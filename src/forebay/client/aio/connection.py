"""Connections to a server, for asyncio.

Requests share a connection, and responses come in any order. A long poll has a connection of its own: when it
is cancelled, that connection is half closed, and the server then responds at once. The token goes first on
each connection, and nothing waits for the answer to it.
"""

import asyncio
from asyncio import AbstractEventLoop, Future
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol, cast

from forebay.client.access import NO_ACCESS, Access, tls_problem
from forebay.client.address import given_up, is_web, lost, missing, shown, silent, stranger, where
from forebay.client.errors import Disconnected
from forebay.client.outcome import Outcome, outcome
from forebay.client.reach import Reach
from forebay.core.errors import ForebayError
from forebay.wire.framing import AnswerFrames, Foreign, framed

if TYPE_CHECKING:
    from ssl import SSLContext

Unclaimed = Callable[[bytes], bytes | None]
"""Returns the request that releases what an unclaimed response has leased, if any."""
CLOSE_S = 1.0
"""How long ``close`` waits for such releases; without one, the lease expires by itself."""

UNDER_WAY_S = 0.1
"""How long a response that may be on its way is waited for where a connection can't be half closed."""
GREETING = 0
"""Number of the request that shows the token; the others count from 1."""

sleep = asyncio.sleep


def now() -> float:
    return asyncio.get_running_loop().time()


class Link(Protocol):
    """Carries requests to a server, and responses back."""

    async def ask(
        self,
        body: bytes,
        wait_s: float = 0.0,
        unclaimed: Unclaimed | None = None,
        timeout_s: float | None = None,
    ) -> bytes:
        """Return the response to a request, which may long-poll. Raise the server's error.

        ``timeout_s`` is the timeout of this response, if it differs from the link's.
        """
        ...

    async def until_returned(self) -> None:
        """Wait until the leases of cancelled requests are released, for ``CLOSE_S`` at most."""
        ...

    async def close(self) -> None: ...


def connect(server: str, timeout_s: float, access: Access = NO_ACCESS) -> Link:
    """Return the link to a server; connections are opened when needed."""
    if is_web(server):
        from forebay.client.web import AsyncWeb

        return AsyncWeb(server, timeout_s, access)
    return TcpLink(server, timeout_s, access)


class Returning:
    """Releases of leases in the background."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def add(self, returned: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(returned)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, not raised: the lease expires by itself

    async def wait(self, timeout_s: float) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)


class Connection(asyncio.Protocol):
    """One connection over TCP, TLS or a Unix socket."""

    def __init__(self, loop: AbstractEventLoop, server: str, greeting: bytes = b"") -> None:
        """``greeting`` is the request that is sent before all others, if there is one."""
        self._loop = loop
        self._server = server
        self._greeting = greeting
        self._is_greeted = not greeting
        """Whether the server has taken the greeting."""
        self._frames = AnswerFrames()
        self._numbers = count(1)
        self._answers: dict[int, Future[bytes]] = {}
        self._sizes: dict[int, int] = {}
        """Bytes of each request without a response."""
        self._was_answered = False
        self._late: dict[int, Callable[[bytes], None]] = {}
        """Handlers of responses whose request was cancelled."""
        self.awaited = 0
        """Requests whose caller still waits. Others without a response were cancelled, or timed out."""
        self.quiet_since = loop.time()
        """Since when no response has come to a request whose caller waits."""
        self._transport: asyncio.Transport
        self._writable: Future[None] | None = None
        self.is_lost = False
        self._refusal: ForebayError | None = None
        """Why nothing can be asked here: something else than a Forebay server answered (some speak before
        they are asked), or the server does not take the token."""
        self.over: Future[None] = loop.create_future()
        """Resolved when the connection is closed."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclasses
        if self._greeting:
            self._transport.write(framed(self._greeting, GREETING))

    def data_received(self, data: bytes) -> None:
        self.quiet_since = self._loop.time()
        try:
            for body in self._frames.feed(data):
                self._answer(body)
        except Foreign as error:
            self._refuse(stranger(self._server, error.begins))
        except ValueError as error:
            self.abort(str(error))

    def _answer(self, body: bytes) -> None:
        said = outcome(body)
        if not self._is_greeted and said.reqId == GREETING:
            self._is_greeted = True
            if not said.ok:  # also if the server took nothing at all, as one with too many connections
                self._refuse(said.problem())
            return
        future = self._answers.pop(said.reqId, None)
        if future is None:
            self._unaddressed(said)
            return
        self._was_answered = True
        late = self._late.pop(said.reqId, None)
        self._sizes.pop(said.reqId, None)
        if future.done():
            if said.ok and late is not None:
                late(body)
        elif said.ok:
            future.set_result(body)
        else:
            future.set_exception(said.problem())

    def _unaddressed(self, said: Outcome) -> None:
        """Handle a response without a request id: about the connection, or a frame that could not be read."""
        if said.code == "invalid" and self._answers:
            # A frame that was too large to be read has no id in the response: it must be the longest one.
            longest = max(self._answers, key=self._sizes.__getitem__)
            future = self._answers.pop(longest)
            self._sizes.pop(longest)
            self._late.pop(longest, None)
            if not future.done():
                future.set_exception(said.problem())
        elif said.code == "busy" and not self._was_answered:
            self._fail(said.problem())  # too many connections: nothing was read
        elif said.code == "denied":
            self._refuse(said.problem())  # the token is good no more
        else:
            self.abort(
                (not said.ok and said.refusal.message)
                or f"the server at {shown(self._server)} answered something that nobody asked"
            )

    def _refuse(self, error: ForebayError) -> None:
        self._refusal = error
        self._fail(error)
        self.abort("")

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        refused = tls_problem(self._server, error)
        if refused is not None:
            self._refusal = refused
        is_new = not self._was_answered
        self._fail(refused or lost(self._server, error or "the server closed it", is_new=is_new))
        if not self.over.done():
            self.over.set_result(None)

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    def _fail(self, error: ForebayError) -> None:
        answers, self._answers = self._answers, {}
        for future in answers.values():
            if not future.done():
                future.set_exception(error)
        self.resume_writing()

    async def ask(
        self, body: bytes, timeout_s: float, unclaimed: Callable[[bytes], None] | None = None
    ) -> bytes:
        """Return the response to a request. Raise ``TimeoutError`` if it takes longer.

        Other requests go on then. A response that comes late finds its number, and is dropped.
        """
        if not self.awaited:
            self.quiet_since = self._loop.time()
        self.awaited += 1
        try:
            async with asyncio.timeout(timeout_s):
                while self._writable is not None:
                    await asyncio.wait([self._writable])
                if self.is_lost:
                    raise self._refusal or Disconnected(
                        f"the connection to {shown(self._server)} was lost", sent=False
                    )
                return await self._asked(body, unclaimed)
        finally:
            self.awaited -= 1

    async def _asked(self, body: bytes, unclaimed: Callable[[bytes], None] | None) -> bytes:
        number = next(self._numbers)
        future: Future[bytes] = self._loop.create_future()
        self._answers[number] = future
        self._sizes[number] = len(body)
        if unclaimed is not None:
            self._late[number] = unclaimed
        self._transport.write(framed(body, number))
        try:
            return await future
        except asyncio.CancelledError:
            if unclaimed is not None and not future.cancelled() and future.exception() is None:
                unclaimed(future.result())  # the response came in the same moment
            raise

    def finish(self) -> None:
        """Half-close: the server completes the running requests, then closes the connection."""
        if self.is_lost:
            return
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._loop.call_later(UNDER_WAY_S, self._close)

    def _close(self) -> None:
        """Say goodbye, which is all that TLS has: what is answered after it is lost, and its lease expires.

        The connection is over when the server has said the same, and so waits for nobody here any more.
        """
        self.is_lost = True
        self._transport.close()

    def abort(self, why: str) -> None:
        self.is_lost = True
        self._transport.abort()
        if why:
            self._fail(Disconnected(why))


class TcpLink:
    """A server that is reached over TCP, TLS or a Unix socket."""

    def __init__(self, server: str, timeout_s: float, access: Access = NO_ACCESS) -> None:
        self._server = server
        self._place = where(server)
        self._tls: SSLContext | None = access.tls(server)
        self._greeting = access.greeting()
        self._timeout_s = timeout_s
        self._loop: AbstractEventLoop | None = None
        self._is_closed = False
        self._reach = Reach(server)
        self._begin()

    def _begin(self) -> None:
        """Start without connections: those of another event loop can't be used."""
        self._shared: Connection | None = None
        self._opening: asyncio.Task[Connection] | None = None
        self._idle: list[Connection] = []
        """Idle connections for long polls."""
        self._busy: set[Connection] = set()
        """Connections of running long polls."""
        self._finishing: set[Connection] = set()
        """Half-closed connections of cancelled long polls."""
        self._stalled: Connection | None = None
        """The connection that was shared until a request on it timed out. Requests that may take longer still
        wait for their responses there."""
        self._returning = Returning()

    async def ask(
        self,
        body: bytes,
        wait_s: float = 0.0,
        unclaimed: Unclaimed | None = None,
        timeout_s: float | None = None,
    ) -> bytes:
        if self._loop is not (loop := asyncio.get_running_loop()):
            self._loop = loop
            self._begin()
        late: Callable[[bytes], None] | None = None
        if unclaimed is not None:
            late = partial(self._give_back, unclaimed)
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        if wait_s:
            return await self._ask_patiently(body, timeout_s + wait_s, late)
        connection = self._shared
        if connection is None or connection.is_lost:
            connection = await self._opened(timeout_s)
        begun = loop.time()
        try:
            answer = await connection.ask(body, timeout_s, late)
        except TimeoutError:
            late_answer = silent(self._server, timeout_s)
            if connection.quiet_since <= begun:
                self._stall(connection)
                self._away(late_answer)
            raise late_answer from None
        except Disconnected as error:
            self._away(error)
            raise
        except ForebayError:  # an answer, too
            self._reach.find()
            raise
        finally:
            if connection is self._stalled and not connection.awaited:
                connection.abort("")
                self._stalled = None
        self._reach.find()
        return answer

    def _stall(self, connection: Connection) -> None:
        """Decide what becomes of a shared connection on which nothing came while a request timed out.

        Requests of others may be more patient, and are not lost by it: new ones take another connection.
        There is only one that was left like this: if nothing comes on the next one either, it is the server.
        """
        quiet_s = asyncio.get_running_loop().time() - connection.quiet_since
        if not connection.awaited:
            connection.abort("")
        elif quiet_s >= self._timeout_s:
            connection.abort(given_up(self._server, quiet_s))
        elif connection is self._shared and self._stalled is None:
            self._stalled, self._shared = connection, None

    def _away(self, why: object) -> None:
        if not self._is_closed:
            self._reach.lose(why)

    def _give_back(self, unclaimed: Unclaimed, answer: bytes) -> None:
        returning = unclaimed(answer)
        if returning is not None:
            self._returning.add(self.ask(returning))

    async def _opened(self, timeout_s: float) -> Connection:
        """Return the shared connection; concurrent callers share one attempt to open it."""
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._connected())
            self._opening.add_done_callback(self._open)
        opening = self._opening
        if not (await asyncio.wait([opening], timeout=timeout_s))[0]:
            self._away("it does not answer")
            raise missing(self._server, TimeoutError())
        if opening.cancelled():
            raise Disconnected("the client was closed", sent=False)
        return opening.result()

    def _open(self, opening: "asyncio.Task[Connection]") -> None:
        self._opening = None
        if not opening.cancelled() and opening.exception() is None:
            self._shared = opening.result()

    async def _ask_patiently(
        self, body: bytes, timeout_s: float, late: Callable[[bytes], None] | None
    ) -> bytes:
        while self._idle and self._idle[-1].is_lost:
            self._idle.pop()
        connection = self._idle.pop() if self._idle else await self._connected()
        if self._is_closed:
            connection.abort("")
            raise Disconnected("the client was closed", sent=False)
        self._busy.add(connection)
        try:
            answer = await connection.ask(body, timeout_s, late)
        except asyncio.CancelledError:
            if late is None:
                connection.abort("")
            else:
                connection.finish()
            self._finishing.add(connection)
            connection.over.add_done_callback(lambda _: self._finishing.discard(connection))
            raise
        except TimeoutError:
            connection.abort("")  # nobody else waits here
            late_answer = silent(self._server, timeout_s)
            self._away(late_answer)
            raise late_answer from None
        except ForebayError as error:
            if connection.is_lost:
                self._away(error)
            else:
                self._idle.append(connection)
            raise
        finally:
            self._busy.discard(connection)
        self._idle.append(connection)
        self._reach.find()
        return answer

    async def _connected(self) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout_s):
                kind = partial(Connection, loop, self._server, self._greeting)
                if isinstance(self._place, str):
                    _, made = await loop.create_unix_connection(kind, self._place)
                else:
                    _, made = await loop.create_connection(kind, *self._place, ssl=self._tls)
        except (OSError, UnicodeError) as error:  # TimeoutError is a subclass
            refused = tls_problem(self._server, error)
            if refused is not None:
                raise refused from None
            self._away(str(error) or "it does not answer")
            raise missing(self._server, error) from None
        return made

    async def until_returned(self) -> None:
        if self._loop is not asyncio.get_running_loop():
            return
        until = now() + CLOSE_S
        if self._finishing:
            await asyncio.wait([each.over for each in self._finishing], timeout=CLOSE_S)
        await self._returning.wait(until - now())

    async def close(self) -> None:
        """Close the connections, after the leases of cancelled requests are released."""
        self._is_closed = True
        if self._loop is not asyncio.get_running_loop():
            return
        await self.until_returned()
        if self._opening is not None:
            self._opening.cancel()
        shared = [each for each in (self._shared, self._stalled) if each is not None]
        closing = [*self._idle, *self._busy, *self._finishing, *shared]
        self._idle, self._shared, self._stalled = [], None, None
        for connection in closing:
            connection.abort("the client was closed")
        if closing:
            await asyncio.wait([each.over for each in closing])
