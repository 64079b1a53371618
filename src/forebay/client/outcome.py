"""The part of a response that says whether it is an error, shared by all connections."""

from typing import Any

import msgspec
from msgspec import Struct

from forebay.client.errors import Disconnected, error_of
from forebay.core.errors import ForebayError


class Outcome(Struct):
    """The common fields of every response."""

    class Refusal(Struct):
        code: str = ""
        message: str = ""
        details: dict[str, Any] = {}

    ok: bool
    error: Any = None
    """Of a refusal; a response without one may have a field of this name that means something else."""
    reqId: int = 0

    @property
    def refusal(self) -> Refusal:
        return msgspec.convert(self.error, Outcome.Refusal)

    @property
    def code(self) -> str:
        return "" if self.ok else self.refusal.code

    def problem(self) -> ForebayError:
        refusal = self.refusal
        return error_of(refusal.code, refusal.message, refusal.details)


_outcome = msgspec.json.Decoder(Outcome).decode


def checked(found: Outcome) -> Outcome:
    """Raise unless an error is one of a Forebay server: other servers may say ``ok``, too."""
    if not found.ok:
        msgspec.convert(found.error, Outcome.Refusal)
    return found


def outcome(body: bytes) -> Outcome:
    """Decode the common fields. Raises ``ConnectionError`` if a response is not a Forebay server's."""
    try:
        return checked(_outcome(body))
    except msgspec.DecodeError as error:
        raise ConnectionError(f"what answers there is no Forebay server: {error}") from None


class Failure(Struct):
    """An error response over HTTP."""

    error: Outcome.Refusal


def failure(body: bytes, status: int) -> ForebayError:
    """Return the error in an HTTP response, which may come from a proxy in between."""
    try:
        problem = msgspec.json.decode(body, type=Failure).error
    except msgspec.DecodeError:
        said = body[:200].decode(errors="replace")
        # From a gateway: the server may have executed the request, or not.
        return Disconnected(f"HTTP {status}, and no answer of a Forebay server: {said}")
    return error_of(problem.code, problem.message, problem.details)
