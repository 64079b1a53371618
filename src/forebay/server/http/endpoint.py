"""Operations as ASGI applications: read the request, ask the node, write the answer."""

import asyncio
import gzip
import logging
from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from starlette.types import Message, Receive, Scope, Send

from forebay.core.api.commands import Command, Pop, Popped, Reply
from forebay.core.api.queries import Await, KvWatch
from forebay.core.errors import Busy, ForebayError, Invalid, Unsupported
from forebay.server.decode_errors import names_within
from forebay.server.http.operation import Asked, Operation, encode
from forebay.server.http.request_body import Gone, Reader, check_no_body, header, whole
from forebay.server.node_client import NodeClient as NodeClient

logger = logging.getLogger("forebay.http")

LEASED = "forebay.leased"
"""Where the scope of a request has what was leased for it, until it has been sent."""
PACK_FROM = 1_024
"""Bytes of an answer that are worth packing."""
PACK_ASIDE = 128 * 1024
"""Bytes of an answer that take so long to pack that it is done in a thread."""


class Errors(Struct, gc=False):
    """Every error looks like this."""

    error: "Problem"


class Problem(Struct, gc=False, omit_defaults=True):
    """``code`` is stable, ``message`` is for people, ``details`` for programs."""

    code: str
    message: str
    details: dict[str, str | int] = {}


class Patient(NodeClient):
    """One that may wait: when its client goes away, so does its question."""

    async def answer(self, command: Command, scope: Scope, receive: Receive) -> Reply | ForebayError:
        """The answer; raises if the client goes away first."""
        answer = self.ask(command)
        await asyncio.sleep(0)
        gone = asyncio.ensure_future(until_gone(scope, receive))
        try:
            await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                if answer.done():
                    self.node.give_back(answer.result())
                raise Gone
            return answer.result()
        finally:
            gone.cancel()
            if not answer.done():
                answer.cancel()
                self.node.forget(self)


async def until_gone(scope: Scope, receive: Receive) -> None:
    """Until the client of a request goes away; what it says meanwhile is passed over."""
    while not is_gone(scope) and (await receive())["type"] not in DISCONNECTS:
        pass


DISCONNECTS = ("http.disconnect", "websocket.disconnect")


def may_wait(command: Command) -> bool:
    return isinstance(command, Pop | Await | KvWatch) and command.wait_ms > 0


OTHER_WORDS = {
    "timeout": ("wait_ms",),
    "count": ("limit",),
    "offset": ("skip",),
    "repeat_every": ("every_ms",),
}
"""What the core calls some fields, and what they may be called here."""


class Endpoint:
    """One operation."""

    def __init__(self, operation: Operation, questions: NodeClient, body_bytes_max: int) -> None:
        self.operation = operation
        self._questions = questions
        self._reader = Reader(operation.request)
        self._has_body = operation.has_body
        self._fields = names_within(operation.request)
        self._body_bytes_max = body_bytes_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            status, body = 200, encode(await self._answer(scope, receive))
        except ForebayError as error:
            await send_error(scope, send, self.in_our_words(error), headers=stop_reading(scope))
            return
        try:
            await respond(scope, send, status, body)
        except Gone:
            self._questions.node.give_back(scope[LEASED])
            raise

    def in_our_words(self, error: ForebayError) -> ForebayError:
        """An error of the core about a field, which may have another name here."""
        if type(error) is not Invalid or error.field in self._fields:
            return error
        if ".jobs" in error.field:
            return Invalid(error.field.replace(".jobs", ".messages"), error.accepted)
        for name in (f"{error.field}_ms", *OTHER_WORDS.get(error.field, ())):
            if name in self._fields:
                return Invalid(name, error.accepted)
        return error

    async def _request(self, scope: Scope, receive: Receive) -> Any:
        if not self._has_body:
            check_no_body(scope)
            return self._reader.query(scope["query_string"])
        check_no_query(scope)
        return self._reader.body(await whole(scope, receive, self._body_bytes_max))

    def _asked(self, scope: Scope) -> Any:
        return Asked(path=scope["path_params"], raw_path=scope.get("raw_path", b""))

    async def _answer(self, scope: Scope, receive: Receive) -> Struct:
        return await self._carried_out(await self._request(scope, receive), scope, receive)

    async def _carried_out(self, request: Any, scope: Scope, receive: Receive) -> Struct:
        asked = self._asked(scope)
        command = request.command(asked)
        if may_wait(command):
            reply = await Patient(self._questions.node).answer(command, scope, receive)
        else:
            reply = await self._questions.ask(command)
        if isinstance(reply, ForebayError):
            raise reply
        if isinstance(reply, Popped):
            if is_gone(scope):
                self._questions.node.give_back(reply)
                raise Gone
            scope[LEASED] = reply
        try:
            answer: Struct = request.reply(reply, asked)
            return answer
        except ForebayError:
            raise
        except Exception:
            logger.exception("bug: the answer to %s could not be put", type(request).__name__)
            self._questions.node.give_back(reply)
            raise Busy("the server met a bug of its own") from None


def check_no_query(scope: Scope) -> None:
    """Raise if there is a query that nobody would look at: a ``dry_run`` in it must not be passed over."""
    if scope["query_string"]:
        raise Invalid("query", "left out; what is asked for stands in the body")


def is_gone(scope: Scope) -> bool:
    """Whether the client of a request is known to have gone away."""
    connection = scope.get("forebay.connection")
    return connection is not None and connection.is_gone


def stop_reading(scope: Scope) -> "Headers":
    """Read no more of a request that is refused: the headers to say so, if more of it is to come."""
    connection = scope.get("forebay.connection")
    return [(b"connection", b"close")] if connection is not None and connection.stop_reading() else []


class Resource:
    """One path, with what can be done there."""

    def __init__(self, by_method: Mapping[str, Endpoint]) -> None:
        self._by_method = dict(by_method)
        if "GET" in by_method:
            self._by_method["HEAD"] = by_method["GET"]
        self._allowed = ", ".join(sorted(self._by_method)).encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self._by_method.get(scope["method"])
        if endpoint is None:
            error = Unsupported(f"{scope['method']} is not supported here, only {self._allowed.decode()}")
            await send_error(scope, send, error, status=405, headers=[(b"allow", self._allowed)])
            return
        await endpoint(scope, receive, send)


Headers = list[tuple[bytes, bytes]]

JSON = (b"content-type", b"application/json")


async def respond(
    scope: Scope,
    send: Send,
    status: int,
    body: bytes,
    headers: Headers | None = None,
    kind: bytes | None = None,
) -> None:
    """Write an answer, packed if that is worth it and the client takes it.

    Raises if something was leased for a client that went away before any of it was written.
    """
    said = [JSON if kind is None else (b"content-type", kind)]
    if len(body) >= PACK_FROM and takes_gzip(header(scope, b"accept-encoding")):
        if len(body) >= PACK_ASIDE:
            body = await asyncio.to_thread(gzip.compress, body, 1, mtime=0)
        else:
            body = gzip.compress(body, 1, mtime=0)
        said += [(b"content-encoding", b"gzip"), (b"vary", b"accept-encoding")]
    said.append((b"content-length", b"%d" % len(body)))
    if headers:
        said += headers
    if LEASED in scope:
        await _until_writable(scope)
    start: Message = {"type": "http.response.start", "status": status, "headers": said}
    await send(start)
    await send({"type": "http.response.body", "body": body})


def told(error: ForebayError) -> Errors:
    """An error as it goes out."""
    return Errors(Problem(error.code, error.message, error.details))


def takes_gzip(accepted: bytes) -> bool:
    """Whether an Accept-Encoding has gzip in it, with a weight that is not 0.

    >>> [takes_gzip(each) for each in (b"gzip, br", b"br;q=1, gzip;q=0.5", b"gzip;q=0", b"", b"xgzip")]
    [True, True, False, False, False]
    """
    if accepted in (b"gzip", b"gzip, deflate"):
        return True
    for each in accepted.lower().split(b","):
        name, _, weight = each.replace(b" ", b"").partition(b";q=")
        if name in (b"gzip", b"x-gzip"):
            return weight.strip(b"0.") != b"" or not weight
    return False


async def _until_writable(scope: Scope) -> None:
    """Wait until the client has read enough of what it was sent before; raise if it goes away."""
    connection = scope.get("forebay.connection")
    if connection is not None:
        if connection.flow.write_paused:
            await connection.flow.drain()
        if connection.is_gone:
            raise Gone


async def send_error(
    scope: Scope,
    send: Send,
    error: ForebayError,
    *,
    status: int | None = None,
    headers: Headers | None = None,
) -> None:
    status = error.status if status is None else status
    headers = headers or []
    if status in (429, 503):
        after_ms = error.retry_after_ms if isinstance(error, Busy) else 1_000
        headers = [*headers, (b"retry-after", b"%d" % -(-after_ms // 1_000))]
    await respond(scope, send, status, encode(told(error)), headers)
