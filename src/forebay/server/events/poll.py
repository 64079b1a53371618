"""Long polling of events, for clients without a stream."""

import asyncio

from forebay.core.bounds import check_range
from forebay.core.errors import Invalid
from forebay.server.events.backlog import Backlog
from forebay.server.events.hub import BEGINNING, Listener, Wanted, kinds_of, shown_positions

EVENTS_MAX = 1_000
"""Events of one reply, about: the batch that exceeds it is sent whole."""

NAMES_MAX = 1_000
"""Queues, or kinds, that one poll may name."""

Told = tuple[list[bytes], str]
"""Events, and the event id to pass as ``after`` next time."""


class Polls(Backlog):
    """Answers polls: events after an id, or the next ones if there are none yet."""

    async def events(
        self,
        tenant: str,
        queues: list[str],
        kinds: list[str],
        after: str | None,
        wait_ms: int,
        within: tuple[str, ...] = (),
    ) -> Told:
        """Return events after ``after``, waiting up to ``wait_ms`` for one.

        Without ``after`` return none, only the id to start from: that of this instant.
        """
        check_range("wait_ms", wait_ms, 0, self.questions.node.limits.wait_ms_max)
        for field, names in (("queues", queues), ("kinds", kinds)):
            if len(names) > NAMES_MAX:
                raise Invalid(field, f"a list of at most {NAMES_MAX} names")
        wanted = Wanted(tenant, frozenset(queues), kinds_of(kinds, "kinds"), within)
        begin = self.hub.parse(after) if after else {} if after is not None else None
        listener, end = self.hub.join(wanted)
        try:
            if begin is None:
                await self.check_kept(end)
                return [], shown_positions(end)
            found: list[bytes] = []
            reached = after or BEGINNING
            async for batch in self.missed(wanted, begin, end):
                found += [payload for _, payload in batch.events]
                reached = batch.after
                if len(found) >= EVENTS_MAX:
                    break
            return (found, reached) if found else await self._next(tenant, listener, reached, wait_ms)
        finally:
            self.hub.leave(wanted, listener)

    async def _next(self, tenant: str, listener: Listener, reached: str, wait_ms: int) -> Told:
        try:
            async with asyncio.timeout(wait_ms / 1000):
                await listener.wait()
        except TimeoutError:
            reached = self.hub.reached(tenant)  # flushes pending events, which belong to this reply
            return _payloads(listener), reached
        batches = [batch for batch, _ in listener.take()]
        if not batches:
            return [], reached
        return [payload for batch in batches for _, payload in batch.events], batches[-1].after


def _payloads(listener: Listener) -> list[bytes]:
    return [payload for batch, _ in listener.take() for _, payload in batch.events]
