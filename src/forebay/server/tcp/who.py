"""The principal of a connection, from when it opens or shows a token until that becomes invalid.

A token that it shows counts more than the client certificate it opened with.
"""

from collections.abc import Callable
from typing import Any

from forebay.broker.auth import REQUIRED, Auth, NotKnown
from forebay.core.api.principals import ANYONE, Principal
from forebay.core.bounds import Limits
from forebay.core.errors import Conflict
from forebay.server.tcp.codec import Codec

ENDED = (
    "the token, or certificate, of this connection is good no more: it was revoked, it has expired, or the "
    "server asks for tokens from now on"
)


class Who:
    """The principal of a connection."""

    __slots__ = (
        "_auth",
        "_codec",
        "_ended",
        "_is_suspended",
        "_limits",
        "_opened_at",
        "_owner",
        "_watch",
        "context",
        "is_used",
        "principal",
    )

    def __init__(
        self,
        codec: Codec,
        auth: Auth | None,
        owner: int,
        limits: Limits,
        now: float,
        ended: Callable[[Any], None],
    ) -> None:
        """``ended`` is called with its context once the principal becomes invalid.

        Without ``auth``, anyone may do all.
        It has no principal before ``open``: a connection that never ends its TLS handshake leaves nothing.
        """
        self._codec, self._auth, self._owner, self._limits, self._ended = codec, auth, owner, limits, ended
        self._opened_at = now
        self._watch = -1
        self._is_suspended = False
        self.is_used = False
        """Whether anything arrived since the use of its token was last noted."""
        self.principal: Principal | None
        self.context: Any
        """What requests are given."""

    def open(self, certified: Principal | None) -> None:
        """Begin with the principal of the client certificate, if there is one, else without credentials."""
        auth = self._auth
        self._become(certified or (self._codec.anonymous(auth) if auth is not None else ANYONE))

    @property
    def is_known(self) -> bool:
        return self.principal is not None

    def is_late(self, since: float) -> bool:
        """Return whether it opened before an instant, and has shown no token yet."""
        return self.principal is None and self._opened_at < since

    def _become(self, principal: Principal | None) -> None:
        self.principal, self._is_suspended = principal, False
        self.context = self._codec.context(self._owner, self._limits, principal)
        if self._auth is not None:
            self._auth.unwatch(self._watch)
            if principal is not None:
                self._watch = self._auth.watch(principal, self._end, self._look)
                self._look()

    def _look(self) -> None:
        """Look whether the tenant is suspended: then everything but AUTH is denied."""
        if self._auth is not None and self.principal is not None:
            is_suspended = self._auth.is_suspended(self.principal)
            if is_suspended != self._is_suspended:
                self._is_suspended = is_suspended
                self.context = self._codec.suspend(self.context, is_suspended)

    def _end(self) -> None:
        before = self.context
        self._become(None)
        self._ended(before)

    def show(self, token: str | None, *, is_busy: bool) -> Principal:
        """Take a token, and return the principal; raise if the token is invalid, or there is no principal.

        It does not switch to other rights while it is busy: waits would outlive their principal.
        """
        if token is not None and self._auth is not None:
            found = self._codec.identify(token, self._auth)
            self._auth.use(found)
            if is_busy and self.principal is not None and _rights(found) != _rights(self.principal):
                raise Conflict("answers are still to come: show the token of somebody else after them")
            self._become(found)
        if self.principal is None:
            raise NotKnown(REQUIRED)
        return self.principal

    def note_use(self) -> None:
        """Note that the token is in use, once for all that arrived meanwhile."""
        if self.is_used and self._auth is not None and self.principal is not None:
            self.is_used = False
            try:
                self._auth.use(self.principal)
            except NotKnown:
                self._end()

    def close(self) -> None:
        """Watch no more: the connection is gone."""
        if self._auth is not None:
            self._auth.unwatch(self._watch)


def _rights(principal: Principal) -> tuple[str, str, tuple[str, ...]]:
    return principal.tenant, principal.role, principal.queues
