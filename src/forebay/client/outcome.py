"""Frames as a client sends and reads them: both kinds of connections share this."""

from typing import Any

import msgspec
from msgspec import Struct

from forebay.client.errors import Disconnected, error_of
from forebay.core.errors import ForebayError


class Outcome(Struct):
    """What every answer says first."""

    ok: bool
    error: str = ""
    code: str = ""
    details: dict[str, Any] = {}
    reqId: int = 0

    def problem(self) -> ForebayError:
        return error_of(self.code, self.error, self.details)


_outcome = msgspec.json.Decoder(Outcome).decode


def outcome(body: bytes) -> Outcome:
    """What an answer says first; raises ``ConnectionError`` if it is none of a Forebay server."""
    try:
        return _outcome(body)
    except msgspec.DecodeError as error:
        raise ConnectionError(f"what answers there is no Forebay server: {error}") from None


class Failure(Struct):
    """What is said over HTTP instead of an answer."""

    class Problem(Struct):
        code: str = ""
        message: str = ""
        details: dict[str, Any] = {}

    error: Problem


def failure(body: bytes, status: int) -> ForebayError:
    """The error in an answer over HTTP; a proxy in between may have said something of its own."""
    try:
        problem = msgspec.json.decode(body, type=Failure).error
    except msgspec.DecodeError:
        said = body[:200].decode(errors="replace")
        # A gateway that gave up: the server may have carried it out, or not.
        return Disconnected(f"HTTP {status}, and no answer of a Forebay server: {said}")
    return error_of(problem.code, problem.message, problem.details)
