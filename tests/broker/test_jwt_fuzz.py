"""Whatever is shown as a token, the answer is a principal whose token was signed, or one refusal."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st

from forebay.broker.claims import BadJwt
from forebay.broker.jwt import (
    BadKeys,
    Jwt,
    of_jwks,
    of_pem,
)
from tests.broker.jwts import ALL, CLAIMS, ISSUERS, NOW
from tests.signing import (
    by_secret,
    signed,
)

GOOD_TEXTS = [by_secret(CLAIMS), *(each.token(CLAIMS) for each in ISSUERS.values())]
PROFILE = settings(derandomize=True, database=None, deadline=None, max_examples=500)


def is_refused(text: str, jwt: Jwt = ALL) -> bool:
    """Whether a token is refused for a reason that fits a line."""
    try:
        jwt.principal(text, NOW)
    except BadJwt as refused:
        reason = str(refused)
    else:
        return False
    assert reason.isprintable()
    return True


@PROFILE
@given(st.text())
@example("." * 2)
def test_any_text_is_refused_and_nothing_breaks(text: str) -> None:
    assert is_refused(text)


@PROFILE
@given(st.sampled_from(GOOD_TEXTS), st.integers(0, 1_000), st.characters(), st.booleans())
def test_a_token_with_any_character_changed_is_refused(text: str, at: int, char: str, insert: bool) -> None:
    at %= len(text)
    changed = text[:at] + char + text[at + (not insert) :]
    assert changed == text or is_refused(changed)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@PROFILE
@given(
    st.dictionaries(st.sampled_from(["alg", "kid", "typ", "crit", "b64", "jwk", "jku"]), JSON), st.binary()
)
def test_any_header_is_refused(header: dict[str, Any], signature: bytes) -> None:
    assert is_refused(signed(header, CLAIMS, lambda _: signature))


@PROFILE
@given(
    st.dictionaries(
        st.sampled_from(["tenant", "role", "queues", "exp", "nbf", "iss", "aud", "sub"]), JSON, min_size=1
    )
)
def test_any_claim_is_good_or_refused(changed: dict[str, Any]) -> None:
    text = by_secret({**CLAIMS, **changed})
    if not is_refused(text):
        found = ALL.principal(text, NOW)
        assert found.expires_at > NOW
        assert found.role == "write"
        assert found.name.isprintable()


@PROFILE
@given(st.binary(max_size=100), st.binary(max_size=100), st.binary(max_size=300))
def test_any_bytes_in_the_form_of_a_jwt_are_refused(header: bytes, payload: bytes, signature: bytes) -> None:
    assert is_refused(signed(header, payload, lambda _: signature))
    assert is_refused(by_secret(payload))


FIELDS = ("kty", "crv", "kid", "use", "alg", "key_ops", "n", "e", "x", "y", "oth")
TEXTS = st.text(max_size=90) | st.from_regex(r"\A[A-Za-z0-9_-]{0,90}\Z")


@PROFILE
@given(
    st.sampled_from([*(each.jwk() for each in ISSUERS.values())]),
    st.dictionaries(st.sampled_from(FIELDS), TEXTS | JSON, max_size=3),
    st.sets(st.sampled_from(FIELDS), max_size=2),
)
def test_any_key_is_used_or_left_out(
    key: dict[str, Any], changed: dict[str, Any], left_out: set[str]
) -> None:
    jwk = {name: value for name, value in {**key, **changed}.items() if name not in left_out}
    with suppress(BadKeys):
        (found,) = of_jwks(json.dumps({"keys": [jwk]}).encode())
        assert found.algorithms in (("RS256",), ("ES256",), ("EdDSA",))


@PROFILE
@given(st.binary(max_size=200))
def test_any_bytes_are_a_jwks_or_refused(body: bytes) -> None:
    with pytest.raises(BadKeys):
        of_jwks(body)


@PROFILE
@given(st.sampled_from([each.pem() for each in ISSUERS.values()]), st.integers(0, 500), st.integers(0, 255))
def test_any_damaged_pem_is_refused_or_another_key(pem: bytes, at: int, byte: int) -> None:
    at %= len(pem)
    with suppress(BadKeys):
        assert len(of_pem(pem[:at] + bytes([byte]) + pem[at + 1 :])) == 1
