"""Signatures of webhooks: Forebay's, and those of other senders that are accepted."""

import hashlib
import hmac
import re
from collections.abc import Callable

SIGNED_S = 300
"""How far the timestamp of a signature may be from now, in seconds."""
SIGNATURE, TIMESTAMP = "X-Forebay-Signature", "X-Forebay-Timestamp"
OTHERS = ("x-hub-signature-256",)
"""Headers with an HMAC of the body alone: GitHub's."""
STAMPED = re.compile(rb"[0-9]+\.")
"""How the text that Forebay signs begins. Such a body without a timestamp header is refused: any delivery's
signature would be valid for it for ever."""


def signature(secret: str, body: bytes, timestamp: int | None = None) -> str:
    """Return the HMAC of a body, or of a timestamp in Unix seconds and the body.

    >>> signature("s", b"{}", 1)[:20]
    'sha256=b253639bcd705'
    """
    signed = body if timestamp is None else b"%d." % timestamp + body
    return "sha256=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def is_signed(
    secret: str, body: bytes, header: Callable[[str], str], now_ms: int, others: tuple[str, ...] = OTHERS
) -> bool:
    """Return whether a request has a signature that only a holder of the secret could make.

    ``others`` are headers with an HMAC of the body alone.
    """
    seconds = header(TIMESTAMP.lower())
    if seconds:
        return _is_ours(secret, body, seconds, header(SIGNATURE.lower()), now_ms)
    if STAMPED.match(body):
        return False
    wanted = signature(secret, body)
    return any(_same(header(name), wanted) for name in others)


def _is_ours(secret: str, body: bytes, seconds: str, given: str, now_ms: int) -> bool:
    if not (seconds.isascii() and seconds.isdigit() and len(seconds) < 16):
        return False
    timestamp = int(seconds)
    is_new = abs(now_ms // 1000 - timestamp) <= SIGNED_S
    return is_new and _same(given, signature(secret, body, timestamp))


def _same(given: str, wanted: str) -> bool:
    """Compare in constant time; ``sha256=`` may be missing in the signature given."""
    if not given:
        return False
    given = given if given.startswith("sha256=") else f"sha256={given}"
    return hmac.compare_digest(given.lower().encode(), wanted.encode())
