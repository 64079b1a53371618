"""Cursors of browse requests and versions of values: their text forms, and the effort of one page."""

import re

from forebay.core.api.queries import Shown, Spot
from forebay.core.errors import Invalid

EFFORT = 5_000
"""Runs that one page may scan, about 50 ms: then other requests get their turn."""


def cursor_of(spot: Spot | None) -> str | None:
    return None if spot is None else f"{spot[0]}.{spot[1]}"


def parse_cursor(text: str | None) -> Spot | None:
    """Parse the cursor of a browse request; None starts at the beginning.

    >>> parse_cursor("65.7"), parse_cursor(None), cursor_of((65, 7))
    ((65, 7), None, '65.7')
    """
    if text is None:
        return None
    key, dot, offset = text.partition(".")
    if not (dot and key.isdigit() and offset.isdigit() and text.isascii() and len(text) <= 40):
        raise Invalid("cursor", "what the answer before had")
    return int(key), int(offset)


def holds(found: Shown, text: bytes) -> bool:
    """Return whether the payload of a message, as pushed, contains ``text``."""
    return found.segment.present and any(text in payload for payload in found.payloads())


DIGITS = 24
_VERSION = re.compile(f"[0-9a-fA-F]{{{DIGITS}}}")


def shown_version(version: int) -> str:
    return f"{version:0{DIGITS}x}"


def parse_version(version: str | None) -> int | None:
    if version is None:
        return None
    if not _VERSION.fullmatch(version):
        raise Invalid("version", f"{DIGITS} hexadecimal digits, or null")
    return int(version, 16)
