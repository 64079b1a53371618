"""Tokens: what is kept of them."""

from msgspec import Struct


class Token(Struct, gc=False):
    """A token as it is kept: its secret can't be found from it."""

    id: str
    tenant: str
    role: str
    name: str
    queues: tuple[str, ...]
    created_at: int
    expires_at: int
    """0 for never."""
    salt: bytes
    digest: bytes
    """Hash of salt and secret."""
    used_at: int = 0
    """When it was last used, give or take half a minute; 0 if never."""
