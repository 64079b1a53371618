"""A server in the process of the test: its time obeys, its workers can be waited for."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from forebay.client.aio.client import Client
from forebay.client.tasks.app import App
from forebay.client.tasks.flow import chain, group
from forebay.client.tasks.task import Retry
from forebay.client.worker.worker import Worker
from forebay.testing.server import Server
from forebay.testing.worker import PATIENCE_S


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def app(server: Server) -> App:
    made = App("tests")
    server.attach(made)
    return made


def test_time_stands_still_until_it_jumps(server: Server) -> None:
    client = server.client()
    begun = server.now
    client.push("emails", 1, delay_ms=1)
    assert not client.pop("emails")
    assert server.now == begun
    server.jump(ms=1)
    assert client.pop("emails").payloads == [1]
    assert server.now == begun + 1


def test_time_begins_where_it_is_told_to_and_goes_on_if_it_is_told_to() -> None:
    noon = datetime(2031, 5, 1, 12, tzinfo=UTC)
    with Server(at=noon, going=True) as server:
        server.client().push("emails", 1, delay_ms=20)
        assert server.client().pop("emails", wait_ms=5_000).payloads == [1]
        assert server.now >= noon.timestamp() * 1000 + 20
        server.stand_still()
        assert server.now == server.now
        server.client().push("emails", 2, delay_ms=20)
        server.go_on()
        assert server.client().pop("emails", wait_ms=5_000).payloads == [2]


def test_what_was_pushed_later_is_seen_as_pushed(server: Server, app: App) -> None:
    @app.task
    def noted(number: int) -> None: ...

    for number in range(100):
        noted.push_later(number)
    server.assert_pushed("tests", noted.call(7), times=1)
    noted.push_later(7)
    assert server.work(app) == 101
    server.assert_pushed("tests", noted.call(7), times=2)


def test_a_jump_is_forward(server: Server) -> None:
    with pytest.raises(ValueError, match="forward"):
        server.jump(ms=-1)


def test_delays_leases_retries_and_times_to_live_end_in_a_jump(server: Server) -> None:
    client = server.client()
    client.configure("q", backoff=60_000, max_attempts=3)
    client.push("q", "leased")
    assert client.pop("q", lease_ms=30_000)
    client.push("q", "delayed", delay_ms=3_600_000)
    client.push("brief", "gone", ttl_ms=5_000)
    server.jump(seconds=30)
    assert client.queue("q").groups[0].counts.delayed == 2
    server.jump(minutes=1)
    (again,) = client.pop("q", 10, lease_ms=7_200_000)
    assert (again.payload, again.failures) == ("leased", 1)
    server.jump(hours=1)
    assert client.pop("q").payloads == ["delayed"]
    assert not client.pop("brief")


def test_what_is_due_in_between_happens_at_its_instant_and_in_order(server: Server) -> None:
    client = server.client()
    for ms in (300, 100, 200):
        client.push("q", ms, delay_ms=ms)
    client.set_cron("tick", "ticks", "tock", every_ms=60_000)
    begun = server.now
    got: list[int] = []
    reader = threading.Thread(target=lambda: got.extend(take(server, 3)))
    reader.start()
    server.jump(minutes=3)
    reader.join()
    assert got == [100, 200, 300]
    times = [each.created_at - begun for each in client.records("ticks")]
    assert times == [60_000, 120_000, 180_000]


def take(server: Server, count: int) -> list[int]:
    client = server.client()
    found: list[int] = []
    while len(found) < count:
        batch = client.pop("q", wait_ms=10_000, lease_ms=3_600_000)
        found += batch.payloads
    return found


def test_a_year_of_a_daily_cron_is_a_moment(server: Server) -> None:
    server.client().set_cron("daily", "reports", "report", schedule="0 9 * * *")
    server.jump(days=365)
    assert len(server.pushed("reports")) == 365


def test_who_waits_for_a_result_is_told_when_time_to_live_ends_in_a_jump(server: Server) -> None:
    client = server.client()
    id = client.push("q", 1, ttl_ms=60_000).id
    states: list[str] = []
    waiter = threading.Thread(target=lambda: states.append(server.client().result(id, wait_ms=30_000).state))
    waiter.start()
    while not server._call(lambda: server._node._watchers.count):
        pass
    server.jump(minutes=2)
    waiter.join(PATIENCE_S)
    assert states == ["expired"]


def test_the_client_for_asyncio_and_its_own_worker_work_with_it(server: Server, app: App) -> None:
    @app.task
    async def double(n: int) -> int:
        return 2 * n

    async def ask() -> tuple[int, list[int]]:
        worker = Worker(app)
        running = asyncio.create_task(worker.run())
        job = await double.options(delay_ms=60_000).apush(21)
        await server.ajump(minutes=1)
        result = await job.aresult()
        worker.stop()
        await running
        async with Client(server.http) as client:
            await client.push("other", 1)
            found = (await client.pop("other")).payloads
        await app.aclose()
        return result, found

    assert asyncio.run(ask()) == (42, [1])


def test_work_runs_all_that_is_due_and_says_how_many_jobs_it_did(server: Server, app: App) -> None:
    ran: list[int] = []

    @app.task
    def note(n: int) -> None:
        ran.append(n)
        if n < 3:
            note.push(n + 1)

    note.push(1)
    note.options(delay_ms=60_000).push(10)
    assert server.work(app) == 3
    assert ran == [1, 2, 3]
    assert server.work(app) == 0
    server.jump(minutes=1)
    assert server.work(app) == 1
    server.assert_empty("tests")


def test_chains_and_groups_are_worked_on_to_their_end(server: Server, app: App) -> None:
    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    @app.task(queue="sums")
    async def total(numbers: list[int]) -> int:
        return sum(numbers)

    chained = chain(add.call(1, 2), add.then(10)).push()
    grouped = group([add.call(n, n) for n in range(10)], total.then()).push()
    assert server.work(app) == 13
    assert (chained.result(), grouped.result()) == (13, 90)


def test_what_a_rate_holds_back_is_worked_on_when_time_has_passed(server: Server, app: App) -> None:
    @app.task(rate="1/s")
    def call() -> None: ...

    for _ in range(3):
        call.push()
    assert server.work(app) == 1
    server.jump(seconds=1)
    assert server.work(app) == 1
    with server.working(app), server.working(app, concurrency=1):
        server.jump(seconds=10)
    server.assert_empty("tests")


def test_retries_happen_in_jumps_while_a_worker_works(
    server: Server, app: App, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "forebay.worker")
    times: list[int] = []

    @app.task(retry=Retry(max_attempts=4, base_ms=60_000, jitter=0))
    def flaky() -> None:
        times.append(server.now)
        raise OSError("not now")

    begun = server.now
    with server.working(app):
        flaky.push()
        server.jump(hours=1)
    assert [(each - begun) // 60_000 for each in times] == [0, 1, 3, 7]
    (dead,) = server.dead("tests")
    assert dead.error == "OSError: not now"
    assert dead.payload["task"] == "flaky"


def test_crons_of_an_app_run_at_their_hours_while_a_worker_works() -> None:
    app = App("tests")
    hours: list[float] = []

    @app.task(cron="0 */6 * * *")
    def report() -> None:
        hours.append((server.now - begun) / 3_600_000)

    with Server(app) as server, server.working(app):
        begun = server.now
        server.rest()
        server.jump(days=1)
        assert hours == [6, 12, 18, 24]
    assert app.server is None


def test_a_task_takes_no_time_unless_time_is_to_pass_over_it(
    server: Server, app: App, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "forebay.worker")
    begun, go_on = threading.Event(), threading.Event()
    runs: list[int] = []

    @app.task
    def slow() -> None:
        runs.append(server.now)
        begun.set()
        go_on.wait(20)

    slow.push()
    with server.working(app, concurrency=1):
        assert begun.wait(10)
        started = server.now
        server.jump(wait=False, seconds=31)
        server.jump(wait=False, seconds=1)
        go_on.set()
        server.rest()
    assert runs == [started, started + 32_000]
    assert timedelta(milliseconds=server.now - started) == timedelta(seconds=32)


def test_a_worker_that_can_not_start_says_why(server: Server) -> None:
    app = App("tests", queues={"tests": {"nonsense": 1}})

    @app.task
    def nothing() -> None: ...

    with pytest.raises(Exception, match="nonsense"):
        server.work(app)
