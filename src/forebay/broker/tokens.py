"""Tokens: how the server makes them, and what it stores of each.

    fb_0123456789ab_…43 characters…
       id           secret

The id is no secret: it finds what is kept. Of the secret only a salted hash is kept, so that nobody who reads
the store can use it. Secrets have 256 random bits: a fast hash is as good as a slow one for these.
"""

import hmac
import re
import secrets
from hashlib import sha256

from forebay.core.api.tenants import Token

ID_BYTES, SALT_BYTES, SECRET_BYTES = 6, 16, 32
_FORM = re.compile(r"fb_([0-9a-f]{12})_([A-Za-z0-9_-]{43})", re.ASCII)
_NOBODY = Token("", "", "", "", (), 0, 0, bytes(SALT_BYTES), bytes(sha256().digest_size))


def make(
    tenant: str, role: str, name: str, queues: tuple[str, ...], now: int, expires_at: int
) -> tuple[str, Token]:
    """Return a new token as its owner shows it, and as it is kept."""
    id, secret, salt = secrets.token_hex(ID_BYTES), secrets.token_urlsafe(SECRET_BYTES), _salt()
    token = Token(id, tenant, role, name, queues, now, expires_at, salt, digest(salt, secret))
    return f"fb_{id}_{secret}", token


def _salt() -> bytes:
    return secrets.token_bytes(SALT_BYTES)


def digest(salt: bytes, secret: str) -> bytes:
    return sha256(salt + secret.encode(errors="surrogatepass")).digest()


def find(text: str, tokens: dict[str, Token]) -> Token | None:
    """Return the token that a text is; the time that takes tells nothing about secrets."""
    parts = _FORM.fullmatch(text)
    if parts is None:
        return None
    id, secret = parts.groups()
    token = tokens.get(id, _NOBODY)
    fits = hmac.compare_digest(digest(token.salt, secret), token.digest)
    return token if fits and token is not _NOBODY else None


class Secret:
    """A text that others must show, such as a token in the environment; kept as a hash."""

    def __init__(self, text: str) -> None:
        self._salt = _salt()
        self._digest = digest(self._salt, text)

    def fits(self, text: str) -> bool:
        """Compare in a time that tells nothing."""
        return hmac.compare_digest(digest(self._salt, text), self._digest)
