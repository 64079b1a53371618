"""Figures of all queues: totals, their history, and Prometheus metrics under flashQ's names.

flashQ's paper and its code have different names for metrics; both are here.
"""

import asyncio
import logging
from asyncio import AbstractEventLoop, Task
from collections import deque
from collections.abc import Callable, Iterator

from msgspec import Struct
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from forebay.core.api.queries import QueueMeasured
from forebay.core.errors import ForebayError
from forebay.core.words import DEAD, DEFAULT, PUSHED, SETTLED
from forebay.server.flashq import metrics as shared
from forebay.server.flashq.web.commands import Refused, refused
from forebay.server.flashq.web.system import memory_bytes
from forebay.server.http.queue_metrics import Rest, values_of
from forebay.server.measure import TenantMeasured, measure_tenant
from forebay.server.node_client import NodeClient
from forebay.server.shared import Shared
from forebay.server.workers import Workers

logger = logging.getLogger("forebay.flashq")

QUEUES_MAX = 1_000
"""Queues with figures of their own; those of all others are summed."""
SAMPLE_S = 5.0
"""Interval of the samples of the history."""
SAMPLES_MAX = 720
"""Samples that are kept: those of an hour."""


class Totals(Struct, gc=False):
    """Figures of all queues together, since the server started."""

    pushed: int
    completed: int
    failed: int
    per_second: float
    latency_ms: float


class Sample(Struct, gc=False):
    """One point of the history; ``completed`` and ``failed`` are totals."""

    timestamp: int
    queued: int
    processing: int
    completed: int
    failed: int
    throughput: float
    latency_ms: float


class History:
    """Measures queues, and keeps samples of what was measured."""

    def __init__(
        self, questions: NodeClient, workers: Workers, loop: AbstractEventLoop, clock: Callable[[], int]
    ) -> None:
        self._questions, self._workers, self._loop, self._clock = questions, workers, loop, clock
        self.samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)
        self._task: Task[None] | None = None
        self._rest = Rest()
        self._page = Shared(self._made)

    async def start(self) -> None:
        """Take the first sample, and go on taking them."""
        await self._sample()
        self._task = self._loop.create_task(self._run())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_S)
            await self._sample()

    async def _sample(self) -> None:
        try:
            mine = (await self._measured(own_max=0)).rest
        except Refused as error:  # the store can't be written: there is no sample of this moment
            logger.warning("a sample of the metrics is missing: %s", error.error)
            return
        found = _totals(mine, self._rate(mine))
        self.samples.append(
            Sample(
                self._clock(),
                sum(each.counts.waiting for each in mine),
                sum(each.counts.active for each in mine),
                found.completed,
                found.failed,
                found.per_second,
                found.latency_ms,
            )
        )

    def _rate(self, queues: list[QueueMeasured]) -> float:
        """Return the jobs completed per second since the last sample but one."""
        if not self.samples:
            return 0.0
        before = self.samples[-2] if len(self.samples) > 1 else self.samples[-1]
        passed_ms = self._clock() - before.timestamp
        done = sum(each.tally.counts[SETTLED] for each in queues if each.tally is not None)
        return round((done - before.completed) * 1_000 / passed_ms, 2) if passed_ms > 0 else 0.0

    async def _measured(self, own_max: int) -> TenantMeasured:
        try:
            return await measure_tenant(self._questions, DEFAULT, own_max)
        except ForebayError as error:
            raise refused(error) from None

    async def prometheus(self) -> bytes:
        """Return the metrics of all queues; made once for all who ask at the same time."""
        return await self._page.get()

    async def _made(self) -> bytes:
        found = await self._measured(QUEUES_MAX)
        mine = [*found.queues, *found.rest]
        rest = self._rest.told(found.rest, values_of(found.queues))
        shown = [*found.queues, rest] if found.rest else found.queues
        workers = self._workers.count
        families = [
            *shared.of_queues(shown),
            *shared.of_process(workers, memory_bytes()[0]),
            *_of_totals(mine, _totals(mine, self._rate(mine))),
            _by_queue(shown),
            GaugeMetricFamily("flashq_workers_active", "Workers heard of lately.", workers),
        ]
        return await asyncio.to_thread(_text, families)


def _totals(queues: list[QueueMeasured], per_second: float) -> Totals:
    tallies = [each.tally for each in queues if each.tally is not None]
    done = sum(each.counts[SETTLED] for each in tallies)
    return Totals(
        pushed=sum(each.counts[PUSHED] for each in tallies),
        completed=done,
        failed=sum(each.counts[DEAD] for each in tallies),
        per_second=per_second,
        latency_ms=round(sum(each.spent_ms for each in tallies) / done, 2) if done else 0.0,
    )


def _of_totals(queues: list[QueueMeasured], found: Totals) -> Iterator[Metric]:
    """Yield metrics under the names of flashQ's code."""
    yield CounterMetricFamily("flashq_jobs_pushed", "Jobs pushed.", found.pushed)
    yield CounterMetricFamily("flashq_jobs_completed", "Jobs completed.", found.completed)
    yield CounterMetricFamily("flashq_jobs_failed", "Jobs that became dead letters.", found.failed)
    states = {"queued": "waiting", "processing": "active", "delayed": "delayed", "dlq": "dead"}
    states["completed"] = "completed"
    now = GaugeMetricFamily("flashq_jobs_current", "Jobs by state.", labels=["state"])
    for name, ours in states.items():
        now.add_metric([name], sum(getattr(each.counts, ours) for each in queues))
    yield now
    yield GaugeMetricFamily("flashq_throughput_per_second", "Jobs completed per second.", found.per_second)
    yield GaugeMetricFamily("flashq_latency_ms", "Average time of a job in ms.", found.latency_ms)


def _by_queue(queues: list[QueueMeasured]) -> Metric:
    found = GaugeMetricFamily("flashq_queue_jobs", "Jobs of a queue by state.", labels=["queue", "state"])
    for each in queues:
        for name, ours in (("pending", "waiting"), ("processing", "active"), ("dlq", "dead")):
            found.add_metric([each.queue, name], getattr(each.counts, ours))
    return found


class _Collected:
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def _text(families: list[Metric]) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Collected(families))
    return generate_latest(registry)
