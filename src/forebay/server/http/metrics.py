"""Metrics in the Prometheus text format."""

import asyncio
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from starlette.types import Receive, Scope, Send

from forebay.broker.node import Node
from forebay.core.api.queries import Measure, Measured
from forebay.core.state import BUCKETS_MS
from forebay.core.words import EVENT_KINDS
from forebay.server.events.hub import Hub
from forebay.server.http.endpoint import respond
from forebay.server.node_client import NodeClient

TEXT = b"text/plain; version=0.0.4; charset=utf-8"
QUEUES_MAX = 5_000
"""Queues with metrics of their own; further ones are left out."""
STATES = ("waiting", "delayed", "parked", "active", "completed", "dead", "expired", "cancelled", "evicted")
Connections = Callable[[], dict[str, int]]
"""Returns the number of connections by listener."""


class Metrics:
    """The endpoint that Prometheus scrapes."""

    def __init__(self, questions: NodeClient, hub: Hub, connections: Connections) -> None:
        self._questions = questions
        self._hub = hub
        self._connections = connections
        self._process = ProcessCollector(registry=None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        measured = await self._questions.ask(Measure(QUEUES_MAX))
        # While the store can't be written, queues can't be measured, and the other metrics are needed most.
        known = measured if isinstance(measured, Measured) else None
        body = await asyncio.to_thread(self._text, known, self._connections())
        await respond(scope, send, 200, body, kind=TEXT)

    def _text(self, measured: Measured | None, connections: dict[str, int]) -> bytes:
        registry = CollectorRegistry()
        families = [
            *self._process.collect(),
            *_node(self._questions.node, connections, self._hub.count),
        ]
        if measured is not None:
            families += _queues(measured)
        registry.register(_Collected(families))
        return generate_latest(registry)


class _Collected:
    """Metrics that were collected before."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def _queues(measured: Measured) -> Iterator[Metric]:
    names = ["tenant", "queue"]
    depth = GaugeMetricFamily(
        "forebay_queue_messages", "Messages of the group default, by state.", labels=[*names, "state"]
    )
    oldest = GaugeMetricFamily(
        "forebay_queue_oldest_seconds", "Age of the oldest message that waits.", labels=names
    )
    happened = CounterMetricFamily(
        "forebay_messages", "What happened to messages since the server started.", labels=[*names, "kind"]
    )
    times = HistogramMetricFamily("forebay_message_duration_seconds", "From delivery to ack.", labels=names)
    for each in measured.queues:
        place = [each.tenant, each.queue]
        for state in STATES:
            depth.add_metric([*place, state], getattr(each.counts, state))
        age_ms = 0 if each.oldest_at is None else measured.now - each.oldest_at
        oldest.add_metric(place, age_ms / 1000)
        if each.tally is not None:
            for kind, count in zip(EVENT_KINDS, each.tally.counts, strict=True):
                if count:
                    happened.add_metric([*place, kind], count)
            times.add_metric(place, _buckets(BUCKETS_MS, each.tally.times), each.tally.spent_ms / 1000)
    yield from (depth, oldest, happened, times)
    yield GaugeMetricFamily("forebay_queues", "Queues there are.", measured.all_queues)
    yield GaugeMetricFamily("forebay_leases", "Leases that are live.", measured.leases)
    yield CounterMetricFamily("forebay_leases_expired", "Leases that ran out.", measured.expired_leases)


def _buckets(bounds_ms: tuple[int, ...], counts: list[int]) -> list[tuple[str, float]]:
    """Return cumulative counts by upper bound in seconds."""
    total = 0
    found: list[tuple[str, float]] = []
    for bound, count in zip([*(f"{each / 1000:g}" for each in bounds_ms), "+Inf"], counts, strict=True):
        total += count
        found.append((bound, total))
    return found


def _node(node: Node, connections: dict[str, int], streams: int) -> Iterator[Metric]:
    is_ready = node.broken is None and not node.draining
    yield GaugeMetricFamily("forebay_ready", "Whether requests are taken.", int(is_ready))
    yield GaugeMetricFamily("forebay_waiting_pops", "Pops that wait for messages.", node.waiting)
    yield GaugeMetricFamily("forebay_bodies_bytes", "Bytes of payloads kept in memory.", node.body_bytes)
    yield CounterMetricFamily("forebay_commit_failures", "Commits that failed.", node.failures)
    meter = node.meter
    yield CounterMetricFamily("forebay_commits", "Groups of answers that were kept together.", meter.groups)
    yield CounterMetricFamily("forebay_answers", "Answers in them.", meter.answers)
    yield CounterMetricFamily("forebay_commit_seconds", "Time that keeping them took.", meter.seconds)
    yield GaugeMetricFamily("forebay_streams", "Connections that events or messages are sent to.", streams)
    open_ = GaugeMetricFamily("forebay_connections", "Connections, by listener.", labels=["listener"])
    for listener, count in connections.items():
        open_.add_metric([listener], count)
    yield open_
