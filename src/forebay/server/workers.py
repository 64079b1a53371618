"""Who works: the workers that tell of themselves, over any listener.

The registry is about processes and connections, so it is kept in memory only: after a restart of the server,
each worker is there again with its next beat. A worker that says goodbye is forgotten at once. One that falls
silent is gone: that is told, and it is listed as gone for a while.

It does not say who holds a message: a consumer names itself when it pops, and the lease keeps that name.
"""

from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import takewhile

from forebay.core.api.principals import has_queue
from forebay.core.bounds import QUEUE_NAME
from forebay.core.errors import Busy
from forebay.core.words import DEFAULT, WORKER_GONE, WORKER_STARTED, WORKER_STOPPED
from forebay.server.worker_news import News, Tell
from forebay.server.worker_room import WORKING, Room, Worker

SILENT_MS = 30_000
"""Silence after which a worker is gone: three beats."""
ACTIVE_MS = 120_000
"""The same for flashQ's workers, which tell less often: twice the wait of a PULL without a timeout."""
GONE_MS = 600_000
"""How long a worker that is gone stays listed."""
SWEEP_S = 5.0
"""Interval of the search for silent workers."""
WORKERS_MAX = 10_000
"""Workers of all tenants that are known at a time."""
BYTES_MAX = 64 * 1024 * 1024
"""Memory that they take, about."""
PAGE_BYTES_MAX = 1024 * 1024
"""Bytes of workers that are shown at a time, about: to encode more would hold up others."""
QUEUES_MAX = 1_000
"""Queues that are remembered of one worker: those it asked for first."""
RUNNING_MAX = 100
"""Jobs that a beat lists: those that run longest."""

DRAINING, STOPPED = "draining", "stopped"
SAID = (WORKING, DRAINING, STOPPED)
"""States that a worker tells of itself."""
GONE = "gone"
"""State of a worker that fell silent."""


class Workers:
    """All workers of a server."""

    def __init__(
        self,
        clock: Callable[[], int],
        loop: AbstractEventLoop | None = None,
        tell: Tell = lambda kind, worker, at: None,
    ) -> None:
        """Without a ``loop``, silent workers are noticed only when somebody asks."""
        self._clock, self._loop = clock, loop
        self._news = News(clock, loop, tell)
        self._rooms: dict[str, Room] = {}
        """By tenant; none is empty."""
        self._timer: TimerHandle | None = None

    def now(self) -> int:
        return self._clock()

    # What workers tell.

    def beat(self, worker: Worker) -> None:
        """Record what a worker tells of itself; raise if there is no room for it."""
        before = self._find(worker.tenant, worker.name)
        if worker.state == STOPPED:
            # Of two processes with one name, the goodbye of the other is not that of this one.
            if before is not None and before.process == worker.process:
                self._forget(before)
                self._happened(WORKER_STOPPED, before)
            return
        was_gone = before is None or before.state == GONE
        try:
            self._make_room(worker)
        except Busy:
            if before is not None and not was_gone:  # it is alive, though what it says has no room
                before.seen_at = worker.seen_at
                self._rooms[worker.tenant].heard(before)
            raise
        self._rooms.setdefault(worker.tenant, Room()).put(worker)
        self._plan()
        if before is None or was_gone or before.process != worker.process:
            self._happened(WORKER_STARTED, worker)

    def report(
        self, name: str, queues: list[str], concurrency: int = 1, done: int = 0, *, tenant: str = DEFAULT
    ) -> None:
        """Record what one of flashQ's workers tells of itself."""
        now, before = self._clock(), self._find(tenant, name)
        worker = Worker(
            tenant=tenant,
            name=name,
            queues=dict.fromkeys(queues[:QUEUES_MAX]),
            concurrency=concurrency,
            started_at=now if before is None else before.started_at,
            seen_at=now,
            done=done,
            patience_ms=ACTIVE_MS,
        )
        self.beat(worker)

    def pulled(self, connection: int, queue: str, tenant: str = DEFAULT) -> str:
        """Record that a connection of flashQ's door asks for jobs, and return the name that it goes by.

        A request over HTTP (0) has no connection of its own, and no name: its worker tells of itself, or is
        not known.
        """
        if not connection:
            return ""
        name = f"tcp-{connection}"
        known = self._find(tenant, name)
        queues = {} if known is None else known.queues
        is_told = queue in queues or len(queues) >= QUEUES_MAX
        if known is not None and known.state != GONE and is_told:
            known.seen_at = self._clock()
            self._rooms[tenant].heard(known)
        elif QUEUE_NAME.fullmatch(queue):
            with suppress(Busy):  # it gets its jobs all the same
                self.report(name, [*queues, queue], tenant=tenant)
        return name

    def left(self, connection: int, tenant: str = DEFAULT) -> None:
        """Forget a connection of flashQ's door that ended."""
        known = self._find(tenant, f"tcp-{connection}")
        if known is not None:
            self._forget(known)
            self._happened(WORKER_STOPPED, known)

    # What others ask.

    def page(
        self,
        tenant: str,
        queue: str | None,
        after: str | None,
        limit: int,
        within: tuple[str, ...] = (),
    ) -> tuple[list[Worker], bool]:
        """Return workers by name, after a name, and whether there are more; with ``queue``, its workers.

        With ``within``, only those all of whose queues match its patterns.
        """
        self.sweep()
        found = [
            each
            for each in self._of(tenant)
            if (after is None or each.name > after)
            and (queue is None or queue in each.queues)
            and (not within or all(has_queue(within, name) for name in each.queues))
        ]
        found.sort(key=lambda each: each.name)
        shown = _first(found[:limit])
        return shown, len(found) > len(shown)

    def active(self, tenant: str = DEFAULT) -> list[Worker]:
        """Return the workers of a tenant that are not gone, those heard of last at the end."""
        self.sweep()
        return [each for each in self._of(tenant) if each.state != GONE]

    def latest(self, tenant: str = DEFAULT) -> list[Worker]:
        """Return the active workers that were heard of last, as many as can be shown at a time."""
        return _first(self.active(tenant)[::-1])[::-1]

    @property
    def count(self) -> int:
        return len(self.active())

    def figures(self) -> dict[str, tuple[int, int]]:
        """Return by tenant how many workers there are, and how many jobs they run."""
        self.sweep()
        found: dict[str, tuple[int, int]] = {}
        for tenant in self._rooms:
            running = [each.running_count for each in self._of(tenant) if each.state != GONE]
            if running:
                found[tenant] = (len(running), sum(running))
        return found

    # Silence.

    def sweep(self) -> None:
        """Notice the workers that fell silent, and forget those that are gone for long."""
        now = self._clock()
        for room in list(self._rooms.values()):
            # All others were heard of later.
            silent = list(takewhile(lambda each: now - each.seen_at > SILENT_MS, room.workers.values()))
            for worker in silent:
                silent_ms = now - worker.seen_at
                if worker.state != GONE and silent_ms > worker.patience_ms:
                    worker.state = GONE
                    self._happened(WORKER_GONE, worker)
                if silent_ms > worker.patience_ms + GONE_MS:
                    self._forget(worker)

    def _swept(self) -> None:
        self._timer = None
        self.sweep()
        self._plan()

    def _plan(self) -> None:
        if self._loop is not None and self._timer is None and self._rooms:
            self._timer = self._loop.call_later(SWEEP_S, self._swept)

    def close(self) -> None:
        """Stop looking for silent workers: the server stops."""
        if self._timer is not None:
            self._timer.cancel()
        self._loop = None
        self._news.close()

    # Room.

    def _find(self, tenant: str, name: str) -> Worker | None:
        room = self._rooms.get(tenant)
        return room.workers.get(name) if room is not None else None

    def _of(self, tenant: str) -> Iterable[Worker]:
        room = self._rooms.get(tenant)
        return room.workers.values() if room is not None else ()

    def _make_room(self, worker: Worker) -> None:
        """Forget others until there is room for a worker; raise if its tenant has no right to more.

        Who has least may have more: then whoever has most gives up a worker. So no tenant can keep another
        out, and one that is alone may have it all. A tenant that has most gives up its own that are gone.
        """
        own = self._rooms.get(worker.tenant) or Room()
        while True:
            more, size = worker.name not in own.workers, own.growth(worker)
            rooms = self._rooms.values()
            if more and sum(len(each.workers) for each in rooms) >= WORKERS_MAX:
                having, own_after = _count, len(own.workers) + 1
            elif size > 0 and sum(each.bytes for each in rooms) + size > BYTES_MAX:
                having, own_after = _size, own.bytes + size
            else:
                return
            self.sweep()
            most = max(rooms, key=having, default=own)
            has_most = having(most) <= own_after
            giving = (own if has_most else most).workers
            gone = (each for each in giving.values() if each.state == GONE and each.name != worker.name)
            given_up = next(gone, None if has_most else next(iter(giving.values())))
            if given_up is None:
                most_of = f"{WORKERS_MAX} workers, in {BYTES_MAX >> 20} MiB"
                raise Busy(f"the server lists at most {most_of}", retry_after_ms=SILENT_MS)
            self._forget(given_up)

    def _forget(self, worker: Worker) -> None:
        room = self._rooms[worker.tenant]
        room.remove(worker)
        if not room.workers:
            del self._rooms[worker.tenant]

    def _happened(self, kind: str, worker: Worker) -> None:
        # A connection of flashQ's may last for one job.
        self._news.happened(kind, worker, quiet=worker.patience_ms == ACTIVE_MS)


def _count(room: Room) -> int:
    return len(room.workers)


def _size(room: Room) -> int:
    return room.bytes


def _first(workers: list[Worker]) -> list[Worker]:
    """Return the first of them, as many as can be shown at a time; at least one, if there is one."""
    size = 0
    for at, worker in enumerate(workers):
        size += worker.shown_bytes
        if at and size > PAGE_BYTES_MAX:
            return workers[:at]
    return workers
