"""Tenants, their tokens, and authentication."""

from msgspec import UNSET, Struct, UnsetType, field

from forebay.core.api.principals import ADMIN, ANY, OWNER, READ
from forebay.wire.operation import Answer, Operation, Request, Route


class Auth(Request, tag="AUTH", kw_only=True):
    """Authenticate this connection with a token; without one, return its identity.

    Over HTTP every request carries its token, as `Authorization: Bearer`.
    """

    token: str | None = None


class Identity(Answer, kw_only=True):
    """The identity of a connection or request: for all queues of the tenant, or those matching ``queues``."""

    tenant: str
    role: str
    name: str
    queues: list[str]
    expires_at: int | None = None


class PutTenant(Request, tag="TENANTPUT", kw_only=True):
    """Create a tenant, or suspend and resume one.

    Whether its queues are ``spread`` over shards is fixed once it exists. What a suspended tenant asks for is
    denied, its crons wait, and nothing of it is lost.
    """

    tenant: str | UnsetType = UNSET
    spread: bool | None = None
    suspended: bool | None = None


class GetTenant(Request, tag="TENANT", kw_only=True):
    """Return a tenant."""

    tenant: str | UnsetType = UNSET


class ListTenants(Request, tag="TENANTS", kw_only=True):
    """List tenants by name, those after ``after``."""

    after: str | None = None
    limit: int = 1_000


class TenantShown(Answer, kw_only=True):
    """A tenant."""

    tenant: str
    spread: bool
    suspended: bool
    created_at: int


class Tenants(Answer, kw_only=True):
    """Tenants, and whether there are more."""

    tenants: list[TenantShown]
    more: bool


class CreateToken(Request, tag="TOKENCREATE", kw_only=True):
    """Create a token with a role, for all queues of the tenant or for those that match ``queues``.

    It expires after ``expires_ms``; without that, never.
    """

    tenant: str | UnsetType = UNSET
    role: str
    queues: list[str] = field(default_factory=list)
    name: str = ""
    expires_ms: int | None = None


class TokenShown(Struct, gc=False, kw_only=True):
    """A token, without its secret. ``last_used_at`` may be half a minute old."""

    id: str
    role: str
    name: str
    queues: list[str]
    created_at: int
    expires_at: int | None = None
    last_used_at: int | None = None


class CreatedToken(Answer, kw_only=True):
    """The new token. ``token`` is what its owner shows; it is not shown again."""

    id: str
    token: str
    tenant: str
    role: str
    name: str
    queues: list[str]
    created_at: int
    expires_at: int | None = None


class ListTokens(Request, tag="TOKENS", kw_only=True):
    """List the tokens of a tenant, the oldest first."""

    tenant: str | UnsetType = UNSET


class Tokens(Answer, kw_only=True):
    """The tokens of a tenant."""

    tokens: list[TokenShown]


class RevokeToken(Request, tag="TOKENREVOKE", kw_only=True):
    """Revoke a token: who shows it is refused from now on, and connections that did are closed."""

    tenant: str | UnsetType = UNSET
    id: str


class Revoked(Answer, kw_only=True):
    """The token that was revoked."""

    id: str


TAG = "tenants"
ONE = "/v1/tenants/{tenant}"
OPERATIONS = [
    Operation(Auth, Identity, ANY, TAG, "Authenticate", (Route("GET", "/v1/auth", ()),), {}),
    Operation(ListTenants, Tenants, ADMIN, TAG, "List tenants", (Route("GET", "/v1/tenants"),), {}),
    Operation(GetTenant, TenantShown, READ, TAG, "Return a tenant", (Route("GET", ONE),), {"tenant": "acme"}),
    Operation(
        PutTenant,
        TenantShown,
        ADMIN,
        TAG,
        "Create or suspend a tenant",
        (Route("PUT", ONE),),
        {"tenant": "acme"},
    ),
    Operation(
        ListTokens, Tokens, OWNER, TAG, "List tokens", (Route("GET", f"{ONE}/tokens"),), {"tenant": "acme"}
    ),
    Operation(
        CreateToken,
        CreatedToken,
        OWNER,
        TAG,
        "Create a token",
        (Route("POST", f"{ONE}/tokens"),),
        {"tenant": "acme", "role": "write", "queues": ["orders*"], "name": "ci"},
    ),
    Operation(
        RevokeToken,
        Revoked,
        OWNER,
        TAG,
        "Revoke a token",
        (Route("DELETE", f"{ONE}/tokens/{{id}}"),),
        {"tenant": "acme", "id": "TOKEN"},
    ),
]
