"""Metrics of very many queues: bounded series, bounded slices, and only for those who wait for them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
from starlette.types import Message

from forebay.broker.node import Node
from forebay.core.api.commands import Command, Push, Reply
from forebay.core.api.queries import Counts, Measure, Measured, MeasureQueues, QueueMeasured, QueuesMeasured
from forebay.core.bounds import Limits
from forebay.core.errors import ForebayError
from forebay.core.queries.metrics import PARTITIONS_MAX
from forebay.core.state import BUCKETS_MS, Tally
from forebay.core.words import EVENT_KINDS
from forebay.server.events.hub import Hub
from forebay.server.http.connection import HttpLimits
from forebay.server.http.identity import CONTEXT
from forebay.server.http.metrics import Metrics
from forebay.server.http.queue_metrics import QueueText, Rest, values_of
from forebay.server.http.request_body import Gone
from forebay.server.measure import SLICE
from forebay.server.node_client import NodeClient
from forebay.server.operations.carried import Context
from forebay.server.shared import Shared
from forebay.server.workers import Workers
from forebay.store.memory import MemoryStore
from tests.broker.loop import BEGIN
from tests.core.harness import Core
from tests.server.http.streaming import Here
from tests.server.http.test_health import Figures, figures
from tests.serving import Raw, pop, push

QUEUES = 20 * SLICE + 7
REST = 'queue="*",tenant="_rest"'


class CountingNode(Node):
    """A node that notes how many queues each slice was about."""

    slices: list[int]

    def peek(self, query: Command) -> Reply | ForebayError:
        if isinstance(query, MeasureQueues):
            self.slices.append(len(query.places))
        return super().peek(query)


class Scraped:
    """The endpoint over a node with some queues, without a network."""

    def __init__(self, node: CountingNode, metrics: Metrics) -> None:
        self.node, self._metrics = node, metrics

    async def scrape(self, disconnected: asyncio.Event) -> list[Message]:
        """What the endpoint sends to a client that leaves when the event is set."""
        sent: list[Message] = []

        async def receive() -> Message:
            await disconnected.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "GET", "headers": [], CONTEXT: Context()}
        await self._metrics(scope, receive, send)
        return sent


@asynccontextmanager
async def scraped(queues: int, own: int) -> AsyncIterator[Scraped]:
    loop = asyncio.get_running_loop()
    node = CountingNode(MemoryStore(), loop, lambda: BEGIN, Limits())
    node.slices = []
    questions = NodeClient(node)
    for number in range(queues):
        await questions.ask(Push("default", f"q{number}", [b"1"]))
    try:
        yield Scraped(node, Metrics(questions, Hub(node, loop), Workers(lambda: BEGIN), dict, own))
    finally:
        node.close()


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_queues_are_measured_a_bounded_number_at_a_time() -> None:
    async def life() -> None:
        async with scraped(QUEUES, own=QUEUES - 10) as here:
            (start, body) = await here.scrape(asyncio.Event())
            assert start["status"] == 200
            assert max(here.node.slices) == SLICE
            assert sum(here.node.slices) == QUEUES
            assert body["body"].count(b"forebay_queue_oldest_seconds{") == QUEUES - 10 + 1

    asyncio.run(life())


def test_other_work_gets_its_turn_after_every_slice() -> None:
    async def life() -> None:
        async with scraped(QUEUES, own=QUEUES) as here:
            scrape = asyncio.create_task(here.scrape(asyncio.Event()))
            seen = [0]
            while not scrape.done():
                await asyncio.sleep(0)
                seen.append(len(here.node.slices))
            assert max(after - before for before, after in pairwise(seen)) == 1

    asyncio.run(life())


def test_scrapes_that_come_together_are_measured_once_and_later_ones_anew() -> None:
    async def life() -> None:
        async with scraped(QUEUES, own=QUEUES) as here:
            first, second, third = await asyncio.gather(*(here.scrape(asyncio.Event()) for _ in range(3)))
            assert first[1]["body"] == second[1]["body"] == third[1]["body"]
            assert sum(here.node.slices) == QUEUES
            await here.scrape(asyncio.Event())
            assert sum(here.node.slices) == 2 * QUEUES

    asyncio.run(life())


def test_nothing_is_measured_for_a_client_that_has_left() -> None:
    async def life() -> None:
        async with scraped(QUEUES, own=QUEUES) as here:
            left = asyncio.Event()
            scrape = asyncio.create_task(here.scrape(left))
            while not here.node.slices:
                await asyncio.sleep(0)
            left.set()
            with pytest.raises(Gone):
                await scrape
            measured = len(here.node.slices)
            await turns(100)
            assert len(here.node.slices) == measured < QUEUES // SLICE

    asyncio.run(life())


def test_a_client_that_leaves_takes_nothing_from_one_that_stays() -> None:
    async def life() -> None:
        async with scraped(QUEUES, own=QUEUES) as here:
            left = asyncio.Event()
            leaves, stays = (asyncio.create_task(here.scrape(each)) for each in (left, asyncio.Event()))
            while not here.node.slices:
                await asyncio.sleep(0)
            left.set()
            with pytest.raises(Gone):
                await leaves
            assert (await stays)[0]["status"] == 200
            assert sum(here.node.slices) == QUEUES

    asyncio.run(life())


def test_whoever_asks_after_all_others_left_gets_a_computation_of_its_own() -> None:
    async def life() -> None:
        begun = 0
        release = asyncio.Event()

        async def compute() -> int:
            nonlocal begun
            begun += 1
            await release.wait()
            return begun

        shared = Shared(compute)
        first = asyncio.create_task(shared.get())
        await turns(3)
        first.cancel()
        await turns(1)
        second = asyncio.create_task(shared.get())
        release.set()
        assert await second == 2

    asyncio.run(life())


def test_a_slice_ends_where_its_queues_have_many_partitions() -> None:
    core = Core()
    for queue in ("a", "b", "c"):
        for number in range(PARTITIONS_MAX // 2):
            core.push(queue=queue, partition=f"p{number}")
    ((shard, places),) = (each for each in core.ask(Measure(), Measured).queues.items() if each[1])
    found = core.ask(MeasureQueues(shard, places), QueuesMeasured)
    assert [each.queue for each in found.queues] == ["a", "b"]
    assert found.done == 2
    rest = core.ask(MeasureQueues(shard, places[2:], summed=True), QueuesMeasured)
    assert (rest.done, rest.queues[0].counts.waiting) == (1, PARTITIONS_MAX // 2)


def test_a_queue_that_is_gone_is_left_out_of_a_slice() -> None:
    core = Core()
    core.push(queue="a")
    ((shard, places),) = (each for each in core.ask(Measure(), Measured).queues.items() if each[1])
    found = core.ask(MeasureQueues(shard, [("default", "gone"), *places]), QueuesMeasured)
    assert ([each.queue for each in found.queues], found.done) == (["a"], 2)


def fill(client: Raw) -> None:
    """Five queues that differ in everything that is summed."""
    for number in range(5):
        push(client, f"q{number}", *range(number + 2))
        client.ask({"cmd": "ACK", "ids": [pop(client, f"q{number}")["id"]]})
        client.ask({"cmd": "PUSH", "queue": f"q{number}", "payload": 0, "delay_ms": 60_000 * number})


def test_queues_without_series_of_their_own_add_up_in_the_rest() -> None:
    with Here(http=HttpLimits(metrics_queues_max=2)) as here, here.connect() as client:
        fill(client)
        here.now += 7_000
        found = figures(here)
    with Here(http=HttpLimits(metrics_queues_max=5)) as here, here.connect() as client:
        fill(client)
        here.now += 7_000
        alone = figures(here)
    assert (found["forebay_queues"], found["forebay_queues_summed"]) == (5, 3)
    assert alone["forebay_queues_summed"] == 0
    assert not any(REST in name for name in alone)
    per_queue = [name for name in alone if 'queue="q4"' in name]
    assert len(per_queue) == 5 + 1 + 3 + 8, "states, age, kinds of events, durations"
    for name in per_queue:
        rest = found[name.replace('"q4"', '"*"').replace('"default"', '"_rest"')]
        summed = [alone.get(name.replace("q4", f"q{number}"), 0) for number in (2, 3, 4)]
        is_age = name.startswith("forebay_queue_oldest_seconds")
        assert rest == (max(summed) if is_age else sum(summed)), name


def test_counters_of_the_rest_do_not_fall_when_a_queue_leaves_it() -> None:
    name = 'forebay_messages_total{kind="pushed",queue="*",tenant="_rest"}'
    count = f"forebay_message_duration_seconds_count{{{REST}}}"
    with Here(http=HttpLimits(metrics_queues_max=1)) as here, here.connect() as client:
        for queue, messages in (("a", 1), ("b", 5), ("c", 3)):
            push(client, queue, *range(messages))
            client.ask({"cmd": "ACK", "ids": [pop(client, queue)["id"]]})
        before = figures(here)
        assert (before[name], before[count]) == (8, 2)
        assert client.ask({"cmd": "QUEUEDELETE", "queue": "b"})["ok"]
        after = figures(here)
        assert (after[name], after[count]) == (8, 2)
        push(client, "c", 1)
        assert figures(here)[name] == 9
        assert figures(here)['forebay_queue_messages{queue="*",state="waiting",tenant="_rest"}'] == 3


def test_the_rest_counts_what_its_queues_did_before_they_left_it_and_what_others_did_since() -> None:
    name = 'forebay_messages_total{kind="pushed",queue="*",tenant="_rest"}'
    with Here(http=HttpLimits(metrics_queues_max=1)) as here, here.connect() as client:
        for queue, messages in (("a", 1), ("b", 5), ("c", 3)):
            push(client, queue, *range(messages))
        assert figures(here)[name] == 8
        push(client, "b", 1, 2)
        push(client, "c", *range(10))
        assert client.ask({"cmd": "QUEUEDELETE", "queue": "b"})["ok"]
        assert figures(here)[name] == 20
        push(client, "b", 1, 2, 3)  # another one
        assert figures(here)[name] == 23


def test_a_queue_that_gets_series_of_its_own_or_loses_them_is_counted_once() -> None:
    name = 'forebay_messages_total{kind="pushed",queue="%s",tenant="%s"}'
    rest = name % ("*", "_rest")
    with Here(http=HttpLimits(metrics_queues_max=1)) as here, here.connect() as client:
        for queue, messages in (("a", 1), ("b", 5), ("c", 3)):
            push(client, queue, *range(messages))
        assert figures(here)[rest] == 8
        assert client.ask({"cmd": "QUEUEDELETE", "queue": "a"})["ok"]
        push(client, "b", 1, 2)
        push(client, "c", 1)
        found = figures(here)
        assert (found[name % ("b", "default")], found[rest]) == (7, 11)
        push(client, "b", 1)
        push(client, "c", 1)
        found = figures(here)
        assert (found[name % ("b", "default")], found[rest]) == (8, 12)


def test_a_queue_that_loses_its_own_series_brings_along_what_they_have_not_told() -> None:
    def measured(*tallies: Tally) -> QueueMeasured:
        sums = [sum(each) for each in zip(*(each.counts for each in tallies), strict=True)]
        total = Tally("", "", sums, [0] * len(tallies[0].times))
        return QueueMeasured("", "", Counts(), None, total, [], list(tallies))

    a, b = (Tally("t", name, [0] * len(EVENT_KINDS), [0] * (len(BUCKETS_MS) + 1)) for name in "ab")
    rest = Rest()

    def told(inside: list[Tally], own: Tally) -> int:
        others = values_of([QueueMeasured("t", own.queue, Counts(), None, own, [])])
        tally = rest.told([measured(*inside)], others).tally
        assert tally is not None
        return tally.counts[0]

    a.counts[0], b.counts[0] = 100, 10
    assert told([b], own=a) == 10
    a.counts[0] += 1
    assert told([a], own=b) == 11
    a.counts[0] += 5
    b.counts[0] += 1
    assert told([b], own=a) == 17


def of_group(found: Figures, what: str, queue: str, group: str, tenant: str = "default") -> float:
    return found[f'forebay_group_{what}{{group="{group}",queue="{queue}",tenant="{tenant}"}}']


def behind(client: Raw, here: Here, queue: str, group: str) -> None:
    """Push four messages, a second between them; the group makes a dead letter of the first."""
    for number in range(4):
        push(client, queue, number)
        here.now += 1_000
    taken = pop(client, queue, group=group)
    client.ask({"cmd": "QUEUE", "queue": queue, "options": {"max_attempts": 1}})
    assert client.ask({"cmd": "NACK", "ids": [taken["id"]], "group": group})["ok"]


def test_a_group_has_its_lag_its_oldest_message_and_its_dead_letters() -> None:
    with Here() as here, here.connect() as client:
        behind(client, here, "q", "audit")
        found = figures(here)
        assert of_group(found, "lag_messages", "q", "audit") == 3
        assert of_group(found, "oldest_seconds", "q", "audit") == 3
        assert of_group(found, "dead_messages", "q", "audit") == 1
        assert not any('group="default"' in name for name in found)
        client.ask({"cmd": "POP", "queue": "q", "group": "audit", "count": 10, "wait_ms": 0})
        found = figures(here)
        assert of_group(found, "lag_messages", "q", "audit") == 0
        assert of_group(found, "oldest_seconds", "q", "audit") == 0


def test_nothing_waits_for_the_group_default_where_only_others_read() -> None:
    with Here() as here, here.connect() as client:
        behind(client, here, "q", "audit")
        behind(client, here, "q", "index")
        client.ask({"cmd": "POP", "queue": "q", "group": "audit", "count": 10, "wait_ms": 0})
        found, queue = figures(here), 'queue="q",tenant="default"'
        assert of_group(found, "lag_messages", "q", "index") == 7
        # The group that is furthest behind stands for the queue.
        assert found['forebay_queue_messages{queue="q",state="waiting",tenant="default"}'] == 7
        assert found[f"forebay_queue_oldest_seconds{{{queue}}}"] == 7
        client.ask({"cmd": "POP", "queue": "q", "group": "index", "count": 10, "wait_ms": 0})
        found = figures(here)
        assert found['forebay_queue_messages{queue="q",state="waiting",tenant="default"}'] == 0
        assert found[f"forebay_queue_oldest_seconds{{{queue}}}"] == 0


def test_groups_without_series_of_their_own_add_up() -> None:
    with Here(http=HttpLimits(metrics_queues_max=2)) as here, here.connect() as client:
        for queue in ("a", "b", "c"):
            behind(client, here, queue, "one")
            behind(client, here, queue, "two")
        found = figures(here)
        own = [
            name for name in found if name.startswith("forebay_group_lag_messages") and "_rest" not in name
        ]
        assert len(own) == 2
        alone = sum(found[name] for name in own)
        assert alone + of_group(found, "lag_messages", "*", "*", "_rest") == 3 * (7 + 7)
        assert of_group(found, "dead_messages", "*", "*", "_rest") == 4
        second_of_b = BEGIN + 8_000 + 1_000
        assert of_group(found, "oldest_seconds", "*", "*", "_rest") == (here.now - second_of_b) / 1_000


def test_a_group_says_since_when_its_oldest_message_waits() -> None:
    with Here() as here, here.connect() as client:
        behind(client, here, "q", "audit")
        (group,) = client.ask({"cmd": "GROUPS", "queue": "q"})["groups"]
        assert (group["counts"]["waiting"], group["counts"]["dead"]) == (3, 1)
        assert group["oldest_at"] == BEGIN + 1_000
        assert client.ask({"cmd": "GROUP", "queue": "q", "group": "audit"})["oldest_at"] == BEGIN + 1_000
        assert client.ask({"cmd": "GROUP", "queue": "q", "group": "none"})["oldest_at"] == BEGIN
        client.ask({"cmd": "POP", "queue": "q", "group": "audit", "count": 10, "wait_ms": 0})
        assert client.ask({"cmd": "GROUP", "queue": "q", "group": "audit"}).get("oldest_at") is None


def test_states_that_most_queues_never_have_are_told_only_if_there_are_such_messages() -> None:
    with Here() as here, here.connect() as client:
        first = push(client, "q", 1, 2)
        cancelled = 'forebay_queue_messages{queue="q",state="cancelled",tenant="default"}'
        assert cancelled not in figures(here)
        assert figures(here)['forebay_queue_messages{queue="q",state="dead",tenant="default"}'] == 0
        assert client.ask({"cmd": "CANCEL", "ids": [first]})["ok"]
        assert figures(here)[cancelled] == 1


def test_nothing_in_a_label_can_be_taken_for_a_figure() -> None:
    """Names of queues are harmless; should they ever not be, they are escaped."""
    core = Core()
    core.push(queue="q")
    ((shard, places),) = (each for each in core.ask(Measure(), Measured).queues.items() if each[1])
    (measured,) = core.ask(MeasureQueues(shard, places), QueuesMeasured).queues
    measured.queue = 'q"} 1\nevil 1'
    text = QueueText(core.now, 1)
    text.add([measured])
    lines = text.text().decode().splitlines()
    assert any('queue="q\\"} 1\\nevil 1"' in line for line in lines)
    assert not any(line.startswith("evil") for line in lines)
