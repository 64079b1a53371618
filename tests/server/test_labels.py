"""Headers and tags: what a producer says of a message, for whoever gets it."""

from typing import Any

import pytest

from tests.serving import Raw, Server, refused

HEADERS = {"trace": "a-1", "kind": "order"}


def popped(client: Raw, queue: str, **fields: Any) -> list[dict[str, Any]]:
    reply = client.ask({"cmd": "POP", "queue": queue, "count": 100, "wait_ms": 0, **fields})
    found: list[dict[str, Any]] = reply["runs" if fields.get("compact") else "messages"]
    return found


def test_headers_and_tags_come_with_the_message(client: Raw) -> None:
    pushed = {"cmd": "PUSH", "queue": "one", "payload": 1, "headers": HEADERS, "tags": ["eu", "vip"]}
    message = client.ask(pushed)["id"]
    (got,) = popped(client, "one")
    assert (got["headers"], got["tags"]) == (HEADERS, ["eu", "vip"])
    shown = client.ask({"cmd": "MESSAGE", "id": message})
    assert (shown["headers"], shown["tags"]) == (HEADERS, ["eu", "vip"])


def test_a_message_without_has_neither(client: Raw) -> None:
    client.ask({"cmd": "PUSH", "queue": "none", "payload": 1})
    client.ask({"cmd": "PUSH", "queue": "none", "payload": 2, "headers": {}, "tags": []})
    messages = popped(client, "none")
    assert len(messages) == 2
    for message in messages:
        assert not {"headers", "tags"} & message.keys()


def test_each_of_a_batch_has_its_own(client: Raw) -> None:
    of_each = [
        {
            "payload": at,
            **({"headers": {"n": str(at // 2)}} if at % 3 else {}),
            **({"tags": ["t"]} if at > 7 else {}),
        }
        for at in range(12)
    ]
    client.ask({"cmd": "PUSH", "queue": "batch", "items": of_each})
    for fields in ({"group": "a"}, {"group": "b"}):
        found = popped(client, "batch", **fields)
        assert [
            {name: each[name] for name in ("payload", "headers", "tags") if name in each} for each in found
        ] == of_each
    runs = popped(client, "batch", group="c", compact=True)
    flat = [
        {"payload": payload, **{name: run[name] for name in ("headers", "tags") if name in run}}
        for run in runs
        for payload in run["payloads"]
    ]
    assert flat == of_each
    firsts = [run["first"] for run in runs]
    assert [run["offset"] - runs[0]["offset"] for run in runs] == [first - firsts[0] for first in firsts]


def test_they_are_in_the_log_and_survive_a_restart() -> None:
    with Server("--store", "memory:") as server, server.connect() as client:
        client.ask({"cmd": "PUSH", "queue": "q", "messages": [1, 2], "headers": HEADERS})
        client.ask({"cmd": "PUSH", "queue": "q", "payload": 3, "tags": ["t"], "priority": 4})
        runs = client.ask({"cmd": "READ", "queue": "q", "offset": 0})["runs"]
        assert [(run["payloads"], run.get("headers"), run.get("tags")) for run in runs] == [
            ([1, 2], HEADERS, None),
            ([3], None, ["t"]),
        ]


def test_dead_letters_keep_them(client: Raw) -> None:
    client.ask({"cmd": "PUSH", "queue": "dead", "payload": 1, "headers": HEADERS, "max_attempts": 1})
    (message,) = popped(client, "dead")
    client.ask({"cmd": "NACK", "ids": [message["id"]]})
    (letter,) = client.ask({"cmd": "DEAD", "queue": "dead"})["messages"]
    assert letter["headers"] == HEADERS


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"headers": {"a": 1}}, "headers[...]"),
        ({"headers": ["a"]}, "headers"),
        ({"headers": {"": "x"}}, "headers"),
        ({"headers": {"a": "x" * 10_000}}, "headers"),
        ({"headers": {str(at): "" for at in range(65)}}, "headers"),
        ({"headers": {"a": "\ud800"}}, None),
        ({"tags": "a"}, "tags"),
        ({"tags": ["a", "a"]}, "tags"),
        ({"tags": [""]}, "tags"),
        ({"tags": [str(at) for at in range(65)]}, "tags"),
    ],
)
def test_what_can_be_neither_is_refused(client: Raw, fields: dict[str, Any], field: str | None) -> None:
    reply = client.ask({"cmd": "PUSH", "queue": "refused", "payload": 1, **fields})
    assert refused(reply, "invalid", field) or (field is None and reply["error"]["code"] == "invalid")
    assert "refused" not in [each["queue"] for each in client.ask({"cmd": "QUEUES"})["queues"]]


def test_many_large_headers_do_not_pile_up_in_one_segment(client: Raw) -> None:
    of_each = [{"payload": at, "headers": {"h": f"{at}-" + "x" * 4_000}} for at in range(200)]
    client.ask({"cmd": "PUSH", "queue": "large", "items": of_each})
    found = popped(client, "large", count=200)
    assert [message["headers"] for message in found] == [item["headers"] for item in of_each]
