"""Options of messages, dead letters, cancels, moves and pauses, over the wire."""

import time

import pytest

from tests.serving import Raw, Reply, Server, pop, push, refused, state, wait_for_pop

HOUR_MS = 3_600_000


def counts(client: Raw, queue: str) -> dict[str, int]:
    """Those that are not 0."""
    found: dict[str, int] = client.ask({"cmd": "GROUP", "queue": queue})["counts"]
    return {name: count for name, count in found.items() if count}


def pop_all(client: Raw, queue: str) -> list[object]:
    popped = client.ask({"cmd": "POP", "queue": queue, "count": 99})["messages"]
    return [each["payload"] for each in popped]


def bury(client: Raw, queue: str, *payloads: object) -> list[int]:
    """Let messages die; their ids."""
    ids = [push(client, queue, each, max_attempts=1) for each in payloads]
    client.ask({"cmd": "POP", "queue": queue, "count": len(ids)})
    assert client.ask({"cmd": "NACK", "ids": ids, "error": "broken"})["count"] == len(ids)
    return ids


def dead(client: Raw, queue: str, **fields: int) -> list[object]:
    return [each["payload"] for each in client.ask({"cmd": "DEAD", "queue": queue, **fields})["messages"]]


# Options.


def test_priority_and_lifo_order_what_is_popped(client: Raw, queue: str) -> None:
    options: list[Reply] = [{}, {"priority": 5}, {"lifo": True}, {"lifo": True}, {"priority": -1}]
    for number, each in enumerate(options):
        push(client, queue, number, **each)
    assert pop_all(client, queue) == [1, 3, 2, 0, 4]


def test_a_pop_waits_for_a_delayed_message(client: Raw, queue: str) -> None:
    began = time.monotonic()
    message = push(client, queue, "later", delay_ms=200)
    assert state(client, message)["state"] == "delayed"
    assert client.ask({"cmd": "POP", "queue": queue}) == {"ok": True, "lease": None, "messages": []}
    (popped,) = client.ask({"cmd": "POP", "queue": queue, "wait_ms": 10_000})["messages"]
    assert popped["payload"] == "later"
    assert time.monotonic() - began >= 0.19


def test_a_message_says_when_it_is_due_and_when_it_ended(client: Raw, queue: str) -> None:
    message = push(client, queue, 1, delay_ms=HOUR_MS)
    client.ask({"cmd": "POP", "queue": queue})
    found = state(client, message)
    assert found["due_at"] == found["created_at"] + HOUR_MS
    client.ask({"cmd": "CANCEL", "ids": [message]})
    found = state(client, message)
    assert found["state"] == "cancelled"
    assert found["ended_at"] >= found["created_at"]
    assert "due_at" not in found


def test_an_expired_message_has_a_state(client: Raw, queue: str) -> None:
    message = push(client, queue, 1, ttl_ms=1)
    client.ask({"cmd": "POP", "queue": f"{queue}.none", "wait_ms": 50})  # time passes
    assert state(client, message)["state"] == "expired"
    assert pop_all(client, queue) == []
    assert counts(client, queue) == {"expired": 1}


def test_a_timeout_is_how_long_a_message_is_leased(client: Raw, queue: str) -> None:
    push(client, queue, 1, timeout_ms=HOUR_MS)
    popped = pop(client, queue)
    assert popped["expires_at"] >= popped["created_at"] + HOUR_MS


def test_messages_and_items_may_have_options(client: Raw, queue: str) -> None:
    client.ask({"cmd": "PUSH", "queue": queue, "messages": [1, 2], "priority": -1})
    items = [
        {"payload": 3, "backoff": [5]},
        {"payload": 4, "priority": 9},
        {"payload": 5, "delay_ms": HOUR_MS},
    ]
    assert len(client.ask({"cmd": "PUSH", "queue": queue, "items": items})["ids"]) == 3
    assert pop_all(client, queue) == [4, 3, 1, 2]
    assert counts(client, queue) == {"active": 4, "delayed": 1}


# Retries and dead letters.


def test_a_message_fails_until_it_is_a_dead_letter(client: Raw, queue: str) -> None:
    message = push(client, queue, "x", backoff=[0, 1])
    for failures in range(3):
        (popped,) = client.ask({"cmd": "POP", "queue": queue, "wait_ms": 10_000})["messages"]
        assert (popped["id"], popped["failures"]) == (message, failures)
        client.ask({"cmd": "NACK", "ids": [message], "error": f"no {failures}"})
    found = state(client, message)
    assert (found["state"], found["failures"], found["deliveries"]) == ("dead", 3, 3)
    (letter,) = client.ask({"cmd": "DEAD", "queue": queue})["messages"]
    assert (letter["id"], letter["payload"], letter["failures"]) == (message, "x", 3)
    assert (letter["error"], letter["ended_at"]) == ("no 2", found["ended_at"])
    assert (letter["queue"], letter["group"], letter["state"]) == (queue, "default", "dead")


def test_a_nack_may_say_how_long_to_wait(client: Raw, queue: str) -> None:
    message = push(client, queue, 1)
    pop(client, queue)
    client.ask({"cmd": "NACK", "ids": [message], "delay_ms": HOUR_MS})
    assert state(client, message)["due_at"] >= state(client, message)["created_at"] + HOUR_MS


def test_dead_letters_come_in_pages(client: Raw, queue: str) -> None:
    bury(client, queue, *range(5))
    assert client.ask({"cmd": "DEAD", "queue": queue, "limit": 2})["total"] == 5
    assert [dead(client, queue, limit=2, skip=at) for at in (0, 2, 4)] == [[0, 1], [2, 3], [4]]


def test_dead_letters_are_delivered_again_or_given_up(client: Raw, queue: str) -> None:
    ids = bury(client, queue, "a", "b", "c", "d")
    assert client.ask({"cmd": "DEADPURGE", "queue": queue, "dry_run": True}) == {
        "ok": True,
        "count": 4,
        "left": 4,
        "dry_run": True,
        "refused": [],
    }
    assert client.ask({"cmd": "REQUEUE", "queue": queue, "ids": [ids[1]]})["left"] == 3
    popped = pop(client, queue)
    assert (popped["payload"], popped["failures"]) == ("b", 0)
    assert client.ask({"cmd": "DEADPURGE", "queue": queue, "ids": ids[:2]}) == {
        "ok": True,
        "count": 1,
        "left": 2,
        "dry_run": False,
        "refused": [ids[1]],
    }
    assert dead(client, queue) == ["c", "d"]
    assert client.ask({"cmd": "REQUEUE", "queue": queue})["count"] == 2
    assert pop_all(client, queue) == ["c", "d"]
    assert refused(client.ask({"cmd": "REQUEUE", "queue": queue, "ids": ids}), "not_found")
    assert counts(client, queue) == {"active": 3, "discarded": 1}


# Cancel and move.


def test_what_is_cancelled_is_not_delivered(client: Raw, queue: str) -> None:
    ids = [push(client, queue, number) for number in range(3)]
    assert client.ask({"cmd": "CANCEL", "ids": ids[:2]}) == {"ok": True, "count": 2, "refused": []}
    assert pop_all(client, queue) == [2]
    assert refused(client.ask({"cmd": "CANCEL", "ids": [ids[0]]}), "conflict")


def test_who_holds_what_was_cancelled_is_told(client: Raw, queue: str) -> None:
    message = push(client, queue, 1)
    lease = pop(client, queue)["lease"]
    assert client.ask({"cmd": "EXTEND", "lease": lease})["cancelled"] is False
    client.ask({"cmd": "CANCEL", "ids": [message]})
    assert client.ask({"cmd": "EXTEND", "lease": lease})["cancelled"] is True
    assert client.ask({"cmd": "EXTEND", "ids": [message]})["cancelled"] is True
    assert refused(client.ask({"cmd": "ACK", "lease": lease}), "conflict")


def test_messages_move_in_time_and_priority(client: Raw, queue: str) -> None:
    later, low, held = (push(client, queue, each, delay_ms=HOUR_MS) for each in ("later", "low", "held"))
    done: Reply = {"ok": True, "count": 1, "refused": []}
    assert client.ask({"cmd": "PROMOTE", "ids": [held]}) == done
    assert pop(client, queue)["payload"] == "held"
    assert client.ask({"cmd": "DELAY", "ids": [held], "delay_ms": HOUR_MS}) == done
    assert state(client, held)["state"] == "delayed"
    assert client.ask({"cmd": "PRIORITY", "ids": [low], "priority": -9}) == done
    assert state(client, low)["priority"] == -9
    assert client.ask({"cmd": "PROMOTE", "ids": [low, later]})["count"] == 2
    assert pop_all(client, queue) == ["later", "low"]
    assert refused(client.ask({"cmd": "PRIORITY", "ids": [low], "priority": 1}), "conflict")


# Pause.


def test_a_paused_queue_gives_nothing_until_it_is_resumed(client: Raw, queue: str) -> None:
    push(client, queue, 1)
    assert client.ask({"cmd": "PAUSE", "queue": queue}) == {"ok": True, "paused": True}
    assert client.ask({"cmd": "QUEUE", "queue": queue})["paused"] is True
    assert client.ask({"cmd": "POP", "queue": queue})["messages"] == []
    assert client.ask({"cmd": "RESUME", "queue": queue}) == {"ok": True, "paused": False}
    assert client.ask({"cmd": "QUEUE", "queue": queue})["paused"] is False
    assert pop(client, queue)["payload"] == 1


def test_a_pause_may_have_an_end(client: Raw, queue: str) -> None:
    push(client, queue, 1)
    until = time.time_ns() // 1_000_000 + 300
    assert client.ask({"cmd": "PAUSE", "queue": queue, "until": until})["until"] == until
    assert client.ask({"cmd": "POP", "queue": queue, "wait_ms": 10_000})["messages"][0]["payload"] == 1
    assert refused(client.ask({"cmd": "PAUSE", "queue": queue, "until": 5}), "invalid", "until")


# What can't be.


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"delay_ms": -1}, "delay_ms"),
        ({"delay_ms": 1 << 60}, "delay_ms"),
        ({"priority": 10**10}, "priority"),
        ({"ttl_ms": 5, "delay_ms": 5}, "ttl_ms"),
        ({"timeout_ms": -1}, "timeout_ms"),
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
    assert refused(client.ask({"cmd": "PUSH", "queue": queue, "payload": 1, **options}), "invalid", field)
    items = [{"payload": 1}, {"payload": 2, **options}]
    assert refused(client.ask({"cmd": "PUSH", "queue": queue, "items": items}), "invalid", field)
    assert refused(client.ask({"cmd": "QUEUE", "queue": queue}), "not_found")


# Those who left.


def test_what_was_popped_for_someone_who_left_is_not_held_back(queue: str) -> None:
    with Server() as server, server.connect() as other:
        with server.connect() as client:
            wait_for_pop(client, queue)
        push(other, queue, "kept")
        (popped,) = other.ask({"cmd": "POP", "queue": queue, "wait_ms": 10_000})["messages"]
        assert (popped["payload"], popped["failures"]) == ("kept", 0)
