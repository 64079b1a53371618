"""The client."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from forebay.client.aio.connection import now
from forebay.client.aio.dead_letters import DeadLetters
from forebay.client.aio.messages import Messages
from forebay.client.aio.queues import Queues
from forebay.client.aio.transactions import Transaction
from forebay.client.aio.values import Values
from forebay.client.payloads import decoder
from forebay.client.types import Event, Id, Update
from forebay.core.errors import Invalid
from forebay.wire.operations.server import Polled, PollEvents

POLL_MS = 20_000
"""Timeout of one long poll for events."""
OF_MESSAGES = (
    *("popped", "settled", "retried", "returned", "deferred", "dead", "requeued", "progressed"),
    *("cancelled", "discarded", "expired", "evicted"),
)
"""Kinds of events that change how a message stands."""


class Client(Messages, DeadLetters, Queues):
    """A client of a Forebay server.

    ``server`` is HOST:PORT, tcp://HOST:PORT, http://HOST:PORT, https://HOST, unix://PATH or a path; by
    default the one in ``FOREBAY_SERVER``, or the one on this machine. Connections are opened when needed, and
    reopened when they are lost.
    """

    def __init__(self, server: str | None = None, *, timeout_s: float = 30.0, retry_s: float = 10.0) -> None:
        super().__init__(server, timeout_s=timeout_s, retry_s=retry_s)
        self.kv = Values(self)

    def transaction(self) -> Transaction:
        """Return a transaction: acks, pushes and writes, committed together at the end of its block."""
        return Transaction(self)

    async def events(
        self,
        queues: Sequence[str] = (),
        kinds: Sequence[str] = (),
        *,
        after: str | None = None,
        start: str = "new",
        wait_s: float | None = None,
    ) -> AsyncIterator[Event]:
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
            begun: Polled = await self._ask(request)
            after = begun.after
        heard_at = now()
        while True:
            left_ms = POLL_MS if wait_s is None else max(int(1000 * (heard_at + wait_s - now())), 0)
            request = replace(request, after=after, wait_ms=min(POLL_MS, left_ms))
            found: Polled = await self._ask(request)
            for number, each in enumerate(found.events, 1):
                # Continuing behind one in the middle repeats the others: none is missed.
                yield _event(decoder()(each), found.after if number == len(found.events) else after)
            after = found.after
            if found.events:
                heard_at = now()
            elif wait_s is not None and now() >= heard_at + wait_s:
                return

    async def updates(self, id: Id, *, type: Any = Any) -> AsyncIterator[Update]:
        """Yield how a message stands, now and after every change of its state or progress, until it ends.

        Changes that follow each other closely may be one. ``type`` is what its result is decoded into.
        """
        told = await self.message(id, type=Raw)
        # Before the first look: what happens after it is among the events behind here.
        found: Polled = await self._ask(PollEvents())
        last: Update | None = None
        while True:
            update = await self._update(told.id, type)
            if update != last:
                yield update
            if update.done:
                return
            last = update
            while True:
                request = PollEvents(
                    queues=[told.queue], kinds=list(OF_MESSAGES), after=found.after, wait_ms=POLL_MS
                )
                found = await self._ask(request)
                # Without any event it is looked at all the same: those that are too old are not kept.
                if not found.events or any(_is_about(decoder()(each), told.id) for each in found.events):
                    break

    async def _update(self, id: int, type: Any) -> Update:
        # The result first: progress is never older than the end.
        result = await self.result(id, type=type)
        progress = await self.progress(id)
        return Update(
            id,
            result.state,
            progress.progress,
            progress.message,
            result.done,
            result.result,
            result.error,
        )

    async def ping(self) -> None:
        """Raise unless the server responds."""
        await self.stats()

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _is_about(event: dict[str, Any], id: int) -> bool:
    """Return whether an event is about a message."""
    return any(int(first) <= id < int(first) + count for _, _, count, first in event.get("runs", ()))


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
