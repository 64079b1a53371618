"""Client certificates: from the names in one to a principal.

    spiffe://corp.example/acme/worker      a name: DNS, URI or email of the certificate's alternative names
    spiffe://corp.example/*/worker=*/write a grant, of ``tls_principals``
                          │        │  └── role
                          │        └── tenant, here the text that the first * stood for: acme
                          └── any text

Grants are looked at in their order; the first that fits a name decides, also if what it gives is nothing.
"""

import ssl
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from forebay.core.api.principals import ROLES, Principal, check_tenant, matches
from forebay.core.errors import Invalid

ANY = "*"
"""In a pattern any text; as a tenant the text that the first one of the pattern stood for."""
KINDS = ("DNS", "URI", "email")
"""Alternative names that are looked at."""
FORM = "SAN-PATTERN=TENANT/ROLE, such as spiffe://corp.example/*/worker=*/write"


class Grant(Struct, frozen=True):
    """What the certificates are good for whose name fits a pattern."""

    pattern: str
    tenant: str
    role: str


def read_grant(text: str) -> Grant:
    """Read one entry of ``tls_principals``; raise ``Invalid`` if it is none.

    >>> read_grant("*.jobs.example=*/pop")
    Grant(pattern='*.jobs.example', tenant='*', role='pop')
    """
    pattern, _, given = text.rpartition("=")
    tenant, _, role = given.rpartition("/")
    if not pattern or not tenant:
        raise Invalid("tls_principals", FORM)
    if role not in ROLES:
        raise Invalid("tls_principals", f"{FORM}; {role!r} is no role, those are {', '.join(ROLES)}")
    if tenant != ANY:
        check_tenant(tenant)
    elif ANY not in pattern:
        raise Invalid("tls_principals", f"{FORM}; the tenant * needs a * in the pattern to stand for")
    return Grant(pattern, tenant, role)


def principal_of(certificate: Mapping[str, Any], grants: tuple[Grant, ...]) -> Principal | None:
    """Return the principal of a verified certificate, as ``getpeercert`` shows it; None if it has none."""
    names = list(_names(certificate))
    for grant in grants:
        for name in names:
            if matches(grant.pattern, name):
                return _granted(grant, name, _expires_at(certificate))
    return None


def _names(certificate: Mapping[str, Any]) -> Iterator[str]:
    """Return the names that can identify a client: one for many hosts, such as ``*.example``, can't."""
    for kind, name in certificate.get("subjectAltName", ()):
        if kind in KINDS and ANY not in name:
            yield name


def _expires_at(certificate: Mapping[str, Any]) -> int:
    return ssl.cert_time_to_seconds(certificate["notAfter"]) * 1000


def _granted(grant: Grant, name: str, expires_at: int) -> Principal | None:
    tenant = grant.tenant
    if tenant == ANY:
        tenant = first_text(grant.pattern, name)
        try:
            check_tenant(tenant)
        except Invalid:
            return None
    return Principal(tenant, grant.role, name, expires_at=expires_at)


def first_text(pattern: str, name: str) -> str:
    """Return what the first ``*`` stands for, where a name matches: as little as possible.

    >>> first_text("spiffe://corp/*/worker", "spiffe://corp/acme/worker"), first_text("*.*", "acme.example")
    ('acme', 'acme')
    """
    first, *rest = pattern.split(ANY)
    begin = len(first)
    end = len(name) - len(rest[0]) if len(rest) == 1 else name.find(rest[0], begin)
    return name[begin:end]
