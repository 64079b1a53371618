"""Errors that a client raises.

    ForebayError
    ├── Invalid, Denied, NotFound, Conflict, Busy, Damaged, Unsupported      as in core/errors.py
    ├── Refused          an error of the server whose code this client does not know
    └── Disconnected     the server could not be reached, or did not respond
        └── NotForebay   something else than a Forebay server responds at the address
            └── NotTrusted   over TLS, one of the two does not trust the certificate of the other

All have a stable ``code``, and ``details`` for programs.
"""

from typing import Any

from forebay.core.errors import CODES, Busy, ForebayError, Invalid


class Disconnected(ForebayError):
    """The server could not be reached, or the connection was lost."""

    code = "disconnected"
    status = 503

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent
        """Whether the request may have been executed all the same."""


class NotForebay(Disconnected):
    """Something else answers at the address. The request is not sent again: the address is wrong."""

    def __init__(self, message: str) -> None:
        super().__init__(message, sent=False)


class NotTrusted(NotForebay):
    """Over TLS, a certificate was not trusted. Nothing was sent, and nothing is sent again."""


class Refused(ForebayError):
    """The server refused the request, with a code and details."""

    def __init__(self, message: str, code: str, details: dict[str, Any]) -> None:
        super().__init__(message)
        self.code = code  # type: ignore[misc]
        self._details = details

    @property
    def details(self) -> dict[str, Any]:
        return self._details


def error_of(code: str, message: str, details: dict[str, Any]) -> ForebayError:
    """Return an error of the server as an exception of its kind.

    >>> error_of("busy", "the queue is full", {"retry_after_ms": 50}).retry_after_ms
    50
    """
    kind = CODES.get(code)
    if kind is None:
        return Refused(message, code, details)
    error = kind.__new__(kind)
    ForebayError.__init__(error, message)
    error.place = str(details.get("field", ""))
    if isinstance(error, Busy):
        error.retry_after_ms = int(details.get("retry_after_ms", 1_000))
    elif isinstance(error, Invalid):
        error.field, error.accepted = error.place, str(details.get("accepted", ""))
    return error
