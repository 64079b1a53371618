"""Any request of TCP over HTTP, for clients that use both."""

from starlette.types import Receive, Scope

from forebay.core.errors import ForebayError, Invalid, Unsupported
from forebay.server.http.endpoint import SEEN, Endpoint, check_no_query
from forebay.server.http.operation import Bound, Query
from forebay.server.http.request_body import whole
from forebay.server.operations import codec
from forebay.server.tcp.codec import Services
from forebay.wire.operation import Answer
from forebay.wire.text import check_text


class Command(Query, forbid_unknown_fields=False, kw_only=True):
    """A request as it is sent over TCP, with its fields beside ``cmd``."""

    cmd: str


class CommandAnswer(Answer, kw_only=True):
    """The answer to the request, with its fields beside ``ok``."""


class CommandEndpoint(Endpoint):
    """Carries out requests of TCP."""

    def __init__(self, bound: Bound, services: Services, body_bytes_max: int) -> None:
        super().__init__(bound, services, body_bytes_max)
        self._command = None

    def in_our_words(self, error: ForebayError) -> ForebayError:
        return error

    async def _answer(self, scope: Scope, receive: Receive) -> Answer:
        check_no_query(scope)
        body = await whole(scope, receive, self._body_bytes_max)
        try:
            check_text(body)
            request = codec.decode(body)
        except Invalid as error:
            scope[SEEN] = codec.glimpse(body)
            raise Invalid("body", error.accepted) if error.field == "frame" else error from None
        try:
            if request.is_auth and request.token is not None:
                raise Unsupported("AUTH is not supported here: every request carries Authorization: Bearer")
            return codec.said(await self.carried_out(request, scope, receive), request.reqId)
        except ForebayError as error:
            raise codec.in_words(request, error) from None
