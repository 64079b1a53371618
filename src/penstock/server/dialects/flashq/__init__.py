"""The words of the TCP and Unix socket listeners: flashQ's commands, and ours where it has none.

A request is decoded into one of the classes of ``requests``. Nothing here decides anything.
"""

import msgspec
from msgspec import UNSET, UnsetType

from penstock.core.errors import Invalid, PenstockError
from penstock.server.dialects.flashq.base import Context, Request
from penstock.server.dialects.flashq.refusals import COMMANDS, explain, request_id
from penstock.server.dialects.flashq.replies import Failed, RequestId
from penstock.server.dialects.flashq.requests import AnyRequest
from penstock.server.payloads import check_depth

__all__ = ["COMMANDS", "Context", "Request", "decode", "encode", "encode_error", "request_id"]

_decode = msgspec.json.Decoder(AnyRequest).decode
_encode = msgspec.json.Encoder().encode


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


def encode(request: Request, reply: object, context: Context) -> bytes:
    """The body of the frame that answers a request."""
    if isinstance(reply, PenstockError):
        return encode_error(reply, request.reqId)
    try:
        return _encode(request.reply(reply, context))
    except PenstockError as error:  # what the core calls nothing is an error in this dialect
        return encode_error(error, request.reqId)


def encode_error(error: PenstockError, request_id: RequestId | UnsetType = UNSET) -> bytes:
    return _encode(
        Failed(
            ok=False,
            error=error.message,
            code=error.code,
            details=error.details or UNSET,
            reqId=request_id,
        )
    )
