"""Authentication of HTTP requests: by a token in ``Authorization: Bearer``, or by a client certificate.

What it may is looked at where it is carried out; here its principal is found, or it is refused.
"""

import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from hashlib import blake2b

from msgspec import Struct
from starlette.types import ASGIApp, Receive, Scope, Send

from forebay.broker.auth import REQUIRED, Auth, NotKnown
from forebay.core.api.principals import Principal
from forebay.core.bounds import Limits
from forebay.core.errors import ForebayError, Invalid, Suspended
from forebay.server.http.headers import check_once, headers
from forebay.server.operations import codec
from forebay.server.operations.carried import Context, check_role, for_tenant

CONTEXT = "forebay.context"
"""Key in the scope: the context of the request."""
AUTH = "forebay.auth"
"""Key in the scope: what finds principals."""
GENERATION = "forebay.generation"
"""Key in the scope: whether anybody may be known no more since the head of the request."""
AUTHORIZATION = b"authorization"
TENANT = b"x-forebay-tenant"
"""Header in which an admin names the tenant that he acts for."""
WHO = "/v1/auth"
"""Path that returns the identity of the caller, also while its tenant is suspended."""
OPEN = ("/healthz", "/readyz", "/docs", "/openapi.json")
"""Paths that tell nothing of anybody: for probes and browsers, which have no token."""
KNOWN_MAX = 10_000
"""Tokens whose principals are remembered; then all are forgotten and found again."""
BEARER = b"bearer "
Refuse = Callable[[Scope, Send, ForebayError], Awaitable[None]]


class Known(Struct, gc=False, frozen=True):
    """The context of a token that was found before, if no token was revoked since."""

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
        """Return the context of a request; raise if it is not authenticated, or may not name its tenant."""
        check_once(scope, AUTHORIZATION, TENANT)
        given = headers(scope)
        token, tenant = given.get(AUTHORIZATION, b""), given.get(TENANT)
        found = self._of_token(token) if token[: len(BEARER)].lower() == BEARER else self._of_nothing(scope)
        if tenant is not None:
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


def check_in_use(auth: Auth, principal: Principal | None) -> None:
    """Raise if the tenant of a principal is suspended."""
    if principal is not None and auth.is_suspended(principal):
        raise Suspended(principal.tenant)


def still_known(scope: Scope) -> None:
    """Raise if the principal of a request has become invalid: its body may come long after its head."""
    auth: Auth | None = scope.get(AUTH)
    principal = context_of(scope).principal
    if auth is None or principal is None:
        return
    if principal.expires_at or scope[GENERATION] != auth.generation:  # else nothing has changed since
        auth.use(principal)
        check_in_use(auth, principal)


def of_certificate(scope: Scope, auth: Auth) -> Principal | None:
    """Return the principal of the client certificate that a request came with; raise if that has expired."""
    connection = scope.get("forebay.connection")
    found: Principal | None = connection.certified if connection is not None else None
    if found is not None:
        auth.use(found)
    return found


class Identified:
    """Lets authenticated requests through, and gives what is behind it their context."""

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
        auth = scope[AUTH] = self._identities.auth
        scope[GENERATION] = auth.generation
        try:
            scope[CONTEXT] = found = self._identities.context(scope)
        except NotKnown:
            if not path.startswith(self._incoming) or scope.get("method") != "POST":
                raise
            if not self._signed:  # its Authorization header was meant for another system
                scope[CONTEXT] = found = self._identities.anybody()
            else:
                return
        if path != WHO:
            check_in_use(auth, found.principal)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        try:
            self._identify(scope)
        except ForebayError as error:
            return self._refused(scope, receive, send, error)
        return self._app(scope, receive, send)

    async def _refused(self, scope: Scope, receive: Receive, send: Send, error: ForebayError) -> None:
        if scope["type"] == "websocket":
            await receive()
        await self._refuse(scope, send, error)


def context_of(scope: Scope) -> Context:
    """Return the context of a request."""
    found: Context = scope.get(CONTEXT, NOBODY)
    return found


NOBODY = Context(principal=None)
"""The context of requests that were refused, or need none: for the log."""


def require(scope: Scope, needs: tuple[str, ...], what: str) -> Context:
    """Return the context of a request; raise unless its principal has one of some roles."""
    context = context_of(scope)
    assert context.principal is not None
    check_role(context.principal, needs, what)
    return context


def lasting(scope: Scope) -> Callable[[], None]:
    """End the connection of a long request once its principal becomes invalid.

    Return what to call when the request is over.
    """
    auth: Auth | None = scope.get(AUTH)
    principal: Principal | None = context_of(scope).principal
    connection = scope.get("forebay.connection")
    if auth is None or principal is None or connection is None:
        return _nothing
    return partial(auth.unwatch, auth.watch(principal, partial(connection.cut, "has no good token any more")))


def _nothing() -> None:
    """Do nothing: there is no watch."""
