"""Who works: connections that pull jobs, and workers that report over HTTP.

flashQ's ``flashq_active_workers`` counts workers. A connection that only pushes is none, and neither is a
worker that was last heard of long ago.
"""

from collections.abc import Callable, Iterable

from msgspec import Struct

from forebay.core.bounds import QUEUE_NAME

ACTIVE_MS = 120_000
"""How long a worker counts after it was heard of: twice the wait of a PULL without a timeout."""
WORKERS_MAX = 10_000
"""Workers that are remembered: those heard of last."""
QUEUES_MAX = 1_000
"""Queues that are remembered of one worker: those it asked for first."""


class Worker(Struct):
    """A worker, and when it was last heard of."""

    id: str
    queues: dict[str, None]
    """Names, each once, in the order in which they came."""
    last_seen: int
    concurrency: int = 1
    jobs_processed: int = 0


class Workers:
    """All workers of flashQ's doors."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._known: dict[str, Worker] = {}
        """By id, those heard of last at the end."""

    def report(
        self, worker: str, queues: Iterable[str], concurrency: int = 1, jobs_processed: int = 0
    ) -> None:
        """Record that a worker is alive, as it says itself."""
        self._known.pop(worker, None)
        names = dict.fromkeys(queues)
        self._known[worker] = Worker(worker, names, self._clock(), concurrency, jobs_processed)
        if len(self._known) > WORKERS_MAX:
            del self._known[next(iter(self._known))]

    def pulled(self, connection: int, queue: str) -> None:
        """Record that a TCP connection asks for jobs, unless it will be refused: no queue has such a name."""
        name = f"tcp-{connection}"
        known = self._known.get(name)
        is_new = known is None or queue not in known.queues
        if is_new and not QUEUE_NAME.fullmatch(queue):
            return
        if known is None:
            self.report(name, [queue])
            return
        known.last_seen = self._clock()
        if is_new and len(known.queues) < QUEUES_MAX:
            known.queues[queue] = None
        self._known[name] = self._known.pop(name)

    def left(self, connection: int) -> None:
        """Forget a TCP connection that ended."""
        self._known.pop(f"tcp-{connection}", None)

    def active(self) -> list[Worker]:
        """Return the workers heard of lately."""
        since = self._clock() - ACTIVE_MS
        return [each for each in self._known.values() if each.last_seen >= since]

    @property
    def count(self) -> int:
        return len(self.active())
