"""What every command does, asked of a real server over its socket."""

import uuid
from typing import Any

import pytest
from msgspec.structs import asdict

from forebay.core.state import QueueOptions
from tests.serving import Raw, Server, packed, pull, pull_all, push, refused, state, wait_for_pull

HOUR_MS = 3_600_000
NOBODY = dict.fromkeys(
    (
        *("waiting", "delayed", "waiting-children", "active", "completed"),
        *("failed", "expired", "cancelled", "evicted", "discarded"),
    ),
    0,
)
"""The counts of a group that has nothing."""


# One message.


def test_a_message_is_pushed_pulled_and_acked(client: Raw, queue: str) -> None:
    pushed = client.ask({"cmd": "PUSH", "queue": queue, "data": {"to": "ada"}})
    assert pushed == {"ok": True, "id": pushed["id"], "durability": "fsync"}
    job = pull(client, queue)
    assert job["expires_at"] > job["created_at"] > 0
    assert isinstance(job.pop("lease"), str)
    assert {key: job[key] for key in job if key not in ("created_at", "expires_at")} == {
        "id": pushed["id"],
        "queue": queue,
        "partition": "default",
        "offset": 0,
        "data": {"to": "ada"},
        "attempts": 0,
        "priority": 0,
    }
    assert client.ask({"cmd": "ACK", "id": pushed["id"]}) == {"ok": True}
    assert client.ask({"cmd": "PULL", "queue": queue, "timeout": 0}) == {"ok": True, "job": None}


@pytest.mark.parametrize(
    "data", [None, True, 0, -1.5, "", "é漢🦀", [], {}, [[1], {"a": [None]}], "x" * 70_000]
)
def test_any_json_value_is_a_payload(client: Raw, queue: str, data: Any) -> None:
    client.ask({"cmd": "PUSH", "queue": queue, "data": data})
    assert pull(client, queue)["data"] == data


def test_an_ack_by_lease_settles_all_of_it(client: Raw, queue: str) -> None:
    push(client, queue, 1, 2, 3)
    jobs = client.ask({"cmd": "PULLB", "queue": queue, "count": 3, "timeout": 0})["jobs"]
    assert client.ask({"cmd": "ACK", "lease": jobs[0]["lease"]}) == {"ok": True}
    assert [state(client, job["id"])["state"] for job in jobs] == ["completed"] * 3


def test_a_second_ack_is_a_conflict(client: Raw, queue: str) -> None:
    push(client, queue, 1)
    job = pull(client, queue)
    assert client.ask({"cmd": "ACK", "id": job["id"]})["ok"]
    assert refused(client.ask({"cmd": "ACK", "id": job["id"]}), "conflict")
    assert refused(client.ask({"cmd": "ACK", "lease": job["lease"]}), "conflict")


def test_a_message_leased_by_one_connection_can_be_acked_by_another(
    client: Raw, other: Raw, queue: str
) -> None:
    push(client, queue, 1)
    job = pull(client, queue)
    assert client.ask({"cmd": "PULL", "queue": queue, "timeout": 0})["job"] is None
    assert other.ask({"cmd": "ACK", "id": job["id"]}) == {"ok": True}


# Batches.


def test_a_batch_of_messages_gets_consecutive_ids(client: Raw, queue: str) -> None:
    reply = client.ask({"cmd": "PUSHB", "queue": queue, "messages": ["a", "b", "c"], "partition": "p"})
    assert reply == {"ok": True, "first": reply["first"], "count": 3, "durability": "fsync"}
    jobs = client.ask({"cmd": "PULLB", "queue": queue, "count": 9, "timeout": 0})["jobs"]
    assert [job["id"] for job in jobs] == [reply["first"] + at for at in range(3)]
    assert [job["data"] for job in jobs] == ["a", "b", "c"]
    assert {job["partition"] for job in jobs} == {"p"}
    assert len({job["lease"] for job in jobs}) == 1


def test_a_batch_of_jobs_gets_ids_in_the_order_of_the_jobs(client: Raw, queue: str) -> None:
    places = ["x", "default", "y", "x", "x", "default", "y", "x"]
    jobs = [{"data": at, "partition": place} for at, place in enumerate(places)]
    reply = client.ask({"cmd": "PUSHB", "queue": queue, "jobs": jobs})
    assert set(reply) == {"ok", "ids", "durability"}
    pulled = client.ask({"cmd": "PULLB", "queue": queue, "count": 100, "timeout": 0})["jobs"]
    by_id = {job["id"]: job for job in pulled}
    assert len(by_id) == len(places)
    assert [by_id[each]["data"] for each in reply["ids"]] == list(range(len(places)))
    assert [by_id[each]["partition"] for each in reply["ids"]] == places


def test_a_batch_of_jobs_in_one_partition_gets_consecutive_ids(client: Raw, queue: str) -> None:
    reply = client.ask({"cmd": "PUSHB", "queue": queue, "jobs": [{"data": 1}, {"data": 2}]})
    assert reply["ids"] == [reply["ids"][0], reply["ids"][0] + 1]


def test_a_batch_is_pushed_whole_or_not_at_all(client: Raw, queue: str) -> None:
    jobs = [{"data": 1, "partition": "good"}, {"data": 2, "partition": ""}]
    assert refused(client.ask({"cmd": "PUSHB", "queue": queue, "jobs": jobs}), "invalid", "partition")
    assert refused(client.ask({"cmd": "QUEUE", "queue": queue}), "not_found")


def test_a_compact_pull_gives_runs_under_one_lease(client: Raw, queue: str) -> None:
    first = push(client, queue, 1, {"two": 2}, "3", partition="p")
    second = push(client, queue, 4, partition="q")
    reply = client.ask({"cmd": "PULLB", "queue": queue, "count": 9, "timeout": 0, "compact": True})
    assert set(reply) == {"ok", "lease", "runs"}
    runs = {run["partition"]: run for run in reply["runs"]}
    assert set(runs["p"]) == {
        "partition",
        "first",
        "offset",
        "created_at",
        "attempts",
        "priority",
        "expires_at",
        "messages",
    }
    assert (runs["p"]["first"], runs["p"]["offset"], runs["p"]["attempts"]) == (first, 0, 0)
    assert runs["p"]["messages"] == [1, {"two": 2}, "3"]
    assert (runs["q"]["first"], runs["q"]["messages"]) == (second, [4])
    assert client.ask({"cmd": "ACKB", "lease": reply["lease"]}) == {"ok": True, "count": 4, "refused": []}


def test_a_compact_pull_of_nothing_has_no_lease(client: Raw, queue: str) -> None:
    reply = client.ask({"cmd": "PULLB", "queue": queue, "count": 9, "timeout": 0, "compact": True})
    assert reply == {"ok": True, "lease": None, "runs": []}


def test_a_pull_takes_no_more_than_its_count_and_only_from_its_partition(client: Raw, queue: str) -> None:
    push(client, queue, 1, 2, 3, partition="a")
    push(client, queue, 4, 5, 6, partition="b")
    reply = client.ask({"cmd": "PULLB", "queue": queue, "count": 2, "partition": "b", "timeout": 0})
    assert [job["data"] for job in reply["jobs"]] == [4, 5]
    assert pull(client, queue, partition="b")["data"] == 6
    assert client.ask({"cmd": "PULL", "queue": queue, "partition": "b", "timeout": 0})["job"] is None


def test_a_pull_with_too_few_for_its_min_count_takes_none(client: Raw, queue: str) -> None:
    push(client, queue, 1, 2)
    few = {"cmd": "PULLB", "queue": queue, "count": 5, "min_count": 3, "timeout": 0}
    assert client.ask(few) == {"ok": True, "jobs": []}
    push(client, queue, 3)
    assert [job["data"] for job in client.ask(few)["jobs"]] == [1, 2, 3]


def test_a_pull_whose_time_is_over_takes_fewer_than_its_min_count(client: Raw, queue: str) -> None:
    push(client, queue, 1, 2)
    reply = client.ask({"cmd": "PULLB", "queue": queue, "count": 5, "min_count": 3, "timeout": 50})
    assert [job["data"] for job in reply["jobs"]] == [1, 2]


def test_a_batch_of_acks_settles_those_that_are_leased(client: Raw, queue: str) -> None:
    first = push(client, queue, 1, 2, 3)
    client.ask({"cmd": "PULLB", "queue": queue, "count": 2, "timeout": 0})
    ids = [first, first + 1, first + 2, first + 70]
    assert client.ask({"cmd": "ACKB", "ids": ids}) == {"ok": True, "count": 2, "refused": ids[2:]}
    assert client.ask({"cmd": "ACKB", "ids": ids}) == {"ok": True, "count": 0, "refused": ids}
    assert [state(client, each)["state"] for each in ids[:3]] == ["completed", "completed", "waiting"]


# Failures.


@pytest.mark.parametrize("by", ["id", "ids", "lease"])
def test_a_failed_message_comes_again_with_its_error_counted(client: Raw, queue: str, by: str) -> None:
    client.ask({"cmd": "QUEUE", "queue": queue, "options": {"backoff": 0}})
    push(client, queue, "a", "b")
    job = pull(client, queue)
    named = {"id": job["id"], "ids": [job["id"]], "lease": job["lease"]}[by]
    failed = client.ask({"cmd": "FAIL", by: named, "error": "boom"})
    assert failed == {"ok": True, "count": 1, "refused": []}
    found = state(client, job["id"])
    assert (found["state"], found["attempts"], found["error"]) == ("waiting", 1, "boom")
    again = pull(client, queue)
    assert (again["id"], again["data"], again["attempts"]) == (job["id"], "a", 1)
    assert again["lease"] != job["lease"]
    assert state(client, job["id"])["state"] == "active"


def test_a_batch_of_failures_refuses_what_is_not_leased(client: Raw, queue: str) -> None:
    first = push(client, queue, 1, 2, 3)
    client.ask({"cmd": "PULLB", "queue": queue, "count": 2, "timeout": 0})
    reply = client.ask({"cmd": "FAIL", "ids": [first, first + 1, first + 2]})
    assert reply == {"ok": True, "count": 2, "refused": [first + 2]}
    assert refused(client.ask({"cmd": "FAIL", "ids": [first]}), "conflict")
    assert refused(client.ask({"cmd": "FAIL", "id": first + 2}), "conflict")


def test_an_error_is_cut_to_its_first_2000_characters(client: Raw, queue: str) -> None:
    push(client, queue, 1)
    job = pull(client, queue)
    client.ask({"cmd": "FAIL", "id": job["id"], "error": "é" * 2_001})
    assert state(client, job["id"])["error"] == "é" * 2_000


def test_a_lease_that_runs_out_is_a_failure(client: Raw, queue: str) -> None:
    push(client, queue, 1)
    job = pull(client, queue, lease_ms=1)
    again = pull(client, queue, timeout=20_000)
    assert (again["id"], again["attempts"]) == (job["id"], 1)
    assert state(client, job["id"])["error"] == "lease expired"
    assert refused(client.ask({"cmd": "ACK", "lease": job["lease"]}), "conflict")


# Leases.


@pytest.mark.parametrize("by", ["id", "ids", "lease"])
def test_a_lease_can_be_extended_and_never_gets_shorter(client: Raw, queue: str, by: str) -> None:
    push(client, queue, 1)
    job = pull(client, queue, lease_ms=60_000)
    named = {"id": job["id"], "ids": [job["id"]], "lease": job["lease"]}[by]
    longer = client.ask({"cmd": "EXTEND", by: named, "lease_ms": 600_000})
    assert longer["expires_at"] >= job["expires_at"] + 540_000
    assert longer == {
        "ok": True,
        "expires_at": longer["expires_at"],
        "cancelled": False,
        "count": 1,
        "refused": [],
    }
    assert client.ask({"cmd": "EXTEND", by: named, "lease_ms": 1})["expires_at"] == longer["expires_at"]


def test_extending_one_message_extends_its_whole_lease(client: Raw, queue: str) -> None:
    first = push(client, queue, 1, 2)
    client.ask({"cmd": "PULLB", "queue": queue, "count": 2, "timeout": 0, "lease_ms": 1_000})
    longer = client.ask({"cmd": "EXTEND", "id": first, "lease_ms": HOUR_MS})
    assert client.ask({"cmd": "EXTEND", "id": first + 1, "lease_ms": 1})["expires_at"] == longer["expires_at"]


def test_extending_what_is_not_leased_is_a_conflict(client: Raw, queue: str) -> None:
    first = push(client, queue, 1)
    assert refused(client.ask({"cmd": "EXTEND", "id": first}), "conflict")
    assert refused(client.ask({"cmd": "EXTEND", "lease": "12345"}), "conflict")


# The log.


def test_the_log_is_read_page_by_page(client: Raw, queue: str) -> None:
    first = push(client, queue, *range(7), partition="p")
    pages = []
    offset = 0
    while True:
        page = client.ask({"cmd": "READ", "queue": queue, "partition": "p", "offset": offset, "max_count": 3})
        assert (page["partition"], page["end"]) == ("p", 7)
        for run in page["runs"]:
            assert set(run) == {"first", "offset", "created_at", "messages"}
            assert run["first"] == first + run["offset"]
        if page["next"] == offset:
            break
        pages.append([each for run in page["runs"] for each in run["messages"]])
        offset = page["next"]
    assert pages == [[0, 1, 2], [3, 4, 5], [6]]


def test_a_read_ends_at_its_bytes_and_gives_at_least_one_message(client: Raw, queue: str) -> None:
    push(client, queue, "x" * 100, "y" * 100, "z" * 100)
    page = client.ask({"cmd": "READ", "queue": queue, "offset": 0, "max_bytes": 1})
    assert page["next"] == 1
    page = client.ask({"cmd": "READ", "queue": queue, "offset": 1, "max_bytes": 210})
    assert page["next"] == 3


def test_reading_takes_nothing_away(client: Raw, queue: str) -> None:
    push(client, queue, 1, 2)
    client.ask({"cmd": "READ", "queue": queue, "offset": 0})
    assert pull_all(client, queue) == [1, 2]
    assert client.ask({"cmd": "READ", "queue": queue, "offset": 0})["next"] == 2


def test_a_read_past_the_end_is_invalid_and_of_nothing_known_not_found(client: Raw, queue: str) -> None:
    push(client, queue, 1)
    assert client.ask({"cmd": "READ", "queue": queue, "offset": 1})["runs"] == []
    assert refused(client.ask({"cmd": "READ", "queue": queue, "offset": 2}), "invalid", "offset")
    assert refused(client.ask({"cmd": "READ", "queue": queue, "offset": -1}), "invalid", "offset")
    nowhere = {"cmd": "READ", "queue": queue, "offset": 0, "partition": "nowhere"}
    assert refused(client.ask(nowhere), "not_found")


def later_than(client: Raw, queue: str, time: int) -> None:
    """Return once the server's clock is past a time."""
    while True:
        message = push(client, f"{queue[:200]}.clock", 0)
        if state(client, message)["created_at"] > time:
            return


def test_offsets_say_where_each_log_begins_and_ends_and_was_at_a_time(client: Raw, queue: str) -> None:
    first = push(client, queue, 1, 2)
    before = state(client, first)["created_at"]
    later_than(client, queue, before)
    after = state(client, push(client, queue, 3, 4, 5))["created_at"]
    push(client, queue, 6, partition="p")
    offsets = client.ask({"cmd": "OFFSETS", "queue": queue})
    assert offsets["partitions"][0] == {
        "partition": "default",
        "numbers": [[first >> 32, 0]],
        "first": 0,
        "end": 5,
        "synced": 5,
        "at": None,
        "bytes": 5,
    }
    assert [(each["partition"], each["end"]) for each in offsets["partitions"]] == [("default", 5), ("p", 1)]
    for time, at in ((0, 0), (before, 0), (before + 1, 2), (after, 2), (after + HOUR_MS, 5)):
        found = client.ask({"cmd": "OFFSETS", "queue": queue, "at": time})["partitions"]
        assert found[0]["at"] == at, time


# Queues and counts.


def test_a_queue_is_configured_and_described(client: Raw, queue: str) -> None:
    assert refused(client.ask({"cmd": "QUEUE", "queue": queue}), "not_found")
    made = client.ask({"cmd": "QUEUE", "queue": queue, "options": {"lease_ms": 5_000}})
    defaults = asdict(QueueOptions())
    defaults["backoff"] = {"kind": "exponential", "base_ms": 1_000, "cap_ms": 1_024_000, "jitter": 0.0}
    defaults["limits"] = []
    assert made == {
        "ok": True,
        "queue": queue,
        "options": defaults | {"lease_ms": 5_000},
        "paused": False,
        "partitions": [],
        "groups": [],
        "staged": {"stages": 0, "messages": 0, "bytes": 0},
    }
    changed = {"completed_retention_ms": 7, "completed_retention_bytes": 8}
    described = client.ask({"cmd": "QUEUE", "queue": queue, "options": changed})
    assert described["options"] == defaults | changed | {"lease_ms": 5_000}
    assert client.ask({"cmd": "QUEUE", "queue": queue}) == described


def test_a_queue_is_described_with_its_partitions_and_groups(client: Raw, queue: str) -> None:
    push(client, queue, 1, 22, partition="p")
    client.ask({"cmd": "ACK", "id": pull(client, queue)["id"]})
    pull(client, queue, group="g")
    described = client.ask({"cmd": "QUEUE", "queue": queue})
    assert described["partitions"] == [{"partition": "p", "first": 0, "end": 2, "bytes": 3}]
    assert described["groups"] == [
        NOBODY | {"group": "default", "waiting": 1, "completed": 1},
        NOBODY | {"group": "g", "waiting": 1, "active": 1},
    ]


def test_the_lease_of_a_queue_counts_when_a_pull_does_not_say(client: Raw, queue: str) -> None:
    client.ask({"cmd": "QUEUE", "queue": queue, "options": {"lease_ms": HOUR_MS}})
    push(client, queue, 1)
    job = pull(client, queue)
    assert job["expires_at"] >= job["created_at"] + HOUR_MS


def test_every_queue_is_listed_with_its_counts(client: Raw, queue: str) -> None:
    push(client, queue, 1, 2, 3)
    client.ask({"cmd": "ACK", "id": pull(client, queue)["id"]})
    pull(client, queue)
    queues = client.ask({"cmd": "LISTQUEUES"})["queues"]
    (found,) = [each for each in queues if each["name"] == queue]
    counts = {"pending": 1, "processing": 1, "delayed": 0, "waiting-children": 0, "dlq": 0, "completed": 1}
    assert found == {"name": queue, **counts, "paused": False}
    assert [each["name"] for each in queues] == sorted(each["name"] for each in queues)


def test_a_message_goes_from_waiting_to_active_to_completed(client: Raw, queue: str) -> None:
    message = push(client, queue, 1)
    found = state(client, message)
    assert uuid.UUID(found["uuid"]).version == 7
    assert found == {
        "ok": True,
        "id": message,
        "uuid": found["uuid"],
        "state": "waiting",
        "created_at": found["created_at"],
        "attempts": 0,
        "deliveries": 0,
        "priority": 0,
    }
    pull(client, queue)
    assert state(client, message)["state"] == "active"
    client.ask({"cmd": "ACK", "id": found["uuid"]})
    assert state(client, found["uuid"]) == {**found, "state": "completed"}
    assert state(client, message, group="another")["state"] == "waiting"


def test_the_state_of_a_message_nobody_pushed_is_not_found(client: Raw, queue: str) -> None:
    message = push(client, queue, 1)
    assert refused(state(client, message + 1), "not_found")
    assert refused(state(client, 0), "not_found")
    assert refused(state(client, str((1 << 64) - 1)), "not_found")


def test_stats_count_the_messages_of_all_queues() -> None:
    with Server() as server, server.connect() as client:
        counts = {"queues": 0, "queued": 0, "processing": 0, "delayed": 0, "dlq": 0, "completed": 0}
        counts["waiting-children"] = 0
        assert client.ask({"cmd": "STATS"}) == {"ok": True, **counts}
        first = push(client, "a", 1, 2, 3)
        push(client, "b", 4, 5)
        client.ask({"cmd": "PUSH", "queue": "b", "data": 6, "depends_on": [first + 1]})
        client.ask({"cmd": "ACK", "id": pull(client, "a")["id"]})
        pull(client, "b")
        counts |= {"queues": 2, "queued": 3, "processing": 1, "completed": 1, "waiting-children": 1}
        assert client.ask({"cmd": "STATS"}) == {"ok": True, **counts}


# Groups.


def test_every_group_gets_every_message(client: Raw, queue: str) -> None:
    push(client, queue, 1, 2)
    for group in ("default", "audit", "é"):
        assert pull_all(client, queue, group=group) == [1, 2]
        assert pull_all(client, queue, group=group) == []


def test_a_group_begins_where_its_first_pull_says(client: Raw, queue: str) -> None:
    old = state(client, push(client, queue, "old"))["created_at"]
    later_than(client, queue, old)
    recent = state(client, push(client, queue, "recent"))["created_at"]
    assert pull_all(client, queue, group="new", **{"from": "new"}) == []
    push(client, queue, "next")
    assert pull_all(client, queue, group="all", **{"from": "all"}) == ["old", "recent", "next"]
    assert pull_all(client, queue, group="new", **{"from": "all"}) == ["next"]
    assert pull_all(client, queue, group="time", **{"from": recent}) == ["recent", "next"]
    assert pull_all(client, queue, group="just after", **{"from": old + 1}) == ["recent", "next"]
    assert pull_all(client, queue, group="ever", **{"from": 0}) == ["old", "recent", "next"]


def test_a_group_can_t_begin_in_the_future(client: Raw, queue: str) -> None:
    now = state(client, push(client, queue, 1))["created_at"]
    reply = client.ask({"cmd": "PULL", "queue": queue, "from": now + HOUR_MS, "timeout": 0})
    assert refused(reply, "invalid", "from")


def test_an_ack_is_for_the_group_it_names(client: Raw, other: Raw, queue: str) -> None:
    message = push(client, queue, 1)
    pull(client, queue)
    pull(client, queue, group="audit")
    assert other.ask({"cmd": "ACK", "id": message, "group": "audit"})["ok"]
    assert state(client, message, group="audit")["state"] == "completed"
    assert state(client, message)["state"] == "active"
    assert refused(other.ask({"cmd": "ACK", "id": message, "group": "audit"}), "conflict")


# Waiting.


def test_a_waiting_pull_is_woken_by_a_push_from_another_connection(
    client: Raw, other: Raw, queue: str
) -> None:
    wait_for_pull(client, queue)
    push(other, queue, "hello")
    woken = client.receive()
    assert (woken["reqId"], woken["job"]["data"]) == ("waiting", "hello")


def test_a_waiting_pull_is_woken_by_a_failure(client: Raw, other: Raw, queue: str) -> None:
    push(other, queue, 1)
    job = pull(other, queue)
    wait_for_pull(client, queue)
    other.ask({"cmd": "FAIL", "id": job["id"]})
    assert client.receive()["job"]["id"] == job["id"]


def test_waiting_pulls_are_served_in_the_order_they_came(client: Raw, other: Raw, queue: str) -> None:
    client.send(*({"cmd": "PULL", "queue": queue, "reqId": at} for at in range(10)))
    assert client.ask({"cmd": "STATS", "reqId": "all wait"})["reqId"] == "all wait"
    push(other, queue, *range(10))
    replies = [client.receive() for _ in range(10)]
    assert [(reply["reqId"], reply["job"]["data"]) for reply in replies] == [(at, at) for at in range(10)]


def test_a_waiting_pull_for_several_waits_until_there_are_enough(client: Raw, other: Raw, queue: str) -> None:
    client.send({"cmd": "PULLB", "queue": queue, "count": 5, "min_count": 3, "reqId": "waiting"})
    assert client.ask({"cmd": "STATS", "reqId": "done"})["reqId"] == "done"
    push(other, queue, 1)
    push(other, queue, 2)
    assert client.ask({"cmd": "STATS", "reqId": "still"})["reqId"] == "still"
    push(other, queue, 3)
    assert [job["data"] for job in client.receive()["jobs"]] == [1, 2, 3]


def test_a_waiting_pull_is_answered_null_when_its_time_is_over(client: Raw, queue: str) -> None:
    assert client.ask({"cmd": "PULL", "queue": queue, "timeout": 50}) == {"ok": True, "job": None}
    reply = client.ask({"cmd": "PULLB", "queue": queue, "count": 2, "timeout": 50})
    assert reply == {"ok": True, "jobs": []}


def test_a_pull_whose_time_was_over_takes_nothing_later(client: Raw, other: Raw, queue: str) -> None:
    client.ask({"cmd": "PULL", "queue": queue, "timeout": 1})
    push(other, queue, "mine")
    assert pull(other, queue)["data"] == "mine"


# The order of replies.


def test_without_req_ids_replies_come_in_the_order_of_the_requests(
    client: Raw, other: Raw, queue: str
) -> None:
    client.send(
        {"cmd": "PULL", "queue": queue},
        {"cmd": "STATS"},
        {"cmd": "NOPE"},
        {"cmd": "PUSH", "queue": f"{queue}.b", "data": 1},
    )
    # The last of them was carried out, though its answer has to wait.
    assert pull(other, f"{queue}.b", timeout=20_000)["data"] == 1
    push(other, queue, "first")
    assert client.receive()["job"]["data"] == "first"
    assert "queued" in client.receive()
    assert refused(client.receive(), "invalid", "cmd")
    assert "id" in client.receive()


def test_with_req_ids_a_reply_comes_as_soon_as_it_is_there(client: Raw, other: Raw, queue: str) -> None:
    client.send(
        {"cmd": "PULL", "queue": queue, "reqId": 1}, {"cmd": "STATS", "reqId": 2}, {"cmd": "NOPE", "reqId": 3}
    )
    assert sorted([client.receive()["reqId"], client.receive()["reqId"]]) == [2, 3]
    push(other, queue, "late")
    late = client.receive()
    assert (late["reqId"], late["job"]["data"]) == (1, "late")


def test_5000_requests_in_one_write_get_5000_replies_in_order(client: Raw, queue: str) -> None:
    client.send(packed(*({"cmd": "PUSH", "queue": queue, "data": at} for at in range(5_000))))
    ids = [client.receive()["id"] for _ in range(5_000)]
    assert ids == list(range(ids[0], ids[0] + 5_000))
    assert client.ask({"cmd": "READ", "queue": queue, "offset": 4_999})["runs"][0]["messages"] == [4_999]


def test_5000_requests_with_req_ids_are_each_answered_once(client: Raw, queue: str) -> None:
    client.send(packed(*({"cmd": "PUSH", "queue": queue, "data": 0, "reqId": at} for at in range(5_000))))
    assert sorted(client.receive()["reqId"] for _ in range(5_000)) == list(range(5_000))
