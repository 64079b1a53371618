"""Liveness and readiness."""

from msgspec import Struct
from starlette.types import Receive, Scope, Send

from forebay.broker.backup import HELD
from forebay.broker.node import Node
from forebay.server.http.endpoint import respond
from forebay.server.http.operation import encode


class Health(Struct):
    """The process is alive."""

    status: str


class Readiness(Struct, omit_defaults=True):
    """Whether the server accepts requests, and if not, why."""

    ready: bool
    why: str | None = None
    warning: str | None = None
    """What will soon be refused, or already is, while everything else goes on."""


class Healthz:
    """Liveness: the process answers."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await respond(scope, send, 200, encode(Health("ok")))


class Readyz:
    """Readiness: the server has loaded its store, can write it, and is not shutting down."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        why = "the server is stopping" if self._node.draining else self._node.broken
        if why is None:
            await self._node.disk.looked()
            warning = HELD if self._node.held else self._node.disk.warning()
            await respond(scope, send, 200, encode(Readiness(True, warning=warning)))
        else:
            await respond(scope, send, 503, encode(Readiness(False, why)), [(b"retry-after", b"1")])
