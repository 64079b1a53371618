"""Prometheus metrics under flashQ's names, for the tenant ``default``."""

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from forebay.core.api.queries import QueueMeasured
from forebay.core.state import BUCKETS_MS
from forebay.core.words import DEAD, SETTLED

BOUNDS = ((100, "0.1"), (1_000, "1.0"))
"""flashQ's bounds of the duration histogram: in ms, and as label text."""


def of_queues(queues: Iterable[QueueMeasured]) -> Iterator[Metric]:
    depth = GaugeMetricFamily("flashq_queue_depth", "Jobs waiting in a queue.", labels=["queue"])
    done = CounterMetricFamily(
        "flashq_jobs_processed", "Jobs processed, by how they ended.", labels=["queue", "status"]
    )
    times = HistogramMetricFamily("flashq_job_duration_seconds", "From delivery to ack.", labels=["queue"])
    for each in queues:
        depth.add_metric([each.queue], each.counts.waiting)
        if each.tally is not None:
            done.add_metric([each.queue, "completed"], each.tally.counts[SETTLED])
            done.add_metric([each.queue, "failed"], each.tally.counts[DEAD])
            buckets = [(name, sum(each.tally.times[: BUCKETS_MS.index(bound) + 1])) for bound, name in BOUNDS]
            everything = [*buckets, ("+Inf", sum(each.tally.times))]
            times.add_metric([each.queue], everything, each.tally.spent_ms / 1000)
    yield from (depth, done, times)


def of_process(connections: int, memory_bytes: float) -> Iterator[Metric]:
    yield GaugeMetricFamily("flashq_active_workers", "Connections that may work.", connections)
    yield GaugeMetricFamily("flashq_memory_bytes", "Memory of the process.", memory_bytes)
