"""The registry of workers: what they tell, and what is shown of it; and who holds a message."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from forebay.core.bounds import NAME_BYTES_MAX
from forebay.core.errors import Busy
from forebay.core.words import WORKER_KINDS
from forebay.logs import TEXT, TextLines
from forebay.server import workers as registry
from forebay.server.worker_news import LINES_MAX, WINDOW_MS
from forebay.server.worker_room import Running, Worker
from forebay.server.workers import GONE_MS, PAGE_BYTES_MAX, SILENT_MS, STOPPED, WORKERS_MAX, Workers
from tests.server.http.streaming import Stream
from tests.server.http.talking import Http
from tests.serving import Raw, Reply, Server, pop, push, refused

NAMES_MAX = 1_000


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000

    def __call__(self) -> int:
        return self.now


class Registry(Workers):
    """A registry whose clock obeys, with what it told."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.told: list[tuple[str, str]] = []
        super().__init__(self.clock, None, lambda kind, worker, at: self.told.append((kind, worker.name)))

    def hear(self, name: str, *running: int, tenant: str = "default", **more: Any) -> None:
        now = self.clock.now
        jobs = [Running(each, "send", now) for each in running]
        more = {"started_at": now, "seen_at": now, "running": jobs, "patience_ms": SILENT_MS, **more}
        self.beat(Worker(tenant=tenant, name=name, **more))

    def states(self, tenant: str = "default") -> dict[str, str]:
        return {each.name: each.state for each in self.page(tenant, None, None, 100)[0]}


def test_a_silent_worker_is_gone_is_told_once_and_is_forgotten_later() -> None:
    workers = Registry()
    workers.hear("a")
    workers.clock.now += SILENT_MS
    assert workers.states() == {"a": "working"}
    workers.clock.now += 1
    assert workers.states() == {"a": "gone"}
    assert (workers.count, workers.figures()) == (0, {})
    workers.clock.now += GONE_MS - 1
    assert workers.states() == {"a": "gone"}
    workers.clock.now += 2
    assert workers.states() == {}
    assert workers.told == [("worker_started", "a"), ("worker_gone", "a")]


def test_a_worker_that_was_gone_and_is_heard_again_has_started_again() -> None:
    workers = Registry()
    workers.hear("a")
    workers.clock.now += SILENT_MS + 1
    assert workers.states() == {"a": "gone"}
    workers.clock.now += WINDOW_MS
    workers.hear("a")
    assert workers.states() == {"a": "working"}
    assert [kind for kind, _ in workers.told] == ["worker_started", "worker_gone", "worker_started"]


def test_another_process_of_the_same_name_takes_its_place() -> None:
    workers = Registry()
    workers.hear("a", pid=1)
    workers.clock.now += WINDOW_MS
    workers.hear("a", pid=1)
    workers.hear("a", pid=2)
    assert [kind for kind, _ in workers.told] == ["worker_started", "worker_started"]
    assert [each.pid for each in workers.active()] == [2]


def test_a_goodbye_is_told_once_and_only_of_a_worker_that_was_there() -> None:
    workers = Registry()
    workers.hear("a", 7)
    workers.clock.now += WINDOW_MS
    for _ in range(2):
        workers.hear("a", state=STOPPED)
    assert workers.states() == {}
    assert workers.told == [("worker_started", "a"), ("worker_stopped", "a")]


def test_the_goodbye_of_another_process_of_the_same_name_does_not_count() -> None:
    workers = Registry()
    workers.hear("a", host="h", pid=1)
    workers.hear("a", host="h", pid=2, state=STOPPED)
    workers.hear("a", host="g", pid=1, state=STOPPED)
    assert workers.states() == {"a": "working"}
    assert workers.told == [("worker_started", "a")]
    workers.hear("a", host="h", pid=1, state=STOPPED)
    assert workers.states() == {}


def test_a_tenant_sees_its_own_workers_only() -> None:
    workers = Registry()
    workers.hear("a", 7)
    workers.hear("a", 7, tenant="other")
    workers.hear("b", tenant="other", running_count=5)
    assert (workers.states(), workers.states("other")) == ({"a": "working"}, {"a": "working", "b": "working"})
    assert workers.figures() == {"default": (1, 0), "other": (2, 5)}


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, int]]:
    """Return the lines about workers, and how many others each stands for."""
    return [(each.getMessage(), each.fields.get("more", 0)) for each in caplog.records]  # type: ignore[attr-defined]


@pytest.mark.parametrize("flood", ["processes", "goodbyes"])
def test_a_worker_is_told_of_at_most_about_once_a_second_and_how_it_ended_at_last(
    flood: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "forebay.workers")
    workers = Registry()
    for number in range(1_000):
        workers.hear("a", pid=number % 2 if flood == "processes" else 0)
        if flood == "goodbyes":
            workers.hear("a", state=STOPPED)
    assert workers.told == [("worker_started", "a")]
    assert said(caplog) == [("worker started", 0)]
    workers.clock.now += WINDOW_MS
    workers.hear("b")
    last = "worker_started" if flood == "processes" else "worker_stopped"
    assert workers.told[1:] == [(last, "a"), ("worker_started", "b")]
    left_out = [(line, more) for line, more in said(caplog) if more]
    assert {line for line, _ in left_out} <= {
        f"worker {kind}, more of the kind" for kind in ("started", "stopped")
    }
    assert sum(more for _, more in left_out) == (998 if flood == "processes" else 1_998)


def test_very_many_workers_of_a_tenant_are_told_of_in_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "forebay.workers")
    workers = Registry()
    for number in range(LINES_MAX + 50):
        workers.hear(f"w{number}", tenant="many")
    workers.hear("a")
    assert len(workers.told) == LINES_MAX + 51
    assert said(caplog) == [("worker started", 0)] * (LINES_MAX + 1)
    workers.clock.now += WINDOW_MS
    workers.hear("b")
    assert said(caplog)[LINES_MAX + 1 :] == [("worker started, more of the kind", 50), ("worker started", 0)]


def test_a_tenant_that_fills_the_list_gives_up_workers_for_one_that_has_fewer() -> None:
    workers = Registry()
    for number in range(WORKERS_MAX):
        workers.hear(f"w{number}", tenant="greedy")
    with pytest.raises(Busy):
        workers.hear("more", tenant="greedy")
    workers.hear("a", tenant="modest")
    assert workers.figures() == {"greedy": (WORKERS_MAX - 1, 0), "modest": (1, 0)}
    assert workers.page("greedy", None, None, 1)[0][0].name == "w1"  # w0 was silent for longest
    for number in range(1, WORKERS_MAX):
        with suppress(Busy):
            workers.hear(f"a{number}", tenant="modest")
    assert {tenant: count for tenant, (count, _) in workers.figures().items()} == {
        "greedy": WORKERS_MAX // 2,
        "modest": WORKERS_MAX // 2,
    }


def lists(number: int) -> dict[str, Any]:
    """Return as much as a worker may tell."""
    queues, tasks = ([f"{kind}-{number}-{each}".ljust(256, "x") for each in range(1_000)] for kind in "qt")
    return {"queues": dict.fromkeys(queues), "tasks": dict.fromkeys(tasks)}


def test_the_list_is_bounded_by_its_bytes_and_no_tenant_keeps_another_out() -> None:
    workers = Registry()
    for number in range(200):
        with suppress(Busy):
            workers.hear(f"w{number}", tenant="greedy", **lists(number))
    (count, _) = workers.figures()["greedy"]
    assert 10 < count < 200
    workers.hear("a", tenant="modest", **lists(0))
    assert workers.states("modest") == {"a": "working"}
    workers.hear("w1", tenant="greedy")  # it tells less, so there is room again
    workers.hear("late", tenant="greedy")
    assert workers.figures()["greedy"][0] in (count, count + 1)


def test_a_worker_whose_beat_has_no_room_is_not_taken_for_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Registry()
    workers.hear("a")
    monkeypatch.setattr(registry, "BYTES_MAX", 5_000)
    workers.clock.now += SILENT_MS
    with pytest.raises(Busy):
        workers.hear("a", **lists(0))
    workers.clock.now += SILENT_MS
    assert workers.states() == {"a": "working"}


def test_lists_that_workers_share_are_kept_and_counted_once_a_tenant() -> None:
    workers = Registry()
    for number in range(1_000):
        workers.hear(f"w{number}", **lists(0))
    first, last = (workers.page("default", None, name, 1)[0][0] for name in ("w0", "w998"))
    assert first.queues is last.queues
    assert first.tasks is last.tasks
    for number in range(1_000):
        workers.hear(f"w{number}", state=STOPPED)
    assert workers.figures() == {}
    for number in range(10):
        workers.hear(f"w{number}", **lists(number))
    assert workers.count == 10


def test_a_page_is_bounded_by_its_bytes_and_all_pages_show_all_workers() -> None:
    workers = Registry()
    for number in range(20):
        workers.hear(f"w{number:02}", **lists(0))
    seen: list[str] = []
    more, pages = True, 0
    while more:
        found, more = workers.page("default", None, seen[-1] if seen else None, 1_000)
        assert len(found) == 1 or sum(each.shown_bytes for each in found) <= PAGE_BYTES_MAX
        seen += [each.name for each in found]
        pages += 1
    assert seen == [f"w{number:02}" for number in range(20)]
    assert pages > 5
    assert len(workers.latest()) < 10


def test_silence_is_noticed_though_nobody_asks() -> None:
    async def life() -> list[str]:
        told: list[str] = []
        clock = Clock()
        gone = asyncio.Event()

        def tell(kind: str, worker: Worker, at: int) -> None:
            told.append(kind)
            if kind == "worker_gone":
                gone.set()

        workers = Workers(clock, asyncio.get_running_loop(), tell)
        workers.beat(Worker(name="a", started_at=clock.now, seen_at=clock.now, patience_ms=SILENT_MS))
        clock.now += SILENT_MS + 1
        async with asyncio.timeout(30):
            await gone.wait()
        workers.close()
        return told

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("forebay.server.workers.SWEEP_S", 0.01)
        assert asyncio.run(life()) == ["worker_started", "worker_gone"]


def test_what_a_worker_calls_itself_ends_no_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "forebay.workers")
    workers = Registry()
    workers.hear("a\n2026-11-18 ERROR forged\x1b[2J\u202e", host="h\nforged")
    (line,) = map(TextLines(TEXT).format, caplog.records)
    assert line.isprintable()
    assert line.endswith(
        ' forebay.workers: worker started worker="a\\n2026-11-18 ERROR forged\\u001b[2J\\u202e"'
        ' host="h\\nforged" tenant=default'
    )


# Over the wire.


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[Raw]:
    with server.connect() as connection:
        yield connection


def named(client: Raw, **fields: Any) -> list[str]:
    reply = client.ask({"cmd": "WORKERS", **fields})
    assert reply["ok"], reply
    return [each["name"] for each in reply["workers"]]


def test_what_a_worker_tells_is_listed_until_it_says_goodbye(client: Raw) -> None:
    said: dict[str, Any] = {
        "name": "told",
        "host": "web-3",
        "pid": 4711,
        "version": "1.2",
        "group": "audit",
        "queues": ["told-a", "told-b"],
        "tasks": ["send"],
        "concurrency": 4,
        "done": 9,
        "failed": 2,
    }
    running = [{"id": 7, "task": "send", "for_ms": 5_000}]
    assert client.ask({"cmd": "WORKER", **said, "up_ms": 60_000, "running": running}) == {"ok": True}
    (shown,) = client.ask({"cmd": "WORKERS", "queue": "told-b"})["workers"]
    assert {name: shown[name] for name in said} == said
    assert shown["state"] == "working"
    assert shown["seen_at"] - shown["started_at"] == 60_000
    assert shown["running"] == [{"id": 7, "task": "send", "since": shown["seen_at"] - 5_000}]
    assert shown["running_count"] == 1
    client.ask({"cmd": "WORKER", **said, "state": "draining"})
    (shown,) = client.ask({"cmd": "WORKERS", "queue": "told-b"})["workers"]
    assert shown["state"] == "draining"
    client.ask({"cmd": "WORKER", **said, "state": "stopped"})
    assert named(client, queue="told-b") == []


def test_workers_are_listed_page_by_page(client: Raw) -> None:
    for name in "cab":
        client.ask({"cmd": "WORKER", "name": f"page-{name}", "queues": ["pages"]})
    first = client.ask({"cmd": "WORKERS", "queue": "pages", "limit": 2})
    assert ([each["name"] for each in first["workers"]], first["more"]) == (["page-a", "page-b"], True)
    last = client.ask({"cmd": "WORKERS", "queue": "pages", "limit": 2, "after": "page-b"})
    assert ([each["name"] for each in last["workers"]], last["more"]) == (["page-c"], False)


@pytest.mark.parametrize(
    ("field", "most", "past"),
    [
        ("name", "n" * NAME_BYTES_MAX, "n" * (NAME_BYTES_MAX + 1)),
        ("name", "n", ""),
        ("name", 'é "=%0a', "a\nb"),
        ("name", "n", "a\x1b[31m"),
        ("name", "n", "a\u202eb"),
        ("host", "h" * 256, "h" * 257),
        ("version", "v" * 256, "v" * 257),
        ("state", "draining", "gone"),
        ("queues", ["q"] * NAMES_MAX, ["q"] * (NAMES_MAX + 1)),
        ("queues", ["q"], ["no such/queue"]),
        ("tasks", ["t" * 256] * NAMES_MAX, ["t"] * (NAMES_MAX + 1)),
        ("tasks", ["t" * 256], ["t" * 257]),
        ("running", [{"id": 1}] * 100, [{"id": 1}] * 101),
        ("running", [{"id": "5"}], [{"id": "x"}]),
        ("running", [{"id": 1, "for_ms": 0}], [{"id": 1, "for_ms": -1}]),
        ("pid", (1 << 53) - 1, 1 << 53),
        ("concurrency", 0, -1),
        ("up_ms", 0, -1),
        ("done", 0, -1),
        ("failed", 0, -1),
        ("running_count", 0, -1),
    ],
)
def test_what_a_worker_tells_has_a_bound(client: Raw, field: str, most: Any, past: Any) -> None:
    said = {"cmd": "WORKER", "name": "bounded"}
    assert client.ask({**said, field: most})["ok"]
    assert refused(client.ask({**said, field: past}), "invalid", field)


def test_a_leased_message_shows_since_when_until_when_and_by_whom(server: Server, client: Raw) -> None:
    id = push(client, "held", 1)
    with server.connect() as consumer:
        client.ask({"cmd": "WORKER", "name": "holder", "queues": ["held"]})
        leased = pop(consumer, "held", lease_ms=60_000, worker="holder")
        state: Reply = client.ask({"cmd": "STATE", "id": id})
        assert state["lease_until"] - state["leased_at"] == 60_000
        assert state["lease_until"] == leased["expires_at"]
        assert state["holder"] == "holder"
        for asked in ({"cmd": "MESSAGE", "id": id}, {"cmd": "BROWSE", "queue": "held"}):
            answer = client.ask(asked)
            (seen,) = answer.get("messages", [answer])
            assert [seen[name] for name in ("leased_at", "lease_until", "holder")] == [
                state["leased_at"],
                state["lease_until"],
                "holder",
            ]
        client.ask({"cmd": "ACK", "lease": leased["lease"], "ids": [id]})
    assert client.ask({"cmd": "STATE", "id": id}).keys().isdisjoint(["leased_at", "lease_until", "holder"])


def test_a_consumer_that_does_not_tell_its_name_is_no_holder(server: Server, client: Raw) -> None:
    id = push(client, "unheld", 1, 2)
    pop(client, "unheld")
    pop(client, "unheld", worker="unlisted")
    states: list[Reply] = [client.ask({"cmd": "STATE", "id": each}) for each in (id, id + 1)]
    assert [(each["state"], each.get("holder")) for each in states] == [
        ("active", None),
        ("active", "unlisted"),
    ]


def test_the_holder_is_who_popped_whoever_says_that_it_runs_the_message(server: Server, client: Raw) -> None:
    with Http(server.http) as http:
        id = push(client, "held-http", 1, 2)
        http.pop("held-http")
        http.pop("held-http", worker="near")
        http.post("/v1/workers", name="far", running=[{"id": id}, {"id": id + 1}])
        states = [http.get(f"/v1/messages/{each}/state") for each in (id, id + 1)]
        assert [each.get("holder") for each in states] == [None, "near"]
        (shown,) = (each for each in http.get("/v1/workers", limit=1000)["workers"] if each["name"] == "far")
        assert [each["id"] for each in shown["running"]] == [id, id + 1]


def test_streams_are_told_of_workers_unless_they_ask_for_queues(server: Server, client: Raw) -> None:
    with (
        Stream(server.http, "/v1/events?kind=worker_started&kind=worker_stopped") as stream,
        Stream(server.http, "/v1/events?queue=streamed") as other,
    ):
        stream.ready(), other.ready()
        client.ask({"cmd": "WORKER", "name": "streamed", "host": "h", "queues": ["streamed"]})
        client.ask({"cmd": "WORKER", "name": "streamed", "host": "h", "state": "stopped"})
        push(client, "streamed", 1)
        told: list[Any] = []
        while len(told) < 2:  # those of other tests may come in between
            kind = ("worker_started", "worker_stopped")[len(told)]
            told += [each.told for each in stream.until(kind) if each.told.get("worker") == "streamed"]
        assert [(each["kind"], each["worker"], each["host"]) for each in told] == [
            ("worker_started", "streamed", "h"),
            ("worker_stopped", "streamed", "h"),
        ]
        assert not {each.name for each in other.until("pushed")} & set(WORKER_KINDS)


def test_a_poll_that_waits_hears_of_a_worker_and_a_webhook_can_not(server: Server, client: Raw) -> None:
    after = client.ask({"cmd": "EVENTS"})["after"]
    with server.connect() as other:
        asked = {"cmd": "EVENTS", "kinds": ["worker_started"], "after": after, "wait_ms": 30_000}
        client.send({**asked, "reqId": 1})
        client.send({"cmd": "STATS", "reqId": 2})
        assert client.receive()["reqId"] == 2  # the poll waits by now
        other.ask({"cmd": "WORKER", "name": "polled"})
        (told,) = client.receive()["events"]
    assert (told["kind"], told["worker"]) == ("worker_started", "polled")
    hook = {"cmd": "WEBHOOKPUT", "url": "http://127.0.0.1:9/", "kinds": ["worker_gone"]}
    assert refused(client.ask(hook), "invalid", "kinds")


def test_workers_and_their_jobs_are_figures(client: Raw) -> None:
    with Server("--store", "memory:") as server, server.connect() as own, Http(server.http) as http:
        assert 'forebay_workers{tenant="default"}' not in http.ask("GET", "/metrics").body.decode()
        own.ask({"cmd": "WORKER", "name": "a", "running": [{"id": 1}], "running_count": 150})
        own.ask({"cmd": "WORKER", "name": "b", "running": [{"id": 2}]})
        text = http.ask("GET", "/metrics").body.decode()
    assert 'forebay_workers{tenant="default"} 2.0' in text
    assert 'forebay_worker_jobs_running{tenant="default"} 151.0' in text
