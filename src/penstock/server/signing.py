"""Signatures of webhooks: ours, and those of others that are taken."""

import hashlib
import hmac
from collections.abc import Callable

SIGNED_S = 300
"""How far the timestamp of a signature may be from now."""
SIGNATURE, TIMESTAMP = "X-Penstock-Signature", "X-Penstock-Timestamp"
OTHERS = ("x-hub-signature-256", "x-flashq-signature")
"""Headers with an HMAC of the body alone: GitHub's and flashQ's."""


def signature(secret: str, body: bytes, timestamp: int | None = None) -> str:
    """The HMAC of a body, and of the seconds since 1970 at which it is sent, if they are signed along.

    >>> signature("s", b"{}", 1)[:20]
    'sha256=b253639bcd705'
    """
    signed = body if timestamp is None else b"%d." % timestamp + body
    return "sha256=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def is_signed(secret: str, body: bytes, header: Callable[[str], str], now_ms: int) -> bool:
    """Whether a request has a signature that only someone who knows the secret could have made."""
    seconds = header(TIMESTAMP.lower())
    if seconds.isascii() and seconds.isdigit() and len(seconds) < 16:
        timestamp = int(seconds)
        if abs(now_ms // 1000 - timestamp) <= SIGNED_S and _same(
            header(SIGNATURE.lower()), signature(secret, body, timestamp)
        ):
            return True
    wanted = signature(secret, body)
    return any(_same(header(name), wanted) for name in OTHERS)


def _same(given: str, wanted: str) -> bool:
    """In constant time; without the name of the algorithm, if it is not given."""
    if not given:
        return False
    given = given if given.startswith("sha256=") else f"sha256={given}"
    return hmac.compare_digest(given.lower().encode(), wanted.encode())
