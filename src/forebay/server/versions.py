"""Versions of values as they go out: text that sorts as versions do."""

import re

from forebay.core.errors import Invalid

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
