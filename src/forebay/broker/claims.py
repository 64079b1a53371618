"""Claims of a JWT: what its issuer says of the bearer, checked, and the principal that follows from it.

Nothing here looks at signatures, reads a clock or knows a library: claims, rules and the time come in. A
claim that is not understood is refused, never guessed: who signs a token is trusted, and may be mistaken.
"""

from collections.abc import Mapping

from msgspec import Struct

from forebay.core.api.principals import ADMIN, ROLES, Principal, check_patterns, check_tenant
from forebay.core.errors import Invalid

NAME_CHARS_MAX = 128
"""Characters of ``sub`` that are kept as the name of a principal."""
UNNAMED = "jwt"
"""Name of a principal whose token has no ``sub``."""
SECONDS_MAX = 253_402_300_799
"""The last second of the year 9999: later instants are mistakes, such as milliseconds."""
SHOWN_CHARS_MAX = 80
"""Characters of a value that are shown in the log."""

Claims = Mapping[str, object]


class BadJwt(Exception):
    """Why a JWT is refused: for the log of the server, never for the client."""


class Rules(Struct, frozen=True):
    """What is asked of claims, besides that they are there and not expired."""

    issuer: str = ""
    """What ``iss`` must be; anything if empty."""
    audience: str = ""
    """What must be in ``aud``; if empty, there must be no ``aud``."""
    leeway_s: int = 30
    """How far the clocks of issuer and server may be apart."""
    tenant_claim: str = "tenant"
    role_claim: str = "role"
    queues_claim: str = "queues"
    role: str = ""
    """Role of a token without one; without this it is refused."""
    admin: bool = False
    """Whether a token may have the role admin."""


def principal_of(claims: Claims, rules: Rules, now: int, key: str) -> Principal:
    """Return the principal of a token whose signature is good; raise BadJwt. ``key`` is the id of its key."""
    expires_at = _check_times(claims, rules, now)
    _check_issuer(claims, rules.issuer)
    _check_audience(claims, rules.audience)
    role = _role(claims, rules)
    tenant = _text(claims, rules.tenant_claim)
    queues = _queues(claims, rules.queues_claim)
    try:
        check_tenant(tenant, rules.tenant_claim)
        check_patterns(queues)
    except Invalid as error:
        raise BadJwt(error.message) from None
    return Principal(tenant, role, _name(claims), queues, key, expires_at)


def shown(value: object) -> str:
    """Return a value of a token for the log: on one line, in ASCII, and not long."""
    return ascii(value)[:SHOWN_CHARS_MAX]


def _check_times(claims: Claims, rules: Rules, now: int) -> int:
    """Return when the token ends, leeway included: it is the end of connections, too."""
    leeway_ms = rules.leeway_s * 1000
    if "exp" not in claims:
        raise BadJwt("it has no exp")
    expires_at = _instant(claims, "exp") + leeway_ms
    if expires_at <= now:
        raise BadJwt(f"it expired, {(now - expires_at) // 1000} s ago with the leeway")
    if "nbf" in claims and _instant(claims, "nbf") - leeway_ms > now:
        raise BadJwt("its nbf is in the future")
    return expires_at


def _instant(claims: Claims, name: str) -> int:
    """Return a claim that is an instant, in ms."""
    value = claims[name]
    # A comparison with NaN is false, so that is refused, too.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= SECONDS_MAX:
        raise BadJwt(f"its {name} is no time in seconds since 1970")
    return int(value * 1000)


def _check_issuer(claims: Claims, wanted: str) -> None:
    if wanted and _text(claims, "iss") != wanted:
        raise BadJwt(f"its iss is {shown(claims['iss'])}, not that of jwt_issuer")


def _check_audience(claims: Claims, wanted: str) -> None:
    """A token for another audience is invalid here: one with an audience needs ``jwt_audience`` to be set."""
    given = claims.get("aud", [])
    audiences = given if isinstance(given, list) else [given]
    if not all(isinstance(each, str) for each in audiences):
        raise BadJwt("its aud is neither text nor a list of texts")
    if wanted and wanted not in audiences:
        raise BadJwt(f"its aud is {shown(given)}, without that of jwt_audience")
    if "aud" in claims and not wanted:
        raise BadJwt(f"its aud is {shown(given)}, and jwt_audience is not set")


def _role(claims: Claims, rules: Rules) -> str:
    role = _text(claims, rules.role_claim) if rules.role_claim in claims else rules.role
    if not role:
        raise BadJwt(f"it has no {rules.role_claim}, and jwt_role is not set")
    if role not in ROLES:
        raise BadJwt(f"its {rules.role_claim} {shown(role)} is none of {', '.join(ROLES)}")
    if role == ADMIN and not rules.admin:
        raise BadJwt("its role is admin, and jwt_admin is off")
    return role


def _queues(claims: Claims, name: str) -> tuple[str, ...]:
    """Return patterns of queues. An empty list is refused: it would mean all, and its issuer meant none."""
    if name not in claims:
        return ()
    given = claims[name]
    if not isinstance(given, list) or not given or not all(isinstance(each, str) for each in given):
        raise BadJwt(f"its {name} is no list of patterns (leave it out for all queues)")
    return tuple(given)


def _text(claims: Claims, name: str) -> str:
    value = claims.get(name)
    if not isinstance(value, str) or not value:
        raise BadJwt(f"it has no {name}" if name not in claims else f"its {name} is no text")
    return value


def _name(claims: Claims) -> str:
    """Return ``sub`` as a name that can stand in any line: nothing in it is decided by this name."""
    given = claims.get("sub", UNNAMED)
    if not isinstance(given, str):
        raise BadJwt("its sub is no text")
    cut = given[:NAME_CHARS_MAX].strip()
    return "".join(each if each.isprintable() else "?" for each in cut) or UNNAMED
