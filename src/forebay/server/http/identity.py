"""Who sends a request over HTTP: it carries a token, as ``Authorization: Bearer``, or has a certificate.

What it may is looked at where it is carried out; here its principal is found, or it is refused.
"""

import secrets
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from typing import cast

from msgspec import Struct
from starlette.types import ASGIApp, Receive, Scope, Send

from forebay.broker.auth import REQUIRED, Auth, NotKnown
from forebay.core.api.principals import Principal
from forebay.core.bounds import Limits
from forebay.core.errors import ForebayError, Invalid
from forebay.server.operations import codec
from forebay.server.operations.carried import Context, check_role, for_tenant

CONTEXT = "forebay.context"
"""Key in the scope: the context of the request."""
AUTH = "forebay.auth"
"""Key in the scope: who knows the principals."""
OPEN = ("/healthz", "/readyz", "/docs", "/openapi.json")
"""Paths that tell nothing of anybody: for probes and browsers, which have no token."""
KNOWN_MAX = 10_000
"""Tokens whose principals are remembered; then all are forgotten and found again."""
BEARER = b"bearer "
Refuse = Callable[[Scope, Send, ForebayError], object]


class Known(Struct, gc=False, frozen=True):
    """The context of a token that was found before, if nobody has been revoked since."""

    context: Context
    generation: int


class Identities:
    """Contexts of requests, by their headers."""

    def __init__(self, auth: Auth, limits: Limits) -> None:
        self.auth, self._limits = auth, limits
        self._known: dict[bytes, Known] = {}
        """By a keyed hash: what is remembered has no tokens in it."""
        self._key = secrets.token_bytes(32)
        self._anonymous: Context | None = None

    def context(self, scope: Scope) -> Context:
        """Return the context of a request; raise if nobody knows who sends it, or it names another tenant."""
        token, tenant = b"", b""
        for name, value in scope["headers"]:
            if name == b"authorization":
                token = value
            elif name == b"x-forebay-tenant":
                tenant = value
        found = self._of_token(token) if token[: len(BEARER)].lower() == BEARER else self._of_nothing(scope)
        if tenant:
            try:
                found = for_tenant(found, tenant.decode())
            except UnicodeDecodeError:
                raise Invalid("x-forebay-tenant", "UTF-8") from None
        return found

    def _of_nothing(self, scope: Scope) -> Context:
        """Return the context of a request without a token: of its client certificate, or of anybody."""
        certified = of_certificate(scope, self.auth)
        return self.anybody() if certified is None else codec.context(0, self._limits, certified)

    def anybody(self) -> Context:
        """Return the context of a request without a token; raise if it needs one."""
        principal = self.auth.anonymous()
        if principal is None:
            raise NotKnown(REQUIRED)
        if self._anonymous is None:
            self._anonymous = codec.context(0, self._limits, principal)
        return self._anonymous

    def _of_token(self, header: bytes) -> Context:
        key = blake2b(header, key=self._key, digest_size=32).digest()
        known = self._known.get(key)
        if known is None or known.generation != self.auth.generation:
            known = self._find(header)
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[key] = known
        principal = known.context.principal
        assert principal is not None
        self.auth.use(principal)
        return known.context

    def _find(self, header: bytes) -> Known:
        token = header[len(BEARER) :].strip().decode("latin-1")
        generation = self.auth.generation
        return Known(codec.context(0, self._limits, self.auth.principal(token)), generation)


def of_certificate(scope: Scope, auth: Auth) -> Principal | None:
    """Return the principal of the client certificate that a request came with; raise if that has expired."""
    connection = scope.get("forebay.connection")
    found: Principal | None = connection.certified if connection is not None else None
    if found is not None:
        auth.use(found)
    return found


class Identified:
    """Lets requests through whose principal is known, and tells what is behind it who that is."""

    def __init__(
        self,
        app: ASGIApp,
        identities: Identities,
        refuse: Refuse,
        incoming: str,
        *,
        signed: bool,
    ) -> None:
        """Requests of other systems are posted below the path ``incoming``.

        If they have to be ``signed``, the signature stands for a token.
        """
        self._app, self._identities, self._refuse = app, identities, refuse
        self._incoming, self._signed = incoming, signed

    def _identify(self, scope: Scope) -> None:
        path: str = scope["path"]
        if path in OPEN:
            return
        scope[AUTH] = self._identities.auth
        try:
            scope[CONTEXT] = self._identities.context(scope)
        except NotKnown:
            if not path.startswith(self._incoming) or scope.get("method") != "POST":
                raise
            if not self._signed:  # its header was meant for somebody else
                scope[CONTEXT] = self._identities.anybody()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._identify(scope)
        except ForebayError as error:
            if scope["type"] == "websocket":
                await receive()
            await self._refuse(scope, send, error)  # type: ignore[misc]
            return
        await self._app(scope, receive, send)


def context_of(scope: Scope) -> Context:
    """Return the context of a request."""
    return cast(Context, scope.get(CONTEXT, NOBODY))


NOBODY = Context(principal=None)
"""The context of requests that were refused, or need none: for the log."""


def require(scope: Scope, needs: tuple[str, ...], what: str) -> Context:
    """Return the context of a request; raise unless its principal has one of some roles."""
    context = context_of(scope)
    assert context.principal is not None
    check_role(context.principal, needs, what)
    return context


def lasting(scope: Scope) -> Callable[[], None]:
    """End the connection of a request that takes long once its principal is none any more.

    Return what to call when the request is over.
    """
    auth: Auth | None = scope.get(AUTH)
    principal: Principal | None = context_of(scope).principal
    connection = scope.get("forebay.connection")
    if auth is None or principal is None or connection is None:
        return _nothing
    return partial(auth.unwatch, auth.watch(principal, partial(connection.cut, "has no good token any more")))


def _nothing() -> None:
    """Do nothing: nobody is watched."""
