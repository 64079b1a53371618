"""Keys of a file or a JWKS are used if they are public, strong, and for signatures; others are left out."""

import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from forebay.broker.claims import Rules
from forebay.broker.jwt import (
    KEYS_BYTES_MAX,
    KEYS_MAX,
    TRIED_MAX,
    BadKeys,
    Jwt,
    of_file,
    of_jwks,
    of_pem,
    of_secret,
)
from tests.broker.jwts import CLAIMS, ISSUERS, NOW, verifier, why
from tests.signing import (
    SECRET,
    Issuer,
    encoded,
    jwks,
    p256,
    rsa_key,
)


def test_ten_thousand_keys_are_found_by_kid() -> None:
    key = p256()
    issuers = [Issuer("ES256", f"{each}", key) for each in range(KEYS_MAX - 1)]
    body = json.dumps({"keys": [each.jwk() for each in issuers] + [Issuer("ES256", "last").jwk()]}).encode()
    assert len(body) < KEYS_BYTES_MAX
    jwt = Jwt(Rules())
    assert jwt.take(of_jwks(body))
    for each in (issuers[0], issuers[-1]):
        assert jwt.principal(each.token(CLAIMS), NOW).tenant == "acme"
    assert "needs a kid" in why(issuers[0].token(CLAIMS, kid=None), jwt)
    assert "no key with its kid" in why(issuers[0].token(CLAIMS, kid="10000"), jwt)
    with pytest.raises(BadKeys, match=f"more than {KEYS_MAX} keys"):
        of_jwks(json.dumps({"keys": [issuers[0].jwk()] * (KEYS_MAX + 1)}).encode())


def test_many_keys_of_one_kid_are_not_all_tried() -> None:
    issuers = [Issuer("EdDSA", "same") for _ in range(TRIED_MAX + 1)]
    assert "needs a kid" in why(issuers[0].token(CLAIMS), verifier(*issuers))


P384 = Issuer("ES256", "p384", ec.generate_private_key(ec.SECP384R1()))
GOOD = ISSUERS["ES256"].jwk()
BAD_KEYS: dict[str, tuple[Any, str]] = {
    "a secret": ({"kty": "oct", "k": encoded(SECRET.encode())}, "jwt_secret"),
    "another curve": (P384.jwk(), "none of RSA"),
    "a point of another curve": ({**P384.jwk(), "crv": "P-256"}, "damaged"),
    "a point of no curve": ({**GOOD, "y": GOOD["x"]}, "damaged"),
    "an algorithm of another curve": ({**GOOD, "alg": "ES384"}, "is for 'ES384'"),
    "an algorithm of a secret": (ISSUERS["RS256"].jwk(alg="HS256"), "is for 'HS256'"),
    "for encryption": (ISSUERS["RS256"].jwk(use="enc"), "not for signatures"),
    "for signing only": (ISSUERS["RS256"].jwk(key_ops=["sign"]), "not for signatures"),
    "a private key": (ISSUERS["RS256"].jwk(d="AQAB"), "private"),
    "a small key": (Issuer("RS256", key=rsa_key(1_024)).jwk(), "1024 bits"),
    "no modulus": ({"kty": "RSA", "e": "AQAB"}, "damaged"),
    "an empty modulus": ({"kty": "RSA", "n": "", "e": "AQAB"}, "damaged"),
    "no base64": (ISSUERS["RS256"].jwk(n="!"), "damaged|bits"),
    "a number": (ISSUERS["RS256"].jwk(n=5), "no object with texts"),
    "a kid that is none": (ISSUERS["RS256"].jwk(kid=5), "no object with texts"),
    "a short point": ({"kty": "OKP", "crv": "Ed25519", "x": "AAAA"}, "damaged"),
    "a key for agreement": ({"kty": "OKP", "crv": "X25519", "x": encoded(bytes(32))}, "none of RSA"),
    "no object": ("key", "no object"),
    "nothing": ({}, "none of RSA"),
}


@pytest.mark.parametrize("name", BAD_KEYS)
def test_a_key_that_can_not_be_used_is_left_out(name: str) -> None:
    bad, reason = BAD_KEYS[name]
    with pytest.raises(BadKeys, match=reason):
        of_jwks(json.dumps({"keys": [bad]}).encode())
    (key,) = of_jwks(json.dumps({"keys": [bad, ISSUERS["EdDSA"].jwk()]}).encode())
    assert key.algorithms == ("EdDSA",)


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"[]", b"null", b'{"keys": {}}', b'{"keys": 5}', b"\xff", b'{"keys": []}', b"[" * 10_000],
)
def test_what_is_no_jwks_is_refused(body: bytes) -> None:
    with pytest.raises(BadKeys):
        of_jwks(body)


def test_a_jwks_has_a_size() -> None:
    body = jwks(ISSUERS["RS256"])
    assert of_jwks(body.ljust(KEYS_BYTES_MAX))
    with pytest.raises(BadKeys, match="more than"):
        of_jwks(body.ljust(KEYS_BYTES_MAX + 1))


def test_a_file_that_holds_no_public_key_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    with pytest.raises(BadKeys, match="can't be read"):
        of_file(file)
    for body, reason in (
        (ISSUERS["RS256"].private_pem(), "private key"),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----", "certificate"),
        (b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----", "none of RSA"),
        (P384.pem(), "none of RSA|P-256"),
        (Issuer("RS256", key=rsa_key(1_024)).pem(), "1024 bits"),
        (b"", "neither PEM"),
        (b"{}", "no JWKS"),
        (b"".join(Issuer("EdDSA").pem() for _ in range(TRIED_MAX + 1)), "JWKS"),
    ):
        file.write_bytes(body)
        with pytest.raises(BadKeys, match=reason) as refused:
            of_file(file)
        assert str(refused.value).startswith(str(file))


def test_a_file_may_hold_the_old_key_and_the_new_one() -> None:
    old, new = Issuer("ES256"), Issuer("ES256")
    jwt = Jwt(Rules())
    jwt.take(of_pem(old.pem() + new.pem()))
    assert all(jwt.principal(each.token(CLAIMS), NOW) for each in (old, new))


@pytest.mark.parametrize("secret", ["x" * 31, "é" * 15, ISSUERS["RS256"].pem().decode()])
def test_a_secret_is_long_and_no_key(secret: str) -> None:
    with pytest.raises(BadKeys, match="jwt_secret"):
        of_secret(secret)
