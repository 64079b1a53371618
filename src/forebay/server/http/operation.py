"""Base classes and types of all HTTP operations.

An operation is a class: its fields are what the body (or the query, for GET and DELETE) may hold, ``command``
returns the core's command, ``reply`` renders the core's reply. The OpenAPI document is generated from the
same classes.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from forebay.core import ids
from forebay.core.api import commands as core
from forebay.core.keyvalue import keys
from forebay.core.words import DEFAULT

Id = int | str
"""A message id: a number, sent as a decimal string from 2**53 on. UUIDs are accepted, too."""
KeyPart = str | int | float | bool
Key = str | list[KeyPart]
"""Key of a value; a string is a key of one part."""


class Asked(Struct, frozen=True, gc=False):
    """Tenant and path of a request."""

    tenant: str = DEFAULT
    path: dict[str, str] = {}
    """Path parameters."""
    raw_path: bytes = b""
    """The whole path as received, still escaped."""
    owner: int = 0
    """The connection that leases belong to; 0 for none."""

    @property
    def queue(self) -> str:
        return self.path["queue"]


class Request(Struct, forbid_unknown_fields=True, gc=False, kw_only=True):
    """Fields of the body or the query of an operation."""

    def nested(self) -> tuple[int, int]:
        """Return the levels of nesting around its payloads and the length of the longest, 0 for none."""
        return 0, 0

    def command(self, asked: Asked) -> core.Command:
        raise NotImplementedError

    def reply(self, reply: Any, asked: Asked) -> Struct:
        raise NotImplementedError


class Operation(Struct, frozen=True):
    """One operation, as in the table of routes and in the OpenAPI document."""

    method: str
    path: str
    request: type[Request]
    answer: type[Struct]
    summary: str
    tag: str

    @property
    def name(self) -> str:
        return self.request.__name__

    @property
    def has_body(self) -> bool:
        return self.method in ("POST", "PUT")


class View(Struct, frozen=True):
    """A read-only resource, a stream or a page; its options are in the query."""

    path: str
    name: str
    request: type[Request]
    answer: type[Struct] | None
    """The response, or each event of a stream; None if it is not JSON."""
    kind: str
    """Its Content-Type."""
    summary: str
    about: str
    events: tuple[str, ...] = ()
    """Names of the events of a stream; ``about`` describes any others."""
    statuses: tuple[int, ...] = ()
    """Status codes of errors."""
    tag: str = "server"


def shown(message: int) -> Id:
    """Return an id for a reply: as a string if it is too large for JavaScript's numbers."""
    return message if message < ids.JSON_SAFE else str(message)


def shown_all(messages: Sequence[int]) -> Sequence[Id]:
    return messages if not messages or max(messages) < ids.JSON_SAFE else list(map(str, messages))


def addresses(given: Sequence[Id]) -> list[int]:
    """Return the ids of a request as numbers."""
    return list(map(ids.parse, given))


def packed(key: Key) -> bytes:
    """Return a key in the core's encoding."""
    return keys.pack([key] if isinstance(key, str) else key)


def longest(payloads: Sequence[Raw]) -> int:
    return max(map(len, payloads), default=0)


encode: Callable[[object], bytes] = msgspec.json.Encoder().encode
