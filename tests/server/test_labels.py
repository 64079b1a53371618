"""Headers and tags: what a producer says of a message, for whoever gets it."""

from typing import Any

import pytest

from tests.serving import Raw, Server, refused

HEADERS = {"trace": "a-1", "kind": "order"}


def jobs(client: Raw, queue: str, **fields: Any) -> list[dict[str, Any]]:
    reply = client.ask({"cmd": "PULLB", "queue": queue, "count": 100, "timeout": 0, **fields})
    found: list[dict[str, Any]] = reply["runs" if fields.get("compact") else "jobs"]
    return found


def test_headers_and_tags_come_with_the_message(client: Raw) -> None:
    pushed = {"cmd": "PUSH", "queue": "one", "data": 1, "headers": HEADERS, "tags": ["eu", "vip"]}
    message = client.ask(pushed)["id"]
    job = client.ask({"cmd": "PULL", "queue": "one", "timeout": 0})["job"]
    assert (job["headers"], job["tags"]) == (HEADERS, ["eu", "vip"])
    shown = client.ask({"cmd": "GETJOB", "id": message})["job"]
    assert (shown["headers"], shown["tags"]) == (HEADERS, ["eu", "vip"])


def test_a_message_without_has_neither(client: Raw) -> None:
    client.ask({"cmd": "PUSH", "queue": "none", "data": 1})
    client.ask({"cmd": "PUSH", "queue": "none", "data": 2, "headers": {}, "tags": []})
    for job in jobs(client, "none"):
        assert not {"headers", "tags"} & job.keys()


def test_each_of_a_batch_has_its_own(client: Raw) -> None:
    of_each = [
        {
            "data": at,
            **({"headers": {"n": str(at // 2)}} if at % 3 else {}),
            **({"tags": ["t"]} if at > 7 else {}),
        }
        for at in range(12)
    ]
    client.ask({"cmd": "PUSHB", "queue": "batch", "jobs": of_each})
    for fields in ({"group": "a"}, {"group": "b"}):
        found = jobs(client, "batch", **fields)
        assert [
            {name: job[name] for name in ("data", "headers", "tags") if name in job} for job in found
        ] == of_each
    runs = jobs(client, "batch", group="c", compact=True)
    flat = [
        {"data": data, **{name: run[name] for name in ("headers", "tags") if name in run}}
        for run in runs
        for data in run["messages"]
    ]
    assert flat == of_each
    firsts = [run["first"] for run in runs]
    assert [run["offset"] - runs[0]["offset"] for run in runs] == [first - firsts[0] for first in firsts]


def test_they_are_in_the_log_and_survive_a_restart() -> None:
    with Server("--store", "memory:") as server, server.connect() as client:
        client.ask({"cmd": "PUSHB", "queue": "q", "messages": [1, 2], "headers": HEADERS})
        client.ask({"cmd": "PUSH", "queue": "q", "data": 3, "tags": ["t"], "priority": 4})
        runs = client.ask({"cmd": "READ", "queue": "q", "offset": 0})["runs"]
        assert [(run["messages"], run.get("headers"), run.get("tags")) for run in runs] == [
            ([1, 2], HEADERS, None),
            ([3], None, ["t"]),
        ]


def test_dead_letters_keep_them(client: Raw) -> None:
    client.ask({"cmd": "PUSH", "queue": "dead", "data": 1, "headers": HEADERS, "max_attempts": 1})
    job = client.ask({"cmd": "PULL", "queue": "dead", "timeout": 0})["job"]
    client.ask({"cmd": "FAIL", "id": job["id"]})
    (letter,) = client.ask({"cmd": "DLQ", "queue": "dead"})["jobs"]
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
    reply = client.ask({"cmd": "PUSH", "queue": "refused", "data": 1, **fields})
    assert refused(reply, "invalid", field) or (field is None and reply["code"] == "invalid")
    assert "refused" not in [each["name"] for each in client.ask({"cmd": "LISTQUEUES"})["queues"]]


def test_many_large_headers_do_not_pile_up_in_one_segment(client: Raw) -> None:
    of_each = [{"data": at, "headers": {"h": f"{at}-" + "x" * 4_000}} for at in range(200)]
    client.ask({"cmd": "PUSHB", "queue": "large", "jobs": of_each})
    found = jobs(client, "large", count=200)
    assert [job["headers"] for job in found] == [job["headers"] for job in of_each]
