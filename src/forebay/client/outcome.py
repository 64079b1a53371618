"""The part of a response that says whether it is an error, shared by all connections."""

from typing import Any

import msgspec
from msgspec import Struct

from forebay.client.errors import Disconnected, error_of
from forebay.core.errors import ForebayError
from forebay.wire.framing import BEGINS_BYTES, Foreign


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
    """Decode the common fields. Raises ``Foreign`` if a response is not a Forebay server's."""
    try:
        return checked(_outcome(body))
    except msgspec.DecodeError:
        raise Foreign(body[:BEGINS_BYTES]) from None


def said(body: bytes) -> str:
    """Return the beginning of what was answered, on one line.

    >>> said(b"<html>\\n  Bad\\x07 Gateway")
    '<html> Bad\\\\x07 Gateway'
    """
    text = " ".join(body[:SAID_BYTES].decode(errors="replace").split())
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


SAID_BYTES = 200
"""Most bytes of an answer that are shown."""


class Failure(Struct):
    """An error response over HTTP."""

    error: Outcome.Refusal


def failure(body: bytes, status: int, server: str) -> ForebayError:
    """Return the error in an HTTP response, which may come from a proxy in between."""
    try:
        problem = msgspec.json.decode(body, type=Failure).error
    except msgspec.DecodeError:
        # From a gateway: the server may have executed the request, or not.
        return Disconnected(
            f"{server} answered HTTP {status}, and not as a Forebay server does: {said(body)}"
        )
    return error_of(problem.code, problem.message, problem.details)
