"""What a listener of frames and lines needs to know of the protocol spoken on it.

The native protocol and flashQ's door are such codecs. A request is either one command of the core, or carried
out step by step in a task of its own (``is_command`` is false).
"""

from asyncio import AbstractEventLoop
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct, UnsetType

from forebay.broker.auth import Auth
from forebay.core.api.commands import Command
from forebay.core.api.principals import Principal
from forebay.core.bounds import Limits
from forebay.core.errors import ForebayError
from forebay.server.access_log import AccessLog
from forebay.server.decode_errors import Glimpse
from forebay.server.events.poll import Polls
from forebay.server.node_client import NodeClient
from forebay.server.webhooks.registry import Webhooks
from forebay.server.workers import Workers
from forebay.wire.types import RequestId


class Services(Struct, frozen=True):
    """What requests need that are more than one command of the core."""

    questions: NodeClient
    polls: Polls
    webhooks: Webhooks
    access: AccessLog
    workers: Workers
    auth: Auth


class Ready(Exception):
    """Raised by a request that needs no command of the core, with what ``encode`` is given as its reply."""

    def __init__(self, reply: Any = None) -> None:
        super().__init__("no command is needed")
        self.reply = reply


class Outlet(Protocol):
    """A connection, for what is sent over it without being asked for."""

    @property
    def services(self) -> Services | None: ...

    @property
    def loop(self) -> AbstractEventLoop: ...

    async def tell(self, bodies: list[bytes]) -> None:
        """Send bodies; return when the client has read enough of them for more."""
        ...

    def abort(self) -> None: ...


class Request(Protocol):
    """A decoded request."""

    reqId: RequestId | UnsetType

    tenant: str | UnsetType

    @property
    def is_command(self) -> bool: ...

    @property
    def is_auth(self) -> bool: ...

    def command(self, context: Any) -> Command: ...

    def packed_command(self, context: Any) -> Command: ...

    async def carry_out(self, services: Services, context: Any) -> Any:
        """Return what ``reply`` is given; a task that is cancelled answers with what it has."""
        ...


class Codec(Protocol):
    """Bytes to requests, replies to bytes."""

    def context(self, owner: int, limits: Limits, principal: Principal | None) -> Any:
        """Return what requests of a connection are given; leases belong to ``owner``.

        It has ``may``, the requests that need no further look, and ``is_narrow``: whether its
        ``check_command`` has to look at each command.
        """
        ...

    def suspend(self, context: Any, is_suspended: bool) -> Any:
        """Return the context of a connection whose tenant was suspended or resumed."""
        ...

    def anonymous(self, auth: Auth) -> Principal | None:
        """Return who a connection is that has shown nothing yet; None if it has to."""
        ...

    def identify(self, token: str, auth: Auth) -> Principal:
        """Return the principal of a token; raise if there is none."""
        ...

    def allowed(self, request: Any, context: Any) -> Any:
        """Return the context in which a request is carried out; raise if its principal may not ask for it."""
        ...

    def decode(self, body: bytes) -> Request: ...

    def decode_packed(self, body: bytes) -> Request: ...

    def is_packed(self, body: bytes) -> bool: ...

    def glimpse(self, body: bytes) -> Glimpse: ...

    def encode(self, request: Any, reply: Any, context: Any, *, packed: bool = False) -> bytes: ...

    def encode_error(
        self, error: ForebayError, request_id: RequestId | UnsetType = ..., *, packed: bool = False
    ) -> bytes: ...


@runtime_checkable
class Attends(Protocol):
    """A codec that wants to know when connections open and end."""

    def opened(self, context: Any, outlet: Outlet) -> None: ...

    def ended(self, context: Any) -> None: ...
