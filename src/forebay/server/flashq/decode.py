"""Decode and encode the bodies of the TCP and Unix socket listeners.

A request is decoded into one of the classes of ``table``. Nothing here decides anything.
"""

from functools import cache

import msgspec
from msgspec import UNSET, UnsetType

from forebay.core.bounds import Limits
from forebay.core.errors import ForebayError, Invalid
from forebay.core.words import DEFAULT
from forebay.server.decode_errors import in_words_of, names_within
from forebay.server.flashq.events import Events as Events
from forebay.server.flashq.refusals import COMMANDS as COMMANDS, explain, request_id as request_id
from forebay.server.flashq.replies import Failed, RequestId as RequestId
from forebay.server.flashq.request import WAIT_MS, Context as Context, Request as Request
from forebay.server.flashq.table import AnyRequest
from forebay.wire.packing import check_finite, json_of, packed_of
from forebay.wire.text import check_depth

__all__ = [
    "COMMANDS",
    "Context",
    "Events",
    "Request",
    "RequestId",
    "context",
    "decode",
    "decode_packed",
    "encode",
    "encode_error",
    "is_packed",
    "request_id",
]

_decode = msgspec.json.Decoder(AnyRequest).decode
_encode = msgspec.json.Encoder().encode
_decode_packed = msgspec.msgpack.Decoder(AnyRequest).decode
_encode_packed = msgspec.msgpack.Encoder().encode


def decode(body: bytes) -> Request:
    """Decode the request in a frame's body, which is UTF-8."""
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


def is_packed(body: bytes) -> bool:
    """Return whether a body is MessagePack: its first byte can't begin JSON.

    The exception is a byte order mark, which MessagePack would read as a number; a client that sends it means
    text.
    """
    return body[:1] > b"\x7f" and body[:1] != b"\xef"


def decode_packed(body: bytes) -> Request:
    """Decode the request in a MessagePack body.

    Its form is checked as MessagePack first, so that binary is not accepted as a name. If it has payloads, it
    is then decoded again from JSON.
    """
    try:
        request: Request = _decode_packed(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise explain(body, error, packed=True) from None
    if request.nested()[0]:
        return decode(json_of(body))
    check_finite(body)
    return request


_names = cache(names_within)


def context(owner: int, limits: Limits) -> Context:
    return Context(DEFAULT, owner, min(WAIT_MS, limits.wait_ms_max))


def in_words(request: Request, error: ForebayError) -> ForebayError:
    """Return an error of the core under the field names of a request."""
    return in_words_of(error, _names(type(request)))


def encode(request: Request, reply: object, context: Context, *, packed: bool = False) -> bytes:
    """Return the body of the frame that answers a request."""
    if isinstance(reply, ForebayError):
        return encode_error(in_words(request, reply), request.reqId, packed=packed)
    try:
        if not packed:
            return _encode(request.reply(reply, context))
        answer = request.packed_reply(reply, context)
        if answer is not None:
            return _encode_packed(answer)
        return packed_of(_encode(request.reply(reply, context)))
    except ForebayError as error:  # an empty reply of the core may be an error in this protocol
        return encode_error(error, request.reqId, packed=packed)


def encode_error(
    error: ForebayError, request_id: RequestId | UnsetType = UNSET, *, packed: bool = False
) -> bytes:
    body = _encode(
        Failed(
            ok=False,
            error=error.message,
            code=error.code,
            details=error.details or UNSET,
            reqId=request_id,
        )
    )
    return packed_of(body) if packed else body
