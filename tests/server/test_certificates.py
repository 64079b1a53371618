"""Which principal a certificate stands for, and until when."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, strategies as st

from forebay.broker.auth import EXPIRED, Auth, NotKnown
from forebay.core.api.principals import Principal, matches
from forebay.core.bounds import Limits
from forebay.core.errors import Invalid
from forebay.server.certificates import Grant, first_text, principal_of, read_grant
from forebay.server.http.identity import Identities
from forebay.server.operations import codec
from forebay.server.tcp.who import Who
from tests.broker.loop import BEGIN, ObedientStore, Rig

UNTIL = "Nov 14 22:13:30 2023 GMT"
UNTIL_MS = BEGIN + 10_000


def certificate(*names: tuple[str, str]) -> dict[str, Any]:
    """A certificate as Python shows it."""
    return {"subjectAltName": names, "notAfter": UNTIL}


def found(text: str, *names: tuple[str, str]) -> tuple[str, str, str] | None:
    """Tenant, role and name of a certificate, by these grants."""
    principal = principal_of(certificate(*names), tuple(map(read_grant, text.split(","))))
    return None if principal is None else (principal.tenant, principal.role, principal.name)


def test_names_of_three_kinds_are_looked_at() -> None:
    for kind, name in (("DNS", "a.example"), ("URI", "spiffe://a/b"), ("email", "a@b.example")):
        assert found("*=acme/read", (kind, name)) == ("acme", "read", name)
    assert found("*=acme/read", ("IP Address", "10.0.0.1")) is None
    assert principal_of({"notAfter": UNTIL}, (read_grant("*=acme/read"),)) is None


def test_the_first_grant_that_fits_any_name_decides() -> None:
    names = (("DNS", "a.example"), ("DNS", "boss.example"))
    assert found("boss.*=default/admin,*=acme/read", *names) == ("default", "admin", "boss.example")
    assert found("*=acme/read,boss.*=default/admin", *names) == ("acme", "read", "a.example")
    assert found("c.*=default/admin", *names) is None


def test_the_tenant_may_be_what_the_first_star_stands_for() -> None:
    assert found("spiffe://c/*/x/*=*/pop", ("URI", "spiffe://c/acme/x/y")) == (
        "acme",
        "pop",
        "spiffe://c/acme/x/y",
    )
    assert found("*.example=*/pop", ("DNS", "a.b.example")) == ("a.b", "pop", "a.b.example")


@pytest.mark.parametrize("name", [".example", "_own.example", "a\n.example", "x" * 300 + ".example"])
def test_a_text_that_can_not_be_a_tenant_is_nobodys_also_if_a_later_grant_fits(name: str) -> None:
    assert found("*.example=*/pop,*=acme/admin", ("DNS", name)) is None


def test_a_name_for_many_hosts_stands_for_nobody() -> None:
    assert found("*=acme/read", ("DNS", "*.example")) is None


@pytest.mark.parametrize("text", ["", "a", "a=", "a=b", "a=b/", "=b/read", "a=/read", "a=b/King", "a=*/read"])
def test_a_grant_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="SAN-PATTERN=TENANT/ROLE"):
        read_grant(text)


def test_a_pattern_may_have_the_signs_of_a_grant_in_it() -> None:
    assert read_grant("https://a/?b=*=acme/eu/read") == Grant("https://a/?b=*", "acme/eu", "read")


@given(st.text("ab*", min_size=1), st.text("ab"))
def test_what_the_first_star_stands_for_fits_in_its_place(pattern: str, name: str) -> None:
    if "*" in pattern and matches(pattern, name):
        text = first_text(pattern, name)
        assert matches(pattern.replace("*", text, 1), name)


# Time.


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig(ObedientStore())
    yield made
    made.close()


@pytest.fixture
def auth(rig: Rig) -> Auth:
    return Auth(rig.node, rig.loop.as_loop, closed=True)


@pytest.fixture
def principal() -> Principal:
    made = principal_of(certificate(("DNS", "a.example")), (read_grant("*=acme/write"),))
    assert made is not None
    assert made.expires_at == UNTIL_MS
    return made


def test_a_server_that_knows_certificates_lets_nobody_in_unasked(auth: Auth) -> None:
    assert not auth.is_open
    assert auth.anonymous() is None
    assert not auth.has_tokens


def test_a_connection_ends_when_its_certificate_expires(rig: Rig, auth: Auth, principal: Principal) -> None:
    ended: list[Any] = []
    who = Who(codec, auth, 1, Limits(), 0.0, ended.append)
    who.open(principal)
    assert who.principal == principal
    rig.loop.advance(9_999)
    assert not ended
    rig.loop.advance(1)
    assert len(ended) == 1
    assert who.principal is None


def test_a_connection_that_never_opened_leaves_nothing_behind(rig: Rig) -> None:
    auth = Auth(rig.node, rig.loop.as_loop)
    Who(codec, auth, 1, Limits(), 0.0, lambda _: None)
    assert not auth._watches


class Connected:
    """A connection, as far as requests ask it who it is."""

    def __init__(self, certified: Principal | None) -> None:
        self.certified = certified


def test_a_request_is_refused_once_the_certificate_of_its_connection_has_expired(
    rig: Rig, auth: Auth, principal: Principal
) -> None:
    identities = Identities(auth, Limits())
    scope = {"headers": [], "forebay.connection": Connected(principal)}
    assert identities.context(scope).principal == principal
    rig.loop.advance(10_000)
    with pytest.raises(NotKnown, match=EXPIRED):
        identities.context(scope)


def test_a_request_without_a_certificate_is_nobodys(auth: Auth) -> None:
    with pytest.raises(NotKnown):
        Identities(auth, Limits()).context({"headers": [], "forebay.connection": Connected(None)})
