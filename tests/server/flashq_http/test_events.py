"""Events of jobs, as server-sent events and over WebSockets: one per job, with what is known of it."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import msgspec
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from forebay.server.events.hub import Listener, Wanted
from forebay.server.flashq.commands.notes import Partial
from forebay.server.flashq.web.feed import (
    PENDING_BYTES_MAX,
    PENDING_MAX,
    TOO_FAST,
    Feed,
    Interest,
    Noted,
    Pending,
)
from tests.server.flashq_http.talking import Door, DoorServer
from tests.server.http.streaming import Stream
from tests.serving import PATIENCE_S

Told = dict[str, Any]


def stream(served: DoorServer, path: str) -> Stream:
    """A stream that listens already."""
    return Stream(served.door, path).ready()


@contextmanager
def socket(served: DoorServer, path: str) -> Iterator[ClientConnection]:
    with connect(f"ws://{served.door}{path}", open_timeout=PATIENCE_S, close_timeout=1) as found:
        yield found


def take(found: ClientConnection, count: int) -> list[Told]:
    return [json.loads(found.recv(PATIENCE_S)) for _ in range(count)]


def test_a_life_is_told_event_by_event(served: DoorServer, door: Door, queue: str) -> None:
    with stream(served, f"/events/{queue}") as events:
        job = door.push_job(queue, {"a": 1})
        door.pull_job(queue)
        door.data("POST", f"/jobs/{job}/progress", {"progress": 50, "message": "half"})
        door.data("POST", f"/jobs/{job}/partial", {"data": ["tok"]})
        door.data("POST", f"/jobs/{job}/ack", {"result": {"b": 2}})
        found = events.take(4)
    assert [each.name for each in found] == ["pushed", "progress", "partial", "completed"]
    told = {each.name: each.told for each in found}
    for name, each in told.items():
        assert (each["event"], each["event_type"]) == (f"job:{name}", name)
        assert (each["queue"], each["job_id"]) == (queue, job)
        assert isinstance(each["timestamp"], int)
    assert told["pushed"]["data"] == {"a": 1}
    assert told["progress"]["progress"] == 50
    assert told["partial"]["data"] == ["tok"]
    assert told["completed"]["data"] == {"b": 2}
    assert told["completed"]["duration_ms"] >= 0


def test_a_failure_is_told_with_its_error_once_the_job_is_dead(
    served: DoorServer, door: Door, queue: str
) -> None:
    with stream(served, f"/queues/{queue}/events") as events:
        job = door.push_job(queue, 1, max_attempts=2)
        for error in ("first", "second"):
            door.pull_job(queue)
            door.data("POST", f"/jobs/{job}/fail", {"error": error})
        found = events.take(2)
    assert [each.name for each in found] == ["pushed", "failed"]
    assert found[1].told["error"] == "second"


def test_a_job_that_runs_out_of_time_is_told_as_that(served: DoorServer, door: Door, queue: str) -> None:
    with stream(served, f"/events/{queue}") as events:
        job = door.push_job(queue, 1, timeout=1, max_attempts=3)
        door.pull_job(queue)
        found = events.take(2)
    assert [each.name for each in found] == ["pushed", "timeout"]
    assert (found[1].told["job_id"], found[1].told["event"]) == (job, "job:timeout")


def test_a_batch_is_told_job_by_job(served: DoorServer, door: Door, queue: str) -> None:
    with stream(served, "/events") as events, socket(served, f"/ws/{queue}") as frames:
        ids = door.data("POST", f"/queues/{queue}/jobs/batch", {"jobs": [{"data": n} for n in range(500)]})
        mine = [each.told for each in events.take(500)]
        assert [(each["job_id"], each["data"]) for each in mine] == list(zip(ids, range(500), strict=True))
        assert take(frames, 500) == mine


def test_events_of_one_job_and_of_some_types(served: DoorServer, door: Door, queue: str) -> None:
    first, second = door.push_job(queue, 1), door.push_job(queue, 2)
    path = f"/events/job/{second}?events=progress,completed"
    with stream(served, path) as events:
        for job in (first, second):
            door.pull_job(queue)
            door.data("POST", f"/jobs/{job}/progress", {"progress": 10})
            door.data("POST", f"/jobs/{job}/partial", {"data": 1})
            door.data("POST", f"/jobs/{job}/ack", {})
        found = [each.told for each in events.take(2)]
    assert [(each["event_type"], each["job_id"]) for each in found] == [
        ("progress", second),
        ("completed", second),
    ]


def test_progress_over_tcp_is_told_over_http(served: DoorServer, door: Door, queue: str) -> None:
    job = door.push_job(queue, 1)
    door.pull_job(queue)
    with stream(served, f"/events/job/{job}") as events, served.connect_door() as tcp:
        assert tcp.ask({"cmd": "PROGRESS", "id": job, "progress": 7})["ok"]
        assert events.next().told["progress"] == 7
        assert tcp.ask({"cmd": "PARTIAL", "id": job, "data": {"a": "b"}})["ok"]
        assert events.next().told["data"] == {"a": "b"}


@pytest.mark.parametrize("path", ["/ws", "/ws/events", "/ws/{q}"])
def test_events_come_over_sockets(served: DoorServer, door: Door, queue: str, path: str) -> None:
    with socket(served, path.replace("{q}", queue)) as frames:
        job = door.push_job(queue, "x")
        (told,) = take(frames, 1)
    assert (told["event"], told["job_id"], told["data"]) == ("job:pushed", job, "x")


def test_a_payload_with_line_breaks_is_one_event(served: DoorServer, door: Door, queue: str) -> None:
    with stream(served, f"/events/{queue}") as events:
        door.send("POST", f"/queues/{queue}/jobs", b'{"data": {"a":\r\n\n 1}}')
        assert events.next().told["data"] == {"a": 1}


def test_a_dashboard_gets_all_figures(served: DoorServer, door: Door, queue: str) -> None:
    door.push_job(queue, 1)
    with socket(served, "/ws/dashboard") as frames:
        (told,) = take(frames, 1)
    assert set(told["stats"]) == {"queued", "processing", "delayed", "dlq", "completed"}
    assert queue in [each["name"] for each in told["queues"]]
    for name in ("metrics", "workers", "crons", "metrics_history", "system_metrics", "timestamp"):
        assert name in told


def test_a_dashboard_that_is_left_leaves_no_trace() -> None:
    with DoorServer("--store", "memory:") as server, Door(server.door) as door:
        for number in range(20):
            with socket(server, "/ws/dashboard") as figures:
                take(figures, number % 2)  # before or after the first figures are made
                figures.socket.close()
        assert door.data("GET", "/health")["status"] == "healthy"
        assert "bug" not in server.log
        assert "Traceback" not in server.log


def note(data: bytes) -> Noted:
    return Noted("partial", 1, 0, msgspec.Raw(data))


def test_what_waits_to_be_told_has_a_bound_of_entries() -> None:
    pending = Pending()
    assert all(pending.add(b"{}") for _ in range(PENDING_MAX))
    assert not pending.add(b"{}")
    assert not pending.add(note(b"1"))
    pending.next()
    assert pending.add(note(b"1"))
    assert len(pending) == PENDING_MAX


def test_what_waits_to_be_told_has_a_bound_of_bytes() -> None:
    pending = Pending()
    assert pending.add(b"{}")
    assert pending.add(note(b"x" * (PENDING_BYTES_MAX - 2)))
    assert not pending.add(note(b"1"))
    pending.next()
    assert pending.add(note(b"12"))
    pending.clear()
    assert pending.add(note(b"x" * (PENDING_BYTES_MAX + 1)))  # alone, whatever its size
    assert not pending.add(b"{}")


class QuietHub:
    """A hub in which nothing happens."""

    def join(self, wanted: Wanted) -> tuple[Listener, dict[int, int]]:
        return Listener(asyncio.get_running_loop()), {}

    def leave(self, wanted: Wanted, listener: Listener) -> None:
        pass

    def reached(self, tenant: str) -> str:
        return ""


def test_a_note_for_which_there_is_no_room_is_left_out_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def note_at_once(count: int) -> None:
        feed = Feed(cast(Any, QuietHub()), cast(Any, None), asyncio.get_running_loop(), lambda: 0)
        listener = feed.join(Interest())
        for _ in range(count):
            feed.notice(Partial(id=1, data=msgspec.Raw(b"1")), None)
        feed.leave(listener)

    asyncio.run(note_at_once(PENDING_MAX))
    assert not caplog.messages
    asyncio.run(note_at_once(PENDING_MAX + 2))
    assert caplog.messages == [TOO_FAST]


def test_streams_end_when_the_server_stops() -> None:
    with DoorServer("--store", "memory:") as server:
        events = stream(server, "/events")
        with socket(server, "/ws") as frames, socket(server, "/ws/dashboard") as figures:
            take(figures, 1)
            server.terminate()
            assert events.is_over()
            for each in (frames, figures):
                with pytest.raises(ConnectionClosed, match="1001"):
                    take(each, 100)
        events.close()
