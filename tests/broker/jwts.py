"""Claims that are good, who signs them, and why tokens are refused."""

from typing import Any

import pytest

from forebay.broker.claims import BadJwt, Rules
from forebay.broker.jwt import (
    Jwt,
    of_jwks,
)
from tests.broker.loop import BEGIN
from tests.signing import (
    KINDS,
    SECRET,
    Issuer,
    by_secret,
    jwks,
    rsa_key,
)

NOW = BEGIN
NOW_S = NOW // 1000
CLAIMS: dict[str, Any] = {"tenant": "acme", "role": "write", "exp": NOW_S + 60}
ISSUERS = {kind: Issuer(kind, f"key of {kind}") for kind in KINDS}


def claims(**more: Any) -> dict[str, Any]:
    """Good claims with changes; None leaves one out."""
    return {name: value for name, value in {**CLAIMS, **more}.items() if value is not None}


def verifier(*issuers: Issuer, secret: str = "", **rules: Any) -> Jwt:
    found = Jwt(Rules(**rules), secret=secret)
    if issuers:
        found.take(of_jwks(jwks(*issuers)))
    return found


ALL = verifier(*ISSUERS.values(), secret=SECRET)


def why(text: str, jwt: Jwt = ALL) -> str:
    """Why a token is refused."""
    with pytest.raises(BadJwt) as refused:
        jwt.principal(text, NOW)
    return str(refused.value)


def why_secret(jwt: Jwt | None = None, **more: Any) -> str:
    return why(by_secret(claims(**more)), jwt or ALL)


def other_key(kind: str) -> Any:
    return rsa_key(2_048, 1) if kind == "RS256" else Issuer(kind).key
