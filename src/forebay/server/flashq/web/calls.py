"""One request of the door: its fields from path, query and body, and the commands it may run."""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from msgspec import Raw
from starlette.types import Receive, Scope

from forebay.core.errors import ForebayError
from forebay.core.words import DEFAULT
from forebay.server.flashq.web.commands import Commands, Fields, Refused, refused
from forebay.server.http.identity import context_of
from forebay.server.http.request_body import QUERY_FIELDS_MAX, whole
from forebay.server.operations.carried import Context
from forebay.wire.text import check_text

_encode = msgspec.json.Encoder().encode
_object = msgspec.json.Decoder(Fields).decode
_number = re.compile(r"-?[0-9]{1,30}")

NUMBERS = frozenset({"id", "parent_id", "count", "limit", "offset", "timeout", "grace"})
"""Fields that are numbers where they stand in a path or a query."""
PAYLOADS = frozenset({"data", "result"})
"""Fields in which null is a value; elsewhere it means that the field is not given."""
ALL = {"*": "*"}
"""Take every field of a body."""


def as_json(name: str, text: str) -> Raw:
    """Return a field of a path or a query as JSON.

    >>> [bytes(as_json(name, "7")) for name in ("id", "queue")]
    [b'7', b'"7"']
    """
    if name in NUMBERS and _number.fullmatch(text):
        return Raw(_encode(int(text)))
    return Raw(_encode(text))


class Call:
    """One request."""

    def __init__(self, commands: Commands, scope: Scope, receive: Receive, body_bytes_max: int) -> None:
        self.commands, self.scope, self._receive = commands, scope, receive
        self._body_bytes_max = body_bytes_max

    @property
    def context(self) -> Context:
        """Who asks, for which tenant."""
        return context_of(self.scope)

    def require(self, needs: tuple[str, ...], what: str, *, of_server: bool = False) -> None:
        """Raise unless who asks has one of these roles, for all queues of its tenant."""
        context = self.context
        principal = context.principal
        if principal is None:
            raise Refused(401, "Invalid or missing authentication token")
        if not principal.may(needs):
            raise Refused(403, f"{what} needs the role {' or '.join(needs)}")
        if context.queues or (of_server and not (principal.is_admin or context.tenant == DEFAULT)):
            raise Refused(403, f"{what} is not for tokens of some queues, or of other tenants")

    @property
    def path(self) -> dict[str, str]:
        found: dict[str, str] = self.scope["path_params"]
        return found

    def of_path(self) -> Fields:
        return {name: as_json(name, text) for name, text in self.path.items()}

    def of_query(self, names: tuple[str, ...]) -> Fields:
        """Return the fields of the query that have one of these names; others are ignored, as flashQ does."""
        if not self.scope["query_string"]:
            return {}
        try:
            pairs = parse_qsl(
                self.scope["query_string"].decode(), errors="strict", max_num_fields=QUERY_FIELDS_MAX
            )
        except (ValueError, UnicodeDecodeError):
            raise Refused(400, f"The query must be at most {QUERY_FIELDS_MAX} fields of UTF-8") from None
        found = {name: text for name, text in pairs if name in names}
        for name, text in found.items():
            if name in NUMBERS and not _number.fullmatch(text):
                raise Refused(400, f"{name} must be a whole number")
        return {name: as_json(name, text) for name, text in found.items()}

    async def body(self) -> bytes:
        try:
            body = await whole(self.scope, self._receive, self._body_bytes_max)
            if not body.isascii():
                check_text(body)
            return body
        except ForebayError as error:
            raise refused(error) from None

    async def of_body(self, names: Mapping[str, str]) -> Fields:
        """Return the fields of the body: by their names there, under their names in the command."""
        body = await self.body()
        try:
            given = _object(body) if body.strip() else {}
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise Refused(400, "The body must be a JSON object") from None
        if names is not ALL:
            given = {names[name]: value for name, value in given.items() if name in names}
        return {name: value for name, value in given.items() if name in PAYLOADS or bytes(value) != b"null"}

    async def read(self, kind: type[Any]) -> Any:
        """Return the body as a value of this type."""
        body = await self.body()
        try:
            return msgspec.json.decode(body or b"{}", type=kind)
        except msgspec.ValidationError as error:
            raise Refused(400, _sentence(error)) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise Refused(400, "The body must be a JSON object") from None

    async def ask(self, cmd: str, fields: Fields | None = None) -> Fields:
        return await self.commands.ask(self.scope, self._receive, cmd, fields or {})

    async def run(self, body: bytes) -> Fields:
        return await self.commands.run(self.scope, self._receive, body)


def _sentence(error: msgspec.ValidationError) -> str:
    """Return what is wrong with a body: msgspec says what it expected, and where.

    >>> _sentence(msgspec.ValidationError("Expected `str`, got `int` - at `$.url`"))
    'Invalid body: expected `str`, got `int` - at `url`'
    """
    text = str(error).replace("`$.", "`")
    return f"Invalid body: {text[0].lower()}{text[1:]}"


Handler = Callable[[Call], Awaitable[Raw]]
"""Answers a request: returns the data of its envelope, or raises Refused."""
