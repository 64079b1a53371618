"""The part of a response that says whether it is an error, shared by all connections."""

from typing import Any

import msgspec
from msgspec import Struct

from forebay.client.errors import Disconnected, error_of
from forebay.core.errors import ForebayError


class Outcome(Struct):
    """The common fields of every response."""

    ok: bool
    error: str = ""
    code: str = ""
    details: dict[str, Any] = {}
    reqId: int = 0

    def problem(self) -> ForebayError:
        return error_of(self.code, self.error, self.details)


_outcome = msgspec.json.Decoder(Outcome).decode


def outcome(body: bytes) -> Outcome:
    """Decode the common fields. Raises ``ConnectionError`` if a response is not a Forebay server's."""
    try:
        return _outcome(body)
    except msgspec.DecodeError as error:
        raise ConnectionError(f"what answers there is no Forebay server: {error}") from None


class Failure(Struct):
    """An error response over HTTP."""

    class Problem(Struct):
        code: str = ""
        message: str = ""
        details: dict[str, Any] = {}

    error: Problem


def failure(body: bytes, status: int) -> ForebayError:
    """Return the error in an HTTP response, which may come from a proxy in between."""
    try:
        problem = msgspec.json.decode(body, type=Failure).error
    except msgspec.DecodeError:
        said = body[:200].decode(errors="replace")
        # From a gateway: the server may have executed the request, or not.
        return Disconnected(f"HTTP {status}, and no answer of a Forebay server: {said}")
    return error_of(problem.code, problem.message, problem.details)
