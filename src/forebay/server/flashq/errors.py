"""Errors as flashQ says them: one short sentence, in its own words where its clients look for these.

flashQ's SDKs have no error codes: they look for words such as ``not found`` in the text.
"""

import re
from typing import Any

import msgspec

from forebay.core.errors import Conflict, Denied, ForebayError, Invalid, NotFound
from forebay.server.decode_errors import (
    AT,
    KIND_WORDS,
    MISSING,
    json_fields,
    packed_fields,
)

QUEUE_CHARS_MAX = 256
_BYTES = re.compile(r"at most (\d+) bytes; one has")
_EXPECTED = re.compile(r"Expected `([^`]*)`(.*?)(?:, got .*)?(?: - at .*)?$")
_WORDS = {
    "delay_ms": "delay",
    "every_ms": "repeat_every",
    "grace_ms": "grace",
    "keep_count": "keep_completed_count",
    "keep_ms": "keep_completed_age",
    "payload": "data",
    "stall_ms": "stall_timeout",
    "timeout_ms": "timeout",
    "ttl_ms": "ttl",
    "wait_ms": "timeout",
}
"""Fields of the core, and their names here."""


class Refused(Invalid):
    """Bad input, in a sentence of flashQ's own."""

    def __init__(self, field: str, sentence: str) -> None:
        super().__init__(field, sentence)
        self.message = sentence
        self.args = (sentence,)


def job_not_found(message: int | str) -> NotFound:
    return NotFound(f"Job {message} not found")


def duplicate(key: str) -> Conflict:
    return Conflict(f"Duplicate job with key: {key}")


def debounced(key: str) -> Conflict:
    return Conflict(f"Debounced: {key}")


INVALID_TOKEN = "Invalid token"
NOT_AUTHENTICATED = "Authentication required"


def not_authenticated() -> Denied:
    return Denied(NOT_AUTHENTICATED)


def sentence(error: ForebayError, queue: str | None = None) -> str:
    """Return the text of an error, of a command on this queue."""
    if not isinstance(error, Invalid) or isinstance(error, Refused):
        return error.message
    if error.field == "queue" and queue is not None:
        is_long = not 1 <= len(queue) <= QUEUE_CHARS_MAX
        return "Queue name must be 1-256 characters" if is_long else "Invalid characters in queue name"
    if too_long := _BYTES.match(error.accepted):
        return f"Payload exceeds {too_long[1]} bytes"
    # What explains further is cut: flashQ's users expect one short sentence.
    accepted = re.split(r"; |: (?=[a-z]+ )|, such as", error.accepted, maxsplit=1)[0]
    return f"{_WORDS.get(error.field, error.field)} must be {accepted}"


def explain(body: bytes, error: Exception, known: frozenset[str], *, packed: bool) -> ForebayError:
    """Return the error for a body that failed to decode with ``error``."""
    form: Any = msgspec.msgpack if packed else msgspec.json
    try:
        fields = (packed_fields if packed else json_fields)(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Refused("frame", f"Invalid {'MessagePack' if packed else 'JSON'}")
    try:
        name: str = form.decode(fields["cmd"], type=str)
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError):
        return Refused("cmd", "Invalid command: cmd must be a string")
    if name not in known:
        return Refused("cmd", f"Unknown command: {name[:50]}")
    return _explain_field(str(error))


def _explain_field(text: str) -> ForebayError:
    """Return the error for a field that is missing or has another type than it must have."""
    at = AT.search(text)
    where = at[1] if at else ""
    if missing := MISSING.search(text):
        field = f"{where}.{missing[1]}" if where else missing[1]
        return Refused(field, f"Missing field: {field}")
    field = where or "frame"
    if expected := _EXPECTED.search(text):
        kinds = [KIND_WORDS.get(each, each) for each in expected[1].split(" | ") if each != "null"]
        bound = expected[2].replace("`", "") if expected[2].startswith(" >=") else ""
        return Refused(field, f"Invalid {field}: must be {' or '.join(kinds)}{bound}")
    return Refused(field, f"Invalid {field}")
