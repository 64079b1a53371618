"""What a client tells of identities: who it is, tenants, and tokens."""

from typing import Any

from msgspec import Struct


class Identity(Struct, frozen=True):
    """Who a client is to the server."""

    tenant: str
    role: str
    """``read``, ``push``, ``pop``, ``write``, ``owner`` or ``admin``."""
    name: str
    """For people, as it was given to the token."""
    queues: tuple[str, ...] = ()
    """Patterns of the queues that it is for; all if empty."""
    expires_at: int | None = None
    """When it is nobody any more; None for never."""


class Tenant(Struct, frozen=True):
    """A tenant."""

    tenant: str
    spread: bool
    """Whether its queues are spread over shards."""
    suspended: bool
    """Whether everything that it asks for is denied."""
    created_at: int


class Token(Struct, frozen=True):
    """A token, without its secret."""

    id: str
    """What it is known by; no secret."""
    role: str
    name: str
    queues: tuple[str, ...]
    """Patterns of the queues that it is for; all if empty."""
    created_at: int
    expires_at: int | None = None
    last_used_at: int | None = None
    """May be a minute old; None for never."""


class NewToken(Struct, frozen=True):
    """A token that was created just now: ``token`` is what its owner shows, and is not shown again."""

    id: str
    token: str
    tenant: str
    role: str
    name: str
    queues: tuple[str, ...]
    created_at: int
    expires_at: int | None = None

    def __repr__(self) -> str:
        """Return it without its secret."""
        return f"NewToken(id={self.id!r}, tenant={self.tenant!r}, role={self.role!r}, name={self.name!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Return the same for rich, which would be given all fields otherwise."""
        return [("id", self.id), ("tenant", self.tenant), ("role", self.role), ("name", self.name)]
