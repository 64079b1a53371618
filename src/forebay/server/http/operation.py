"""What every operation of the HTTP API has in common.

An operation is a class: its fields are what the body (or, of GET and DELETE, the query) may hold, ``command``
is the core command it stands for, ``reply`` how the core's reply is put. The OpenAPI document is made from
the same classes.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from forebay.core import ids
from forebay.core.api import commands as core
from forebay.core.errors import Invalid
from forebay.core.keyvalue import keys
from forebay.core.words import DEFAULT

Id = int | str
"""A message id: a number, which from 2**53 on goes out as a decimal string. UUIDs are taken, too."""
KeyPart = str | int | float | bool
Key = str | list[KeyPart]
"""A key of a value: a text alone is a key of one part."""


class Asked(Struct, frozen=True, gc=False):
    """Who asks, and for what place."""

    tenant: str = DEFAULT
    path: dict[str, str] = {}
    """What stands in the places of the path."""
    raw_path: bytes = b""
    """All of the path as it came, with what is escaped in it."""
    owner: int = 0
    """The connection that keeps what it is given, if it does."""

    @property
    def queue(self) -> str:
        return self.path["queue"]


class Request(Struct, forbid_unknown_fields=True, gc=False, kw_only=True):
    """What the body or the query of an operation holds."""

    def nested(self) -> tuple[int, int]:
        """Levels of nesting around its payloads, and the length of the longest; 0 if it has none."""
        return 0, 0

    def command(self, asked: Asked) -> core.Command:
        raise NotImplementedError

    def reply(self, reply: Any, asked: Asked) -> Struct:
        raise NotImplementedError


class Operation(Struct, frozen=True):
    """One thing that can be asked for, as it stands in the table and in the OpenAPI document."""

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
    """Something that is only looked at: a stream, or a page. What can be asked of it is in the query."""

    path: str
    name: str
    request: type[Request]
    answer: type[Struct] | None
    """What it shows, or each event of a stream; None if that is no JSON."""
    kind: str
    """Its Content-Type."""
    summary: str
    about: str
    events: tuple[str, ...] = ()
    """What events of a stream are called; what else may come is told in ``about``."""
    statuses: tuple[int, ...] = ()
    """Of errors."""
    tag: str = "server"


def shown(message: int) -> Id:
    """An id as it goes out: numbers that JavaScript can't hold go as strings."""
    return message if message < ids.JSON_SAFE else str(message)


def shown_all(messages: Sequence[int]) -> Sequence[Id]:
    return messages if not messages or max(messages) < ids.JSON_SAFE else list(map(str, messages))


def addresses(given: Sequence[Id]) -> list[int]:
    """The ids of a request as numbers."""
    return list(map(ids.parse, given))


def packed(key: Key) -> bytes:
    """A key as the core knows it."""
    return keys.pack([key] if isinstance(key, str) else key)


def longest(payloads: Sequence[Raw]) -> int:
    return max(map(len, payloads), default=0)


encode: Callable[[object], bytes] = msgspec.json.Encoder().encode


def only_one(**given: object) -> None:
    """Raise unless exactly one of some fields is given."""
    names = [name for name, value in given.items() if value is not msgspec.UNSET and value is not None]
    if len(names) != 1:
        first, *others = given
        raise Invalid(first, f"given, or else {' or '.join(others)}, and only one of them")
