"""Metrics in the Prometheus text format."""

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from starlette.types import Receive, Scope, Send

from forebay.broker.node import Node
from forebay.core.api.principals import READ
from forebay.core.api.queries import GroupFound, Measured, QueueMeasured
from forebay.core.errors import ForebayError
from forebay.core.state import Tally
from forebay.server.events.hub import Hub
from forebay.server.http.endpoint import respond, send_error, while_there
from forebay.server.http.identity import require
from forebay.server.http.operation import Query
from forebay.server.http.queue_metrics import QueueText, Rest, Values, values_of
from forebay.server.measure import measure, slices
from forebay.server.node_client import NodeClient
from forebay.server.operations.carried import Context
from forebay.server.shared import Shared
from forebay.server.workers import Workers

TEXT = b"text/plain; version=0.0.4; charset=utf-8"
Connections = Callable[[], dict[str, int]]
"""Returns the number of connections by listener."""


class Scraped(Query):
    """What the figures are asked for with: nothing."""

    needs: ClassVar[tuple[str, ...]] = (READ,)


TENANTS_MAX = 1_000
"""Tenants whose scrapes are remembered, so that the sum of their smaller queues never falls."""


class Metrics:
    """The endpoint that Prometheus scrapes: an admin sees the server, others the queues of their tenant."""

    def __init__(
        self, questions: NodeClient, hub: Hub, workers: Workers, connections: Connections, queues_max: int
    ) -> None:
        self._questions = questions
        self._hub = hub
        self._workers = workers
        self._connections = connections
        self._queues_max = queues_max
        self._process = ProcessCollector(registry=None)
        self._server = Scrape(questions, queues_max, self._of_server)
        self._tenants: dict[str, Scrape] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            scrape = self._scrape(require(scope, Scraped.needs, "/metrics"))
        except ForebayError as error:
            await send_error(scope, send, error)
            return
        body = await while_there(scope, receive, scrape.get())
        await respond(scope, send, 200, body, kind=TEXT)

    def _scrape(self, context: Context) -> "Scrape":
        context.check_whole()
        principal, tenant = context.principal, context.tenant
        if principal is not None and principal.is_admin and tenant == principal.tenant:
            return self._server
        found = self._tenants.pop(tenant, None)
        if found is None:
            found = Scrape(self._questions, self._queues_max, partial(self._of_tenant, tenant), tenant)
            if len(self._tenants) >= TENANTS_MAX:
                del self._tenants[next(iter(self._tenants))]  # the one that nobody asked for the longest
        self._tenants[tenant] = found
        return found

    def _of_server(self) -> Iterator[Metric]:
        yield from self._process.collect()
        yield from _node(self._questions.node, self._connections(), self._hub.count)
        yield from _workers(self._workers.figures())

    def _of_tenant(self, tenant: str) -> Iterator[Metric]:
        found = self._workers.figures().get(tenant)
        yield from _workers({tenant: found} if found is not None else {})


class Scrape:
    """Makes the text of the whole server, or of one tenant.

    Scrapes that come while one is made get the same text. It is made between other work, and no further when
    all who asked for it have left.
    """

    def __init__(
        self,
        questions: NodeClient,
        queues_max: int,
        others: Callable[[], Iterable[Metric]],
        tenant: str | None = None,
    ) -> None:
        """``others`` returns what is told besides queues."""
        self._questions, self._queues_max, self._others, self._tenant = questions, queues_max, others, tenant
        self._rest = Rest()
        self._shared = Shared(self._made)

    def get(self) -> Coroutine[Any, Any, bytes]:
        return self._shared.get()

    async def _made(self) -> bytes:
        others = list(self._others())
        try:
            measured = await measure(self._questions, self._tenant)
            queues = await self._queues(measured)
        except ForebayError:
            # While the store can't be written, queues can't be measured. The other metrics are needed most.
            return _text(others)
        totals = _queues(measured, self._queues_max) if self._tenant else _totals(measured, self._queues_max)
        return _text([*others, *totals]) + queues

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


def _queues(measured: Measured, queues_max: int) -> Iterator[Metric]:
    queues = sum(map(len, measured.queues.values()))
    summed = max(queues - queues_max, 0)
    yield GaugeMetricFamily("forebay_queues", "Queues there are.", queues)
    yield GaugeMetricFamily("forebay_queues_summed", "Queues of them without metrics of their own.", summed)


def _totals(measured: Measured, queues_max: int) -> Iterator[Metric]:
    yield from _queues(measured, queues_max)
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


def _workers(figures: Mapping[str, tuple[int, int]]) -> Iterator[Metric]:
    there = GaugeMetricFamily("forebay_workers", "Workers that are not gone.", labels=["tenant"])
    running = GaugeMetricFamily("forebay_worker_jobs_running", "Jobs that they run.", labels=["tenant"])
    for tenant, (count, jobs) in figures.items():
        there.add_metric([tenant], count)
        running.add_metric([tenant], jobs)
    yield there
    yield running
