"""Keys of JWTs from the URL of a JWKS: fetched in the background, never while a request waits for its answer.

    start ── fetch ──┬─ good: the keys are taken ──── again after REFRESH_S ─┐
              ▲      └─ bad: the old keys stay ────── again after RETRY_S ───┤
              └──────────────────────────────────────────────────────────────┘
                         an unknown kid, or a reload: again ASK_S after the last fetch began

An unknown ``kid`` may be that of a new key, or made up: anybody can send one. So it hastens the next fetch,
which is never closer than ASK_S to the one before, and its token is refused until then.
"""

import asyncio
import logging
from asyncio import AbstractEventLoop, Future, TimerHandle
from collections.abc import Callable
from http.client import HTTPException

from forebay.broker.jwt import KEYS_BYTES_MAX, BadKeys, Key, of_jwks
from forebay.core.errors import Invalid
from forebay.server.webhooks.post import Calling, Refused, in_thread, target_of

logger = logging.getLogger("forebay.auth")

REFRESH_S = 300.0
"""How old the keys get."""
RETRY_S = 30.0
"""Time between fetches as long as they fail."""
ASK_S = 30.0
"""Least time between fetches, whatever tokens arrive."""
FETCH_S = 10.0
"""Longest time that a fetch takes; then it is cut off."""
FIRST_S = 5.0
"""How long a server waits for the first keys when it starts; then it starts without them."""


class CantFetch(Exception):
    """Why there are no keys at a URL."""


class Fetching(Calling):
    """A GET of a JWKS under way in a thread of its own, which parses the keys, too: 10,000 take long."""

    def __init__(self, loop: AbstractEventLoop, url: str) -> None:
        super().__init__()
        self._url = url
        self.outcome: Future[list[Key]] = in_thread(loop, self._run, "forebay-jwks")

    def _run(self) -> list[Key]:
        try:
            return of_jwks(self._body())
        except (Refused, BadKeys) as error:
            raise CantFetch(str(error)) from None
        except Invalid as error:
            raise CantFetch(error.message) from None
        except (OSError, HTTPException, ValueError) as error:
            raise CantFetch(f"{type(error).__name__}: {error}") from None
        finally:
            self._close()

    def _body(self) -> bytes:
        target = target_of(self._url)
        connected = self._connected(target, private=True)  # the operator chose it
        with self._send(connected, "GET", target, {"Accept": "application/json"}, None) as answer:
            if answer.status != 200:  # no redirect is followed: keys come from where the operator said
                raise CantFetch(f"the answer has status {answer.status}")
            answer.allow(KEYS_BYTES_MAX)
            return answer.read(KEYS_BYTES_MAX + 1)


class Jwks:
    """Has the keys at a URL taken, again and again."""

    def __init__(
        self,
        url: str,
        loop: AbstractEventLoop,
        take: Callable[[list[Key]], object],
        fetch: Callable[[AbstractEventLoop, str], Fetching] = Fetching,
    ) -> None:
        self._url, self._loop, self._take, self._fetch = url, loop, take, fetch
        self._under_way: Fetching | None = None
        self._cut: TimerHandle | None = None
        self._timer: TimerHandle | None = None
        self._due_at = 0.0
        self._began_at = 0.0
        self._is_stopped = False

    async def start(self) -> None:
        """Fetch the keys for the first time. If that takes long, return before it is done."""
        self._begin()
        assert self._under_way is not None
        await asyncio.wait([self._under_way.outcome], timeout=FIRST_S)

    def ask(self) -> None:
        """Fetch again soon: there may be other keys."""
        self._plan(self._began_at + ASK_S)

    def stop(self) -> None:
        self._is_stopped = True
        for timer in (self._timer, self._cut):
            if timer is not None:
                timer.cancel()
        if self._under_way is not None:
            self._under_way.cut()

    def _plan(self, due_at: float) -> None:
        """Have a fetch begin at an instant, unless one is to begin before."""
        if self._is_stopped or (self._timer is not None and self._due_at <= due_at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due_at = due_at
        self._timer = self._loop.call_at(due_at, self._begin)

    def _begin(self) -> None:
        self._timer = None
        self._began_at = self._loop.time()
        if self._under_way is not None:  # it hangs where it can't be cut: while it looks a name up
            self._plan(self._began_at + RETRY_S)
            return
        self._under_way = self._fetch(self._loop, self._url)
        self._under_way.outcome.add_done_callback(self._done)
        self._cut = self._loop.call_later(FETCH_S, self._under_way.cut)

    def _done(self, outcome: "Future[list[Key]]") -> None:
        self._under_way = None
        if self._cut is not None:
            self._cut.cancel()
        error = outcome.exception()
        if self._is_stopped:
            return
        if error is None:
            self._take(outcome.result())
            self._plan(self._loop.time() + REFRESH_S)
        else:
            logger.warning("the keys at jwt_keys can't be fetched, and stay as they were: %s", error)
            self._plan(self._loop.time() + RETRY_S)
