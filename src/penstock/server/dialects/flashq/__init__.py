"""The words of the TCP and Unix socket listeners: flashQ's commands, and ours where it has none.

A request is decoded into one of the classes of ``requests``. Nothing here decides anything.
"""

import msgspec
from msgspec import UNSET, UnsetType

from penstock.core.errors import Invalid, PenstockError
from penstock.server.dialects.flashq.base import Context, Request
from penstock.server.dialects.flashq.refusals import COMMANDS, explain, request_id
from penstock.server.dialects.flashq.replies import Failed, RequestId
from penstock.server.dialects.flashq.requests import AnyRequest, PackedRequest
from penstock.server.dialects.flashq.stages import Stage
from penstock.server.payloads import check_depth

__all__ = [
    "COMMANDS",
    "Context",
    "Request",
    "RequestId",
    "decode",
    "decode_packed",
    "encode",
    "encode_error",
    "is_packed",
    "request_id",
]

_decode = msgspec.json.Decoder(AnyRequest).decode
_encode = msgspec.json.Encoder().encode
_decode_packed = msgspec.msgpack.Decoder(PackedRequest).decode
_encode_packed = msgspec.msgpack.Encoder().encode


def decode(body: bytes) -> Request:
    """The request in a frame's body, which is UTF-8."""
    try:
        request: Request = _decode(body)
    except RecursionError:
        raise Invalid("payload", "nested less deep") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise explain(body, error) from None
    wrapped, longest = request.nested()
    if wrapped:
        check_depth(body, wrapped, longest)
    return request


_MAPS = frozenset(bytes([first]) for first in (*range(0x80, 0x90), 0xDE, 0xDF))
"""What a MessagePack map begins with."""


def is_packed(body: bytes) -> bool:
    """Whether a body is a MessagePack map."""
    return body[:1] in _MAPS


def decode_packed(body: bytes) -> Request:
    """The request in a frame's body that is MessagePack."""
    try:
        request: Request = _decode_packed(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise explain(body, error, packed=True) from None
    if isinstance(request, Stage) and request.messages is not UNSET:
        raise Invalid("messages", "left out in MessagePack: give body and count")
    return request


def encode(request: Request, reply: object, context: Context, *, packed: bool = False) -> bytes:
    """The body of the frame that answers a request."""
    if isinstance(reply, PenstockError):
        return encode_error(reply, request.reqId, packed=packed)
    try:
        if packed:
            return _encode_packed(request.packed_reply(reply, context))
        return _encode(request.reply(reply, context))
    except PenstockError as error:  # what the core calls nothing is an error in this dialect
        return encode_error(error, request.reqId, packed=packed)


def encode_error(
    error: PenstockError, request_id: RequestId | UnsetType = UNSET, *, packed: bool = False
) -> bytes:
    encoded = _encode_packed if packed else _encode
    return encoded(
        Failed(
            ok=False,
            error=error.message,
            code=error.code,
            details=error.details or UNSET,
            reqId=request_id,
        )
    )
