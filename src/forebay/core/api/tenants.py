"""Commands about tenants and their tokens, which change or read the control records."""

from typing import ClassVar

from msgspec import Struct

from forebay.core.api.queries import Query
from forebay.core.state import Token as Token


class OfControl:
    """Commands about the control records. They are routed by no tenant."""

    __slots__ = ()
    tenant: ClassVar[str] = ""


class TenantPut(OfControl, Struct, gc=False):
    """Make a tenant, whole in one shard or spread by queue, which is fixed from then on; or suspend one.

    A tenant that is used without this lives in one shard.
    """

    name: str
    spread: bool | None = None
    """Left as it is if None: a new tenant is not spread."""
    suspended: bool | None = None
    """Left as it is if None. What a suspended tenant asks for is denied; nothing of it is lost."""
    must_exist: bool = False


class TenantFound(Struct, gc=False):
    name: str
    spread: bool
    suspended: bool
    created_at: int


class TenantGet(OfControl, Query, gc=False):
    """A tenant, which must exist."""

    name: str


class TenantList(OfControl, Query, gc=False):
    """Tenants by name."""

    after: str | None = None
    """Only names after this one."""
    count: int = 1_000


class TenantsFound(Struct, gc=False):
    tenants: list[TenantFound]
    more: bool


class TokenPut(OfControl, Struct, gc=False):
    """Keep a new token. Its tenant is made if there is none of this name."""

    token: Token


class TokenList(OfControl, Query, gc=False):
    """The tokens of a tenant, the oldest first."""

    of: str


class TokensFound(Struct, gc=False):
    tokens: list[Token]


class TokenDelete(OfControl, Struct, gc=False):
    """Forget a token of a tenant: who shows it is nobody from now on."""

    of: str
    id: str
    keep_admin: bool = False
    """Whether it is a conflict if no token of an admin would be left."""


class TokensUsed(OfControl, Struct, gc=False):
    """Note when tokens were last used; those that are gone are passed over."""

    used_at: dict[str, int]
