"""An issuer of JWTs that signs whatever it is told to, with keys made on the spot."""

import hmac
import json
from base64 import urlsafe_b64encode
from collections.abc import Callable
from functools import cache
from hashlib import sha256, sha384, sha512
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

Private = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
HASHES: dict[str, Callable[..., Any]] = {"HS256": sha256, "HS384": sha384, "HS512": sha512}
SECRET = "a secret of sixty-four bytes is long enough for each of the three"
KINDS = ("RS256", "ES256", "EdDSA")


def encoded(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def part(value: object) -> str:
    return encoded(value if isinstance(value, bytes) else json.dumps(value).encode())


def number(value: int, size: int | None = None) -> str:
    return encoded(value.to_bytes(size or (value.bit_length() + 7) // 8))


class Issuer:
    """Somebody with one key."""

    def __init__(self, algorithm: str, kid: str | None = None, key: Private | None = None) -> None:
        self.algorithm, self.kid = algorithm, kid
        self.key = key or MAKE[algorithm]()

    def sign(self, message: bytes) -> bytes:
        match self.key:
            case rsa.RSAPrivateKey():
                return self.key.sign(message, padding.PKCS1v15(), SHA256())
            case ec.EllipticCurvePrivateKey():
                size = (self.key.curve.key_size + 7) // 8
                r, s = decode_dss_signature(self.key.sign(message, ec.ECDSA(SHA256())))
                return r.to_bytes(size) + s.to_bytes(size)
            case _:
                return self.key.sign(message)

    def token(self, claims: object, **header: Any) -> str:
        """A token of these claims; ``header`` changes what is in the header, and None removes it."""
        whole = {"alg": self.algorithm, "typ": "JWT", "kid": self.kid, **header}
        return signed(_without_none(whole), claims, self.sign)

    def pem(self) -> bytes:
        return self.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def private_pem(self) -> bytes:
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    def jwk(self, **more: Any) -> dict[str, Any]:
        found: dict[str, Any] = _jwk(self.key)
        named = {} if self.kid is None else {"kid": self.kid}
        return {**found, **named, **more}


def _jwk(key: Private) -> dict[str, Any]:
    match key:
        case rsa.RSAPrivateKey():
            numbers = key.public_key().public_numbers()
            return {"kty": "RSA", "n": number(numbers.n), "e": number(numbers.e)}
        case ec.EllipticCurvePrivateKey():
            size = (key.curve.key_size + 7) // 8
            point = key.public_key().public_numbers()
            crv = f"P-{key.curve.key_size}"
            return {"kty": "EC", "crv": crv, "x": number(point.x, size), "y": number(point.y, size)}
        case _:
            raw = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
            return {"kty": "OKP", "crv": "Ed25519", "x": encoded(raw)}


def _without_none(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def signed(header: object, claims: object, sign: Callable[[bytes], bytes]) -> str:
    """Header and claims as they are, if they are bytes, or else as JSON."""
    message = f"{part(header)}.{part(claims)}"
    return f"{message}.{encoded(sign(message.encode()))}"


def by_secret(claims: object, secret: str | bytes = SECRET, **header: Any) -> str:
    whole = _without_none({"alg": "HS256", **header})
    key = secret if isinstance(secret, bytes) else secret.encode()
    how = HASHES.get(whole["alg"], sha256)
    return signed(whole, claims, lambda message: hmac.new(key, message, how).digest())


def jwks(*issuers: Issuer) -> bytes:
    return json.dumps({"keys": [each.jwk() for each in issuers]}).encode()


def p256() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


@cache
def rsa_key(bits: int = 2_048, _: int = 0) -> rsa.RSAPrivateKey:
    """A key of so many bits; it takes a second to make, so a process makes each once."""
    return rsa.generate_private_key(65_537, bits)


MAKE: dict[str, Callable[[], Private]] = {
    "RS256": rsa_key,
    "ES256": p256,
    "EdDSA": ed25519.Ed25519PrivateKey.generate,
}
