"""JSON Web Tokens (RFC 7519): from the text that a client sends to a principal, by the operator's keys.

    header.payload.signature
      │       └── claims, read only once the signature is good
      └── alg and kid: a wish. The key decides which algorithms fit it; kid only says which key is meant.

The only file that needs PyJWT, which parses keys and verifies signatures. Everything around these, where the
known attacks are, is here: no key is ever taken from a token (``jku``, ``jwk``, ``x5u``, ``x5c`` are not
read), a public key is never a secret, and what isn't understood (``crit``, ``none``, a name twice) is
refused.
"""

import json
import re
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable
from hashlib import blake2b
from pathlib import Path
from typing import Any

from jwt.algorithms import get_default_algorithms, has_crypto
from jwt.exceptions import PyJWTError
from msgspec import Struct

from forebay.broker.claims import BadJwt, Rules, principal_of, shown
from forebay.core.api.principals import Principal

if not has_crypto:
    raise ModuleNotFoundError("PyJWT verifies signatures with cryptography", name="cryptography")

TEXT_CHARS_MAX = 16 * 1024
"""Characters of a token: longer ones are refused unread."""
KEYS_BYTES_MAX = 8 * 1024 * 1024
"""Bytes of a file of keys, or of what a URL answers: 10,000 RSA keys are 6 MB."""
KEYS_MAX = 10_000
"""Keys of a JWKS."""
TRIED_MAX = 4
"""Keys that one token is tried with: more need a ``kid``."""
RSA_BITS_MIN, RSA_BITS_MAX = 2_048, 8_192
"""Smaller keys are weak (RFC 7518, 3.3); a signature of a larger one takes long."""
KNOWN_MAX = 10_000
"""Verified tokens that are remembered; then all are forgotten and verified again. To verify one takes 20
(HS256) to 110 µs (Ed25519), to remember it 2."""
SKIPPED_SHOWN = 3
"""Reasons that are given for keys that can't be used."""
ID_PREFIX = "jwt:"
"""Begins the ids of keys: no token of our own has one that looks like it."""

RS256, ES256, EDDSA = "RS256", "ES256", "EdDSA"
SECRET_BYTES_MIN = {"HS256": 32, "HS384": 48, "HS512": 64}
"""Algorithms of a secret, by how long it has to be: as long as the hash (RFC 7518, 3.2)."""
_KINDS: dict[tuple[object, object], str] = {
    ("RSA", None): RS256,
    ("EC", "P-256"): ES256,
    ("OKP", "Ed25519"): EDDSA,
}
"""Algorithm of a key in a JWKS, by its type and curve."""
_VERIFY = {name: get_default_algorithms()[name] for name in (RS256, ES256, EDDSA, *SECRET_BYTES_MIN)}

_FORM = re.compile(r"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)", re.ASCII)
_PEM = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----.*?-----END \1-----", re.DOTALL)
_IDS = secrets.token_bytes(32)
"""Ids of keys are hashes keyed with this: the id of a secret tells nothing about it."""


class BadKeys(ValueError):
    """Keys that can't be used, and what to do."""


class Key(Struct, frozen=True, eq=False):
    """What signatures are verified with."""

    id: str
    """Differs for keys that differ in anything."""
    kid: str | None
    algorithms: tuple[str, ...]
    material: Any
    """As PyJWT wants it."""


class Keys:
    """Keys by what tokens say of theirs: finding one among 10,000 takes as long as among two."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self.ids: set[str] = set()
        self._by_kid: dict[str | None, list[Key]] = {}
        self._by_algorithm: dict[str, list[Key]] = {}
        for each in keys:
            if each.id not in self.ids:
                self.ids.add(each.id)
                self._by_kid.setdefault(each.kid, []).append(each)
                for name in each.algorithms:
                    self._by_algorithm.setdefault(name, []).append(each)

    def knows(self, kid: str | None) -> bool:
        return kid is None or kid in self._by_kid

    def fitting(self, algorithm: str, kid: str | None) -> list[Key]:
        """Return the keys that may be meant. One without a kid, such as a secret, may be any token's."""
        if kid is None:
            return self._by_algorithm.get(algorithm, [])
        return [
            each for each in self._by_kid.get(kid, self._by_kid.get(None, [])) if algorithm in each.algorithms
        ]


class Jwt:
    """Principals of JWTs."""

    def __init__(self, rules: Rules, *, secret: str = "", file: Path | None = None) -> None:
        """Keys are the secret's and the file's, besides those that are taken. Raise BadKeys."""
        self._rules, self._file = rules, file
        self._secret = [of_secret(secret)] if secret else []
        self._keys = Keys(self._secret)
        self._known: dict[bytes, Principal] = {}
        """Verified tokens, by a keyed hash: what is remembered has no tokens in it."""
        self._salt = secrets.token_bytes(32)
        self.ask: Callable[[], None] = _nothing
        """Called when keys may have changed where they come from."""
        self.reload()

    def reload(self) -> None:
        """Reload the file; raise BadKeys, and keep the keys as they were."""
        if self._file is not None:
            self.take(of_file(self._file))
        self.ask()

    def take(self, keys: list[Key]) -> bool:
        """Replace the keys that were taken before; return whether that changed anything."""
        before, self._keys = self._keys, Keys([*self._secret, *keys])
        self._known.clear()
        return before.ids != self._keys.ids

    def has_key(self, id: str) -> bool:
        return id in self._keys.ids

    def principal(self, text: str, now: int) -> Principal:
        """Return the principal of a token; raise BadJwt."""
        if len(text) > TEXT_CHARS_MAX:
            raise BadJwt(f"it is longer than {TEXT_CHARS_MAX} characters")
        digest = blake2b(text.encode(errors="surrogatepass"), key=self._salt, digest_size=32).digest()
        known = self._known.get(digest)
        if known is not None and now < known.expires_at:
            return known
        found = self._verified(text, now)
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known[digest] = found
        return found

    def _verified(self, text: str, now: int) -> Principal:
        parts = _FORM.fullmatch(text)
        if parts is None:
            raise BadJwt("it is no JWT with a signature")
        header, payload, signature = map(_bytes, parts.groups())
        algorithm, kid = _wish(_object(header, "header"))
        signed = text[: parts.end(2)].encode()
        for key in self._fitting(algorithm, kid):
            if _VERIFY[algorithm].verify(signed, key.material, signature):
                return principal_of(_object(payload, "payload"), self._rules, now, key.id)
        raise BadJwt("its signature is wrong")

    def _fitting(self, algorithm: str, kid: str | None) -> list[Key]:
        found = self._keys.fitting(algorithm, kid)
        if not self._keys.knows(kid):
            self.ask()  # the key may be newer than our keys
        if not found:
            if not self._keys.knows(kid):
                raise BadJwt(f"there is no key with its kid {shown(kid)}")
            raise BadJwt(f"there is no key of its kind for {algorithm}")
        if len(found) > TRIED_MAX:
            raise BadJwt(f"there are {len(found)} keys that may be meant: it needs a kid of its own")
        return found


def _nothing() -> None:
    """Do nothing: keys come from nowhere else."""


# Tokens.


def _wish(header: dict[str, object]) -> tuple[str, str | None]:
    """Return algorithm and kid. Everything else in a header is ignored but ``crit``, which forbids that."""
    if "crit" in header:
        raise BadJwt("its header has crit, of which nothing is understood here")
    if header.get("b64", True) is not True:
        raise BadJwt("its header has b64")
    algorithm, kid = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or algorithm not in _VERIFY:
        raise BadJwt(f"its alg {shown(algorithm)} is none of {', '.join(_VERIFY)}")
    if "kid" in header and not isinstance(kid, str):
        raise BadJwt("its kid is no text")
    return algorithm, kid if isinstance(kid, str) else None


def _bytes(part: str) -> bytes:
    """Decode base64url; bits of its last character that mean nothing are 0, so that a token has one text."""
    try:
        found = urlsafe_b64decode(part + "=" * (-len(part) % 4))
    except ValueError:
        found = b""
    if urlsafe_b64encode(found).rstrip(b"=").decode() != part:
        raise BadJwt("it is not base64url")
    return found


def _object(body: bytes, what: str) -> dict[str, object]:
    """Decode a JSON object: one that names a thing twice may mean one to us and another to others."""
    try:
        found = json.loads(body.decode(), object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError):  # not UTF-8, not JSON, or a number of 5,000 digits
        raise BadJwt(f"its {what} is no JSON object in which each name is there once") from None
    if not isinstance(found, dict):
        raise BadJwt(f"its {what} is no JSON object")
    return found


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name twice")
    return found


def _no_constant(name: str) -> object:
    raise ValueError(name)  # NaN and Infinity are no JSON


# Keys.


def of_secret(secret: str) -> Key:
    """Return the key that a shared secret is, for the algorithms that it is long enough for."""
    material = secret.encode()
    fit = tuple(name for name, least in SECRET_BYTES_MIN.items() if len(material) >= least)
    if not fit:
        raise BadKeys(f"jwt_secret: at least {min(SECRET_BYTES_MIN.values())} bytes are needed")
    try:
        _VERIFY[fit[0]].prepare_key(material)
    except PyJWTError:
        raise BadKeys("jwt_secret: it looks like a key or a certificate, which goes to jwt_keys") from None
    return Key(_id("secret", material), None, fit, material)


def of_file(path: Path) -> list[Key]:
    """Return the keys of a PEM or JWKS file. Raise BadKeys."""
    try:
        with path.open("rb") as file:
            body = file.read(KEYS_BYTES_MAX + 1)
    except OSError as error:
        raise BadKeys(f"{path} can't be read: {error.strerror}") from None
    try:
        return of_jwks(body) if body.lstrip()[:1] == b"{" else of_pem(body)
    except BadKeys as error:
        raise BadKeys(f"{path}: {error}") from None


def of_pem(body: bytes) -> list[Key]:
    """Return the public keys of PEM. Raise BadKeys."""
    found: list[Key] = []
    for block in _PEM.finditer(body):
        label = block[1].decode()
        if "PRIVATE" in label:
            raise BadKeys("it holds a private key; a server needs only the public one, in a file of its own")
        if label not in ("PUBLIC KEY", "RSA PUBLIC KEY"):
            raise BadKeys(f"it holds a {label.lower()}; write the public key to a file of its own")
        found.append(_of_pem_block(block[0]))
    if not found:
        raise BadKeys("it is neither PEM with a public key nor a JWKS")
    if len(found) > TRIED_MAX:
        raise BadKeys(f"more than {TRIED_MAX} keys need ids: write them as a JWKS")
    return found


def _of_pem_block(block: bytes) -> Key:
    for algorithm in (RS256, ES256, EDDSA):
        try:
            material = _VERIFY[algorithm].prepare_key(block)
        except Exception:  # of PyJWT or cryptography, of any kind: it is a key of another kind, or damaged
            continue
        problem = _problem(algorithm, material)
        if problem:
            raise BadKeys(f"a key in it {problem}")
        return Key(_id("pem", block), None, (algorithm,), material)
    raise BadKeys("a key in it is none of RSA, EC with P-256, and Ed25519")


def of_jwks(body: bytes) -> list[Key]:
    """Return the keys of a JWKS (RFC 7517) that can be used, without others. Raise BadKeys if none can."""
    if len(body) > KEYS_BYTES_MAX:
        raise BadKeys(f"it has more than {KEYS_BYTES_MAX} bytes")
    try:
        document = _object(body, "body")
    except BadJwt:
        document = {}
    given = document.get("keys")
    if not isinstance(given, list):
        raise BadKeys('it is no JWKS, which is {"keys": […]}')
    if len(given) > KEYS_MAX:
        raise BadKeys(f"it has more than {KEYS_MAX} keys")
    found: list[Key] = []
    skipped: list[str] = []
    for each in given:
        try:
            found.append(_of_jwk(each))
        except BadKeys as error:
            skipped.append(str(error))
    if not found:
        reasons = "; ".join(dict.fromkeys(skipped[:SKIPPED_SHOWN])) or "it is empty"
        raise BadKeys(f"it has no key that can be used: {reasons}")
    return found


def _of_jwk(given: object) -> Key:
    if not isinstance(given, dict) or not all(
        isinstance(given.get(name, ""), str)
        for name in ("kty", "crv", "kid", "use", "alg", "n", "e", "x", "y")
    ):
        raise BadKeys("a key is no object with texts")
    if given.get("kty") == "oct":
        raise BadKeys("a secret in a JWKS is no secret: it goes to jwt_secret")
    if "d" in given:
        raise BadKeys("a private key is never for others")
    algorithm = _KINDS.get((given.get("kty"), given.get("crv")))
    if algorithm is None:
        raise BadKeys("a key is none of RSA, EC with P-256, and Ed25519")
    if given.get("alg", algorithm) != algorithm:
        raise BadKeys(f"a key is for {shown(given['alg'])}, not for {algorithm}")
    operations = given.get("key_ops", ["verify"])
    if given.get("use", "sig") != "sig" or not isinstance(operations, list) or "verify" not in operations:
        raise BadKeys("a key is not for signatures")
    try:
        material = _VERIFY[algorithm].from_jwk(given)
    except Exception:  # of PyJWT or cryptography, of any kind: what is wrong with a key of others is not ours
        raise BadKeys("a key is damaged, or not on its curve") from None
    problem = _problem(algorithm, material)
    if problem:
        raise BadKeys(f"a key {problem}")
    parts = [given.get(name) for name in ("kty", "crv", "kid", "n", "e", "x", "y")]
    return Key(_id("jwk", json.dumps(parts).encode()), given.get("kid"), (algorithm,), material)


def _problem(algorithm: str, material: Any) -> str:
    """Return what is wrong with a key that is one; empty if nothing is."""
    if algorithm == RS256 and not RSA_BITS_MIN <= material.key_size <= RSA_BITS_MAX:
        return f"has {material.key_size} bits, not {RSA_BITS_MIN} to {RSA_BITS_MAX}"
    if algorithm == ES256 and material.curve.name != "secp256r1":
        return f"is on the curve {material.curve.name}, not P-256"
    if algorithm == EDDSA and not type(material).__name__.startswith("Ed25519"):
        return "is not Ed25519"
    return ""


def _id(kind: str, material: bytes) -> str:
    return ID_PREFIX + blake2b(kind.encode() + b"\0" + material, key=_IDS, digest_size=16).hexdigest()
