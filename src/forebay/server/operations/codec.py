"""The native protocol of TCP and Unix sockets: decode requests, encode answers."""

from functools import cache
from typing import Any, Union

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from forebay.broker.auth import REQUIRED, Auth, NotKnown
from forebay.core.api.principals import PUSH, ROLES, WRITE, Principal
from forebay.core.bounds import Limits
from forebay.core.errors import ForebayError, Invalid, Suspended
from forebay.core.words import DEFAULT
from forebay.server.decode_errors import (
    Glimpse,
    explain as explained,
    glimpse as glimpsed,
    in_words_of,
    inside,
    json_fields,
    names_within,
    packed_fields,
    places,
)
from forebay.server.operations.carried import Context, for_tenant
from forebay.server.operations.table import COMMANDS
from forebay.server.operations.transactions import AnyOp, Transact
from forebay.wire.operation import Answer, Failed, Problem
from forebay.wire.packing import check_finite, json_of, packed_of
from forebay.wire.table import BY_NAME
from forebay.wire.text import check_depth
from forebay.wire.types import RequestId

AnyRequest: Any = Union[tuple(COMMANDS.values())]  # noqa: UP007

_decode = msgspec.json.Decoder(AnyRequest).decode
_encode = msgspec.json.Encoder().encode
_decode_packed = msgspec.msgpack.Decoder(AnyRequest).decode
_encode_packed = msgspec.msgpack.Encoder().encode

IN_TRANSACTION = ", ".join(str(kind.__struct_config__.tag) for kind in AnyOp.__args__)


def _always(role: str) -> frozenset[type]:
    """Return the requests that a role is always enough for: all of them but AUTH are looked at otherwise."""
    principal = Principal(role=role)
    found = (kind for name, kind in COMMANDS.items() if principal.may(_least(name)) and not kind.is_auth)
    return frozenset(found)


def _least(name: str) -> tuple[str, ...]:
    """Return what is enough for every request of a name; a transaction may hold what needs ``write``."""
    return (WRITE,) if name == Transact.__struct_config__.tag else BY_NAME[name].roles


MAY = {role: _always(role) for role in ROLES}


def context(owner: int, limits: Limits, principal: Principal | None) -> Context:
    """Return the context of a connection; without a principal, nothing but AUTH is taken."""
    if principal is None:
        return Context(DEFAULT, owner, None)
    is_narrow = bool(principal.queues) or principal.role == PUSH
    return Context(
        principal.tenant, owner, principal, principal.queues, MAY[principal.role], is_narrow=is_narrow
    )


def suspend(context: Context, is_suspended: bool) -> Context:
    """Return the context of a connection whose tenant was suspended or resumed."""
    assert context.principal is not None
    may: frozenset[type] = frozenset() if is_suspended else MAY[context.principal.role]
    return replace(context, may=may, is_suspended=is_suspended)


def anonymous(auth: Auth) -> Principal | None:
    return auth.anonymous()


def identify(token: str, auth: Auth) -> Principal:
    return auth.principal(token)


def allowed(request: Any, context: Context) -> Context:
    """Return the context in which a request is carried out; raise if its principal may not ask for it."""
    principal = context.principal
    if principal is None:
        raise NotKnown(REQUIRED)
    if context.is_suspended:
        raise Suspended(context.tenant)
    if type(request) not in context.may:
        request.check_allowed(principal)
    return context if request.tenant is UNSET else for_tenant(context, request.tenant)


def decode(body: bytes) -> Any:
    """Decode the request in a frame's body, which is UTF-8."""
    try:
        request = _decode(body)
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


def decode_packed(body: bytes) -> Any:
    """Decode the request in a MessagePack body.

    Its form is checked as MessagePack first, so that binary is not accepted as a name. If it has payloads, it
    is then decoded again from JSON.
    """
    try:
        request = _decode_packed(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise explain(body, error, packed=True) from None
    if request.nested()[0]:
        return decode(json_of(body))
    check_finite(body)
    return request


def glimpse(body: bytes) -> Glimpse:
    """Return what can be read of a body that could not be decoded."""
    return glimpsed(body, COMMANDS)


_names = cache(names_within)


def in_words(request: Any, error: ForebayError) -> ForebayError:
    """Return an error of the core under the field names of a request."""
    kind: type[Struct] = type(request)
    return in_words_of(error, _names(kind))


def encode(request: Any, reply: Any, context: Context, *, packed: bool = False) -> bytes:
    """Return the body of the frame that answers a request."""
    if isinstance(reply, ForebayError):
        return encode_error(in_words(request, reply), request.reqId, packed=packed)
    try:
        if packed and (own := request.packed_reply(reply, context)) is not None:
            return _encode_packed(said(own, request.reqId))
        answer = request.reply(reply, context)
        answer.ok, answer.reqId = True, request.reqId
        body = _encode(answer)
    except ForebayError as error:  # an empty reply of the core may be an error in this protocol
        return encode_error(error, request.reqId, packed=packed)
    return packed_of(body) if packed else body


def said(answer: Answer, request_id: RequestId | UnsetType) -> Answer:
    """Return an answer with what a carrier without a status of its own adds to it."""
    answer.ok, answer.reqId = True, request_id
    return answer


def encode_error(
    error: ForebayError, request_id: RequestId | UnsetType = UNSET, *, packed: bool = False
) -> bytes:
    problem = Problem(error.code, error.message, error.details)
    body = _encode(Failed(ok=False, error=problem, reqId=request_id))
    return packed_of(body) if packed else body


# Why a body could not be decoded. Only bad input gets here, and payloads are not decoded.


def explain(body: bytes, error: Exception, *, packed: bool = False) -> ForebayError:
    """Return the error for a body that failed to decode with ``error``."""
    form: Any = msgspec.msgpack if packed else msgspec.json
    fields_of = packed_fields if packed else json_fields
    try:
        fields = fields_of(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Invalid("frame", f"one well-formed {'MessagePack map' if packed else 'JSON object'}; {error}")
    try:
        kind: type[Struct] = COMMANDS[form.decode(fields["cmd"], type=str)]
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError):
        return Invalid("cmd", f"one of {', '.join(COMMANDS)}")
    return explain_field(error, kind, "frame")


def explain_field(error: Exception, kind: type[Struct], whole: str) -> Invalid:
    """Return what is wrong with the fields of a request."""
    where, unknown = places(error)
    if where.startswith("ops"):
        if unknown and inside(kind, where) is None:
            return Invalid(f"{where}.{unknown}", "left out; see the fields of that command")
        if where.endswith(".cmd"):
            return Invalid(where, f"one of {IN_TRANSACTION}: a transaction has no other")
    return explained(error, kind, whole)
