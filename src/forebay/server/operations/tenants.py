"""Tenants, their tokens, and authentication."""

from typing import Any, ClassVar

from forebay.broker import tokens
from forebay.core.api import tenants as core
from forebay.core.api.commands import Command, TenantFound, TenantPut
from forebay.core.api.principals import Principal, check_grant, check_patterns, check_role
from forebay.core.bounds import DELAY_MS_MAX, NEVER, SHOWN_MAX, check_range
from forebay.core.errors import Denied, ForebayError
from forebay.server.operations.carried import Carried, Context, ask
from forebay.server.tcp.codec import Services
from forebay.wire.operations import tenants as wire
from forebay.wire.operations.tenants import (
    CreatedToken,
    Identity,
    Revoked,
    Tenants,
    TenantShown,
    Tokens,
    TokenShown,
)


class Auth(Carried, wire.Auth):
    is_command: ClassVar[bool] = False
    is_auth: ClassVar[bool] = True

    async def carry_out(self, services: Services, context: Context) -> Principal:
        """Return who asks: over HTTP, where each request carries its token."""
        assert context.principal is not None
        return context.principal

    def reply(self, reply: Principal, context: Context) -> Identity:
        return Identity(
            tenant=reply.tenant,
            role=reply.role,
            name=reply.name,
            queues=list(reply.queues),
            expires_at=reply.expires_at or None,
        )


def _shown(found: TenantFound) -> TenantShown:
    return TenantShown(
        tenant=found.name, spread=found.spread, suspended=found.suspended, created_at=found.created_at
    )


class GetTenant(Carried, wire.GetTenant):
    def command(self, context: Context) -> Command:
        context.check_whole()
        return core.TenantGet(context.tenant)

    def reply(self, reply: TenantFound, context: Context) -> TenantShown:
        return _shown(reply)


class ListTenants(Carried, wire.ListTenants):
    def command(self, context: Context) -> Command:
        context.check_whole()
        check_range("limit", self.limit, 1, SHOWN_MAX)
        return core.TenantList(self.after, self.limit)

    def reply(self, reply: core.TenantsFound, context: Context) -> Tenants:
        return Tenants(tenants=list(map(_shown, reply.tenants)), more=reply.more)


class PutTenant(Carried, wire.PutTenant):
    is_command: ClassVar[bool] = False

    async def carry_out(self, services: Services, context: Context) -> TenantFound:
        context.check_whole()
        command = TenantPut(context.tenant, self.spread, self.suspended)
        found: TenantFound = await _change(services, command)
        if self.suspended:
            services.questions.node.give_back_all(context.tenant)  # its consumers can't settle them now
        return found

    def reply(self, reply: TenantFound, context: Context) -> TenantShown:
        return _shown(reply)


async def _change(services: Services, command: Command) -> Any:
    """Apply a command that changes who is known; raise if it is refused."""
    reply = await services.auth.change(command)
    if isinstance(reply, ForebayError):
        raise reply
    return reply


class ListTokens(Carried, wire.ListTokens):
    is_command: ClassVar[bool] = False

    async def carry_out(self, services: Services, context: Context) -> Tokens:
        context.check_whole()
        found: core.TokensFound = await ask(services, context, core.TokenList(context.tenant))
        return Tokens(tokens=[_token(each, services.auth.last_used_at(each)) for each in found.tokens])

    def reply(self, reply: Tokens, context: Context) -> Tokens:
        return reply


def _token(token: core.Token, used_at: int) -> TokenShown:
    return TokenShown(
        id=token.id,
        role=token.role,
        name=token.name,
        queues=list(token.queues),
        created_at=token.created_at,
        expires_at=token.expires_at or None,
        last_used_at=used_at or None,
    )


class CreateToken(Carried, wire.CreateToken):
    is_command: ClassVar[bool] = False

    async def carry_out(self, services: Services, context: Context) -> CreatedToken:
        context.check_whole()
        check_role(self.role)
        check_patterns(self.queues)
        if context.principal is None:
            raise Denied("nobody makes tokens without being somebody")
        check_grant(context.principal, self.role)
        now, expires_at = services.questions.node.now(), context.principal.expires_at
        if self.expires_ms is not None:
            check_range("expires_ms", self.expires_ms, 1, DELAY_MS_MAX)
            expires_at = min(now + self.expires_ms, expires_at or NEVER)
        queues = tuple(self.queues)
        text, token = tokens.make(context.tenant, self.role, self.name, queues, now, expires_at)
        await _change(services, core.TokenPut(token))
        return CreatedToken(
            id=token.id,
            token=text,
            tenant=token.tenant,
            role=token.role,
            name=token.name,
            queues=list(queues),
            created_at=now,
            expires_at=expires_at or None,
        )

    def reply(self, reply: CreatedToken, context: Context) -> CreatedToken:
        return reply


class RevokeToken(Carried, wire.RevokeToken):
    is_command: ClassVar[bool] = False

    async def carry_out(self, services: Services, context: Context) -> Revoked:
        context.check_whole()
        keep_admin = not services.auth.has_admin
        await _change(services, core.TokenDelete(context.tenant, self.id, keep_admin))
        return Revoked(id=self.id)

    def reply(self, reply: Revoked, context: Context) -> Revoked:
        return reply
