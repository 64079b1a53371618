"""flashQ's door: lines of JSON, length-prefixed JSON and length-prefixed MessagePack, in flashQ's words.

It is a codec of a TCP listener. What it says is what flashQ says, as far as flashQ's clients look; what is
behind it is the server that all other listeners use.
"""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from forebay.core.bounds import Limits
from forebay.core.errors import ForebayError
from forebay.server.decode_errors import Glimpse, glimpse
from forebay.server.flashq import answers, errors
from forebay.server.flashq.caller import Caller, Tokens
from forebay.server.flashq.commands.table import NAMES, AnyCommand
from forebay.server.flashq.rates import Completions
from forebay.server.tcp.codec import Outlet
from forebay.server.workers import Workers
from forebay.wire.packing import check_finite, json_of, packed_of
from forebay.wire.text import check_depth
from forebay.wire.types import RequestId

_decode = msgspec.json.Decoder(AnyCommand).decode
_decode_packed = msgspec.msgpack.Decoder(AnyCommand).decode
_encode = msgspec.json.Encoder().encode


class Door:
    """The codec of flashQ's door; everything that its connections share."""

    def __init__(self, workers: Workers, tokens: tuple[str, ...] = ()) -> None:
        self.tokens = Tokens(tokens)
        self.workers = workers
        self.completions = Completions()

    def context(self, owner: int, limits: Limits) -> Caller:
        return Caller(owner, limits, self.tokens, self.workers, self.completions)

    def opened(self, context: Caller, outlet: Outlet) -> None:
        context.subscriptions.open(outlet)

    def ended(self, context: Caller) -> None:
        context.subscriptions.close()
        self.workers.left(context.owner)

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
