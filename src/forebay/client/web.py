"""The link over HTTP: every command is one request. The only file that imports httpx."""

import asyncio
import os
from asyncio import AbstractEventLoop
from typing import Any

from forebay.client.access import NO_ACCESS, Access, tls_problem
from forebay.client.address import lost, missing, not_web, shown, silent
from forebay.client.aio.connection import CLOSE_S, Returning, Unclaimed
from forebay.client.errors import Disconnected
from forebay.client.outcome import failure
from forebay.client.reach import Reach
from forebay.core.errors import ForebayError

try:
    import httpx
except ImportError:
    raise ImportError("a server at a URL needs httpx: pip install 'forebay[http]'") from None

PATH = "/v1/commands"
HEADERS = {"content-type": "application/json"}
CONNECTIONS_MAX = 1_000
TIMEOUT_S_MAX = 1e6
"""Sockets take no longer timeout."""
UNDER_WAY_S = 0.1
"""How long a cancelled long poll waits for a response that may be on its way."""


def _settings(server: str, access: Access) -> dict[str, Any]:
    """Return the settings of httpx's clients."""
    shows = {"authorization": f"Bearer {access.token}"} if access.token else {}
    verified = access.tls(server)
    verify = {} if verified is None else {"verify": verified}
    return {"base_url": server, "headers": {**HEADERS, **shows}, "limits": _limits(), **verify}


def _limits() -> httpx.Limits:
    return httpx.Limits(max_connections=CONNECTIONS_MAX, max_keepalive_connections=100)


def _timeout(timeout_s: float, wait_s: float) -> httpx.Timeout:
    return httpx.Timeout(min(timeout_s, TIMEOUT_S_MAX), read=min(timeout_s + wait_s, TIMEOUT_S_MAX))


CLOSED = "Server disconnected"
"""How httpx's message begins when a connection ends before a response; others are about what came instead."""


def _problem(error: httpx.HTTPError, server: str, timeout: httpx.Timeout) -> Disconnected:
    why = str(error)
    refused = tls_problem(server, _first(error))
    if refused is not None:
        return refused
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout):
        return missing(server, error)
    if isinstance(error, httpx.RemoteProtocolError) and not why.startswith(CLOSED):
        return not_web(server)
    if isinstance(error, httpx.ReadTimeout | httpx.WriteTimeout):
        return silent(server, timeout.read or 0.0)
    return lost(server, why or type(error).__name__, is_new=True)


def _first(error: BaseException) -> BaseException:
    """Return the error that an error of httpx began with."""
    while (before := error.__cause__ or error.__context__) is not None:
        error = before
    return error


def _answer(response: httpx.Response, server: str) -> bytes:
    if response.status_code != 200 or response.content[:1] != b"{":
        raise failure(response.content, response.status_code, shown(server))
    return response.content


class AsyncWeb:
    """For asyncio."""

    def __init__(self, server: str, timeout_s: float, access: Access = NO_ACCESS) -> None:
        self._server, self._timeout_s = server, timeout_s
        self._settings = _settings(server, access)
        self._reach = Reach(server)
        self._loop: AbstractEventLoop | None = None
        self._client: httpx.AsyncClient
        self._returning = Returning()
        self._asked: set[asyncio.Task[bytes]] = set()
        """Running requests."""
        self._is_closed = False

    async def ask(
        self,
        body: bytes,
        wait_s: float = 0.0,
        unclaimed: Unclaimed | None = None,
        timeout_s: float | None = None,
    ) -> bytes:
        if self._loop is not (loop := asyncio.get_running_loop()):
            # Connections of another event loop can't be used.
            self._loop, self._returning, self._asked = loop, Returning(), set()
            self._client = httpx.AsyncClient(**self._settings)
        asked = asyncio.create_task(self._post(body, wait_s, timeout_s))
        self._asked.add(asked)
        asked.add_done_callback(self._asked.discard)
        try:
            return await asyncio.shield(asked)
        except asyncio.CancelledError:
            if self._is_closed and asked.cancelled():
                raise Disconnected("the client was closed") from None
            if unclaimed is None:
                asked.cancel()
                raise
            self._returning.add(self._give_back(asked, unclaimed, wait_s))
            raise

    async def _post(self, body: bytes, wait_s: float, timeout_s: float | None = None) -> bytes:
        timeout = _timeout(self._timeout_s if timeout_s is None else timeout_s, wait_s)
        try:
            response = await self._client.post(PATH, content=body, timeout=timeout)
            answer = _answer(response, self._server)
        except httpx.HTTPError as error:
            problem = _problem(error, self._server, timeout)
            if not self._is_closed:
                self._reach.lose(problem)
            raise problem from None
        except Disconnected as error:
            self._reach.lose(error)
            raise
        except ForebayError:  # an answer, too
            self._reach.find()
            raise
        except RuntimeError:
            if not self._client.is_closed:
                raise
            raise Disconnected("the client was closed", sent=False) from None
        self._reach.find()
        return answer

    async def _give_back(self, asked: "asyncio.Future[bytes]", unclaimed: Unclaimed, wait_s: float) -> None:
        if wait_s and not (await asyncio.wait([asked], timeout=UNDER_WAY_S))[0]:
            asked.cancel()  # closes the connection, so that the server leases nothing
        returning = unclaimed(await asked)
        if returning is not None:
            await self._post(returning, 0.0)

    async def until_returned(self) -> None:
        if self._loop is asyncio.get_running_loop():
            await self._returning.wait(CLOSE_S)

    async def close(self) -> None:
        if self._loop is asyncio.get_running_loop():
            await self.until_returned()
            self._is_closed = True
            for asked in self._asked:
                asked.cancel()
            await self._client.aclose()
            self._loop = None


class Web:
    """For threads, which may share it."""

    def __init__(self, server: str, timeout_s: float, access: Access = NO_ACCESS) -> None:
        self._server, self._timeout_s = server, timeout_s
        self._settings = _settings(server, access)
        self._reach = Reach(server)
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._client = httpx.Client(**self._settings)

    def ask(
        self,
        body: bytes,
        wait_s: float = 0.0,
        unclaimed: Unclaimed | None = None,
        timeout_s: float | None = None,
    ) -> bytes:
        if self._pid != os.getpid():
            self._begin()  # after a fork, the connections belong to the parent
        timeout = _timeout(self._timeout_s if timeout_s is None else timeout_s, wait_s)
        try:
            answer = _answer(self._client.post(PATH, content=body, timeout=timeout), self._server)
        except httpx.HTTPError as error:
            problem = _problem(error, self._server, timeout)
            self._reach.lose(problem)
            raise problem from None
        except Disconnected as error:
            self._reach.lose(error)
            raise
        except ForebayError:  # an answer, too
            self._reach.find()
            raise
        self._reach.find()
        return answer

    def close(self) -> None:
        if self._pid == os.getpid():
            self._client.close()
