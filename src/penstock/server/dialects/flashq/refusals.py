"""Why a body could not be decoded, in words that help.

Only bad input comes here, and its payloads are not looked into.
"""

import re
from typing import Any, get_args

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from penstock.core.errors import Invalid, PenstockError, Unsupported
from penstock.server.dialects.flashq.base import Request
from penstock.server.dialects.flashq.flows import Child, Operation
from penstock.server.dialects.flashq.keyvalues import Check, Entry, Mutation
from penstock.server.dialects.flashq.pushes import Completion, JobIn
from penstock.server.dialects.flashq.replies import RequestId
from penstock.server.dialects.flashq.requests import AnyRequest
from penstock.server.dialects.flashq.stages import RunIn
from penstock.server.options import BackoffIn, OptionsIn, RateIn

COMMANDS: dict[str, type[Request]] = {kind.__struct_config__.tag: kind for kind in get_args(AnyRequest)}

OPERATIONS = [kind.__struct_config__.tag for kind in get_args(Operation)]

COMMANDS_LATER = frozenset(
    {
        "AUTH",
        "METRICS",
        "SUBSCRIBE",
        "UNSUBSCRIBE",
    }
)
"""Commands this wire will have and does not have yet: refused by name."""

OPTIONS_LATER = frozenset(
    {
        "encrypted",
        "keep_completed_age",
        "keep_completed_count",
        "remove_on_complete",
        "remove_on_fail",
        "stall_timeout",
    }
)
"""Options of messages, acks and queues that do not exist yet: refused by name."""

_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_packed_fields = msgspec.msgpack.Decoder(dict[str, Raw]).decode


def request_id(body: bytes) -> RequestId | UnsetType:
    """The reqId of a body that could not be decoded, if it has a good one."""
    try:
        given: RequestId
        if body.startswith(b"{"):
            given = msgspec.json.decode(_fields(body)["reqId"], type=RequestId)
        else:
            given = msgspec.msgpack.decode(_packed_fields(body)["reqId"], type=RequestId)
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, RecursionError):
        return UNSET
    return given


_AT = re.compile(r" - at `\$\.?([^`]*)`$")
_EXPECTED = re.compile(r"Expected `([^`]*)`")
_UNKNOWN = re.compile(r"Object contains unknown field `([^`]*)`")
_MISSING = re.compile(r"Object missing required field `([^`]*)`")
_WORDS = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
}


_INNER: dict[str, type[Struct]] = {
    "options": OptionsIn,
    "jobs": JobIn,
    "backoff": BackoffIn,
    "options.backoff": BackoffIn,
    "jobs.backoff": BackoffIn,
    "on_complete": Completion,
    "children": Child,
    "checks": Check,
    "mutations": Mutation,
    "entries": Entry,
    "runs": RunIn,
    "options.rate_limit": RateIn,
    "options.byte_limit": RateIn,
    "options.partition_rate_limit": RateIn,
    "rate_limit": RateIn,
    "byte_limit": RateIn,
}
_INDEX = re.compile(r"\[[^]]*\]")


def explain(body: bytes, error: Exception, *, packed: bool = False) -> PenstockError:
    """What is wrong with a body that ``error`` came of."""
    form: Any = msgspec.msgpack if packed else msgspec.json
    fields_of = _packed_fields if packed else _fields
    try:
        fields = fields_of(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Invalid("frame", f"one well-formed {'MessagePack map' if packed else 'JSON object'}; {error}")
    try:
        name: str = form.decode(fields["cmd"], type=str)
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError):
        return Invalid("cmd", f"one of {', '.join(COMMANDS)}")
    if name in COMMANDS_LATER:
        return Unsupported(f"{name} is not supported yet by this server")
    if name not in COMMANDS:
        return Invalid("cmd", f"one of {', '.join(COMMANDS)}")
    return _explain_field(str(error), COMMANDS[name])


def _explain_field(text: str, kind: type[Request]) -> PenstockError:
    at = _AT.search(text)
    where = at.group(1) if at else ""
    if unknown := _UNKNOWN.search(text):
        field = unknown.group(1)
        if field in OPTIONS_LATER:
            return Unsupported(f"{field} is not supported yet by this server")
        inner: type[Struct] = _INNER.get(_INDEX.sub("", where), kind)
        place = f"{where}.{field}" if where else field
        if where.startswith("ops"):
            return Invalid(place, "left out; see the fields of that command")
        known = ", ".join(each.encode_name for each in msgspec.structs.fields(inner))
        return Invalid(place, f"left out; known here are {known}")
    if where.startswith("ops") and where.endswith(".cmd"):
        return Invalid(where, f"one of {', '.join(OPERATIONS)}: a transaction has no other")
    if missing := _MISSING.search(text):
        field = f"{where}.{missing.group(1)}" if where else missing.group(1)
        return Invalid(field, "given")
    if expected := _EXPECTED.search(text):
        kinds = [_WORDS.get(each, each) for each in expected.group(1).split(" | ")]
        return Invalid(where or "frame", " or ".join(kinds))
    return Invalid(where or "frame", f"well-formed; {text}")
