"""Run flashQ's commands for the HTTP routes.

A route never decides what a command means: it builds the command as it would come over TCP, and the door's
codec decodes it, names the core's command, and puts the answer. Payloads are passed on as the bytes they came
as, so that no number loses its digits on the way.
"""

import asyncio
import logging
import re
from typing import Any

import msgspec
from msgspec import UNSET, Raw
from starlette.types import Receive, Scope

from forebay.core.api.commands import Popped
from forebay.core.errors import Busy, ForebayError
from forebay.server.access_log import ACTS, DONE, UNREAD, Asked, command_of, outcome_of
from forebay.server.flashq.caller import Caller
from forebay.server.flashq.door import Door
from forebay.server.flashq.web.feeds import Feeds
from forebay.server.http.endpoint import GIVEN_ID, LEASED, TOLD, Patient, is_gone, may_wait, until_gone
from forebay.server.http.identity import context_of
from forebay.server.http.request_body import Gone
from forebay.server.tcp.codec import Ready, Services

logger = logging.getLogger("forebay.flashq")

CARRIER = "flashq_http"
"""What lines of the log call this door."""
Fields = dict[str, Raw]
"""Fields of a command or of an answer, each as JSON."""

_encode = msgspec.json.Encoder().encode
_fields = msgspec.json.Decoder(Fields).decode
_text = msgspec.json.Decoder(str).decode

STATUSES = (
    (re.compile("not found$"), 404),
    (re.compile("^Timeout waiting"), 408),
    (re.compile("^Duplicate job|^Debounced"), 409),
    (re.compile("^Invalid token$"), 401),
)
"""Status of errors in flashQ's own words; others have that of the core's error."""


class Refused(Exception):
    """An error to answer with: a status and one sentence."""

    def __init__(self, status: int, error: str, retry_after_ms: int | None = None) -> None:
        super().__init__(error)
        self.status, self.error, self.retry_after_ms = status, error, retry_after_ms


def refused(error: ForebayError) -> Refused:
    """Return an error of the core or of the codec as the door puts it."""
    return Refused(error.status, error.message, error.retry_after_ms if isinstance(error, Busy) else None)


class Commands:
    """Runs commands, for as long as their client is there."""

    def __init__(self, door: Door, services: Services, feeds: Feeds) -> None:
        self._door, self._services, self._feeds = door, services, feeds
        self.node = services.questions.node

    async def ask(self, scope: Scope, receive: Receive, cmd: str, fields: Fields) -> Fields:
        """Run a command by its name; return its answer, or raise Refused."""
        named = {**fields, "cmd": Raw(_encode(cmd))}
        return await self.run(scope, receive, _encode(named))

    async def run(self, scope: Scope, receive: Receive, body: bytes) -> Fields:
        """Run a command as it would come over TCP; return its answer, or raise Refused."""
        tenant = context_of(scope).tenant
        asked = Asked(UNREAD, CARRIER, tenant, peer=scope.get("client"), given=scope.get("path_params", {}))
        asked.id = scope.get(GIVEN_ID, b"").decode() or UNSET
        began = asyncio.get_running_loop().time()
        try:
            answer = await self._run(scope, receive, body, asked)
        except Gone:
            scope[TOLD] = True
            raise
        except Refused:
            self._tell(scope, asked, began)
            raise
        self._tell(scope, asked, began)
        return answer

    def _tell(self, scope: Scope, asked: Asked, began: float) -> None:
        """Have the log tell of a command, if it is to."""
        scope[TOLD] = True
        took, access = asyncio.get_running_loop().time() - began, self._services.access
        if asked.outcome != DONE or took >= access.over_s or asked.command in ACTS:
            asked.ms = took * 1000
            access.tell(asked)

    async def _run(self, scope: Scope, receive: Receive, body: bytes, asked: Asked) -> Fields:
        """Run a command, and note in ``asked`` what is known of it."""
        caller = self._door.context(0, self.node.limits, context_of(scope).principal)
        try:
            request = asked.request = self._door.decode(body)
            asked.command = command_of(type(request))
            reply = asked.reply = await self._reply(request, caller, scope, receive)
            asked.outcome = outcome_of(reply)
        except ForebayError as error:
            if asked.request is None:
                seen = self._door.glimpse(body)
                asked.command = seen.command or UNREAD
                asked.given = {"queue": seen.queue, **asked.given}
            asked.reply, asked.outcome = error, error.code
            raise self._refusal(error, _fields(self._door.encode_error(error))) from None
        finally:
            self._door.ended(caller)
        if isinstance(reply, Popped):
            if is_gone(scope):
                self.node.give_back(reply)
                raise Gone
            scope[LEASED] = reply
        try:
            answer = _fields(self._door.encode(request, reply, caller))
        except Exception:
            logger.exception("bug: the answer to %s could not be put", type(request).__name__)
            self.node.give_back(reply)
            asked.outcome = Busy.code
            raise Refused(503, "the server met a bug of its own") from None
        if bytes(answer["ok"]) == b"true":
            self._feeds.notice(caller.tenant, request, reply)
            return answer
        asked.outcome = "error" if asked.outcome == DONE else asked.outcome
        raise self._refusal(reply, answer)

    async def _reply(self, request: Any, caller: Caller, scope: Scope, receive: Receive) -> Any:
        """Return what the codec is given to answer; raise only what is wrong with the request itself."""
        if request.is_auth:
            return self._door.identify(request.token, self._services.auth)
        if type(request) not in caller.may:
            self._door.allowed(request, caller)
        if not request.is_command:
            try:
                return await self._carried_out(request, caller, scope, receive)
            except ForebayError as error:
                return error
        try:
            command = request.command(caller)
        except Ready as ready:
            return ready.reply
        if caller.is_narrow:
            caller.check_command(self.node, command)
        if may_wait(command):
            return await Patient(self.node).answer(command, scope, receive)
        return await self._services.questions.ask(command)

    async def _carried_out(self, request: Any, context: Any, scope: Scope, receive: Receive) -> Any:
        """Return the reply to a request that is more than one command; raise Gone if its client goes."""
        carried = asyncio.ensure_future(request.carry_out(self._services, context))
        gone = asyncio.ensure_future(until_gone(scope, receive))
        try:
            await asyncio.wait((carried, gone), return_when=asyncio.FIRST_COMPLETED)
            if not carried.done():
                raise Gone
            return carried.result()
        finally:
            gone.cancel()
            carried.cancel()

    @staticmethod
    def _refusal(reply: Any, answer: Fields) -> Refused:
        """Return the error of an answer. Its status follows what the door says: where that is not the core's
        error, there is nothing else to go by."""
        text = _text(answer["error"])
        status = next((status for words, status in STATUSES if words.search(text)), None)
        if not isinstance(reply, ForebayError):
            return Refused(status or 409, text)
        found = refused(reply)
        return Refused(status or found.status, text, found.retry_after_ms)
