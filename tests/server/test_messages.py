"""Options of messages, dead letters, cancels, moves and pauses, over the wire."""

import time

import pytest

from tests.serving import Raw, Reply, Server, pull, push, refused, state, wait_for_pull

HOUR_MS = 3_600_000


def counts(client: Raw, queue: str) -> dict[str, int]:
    """Those that are not 0."""
    reply = client.ask({"cmd": "GETJOBCOUNTS", "queue": queue})
    return {name: count for name, count in reply.items() if name != "ok" and count}


def pull_all(client: Raw, queue: str) -> list[object]:
    jobs = client.ask({"cmd": "PULLB", "queue": queue, "count": 99, "timeout": 0})["jobs"]
    return [job["data"] for job in jobs]


def bury(client: Raw, queue: str, *payloads: object) -> list[int]:
    """Let messages die; their ids."""
    ids = [push(client, queue, each, max_attempts=1) for each in payloads]
    client.ask({"cmd": "PULLB", "queue": queue, "count": len(ids), "timeout": 0})
    assert client.ask({"cmd": "FAIL", "ids": ids, "error": "broken"})["count"] == len(ids)
    return ids


def dead(client: Raw, queue: str, **fields: int) -> list[object]:
    return [job["data"] for job in client.ask({"cmd": "DLQ", "queue": queue, **fields})["jobs"]]


# Options.


def test_priority_and_lifo_order_what_is_pulled(client: Raw, queue: str) -> None:
    options: list[Reply] = [{}, {"priority": 5}, {"lifo": True}, {"lifo": True}, {"priority": -1}]
    for number, each in enumerate(options):
        push(client, queue, number, **each)
    assert pull_all(client, queue) == [1, 3, 2, 0, 4]


def test_a_pull_waits_for_a_delayed_message(client: Raw, queue: str) -> None:
    began = time.monotonic()
    message = push(client, queue, "later", delay=200)
    assert state(client, message)["state"] == "delayed"
    assert client.ask({"cmd": "PULL", "queue": queue, "timeout": 0})["job"] is None
    job = client.ask({"cmd": "PULL", "queue": queue, "timeout": 10_000})["job"]
    assert job["data"] == "later"
    assert time.monotonic() - began >= 0.19


def test_a_message_says_when_it_is_due_and_when_it_ended(client: Raw, queue: str) -> None:
    message = push(client, queue, 1, delay=HOUR_MS)
    client.ask({"cmd": "PULL", "queue": queue, "timeout": 0})
    found = state(client, message)
    assert found["run_at"] == found["created_at"] + HOUR_MS
    client.ask({"cmd": "CANCEL", "id": message})
    found = state(client, message)
    assert found["state"] == "cancelled"
    assert found["ended_at"] >= found["created_at"]
    assert "run_at" not in found


def test_an_expired_message_has_a_state(client: Raw, queue: str) -> None:
    message = push(client, queue, 1, ttl=1)
    client.ask({"cmd": "PULL", "queue": f"{queue}.none", "timeout": 50})  # time passes
    assert state(client, message)["state"] == "expired"
    assert pull_all(client, queue) == []
    assert counts(client, queue) == {"expired": 1}


def test_a_timeout_is_how_long_a_message_is_leased(client: Raw, queue: str) -> None:
    push(client, queue, 1, timeout=HOUR_MS)
    job = pull(client, queue)
    assert job["expires_at"] >= job["created_at"] + HOUR_MS


def test_a_batch_and_its_jobs_may_have_options(client: Raw, queue: str) -> None:
    client.ask({"cmd": "PUSHB", "queue": queue, "messages": [1, 2], "priority": -1})
    jobs = [{"data": 3, "backoff": [5]}, {"data": 4, "priority": 9}, {"data": 5, "delay": HOUR_MS}]
    assert len(client.ask({"cmd": "PUSHB", "queue": queue, "jobs": jobs})["ids"]) == 3
    assert pull_all(client, queue) == [4, 3, 1, 2]
    assert counts(client, queue) == {"active": 4, "delayed": 1}
    assert client.ask({"cmd": "COUNT", "queue": queue}) == {"ok": True, "count": 1}


# Retries and dead letters.


def test_a_message_fails_until_it_is_a_dead_letter(client: Raw, queue: str) -> None:
    message = push(client, queue, "x", backoff=[0, 1])
    for attempts in range(3):
        job = client.ask({"cmd": "PULL", "queue": queue, "timeout": 10_000})["job"]
        assert (job["id"], job["attempts"]) == (message, attempts)
        client.ask({"cmd": "FAIL", "id": message, "error": f"no {attempts}"})
    found = state(client, message)
    assert (found["state"], found["attempts"], found["deliveries"]) == ("failed", 3, 3)
    (letter,) = client.ask({"cmd": "DLQ", "queue": queue})["jobs"]
    assert (letter["id"], letter["data"], letter["attempts"]) == (message, "x", 3)
    assert (letter["error"], letter["failed_at"]) == ("no 2", found["ended_at"])


def test_a_fail_may_say_how_long_to_wait(client: Raw, queue: str) -> None:
    message = push(client, queue, 1)
    pull(client, queue)
    client.ask({"cmd": "FAIL", "id": message, "delay": HOUR_MS})
    assert state(client, message)["run_at"] >= state(client, message)["created_at"] + HOUR_MS


def test_dead_letters_come_in_pages(client: Raw, queue: str) -> None:
    bury(client, queue, *range(5))
    assert client.ask({"cmd": "DLQ", "queue": queue, "count": 2})["total"] == 5
    assert [dead(client, queue, count=2, offset=at) for at in (0, 2, 4)] == [[0, 1], [2, 3], [4]]


def test_dead_letters_are_delivered_again_or_given_up(client: Raw, queue: str) -> None:
    ids = bury(client, queue, "a", "b", "c", "d")
    assert client.ask({"cmd": "PURGEDLQ", "queue": queue, "dry_run": True}) == {
        "ok": True,
        "count": 4,
        "left": 4,
        "refused": [],
    }
    assert client.ask({"cmd": "RETRYDLQ", "queue": queue, "id": ids[1]})["left"] == 3
    job = pull(client, queue)
    assert (job["data"], job["attempts"]) == ("b", 0)
    assert client.ask({"cmd": "PURGEDLQ", "queue": queue, "ids": ids[:2]}) == {
        "ok": True,
        "count": 1,
        "left": 2,
        "refused": [ids[1]],
    }
    assert dead(client, queue) == ["c", "d"]
    assert client.ask({"cmd": "RETRYDLQ", "queue": queue})["count"] == 2
    assert pull_all(client, queue) == ["c", "d"]
    assert refused(client.ask({"cmd": "RETRYDLQ", "queue": queue, "ids": ids}), "not_found")
    assert counts(client, queue) == {"active": 3, "discarded": 1}


# Cancel and move.


def test_what_is_cancelled_is_not_delivered(client: Raw, queue: str) -> None:
    ids = [push(client, queue, number) for number in range(3)]
    assert client.ask({"cmd": "CANCEL", "ids": ids[:2]}) == {"ok": True, "count": 2, "refused": []}
    assert pull_all(client, queue) == [2]
    assert refused(client.ask({"cmd": "CANCEL", "id": ids[0]}), "conflict")


def test_who_holds_what_was_cancelled_is_told(client: Raw, queue: str) -> None:
    message = push(client, queue, 1)
    lease = pull(client, queue)["lease"]
    assert client.ask({"cmd": "EXTEND", "lease": lease})["cancelled"] is False
    client.ask({"cmd": "CANCEL", "id": message})
    assert client.ask({"cmd": "EXTEND", "lease": lease})["cancelled"] is True
    assert client.ask({"cmd": "EXTEND", "id": message})["cancelled"] is True
    assert refused(client.ask({"cmd": "ACK", "lease": lease}), "conflict")


def test_messages_move_in_time_and_priority(client: Raw, queue: str) -> None:
    later, low, held = (push(client, queue, each, delay=HOUR_MS) for each in ("later", "low", "held"))
    done: Reply = {"ok": True, "count": 1, "refused": []}
    assert client.ask({"cmd": "PROMOTE", "id": held}) == done
    assert pull(client, queue)["data"] == "held"
    assert client.ask({"cmd": "MOVETODELAYED", "id": held, "delay": HOUR_MS}) == done
    assert state(client, held)["state"] == "delayed"
    assert client.ask({"cmd": "CHANGEPRIORITY", "id": low, "priority": -9}) == done
    assert state(client, low)["priority"] == -9
    assert client.ask({"cmd": "PROMOTE", "ids": [low, later]})["count"] == 2
    assert pull_all(client, queue) == ["later", "low"]
    assert refused(client.ask({"cmd": "CHANGEPRIORITY", "id": low, "priority": 1}), "conflict")


# Pause.


def test_a_paused_queue_gives_nothing_until_it_is_resumed(client: Raw, queue: str) -> None:
    push(client, queue, 1)
    assert client.ask({"cmd": "PAUSE", "queue": queue}) == {"ok": True, "paused": True}
    assert client.ask({"cmd": "ISPAUSED", "queue": queue}) == {"ok": True, "paused": True}
    assert client.ask({"cmd": "PULL", "queue": queue, "timeout": 0})["job"] is None
    assert client.ask({"cmd": "RESUME", "queue": queue}) == {"ok": True, "paused": False}
    assert pull(client, queue)["data"] == 1


def test_a_pause_may_have_an_end(client: Raw, queue: str) -> None:
    push(client, queue, 1)
    until = time.time_ns() // 1_000_000 + 300
    assert client.ask({"cmd": "PAUSE", "queue": queue, "until": until})["until"] == until
    assert client.ask({"cmd": "PULL", "queue": queue, "timeout": 10_000})["job"]["data"] == 1
    assert refused(client.ask({"cmd": "PAUSE", "queue": queue, "until": 5}), "invalid", "until")


# What can't be.


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"delay": -1}, "delay"),
        ({"delay": 1 << 60}, "delay"),
        ({"priority": 10**10}, "priority"),
        ({"ttl": 5, "delay": 5}, "ttl"),
        ({"timeout": -1}, "timeout"),
        ({"max_attempts": -1}, "max_attempts"),
        ({"backoff": [1] * 10_000}, "backoff"),
        ({"backoff": {"kind": "sometimes"}}, "backoff"),
        ({"backoff": {"jitter": 2}}, "backoff.jitter"),
        ({"backoff": -1}, "backoff.base_ms"),
    ],
)
def test_an_option_that_can_not_be_is_refused_by_its_name(
    client: Raw, queue: str, options: Reply, field: str
) -> None:
    assert refused(client.ask({"cmd": "PUSH", "queue": queue, "data": 1, **options}), "invalid", field)
    jobs = [{"data": 1}, {"data": 2, **options}]
    assert refused(client.ask({"cmd": "PUSHB", "queue": queue, "jobs": jobs}), "invalid", field)
    assert refused(client.ask({"cmd": "QUEUE", "queue": queue}), "not_found")


# Those who left.


def test_what_was_pulled_for_someone_who_left_is_not_held_back(queue: str) -> None:
    with Server() as server, server.connect() as other:
        with server.connect() as client:
            wait_for_pull(client, queue, timeout=60_000)
        push(other, queue, "kept")
        job = other.ask({"cmd": "PULL", "queue": queue, "timeout": 10_000})["job"]
        assert (job["data"], job["attempts"]) == ("kept", 0)
