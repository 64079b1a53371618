"""Every limit of a real server, at it and one past it."""

from collections.abc import Iterator

import pytest

from forebay.core.bounds import Limits
from forebay.wire.framing import ABSURD
from tests.serving import Raw, Server, framed, pop, pop_all, push, refused, state

FRAME_BYTES_MAX = 65_536
BATCH_MAX = 100


@pytest.fixture(scope="module")
def small() -> Iterator[Server]:
    """A server with limits that are soon reached."""
    flags = {
        "--frame-bytes-max": FRAME_BYTES_MAX,
        "--batch-max": BATCH_MAX,
        "--partitions-max": 3,
        "--groups-max": 3,
    }
    with Server(*(str(part) for flag in flags.items() for part in flag)) as running:
        yield running


@pytest.fixture
def narrow(small: Server) -> Iterator[Raw]:
    """A connection to it."""
    with small.connect() as connection:
        yield connection


# The limits there are by themselves.


def test_a_payload_may_be_as_large_as_the_limit_and_no_larger(client: Raw, queue: str) -> None:
    most = Limits().payload_bytes_max
    fits, too_large = "x" * (most - 2), "x" * (most - 1)
    assert client.ask({"cmd": "PUSH", "queue": queue, "payload": fits})["ok"]
    assert refused(client.ask({"cmd": "PUSH", "queue": queue, "payload": too_large}), "invalid", "payload")
    batch = {"cmd": "PUSH", "queue": queue, "messages": [1, too_large]}
    assert refused(client.ask(batch), "invalid", "payload")
    items = {
        "cmd": "PUSH",
        "queue": queue,
        "items": [{"payload": too_large, "partition": "p"}, {"payload": 1}],
    }
    assert refused(client.ask(items), "invalid", "payload")
    assert pop_all(client, queue) == [fits]


@pytest.mark.parametrize("lease_ms", [1, Limits().lease_ms_max])
def test_a_lease_may_last_as_long_as_the_limit(client: Raw, queue: str, lease_ms: int) -> None:
    push(client, queue, 1)
    message = pop(client, queue, lease_ms=lease_ms)
    assert message["expires_at"] >= message["created_at"] + lease_ms
    assert client.ask({"cmd": "QUEUE", "queue": queue, "options": {"lease_ms": lease_ms}})["ok"]


@pytest.mark.parametrize("lease_ms", [0, -1, Limits().lease_ms_max + 1, 1 << 80])
def test_a_lease_may_not_last_longer_than_the_limit_or_not_at_all(
    client: Raw, queue: str, lease_ms: int
) -> None:
    message = push(client, queue, 1)
    for request in (
        {"cmd": "POP", "queue": queue, "wait_ms": 0},
        {"cmd": "POP", "queue": queue, "count": 2, "wait_ms": 0},
        {"cmd": "EXTEND", "ids": [message]},
    ):
        assert refused(client.ask({**request, "lease_ms": lease_ms}), "invalid", "lease_ms")
    options = {"cmd": "QUEUE", "queue": queue, "options": {"lease_ms": lease_ms}}
    assert refused(client.ask(options), "invalid", "lease_ms")


def test_a_pop_may_wait_as_long_as_the_limit_and_no_longer(client: Raw, queue: str) -> None:
    most = Limits().wait_ms_max
    push(client, queue, 1)
    pop(client, queue, wait_ms=most)
    for wait_ms in (-1, most + 1, 1 << 80):
        for more in ({}, {"count": 2}, {"compact": True}):
            request = {"cmd": "POP", "queue": queue, "wait_ms": wait_ms, **more}
            assert refused(client.ask(request), "invalid", "wait_ms")


def test_a_queue_name_may_have_256_characters_and_no_more(client: Raw, queue: str) -> None:
    longest = queue.ljust(256, "x")
    push(client, longest, 1)
    assert pop(client, longest)["queue"] == longest
    assert refused(client.ask({"cmd": "PUSH", "queue": longest + "x", "payload": 1}), "invalid", "queue")
    assert refused(client.ask({"cmd": "POP", "queue": longest + "x"}), "invalid", "queue")


@pytest.mark.parametrize("longest", ["x" * 255, "é" * 127 + "x", "🦀" * 63 + "xyz"])
def test_names_of_partitions_and_groups_may_have_255_bytes_and_no_more(
    client: Raw, queue: str, longest: str
) -> None:
    push(client, queue, 1, partition=longest)
    message = pop(client, queue, partition=longest, group=longest)
    assert message["partition"] == longest
    assert client.ask({"cmd": "ACK", "ids": [message["id"]], "group": longest})["ok"]
    assert state(client, message["id"], group=longest)["state"] == "completed"
    past = longest + "x"
    for field, request in (
        ("partition", {"cmd": "PUSH", "queue": queue, "payload": 1, "partition": past}),
        ("partition", {"cmd": "POP", "queue": queue, "partition": past}),
        ("partition", {"cmd": "READ", "queue": queue, "offset": 0, "partition": past}),
        ("group", {"cmd": "POP", "queue": queue, "group": past}),
        ("group", {"cmd": "ACK", "ids": [message["id"]], "group": past}),
        ("group", {"cmd": "STATE", "id": message["id"], "group": past}),
    ):
        assert refused(client.ask(request), "invalid", field)


# Limits of a server that an operator has set.


def test_a_batch_may_be_as_large_as_the_limit_and_no_larger(narrow: Raw, queue: str) -> None:
    messages = list(range(BATCH_MAX))
    first = push(narrow, queue, *messages)
    items = [{"payload": at, "partition": str(at % 2)} for at in messages]
    assert narrow.ask({"cmd": "PUSH", "queue": f"{queue}.items", "items": items})["ok"]
    popped = narrow.ask({"cmd": "POP", "queue": queue, "count": BATCH_MAX, "wait_ms": 0})
    assert len(popped["messages"]) == BATCH_MAX
    ids = [first + at for at in messages]
    assert narrow.ask({"cmd": "ACK", "ids": ids})["count"] == BATCH_MAX
    assert (
        narrow.ask({"cmd": "READ", "queue": queue, "offset": 0, "max_count": BATCH_MAX})["next"] == BATCH_MAX
    )
    for field, request in (
        ("messages", {"cmd": "PUSH", "queue": queue, "messages": [*messages, 0]}),
        ("messages", {"cmd": "PUSH", "queue": queue, "items": [*items, {"payload": 0}]}),
        ("count", {"cmd": "POP", "queue": queue, "count": BATCH_MAX + 1, "wait_ms": 0}),
        ("ids", {"cmd": "ACK", "ids": [*ids, 0]}),
        ("ids", {"cmd": "NACK", "ids": [*ids, 0]}),
        ("ids", {"cmd": "EXTEND", "ids": [*ids, 0]}),
        ("max_count", {"cmd": "READ", "queue": queue, "offset": 0, "max_count": BATCH_MAX + 1}),
    ):
        assert refused(narrow.ask(request), "invalid", field)


def test_a_read_that_does_not_say_how_much_gets_what_a_batch_may_have(narrow: Raw, queue: str) -> None:
    push(narrow, queue, *range(BATCH_MAX))
    push(narrow, queue, *range(BATCH_MAX))
    assert narrow.ask({"cmd": "READ", "queue": queue, "offset": 0})["next"] == BATCH_MAX


def test_a_queue_has_as_many_partitions_as_the_limit_and_no_more(narrow: Raw, queue: str) -> None:
    for partition in "abc":
        push(narrow, queue, 1, partition=partition)
    past = {"cmd": "PUSH", "queue": queue, "payload": 1, "partition": "d"}
    assert refused(narrow.ask(past), "busy")
    assert narrow.ask({**past, "partition": "a"})["ok"]


def test_a_queue_has_as_many_groups_as_the_limit_and_no_more(narrow: Raw, queue: str) -> None:
    push(narrow, queue, 1)
    for group in "abc":
        pop(narrow, queue, group=group)
    assert refused(narrow.ask({"cmd": "POP", "queue": queue, "group": "d", "wait_ms": 0}), "busy")


# Frames.


def test_a_frame_at_the_limit_is_taken(narrow: Raw) -> None:
    body = b'{"cmd":"STATS"}'
    narrow.send_frame(body.ljust(FRAME_BYTES_MAX))
    assert narrow.receive()["ok"]


def test_a_frame_over_the_limit_is_skipped_and_the_connection_goes_on(narrow: Raw) -> None:
    body = b'{"cmd":"STATS"}'
    narrow.send(framed(body.ljust(FRAME_BYTES_MAX + 1)), {"cmd": "STATS"})
    reply = narrow.receive()
    assert refused(reply, "invalid", "frame")
    assert str(FRAME_BYTES_MAX) in reply["error"]["details"]["accepted"]
    assert narrow.receive()["ok"]


def test_a_frame_far_over_the_limit_is_skipped_and_the_connection_goes_on(narrow: Raw) -> None:
    narrow.send(framed(bytes(ABSURD * FRAME_BYTES_MAX)), {"cmd": "STATS"})
    assert refused(narrow.receive(), "invalid", "frame")
    assert narrow.receive()["ok"]
