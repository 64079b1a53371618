"""Signatures of webhooks: ours, and those of others that are taken."""

import hashlib
import hmac
import re
from collections.abc import Callable

SIGNED_S = 300
"""How far the timestamp of a signature may be from now."""
SIGNATURE, TIMESTAMP = "X-Forebay-Signature", "X-Forebay-Timestamp"
OTHERS = ("x-hub-signature-256", "x-flashq-signature")
"""Headers with an HMAC of the body alone: GitHub's and flashQ's."""
STAMPED = re.compile(rb"[0-9]+\.")
"""How what we sign begins: as a body alone, it would have an old signature of ours for ever."""


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
    if seconds:
        return _is_ours(secret, body, seconds, header(SIGNATURE.lower()), now_ms)
    if STAMPED.match(body):
        return False
    wanted = signature(secret, body)
    return any(_same(header(name), wanted) for name in OTHERS)


def _is_ours(secret: str, body: bytes, seconds: str, given: str, now_ms: int) -> bool:
    if not (seconds.isascii() and seconds.isdigit() and len(seconds) < 16):
        return False
    timestamp = int(seconds)
    is_new = abs(now_ms // 1000 - timestamp) <= SIGNED_S
    return is_new and _same(given, signature(secret, body, timestamp))


def _same(given: str, wanted: str) -> bool:
    """In constant time; without the name of the algorithm, if it is not given."""
    if not given:
        return False
    given = given if given.startswith("sha256=") else f"sha256={given}"
    return hmac.compare_digest(given.lower().encode(), wanted.encode())
