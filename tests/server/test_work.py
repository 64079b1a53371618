"""Results, waiting for the end of a job, progress, updates, clearing out, seeking: over the wire."""

import time

import pytest

from tests.serving import Raw, Reply, Server, pull, pull_all, push, refused, state, wait_for_pull

HOUR_MS = 3_600_000
PATIENCE_S = 20


def configure(client: Raw, queue: str, **options: object) -> Reply:
    return client.ask({"cmd": "QUEUE", "queue": queue, "options": options})


def jobs(client: Raw, queue: str, **fields: object) -> list[object]:
    return [job["data"] for job in client.ask({"cmd": "GETJOBS", "queue": queue, **fields})["jobs"]]


def wait_for_job(client: Raw, message: int, **fields: object) -> None:
    """Have a WAITJOB wait; it does when this returns."""
    client.send(
        {"cmd": "WAITJOB", "id": message, "reqId": "end", **fields}, {"cmd": "STATS", "reqId": "done"}
    )
    assert client.receive()["reqId"] == "done"


# Results.


def test_a_result_is_there_for_who_asks_later(client: Raw, other: Raw, queue: str) -> None:
    message = push(client, queue, {"n": 1})
    pull(client, queue)
    assert client.ask({"cmd": "ACK", "id": message, "result": {"sum": [1, 2.0]}}) == {"ok": True}
    found = other.ask({"cmd": "GETRESULT", "id": message})
    assert found == {"ok": True, "id": message, "result": {"sum": [1, 2.0]}}


def test_a_batch_has_a_result_each(client: Raw, queue: str) -> None:
    first = push(client, queue, *range(3))
    pull_all(client, queue)
    reply = client.ask({"cmd": "ACKB", "ids": [first + 1, first, first + 9], "results": ["b", "a", "x"]})
    assert (reply["count"], reply["refused"]) == (2, [first + 9])
    found = [client.ask({"cmd": "GETRESULT", "id": first + at})["result"] for at in range(3)]
    assert found == ["a", "b", None]
    reply = client.ask({"cmd": "ACKB", "ids": [first + 2], "results": []})
    assert refused(reply, "invalid", "results")


def test_a_group_that_is_not_the_work_queue_has_no_results(client: Raw, queue: str) -> None:
    message = push(client, queue, 1)
    lease = pull(client, queue, group="audit")["lease"]
    reply = client.ask({"cmd": "ACK", "id": message, "lease": lease, "result": 1})
    assert refused(reply, "invalid", "result")
    assert state(client, message, group="audit")["state"] == "active"


def test_parts_of_a_result_come_before_it(client: Raw, queue: str) -> None:
    message = push(client, queue, 1)
    assert refused(client.ask({"cmd": "PARTIAL", "id": message, "data": 0}), "conflict")
    pull(client, queue)
    for part in (1, {"two": 2}):
        assert client.ask({"cmd": "PARTIAL", "id": message, "data": part}) == {"ok": True}
    client.ask({"cmd": "ACK", "id": message, "result": 3})
    found = client.ask({"cmd": "GETRESULT", "id": message})
    assert (found["result"], found["partials"]) == (3, [1, {"two": 2}])


# Waiting for the end.


def test_who_waits_for_a_job_is_told_its_result(client: Raw, other: Raw, queue: str) -> None:
    message = push(client, queue, 1)
    wait_for_job(client, message)
    pull(other, queue)
    other.ask({"cmd": "ACK", "id": message, "result": "done"})
    assert client.receive() == {
        "reqId": "end",
        "ok": True,
        "id": message,
        "done": True,
        "state": "completed",
        "result": "done",
    }


def test_who_waits_for_a_job_is_told_of_its_failure(client: Raw, other: Raw, queue: str) -> None:
    message = push(client, queue, 1, max_attempts=1)
    wait_for_job(client, message, timeout=60_000)
    pull(other, queue)
    other.ask({"cmd": "FAIL", "id": message, "error": "broken"})
    found = client.receive()
    assert (found["done"], found["state"], found["error"]) == (True, "failed", "broken")


def test_who_waits_for_a_job_waits_no_longer_than_it_said(client: Raw, queue: str) -> None:
    message = push(client, queue, 1)
    began = time.monotonic()
    found = client.ask({"cmd": "WAITJOB", "id": message, "timeout": 100})
    assert time.monotonic() - began >= 0.09
    assert (found["done"], found["state"], found["result"]) == (False, "waiting", None)
    assert refused(client.ask({"cmd": "WAITJOB", "id": message + 1}), "not_found")


def test_a_wait_ends_with_the_time_to_live_of_its_job(client: Raw, queue: str) -> None:
    message = push(client, queue, 1, ttl=100)
    found = client.ask({"cmd": "WAITJOB", "id": message, "timeout": 60_000})
    assert (found["done"], found["state"]) == (True, "expired")


def test_a_wait_ends_when_its_queue_does(client: Raw, other: Raw, queue: str) -> None:
    message = push(client, queue, 1)
    wait_for_job(client, message)
    assert other.ask({"cmd": "OBLITERATE", "queue": queue})["count"] == 1
    assert refused(client.receive(), "not_found")


def test_who_sends_no_more_is_told_how_far_its_job_is(client: Raw, queue: str) -> None:
    message = push(client, queue, 1)
    wait_for_job(client, message)
    client.half_close()
    (found,) = client.drain()
    assert (found["done"], found["state"]) == (False, "waiting")


def test_a_server_that_stops_answers_those_who_wait_for_a_job(queue: str) -> None:
    with Server() as server, server.connect() as client:
        message = push(client, queue, 1)
        wait_for_job(client, message)
        server.terminate()
        assert client.receive()["done"] is False


# Progress and logs.


def test_how_far_a_job_is_can_be_told_and_asked_for(client: Raw, other: Raw, queue: str) -> None:
    message = push(client, queue, 1)
    assert refused(client.ask({"cmd": "PROGRESS", "id": message, "progress": 1}), "conflict")
    pull(client, queue)
    assert client.ask({"cmd": "PROGRESS", "id": message, "progress": 40, "message": "so far"}) == {"ok": True}
    found = other.ask({"cmd": "GETPROGRESS", "id": message})["progress"]
    assert (found["id"], found["progress"], found["message"]) == (message, 40, "so far")
    assert found["updated_at"] >= state(client, message)["created_at"]


def test_a_job_has_a_log(client: Raw, queue: str) -> None:
    message = push(client, queue, 1)
    client.ask({"cmd": "LOG", "id": message, "message": "began"})
    client.ask({"cmd": "LOG", "id": message, "message": "bad\n", "level": "warning"})
    logs = client.ask({"cmd": "GETLOGS", "id": message})["logs"]
    assert [(line["level"], line["message"]) for line in logs] == [("info", "began"), ("warning", "bad\n")]


# Updates.


@pytest.mark.parametrize("cmd", ["UPDATEJOB", "UPDATE"])
def test_an_updated_job_keeps_its_id_and_its_time(client: Raw, queue: str, cmd: str) -> None:
    message = push(client, queue, "old", delay=HOUR_MS, priority=4)
    before = state(client, message)
    assert client.ask({"cmd": cmd, "id": message, "data": "new"})["id"] == message
    after = state(client, message)
    assert after == before
    assert client.ask({"cmd": "GETJOB", "id": after["uuid"]})["job"]["data"] == "new"
    client.ask({"cmd": "PROMOTE", "id": message})
    job = pull(client, queue)
    assert (job["id"], job["data"], job["priority"]) == (message, "new", 4)
    assert refused(client.ask({"cmd": cmd, "id": message, "data": "newer"}), "conflict")
    assert client.ask({"cmd": "ACK", "id": message, "lease": job["lease"]}) == {"ok": True}
    assert refused(client.ask({"cmd": cmd, "id": message + 9, "data": 1}), "not_found")


# Clearing out.


def test_a_drained_queue_gives_nothing(client: Raw, queue: str) -> None:
    push(client, queue, 1, 2)
    push(client, queue, 3, delay=HOUR_MS)
    assert client.ask({"cmd": "DRAIN", "queue": queue}) == {"ok": True, "count": 3, "more": False}
    assert pull_all(client, queue) == []
    assert refused(client.ask({"cmd": "DRAIN", "queue": f"{queue}.none"}), "not_found")


def test_what_failed_is_cleaned_by_the_word_of_this_wire(client: Raw, queue: str) -> None:
    first = push(client, queue, 1, 2, 3, max_attempts=1)
    pull_all(client, queue)
    client.ask({"cmd": "FAIL", "ids": [first, first + 1]})
    clean = {"cmd": "CLEAN", "queue": queue, "state": "failed"}
    assert client.ask({**clean, "grace": HOUR_MS})["count"] == 0
    assert client.ask({**clean, "grace": 0, "limit": 1})["count"] == 1
    assert client.ask({**clean, "grace": 0})["count"] == 1
    assert client.ask({"cmd": "DLQ", "queue": queue})["total"] == 0
    reply = client.ask({"cmd": "CLEAN", "queue": queue, "state": "active", "grace": 0})
    assert refused(reply, "invalid", "state")


def test_a_discarded_job_is_a_dead_letter(client: Raw, queue: str) -> None:
    message = push(client, queue, 1)
    assert client.ask({"cmd": "DISCARD", "id": message}) == {"ok": True, "count": 1, "refused": []}
    (letter,) = client.ask({"cmd": "DLQ", "queue": queue})["jobs"]
    assert (letter["id"], letter["attempts"]) == (message, 0)
    assert refused(client.ask({"cmd": "DISCARD", "id": message}), "conflict")


def test_an_obliterated_queue_is_gone_and_a_pull_that_waits_gets_what_comes_next(
    client: Raw, other: Raw, queue: str
) -> None:
    message = push(client, queue, "old", delay=HOUR_MS)
    wait_for_pull(other, queue, timeout=60_000)
    assert client.ask({"cmd": "OBLITERATE", "queue": queue})["count"] == 1
    assert refused(client.ask({"cmd": "QUEUE", "queue": queue}), "not_found")
    assert refused(client.ask({"cmd": "OBLITERATE", "queue": queue}), "not_found")
    assert refused(state(client, message), "not_found")
    assert push(client, queue, "new") != message
    assert other.receive()["job"]["data"] == "new"


def test_jobs_are_listed_in_every_state(client: Raw, queue: str) -> None:
    first = push(client, queue, *range(6), max_attempts=1)
    push(client, queue, 6, delay=HOUR_MS)
    client.ask({"cmd": "PULLB", "queue": queue, "count": 4, "timeout": 0})
    client.ask({"cmd": "ACK", "id": first})
    client.ask({"cmd": "FAIL", "id": first + 1})
    client.ask({"cmd": "CANCEL", "id": first + 5})
    states = {"waiting": [4], "active": [2, 3], "completed": [0], "failed": [1], "delayed": [6]}
    for name, payloads in {**states, "cancelled": [5], "expired": []}.items():
        assert jobs(client, queue, state=name) == payloads
    assert jobs(client, queue, limit=2, offset=3) == [3, 4]
    assert refused(client.ask({"cmd": "GETJOBS", "queue": queue, "state": "dead letter"}), "invalid", "state")
    assert refused(client.ask({"cmd": "GETJOBS", "queue": queue, "limit": 1_001}), "invalid", "limit")


# Seeking.


def test_a_group_reads_again_and_who_waits_is_woken(client: Raw, other: Raw, queue: str) -> None:
    push(client, queue, 1, 2)
    lease = client.ask({"cmd": "PULLB", "queue": queue, "count": 9, "timeout": 0, "compact": True})["lease"]
    wait_for_pull(other, queue, timeout=60_000)
    reply = client.ask({"cmd": "SEEK", "queue": queue, "partition": "default", "offset": 1})
    assert reply == {"ok": True, "partitions": [{"partition": "default", "cursor": 1}]}
    assert other.receive()["job"]["data"] == 2
    assert refused(client.ask({"cmd": "ACK", "lease": lease}), "conflict")
    assert refused(client.ask({"cmd": "SEEK", "queue": queue, "to": "end"}), "invalid", "to")
    assert refused(client.ask({"cmd": "SEEK", "queue": queue, "group": "nobody"}), "not_found")
    assert refused(client.ask({"cmd": "SEEK", "queue": queue, "partition": "none"}), "not_found")
    assert refused(client.ask({"cmd": "SEEK", "queue": queue, "offset": 0}), "invalid", "partition")
    client.ask({"cmd": "SEEK", "queue": queue, "to": "new"})
    assert pull_all(client, queue) == []


# Options.


def test_a_full_queue_says_when_to_try_again(client: Raw, queue: str) -> None:
    assert configure(client, queue, max_size=2)["options"]["max_size"] == 2
    push(client, queue, 1, 2)
    reply = client.ask({"cmd": "PUSH", "queue": queue, "data": 3})
    assert refused(reply, "busy")
    assert reply["details"]["retry_after_ms"] > 0
    client.ask({"cmd": "ACK", "id": pull(client, queue)["id"]})
    assert client.ask({"cmd": "PUSH", "queue": queue, "data": 3})["ok"]


def test_a_queue_may_require_the_lease(client: Raw, queue: str) -> None:
    configure(client, queue, require_lease=True)
    message = push(client, queue, 1)
    lease = pull(client, queue)["lease"]
    for cmd in ("ACK", "FAIL", "EXTEND", "HEARTBEAT"):
        assert refused(client.ask({"cmd": cmd, "id": message}), "invalid", "lease")
    assert client.ask({"cmd": "ACK", "id": message, "lease": lease}) == {"ok": True}


def test_a_partition_has_a_retention_of_its_own(client: Raw, queue: str) -> None:
    kept, short = push(client, queue, 1), push(client, queue, 2, partition="short")
    request = {"cmd": "QUEUE", "queue": queue, "partition": "short"}
    assert client.ask({**request, "options": {"retention_ms": 1}})["ok"]
    assert refused(client.ask({**request, "options": {"lease_ms": 1}}), "invalid", "options")
    deadline = time.monotonic() + PATIENCE_S
    while not refused(state(client, short), "not_found"):
        assert time.monotonic() < deadline
        client.ask({"cmd": "PULL", "queue": f"{queue}.none", "timeout": 100})  # time passes
    assert state(client, kept)["state"] == "waiting"
