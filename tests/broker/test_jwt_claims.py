"""What a JWT says must be there, be of its kind, and be what the settings ask for."""

from typing import Any

import pytest

from forebay.broker.claims import NAME_CHARS_MAX, SECONDS_MAX, Rules
from forebay.core.api.principals import PATTERNS_MAX
from tests.broker.jwts import ALL, CLAIMS, NOW, NOW_S, claims, verifier, why, why_secret
from tests.signing import (
    SECRET,
    by_secret,
)


@pytest.mark.parametrize("exp", ["soon", True, [], {}, -1, SECONDS_MAX + 1, NOW, 1e300])
def test_exp_is_a_time_in_seconds(exp: Any) -> None:
    assert "exp is no time" in why_secret(exp=exp)


def test_a_token_ends_and_must_say_when() -> None:
    assert why_secret(exp=None) == "it has no exp"
    leeway_s = Rules().leeway_s
    assert "expired" in why_secret(exp=NOW_S - leeway_s)
    assert ALL.principal(by_secret(claims(exp=NOW_S - leeway_s + 1)), NOW).expires_at == NOW + 1_000
    assert ALL.principal(by_secret(claims(exp=NOW_S + 0.5)), NOW).expires_at == NOW + 500 + leeway_s * 1000
    strict = verifier(secret=SECRET, leeway_s=0)
    assert "expired" in why_secret(strict, exp=NOW_S)
    assert strict.principal(by_secret(claims(exp=NOW_S + 1)), NOW).expires_at == NOW + 1_000


def test_a_token_that_is_not_good_yet_is_refused() -> None:
    leeway_s = Rules().leeway_s
    assert ALL.principal(by_secret(claims(nbf=NOW_S + leeway_s)), NOW)
    assert "nbf is in the future" in why_secret(nbf=NOW_S + leeway_s + 1)
    for nbf in ("now", True, [NOW_S], -1):
        assert "nbf is no time" in why_secret(nbf=nbf)


def test_a_token_of_another_issuer_is_refused() -> None:
    jwt = verifier(secret=SECRET, issuer="https://id.example")
    assert jwt.principal(by_secret(claims(iss="https://id.example")), NOW)
    assert why_secret(jwt) == "it has no iss"
    assert "jwt_issuer" in why_secret(jwt, iss="https://id.example/")
    assert "no text" in why_secret(jwt, iss=["https://id.example"])
    assert ALL.principal(by_secret(claims(iss="anybody")), NOW)


def test_a_token_for_somebody_else_is_refused() -> None:
    jwt = verifier(secret=SECRET, audience="forebay")
    for aud in ("forebay", ["forebay"], ["mail", "forebay"]):
        assert jwt.principal(by_secret(claims(aud=aud)), NOW)
        assert "jwt_audience is not set" in why_secret(aud=aud)
    for wrong in (None, "mail", ["mail"], [], "forebay ", "FOREBAY"):
        assert "without that of jwt_audience" in why_secret(jwt, aud=wrong)
    for odd in (5, {"forebay": 1}, ["forebay", 5]):
        assert "neither text nor a list" in why_secret(jwt, aud=odd)


@pytest.mark.parametrize(
    "tenant", ["", 5, True, ["acme"], {"a": 1}, "_system", "a\0b", "a\nb", "\ud800", "x" * 256]
)
def test_a_tenant_is_a_name(tenant: Any) -> None:
    assert "tenant" in why_secret(tenant=tenant)


def test_a_token_names_its_tenant() -> None:
    assert why_secret(tenant=None) == "it has no tenant"


@pytest.mark.parametrize("role", ["", "root", "Write", "write ", 5, ["write"], True])
def test_a_role_is_one_that_there_is(role: Any) -> None:
    assert "role" in why_secret(role=role)


def test_a_token_without_a_role_has_that_of_the_setting_or_is_refused() -> None:
    assert "jwt_role is not set" in why_secret(role=None)
    jwt = verifier(secret=SECRET, role="read")
    assert jwt.principal(by_secret(claims(role=None)), NOW).role == "read"
    assert jwt.principal(by_secret(claims(role="push")), NOW).role == "push"
    assert "role" in why_secret(jwt, role="")


def test_a_token_is_an_admin_only_where_that_is_allowed() -> None:
    assert "jwt_admin is off" in why_secret(role="admin")
    jwt = verifier(secret=SECRET, admin=True)
    assert jwt.principal(by_secret(claims(role="admin")), NOW).is_admin


@pytest.mark.parametrize(
    "queues", ["orders", [], [5], ["a", None], [""], ["a b"], {"a": 1}, True, 0, ["a"] * (PATTERNS_MAX + 1)]
)
def test_queues_are_patterns(queues: Any) -> None:
    assert "queues" in why_secret(queues=queues)


def test_null_is_not_the_same_as_nothing() -> None:
    for name in ("tenant", "role", "queues", "exp", "nbf", "sub", "aud"):
        text = by_secret({**CLAIMS, name: None})
        assert why(text, verifier(secret=SECRET, role="read"))


def test_claims_may_have_other_names() -> None:
    names = {"tenant_claim": "https://a.example/tenant", "role_claim": "r", "queues_claim": "q"}
    jwt = verifier(secret=SECRET, **names)
    text = by_secret(
        {"https://a.example/tenant": "acme", "r": "pop", "q": ["a*"], "exp": NOW_S + 1, "role": 5}
    )
    found = jwt.principal(text, NOW)
    assert (found.tenant, found.role, found.queues) == ("acme", "pop", ("a*",))
    assert why_secret(jwt, r="pop") == "it has no https://a.example/tenant"


@pytest.mark.parametrize(
    ("sub", "name"),
    [
        (None, "jwt"),
        ("", "jwt"),
        ("  alice ", "alice"),
        ("a\nb\x1b[2J\u202ec", "a?b?[2J?c"),
        ("\ud800", "?"),
        ("é" * 1_000, "é" * NAME_CHARS_MAX),
    ],
)
def test_the_name_is_fit_for_a_log(sub: str | None, name: str) -> None:
    assert ALL.principal(by_secret(claims(sub=sub)), NOW).name == name


@pytest.mark.parametrize("sub", [5, ["alice"], True])
def test_a_name_is_text(sub: Any) -> None:
    assert why_secret(sub=sub) == "its sub is no text"
