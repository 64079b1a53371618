"""Who works: the workers that tell of themselves, over any listener.

The registry is about processes and connections, so it is kept in memory only: after a restart of the server,
each worker is there again with its next beat. A worker that says goodbye is forgotten at once. One that falls
silent is gone: that is told, and it is listed as gone for a while.

It does not say who holds a message: a consumer names itself when it pops, and the lease keeps that name.
"""

import logging
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable

from msgspec import Struct, field

from forebay.core.bounds import QUEUE_NAME
from forebay.core.errors import Busy
from forebay.core.words import DEFAULT, WORKER_GONE, WORKER_STARTED, WORKER_STOPPED

logger = logging.getLogger("forebay.workers")

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
QUEUES_MAX = 1_000
"""Queues that are remembered of one worker: those it asked for first."""
RUNNING_MAX = 100
"""Jobs that a beat lists: those that run longest."""

WORKING, DRAINING, STOPPED = SAID = ("working", "draining", "stopped")
"""States that a worker tells of itself."""
GONE = "gone"
"""State of a worker that fell silent."""

Key = tuple[str, str]
"""Tenant and name of a worker."""


class Running(Struct, frozen=True, gc=False):
    """A job that runs."""

    id: int
    task: str
    since: int


class Worker(Struct, kw_only=True):
    """A worker as it last told of itself."""

    name: str
    tenant: str = DEFAULT
    host: str = ""
    pid: int = 0
    version: str = ""
    group: str = DEFAULT
    queues: dict[str, None] = field(default_factory=dict)
    """Names, each once, in the order in which they came."""
    tasks: list[str] = field(default_factory=list)
    concurrency: int = 1
    state: str = WORKING
    started_at: int
    seen_at: int
    running: list[Running] = field(default_factory=list)
    """At most RUNNING_MAX."""
    running_count: int = 0
    done: int = 0
    failed: int = 0
    patience_ms: int = SILENT_MS
    """Silence after which it is gone."""

    @property
    def key(self) -> Key:
        return self.tenant, self.name


Tell = Callable[[str, Worker, int], None]
"""Is told the kind of each event, the worker, and when."""


class Workers:
    """All workers of a server."""

    def __init__(
        self,
        clock: Callable[[], int],
        loop: AbstractEventLoop | None = None,
        tell: Tell = lambda kind, worker, at: None,
    ) -> None:
        """Without a ``loop``, silent workers are noticed only when somebody asks."""
        self._clock, self._loop, self._tell = clock, loop, tell
        self._known: dict[Key, Worker] = {}
        """Those heard of last at the end."""
        self._timer: TimerHandle | None = None

    def now(self) -> int:
        return self._clock()

    # What workers tell.

    def beat(self, worker: Worker) -> None:
        """Record what a worker tells of itself; raise if there are too many."""
        before = self._known.get(worker.key)
        if worker.state == STOPPED:
            if before is not None:
                self._forget(before)
                self._happened(WORKER_STOPPED, before)
            return
        if before is None:
            self._make_room()
        else:
            del self._known[before.key]  # so that it goes to the end
        self._known[worker.key] = worker
        self._plan()
        if before is None or before.state == GONE or (before.host, before.pid) != (worker.host, worker.pid):
            self._happened(WORKER_STARTED, worker)

    def report(self, name: str, queues: list[str], concurrency: int = 1, done: int = 0) -> None:
        """Record what one of flashQ's workers tells of itself."""
        now, before = self._clock(), self._known.get((DEFAULT, name))
        worker = Worker(
            name=name,
            queues=dict.fromkeys(queues[:QUEUES_MAX]),
            concurrency=concurrency,
            started_at=now if before is None else before.started_at,
            seen_at=now,
            done=done,
            patience_ms=ACTIVE_MS,
        )
        self.beat(worker)

    def pulled(self, connection: int, queue: str) -> str:
        """Record that a connection of flashQ's door asks for jobs, and return the name that it goes by.

        A request over HTTP (0) has no connection of its own, and no name: its worker tells of itself, or is
        not known.
        """
        if not connection:
            return ""
        name = f"tcp-{connection}"
        if QUEUE_NAME.fullmatch(queue):
            self._pulled(name, queue)
        return name

    def _pulled(self, name: str, queue: str) -> None:
        now, key = self._clock(), (DEFAULT, name)
        known = self._known.get(key)
        if known is None or known.state == GONE:
            worker = Worker(name=name, started_at=now, seen_at=now, patience_ms=ACTIVE_MS)
            try:
                self.beat(worker)
            except Busy:  # it gets its jobs all the same
                return
            known = worker
        known.seen_at = now
        if queue not in known.queues and len(known.queues) < QUEUES_MAX:
            known.queues[queue] = None
        self._known[key] = self._known.pop(key)

    def left(self, connection: int) -> None:
        """Forget a connection of flashQ's door that ended."""
        known = self._known.get((DEFAULT, f"tcp-{connection}"))
        if known is not None:
            self._forget(known)
            self._happened(WORKER_STOPPED, known)

    # What others ask.

    def page(
        self, tenant: str, queue: str | None, after: str | None, limit: int
    ) -> tuple[list[Worker], bool]:
        """Return workers by name, after a name, and whether there are more; with ``queue``, its workers."""
        self.sweep()
        found = [
            each
            for each in self._known.values()
            if each.tenant == tenant
            and (after is None or each.name > after)
            and (queue is None or queue in each.queues)
        ]
        found.sort(key=lambda each: each.name)
        return found[:limit], len(found) > limit

    def active(self, tenant: str = DEFAULT) -> list[Worker]:
        """Return the workers of a tenant that are not gone, those heard of last at the end."""
        self.sweep()
        return [each for each in self._known.values() if each.tenant == tenant and each.state != GONE]

    @property
    def count(self) -> int:
        return len(self.active())

    def figures(self) -> dict[str, tuple[int, int]]:
        """Return by tenant how many workers there are, and how many jobs they run."""
        self.sweep()
        found: dict[str, tuple[int, int]] = {}
        for each in self._known.values():
            if each.state != GONE:
                workers, running = found.get(each.tenant, (0, 0))
                found[each.tenant] = (workers + 1, running + each.running_count)
        return found

    # Silence.

    def sweep(self) -> None:
        """Notice the workers that fell silent, and forget those that are gone for long."""
        now = self._clock()
        for worker in list(self._known.values()):
            silent_ms = now - worker.seen_at
            if silent_ms <= SILENT_MS:
                break  # all others were heard of later
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
        if self._loop is not None and self._timer is None and self._known:
            self._timer = self._loop.call_later(SWEEP_S, self._swept)

    def close(self) -> None:
        """Stop looking for silent workers: the server stops."""
        if self._timer is not None:
            self._timer.cancel()
        self._loop = None

    # Room.

    def _make_room(self) -> None:
        """Forget the worker that is gone for longest if there is no room; raise if all are there."""
        if len(self._known) < WORKERS_MAX:
            return
        self.sweep()
        gone = next((each for each in self._known.values() if each.state == GONE), None)
        if gone is not None:
            self._forget(gone)
        elif len(self._known) >= WORKERS_MAX:
            raise Busy(f"the server lists at most {WORKERS_MAX} workers", retry_after_ms=SILENT_MS)

    def _forget(self, worker: Worker) -> None:
        del self._known[worker.key]

    def _happened(self, kind: str, worker: Worker) -> None:
        is_quiet = worker.patience_ms == ACTIVE_MS  # a connection of flashQ's may last for one job
        level = logging.DEBUG if is_quiet else logging.WARNING if kind == WORKER_GONE else logging.INFO
        fields = {"worker": worker.name, "host": worker.host, "tenant": worker.tenant}
        # Names stand in fields only, which are quoted where they have to be: a name can't forge a line.
        logger.log(level, kind.replace("_", " "), extra={"fields": fields})
        self._tell(kind, worker, self._clock())
