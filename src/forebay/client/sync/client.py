"""Generated from ``aio/client.py`` by tools/make_sync.py: change that, and run ``make sync``."""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from forebay.client.access import Access
from forebay.client.identities import Identity
from forebay.client.payloads import decoder
from forebay.client.sync.connection import now
from forebay.client.sync.dead_letters import DeadLetters
from forebay.client.sync.messages import Messages
from forebay.client.sync.queues import Queues
from forebay.client.sync.tenants import Tenants, Tokens
from forebay.client.sync.transactions import Transaction
from forebay.client.sync.values import Values
from forebay.client.types import Event, Id, Progress, Update
from forebay.core.errors import Invalid, NotFound
from forebay.core.words import OPEN
from forebay.wire.operations.messages import GetState, Stands
from forebay.wire.operations.server import Polled, PollEvents
from forebay.wire.operations.tenants import Auth, Identity as WireIdentity

POLL_MS = 20_000
"""Timeout of one long poll for events."""
OF_MESSAGES = (
    *("popped", "settled", "retried", "returned", "deferred", "dead", "requeued", "progressed"),
    *("cancelled", "discarded", "expired", "evicted", "outdated", "deleted"),
)
"""Kinds of events that change how a message stands."""
LOOK_S = 2.0
"""How long after a change without an event it is found, at most."""
SOON_S = 0.05
"""Pause before a look at what is due just now."""
CLOCKS_S = 1.0
"""A message whose time was over for so long, and that has not changed, is by another clock."""


class SyncClient(Messages, DeadLetters, Queues):
    """A client of a Forebay server.

    ``server`` is HOST:PORT, tcp://HOST:PORT, tls://HOST:PORT, http://HOST:PORT, https://HOST, unix://PATH or
    a path; by default the one in ``FOREBAY_SERVER``, or the one on this machine. Connections are opened when
    needed, and reopened when they are lost.
    """

    kv: Values
    """Its store of keys and values."""
    tenants: Tenants
    """The tenants of the server."""
    tokens: Tokens
    """The tokens of its tenant."""

    def __init__(
        self,
        server: str | None = None,
        *,
        token: str | None = None,
        tenant: str | None = None,
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
        timeout_s: float = 30.0,
        retry_s: float = 10.0,
    ) -> None:
        """``token`` shows who it is; ``tenant`` is the one that an admin acts for.

        With tls:// and https:// the server's certificate and name are checked: ``ca`` is a PEM file of the
        only authorities to trust, instead of the system's. ``cert`` and ``key`` are PEM files of the client's
        own certificate. By default these five are ``FOREBAY_TOKEN``, ``FOREBAY_TENANT`` and so on of the
        environment; an empty text means none. ``timeout_s`` is the timeout of a response, ``retry_s`` how
        long a request is retried.
        """
        access = Access(token, tenant, ca, cert, key)
        super().__init__(server, access, timeout_s=timeout_s, retry_s=retry_s)
        self.kv = Values(self)
        self.tenants, self.tokens = Tenants(self), Tokens(self)

    def whoami(self) -> Identity:
        """Return who this client is to the server. Raises ``Denied`` if it needs a good token."""
        found: WireIdentity = self._ask(Auth())
        return Identity(found.tenant, found.role, found.name, tuple(found.queues), found.expires_at)

    def transaction(self) -> Transaction:
        """Return a transaction: acks, pushes and writes, committed together at the end of its block."""
        return Transaction(self)

    def events(
        self,
        queues: Sequence[str] = (),
        kinds: Sequence[str] = (),
        *,
        after: str | None = None,
        start: str = "new",
        wait_s: float | None = None,
    ) -> Iterator[Event]:
        """Yield events as they happen: from now on, behind an earlier event, or from the oldest stored.

        Goes on forever; with ``wait_s``, until nothing happened for so long.
        """
        for name, given in (("queues", queues), ("kinds", kinds)):
            if isinstance(given, str):
                raise Invalid(name, "a list of names")
        if after is None and start == "all":
            after = ""
        request = PollEvents(queues=list(queues), kinds=list(kinds))
        if after is None:
            begun: Polled = self._ask(request)
            after = begun.after
        heard_at = now()
        while True:
            left_ms = POLL_MS if wait_s is None else max(int(1000 * (heard_at + wait_s - now())), 0)
            request = replace(request, after=after, wait_ms=min(POLL_MS, left_ms))
            found: Polled = self._ask(request)
            for number, each in enumerate(found.events, 1):
                # Continuing behind one in the middle repeats the others: none is missed.
                yield _event(decoder()(each), found.after if number == len(found.events) else after)
            after = found.after
            if found.events:
                heard_at = now()
            elif wait_s is not None and now() >= heard_at + wait_s:
                return

    def updates(self, id: Id, *, type: Any = Any) -> Iterator[Update]:
        """Yield how a message stands, now and after every change of its state or progress, until it ends.

        What has an event is yielded at once. Promotion, another delay and the end of its time to live have
        none: they are found within ``LOOK_S``. Changes that follow each other closely may be one. Raises
        ``NotFound`` once neither the message nor its result is kept. ``type`` is what its result is decoded
        into.
        """
        queues: list[str] = []
        last: Update | None = None
        # Before the first look: what happens after it is among the events behind here.
        found: Polled = self._ask(PollEvents())
        while True:
            update, look_at = self._look(id, type)
            if update != last:
                yield update
            if update.done:
                return
            last = update
            if not queues:
                with suppress(NotFound):  # it ended just now: the next look finds its result, if that is kept
                    queues = [(self.message(id, type=Raw)).queue]
            while queues and (left_ms := int(1000 * (look_at - now()))) > 0:
                request = PollEvents(
                    queues=queues, kinds=list(OF_MESSAGES), after=found.after, wait_ms=left_ms
                )
                found = self._ask(request)
                if any(_is_about(decoder()(each), update.id) for each in found.events):
                    break

    def _look(self, id: Id, type: Any) -> tuple[Update, float]:
        """Return how a message stands, and when to look again if nothing is heard of it."""
        stands: Stands = self._ask(GetState(id=id))
        # Progress after the state: it is never older than the end.
        progress = Progress(0, None, None)
        with suppress(NotFound):  # its result may be kept for longer
            progress = self.progress(id)
        how_far = progress.progress, progress.message
        if stands.state in OPEN:
            update = Update(int(stands.id), stands.state, *how_far)
            return update, now() + _look_s(stands, time.time())
        result = self.result(id, type=type)
        return Update(
            result.id, result.state, *how_far, result.done, result.result, result.error
        ), now() + LOOK_S

    def ping(self) -> None:
        """Raise unless the server responds."""
        self.stats()

    def __enter__(self) -> "SyncClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _look_s(stands: Stands, at: float) -> float:
    """Return the seconds until the state of an open message changes by itself, or may have changed.

    >>> def delayed(due_at):
    ...     return Stands(id=1, uuid="", state="delayed", created_at=0, deliveries=0, failures=0, priority=0,
    ...         due_at=due_at)
    >>> [_look_s(delayed(due_at), 50.0) for due_at in (50_500, 90_000, 49_980, 10_000)]
    [0.5, 2.0, 0.05, 2.0]
    """
    until = stands.due_at or stands.lease_until
    # What is long over is by another clock than this one's.
    left_s = (until or 0) / 1000 - at
    return LOOK_S if left_s < -CLOCKS_S else min(max(left_s, SOON_S), LOOK_S)


def _is_about(event: dict[str, Any], id: int) -> bool:
    """Return whether an event is about a message, or about all of its queue."""
    return event["kind"] == "deleted" or any(
        int(first) <= id < int(first) + count for _, _, count, first in event.get("runs", ())
    )


def _event(told: dict[str, Any], after: str) -> Event:
    return Event(
        told["kind"],
        told.get("queue", ""),
        told.get("at", 0),
        told.get("group"),
        told.get("count", 0),
        told,
        after,
    )
