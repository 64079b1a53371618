"""Operations that take more than one step: a stream of lines, a search, an act on all messages that match."""

import asyncio

import msgspec
from msgspec import Raw, Struct
from starlette.types import Receive, Scope, Send

from forebay.core.api.checks import check_attributes
from forebay.core.api.commands import Buried, Cancel, Command, GroupPut, Pushed, Reply, Settled
from forebay.core.api.jobs import PushedJobs
from forebay.core.api.queries import Shown, ShownAll, Spot
from forebay.core.bounds import Limits, check_range
from forebay.core.errors import Busy, Conflict, ForebayError, Invalid, NotFound
from forebay.core.queries.message_state import SHOWN_MAX
from forebay.server.browsing import cursor_of, holds, parse_cursor
from forebay.server.explain import explain
from forebay.server.http import messages
from forebay.server.http.base import Asked, Id, encode, shown
from forebay.server.http.bodies import header, is_packed, parts
from forebay.server.http.endpoints import Endpoint, check_no_query, respond, send_error, stop_reading
from forebay.server.http.messages import Acted, Browsed, seen
from forebay.server.http.pushes import Message, are_alike, job_of, push_of
from forebay.server.payloads import check_depth, check_text

LINES = (b"application/x-ndjson", b"application/ndjson", b"application/jsonl", b"application/x-jsonlines")
CHUNK_BYTES = 1 << 20
"""Bytes of lines that are pushed together."""
BLANKS = b" \t\r"
"""What may stand around a line, or make one up that is passed over."""
JOBS_AT_ONCE = 5_000
"""Messages of a stream that are pushed together if they are not alike: others are kept waiting some 50 ms."""
STEPS_MAX = 100
"""Pages that one search, or one act on many messages, looks at; then it says where to go on."""


class Streamed(Struct, gc=False, kw_only=True, omit_defaults=True):
    """How many lines were pushed, and what they survive. ``duplicates`` of them were known already."""

    count: int
    first: Id | None
    durability: str
    duplicates: int = 0


class Stopped(ForebayError):
    """A stream that could not be carried on: what came before the line is kept."""

    def __init__(self, error: ForebayError, line: int, kept: int) -> None:
        super().__init__(f"line {line}: {error.message}; {kept} messages before it were kept")
        self._details = {**error.details, "line": line, "kept": kept}
        self.code, self.status = error.code, error.status  # type: ignore[misc]

    @property
    def details(self) -> dict[str, str | int]:
        return self._details


class PushEndpoint(Endpoint):
    """A push whose body may be a stream of lines, of any length."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not header(scope, b"content-type").lower().startswith(LINES):
            await super().__call__(scope, receive, send)
            return
        try:
            check_no_query(scope)
            pushed = await self._push_lines(scope, receive)
        except ForebayError as error:
            await send_error(scope, send, error, headers=stop_reading(scope))
            return
        await respond(scope, send, 200, encode(pushed))

    async def _push_lines(self, scope: Scope, receive: Receive) -> Streamed:
        done = Streamed(count=0, first=None, durability="")
        queue = scope["path_params"]["queue"]
        most = self._body_bytes_max
        waiting: list[bytes] = []
        size = 0
        line = 1
        has_end = False
        try:
            async for part in parts(scope, receive, is_packed(scope)):
                waiting.append(part)
                size += len(part)
                has_end = has_end or b"\n" in part
                if has_end and size >= min(CHUNK_BYTES, most):
                    chunk, _, rest = b"".join(waiting).rpartition(b"\n")
                    waiting, size, has_end = [rest], len(rest), False
                    line = await self._push_chunk(queue, chunk, line, done)
                    if self._questions.node.draining:
                        raise Stopped(Busy("the server stops"), line, done.count)
                if size > most:
                    raise _too_long(most, line, done.count)
        except Invalid as error:  # the body broke off
            raise Stopped(error, line + b"".join(waiting).count(b"\n"), done.count) from None
        line = await self._push_chunk(queue, b"".join(waiting), line, done)
        if not done.count:
            raise Invalid("body", 'one or more lines, each a message like {"payload": 1}')
        return done

    async def _push_chunk(self, queue: str, chunk: bytes, line: int, done: Streamed) -> int:
        """Push the messages of whole lines; the number of the line behind them."""
        await asyncio.sleep(0)  # others get their turn, also if there are only blank lines
        if not chunk or chunk.isspace():
            return line + chunk.count(b"\n") + 1
        lines = [each.strip(BLANKS) for each in chunk.split(b"\n")]
        if len(chunk) > self._body_bytes_max:
            for at, each in enumerate(lines):
                if len(each) > self._body_bytes_max:
                    raise _too_long(self._body_bytes_max, line + at, done.count)
        found = _decoded(lines, line, done.count)
        limits = self._questions.node.limits
        most = limits.batch_max
        if len(found) > JOBS_AT_ONCE and not are_alike(found):
            most = min(most, JOBS_AT_ONCE)
        for start in range(0, len(found), most):
            batch = found[start : start + most]
            try:
                reply = await self._questions.ask(push_of(Asked().tenant, queue, batch))
                if isinstance(reply, ForebayError):
                    raise reply
            except ForebayError as error:
                numbers = [line + at for at, each in enumerate(lines) if each]
                bad = start + _first_bad(batch, limits)
                raise Stopped(self.in_our_words(error), numbers[bad], done.count) from None
            _count(done, reply)
        return line + len(lines)


def _too_long(most: int, line: int, kept: int) -> Stopped:
    return Stopped(Invalid("line", f"at most {most} bytes"), line, kept)


_messages = msgspec.json.Decoder(list[Message]).decode
_message = msgspec.json.Decoder(Message).decode
_values = msgspec.json.Decoder(list[Raw]).decode


def _decoded(lines: list[bytes], line: int, kept: int) -> list[Message]:
    """The messages of some lines: all decoded at once; one by one only to say which is bad."""
    given = list(filter(None, lines))
    joined = b"[" + b",".join(given) + b"]"
    try:
        if not joined.isascii():
            check_text(joined)
        found = _messages(joined)
        # Two bad lines can look good side by side: each must be a value of its own.
        if list(map(len, _values(joined))) == list(map(len, given)):
            check_depth(joined, 2, max((len(each.payload) for each in found), default=0))
            return found
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, Invalid):
        pass  # which line it is, and why, is found below
    for at, each in enumerate(lines):
        if each:
            try:
                check_text(each)
                check_depth(each, 1, len(_message(each).payload))
            except RecursionError:
                raise Stopped(Invalid("payload", "nested less deep"), line + at, kept) from None
            except Invalid as error:
                raise Stopped(error, line + at, kept) from None
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise Stopped(explain(error, Message, "line"), line + at, kept) from None
    raise Stopped(Invalid("line", "one message"), line, kept)


def _first_bad(messages: list[Message], limits: Limits) -> int:
    """Which of some messages is refused; the first, if it is none of them alone."""
    for at, each in enumerate(messages):
        try:
            check_attributes(limits, job_of(each, each.payload).attributes)
        except ForebayError:
            return at
        if len(each.payload) > limits.payload_bytes_max:
            return at
    return 0


def _count(done: Streamed, reply: Reply) -> None:
    if isinstance(reply, Pushed):
        done.count += reply.count
        first = reply.first
    else:
        assert isinstance(reply, PushedJobs)
        done.count += len(reply.ids)
        done.duplicates += len(reply.duplicates)
        first = reply.ids[0]
    if done.first is None:
        done.first = shown(first)
    done.durability = reply.durability


class BrowseEndpoint(Endpoint):
    """A browse that may search payloads: the core finds what may match, page by page."""

    async def _answer(self, scope: Scope, receive: Receive) -> Struct:
        request = await self._request(scope, receive)
        assert isinstance(request, messages.Browse)
        asked = Asked(path=scope["path_params"])
        check_range("limit", request.limit, 1, SHOWN_MAX)
        after = parse_cursor(request.cursor)
        text = None if request.text is None else request.text.encode()
        found = Browsed(messages=[], total=0, cursor=None)
        for step in range(STEPS_MAX):
            wanted = request.limit - len(found.messages)
            count = wanted if text is None else SHOWN_MAX
            reply = await self._page(request, asked, count, after, counted=not step)
            found.total, after = found.total + reply.total, reply.next
            for each in reply.deliveries:
                if text is None or holds(each, text):
                    if len(found.messages) == request.limit:
                        after = _spot(each)
                        break
                    found.messages.append(seen(each))
            is_enough = len(found.messages) >= request.limit or (text is None and found.messages)
            if after is None or is_enough:
                break
        found.cursor = cursor_of(after)
        return found

    async def _page(
        self, request: messages.Filter, asked: Asked, count: int, after: Spot | None, *, counted: bool
    ) -> ShownAll:
        reply = await self._ask(request.browse(asked, count, after, counted))
        assert isinstance(reply, ShownAll)
        return reply

    async def _ask(self, command: Command) -> Reply:
        reply = await self._questions.ask(command)
        if isinstance(reply, ForebayError):
            raise reply
        return reply


def _spot(found: Shown) -> Spot:
    """Where a browse goes on with a message."""
    return found.queue.partitions[found.partition].key, found.offset


class BulkEndpoint(BrowseEndpoint):
    """An act on all messages that match: page by page, each page in one commit."""

    async def _answer(self, scope: Scope, receive: Receive) -> Struct:
        request = await self._request(scope, receive)
        assert isinstance(request, messages.Bulk)
        request.check()
        asked = Asked(path=scope["path_params"])
        if len(states := messages.ACTIONS[request.action]) == 1:
            (request.state,) = states
        check_range("limit", request.limit, 1, self._questions.node.limits.batch_max)
        after = parse_cursor(request.cursor)
        text = None if request.text is None else request.text.encode()
        done = Acted(matched=0, count=0, dry_run=request.dry_run, cursor=None)
        for step in range(STEPS_MAX):
            left = request.limit - done.matched
            most = min(SHOWN_MAX, left) if text is None else SHOWN_MAX
            reply = await self._page(request, asked, most, after, counted=False)
            meant = [
                each
                for each in reply.deliveries
                if request.reaches(each) and (text is None or holds(each, text))
            ]
            try:
                if request.action == "cancel" and not (request.dry_run or step):
                    # A group that nobody has popped for has nothing yet that could be cancelled for it.
                    await self._ask(GroupPut(asked.tenant, asked.queue, request.group))
                done.count += await self._act(request, asked, meant[:left])
            except Busy:
                if not done.count:
                    raise
                break  # the cursor leads to what is left
            done.matched += len(meant[:left])
            after = _spot(meant[left]) if len(meant) > left else reply.next
            if after is None or done.matched >= request.limit:
                break
        done.cursor = cursor_of(after)
        return done

    async def _act(self, request: messages.Bulk, asked: Asked, meant: list[Shown]) -> int:
        if request.dry_run or not meant:
            return 0
        if request.action != "cancel":
            return await self._do(request.act(asked.tenant, asked.queue, [each.state.id for each in meant]))
        parked = [each.state.id for each in meant if each.state.state == "parked"]  # in every group
        others = [each.state.id for each in meant if each.state.state != "parked"]
        count = await self._do(Cancel(asked.tenant, parked)) if parked else 0
        return count + (await self._do(request.act(asked.tenant, asked.queue, others)) if others else 0)

    async def _do(self, command: Command) -> int:
        """To how many messages it was done."""
        try:
            reply = await self._ask(command)
        except (Conflict, NotFound):
            return 0  # others were faster
        assert isinstance(reply, Settled | Buried)
        return reply.count
