"""flashQ's door: lines of JSON, length-prefixed JSON and length-prefixed MessagePack, in flashQ's words.

It is a codec of a TCP listener. What it says is what flashQ says, as far as flashQ's clients look; what is
behind it is the server that all other listeners use.
"""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from forebay.broker.auth import Auth, NotKnown
from forebay.core.api.principals import ROLES, Principal
from forebay.core.bounds import Limits
from forebay.core.errors import Denied, ForebayError, Suspended
from forebay.core.words import DEFAULT
from forebay.server.decode_errors import Glimpse, glimpse
from forebay.server.flashq import answers, errors
from forebay.server.flashq.caller import OF_TOKENS, Caller, Tokens
from forebay.server.flashq.commands.needs import NEEDS
from forebay.server.flashq.commands.table import COMMANDS, NAMES, AnyCommand
from forebay.server.flashq.rates import Completions
from forebay.server.tcp.codec import Outlet
from forebay.server.workers import Workers
from forebay.wire.packing import check_finite, json_of, packed_of
from forebay.wire.text import check_depth
from forebay.wire.types import RequestId

_decode = msgspec.json.Decoder(AnyCommand).decode
_decode_packed = msgspec.msgpack.Decoder(AnyCommand).decode
_encode = msgspec.json.Encoder().encode
COMMAND_NAMES: dict[type, str] = {kind: name for name, kind in COMMANDS.items()}
MAY = {
    role: frozenset(
        kind for name, kind in COMMANDS.items() if not kind.is_auth and Principal(role=role).may(NEEDS[name])
    )
    for role in ROLES
}
"""By role: the commands that it is enough for."""


class Door:
    """The codec of flashQ's door; everything that its connections share."""

    def __init__(self, workers: Workers, tokens: tuple[str, ...] = ()) -> None:
        self.tokens = Tokens(tokens)
        self.workers = workers
        self._completions: dict[str, Completions] = {}
        """By tenant."""

    # Who asks.

    def context(self, owner: int, limits: Limits, principal: Principal | None) -> Caller:
        may: frozenset[type] = frozenset() if principal is None else MAY[principal.role]
        tenant = DEFAULT if principal is None else principal.tenant
        completions = self._completions.setdefault(tenant, Completions())
        return Caller(owner, limits, principal, may, self.workers, completions)

    @staticmethod
    def suspend(caller: Caller, is_suspended: bool) -> Caller:
        """Return the caller, whose tenant was suspended or resumed."""
        assert caller.principal is not None
        caller.is_suspended = is_suspended
        caller.may = frozenset() if is_suspended else MAY[caller.principal.role]
        return caller

    def anonymous(self, auth: Auth) -> Principal | None:
        return None if self.tokens else auth.anonymous()

    def identify(self, token: str, auth: Auth) -> Principal:
        """Return whose token it is: one of the door's, or of the server. Where none is needed, any is good,
        as it is in flashQ."""
        if self.tokens.has(token):
            return OF_TOKENS
        try:
            return auth.principal(token)
        except NotKnown:
            found = self.anonymous(auth)
            if found is None:
                raise NotKnown(errors.INVALID_TOKEN) from None
            return found

    @staticmethod
    def allowed(request: Any, caller: Caller) -> Caller:
        """Return the caller; raise if it may not send a command."""
        if caller.principal is None:
            raise errors.not_authenticated()
        if caller.is_suspended:
            raise Suspended(caller.tenant)
        name = COMMAND_NAMES[type(request)]
        if not caller.principal.may(NEEDS[name]):
            role = caller.principal.role
            raise Denied(f"{name} needs the role {' or '.join(NEEDS[name])}, and this token has {role}")
        return caller

    # Connections.

    def opened(self, context: Caller, outlet: Outlet) -> None:
        context.subscriptions.open(outlet)

    def ended(self, context: Caller) -> None:
        context.subscriptions.close()
        self.workers.left(context.owner, context.tenant)

    # Requests.

    @staticmethod
    def is_packed(body: bytes) -> bool:
        """Return whether a body is MessagePack: its first byte begins no JSON, and is no byte order mark."""
        return body[:1] > b"\x7f" and body[:1] != b"\xef"

    @staticmethod
    def glimpse(body: bytes) -> Glimpse:
        return glimpse(body, NAMES)

    @staticmethod
    def decode(body: bytes) -> Any:
        """Decode a command from UTF-8."""
        try:
            request = _decode(body)
        except RecursionError:
            raise errors.Refused("data", "Invalid JSON: nested too deep") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise errors.explain(body, error, NAMES, packed=False) from None
        wrapped, longest = request.nested()
        if wrapped:
            check_depth(body, wrapped, longest)
        if request.reqId is None:
            request.reqId = UNSET
        return request

    @staticmethod
    def decode_packed(body: bytes) -> Any:
        """Decode a command from MessagePack. If it has payloads, it is then decoded again from JSON.

        Its form is checked as MessagePack first, so that binary is not accepted as a name.
        """
        try:
            request = _decode_packed(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise errors.explain(body, error, NAMES, packed=True) from None
        if request.nested()[0]:
            return Door.decode(json_of(body))
        check_finite(body)
        if request.reqId is None:
            request.reqId = UNSET
        return request

    # Answers.

    def encode(self, request: Any, reply: Any, context: Caller, *, packed: bool = False) -> bytes:
        """Return the body that answers a command."""
        try:
            answer = request.otherwise(reply) if isinstance(reply, ForebayError) else None
            if isinstance(answer, ForebayError):
                raise answer
            answer = answer or request.reply(reply, context)
        except ForebayError as error:  # a reply of the core may be an error here
            text = errors.sentence(error, getattr(request, "queue", None))
            answer = answers.Failed(ok=False, error=text)
        body = _encode(answers.named(answer, request.reqId))
        return packed_of(body) if packed else body

    @staticmethod
    def encode_error(
        error: ForebayError, request_id: RequestId | UnsetType = UNSET, *, packed: bool = False
    ) -> bytes:
        text = errors.sentence(error)
        body = _encode(answers.Failed(reqId=request_id, ok=False, error=text))
        return packed_of(body) if packed else body
