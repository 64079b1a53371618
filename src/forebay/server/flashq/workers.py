"""Who works: connections that pull jobs, and workers that report over HTTP.

flashQ's ``flashq_active_workers`` counts workers. A connection that only pushes is none, and neither is a
worker that was last heard of long ago.
"""

from collections.abc import Callable

from msgspec import Struct

ACTIVE_MS = 120_000
"""How long a worker counts after it was heard of: twice the wait of a PULL without a timeout."""
WORKERS_MAX = 10_000
"""Workers that are remembered: those heard of last."""


class Worker(Struct):
    """A worker, and when it was last heard of."""

    id: str
    queues: list[str]
    last_seen: int
    concurrency: int = 1
    jobs_processed: int = 0


class Workers:
    """All workers of flashQ's doors."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._known: dict[str, Worker] = {}
        """By id, those heard of last at the end."""

    def report(self, worker: str, queues: list[str], concurrency: int = 1, jobs_processed: int = 0) -> Worker:
        """Record that a worker is alive, as it says itself."""
        self._known.pop(worker, None)
        found = Worker(worker, queues, self._clock(), concurrency, jobs_processed)
        self._known[worker] = found
        if len(self._known) > WORKERS_MAX:
            del self._known[next(iter(self._known))]
        return found

    def pulled(self, connection: int, queue: str) -> None:
        """Record that a TCP connection asked for jobs."""
        name = f"tcp-{connection}"
        known = self._known.pop(name, None)
        if known is None:
            self.report(name, [queue])
            return
        known.last_seen = self._clock()
        if queue not in known.queues:
            known.queues.append(queue)
        self._known[name] = known

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
