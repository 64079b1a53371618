"""A JWT is taken if a key of the operator signed it and its claims say who is meant; nothing else is."""

import json
from pathlib import Path
from typing import Any

import pytest

from forebay.broker import jwt as jwt_module
from forebay.broker.claims import NAME_CHARS_MAX, BadJwt, Rules
from forebay.broker.jwt import (
    TEXT_CHARS_MAX,
    TRIED_MAX,
    Jwt,
    of_jwks,
    of_secret,
)
from tests.broker.jwts import ALL, CLAIMS, ISSUERS, NOW, claims, other_key, verifier, why
from tests.signing import (
    HASHES,
    KINDS,
    SECRET,
    Issuer,
    by_secret,
    encoded,
    jwks,
    part,
    rsa_key,
    signed,
)


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_is_who_its_claims_say(kind: str) -> None:
    text = ISSUERS[kind].token(claims(sub="alice", queues=["orders*", "mail"]))
    found = ALL.principal(text, NOW)
    leeway_ms = Rules().leeway_s * 1000
    assert (found.tenant, found.role, found.name) == ("acme", "write", "alice")
    assert found.queues == ("orders*", "mail")
    assert found.expires_at == NOW + 60_000 + leeway_ms
    assert ALL.has_key(found.token)


@pytest.mark.parametrize("algorithm", HASHES)
def test_a_secret_is_for_three_algorithms_if_it_is_long_enough(algorithm: str) -> None:
    text = by_secret(CLAIMS, alg=algorithm)
    assert ALL.principal(text, NOW).tenant == "acme"
    short = SECRET[:32]
    assert of_secret(short).algorithms == ("HS256",)
    assert of_secret(SECRET[:48]).algorithms == ("HS256", "HS384")
    if algorithm != "HS256":
        assert "no key of its kind" in why(by_secret(CLAIMS, short, alg=algorithm), verifier(secret=short))


def test_a_token_without_kid_is_tried_with_the_few_keys_of_its_kind() -> None:
    issuers = [Issuer("ES256", f"{each}") for each in range(TRIED_MAX)]
    jwt = verifier(*issuers, ISSUERS["RS256"])
    for each in issuers:
        assert jwt.principal(each.token(CLAIMS, kid=None), NOW).tenant == "acme"
    more = verifier(*issuers, Issuer("ES256", "one more"))
    assert "needs a kid" in why(issuers[0].token(CLAIMS, kid=None), more)
    assert more.principal(issuers[0].token(CLAIMS), NOW).tenant == "acme"


def test_one_kid_may_be_that_of_keys_of_several_kinds() -> None:
    issuers = [Issuer(kind, "same") for kind in KINDS]
    jwt = verifier(*issuers)
    assert all(jwt.principal(each.token(CLAIMS), NOW) for each in issuers)


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_may_be_in_a_file_of_pem_and_is_then_that_of_any_kid(kind: str, tmp_path: Path) -> None:
    issuer = ISSUERS[kind]
    (tmp_path / "key.pem").write_bytes(b"a comment\n" + issuer.pem())
    jwt = Jwt(Rules(), file=tmp_path / "key.pem")
    assert jwt.principal(issuer.token(CLAIMS), NOW).tenant == "acme"
    assert jwt.principal(issuer.token(CLAIMS, kid=None), NOW).tenant == "acme"
    assert "signature" in why(Issuer(kind, key=other_key(kind)).token(CLAIMS), jwt)


def test_what_is_verified_once_is_known_until_it_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    jwt, count = verifier(ISSUERS["ES256"]), 0
    verify = jwt_module._VERIFY["ES256"].verify

    def counted(*given: Any) -> bool:
        nonlocal count
        count += 1
        return verify(*given)

    monkeypatch.setattr(jwt_module._VERIFY["ES256"], "verify", counted)
    text = ISSUERS["ES256"].token(CLAIMS)
    first = jwt.principal(text, NOW)
    assert jwt.principal(text, NOW + 60_000) is first
    assert count == 1
    with pytest.raises(BadJwt, match="expired"):
        jwt.principal(text, first.expires_at)
    jwt.take(of_jwks(jwks(ISSUERS["ES256"])))
    assert jwt.principal(text, NOW) == first
    assert count == 3


# Attacks on the signature.


def test_a_token_without_a_signature_is_refused() -> None:
    for alg in ("none", "None", "NONE", "nOnE", ""):
        bare = f"{part({'alg': alg})}.{part(CLAIMS)}"
        for text in (f"{bare}.", bare, f"{bare}.x", f"{bare}.{encoded(b'none')}"):
            why(text)
        assert "alg" in why(signed({"alg": alg}, CLAIMS, lambda _: b"x"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("algorithm", HASHES)
def test_a_public_key_is_no_secret(kind: str, algorithm: str) -> None:
    issuer = ISSUERS[kind]
    jwt = verifier(issuer)
    for stolen in (issuer.pem(), issuer.pem().strip(), json.dumps(issuer.jwk()).encode(), b""):
        for kid in (issuer.kid, None):
            assert "no key of its kind" in why(by_secret(CLAIMS, stolen, alg=algorithm, kid=kid), jwt)
        assert "signature" in why(by_secret(CLAIMS, stolen, alg=algorithm), verifier(issuer, secret=SECRET))


@pytest.mark.parametrize("kind", KINDS)
def test_a_secret_verifies_no_signature_of_a_key_and_no_key_that_of_another_kind(kind: str) -> None:
    text = ISSUERS[kind].token(CLAIMS)
    assert "no key" in why(text, verifier(secret=SECRET))
    assert "no key of its kind" in why(ISSUERS[kind].token(CLAIMS, kid=None), verifier(secret=SECRET))
    for other in KINDS:
        if other != kind:
            assert "no key of its kind" in why(
                ISSUERS[kind].token(CLAIMS, alg=other), verifier(ISSUERS[kind])
            )


@pytest.mark.parametrize(
    "algorithm", ["RS384", "RS512", "PS256", "ES384", "ES512", "ES256K", "Ed25519", "hs256"]
)
def test_an_algorithm_that_was_not_asked_for_is_refused(algorithm: str) -> None:
    for issuer in ISSUERS.values():
        assert "its alg" in why(issuer.token(CLAIMS, alg=algorithm))


@pytest.mark.parametrize("alg", [5, True, ["RS256"], {"RS256": 1}])
def test_an_algorithm_is_text(alg: Any) -> None:
    assert "its alg" in why(ISSUERS["RS256"].token(CLAIMS, alg=alg))


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_changed_after_it_was_signed_is_refused(kind: str) -> None:
    header, _, signature = ISSUERS[kind].token(CLAIMS).split(".")
    assert "signature" in why(f"{header}.{part(claims(role='owner'))}.{signature}")
    assert "signature" in why(f"{header}.{part(CLAIMS)}.{encoded(b'') or 'AA'}")
    assert "signature" in why(f"{header}.{part(CLAIMS)}.{encoded(bytes(64))}")
    assert "signature" in why(f"{header}.{part(CLAIMS)}.{encoded(bytes(256))}")
    other = Issuer(kind, ISSUERS[kind].kid, other_key(kind))
    assert "signature" in why(other.token(CLAIMS))


# Attacks on the choice of the key.


@pytest.mark.parametrize(
    "kid",
    [
        "unknown",
        "",
        "../../../../dev/null",
        "/dev/null",
        "' OR 1=1 --",
        "key of RS256\0",
        "KEY OF RS256",
        "key of ES256",
        "\ud800",
        "x" * 10_000,
    ],
)
def test_a_kid_only_names_a_key_that_there_is(kid: str) -> None:
    jwt = verifier(*ISSUERS.values())
    reason = why(ISSUERS["RS256"].token(CLAIMS, kid=kid), jwt)
    assert "no key" in reason
    assert reason.isprintable()
    assert len(reason) < 200
    empty = by_secret(CLAIMS, b"", kid=kid)  # the content of /dev/null
    assert "no key" in why(empty, jwt)


@pytest.mark.parametrize("kid", [5, True, ["a"], {"a": 1}])
def test_a_kid_is_text(kid: Any) -> None:
    assert why(ISSUERS["RS256"].token(CLAIMS, kid=kid)) == "its kid is no text"


def test_no_key_comes_out_of_a_token() -> None:
    mine = Issuer("RS256", ISSUERS["RS256"].kid, rsa_key(2_048, 1))
    for header in (
        {"jwk": mine.jwk()},
        {"jku": "http://127.0.0.1:1/keys"},
        {"x5u": "http://127.0.0.1:1/certificate"},
        {"x5c": [encoded(mine.pem())]},
    ):
        assert "signature" in why(mine.token(CLAIMS, **header))
        assert ALL.principal(ISSUERS["RS256"].token(CLAIMS, **header), NOW).tenant == "acme"


def test_what_a_header_calls_critical_is_not_understood() -> None:
    for crit in (["exp"], [], ["b64"], "exp", None):
        header = {"alg": "HS256", "crit": crit}
        key = by_secret(CLAIMS)
        assert "crit" in why(signed(header, CLAIMS, lambda _: b"x"))
        assert ALL.principal(key, NOW)
    for b64 in (False, 0, "false"):
        assert "b64" in why(by_secret(CLAIMS, b64=b64))


def test_an_unknown_kid_asks_for_new_keys_and_a_known_one_does_not() -> None:
    jwt, asked = verifier(ISSUERS["RS256"]), []
    jwt.ask = lambda: asked.append(1)
    jwt.principal(ISSUERS["RS256"].token(CLAIMS), NOW)
    why(Issuer("RS256", ISSUERS["RS256"].kid, rsa_key(2_048, 1)).token(CLAIMS), jwt)
    assert not asked
    why(ISSUERS["RS256"].token(CLAIMS, kid="new"), jwt)
    assert asked


# Attacks on the form.


@pytest.mark.parametrize(
    "text",
    [
        "",
        "..",
        "a.b.c",
        "a.b",
        "a.b.c.d",
        "a.b.c.d.e",
        "é.b.c",
        "\ud800.b.c",
        "a b.c.d",
        "eyJ.eyJ.\n",
        "=.=.=",
        f"{part(b'[]')}.{part(b'{}')}.AA",
        f"{part(b'null')}.{part(b'{}')}.AA",
        f"{part(b'[' * 6_000)}.{part(b'{}')}.AA",
        f"{part(b'{' * 6_000)}.{part(b'{}')}.AA",
        f"{part(bytes([0xFF, 0xFE]))}.{part(b'{}')}.AA",
        f"{part('{}'.encode('utf-16'))}.{part(b'{}')}.AA",
    ],
)
def test_what_is_no_jwt_is_refused(text: str) -> None:
    assert why(text).isprintable()


def test_a_long_token_is_refused_unread() -> None:
    room = TEXT_CHARS_MAX - len(by_secret(claims(sub="")))
    fits = next(
        text
        for length in range(room * 3 // 4 - 4, room)
        if len(text := by_secret(claims(sub="x" * length))) >= TEXT_CHARS_MAX - 1
    )
    assert len(fits) <= TEXT_CHARS_MAX
    assert len(ALL.principal(fits, NOW).name) == NAME_CHARS_MAX
    assert "longer" in why(by_secret(claims(sub="x" * TEXT_CHARS_MAX)))
    assert "longer" in why("." * 10_000_000)


@pytest.mark.parametrize(
    "body",
    [
        b'{"tenant":"acme","tenant":"other","role":"read","exp":9999999999}',
        b'{"tenant":"acme","role":"read","role":"admin","exp":9999999999}',
        b'{"tenant":"acme","role":"read","exp":1,"exp":9999999999}',
        b'{"tenant":"acme","role":"read","exp":9999999999,"a":{"b":1,"b":2}}',
        b'{"tenant":"acme","role":"read","exp":NaN}',
        b'{"tenant":"acme","role":"read","exp":Infinity}',
        b'{"tenant":"acme","role":"read","exp":' + b"9" * 5_000 + b"}",
        b'{"tenant":"acme","role":"read","exp":9999999999}}',
        b'{"tenant":"acme","role":"read","exp":9999999999',
        b"[]",
        b"",
        b"acme",
        b"[" * 6_000,
        '{"tenant":"acme","role":"read","exp":9999999999}'.encode("utf-16"),
        b'{"tenant":"acme\xff","role":"read","exp":9999999999}',
    ],
)
def test_a_payload_is_one_json_object_in_which_each_name_is_there_once(body: bytes) -> None:
    assert why(by_secret(body)).isprintable()


def test_a_header_that_says_a_thing_twice_is_refused() -> None:
    header = b'{"alg":"HS256","alg":"RS256"}'
    assert "header" in why(signed(header, CLAIMS, lambda _: b"x"))
