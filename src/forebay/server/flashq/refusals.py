"""Explain why a body could not be decoded.

Only bad input gets here, and payloads are not decoded.
"""

from typing import Any, get_args

import msgspec
from msgspec import UNSET, Raw, UnsetType

from forebay.core.errors import ForebayError, Invalid, Unsupported
from forebay.server.decode_errors import explain as explained, places
from forebay.server.flashq.flows import Operation
from forebay.server.flashq.replies import RequestId
from forebay.server.flashq.request import Request
from forebay.server.flashq.table import AnyRequest

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
"""Commands of flashQ that are not supported yet: refused by name."""

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
"""Options of messages, acks and queues that are not supported yet: refused by name."""

_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_packed_fields = msgspec.msgpack.Decoder(dict[str, Raw]).decode


def request_id(body: bytes) -> RequestId | UnsetType:
    """Return the reqId of a body that could not be decoded, or UNSET if it has no valid one."""
    try:
        given: RequestId
        if body.startswith(b"{"):
            given = msgspec.json.decode(_fields(body)["reqId"], type=RequestId)
        else:
            given = msgspec.msgpack.decode(_packed_fields(body)["reqId"], type=RequestId)
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, RecursionError):
        return UNSET
    return given


def explain(body: bytes, error: Exception, *, packed: bool = False) -> ForebayError:
    """Return the error for a body that failed to decode with ``error``."""
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
    return _explain_field(error, COMMANDS[name])


def _explain_field(error: Exception, kind: type[Request]) -> ForebayError:
    where, unknown = places(error)
    if unknown in OPTIONS_LATER:
        return Unsupported(f"{unknown} is not supported yet by this server")
    if where.startswith("ops"):
        if unknown:
            return Invalid(f"{where}.{unknown}", "left out; see the fields of that command")
        if where.endswith(".cmd"):
            return Invalid(where, f"one of {', '.join(OPERATIONS)}: a transaction has no other")
    return explained(error, kind, "frame")
