"""Messages by id, what a queue holds back, strict order, and answers that could not be sent."""

import socket
import struct
import time

import pytest

from tests.serving import Raw, Reply, Server, packed, pop, push, refused, state

HOUR_MS = 3_600_000


def configure(client: Raw, queue: str, **options: object) -> Reply:
    return client.ask({"cmd": "QUEUE", "queue": queue, "options": options})


def test_a_message_is_shown_with_its_payload_and_where_it_stands(client: Raw, queue: str) -> None:
    message = push(client, queue, {"n": 1}, priority=4)
    found = client.ask({"cmd": "MESSAGE", "id": message})
    assert found == {
        "ok": True,
        "id": message,
        "uuid": found["uuid"],
        "queue": queue,
        "partition": "default",
        "offset": 0,
        "payload": {"n": 1},
        "state": "waiting",
        "created_at": found["created_at"],
        "deliveries": 0,
        "failures": 0,
        "priority": 4,
    }
    popped = pop(client, queue)
    client.ask({"cmd": "NACK", "ids": [popped["id"]], "error": "no", "delay_ms": 60_000})
    found = client.ask({"cmd": "MESSAGE", "id": message})
    assert (found["state"], found["failures"], found["error"]) == ("delayed", 1, "no")
    assert found["due_at"] > found["created_at"]


def test_several_messages_are_shown_without_those_that_are_not_there(client: Raw, queue: str) -> None:
    ids = [push(client, queue, number) for number in range(3)]
    found = client.ask({"cmd": "MESSAGES", "ids": [ids[2], 1 << 60, ids[0]]})
    assert [each["payload"] for each in found["messages"]] == [2, 0]


def test_a_message_that_is_not_there_is_not_found(client: Raw, queue: str) -> None:
    message = push(client, queue, 1)
    assert refused(client.ask({"cmd": "MESSAGE", "id": message + 1}), "not_found")
    assert refused(client.ask({"cmd": "MESSAGES", "ids": []}), "invalid", "ids")
    assert refused(client.ask({"cmd": "MESSAGES", "ids": [message] * 1_001}), "invalid", "ids")


def test_messages_too_large_to_be_shown_together_are_refused(client: Raw, queue: str) -> None:
    large = "x" * 1_000_000
    ids = [push(client, queue, large) for _ in range(18)]
    assert refused(client.ask({"cmd": "MESSAGES", "ids": ids}), "invalid", "ids")
    assert len(client.ask({"cmd": "MESSAGES", "ids": ids[:3]})["messages"]) == 3


def test_an_extension_keeps_a_message_and_tells_when_it_was_cancelled(
    client: Raw, other: Raw, queue: str
) -> None:
    push(client, queue, 1)
    message = pop(client, queue, lease_ms=10_000)
    reply = client.ask({"cmd": "EXTEND", "ids": [message["id"]], "lease_ms": 60_000})
    assert (reply["ok"], reply["cancelled"]) == (True, False)
    assert reply["expires_at"] > message["expires_at"]
    other.ask({"cmd": "CANCEL", "ids": [message["id"]]})
    assert client.ask({"cmd": "EXTEND", "ids": [message["id"]]})["cancelled"] is True
    assert refused(client.ask({"cmd": "ACK", "ids": [message["id"]]}), "conflict")


def test_a_pop_waits_until_its_queue_lets_go(client: Raw, queue: str) -> None:
    assert configure(client, queue, delayed_processing_ms=150)["options"]["delayed_processing_ms"] == 150
    began = time.monotonic()
    push(client, queue, "later")
    assert pop(client, queue, wait_ms=10_000)["payload"] == "later"
    assert time.monotonic() - began >= 0.14


def test_a_partition_comes_when_no_more_comes(client: Raw, queue: str) -> None:
    configure(client, queue, window_buffer_ms=150)
    for number in range(3):
        push(client, queue, number)
    assert client.ask({"cmd": "POP", "queue": queue, "wait_ms": 0})["messages"] == []
    messages = client.ask({"cmd": "POP", "queue": queue, "count": 9, "wait_ms": 10_000})["messages"]
    assert [each["payload"] for each in messages] == [0, 1, 2]


def test_what_waits_too_long_is_evicted(client: Raw, queue: str) -> None:
    configure(client, queue, max_wait_ms=1)
    assert client.ask({"cmd": "POP", "queue": queue, "wait_ms": 0})["messages"] == []
    message = push(client, queue, 1)
    deadline = time.monotonic() + 20
    while state(client, message)["state"] == "waiting":
        assert time.monotonic() < deadline
    assert client.ask({"cmd": "POP", "queue": queue, "wait_ms": 0})["messages"] == []
    assert state(client, message)["state"] == "evicted"
    assert client.ask({"cmd": "GROUP", "queue": queue})["counts"]["evicted"] == 1


def test_strict_order_is_kept_and_what_would_break_it_refused(client: Raw, other: Raw, queue: str) -> None:
    configure(client, queue, ordering="partition", backoff=0)
    for number in range(3):
        push(client, queue, number)
    reply = client.ask({"cmd": "PUSH", "queue": queue, "payload": 9, "priority": 1})
    assert refused(reply, "invalid", "priority")
    assert "another queue" in reply["error"]["message"]
    first = pop(client, queue)
    assert other.ask({"cmd": "POP", "queue": queue, "wait_ms": 0})["messages"] == []
    client.ask({"cmd": "NACK", "ids": [first["id"]]})
    assert pop(other, queue, wait_ms=10_000)["payload"] == 0
    assert refused(configure(client, queue, ordering="message"), "conflict")


@pytest.mark.parametrize("option", ["delayed_processing_ms", "window_buffer_ms", "max_wait_ms"])
def test_a_bad_option_is_refused(client: Raw, queue: str, option: str) -> None:
    assert refused(configure(client, queue, **{option: -1}), "invalid", option)
    assert refused(client.ask({"cmd": "QUEUE", "queue": queue}), "not_found")


def test_what_a_client_that_is_gone_was_to_get_is_given_back(server: Server, client: Raw, queue: str) -> None:
    """It pops more than its socket holds, reads nothing, and goes: what was not sent is leased no more."""
    payload = "x" * 900_000
    for _ in range(60):
        push(client, queue, payload)
    host, port = server.tcp.rsplit(":", 1)
    gone = socket.create_connection((host, int(port)))
    gone.sendall(packed(*[{"cmd": "POP", "queue": queue, "wait_ms": 0, "lease_ms": HOUR_MS}] * 60))
    before = active(client, queue)
    while before < 20 or before < active(client, queue):
        before = active(client, queue)
    gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    gone.close()
    deadline = time.monotonic() + 20
    while active(client, queue) == before:
        assert time.monotonic() < deadline, "nothing was given back"
    again = pop(client, queue, wait_ms=10_000)
    assert (again["failures"], state(client, again["id"])["deliveries"]) == (0, 1)


def active(client: Raw, queue: str) -> int:
    found = client.ask({"cmd": "GROUP", "queue": queue})["counts"]["active"]
    assert isinstance(found, int)
    return found
