"""A node with a clock that a test controls, and a record of every payload pushed.

While the clock stands still no timer is set: what is due fires when the clock has moved and ``catch_up`` is
called. Long polls time out in real time, because clients do.
"""

import asyncio
from asyncio import AbstractEventLoop
from typing import Any

from forebay.broker.committer import outcome_of
from forebay.broker.node import Node
from forebay.broker.waiters import Ticket
from forebay.client.translate import decoder_of
from forebay.core.api.commands import Reply
from forebay.core.api.queries import LogSlice, Read
from forebay.core.bounds import NEVER, Limits
from forebay.core.engine import Engine
from forebay.core.errors import ForebayError
from forebay.core.words import DEFAULT
from forebay.server.labels import labelled
from forebay.store.base import Store
from forebay.testing.clock import Clock

SHARDS = 4
COMMIT_S = 0.0005
"""Poll interval while a commit runs."""

Place = tuple[bytes, int]
"""A queue and a partition, by their permanent numbers."""


class Ledger:
    """Every payload that was pushed and committed, by queue, whatever became of it since."""

    def __init__(self) -> None:
        self._pushed: dict[str, list[Any]] = {}
        self._read: dict[Place, int] = {}
        """Next offset to read of each log."""
        self._asked: set[Place] = set()

    def of(self, queue: str) -> list[Any]:
        return list(self._pushed.get(queue, ()))

    def queues(self) -> list[str]:
        return list(self._pushed)

    def behind(self, engine: Engine) -> list[tuple[Place, Read]]:
        """Return the reads that are needed to catch up with the logs."""
        found: list[tuple[Place, Read]] = []
        for (tenant, name), queue in engine.queues.items():
            for each in queue.partitions.values() if tenant == DEFAULT else ():
                place, offset = (queue.prefix, each.key), self._read.get((queue.prefix, each.key), 0)
                if offset < each.log.end and place not in self._asked:
                    found.append((place, Read(tenant, name, offset, each.name)))
        return found

    def ask(self, node: Node, place: Place, read: Read) -> None:
        self._asked.add(place)
        node.ask(self, place, read)

    def forget_asked(self) -> None:
        """Forget unanswered reads: their node is gone."""
        self._asked.clear()

    # As an asker of the node.

    def answered(self, ticket: Ticket, reply: Reply | ForebayError) -> None:
        assert isinstance(ticket, tuple)
        self._asked.discard(ticket)
        if isinstance(reply, LogSlice):  # else the commit failed, or the queue is gone
            self._read[ticket] = reply.next
            for run in reply.runs:
                found = self._pushed.setdefault(reply.queue.name, [])
                for _, _, payloads, (headers, _) in labelled(run):
                    found += map(decoder_of(Any, headers), payloads)

    def flush(self) -> None: ...


class SteeredNode(Node):
    """A node that fires its timers when the test moves the clock."""

    def __init__(
        self, store: Store, loop: AbstractEventLoop, clock: Clock, limits: Limits, ledger: Ledger
    ) -> None:
        self.clock, self.ledger = clock, ledger
        super().__init__(store, loop, clock.now, limits, shards=SHARDS)

    # Time.

    def _set_timer(self) -> None:
        if not self.clock.is_still or self._engine.next_due_at() <= self.now():
            super()._set_timer()

    def due_at(self) -> int:
        """Return when something is due next; NEVER while the node can't act."""
        return NEVER if self._broken is not None else self._engine.next_due_at()

    def catch_up(self) -> None:
        """Fire what is due, after the clock has moved."""
        self._timer.cancel()
        self._ring()
        if self._broken is None and self._watchers.count:
            self._watchers.reload(self._engine)

    async def settled(self) -> None:
        """Wait until everything is committed and answered."""
        while self._broken is None and self._is_busy():
            self._plan_flush()
            await asyncio.sleep(COMMIT_S if self._committer.busy else 0)

    def _is_busy(self) -> bool:
        asked = self._forming or self._again or self._going_on or self.ledger.behind(self._engine)
        return bool(self._flush_planned or asked or self._committer.busy or self._engine.has_changes)

    def _flush(self) -> None:
        if not self._committer.busy and not self._closed and self._broken is None:
            for place, read in self.ledger.behind(self._engine):
                self.ledger.ask(self, place, read)
        super()._flush()

    # Faults.

    def end_leases(self, queue: str | None) -> int:
        """Expire leases now, of one queue or of all, and return how many."""
        if self._broken is not None:
            return 0
        now, ended = self.now(), 0
        for shard in self._engine.shards.values():
            for lease in list(shard.leases.values()):
                if lease.queue.tenant != DEFAULT or queue not in (None, lease.queue.name):
                    continue
                for run in lease.runs.values():
                    run.expires_at = now
                shard.timers.leases.remove(lease.due_at, lease.name)
                lease.due_at = now
                shard.timers.leases.add(now, lease.name)
                shard.timers.alarm.sooner(now)
                shard.changes.touch_lease(lease)
                ended += 1
        self._tick()
        self._plan_flush()
        return ended

    def _reload(self) -> None:
        """Reload at once, so that the next command finds a working node, or one whose store still fails."""
        self._reload_timer = None
        self._reloaded(outcome_of(self._load, self.now() - self._broken_at))

    def recover(self) -> None:
        """Reload now instead of after the retry delay."""
        if self._reload_timer is not None:
            self._reload_timer.cancel()
            self._reload()

    def crash(self) -> None:
        """Stop like a killed process: nothing more is committed."""
        self._closed = True
        for timer in (self._timer, self._reload_timer, self._sync_timer):
            if timer is not None:
                timer.cancel()
        self._merger.stopped = True
        self._committer.close()

    # Long polls.

    def pops_waiting(self, queue: str, group: str) -> int:
        return len(self._waiters.of_group(DEFAULT, queue, group))
