"""Operations as ASGI applications: read the request, ask the node, write the reply."""

import asyncio
import gzip
import logging
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar, cast

from msgspec import UNSET, Struct
from starlette.types import Message, Receive, Scope, Send

from forebay.core.api.commands import Command, Pop, Popped, Reply
from forebay.core.api.principals import ROLES, Principal
from forebay.core.api.queries import Await, KvWatch
from forebay.core.errors import Busy, ForebayError, Invalid, Unsupported
from forebay.server.access_log import ACTS, DONE, UNREAD, Asked, command_of
from forebay.server.decode_errors import Glimpse, in_words_of, names_within
from forebay.server.http.headers import header
from forebay.server.http.identity import CONTEXT, context_of, lasting
from forebay.server.http.operation import Bound, encode, places_of
from forebay.server.http.request_body import Gone, Reader, check_no_body, whole
from forebay.server.node_client import NodeClient as NodeClient
from forebay.server.operations.carried import Context, check_role, for_tenant
from forebay.server.tcp.codec import Services
from forebay.wire.operation import Answer, Problem as Problem

T = TypeVar("T")
logger = logging.getLogger("forebay.http")

LEASED = "forebay.leased"
"""Key in the scope of a request: the leased messages of its reply, until the reply is sent."""
ASKED = "forebay.asked"
"""Key in the scope: the request, when it had arrived, and the reply to it."""
TOLD = "forebay.told"
"""Key in the scope: whether the log was told of the request, if it is to be."""
ACT = "forebay.act"
"""Key in the scope: the name of an act that is carried out without a request of ours."""
OUTCOME = "forebay.outcome"
"""Key in the scope: the code of the error that a request is answered with."""
SEEN = "forebay.seen"
"""Key in the scope: what can be read of a request that could not be decoded."""
GIVEN_ID = "forebay.request_id"
"""Key in the scope: the id of the request."""
PACK_FROM = 1_024
"""Bytes from which a reply is compressed."""
PACK_ASIDE = 128 * 1024
"""Bytes from which compression runs in a thread: it would block the event loop too long."""


class Errors(Struct, gc=False):
    """Body of every error response."""

    error: Problem


class Patient(NodeClient):
    """A client of the node whose command may wait; it is withdrawn when the HTTP client disconnects."""

    async def answer(self, command: Command, scope: Scope, receive: Receive) -> Reply | ForebayError:
        """Return the reply; raise Gone if the client disconnects first."""
        answer = self.ask(command)
        await asyncio.sleep(0)
        gone = asyncio.ensure_future(until_gone(scope, receive))
        watch = lasting(scope)
        try:
            await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                # Both may be done: the client is gone, so its messages are returned at once.
                if answer.done():
                    self.node.give_back(answer.result())
                raise Gone
            return answer.result()
        finally:
            watch()
            gone.cancel()
            if not answer.done():
                answer.cancel()
                self.node.forget(self)


async def until_gone(scope: Scope, receive: Receive) -> None:
    """Wait until the client of a request disconnects; ignore what it sends meanwhile."""
    while not is_gone(scope) and (await receive())["type"] not in DISCONNECTS:
        pass


async def while_there(scope: Scope, receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of work for a client; cancel it and raise Gone if the client disconnects first."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(until_gone(scope, receive))
    watch = lasting(scope)
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Gone
        return task.result()
    finally:
        watch()
        gone.cancel()
        task.cancel()


DISCONNECTS = ("http.disconnect", "websocket.disconnect")


def may_wait(command: Command) -> bool:
    return isinstance(command, Pop | Await | KvWatch) and command.wait_ms > 0


class Endpoint:
    """One operation on one of its routes."""

    def __init__(self, bound: Bound, services: Services, body_bytes_max: int) -> None:
        self.bound = bound
        self._services = services
        self._questions = services.questions
        self._reader = Reader(bound.kind)
        self._has_body = bound.route.has_body
        self._places = bound.route.places
        self._is_plain = not bound.unset and "key" not in self._places
        self._fields = names_within(bound.kind)
        self._body_bytes_max = body_bytes_max
        self._now = asyncio.get_running_loop().time
        self._needs = bound.route.needs or bound.operation.roles
        self._roles = frozenset(role for role in ROLES if Principal(role=role).may(self._needs))
        self._is_mixed = bound.operation.name in MIXED
        self._command: str | None = bound.operation.name
        """What the log calls its requests; None if each says its own."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            status, body = 200, encode(await self._answer(scope, receive))
        except ForebayError as error:
            self.tell(scope, error)
            await send_error(scope, send, self.in_our_words(error), headers=stop_reading(scope))
            return
        self.tell(scope)
        try:
            await respond(scope, send, status, body)
        except Gone:
            self._questions.node.give_back(scope[LEASED])
            raise

    def tell(self, scope: Scope, error: ForebayError | None = None, reply: object = None) -> None:
        """Have the log tell of a request, if it is to."""
        access = self._services.access
        scope[TOLD] = True
        request, began, found = scope.get(ASKED, (None, 0.0, reply))
        took = self._now() - began if began else 0.0
        seen = scope.get(SEEN, Glimpse())
        command = self._command or (seen.command if request is None else command_of(type(request)))
        if error is None and took < access.over_s and command not in ACTS:
            return
        access.tell(
            Asked(
                command=command or UNREAD,
                carrier="http",
                tenant=context_of(scope).tenant,
                request=request,
                reply=found if error is None else error,
                outcome=DONE if error is None else error.code,
                ms=took * 1000,
                id=scope.get(GIVEN_ID, b"").decode("ascii", "replace") or UNSET,
                peer=scope.get("client"),
                given=scope.get("path_params") or {"queue": seen.queue},
            )
        )

    def in_our_words(self, error: ForebayError) -> ForebayError:
        """Return an error of the core with the name of its field in the request."""
        if type(error) is not Invalid or error.field in self._fields:
            return error
        return in_words_of(error, self._fields)

    async def _request(self, scope: Scope, receive: Receive) -> Any:
        if self._has_body:
            check_no_query(scope)
            request = self._reader.body(await whole(scope, receive, self._body_bytes_max))
        else:
            check_no_body(scope)
            request = self._reader.query(scope["query_string"])
        if self._places:
            given = scope["path_params"]
            if self._is_plain:
                for name in self._places:
                    setattr(request, name, given[name])
            else:
                for name, value in {**self.bound.unset, **places_of(scope)}.items():
                    setattr(request, name, value)
        return request

    def check_role(self, scope: Scope) -> None:
        """Raise unless the principal of a request has the role that this needs."""
        principal = context_of(scope).principal
        assert principal is not None
        if principal.role not in self._roles:
            check_role(principal, self._needs, self.bound.operation.name)

    async def _answer(self, scope: Scope, receive: Receive) -> Struct:
        self.check_role(scope)
        return await self.carried_out(await self._request(scope, receive), scope, receive)

    async def carried_out(self, request: Any, scope: Scope, receive: Receive) -> Answer:
        """Carry out a request; return its answer."""
        # From here on: what came before is the time that the client took to send it.
        began = self._now()
        scope[ASKED] = (request, began, None)
        context = context_of(scope)
        if request.tenant is not UNSET:
            context = scope[CONTEXT] = for_tenant(context, request.tenant)
        if self._is_mixed:
            assert context.principal is not None
            request.check_allowed(context.principal)
        if not request.is_command:
            return await self._step_by_step(request, context, scope, receive)
        command = request.command(context)
        if context.is_narrow:
            context.check_command(self._questions.node, command)
        if may_wait(command):
            reply = await Patient(self._questions.node).answer(command, scope, receive)
        else:
            reply = await self._questions.ask(command)
        if isinstance(reply, ForebayError):
            raise reply
        scope[ASKED] = (request, began, reply)
        if isinstance(reply, Popped):
            if is_gone(scope):
                self._questions.node.give_back(reply)
                raise Gone
            scope[LEASED] = reply
        try:
            answer: Answer = request.reply(reply, context)
            return answer
        except ForebayError:
            raise
        except Exception:
            logger.exception("bug: the answer to %s could not be put", type(request).__name__)
            self._questions.node.give_back(reply)
            raise Busy("the server met a bug of its own") from None

    async def _step_by_step(self, request: Any, context: Context, scope: Scope, receive: Receive) -> Answer:
        work = request.carry_out(self._services, context)
        lasts = getattr(request, "wait_ms", 0)
        found = await while_there(scope, receive, work) if lasts else await work
        return cast(Answer, request.reply(found, context))


MIXED = ("TX", "COMMAND")
"""Operations that are made of others: what each of them needs is looked at."""


def check_no_query(scope: Scope) -> None:
    """Raise if there is a query, which nothing would read: a ``dry_run`` in it must not be ignored."""
    if scope["query_string"]:
        raise Invalid("query", "left out; what is asked for stands in the body")


def is_gone(scope: Scope) -> bool:
    """Return whether the client of a request is known to be gone."""
    connection = scope.get("forebay.connection")
    return connection is not None and connection.is_gone


def stop_reading(scope: Scope) -> "Headers":
    """Stop reading a refused request; return the headers that announce it if more of it is to arrive."""
    connection = scope.get("forebay.connection")
    return [(b"connection", b"close")] if connection is not None and connection.stop_reading() else []


class Resource:
    """One path, with an endpoint per method."""

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
    """Write a response, compressed if that is worth it and the client accepts it.

    Raise Gone if messages were leased for a client that disconnected before any of it was written.
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
    """Return the body of an error response."""
    return Errors(Problem(error.code, error.message, error.details))


def takes_gzip(accepted: bytes) -> bool:
    """Return whether an Accept-Encoding includes gzip with a weight that is not 0.

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
    """Wait until the client has read enough of earlier replies; raise Gone if it disconnects."""
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
    scope[OUTCOME] = error.code
    headers = headers or []
    if status == 401:
        headers = [*headers, (b"www-authenticate", b"Bearer")]
    if status in (429, 503):
        after_ms = error.retry_after_ms if isinstance(error, Busy) else 1_000
        headers = [*headers, (b"retry-after", b"%d" % -(-after_ms // 1_000))]
    await respond(scope, send, status, encode(told(error)), headers)
