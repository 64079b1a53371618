"""Any TCP command over HTTP, for clients that use both protocols."""

import asyncio
from typing import Any

from msgspec import Struct
from starlette.types import Receive, Scope

from forebay.core.errors import ForebayError
from forebay.core.words import DEFAULT
from forebay.server.events.poll import Polls, Told
from forebay.server.flashq import decode, events, request as flashq_request
from forebay.server.flashq.request import WAIT_MS
from forebay.server.http.endpoint import Endpoint, check_no_query, until_gone
from forebay.server.http.operation import Request
from forebay.server.http.request_body import Gone, whole
from forebay.wire.text import check_text


class Command(Request, forbid_unknown_fields=False, kw_only=True):
    """A command as it is sent over TCP, with its fields beside ``cmd``."""

    cmd: str


class Carried(Struct, gc=False, kw_only=True):
    """The reply to the command, with its fields beside ``ok``."""

    ok: bool


class CommandEndpoint(Endpoint):
    """Carries out TCP commands."""

    def __init__(self, *given: Any, polls: Polls) -> None:
        super().__init__(*given)
        self._polls = polls

    def in_our_words(self, error: ForebayError) -> ForebayError:
        return error

    def _asked(self, scope: Scope) -> flashq_request.Context:
        return flashq_request.Context(DEFAULT, 0, min(WAIT_MS, self._questions.node.limits.wait_ms_max))

    async def _request(self, scope: Scope, receive: Receive) -> flashq_request.Request:
        check_no_query(scope)
        body = await whole(scope, receive, self._body_bytes_max)
        check_text(body)
        return decode.decode(body)

    async def _answer(self, scope: Scope, receive: Receive) -> Struct:
        request = await self._request(scope, receive)
        if isinstance(request, events.Events):
            return request.reply(await self._told(request, scope, receive), self._asked(scope))
        try:
            return await self._carried_out(request, scope, receive)
        except ForebayError as error:
            raise decode.in_words(request, error) from None

    async def _told(self, request: events.Events, scope: Scope, receive: Receive) -> Told:
        """Return events; raise Gone if the client disconnects first."""
        told = asyncio.ensure_future(request.told(self._polls, self._asked(scope)))
        gone = asyncio.ensure_future(until_gone(scope, receive))
        try:
            await asyncio.wait((told, gone), return_when=asyncio.FIRST_COMPLETED)
            if not told.done():
                raise Gone
            return told.result()
        finally:
            gone.cancel()
            told.cancel()
