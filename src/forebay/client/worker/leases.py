"""Leases of a worker: extended by heartbeats until all their messages are settled, and settled in batches."""

import asyncio
import logging
from typing import Any

from msgspec import Raw, Struct, field

from forebay.client.aio.client import Client
from forebay.client.backoff import wait_s
from forebay.client.errors import Disconnected
from forebay.client.types import Message
from forebay.client.worker.current import CANCELLED, LOST, Run
from forebay.client.worker.job_log import tell_refusal
from forebay.core.errors import Busy, Conflict, ForebayError, Invalid
from forebay.wire.operations.pop import Ack, Extend

logger = logging.getLogger("forebay.worker")

IDS_LOGGED_MAX = 20
"""Ids of jobs in one line of the log."""
EXTEND_S_MAX = 5.0
"""Longest time between two extends: the reply to one is how a worker learns of cancelled jobs."""


class Failure(Struct):
    """A job that failed."""

    id: int
    error: str
    error_type: str = ""
    traceback: str = ""
    delay_ms: int | None = None
    gives_up: bool = False
    defer_ms: int | None = None
    """If it is no failure: this worker does not know the job. How long it is left to others."""
    is_plain: bool = False
    """Its error and delay are our own, so the server can't reject them."""


class Lease(Struct, eq=False):
    """The lease of one pop, and its messages."""

    token: str
    group: str
    until: float
    """When it expires for us, by the loop's clock."""
    extend_at: float
    open: dict[int, Run | None]
    """Unsettled messages by id, with the run if it has begun."""
    finished: list[tuple[int, Raw | None]] = field(default_factory=list)
    """Ids and results not acked yet."""
    failed: list[Failure] = field(default_factory=list)
    is_lost: bool = False
    is_whole: bool = True
    """Nothing was released or dropped: then an ack or extend need not list ids."""
    is_extending: bool = False


class LeaseKeeper:
    """All leases of a worker."""

    def __init__(self, client: Client, lease_ms: int) -> None:
        self._client = client
        self._lease_ms = lease_ms
        self._tick_s = min(lease_ms / 10_000, 0.5)
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._leases: dict[str, Lease] = {}
        self._dirty: dict[Lease, None] = {}
        """Leases with something to settle."""
        self._wake = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self.failures = 0
        """Jobs that failed."""
        self.deferrals = 0
        """Jobs that were left to other workers: they are not done."""

    def take(self, messages: list[Message], sent_at: float) -> Lease:
        """Hold the messages of a lease that was granted no earlier than ``sent_at``."""
        first = messages[0]
        lease = Lease(first.lease, first.group, 0.0, 0.0, dict.fromkeys([each.id for each in messages]))
        self._extended(lease, sent_at)
        self._leases[lease.token] = lease
        self._empty.clear()
        return lease

    def _extended(self, lease: Lease, sent_at: float) -> None:
        # Counted from before the request, and two ticks short: runs must have ended before the server
        # delivers their messages to another worker.
        lease.until = sent_at + self._lease_ms / 1000 - 2 * self._tick_s
        lease.extend_at = sent_at + min(self._lease_ms / 3000, EXTEND_S_MAX)

    def is_live(self, lease: Lease) -> bool:
        return not lease.is_lost and self._loop.time() < lease.until

    def leases(self) -> list[Lease]:
        return list(self._leases.values())

    def runs(self) -> list[Run]:
        """Return the jobs that run."""
        found = (run for lease in self._leases.values() for run in lease.open.values() if run is not None)
        return [run for run in found if run.runner is not None]

    @property
    def count(self) -> int:
        return sum(len(lease.open) for lease in self._leases.values())

    # Outcomes.

    def done(self, lease: Lease, id: int, result: Raw | None) -> None:
        lease.finished.append((id, result))
        if lease not in self._dirty:
            self._dirty[lease] = None
            self._wake.set()

    def fail(self, lease: Lease, failure: Failure) -> None:
        lease.failed.append(failure)
        if failure.defer_ms is None:
            self.failures += 1
        else:
            self.deferrals += 1
        self._dirty[lease] = None
        self._wake.set()

    def drop(self, lease: Lease, id: int) -> None:
        """Forget a message: there is nothing more to settle."""
        lease.is_whole = False
        lease.open.pop(id, None)
        self._close(lease)

    def _close(self, lease: Lease) -> None:
        if not lease.open:
            self._leases.pop(lease.token, None)
            if not self._leases:
                self._empty.set()

    def lose(self, lease: Lease) -> None:
        """Interrupt the runs of an expired lease: another worker may have its jobs now."""
        if lease.is_lost:
            return
        lease.is_lost = True
        fields = {"ids": list(lease.open)[:IDS_LOGGED_MAX]}
        logger.warning(
            "a lease is over: %d jobs will be delivered again", len(lease.open), extra={"fields": fields}
        )
        for id, run in list(lease.open.items()):
            if run is None or run.runner is None:
                self.drop(lease, id)
            else:
                run.interrupt(LOST)
        lease.finished.clear()
        lease.failed.clear()

    def close(self) -> None:
        """Cancel the running extends."""
        for task in self._tasks:
            task.cancel()

    async def until_empty(self) -> None:
        await self._empty.wait()

    # Settling.

    async def settle(self) -> None:
        """Settle finished jobs forever. Those that finish during a request form the next batch."""
        failures = 0
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._dirty:
                dirty, self._dirty = self._dirty, {}
                fine = await asyncio.gather(*map(self._settle, dirty))
                failures = 0 if all(fine) else failures + 1
                if failures:
                    await asyncio.sleep(wait_s(failures))

    async def _settle(self, lease: Lease) -> bool:
        """Return whether everything of a lease was settled; if not, it stays queued for a retry."""
        finished, lease.finished = lease.finished, []
        failed, lease.failed = lease.failed, []
        try:
            if finished:
                await self._ack(lease, finished)
                finished = []
            while failed:
                await self._nack(lease, failed[-1])
                failed.pop()
        except (Busy, Disconnected) as error:
            if self.is_live(lease):
                lease.finished, lease.failed = finished + lease.finished, failed + lease.failed
                self._dirty[lease] = None
                logger.warning("jobs are done and can't be settled yet: %s", error)
                return False
            self._give_up(lease, finished, failed)
        except Conflict:
            self._give_up(lease, finished, failed)
        return True

    def _give_up(self, lease: Lease, finished: list[tuple[int, Raw | None]], failed: list[Failure]) -> None:
        self.lose(lease)
        for id in [*(id for id, _ in finished), *(each.id for each in failed)]:
            self.drop(lease, id)

    async def _ack(self, lease: Lease, finished: list[tuple[int, Raw | None]]) -> None:
        fields: dict[str, Any] = {"lease": lease.token}
        ids = [id for id, _ in finished]
        if any(result is not None for _, result in finished):
            fields |= {"ids": ids, "results": [result for _, result in finished]}
        # Without ids the ack means the whole lease: a few bytes instead of thousands of ids.
        elif not lease.is_whole or len(ids) != len(lease.open):
            fields["ids"] = ids
        try:
            await self._client._ask(Ack(**fields))
        except Conflict:
            if not lease.open.keys() - ids:
                raise
            # None of these is leased any more. Whether the others are is for an extend to find out.
            lease.extend_at = 0.0
        except (Busy, Disconnected):
            raise
        except ForebayError as error:
            await self._ack_each(lease, finished, error)
            return
        for id in ids:
            lease.open.pop(id, None)
        self._close(lease)

    async def _ack_each(
        self, lease: Lease, finished: list[tuple[int, Raw | None]], error: ForebayError
    ) -> None:
        """Ack one by one after a batch was refused (a result too large, say), so that only that job fails."""
        if len(finished) > 1:
            for each in finished:
                if each[0] in lease.open:
                    await self._ack(lease, [each])
            return
        ((id, _),) = finished
        why = f"it is done, and what it returned is refused: {error}"
        tell_refusal(id, lease.open.get(id), "gave up", why)
        await self._nack(lease, Failure(id, why, type(error).__name__, gives_up=True))

    async def _nack(self, lease: Lease, failure: Failure) -> None:
        try:
            if failure.defer_ms is not None:
                await self._client.release(
                    [failure.id], defer_ms=failure.defer_ms, error=failure.error, lease=lease.token
                )
                self.drop(lease, failure.id)
                return
            await self._client.nack(
                [failure.id],
                error=failure.error,
                error_type=failure.error_type,
                traceback=failure.traceback,
                delay_ms=failure.delay_ms,
                final=failure.gives_up,
                lease=lease.token,
            )
        except (Busy, Disconnected):
            raise
        except Invalid as error:
            if failure.is_plain:
                raise
            plain = Failure(failure.id, f"it failed, and how can't be told: {error}", is_plain=True)
            await self._nack(lease, plain)
        except ForebayError as error:
            why = f"that can't be told: {error}"
            tell_refusal(failure.id, lease.open.get(failure.id), "failed", why)
        self.drop(lease, failure.id)

    # Heartbeats.

    async def keep(self) -> None:
        """Extend leases before they expire, forever."""
        while True:
            await asyncio.sleep(self._tick_s)
            now = self._loop.time()
            over = [each for each in self._leases.values() if now >= each.until]
            for lease in over:
                self.lose(lease)
            for lease in list(self._leases.values()):
                if now >= lease.extend_at and not lease.is_lost and not lease.is_extending:
                    # Concurrent: one slow extend must not delay the others.
                    lease.is_extending = True
                    task = asyncio.create_task(self._extend(lease))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)

    async def _extend(self, lease: Lease) -> None:
        sent_at = self._loop.time()
        fields: dict[str, Any] = {"lease": lease.token, "lease_ms": self._lease_ms}
        if not lease.is_whole:
            fields["ids"] = list(lease.open)
        try:
            async with asyncio.timeout(max(lease.until - sent_at, 0.001)):
                extended = await self._client._ask(Extend(**fields))
                # The whole lease was extended, but some of it was cancelled: the reply names what only if
                # asked by id.
                if extended.cancelled and lease.is_whole:
                    fields["ids"] = list(lease.open)
                    extended = await self._client._ask(Extend(**fields))
        except Conflict:
            if lease.open and not lease.finished:
                self.lose(lease)
        except (ForebayError, TimeoutError) as error:
            logger.warning("a lease can't be extended yet: %s", str(error) or "no answer")
            lease.extend_at = self._loop.time() + self._tick_s
        else:
            self._extended(lease, sent_at)
            self._cancel(lease, set(map(int, extended.refused)))
        finally:
            lease.is_extending = False

    def _cancel(self, lease: Lease, gone: set[int]) -> None:
        """Interrupt the jobs that were cancelled on the server, unless they have already ended."""
        ending = {id for id, _ in lease.finished} | {each.id for each in lease.failed}
        for id in gone & lease.open.keys() - ending:
            run = lease.open[id]
            if run is None:
                self.drop(lease, id)
            else:
                run.interrupt(CANCELLED)

    async def release(self, lease: Lease, ids: list[int]) -> None:
        """Return messages to the queue that were not worked on."""
        try:
            if ids and self.is_live(lease):
                await self._client.release(ids, lease=lease.token)
        except ForebayError as error:
            logger.warning("jobs can't be given back, and come when their lease is over: %s", error)
        finally:
            for id in ids:
                self.drop(lease, id)
