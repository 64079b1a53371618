"""Wraps every request: request ids, the origin check, and the response to a bug."""

import asyncio
import logging
import secrets
from ipaddress import ip_address
from itertools import count
from urllib.parse import unquote_to_bytes, urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forebay.core.errors import Busy, Denied, ForebayError, Invalid
from forebay.server.access_log import ACTS, DONE, UNREAD, AccessLog, Asked
from forebay.server.http.endpoint import ACT, GIVEN_ID, OUTCOME, TOLD, send_error
from forebay.server.http.headers import header
from forebay.server.http.identity import context_of
from forebay.server.http.request_body import Gone

logger = logging.getLogger("forebay.http")

ANSWERS = ("http.response.start", "websocket.accept", "websocket.close", "websocket.http.response.start")
"""How an answer begins."""
CODES = {
    400: "invalid",
    401: "denied",
    403: "denied",
    404: "not_found",
    405: "unsupported",
    409: "conflict",
    413: "invalid",
    429: "busy",
    501: "unsupported",
    503: "busy",
}
"""Outcomes by status, of answers that do not tell the code of their error."""
REQUEST_ID = b"x-request-id"
REQUEST_ID_MAX = 128
"""Characters of a request id given by the client, at most."""


def check_path(path: bytes) -> None:
    """Raise unless a path is UTF-8: invalid names would all decode to the same text."""
    try:
        unquote_to_bytes(path).decode()
    except UnicodeDecodeError:
        raise Invalid("path", "UTF-8, where it is escaped") from None


class Guard:
    """Gives requests their ids, refuses pages of foreign origins, and answers requests that hit a bug.

    It has the log tell of requests that nobody else tells of: pages, streams, and what is refused before it
    is a command.
    """

    def __init__(
        self, app: ASGIApp, origins: tuple[str, ...], access: AccessLog | None = None, carrier: str = "http"
    ) -> None:
        """Without ``access``, the log is told of nothing; ``carrier`` is what it calls this listener."""
        self._app, self._access, self._carrier = app, access, carrier
        self._origins = frozenset(origins)
        self._numbers = count(1)
        self._run = secrets.token_hex(4)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = scope[GIVEN_ID] = self._request_id(scope)
        began = asyncio.get_running_loop().time()
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if TOLD not in scope and message["type"] in ANSWERS:
                self._tell(scope, message, asyncio.get_running_loop().time() - began)
            if message["type"] == "http.response.start":
                started = True
                message["headers"].append((REQUEST_ID, request_id))
            await send(message)

        try:
            if not self._is_welcome(scope):
                await self.refuse(scope, send_with_id, Denied("pages of this origin may not use this server"))
                return
            if b"%" in scope.get("raw_path", b""):
                check_path(scope["raw_path"])
            await self._app(scope, receive, send_with_id)
        except Invalid as error:
            await self.refuse(scope, send_with_id, error)
        except Gone:
            connection = scope.get("forebay.connection")
            if connection is not None:
                connection.let_go()
        except Exception:
            logger.exception("bug: request %s of %s broke", request_id.decode(), scope.get("path"))
            if not started:
                await self.refuse(scope, send_with_id, Busy("the server met a bug of its own"))

    def _tell(self, scope: Scope, message: Message, took: float) -> None:
        """Have the log tell of a request whose answer begins, if it is to."""
        scope[TOLD] = True
        command, access = scope.get(ACT, UNREAD), self._access
        status: int = message.get("status", 200)
        outcome = scope.get(OUTCOME) or CODES.get(status, DONE if status < 400 else "error")
        if access is None or (outcome == DONE and took < access.over_s and command not in ACTS):
            return
        route = scope.get("route")  # not the path itself: there may be a key in it
        path = scope["path"] if route is None else route.path.replace(":path", "")
        access.tell(
            Asked(
                command=command,
                carrier=self._carrier,
                tenant=context_of(scope).tenant,
                outcome=outcome,
                ms=took * 1000,
                id=scope[GIVEN_ID].decode(),
                peer=scope.get("client"),
                path=f"{scope.get('method', 'GET')} {path}",
                given=scope.get("path_params", {}),
            )
        )

    async def refuse(self, scope: Scope, send: Send, error: ForebayError) -> None:
        """Answer with an error, in the form of this listener."""
        await refuse(scope, send, error)

    def leases(self, scope: Scope) -> bool:
        """Return whether a request leases messages, even if it is a GET."""
        return scope["path"].endswith("/listen")  # type: ignore[no-any-return]

    def _request_id(self, scope: Scope) -> bytes:
        given = header(scope, REQUEST_ID)
        if 0 < len(given) <= REQUEST_ID_MAX and given.isascii() and given.decode().isprintable():
            return given
        return f"{self._run}-{next(self._numbers):x}".encode()

    def _is_welcome(self, scope: Scope) -> bool:
        """Return whether a request comes from no page, from a page of this server, or from an allowed origin.

        Any page can have a browser send requests here; it must not control a queue on this machine.
        """
        origin = header(scope, b"origin")
        if self.leases(scope):
            if not origin and header(scope, b"sec-fetch-site") in (b"cross-site", b"same-site"):
                return False
        elif scope["type"] == "http" and scope["method"] in ("GET", "HEAD", "OPTIONS"):
            return True
        if not origin:
            return True
        name = origin.decode("latin-1")
        if "*" in self._origins or name in self._origins:
            return True
        place = name.partition("://")[2]
        return place.encode("latin-1") == header(scope, b"host") and _is_certain(place)


def _is_certain(place: str) -> bool:
    """Return whether a host can't be made to resolve to another address; other names have to be allowed.

    >>> [_is_certain(each) for each in ("127.0.0.1:8080", "[::1]:8080", "localhost", "queue.example:80")]
    [True, True, True, False]
    """
    try:
        host = urlsplit(f"//{place}").hostname or ""
        return host == "localhost" or bool(ip_address(host))
    except ValueError:
        return False


async def refuse(scope: Scope, send: Send, error: ForebayError) -> None:
    scope[OUTCOME] = error.code
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": error.message})
    else:
        await send_error(scope, send, error)
