"""Headers of a request, looked up by name."""

from starlette.types import Scope

from forebay.core.errors import Invalid

FOUND = "forebay.headers"
"""Key in the scope: the headers by name, from the first look-up on."""


def headers(scope: Scope) -> dict[bytes, bytes]:
    """Return the headers of a request by name: the first of each name."""
    found: dict[bytes, bytes] | None = scope.get(FOUND)
    if found is None:
        found = scope[FOUND] = dict(reversed(scope["headers"]))
    return found


def header(scope: Scope, name: bytes) -> bytes:
    """Return a header of a request; empty if it is absent."""
    return headers(scope).get(name, b"")


def check_once(scope: Scope, *names: bytes) -> None:
    """Raise if one of these headers is there twice: others on the way may have read the other one."""
    if len(headers(scope)) < len(scope["headers"]):
        given = [name for name, _ in scope["headers"]]
        for name in names:
            if given.count(name) > 1:
                raise Invalid(name.decode(), "one header of this name")
