"""Stages on a real server: who waits is woken, and what never was in memory is read from the disk."""

from typing import Any

import pytest

from forebay.core.log.bodies import body_slices, pack_body
from tests.serving import Raw, Reply, Request, pop_all, push, refused, wait_for_pop


def stage(client: Raw, queue: str, *messages: Any, **fields: Any) -> Reply:
    request: Request = {"cmd": "STAGE", "queue": queue, "stage": "s", "messages": list(messages)}
    reply = client.ask(request | {"query": "x", "batch": 0} | fields)
    assert reply["ok"], reply
    return reply


def adopt(client: Raw, queue: str, *stages: str, **fields: Any) -> Reply:
    request: Request = {"cmd": "ADOPT", "queue": queue, "query": "x", "batch": 0, "stages": list(stages)}
    return client.ask(request | fields)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"priority": 5},
        {"delay_ms": 20},
        {"unique_keys": ["k"]},
        {"unique_keys": ["k"], "priority": 5},
        {"lifo": True},
        {"partition": "p"},
    ],
    ids=str,
)
def test_who_waits_gets_what_is_adopted(client: Raw, other: Raw, queue: str, options: Request) -> None:
    wait_for_pop(client, queue, wait_ms=20_000)
    stage(other, queue, "staged", **options)
    assert adopt(other, queue, "s")["count"] == 1
    reply = client.receive()
    assert (reply["reqId"], reply["messages"][0]["payload"]) == ("waiting", "staged")


def test_who_waits_for_several_gets_them_when_all_are_adopted(client: Raw, other: Raw, queue: str) -> None:
    client.send({"cmd": "POP", "queue": queue, "count": 5, "min_count": 4, "wait_ms": 20_000})
    stage(other, queue, 1, 2)
    stage(other, queue, 3, 4, stage="t")
    adopt(other, queue, "t", "s")
    assert [each["payload"] for each in client.receive()["messages"]] == [3, 4, 1, 2]


@pytest.mark.parametrize("packed", [False, True], ids=["messages", "a body"])
def test_what_was_staged_long_before_is_read_from_the_disk(client: Raw, queue: str, packed: bool) -> None:
    messages = [f"{number}" + "x" * 1_000 for number in range(50)]
    if packed:
        payloads = [b'"%b"' % each.encode() for each in messages]
        request: Request = {"cmd": "STAGE", "queue": queue, "stage": "s", "query": "x", "batch": 0}
        body = pack_body(payloads, list(map(len, payloads)))
        assert client.ask_packed(request | {"body": body, "count": len(payloads)})["ok"]
    else:
        stage(client, queue, *messages)
    for number in range(5):  # commits in which its bodies leave memory
        push(client, queue, number, partition="other")
    reply = adopt(client, queue, "s", count=50)
    first = int(reply["partitions"][0]["first"])
    assert client.ask({"cmd": "MESSAGE", "id": first + 7})["payload"] == messages[7]
    read = client.ask({"cmd": "READ", "queue": queue, "offset": 10, "max_count": 20})
    assert [each for run in read["runs"] for each in run["payloads"]] == messages[10:30]
    (run,) = client.ask_packed({"cmd": "READ", "queue": queue, "offset": 45})["runs"]
    assert [each.decode()[1:-1] for each in body_slices(run["payloads"], 5, 0, 5)] == messages[45:]
    assert pop_all(client, queue, partition="default") == messages


def test_one_large_payload_may_be_a_body_of_its_own(client: Raw, queue: str) -> None:
    payload = b'"' + b"x" * 1_000_000 + b'"'
    request: Request = {"cmd": "STAGE", "queue": queue, "stage": "s", "query": "x", "batch": 0, "count": 1}
    assert client.ask_packed(request | {"body": pack_body([payload], [len(payload)])})["bytes"] == len(
        payload
    )
    adopt(client, queue, "s")
    assert pop_all(client, queue) == ["x" * 1_000_000]


def test_refusals_have_their_codes(client: Raw, queue: str) -> None:
    assert refused(adopt(client, queue, "s"), "not_found")
    assert refused(client.ask({"cmd": "UNSTAGE", "queue": queue, "stages": ["s"]}), "not_found")
    stage(client, queue, 1, 2)
    assert refused(adopt(client, queue, "s", count=1), "conflict")
    assert refused(adopt(client, queue, "s", "s"), "invalid", "stages")
    assert refused(adopt(client, queue, "s", query="y"), "conflict")
    assert adopt(client, queue, "s", batch=0)["count"] == 2
    late = client.ask(
        {"cmd": "STAGE", "queue": queue, "stage": "late", "messages": [1], "query": "x", "batch": 0}
    )
    assert refused(late, "conflict")
    assert adopt(client, queue, batch=5)["ok"]
    assert refused(adopt(client, queue, batch=4), "conflict")
    assert adopt(client, queue, "s", batch=0)["repeated"]
    for fields, field in (
        ({"messages": []}, "messages"),
        ({"messages": [1], "count": 2}, "count"),
        ({"messages": [1], "body": "AAAAAAEAAAAx", "count": 1}, "messages"),
        ({"body": "not base64!", "count": 1}, "body"),
        ({"body": "AAAAAAEAAAAx", "count": 2}, "body"),
    ):
        reply = client.ask({"cmd": "STAGE", "queue": queue, "stage": "new", **fields})
        assert refused(reply, "invalid", field), reply


def test_what_is_staged_counts_for_nobody(client: Raw, queue: str) -> None:
    assert pop_all(client, queue) == []  # a group that counts
    stage(client, queue, 1, 2, 3)
    told = client.ask({"cmd": "QUEUE", "queue": queue})
    assert told["staged"]["messages"] == 3
    assert [told["groups"][0]["counts"][each] for each in ("waiting", "delayed", "active")] == [0, 0, 0]
    assert client.ask({"cmd": "OFFSETS", "queue": queue})["partitions"] == []
    assert client.ask({"cmd": "UNSTAGE", "queue": queue, "stages": ["s"]})["count"] == 3
