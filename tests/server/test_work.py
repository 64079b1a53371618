"""Results, waiting for the end of a message, progress, updates, clearing out, seeking: over the wire."""

import time

from tests.serving import Raw, Reply, Server, pop, pop_all, push, refused, state, wait_for_pop

HOUR_MS = 3_600_000
DONE: Reply = {"ok": True, "count": 1, "refused": []}
"""The answer to what settles one message."""
PATIENCE_S = 20


def configure(client: Raw, queue: str, **options: object) -> Reply:
    return client.ask({"cmd": "QUEUE", "queue": queue, "options": options})


def browse(client: Raw, queue: str, **fields: object) -> list[object]:
    reply = client.ask({"cmd": "BROWSE", "queue": queue, **fields})
    return [message["payload"] for message in reply["messages"]]


def wait_for_end(client: Raw, message: int) -> None:
    """Have a RESULT wait; it does when this returns."""
    result = {"cmd": "RESULT", "id": message, "wait_ms": 60_000, "reqId": "end"}
    client.send(result, {"cmd": "STATS", "reqId": "done"})
    assert client.receive()["reqId"] == "done"


# Results.


def test_a_result_is_there_for_who_asks_later(client: Raw, other: Raw, queue: str) -> None:
    message = push(client, queue, {"n": 1})
    pop(client, queue)
    assert client.ask({"cmd": "ACK", "ids": [message], "result": {"sum": [1, 2.0]}}) == DONE
    found = other.ask({"cmd": "RESULT", "id": message})
    assert found == {
        "ok": True,
        "id": message,
        "state": "completed",
        "done": True,
        "result": {"sum": [1, 2.0]},
        "has_result": True,
    }


def test_a_batch_has_a_result_each(client: Raw, queue: str) -> None:
    first = push(client, queue, *range(3))
    pop_all(client, queue)
    reply = client.ask({"cmd": "ACK", "ids": [first + 1, first, first + 9], "results": ["b", "a", "x"]})
    assert (reply["count"], reply["refused"]) == (2, [first + 9])
    found = [client.ask({"cmd": "RESULT", "id": first + at})["result"] for at in range(3)]
    assert found == ["a", "b", None]
    reply = client.ask({"cmd": "ACK", "ids": [first + 2], "results": []})
    assert refused(reply, "invalid", "results")


def test_a_group_that_is_not_the_work_queue_has_no_results(client: Raw, queue: str) -> None:
    message = push(client, queue, 1)
    lease = pop(client, queue, group="audit")["lease"]
    reply = client.ask({"cmd": "ACK", "ids": [message], "lease": lease, "result": 1})
    assert refused(reply, "invalid", "result")
    assert state(client, message, group="audit")["state"] == "active"


def test_parts_of_a_result_come_before_it(client: Raw, queue: str) -> None:
    message = push(client, queue, 1)
    assert refused(client.ask({"cmd": "PARTIAL", "id": message, "payload": 0}), "conflict")
    pop(client, queue)
    for part in (1, {"two": 2}):
        assert client.ask({"cmd": "PARTIAL", "id": message, "payload": part}) == {"ok": True}
    client.ask({"cmd": "ACK", "ids": [message], "result": 3})
    assert client.ask({"cmd": "RESULT", "id": message})["result"] == 3
    partials = client.ask({"cmd": "PARTIALS", "id": message})
    assert partials == {"ok": True, "id": message, "partials": [1, {"two": 2}]}


# Waiting for the end.


def test_who_waits_for_a_message_is_told_its_result(client: Raw, other: Raw, queue: str) -> None:
    message = push(client, queue, 1)
    wait_for_end(client, message)
    pop(other, queue)
    other.ask({"cmd": "ACK", "ids": [message], "result": "done"})
    assert client.receive() == {
        "reqId": "end",
        "ok": True,
        "id": message,
        "done": True,
        "state": "completed",
        "result": "done",
        "has_result": True,
    }


def test_who_waits_for_a_message_is_told_of_its_failure(client: Raw, other: Raw, queue: str) -> None:
    message = push(client, queue, 1, max_attempts=1)
    wait_for_end(client, message)
    pop(other, queue)
    other.ask({"cmd": "NACK", "ids": [message], "error": "broken"})
    found = client.receive()
    assert (found["done"], found["state"], found["error"]) == (True, "dead", "broken")


def test_who_waits_for_a_message_waits_no_longer_than_it_said(client: Raw, queue: str) -> None:
    message = push(client, queue, 1)
    began = time.monotonic()
    found = client.ask({"cmd": "RESULT", "id": message, "wait_ms": 100})
    assert time.monotonic() - began >= 0.09
    assert (found["done"], found["state"], found["result"]) == (False, "waiting", None)
    assert refused(client.ask({"cmd": "RESULT", "id": message + 1}), "not_found")


def test_a_wait_ends_with_the_time_to_live_of_its_message(client: Raw, queue: str) -> None:
    message = push(client, queue, 1, ttl_ms=100)
    found = client.ask({"cmd": "RESULT", "id": message, "wait_ms": 60_000})
    assert (found["done"], found["state"]) == (True, "expired")


def test_a_wait_ends_when_its_queue_does(client: Raw, other: Raw, queue: str) -> None:
    message = push(client, queue, 1)
    wait_for_end(client, message)
    assert other.ask({"cmd": "QUEUEDELETE", "force": True, "queue": queue})["deleted"] is True
    assert refused(client.receive(), "not_found")


def test_who_sends_no_more_is_told_how_far_its_message_is(client: Raw, queue: str) -> None:
    message = push(client, queue, 1)
    wait_for_end(client, message)
    client.half_close()
    (found,) = client.drain()
    assert (found["done"], found["state"]) == (False, "waiting")


def test_a_server_that_stops_answers_those_who_wait_for_a_message(queue: str) -> None:
    with Server() as server, server.connect() as client:
        message = push(client, queue, 1)
        wait_for_end(client, message)
        server.terminate()
        assert client.receive()["done"] is False


# Progress and logs.


def test_how_far_a_message_is_can_be_told_and_asked_for(client: Raw, other: Raw, queue: str) -> None:
    message = push(client, queue, 1)
    assert refused(client.ask({"cmd": "SETPROGRESS", "id": message, "progress": 1}), "conflict")
    pop(client, queue)
    assert client.ask({"cmd": "SETPROGRESS", "id": message, "progress": 40, "message": "so far"}) == {
        "ok": True
    }
    found = other.ask({"cmd": "PROGRESS", "id": message})
    assert (found["id"], found["progress"], found["message"]) == (message, 40, "so far")
    assert found["updated_at"] >= state(client, message)["created_at"]


def test_a_message_has_a_log(client: Raw, queue: str) -> None:
    message = push(client, queue, 1)
    client.ask({"cmd": "LOG", "id": message, "message": "began"})
    client.ask({"cmd": "LOG", "id": message, "message": "bad\n", "level": "warning"})
    logs = client.ask({"cmd": "LOGS", "id": message})["logs"]
    assert [(line["level"], line["message"]) for line in logs] == [("info", "began"), ("warning", "bad\n")]


# Updates.


def test_an_updated_message_keeps_its_id_and_its_time(client: Raw, queue: str) -> None:
    message = push(client, queue, "old", delay_ms=HOUR_MS, priority=4)
    before = state(client, message)
    assert client.ask({"cmd": "UPDATE", "id": message, "payload": "new"})["id"] == message
    after = state(client, message)
    assert after == before
    assert client.ask({"cmd": "MESSAGE", "id": after["uuid"]})["payload"] == "new"
    client.ask({"cmd": "PROMOTE", "ids": [message]})
    popped = pop(client, queue)
    assert (popped["id"], popped["payload"], popped["priority"]) == (message, "new", 4)
    assert refused(client.ask({"cmd": "UPDATE", "id": message, "payload": "newer"}), "conflict")
    assert client.ask({"cmd": "ACK", "ids": [message], "lease": popped["lease"]}) == DONE
    assert refused(client.ask({"cmd": "UPDATE", "id": message + 9, "payload": 1}), "not_found")


# Clearing out.


def test_a_drained_queue_gives_nothing(client: Raw, queue: str) -> None:
    push(client, queue, 1, 2)
    push(client, queue, 3, delay_ms=HOUR_MS)
    drained = client.ask({"cmd": "DRAIN", "queue": queue})
    assert drained == {"ok": True, "count": 3, "more": False, "dry_run": False}
    assert pop_all(client, queue) == []
    assert refused(client.ask({"cmd": "DRAIN", "queue": f"{queue}.none"}), "not_found")


def test_dead_letters_are_purged_once_they_are_old_enough(client: Raw, queue: str) -> None:
    first = push(client, queue, 1, 2, 3, max_attempts=1)
    pop_all(client, queue)
    client.ask({"cmd": "NACK", "ids": [first, first + 1]})
    purge = {"cmd": "PURGE", "queue": queue, "states": ["dead"]}
    assert client.ask({**purge, "grace_ms": HOUR_MS})["count"] == 0
    assert client.ask({**purge, "limit": 1})["count"] == 1
    assert client.ask({**purge, "grace_ms": 0})["count"] == 1
    assert client.ask({"cmd": "DEAD", "queue": queue})["total"] == 0
    reply = client.ask({"cmd": "PURGE", "queue": queue, "states": ["active"]})
    assert refused(reply, "invalid", "states")


def test_a_discarded_message_is_a_dead_letter(client: Raw, queue: str) -> None:
    message = push(client, queue, 1)
    assert client.ask({"cmd": "DISCARD", "ids": [message]}) == DONE
    (letter,) = client.ask({"cmd": "DEAD", "queue": queue})["messages"]
    assert (letter["id"], letter["failures"]) == (message, 0)
    assert refused(client.ask({"cmd": "DISCARD", "ids": [message]}), "conflict")


def test_a_deleted_queue_is_gone_and_a_pop_that_waits_gets_what_comes_next(
    client: Raw, other: Raw, queue: str
) -> None:
    message = push(client, queue, "old", delay_ms=HOUR_MS)
    wait_for_pop(other, queue)
    assert client.ask({"cmd": "QUEUEDELETE", "force": True, "queue": queue})["deleted"] is True
    assert refused(client.ask({"cmd": "QUEUE", "queue": queue}), "not_found")
    assert refused(client.ask({"cmd": "QUEUEDELETE", "force": True, "queue": queue}), "not_found")
    assert refused(state(client, message), "not_found")
    assert push(client, queue, "new") != message
    assert other.receive()["messages"][0]["payload"] == "new"


def test_messages_are_listed_in_every_state(client: Raw, queue: str) -> None:
    first = push(client, queue, *range(6), max_attempts=1)
    push(client, queue, 6, delay_ms=HOUR_MS)
    client.ask({"cmd": "POP", "queue": queue, "count": 4})
    client.ask({"cmd": "ACK", "ids": [first]})
    client.ask({"cmd": "NACK", "ids": [first + 1]})
    client.ask({"cmd": "CANCEL", "ids": [first + 5]})
    states = {"waiting": [4], "active": [2, 3], "completed": [0], "dead": [1], "delayed": [6]}
    for name, payloads in {**states, "cancelled": [5], "expired": []}.items():
        assert browse(client, queue, state=name) == payloads
    assert browse(client, queue, limit=2) == [0, 1]
    cursor = client.ask({"cmd": "BROWSE", "queue": queue, "limit": 3})["cursor"]
    assert browse(client, queue, limit=2, cursor=cursor) == [3, 4]
    assert refused(client.ask({"cmd": "BROWSE", "queue": queue, "state": "dead letter"}), "invalid", "state")
    assert refused(client.ask({"cmd": "BROWSE", "queue": queue, "limit": 1_001}), "invalid", "limit")


# Seeking.


def test_a_group_reads_again_and_who_waits_is_woken(client: Raw, other: Raw, queue: str) -> None:
    push(client, queue, 1, 2)
    lease = client.ask({"cmd": "POP", "queue": queue, "count": 9, "compact": True})["lease"]
    wait_for_pop(other, queue)
    reply = client.ask({"cmd": "SEEK", "queue": queue, "partition": "default", "offset": 1})
    assert reply == {"ok": True, "partitions": [{"partition": "default", "cursor": 1}]}
    assert other.receive()["messages"][0]["payload"] == 2
    assert refused(client.ask({"cmd": "ACK", "lease": lease}), "conflict")
    seek = {"cmd": "SEEK", "queue": queue}
    assert refused(client.ask(seek), "invalid", "to")
    assert refused(client.ask({**seek, "to": "end"}), "invalid", "to")
    assert refused(client.ask({**seek, "to": "all", "group": "nobody"}), "not_found")
    assert refused(client.ask({**seek, "to": "all", "partition": "none"}), "not_found")
    assert refused(client.ask({**seek, "offset": 0}), "invalid", "partition")
    client.ask({**seek, "to": "new"})
    assert pop_all(client, queue) == []


# Options.


def test_a_full_queue_says_when_to_try_again(client: Raw, queue: str) -> None:
    assert configure(client, queue, max_size=2)["options"]["max_size"] == 2
    push(client, queue, 1, 2)
    reply = client.ask({"cmd": "PUSH", "queue": queue, "payload": 3})
    assert refused(reply, "busy")
    assert reply["error"]["details"]["retry_after_ms"] > 0
    client.ask({"cmd": "ACK", "ids": [pop(client, queue)["id"]]})
    assert client.ask({"cmd": "PUSH", "queue": queue, "payload": 3})["ok"]


def test_a_queue_may_require_the_lease(client: Raw, queue: str) -> None:
    configure(client, queue, require_lease=True)
    message = push(client, queue, 1)
    lease = pop(client, queue)["lease"]
    for cmd in ("ACK", "NACK", "RELEASE", "EXTEND"):
        assert refused(client.ask({"cmd": cmd, "ids": [message]}), "invalid", "lease")
    assert client.ask({"cmd": "ACK", "ids": [message], "lease": lease}) == DONE


def test_a_partition_has_a_retention_of_its_own(client: Raw, queue: str) -> None:
    kept, short = push(client, queue, 1), push(client, queue, 2, partition="short")
    request = {"cmd": "QUEUE", "queue": queue, "partition": "short"}
    assert client.ask({**request, "options": {"retention_ms": 1}})["ok"]
    assert refused(client.ask({**request, "options": {"lease_ms": 1}}), "invalid", "options")
    deadline = time.monotonic() + PATIENCE_S
    while not refused(state(client, short), "not_found"):
        assert time.monotonic() < deadline
        client.ask({"cmd": "POP", "queue": f"{queue}.none", "wait_ms": 100})  # time passes
    assert state(client, kept)["state"] == "waiting"
