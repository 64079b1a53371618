"""How HTTP carries an operation: its route, and the class that its body or query is decoded into.

Fields in the path are not in the body: they get other names there, which nobody uses, and are set from the
path.
"""

from collections.abc import Callable
from typing import Any, ClassVar
from urllib.parse import unquote

import msgspec
from msgspec import UNSET, Struct, UnsetType
from starlette.types import Scope

from forebay.core.errors import Invalid
from forebay.server.decode_errors import HIDDEN
from forebay.wire.operation import Operation, Route
from forebay.wire.types import Key, KeyPart

VALUES = "/v1/kv/"
"""Path in front of a key."""


class Query(Struct, forbid_unknown_fields=True, gc=False, kw_only=True):
    """What the query of a view, or the body of an operation that only HTTP has, may hold."""

    needs: ClassVar[tuple[str, ...]] = ()
    """Roles, one of which a view needs; none if it is for everybody, also without a token."""

    def nested(self) -> tuple[int, int]:
        return 0, 0


class Bound(Struct, frozen=True):
    """An operation on one of its routes."""

    operation: Operation
    route: Route
    kind: type[Any]
    """The class that a body or query is decoded into."""
    unset: dict[str, Any] = {}
    """Fields that this route does not carry, as they are if nobody gives them."""

    @property
    def name(self) -> str:
        return self.route.name or self.operation.request.__name__

    @property
    def summary(self) -> str:
        return self.route.summary or self.operation.summary


class View(Struct, frozen=True):
    """A read-only resource, a stream or a page; its options are in the query."""

    path: str
    name: str
    request: type[Query]
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


UNSAID = ("reqId", "tenant")
"""Fields of every request that HTTP carries otherwise: in headers."""


def bound(operation: Operation, route: Route, kind: type[Struct]) -> Bound:
    """Bind an operation to a route; ``kind`` is the class that carries it out."""
    fields = msgspec.structs.fields(kind)
    taken = {*route.places, *UNSAID}
    if route.fields is not None:
        taken |= {each.name for each in fields} - set(route.fields)
    own: list[Any] = []
    unset: dict[str, Any] = {}
    for each in fields:
        if each.name in taken:
            default = UNSET if each.required or each.name in route.places else each.default
            hidden = msgspec.field(default=default, name=f"{HIDDEN}{each.encode_name}")
            own.append((each.name, each.type | UnsetType, hidden))
            if each.name not in (*route.places, *UNSAID):
                unset[each.name] = default
        elif each.name in route.given:
            own.append((each.name, type(route.given[each.name]), route.given[each.name]))
    made = msgspec.defstruct(
        f"{kind.__name__}Body", own, bases=(kind,), tag=False, kw_only=True, module=__name__
    )
    return Bound(operation, route, made, unset)


def places_of(scope: Scope) -> dict[str, Any]:
    """Return the fields in the path of a request."""
    found: dict[str, Any] = dict(scope["path_params"])
    if "key" in found:
        found["key"] = key_of(found["key"], scope.get("raw_path", b""))
    return found


def key_of(path: str, raw_path: bytes) -> Key:
    """Return the key in a path: each part of the path is a string, in which %2F is a slash."""
    if b"%2f" in raw_path.lower():
        return parts_of([unquote(part) for part in raw_path.decode().removeprefix(VALUES).split("/")])
    return parts_of(path.split("/"))


def parts_of(parts: list[str]) -> Key:
    if not all(parts):
        raise Invalid("key", "parts that are not empty, with / between them")
    found: list[KeyPart] = list(parts)
    return found


encode: Callable[[object], bytes] = msgspec.json.Encoder().encode
