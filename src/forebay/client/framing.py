"""Frames as a client sends and reads them: both kinds of connections share this."""

from typing import Any

import msgspec
from msgspec import Struct

from forebay.client.errors import Disconnected, error_of
from forebay.core.errors import ForebayError

HEAD = 4
FRAME_BYTES_MAX = 1 << 30
"""No answer is longer."""


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


def framed(body: bytes, number: int = 0) -> bytes:
    """A request as a frame, with a number for the answer to come back to."""
    if number:
        body = b'{"reqId":%d,%b' % (number, body[1:])
    return len(body).to_bytes(HEAD, "big") + body


class Frames:
    """Cuts what comes into answers."""

    def __init__(self) -> None:
        self._got = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The answers that are complete with this; raises if these are none of a Forebay server."""
        got = self._got
        got += data
        found = []
        at = 0
        while len(got) - at >= HEAD:
            end = at + HEAD + int.from_bytes(got[at : at + HEAD], "big")
            if end - at > FRAME_BYTES_MAX:
                raise ConnectionError("what answers there does not speak as a Forebay server does")
            if len(got) < end:
                break
            found.append(bytes(got[at + HEAD : end]))
            at = end
        del got[:at]
        return found
