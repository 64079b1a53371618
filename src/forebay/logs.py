"""Logs go to standard error, as text for people or as JSON for programs."""

import json
import logging
import sys
from typing import Any

import msgspec

TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


def set_up_logs(level: str, form: str) -> None:
    """Have everything of a level, and above it, logged as ``text`` or as ``json``."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines(TEXT))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """What a line says besides its message, under names: ``extra={"fields": {"task": "send"}}``."""
    found = getattr(record, "fields", None)
    return found if isinstance(found, dict) else {}


class TextLines(logging.Formatter):
    """A line for people; what it has under names comes behind the message."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        named = "".join(f" {name}={_shown(value)}" for name, value in _fields(record).items())
        return super().formatMessage(record) + named


def _shown(value: object) -> str:
    """Return a value on one line that ends where the next name begins: text is quoted if it has to be.

    >>> _shown("emails"), _shown(1.5), _shown("a b\\n")
    ('emails', '1.5', '"a b\\\\n"')
    """
    text = str(value)
    plain = text.isprintable() and not any(each in text for each in ' "=')
    return text if plain and text else json.dumps(text)


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": int(record.created * 1000),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()
