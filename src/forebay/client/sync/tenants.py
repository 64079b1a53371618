"""Generated from ``aio/tenants.py`` by tools/make_sync.py: change that, and run ``make sync``."""

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET

from forebay.client.identities import NewToken, Tenant, Token
from forebay.client.sync.requests import Asking
from forebay.core.errors import Invalid
from forebay.wire.operations import tenants as wire


class Tenants:
    """The tenants of a server. All of it but ``get`` is for admins."""

    def __init__(self, asking: Asking) -> None:
        self._ask = asking._ask

    def create(self, tenant: str, *, spread: bool | None = None) -> Tenant:
        """Create a tenant, unless it is there. Whether its queues are ``spread`` over shards is for good."""
        return _tenant(self._ask(wire.PutTenant(tenant=tenant, spread=spread)))

    def list(self) -> list[Tenant]:
        """Return all tenants, by name."""
        found: list[Tenant] = []
        more = True
        while more:
            after = found[-1].tenant if found else None
            page: wire.Tenants = self._ask(wire.ListTenants(after=after))
            found += map(_tenant, page.tenants)
            more = page.more
        return found

    def get(self, tenant: str | None = None) -> Tenant:
        """Return a tenant, by default the client's own. Raises ``NotFound``."""
        return _tenant(self._ask(wire.GetTenant(tenant=UNSET if tenant is None else tenant)))

    def suspend(self, tenant: str) -> Tenant:
        """Deny everything that a tenant asks for, and let its crons wait. Nothing of it is lost."""
        return _tenant(self._ask(wire.PutTenant(tenant=tenant, suspended=True)))

    def resume(self, tenant: str) -> Tenant:
        """Let a suspended tenant go on."""
        return _tenant(self._ask(wire.PutTenant(tenant=tenant, suspended=False)))


class Tokens:
    """The tokens of a tenant: those of the client's, unless an admin names another."""

    def __init__(self, asking: Asking) -> None:
        self._ask = asking._ask

    def create(
        self,
        role: str,
        *,
        queues: Sequence[str] = (),
        name: str = "",
        expires_ms: int | None = None,
        tenant: str | None = None,
    ) -> NewToken:
        """Create a token, for all queues or for those that match patterns. Not retried."""
        if isinstance(queues, str):
            raise Invalid("queues", "a list of names, in which * stands for any text")
        about: Any = {"role": role, "queues": [*queues], "name": name, "expires_ms": expires_ms}
        # Nobody would know of a token whose answer was lost.
        found: wire.CreatedToken = self._ask(wire.CreateToken(tenant=_named(tenant), **about), again=False)
        return NewToken(
            found.id,
            found.token,
            found.tenant,
            found.role,
            found.name,
            tuple(found.queues),
            found.created_at,
            found.expires_at,
        )

    def list(self, *, tenant: str | None = None) -> list[Token]:
        """Return the tokens, the oldest first, without their secrets."""
        found: wire.Tokens = self._ask(wire.ListTokens(tenant=_named(tenant)))
        return [
            Token(
                each.id,
                each.role,
                each.name,
                tuple(each.queues),
                each.created_at,
                each.expires_at,
                each.last_used_at,
            )
            for each in found.tokens
        ]

    def revoke(self, id: str, *, tenant: str | None = None) -> None:
        """Revoke a token by its id: who shows it is refused, and its connections end. Raises ``NotFound``."""
        self._ask(wire.RevokeToken(tenant=_named(tenant), id=id))


def _named(tenant: str | None) -> Any:
    return UNSET if tenant is None else tenant


def _tenant(found: wire.TenantShown) -> Tenant:
    return Tenant(found.tenant, found.spread, found.suspended, found.created_at)
