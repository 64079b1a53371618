"""Authentication: tokens to principals, and what happens to connections when a token ends.

The server requires tokens once it has an admin (``FOREBAY_ADMIN_TOKEN``, or a stored token of an admin),
keys for JWTs, or client certificates that map to principals. Before that, every client is an admin; then the
server only listens on this machine, and had no tokens when it started.

    token ──> principal ──> watched while a connection or a stream lives
                                └── revoked or expired, or its key is gone: the watcher is told
"""

import logging
from asyncio import AbstractEventLoop, Future, TimerHandle
from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING

from msgspec import Struct

from forebay.broker import tokens
from forebay.broker.claims import BadJwt
from forebay.broker.node import Node
from forebay.broker.tokens import Secret
from forebay.core.api.commands import Command, Reply
from forebay.core.api.principals import ADMIN, ANYONE, Principal
from forebay.core.api.tenants import Token, TokensUsed
from forebay.core.engine import Engine
from forebay.core.errors import Denied, ForebayError
from forebay.core.words import DEFAULT

if TYPE_CHECKING:  # it needs PyJWT, which is there only where JWTs are wanted
    from forebay.broker.jwt import Jwt, Key

logger = logging.getLogger("forebay.auth")

USED_S = 30.0
"""How long the use of a token may be noted in memory only."""
REQUIRED = "Authentication required: send AUTH with a token, or over HTTP the header Authorization: Bearer"
EXPIRED = "the client certificate has expired: connect with a new one"
WRONG = "this token is not, or no longer, good here: ask whoever gave it to you for another one"
REFUSED_MS = 1_000
"""Of JWTs that are refused, one in this time is logged, and the others counted."""
Ended = Callable[[], None]
Changed = Callable[[], None]


class NotKnown(Denied):
    """The request is not authenticated."""

    status = 401


class _Watch(Struct, eq=False):
    principal: Principal
    ended: Ended
    changed: Changed | None
    timer: TimerHandle | None = None


class Auth:
    """Finds principals, and tells their connections when they become invalid."""

    def __init__(
        self,
        node: Node,
        loop: AbstractEventLoop,
        admin_token: str = "",
        jwt: "Jwt | None" = None,
        *,
        closed: bool = False,
    ) -> None:
        """``closed``: clients can authenticate without tokens, so authentication is always required."""
        self._node, self._loop, self._clock = node, loop, node.now
        self._jwt = jwt
        self._refused_at, self._refused = 0, 0
        """When the refusal of a JWT was last logged, and how many there were since."""
        self._admin = Secret(admin_token) if admin_token else None
        self._closed = closed
        self._numbers = count()
        self._watches: dict[int, _Watch] = {}
        self.generation = 0
        """Rises whenever a principal may have become invalid."""
        self._open: tuple[Engine, int, bool] | None = None
        """Whether no authentication is required, as of an engine and a generation."""
        self._used: dict[str, int] = {}
        """When tokens were used that the store does not know of yet."""
        self._timer: TimerHandle | None = None

    @property
    def _tokens(self) -> dict[str, Token]:
        return self._node.engine.control.tokens

    @property
    def has_admin(self) -> bool:
        """Whether there is an admin token in the settings."""
        return self._admin is not None

    def keep_closed(self) -> None:
        """Have everybody asked from now on, even if the last admin's token is revoked."""
        self._closed = True
        self._open = None

    @property
    def has_tokens(self) -> bool:
        """Whether a client could authenticate with some token."""
        return self.has_admin or self._jwt is not None or bool(self._tokens)

    @property
    def is_open(self) -> bool:
        """Whether the server requires no authentication."""
        found, engine = self._open, self._node.engine
        if found is None or found[0] is not engine or found[1] != self.generation:
            is_open = not self._closed and not self._knows_admin()
            found = self._open = (engine, self.generation, is_open)
        return found[2]

    def _knows_admin(self) -> bool:
        is_asked = self.has_admin or self._jwt is not None
        return is_asked or any(each.role == ADMIN for each in self._tokens.values())

    def anonymous(self) -> Principal | None:
        """Return the principal of a client without credentials; None if it needs some."""
        return ANYONE if self.is_open else None

    def principal(self, text: str) -> Principal:
        """Return the principal of a token; raise if there is none."""
        if self._admin is not None and self._admin.fits(text):
            return Principal(DEFAULT, ADMIN, "admin token")
        if self._jwt is not None and text.count(".") == 2:  # tokens of our own have no dots
            return self._of_jwt(self._jwt, text)
        token = tokens.find(text, self._tokens)
        if token is None or _has_expired(token.expires_at, self._clock()):
            raise NotKnown(WRONG)
        return Principal(token.tenant, token.role, token.name, token.queues, token.id, token.expires_at)

    def _of_jwt(self, jwt: "Jwt", text: str) -> Principal:
        """Return the principal of a JWT. Why one is refused is for the log: others would learn from it."""
        try:
            return jwt.principal(text, self._clock())
        except BadJwt as reason:
            self._log_refusal(reason)
        raise NotKnown(WRONG)

    def _log_refusal(self, reason: BadJwt) -> None:
        now = self._clock()
        if now - self._refused_at < REFUSED_MS:
            self._refused += 1
            return
        more = f" (and {self._refused} others before)" if self._refused else ""
        self._refused_at, self._refused = now, 0
        logger.info("a JWT is refused: %s%s", reason, more)

    def use(self, principal: Principal) -> None:
        """Note that a principal sends a request now; raise if it has become invalid."""
        now = self._clock()
        if _has_expired(principal.expires_at, now):
            raise NotKnown(WRONG if principal.token else EXPIRED)
        if self._is_gone(principal):
            raise NotKnown(WRONG if principal.token else REQUIRED)
        if principal.token in self._tokens:
            self._used[principal.token] = now
            if self._timer is None:
                self._timer = self._loop.call_later(USED_S, self._keep_use)

    def _keep_use(self) -> None:
        self._timer = None
        used, self._used = self._used, {}
        if used:
            self._node.ask(self, None, TokensUsed(used))

    def last_used_at(self, token: Token) -> int:
        """Return when a token was last used; 0 if never."""
        return max(token.used_at, self._used.get(token.id, 0))

    def is_suspended(self, principal: Principal) -> bool:
        """Return whether the tenant of a principal is suspended. Admins go on: they can resume it."""
        return self._node.engine.control.is_suspended(principal.tenant) and not principal.is_admin

    # Change who is known.

    def change(self, command: Command) -> "Future[Reply | ForebayError]":
        """Apply a command that changes tenants or tokens, and tell the connections that it concerns.

        They are told even if nobody waits for the answer any more, and if it is an error: the commit may have
        been kept all the same.
        """
        done: Future[Reply | ForebayError] = self._loop.create_future()
        self._node.ask(self, done, command)
        return done

    # Watch.

    def watch(self, principal: Principal, ended: Ended, changed: Changed | None = None) -> int:
        """Have ``ended`` called once the principal becomes invalid; return what ``unwatch`` takes.

        When its tenant is suspended or resumed, ``changed`` is called, or without it ``ended``.
        """
        number = next(self._numbers)
        watch = self._watches[number] = _Watch(principal, ended, changed)
        if self._is_over(watch):  # since it was found
            self._loop.call_soon(self._end, [number])
        if principal.expires_at:
            left_s = max(principal.expires_at - self._clock(), 0) / 1000
            watch.timer = self._loop.call_later(min(left_s, LONGEST_S), self._ring, number)
        return number

    def unwatch(self, number: int) -> None:
        watch = self._watches.pop(number, None)
        if watch is not None and watch.timer is not None:
            watch.timer.cancel()

    def _ring(self, number: int) -> None:
        """End a principal that has expired, or go on waiting."""
        watch = self._watches[number]
        if _has_expired(watch.principal.expires_at, self._clock()):
            self._end([number])
        else:
            watch.timer = self._loop.call_later(RING_AGAIN_S, self._ring, number)

    def recheck(self) -> None:
        """End the watches of invalid principals, and report suspended and resumed tenants to the others."""
        self.generation += 1
        self._end([number for number, each in self._watches.items() if self._is_over(each)])
        for each in list(self._watches.values()):
            if each.changed is not None:
                each.changed()

    def _is_over(self, watch: _Watch) -> bool:
        has_to_end = watch.changed is None and self.is_suspended(watch.principal)
        return has_to_end or self._is_gone(watch.principal)

    def _is_gone(self, principal: Principal) -> bool:
        """Return whether the token of a principal is not good any more, or he needs one now."""
        if principal.token:
            return not self._is_good(principal.token)
        return principal is ANYONE and not self.is_open

    def _is_good(self, token: str) -> bool:
        """Return whether a token was not revoked, or the key of a JWT is still one."""
        return token in self._tokens or (self._jwt is not None and self._jwt.has_key(token))

    def reload(self) -> None:
        """Reload the keys of JWTs. If they can't be read, the present ones stay."""
        if self._jwt is not None:
            try:
                self._jwt.reload()
            except ValueError as error:
                logger.error("the keys for JWTs stay as they were: %s", error)
            self.recheck()

    def take_keys(self, keys: "list[Key]") -> None:
        """Have these keys for JWTs from now on."""
        assert self._jwt is not None, "keys are fetched for JWTs"
        if self._jwt.take(keys):
            logger.info("there are other keys for JWTs now: %d", len(keys))
            self.recheck()

    def _end(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            watch = self._watches.get(number)
            self.unwatch(number)
            if watch is not None:
                watch.ended()

    def close(self) -> None:
        """Keep the use of tokens that is not stored yet."""
        if self._timer is not None:
            self._timer.cancel()
        self._keep_use()

    # It asks the node, like a connection.

    def answered(self, ticket: object, reply: Reply | ForebayError) -> None:
        """Take an answer. That to a note of use tells nothing: if it failed, the next use is noted again."""
        if isinstance(ticket, Future):
            if not ticket.done():
                ticket.set_result(reply)
            # Once the request is answered: it may be of one whom this ends.
            self._loop.call_soon(self.recheck)

    def flush(self) -> None:
        """Do nothing: there is nobody to write to."""


LONGEST_S = 86_400.0
"""Longest time that a timer is set for; then it looks again."""
RING_AGAIN_S = 1.0


def _has_expired(expires_at: int, now: int) -> bool:
    return bool(expires_at) and expires_at <= now
