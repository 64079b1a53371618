"""Faults on demand, and what a test can see of a server afterwards."""

import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import ANY

import pytest
from msgspec import Struct

from forebay.client.errors import Disconnected
from forebay.client.tasks.app import App
from forebay.client.tasks.flow import chain
from forebay.client.worker.current import current
from forebay.core.errors import Busy, Conflict
from forebay.testing.server import Server


@pytest.fixture
def server(caplog: pytest.LogCaptureFixture) -> Iterator[Server]:
    caplog.set_level(logging.CRITICAL, "forebay")
    with Server() as server:
        yield server


def test_what_is_leased_is_delivered_once_more(server: Server) -> None:
    client = server.client()
    client.push("q", "work")
    first = client.pop("q")
    assert server.redeliver("q") == 1
    again = client.pop("q")
    assert again.payloads == ["work"]
    assert again[0].failures == 1
    with pytest.raises(Conflict):
        client.ack(first)
    client.ack(again)
    server.assert_empty("q")


def test_leases_are_lost_and_messages_wait_for_their_backoff(server: Server) -> None:
    client = server.client()
    for queue in ("a", "b"):
        client.configure(queue, backoff=5_000)
        client.push(queue, 1)
        client.pop(queue)
    assert server.lose_leases("a") == 1
    assert [each.state for each in server.left("a")] == ["delayed"]
    assert [each.state for each in server.left("b")] == ["active"]
    assert server.lose_leases() == 1
    server.jump(seconds=5)
    assert client.pop("a").payloads == client.pop("b").payloads == [1]


def test_a_worker_whose_lease_is_lost_does_not_settle_and_the_job_runs_again(server: Server) -> None:
    app = App("tests")
    begun, go_on = threading.Event(), threading.Event()
    runs: list[int] = []

    @app.task(backoff=0)
    def work() -> int:
        runs.append(len(runs))
        begun.set()
        go_on.wait(20)
        return len(runs)

    with server.working(app):
        job = work.push()
        assert begun.wait(10)
        server.lose_leases("tests")
        go_on.set()
        server.rest()
        assert job.result() == 2
    assert runs == [0, 1]


def test_pushes_are_busy_while_the_store_fails_and_nothing_of_them_is_kept(server: Server) -> None:
    hasty, patient = server.client(retry_s=0), server.client()
    server.fail_commits(1)
    with pytest.raises(Busy):
        hasty.push("q", 1)
    hasty.push("q", 2)
    server.fail_commits(1)
    patient.push("q", 3)
    with server.failing():
        for _ in range(3):
            with pytest.raises(Busy):
                hasty.push("q", 4)
    hasty.push("q", 5)
    assert server.pushed("q") == [2, 3, 5]


def test_commits_take_as_long_as_they_are_told_to(server: Server) -> None:
    hasty = server.client(timeout_s=0.8, retry_s=0)
    hasty.push("q", 1)
    with server.slow(1_600), pytest.raises(Disconnected):
        hasty.push("q", 2)
    server.client().push("q", 3)


def test_a_client_goes_on_when_its_connections_are_cut(server: Server) -> None:
    for client in (server.client(), server.client(http=True)):
        client.push("q", 1)
        server.cut()
        client.push("q", 2)
    assert server.pushed("q") == [1, 2, 1, 2]


def test_a_restart_keeps_what_was_confirmed_and_leases_live_on(server: Server) -> None:
    client = server.client()
    client.push("q", 1)
    client.push("later", 2, delay_ms=60_000)
    batch = client.pop("q")
    addresses = server.tcp, server.http
    server.restart()
    assert (server.tcp, server.http) == addresses
    client.ack(batch)
    server.assert_empty("q")
    server.jump(minutes=1)
    assert client.pop("later").payloads == [2]
    assert server.pushed("q") == [1]
    assert server.pushed("later") == [2]


def test_a_worker_works_on_over_a_cut_and_a_restart(server: Server) -> None:
    app = App("tests")

    @app.task
    def double(n: int) -> int:
        return 2 * n

    with server.working(app):
        assert double.push(1).result() == 2
        server.cut()
        assert double.push(2).result() == 4
        server.restart()
        assert double.push(3).result() == 6


# What was pushed, what is left.


def test_what_was_pushed_is_known_whatever_became_of_it(server: Server) -> None:
    client = server.client()
    client.push("emails", {"to": "ada"})
    client.push_many("emails", [{"to": "bob"}, {"to": "eve"}])
    client.ack(client.pop("emails", 3))
    server.jump(days=2)
    client.delete_queue("emails", force=True)
    client.push("emails", {"to": "joe"})
    assert server.pushed("emails") == [{"to": "ada"}, {"to": "bob"}, {"to": "eve"}, {"to": "joe"}]
    assert server.pushed("nothing") == []


def test_more_is_known_than_is_read_at_a_time(server: Server) -> None:
    server.client().push_many("many", range(5_000))
    assert server.pushed("many") == list(range(5_000))


def test_a_push_is_asserted_by_its_payload_a_part_of_it_or_its_call(server: Server) -> None:
    app = App("tests")

    @app.task
    def send(to: str) -> None: ...

    server.attach(app)
    send.push("ada")
    server.client().push("emails", {"to": "ada", "at": 5})
    server.assert_pushed("emails", {"to": "ada", "at": 5}, times=1)
    server.assert_pushed("emails", {"to": "ada", "at": ANY})
    server.assert_pushed("emails", times=1)
    server.assert_pushed("tests", send.call("ada"))
    server.assert_not_pushed("tests", send.call("bob"))
    server.assert_not_pushed("other")


def test_a_call_is_asserted_however_its_arguments_were_given_and_with_some_that_do_not_matter(
    server: Server,
) -> None:
    app = App("tests")

    @app.task
    def locate(at: tuple[int, int], *more: str, scale: int = 1, **tags: str) -> None: ...

    @app.task
    def tell(place: str, how: str) -> None: ...

    server.attach(app)
    chain(locate.call((1, 2), "a", scale=3, b="c"), tell.then("loudly")).push()
    server.client().push("tests", {"task": "locate", "args": []})
    for call in (
        locate,
        locate.call((1, 2), "a", scale=3, b="c"),
        locate.call(ANY, "a", scale=3, b="c"),
        locate.call((1, ANY), ANY, scale=3, b=ANY),
        tell.then("loudly"),
        tell.then(ANY),
    ):
        server.assert_pushed("tests", call)
        with pytest.raises(AssertionError):
            server.assert_not_pushed("tests", call)
    for call in (locate.call((1, 2), "a", scale=4, b=ANY), locate.call(at=(1, 2)), tell.then(how="softly")):
        server.assert_not_pushed("tests", call)
    with pytest.raises(AssertionError, match=r"^locate\(\(1, 3\), scale=<ANY>\) was to be pushed"):
        server.assert_pushed("tests", locate.call((1, 3), scale=ANY))
    locate.push(at=(5, 6), scale=1)
    server.assert_pushed("tests", locate.call((5, 6)), times=1)


@dataclass
class Point:
    x: int
    y: Any


class Named(Struct, rename="upper"):
    name: Any
    point: Point


@pytest.mark.parametrize(
    ("pushed", "expected", "other"),
    [
        (Point(1, 2), Point(1, ANY), Point(2, ANY)),
        (Named("a", Point(1, 2)), Named(ANY, Point(1, 2)), Named(ANY, Point(2, 2))),
        ({1: 2, "b": [3, 4]}, {1: ANY, "b": (3, ANY)}, {2: ANY, "b": ANY}),
    ],
)
def test_a_payload_of_any_kind_may_have_a_part_that_does_not_matter(
    server: Server, pushed: Any, expected: Any, other: Any
) -> None:
    server.client().push("q", pushed)
    for payload in (pushed, expected):
        server.assert_pushed("q", payload, times=1)
        with pytest.raises(AssertionError):
            server.assert_not_pushed("q", payload)
    server.assert_not_pushed("q", other)


def test_a_job_whose_lines_are_refused_goes_on_and_one_warning_says_so(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    app = App("tests")

    @app.task(retry=1)
    def render(film: str) -> str:
        with server.failing():
            current().log("begun")
            current().log("done")
        return film

    caplog.set_level(logging.WARNING, "forebay.worker")
    server.attach(app)
    jobs = [render.push("a"), render.push("b")]
    assert server.work(app) == 2
    assert [job.result() for job in jobs] == ["a", "b"]
    told = [each.getMessage() for each in caplog.records if "are dropped" in each.getMessage()]
    assert len(told) == 1


def test_what_push_later_buffered_is_there_before_a_look_and_before_a_jump(server: Server) -> None:
    app = App("tests")

    @app.task(retry=1)
    def send(to: str) -> None:
        raise ValueError(to)

    server.attach(app)
    for number in range(20):
        send.push_later("ada")
        assert len(server.left("tests")) == number + 1
    send.options(delay_ms=2_000).push_later("bob")
    server.jump(seconds=2)
    assert server.work(app) == 21
    assert len(server.dead("tests")) == 21


def test_bytes_are_asserted_as_bytes(server: Server) -> None:
    server.client().push_many("files", [b"\x00\xff", "AP8="])
    assert server.pushed("files") == [b"\x00\xff", "AP8="]
    server.assert_pushed("files", bytearray(b"\x00\xff"), times=1)
    server.assert_pushed("files", "AP8=", times=1)
    server.assert_not_pushed("files", b"AP8=")


def test_a_failed_assertion_shows_what_was_pushed_instead(server: Server) -> None:
    server.client().push("emails", {"to": "bob"})
    server.client().push("letters", 1)
    with pytest.raises(AssertionError) as told:
        server.assert_pushed("emails", {"to": "ada"}, times=1)
    assert str(told.value).splitlines() == [
        "{'to': 'ada'} was to be pushed to 'emails', and 0 times, not once. Pushed were:",
        "  {'to': 'bob'}",
        "There were pushes to 'letters'.",
    ]
    with pytest.raises(AssertionError, match="was pushed to"):
        server.assert_not_pushed("emails")


def test_a_queue_is_empty_when_nothing_waits_is_delayed_or_leased(server: Server) -> None:
    client = server.client()
    server.assert_empty("q")
    client.push("q", 1, max_attempts=1)
    client.push("q", 2, delay_ms=1_000)
    client.pop("q")
    with pytest.raises(AssertionError, match=r"(?s)2 left.*delayed: 2.*active: 1"):
        server.assert_empty("q")
    server.lose_leases()
    server.jump(seconds=1)
    client.ack(client.pop("q"))
    server.assert_empty("q")
    assert [each.payload for each in server.dead("q")] == [1]
    assert server.dead("nothing") == []
