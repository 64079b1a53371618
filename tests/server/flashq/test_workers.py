"""Workers are counted, connections are not."""

import pytest

from forebay.core.errors import Busy
from forebay.server.workers import ACTIVE_MS, QUEUES_MAX, WORKERS_MAX, Workers
from tests.server.flashq_http.talking import DoorServer


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000

    def __call__(self) -> int:
        return self.now


def test_a_connection_that_pulls_is_a_worker_until_it_ends() -> None:
    workers = Workers(Clock())
    workers.pulled(1, "a")
    workers.pulled(1, "b")
    workers.pulled(2, "a")
    assert [(each.name, list(each.queues)) for each in workers.active()] == [
        ("tcp-1", ["a", "b"]),
        ("tcp-2", ["a"]),
    ]
    workers.left(1)
    workers.left(3)
    assert workers.count == 1


def test_a_worker_that_is_not_heard_of_does_not_count() -> None:
    clock = Clock()
    workers = Workers(clock)
    workers.pulled(1, "a")
    clock.now += ACTIVE_MS
    assert workers.count == 1
    clock.now += 1
    assert workers.count == 0
    workers.pulled(1, "a")
    assert workers.count == 1


def test_a_worker_may_report_by_itself() -> None:
    workers = Workers(Clock())
    workers.report("w", ["a"], concurrency=4, done=7)
    workers.report("w", ["a"], concurrency=4, done=9)
    (worker,) = workers.active()
    assert (worker.name, worker.concurrency, worker.done) == ("w", 4, 9)


def test_only_so_many_workers_are_remembered_and_those_gone_make_room() -> None:
    clock = Clock()
    workers = Workers(clock)
    for number in range(WORKERS_MAX):
        workers.report(f"w{number}", [])
    with pytest.raises(Busy):
        workers.report("late", [])
    workers.pulled(1, "a")
    workers.report("w0", [])
    assert workers.count == WORKERS_MAX
    clock.now += ACTIVE_MS + 1
    workers.report("late", [])
    workers.pulled(1, "a")
    assert [each.name for each in workers.active()] == ["late", "tcp-1"]


def test_only_so_many_queues_of_a_worker_are_remembered() -> None:
    workers = Workers(Clock())
    for number in range(QUEUES_MAX + 5):
        workers.pulled(1, f"q{number}")
    (worker,) = workers.active()
    assert list(worker.queues) == [f"q{number}" for number in range(QUEUES_MAX)]


def test_a_queue_that_can_not_be_makes_no_worker() -> None:
    workers = Workers(Clock())
    for name in ("", "no such/queue", "q" * 257):
        workers.pulled(1, name)
    assert workers.count == 0
    workers.pulled(1, "q")
    workers.pulled(1, "x" * 1_000_000)
    assert [list(each.queues) for each in workers.active()] == [["q"]]


def test_a_connection_that_pulled_a_job_is_its_holder() -> None:
    with DoorServer() as server, server.connect_door() as door, server.connect() as client:
        job = door.ask({"cmd": "PUSH", "queue": "held", "data": 1})["id"]
        door.ask({"cmd": "PULL", "queue": "held"})
        (worker,) = client.ask({"cmd": "WORKERS", "queue": "held"})["workers"]
        assert worker["name"].startswith("tcp-")
        assert client.ask({"cmd": "STATE", "id": job})["holder"] == worker["name"]
