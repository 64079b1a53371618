"""Metrics in the Prometheus text format."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from starlette.types import Receive, Scope, Send

from forebay.broker.node import Node
from forebay.core.api.queries import GroupFound, Measured, QueueMeasured
from forebay.core.errors import ForebayError
from forebay.core.state import Tally
from forebay.server.events.hub import Hub
from forebay.server.http.endpoint import respond, while_there
from forebay.server.http.queue_metrics import QueueText, Rest, Values, values_of
from forebay.server.measure import measure, slices
from forebay.server.node_client import NodeClient
from forebay.server.shared import Shared
from forebay.server.workers import Workers

TEXT = b"text/plain; version=0.0.4; charset=utf-8"
Connections = Callable[[], dict[str, int]]
"""Returns the number of connections by listener."""


class Metrics:
    """The endpoint that Prometheus scrapes.

    Scrapes that come while one is made get the same text. It is made between other work, and no further when
    all who asked for it have left.
    """

    def __init__(
        self, questions: NodeClient, hub: Hub, workers: Workers, connections: Connections, queues_max: int
    ) -> None:
        self._questions = questions
        self._hub = hub
        self._workers = workers
        self._connections = connections
        self._queues_max = queues_max
        self._process = ProcessCollector(registry=None)
        self._rest = Rest()
        self._shared = Shared(self._made)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await while_there(scope, receive, self._shared.get())
        await respond(scope, send, 200, body, kind=TEXT)

    async def _made(self) -> bytes:
        node = [
            *self._process.collect(),
            *_node(self._questions.node, self._connections(), self._hub.count),
            *_workers(self._workers),
        ]
        try:
            measured = await measure(self._questions)
            queues = await self._queues(measured)
        except ForebayError:
            # While the store can't be written, queues can't be measured. The other metrics are needed most.
            return _text(node)
        return _text([*node, *_totals(measured, self._queues_max)]) + queues

    async def _queues(self, measured: Measured) -> bytes:
        text = QueueText(measured.now, self._queues_max)
        rest: list[QueueMeasured] = []
        outside: dict[Tally, Values] = {}
        groups: list[GroupFound] = []
        left = self._queues_max
        async for each in slices(self._questions, measured, self._queues_max):
            for queue in each.queues:
                # One queue may have very many groups: they have a bound of their own, of the same size.
                own = 0 if each.summed else left
                groups += queue.groups[own:]
                queue.groups = queue.groups[:own]
                left -= len(queue.groups)
            if each.summed:
                rest += each.queues
            else:
                text.add(each.queues)
                outside |= values_of(each.queues)
        summed = self._rest.told(rest, outside)  # also if there is none: it learns who left
        if rest:
            text.add([summed])
        text.add_groups(groups)
        return text.text()


class _Collected:
    """Metrics that were collected before."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def _text(families: list[Metric]) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Collected(families))
    return generate_latest(registry)


def _totals(measured: Measured, queues_max: int) -> Iterator[Metric]:
    queues = sum(map(len, measured.queues.values()))
    summed = max(queues - queues_max, 0)
    yield GaugeMetricFamily("forebay_queues", "Queues there are.", queues)
    yield GaugeMetricFamily("forebay_queues_summed", "Queues of them without metrics of their own.", summed)
    yield GaugeMetricFamily("forebay_leases", "Leases that are live.", measured.leases)
    yield CounterMetricFamily("forebay_leases_expired", "Leases that ran out.", measured.expired_leases)


def _node(node: Node, connections: dict[str, int], streams: int) -> Iterator[Metric]:
    is_ready = node.broken is None and not node.draining
    yield GaugeMetricFamily("forebay_ready", "Whether requests are taken.", int(is_ready))
    yield GaugeMetricFamily("forebay_waiting_pops", "Pops that wait for messages.", node.waiting)
    yield GaugeMetricFamily("forebay_bodies_bytes", "Bytes of payloads kept in memory.", node.body_bytes)
    disk = node.disk
    disk.look()
    free = GaugeMetricFamily("forebay_disk_free_bytes", "Bytes free on the disk.", labels=[])
    if disk.free_bytes is not None:
        free.add_metric([], disk.free_bytes)
    yield free
    yield GaugeMetricFamily("forebay_disk_low", "Whether the disk is nearly full.", int(disk.is_low))
    yield GaugeMetricFamily("forebay_disk_full", "Whether pushes are refused for that.", int(disk.is_full))
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


def _workers(workers: Workers) -> Iterator[Metric]:
    there = GaugeMetricFamily("forebay_workers", "Workers that are not gone.", labels=["tenant"])
    running = GaugeMetricFamily("forebay_worker_jobs_running", "Jobs that they run.", labels=["tenant"])
    for tenant, (count, jobs) in workers.figures().items():
        there.add_metric([tenant], count)
        running.add_metric([tenant], jobs)
    yield there
    yield running
