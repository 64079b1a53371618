"""Commands about the control records: tenants and their tokens."""

from forebay.core.api.commands import Command, Reply
from forebay.core.api.principals import ADMIN, check_patterns, check_role, check_tenant
from forebay.core.api.tenants import (
    OfControl as OfControl,
    TenantFound,
    TenantGet,
    TenantList,
    TenantPut,
    TenantsFound,
    TokenDelete,
    TokenList,
    TokenPut,
    TokensFound,
    TokensUsed,
)
from forebay.core.bounds import SHOWN_MAX, TOKENS_MAX, Limits, check_name, check_printable, check_range
from forebay.core.errors import Conflict, Denied, Invalid, NotFound, Suspended
from forebay.core.routing.control import Control
from forebay.core.words import DEFAULT, is_own


def check_use(control: Control, limits: Limits, tenant: str) -> None:
    """Raise unless commands of a tenant are taken."""
    if control.is_suspended(tenant):
        raise Suspended(tenant)
    is_known = tenant in control.tenants or is_own(tenant) or tenant == DEFAULT
    if not is_known and not limits.use_creates_tenants:
        raise Denied(f"there is no tenant {tenant}; here an admin creates them")


def apply(control: Control, limits: Limits, command: Command, now: int) -> Reply:
    """Apply a command about the control records, or raise and change nothing."""
    match command:
        case TenantPut():
            return _put_tenant(control, command, now)
        case TenantGet():
            if command.name not in control.tenants:
                raise NotFound(f"there is no tenant {command.name}")
            return control.found(command.name)
        case TenantList():
            return _list_tenants(control, command)
        case TokenPut():
            return _put_token(control, limits, command, now)
        case TokenList():
            return _tokens_of(control, command.of)
        case TokenDelete():
            return _delete_token(control, command)
        case TokensUsed():
            return _note_use(control, command)
    raise AssertionError(f"{type(command).__name__} is not about the control records")


def _put_tenant(control: Control, command: TenantPut, now: int) -> TenantFound:
    name = command.name
    check_tenant(name, "name")
    is_known = control.check(name, spread=command.spread)
    if command.must_exist and not is_known:
        raise NotFound(f"there is no tenant {name}")
    if not is_known:
        control.check_owner()
        control.add(name, spread=bool(command.spread), now=now)
    if command.suspended is not None and command.suspended != control.tenants[name].suspended:
        control.check_owner()
        control.suspend(name, command.suspended)
    return control.found(name)


def _list_tenants(control: Control, command: TenantList) -> TenantsFound:
    check_range("limit", command.count, 1, SHOWN_MAX)
    names = sorted(name for name in control.tenants if command.after is None or name > command.after)
    found = [control.found(name) for name in names[: command.count]]
    return TenantsFound(found, len(found) < len(names))


def _put_token(control: Control, limits: Limits, command: TokenPut, now: int) -> TokensFound:
    token = command.token
    check_tenant(token.tenant)
    check_role(token.role)
    check_patterns(token.queues)
    if token.role == ADMIN and token.queues:
        raise Invalid("queues", "left out: an admin is for all queues")
    if token.name:
        check_name("name", token.name)
        check_printable("name", token.name)
    if token.expires_at and token.expires_at <= now:
        raise Invalid("expires_at", "in the future")
    if sum(each.tenant == token.tenant for each in control.tokens.values()) >= TOKENS_MAX:
        raise Conflict(f"tenant {token.tenant} has {TOKENS_MAX} tokens: revoke those that nobody uses")
    if token.id in control.tokens:
        raise Conflict("there is a token with this id")
    control.check_owner()
    if token.tenant not in control.tenants:
        if token.tenant != DEFAULT and not limits.use_creates_tenants:
            raise NotFound(f"there is no tenant {token.tenant}: create it first")
        control.add(token.tenant, spread=False, now=now)
    control.put_token(token)
    return TokensFound([token])


def _tokens_of(control: Control, tenant: str) -> TokensFound:
    found = [each for each in control.tokens.values() if each.tenant == tenant]
    return TokensFound(sorted(found, key=lambda each: (each.created_at, each.id)))


def _delete_token(control: Control, command: TokenDelete) -> TokensFound:
    token = control.tokens.get(command.id)
    if token is None or token.tenant != command.of:
        raise NotFound(f"there is no token {command.id}")
    if command.keep_admin and token.role == ADMIN:
        others = (each for each in control.tokens.values() if each is not token)
        if not any(each.role == ADMIN and not each.expires_at for each in others):
            raise Conflict("it is the last token of an admin that does not expire: create another one first")
    control.check_owner()
    control.remove_token(token.id)
    return TokensFound([token])


def _note_use(control: Control, command: TokensUsed) -> TokensFound:
    control.check_owner()
    found = []
    for name, at in command.used_at.items():
        token = control.tokens.get(name)
        if token is not None and token.used_at < at:
            token.used_at = at
            control.put_token(token)
            found.append(token)
    return TokensFound(found)
