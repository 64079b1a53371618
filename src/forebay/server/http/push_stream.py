"""Push a stream of lines (NDJSON) of any length."""

import asyncio
from collections.abc import Sequence
from operator import attrgetter
from typing import cast

import msgspec
from msgspec import Raw, Struct
from starlette.types import Receive, Scope, Send

from forebay.core.api.checks import check_attributes
from forebay.core.api.commands import Push, Pushed, Reply
from forebay.core.api.jobs import PushedJobs, PushJobs
from forebay.core.bounds import Limits
from forebay.core.errors import Busy, ForebayError, Invalid
from forebay.server.decode_errors import explain
from forebay.server.http.endpoint import (
    Endpoint,
    check_no_query,
    respond,
    send_error,
    stop_reading,
)
from forebay.server.http.headers import header
from forebay.server.http.identity import context_of, lasting
from forebay.server.http.operation import encode
from forebay.server.http.request_body import is_packed, parts
from forebay.server.operations.carried import Context, ask, shown
from forebay.server.operations.push import are_alike, job_of, push_of
from forebay.wire.operations.push import Item
from forebay.wire.text import check_depth, check_text
from forebay.wire.types import Id

LINES = (b"application/x-ndjson", b"application/ndjson", b"application/jsonl", b"application/x-jsonlines")
CHUNK_BYTES = 1 << 20
"""Bytes of lines that are pushed together."""
BLANKS = b" \t\r"
"""Bytes that may surround a line, or make up a blank line."""
JOBS_AT_ONCE = 5_000
"""Messages of a stream pushed together if their options differ; they delay other requests by about 50 ms."""


class Streamed(Struct, gc=False, kw_only=True, omit_defaults=True):
    """How many lines were pushed, and how durable they are. ``duplicates`` of them were known already."""

    count: int
    first: Id | None
    durability: str
    duplicates: int = 0


class Stopped(ForebayError):
    """A stream that failed at a line; the messages before it are kept."""

    def __init__(self, error: ForebayError, line: int, kept: int) -> None:
        super().__init__(f"line {line}: {error.message}; {kept} messages before it were kept")
        self._details = {**error.details, "line": line, "kept": kept}
        self.code, self.status = error.code, error.status  # type: ignore[misc]

    @property
    def details(self) -> dict[str, str | int]:
        return self._details


class PushEndpoint(Endpoint):
    """A push whose body may be a stream of lines of any length."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not header(scope, b"content-type").lower().startswith(LINES):
            await super().__call__(scope, receive, send)
            return
        try:
            self.check_role(scope)
            check_no_query(scope)
            watch = lasting(scope)
            try:
                pushed = await self._push_lines(scope, receive)
            finally:
                watch()
        except ForebayError as error:
            self.tell(scope, error)
            await send_error(scope, send, error, headers=stop_reading(scope))
            return
        self.tell(scope, reply=pushed)
        await respond(scope, send, 200, encode(pushed))

    async def _push_lines(self, scope: Scope, receive: Receive) -> Streamed:
        done = Streamed(count=0, first=None, durability="")
        queue, context = scope["path_params"]["queue"], context_of(scope)
        context.check_queue(queue)
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
                    line = await self._push_chunk(context, queue, chunk, line, done)
                    if self._questions.node.draining:
                        raise Stopped(Busy("the server stops"), line, done.count)
                if size > most:
                    raise _too_long(most, line, done.count)
        except Invalid as error:  # the body ended midway, or is malformed
            raise Stopped(error, line + b"".join(waiting).count(b"\n"), done.count) from None
        line = await self._push_chunk(context, queue, b"".join(waiting), line, done)
        if not done.count:
            raise Invalid("body", 'one or more lines, each a message like {"payload": 1}')
        return done

    async def _push_chunk(self, context: Context, queue: str, chunk: bytes, line: int, done: Streamed) -> int:
        """Push the messages of complete lines; return the number of the next line."""
        await asyncio.sleep(0)  # yield to other requests, also if there are only blank lines
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
        if len(found) > JOBS_AT_ONCE and not _are_alike(found):
            most = min(most, JOBS_AT_ONCE)
        for start in range(0, len(found), most):
            batch = found[start : start + most]
            try:
                reply = await ask(self._services, context, _push_of(context.tenant, queue, batch))
            except ForebayError as error:
                numbers = [line + at for at, each in enumerate(lines) if each]
                bad = start + _first_bad(batch, limits)
                raise Stopped(self.in_our_words(error), numbers[bad], done.count) from None
            _count(done, reply)
        return line + len(lines)


def _too_long(most: int, line: int, kept: int) -> Stopped:
    return Stopped(Invalid("line", f"at most {most} bytes"), line, kept)


class Plain(Struct, gc=False, forbid_unknown_fields=True):
    """A message without options: most streams have no others, and decode and push three times as fast."""

    payload: Raw


Lines = Sequence[Item | Plain]
_plain = msgspec.json.Decoder(list[Plain]).decode
_payload = attrgetter("payload")
_messages = msgspec.json.Decoder(list[Item]).decode
_message = msgspec.json.Decoder(Item).decode
_values = msgspec.json.Decoder(list[Raw]).decode


def _are_alike(found: Lines) -> bool:
    return isinstance(found[0], Plain) or are_alike(cast(list[Item], found))


def _push_of(tenant: str, queue: str, batch: Lines) -> Push | PushJobs:
    if isinstance(batch[0], Plain):
        return Push(tenant, queue, list(map(_payload, batch)))
    return push_of(tenant, queue, cast(list[Item], batch))


def _decoded(lines: list[bytes], line: int, kept: int) -> Lines:
    """Decode lines, all at once; one by one only to find the bad one."""
    given = list(filter(None, lines))
    joined = b"[" + b",".join(given) + b"]"
    try:
        if not joined.isascii():
            check_text(joined)
        found = _found(joined)
        # Two bad lines may be valid side by side: compare lengths, so that each is a value of its own.
        if list(map(len, _values(joined))) == list(map(len, given)):
            check_depth(joined, 2, max((len(each.payload) for each in found), default=0))
            return found
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, Invalid):
        pass  # the loop below finds the line and the reason
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
                raise Stopped(explain(error, Item, "line"), line + at, kept) from None
    raise Stopped(Invalid("line", "one message"), line, kept)


def _found(joined: bytes) -> Lines:
    try:
        return _plain(joined)
    except msgspec.ValidationError:  # most often at the first line
        return _messages(joined)


def _first_bad(messages: Lines, limits: Limits) -> int:
    """Return the index of the first message that would be refused; 0 if none is bad on its own."""
    for at, each in enumerate(messages):
        try:
            if isinstance(each, Item):
                check_attributes(limits, job_of(each, each.payload).attributes)
        except ForebayError:
            return at
        if len(each.payload) > limits.payload_bytes_max:
            return at
    return 0


def _count(done: Streamed, reply: Reply) -> None:
    if isinstance(reply, PushedJobs):
        done.count += len(reply.ids)
        done.duplicates += len(reply.duplicates)
        first, done.durability = reply.ids[0], reply.durability
    else:
        assert isinstance(reply, Pushed)
        done.count += reply.count
        first, done.durability = reply.first, reply.durability
    if done.first is None:
        done.first = shown(first)
