"""What every operation does, asked of a real server over its socket."""

import uuid
from typing import Any

import pytest
from msgspec.structs import asdict

from forebay.core.state import QueueOptions
from tests.serving import Raw, Server, packed, pop, pop_all, push, refused, state, wait_for_pop

HOUR_MS = 3_600_000
NOBODY = dict.fromkeys(
    (
        *("waiting", "delayed", "parked", "active", "completed"),
        *("dead", "expired", "cancelled", "evicted", "discarded", "deferred"),
    ),
    0,
)
"""The counts of a group that has nothing."""


# One message.


def test_a_message_is_pushed_popped_and_acked(client: Raw, queue: str) -> None:
    pushed = client.ask({"cmd": "PUSH", "queue": queue, "payload": {"to": "ada"}})
    assert pushed == {"ok": True, "id": pushed["id"], "durability": "fsync"}
    message = pop(client, queue)
    assert message["expires_at"] > message["created_at"] > 0
    assert isinstance(message.pop("lease"), str)
    assert {key: message[key] for key in message if key not in ("created_at", "expires_at")} == {
        "id": pushed["id"],
        "queue": queue,
        "partition": "default",
        "offset": 0,
        "payload": {"to": "ada"},
        "deliveries": 1,
        "failures": 0,
        "priority": 0,
    }
    assert client.ask({"cmd": "ACK", "ids": [pushed["id"]]}) == {"ok": True, "count": 1, "refused": []}
    assert client.ask({"cmd": "POP", "queue": queue, "wait_ms": 0}) == {
        "ok": True,
        "lease": None,
        "messages": [],
    }


@pytest.mark.parametrize(
    "payload", [None, True, 0, -1.5, "", "é漢🦀", [], {}, [[1], {"a": [None]}], "x" * 70_000]
)
def test_any_json_value_is_a_payload(client: Raw, queue: str, payload: Any) -> None:
    client.ask({"cmd": "PUSH", "queue": queue, "payload": payload})
    assert pop(client, queue)["payload"] == payload


def test_an_ack_by_lease_settles_all_of_it(client: Raw, queue: str) -> None:
    push(client, queue, 1, 2, 3)
    popped = client.ask({"cmd": "POP", "queue": queue, "count": 3, "wait_ms": 0})
    assert client.ask({"cmd": "ACK", "lease": popped["lease"]}) == {"ok": True, "count": 3, "refused": []}
    assert [state(client, each["id"])["state"] for each in popped["messages"]] == ["completed"] * 3


def test_a_second_ack_is_a_conflict(client: Raw, queue: str) -> None:
    push(client, queue, 1)
    message = pop(client, queue)
    assert client.ask({"cmd": "ACK", "ids": [message["id"]]})["ok"]
    assert refused(client.ask({"cmd": "ACK", "ids": [message["id"]]}), "conflict")
    assert refused(client.ask({"cmd": "ACK", "lease": message["lease"]}), "conflict")


def test_a_message_leased_by_one_connection_can_be_acked_by_another(
    client: Raw, other: Raw, queue: str
) -> None:
    push(client, queue, 1)
    message = pop(client, queue)
    assert client.ask({"cmd": "POP", "queue": queue, "wait_ms": 0})["messages"] == []
    assert other.ask({"cmd": "ACK", "ids": [message["id"]]})["count"] == 1


# Batches.


def test_a_batch_of_messages_gets_consecutive_ids(client: Raw, queue: str) -> None:
    reply = client.ask({"cmd": "PUSH", "queue": queue, "messages": ["a", "b", "c"], "partition": "p"})
    assert reply == {"ok": True, "first": reply["first"], "count": 3, "durability": "fsync"}
    popped = client.ask({"cmd": "POP", "queue": queue, "count": 9, "wait_ms": 0})
    assert [each["id"] for each in popped["messages"]] == [reply["first"] + at for at in range(3)]
    assert [each["payload"] for each in popped["messages"]] == ["a", "b", "c"]
    assert {each["partition"] for each in popped["messages"]} == {"p"}
    assert {each["lease"] for each in popped["messages"]} == {popped["lease"]}


def test_a_batch_of_items_gets_ids_in_the_order_of_the_items(client: Raw, queue: str) -> None:
    places = ["x", "default", "y", "x", "x", "default", "y", "x"]
    items = [{"payload": at, "partition": place} for at, place in enumerate(places)]
    reply = client.ask({"cmd": "PUSH", "queue": queue, "items": items})
    assert reply == {"ok": True, "ids": reply["ids"], "count": len(places), "durability": "fsync"}
    popped = client.ask({"cmd": "POP", "queue": queue, "count": 100, "wait_ms": 0})["messages"]
    by_id = {each["id"]: each for each in popped}
    assert len(by_id) == len(places)
    assert [by_id[each]["payload"] for each in reply["ids"]] == list(range(len(places)))
    assert [by_id[each]["partition"] for each in reply["ids"]] == places


def test_a_batch_of_items_in_one_partition_gets_consecutive_ids(client: Raw, queue: str) -> None:
    reply = client.ask({"cmd": "PUSH", "queue": queue, "items": [{"payload": 1}, {"payload": 2}]})
    assert reply["ids"] == [reply["ids"][0], reply["ids"][0] + 1]


def test_a_batch_is_pushed_whole_or_not_at_all(client: Raw, queue: str) -> None:
    items = [{"payload": 1, "partition": "good"}, {"payload": 2, "partition": ""}]
    assert refused(client.ask({"cmd": "PUSH", "queue": queue, "items": items}), "invalid", "partition")
    assert refused(client.ask({"cmd": "QUEUE", "queue": queue}), "not_found")


def test_a_compact_pop_gives_runs_under_one_lease(client: Raw, queue: str) -> None:
    first = push(client, queue, 1, {"two": 2}, "3", partition="p")
    second = push(client, queue, 4, partition="q")
    reply = client.ask({"cmd": "POP", "queue": queue, "count": 9, "wait_ms": 0, "compact": True})
    assert set(reply) == {"ok", "lease", "runs"}
    runs = {run["partition"]: run for run in reply["runs"]}
    assert set(runs["p"]) == {
        "partition",
        "first",
        "offset",
        "created_at",
        "deliveries",
        "failures",
        "priority",
        "expires_at",
        "payloads",
    }
    assert (runs["p"]["first"], runs["p"]["offset"]) == (first, 0)
    assert (runs["p"]["deliveries"], runs["p"]["failures"]) == (1, 0)
    assert runs["p"]["payloads"] == [1, {"two": 2}, "3"]
    assert (runs["q"]["first"], runs["q"]["payloads"]) == (second, [4])
    assert client.ask({"cmd": "ACK", "lease": reply["lease"]}) == {"ok": True, "count": 4, "refused": []}


def test_a_compact_pop_of_nothing_has_no_lease(client: Raw, queue: str) -> None:
    reply = client.ask({"cmd": "POP", "queue": queue, "count": 9, "wait_ms": 0, "compact": True})
    assert reply == {"ok": True, "lease": None, "runs": []}


def test_a_pop_takes_no_more_than_its_count_and_only_from_its_partition(client: Raw, queue: str) -> None:
    push(client, queue, 1, 2, 3, partition="a")
    push(client, queue, 4, 5, 6, partition="b")
    reply = client.ask({"cmd": "POP", "queue": queue, "count": 2, "partition": "b", "wait_ms": 0})
    assert [each["payload"] for each in reply["messages"]] == [4, 5]
    assert pop(client, queue, partition="b")["payload"] == 6
    assert client.ask({"cmd": "POP", "queue": queue, "partition": "b", "wait_ms": 0})["messages"] == []


def test_a_pop_with_too_few_for_its_min_count_takes_none(client: Raw, queue: str) -> None:
    push(client, queue, 1, 2)
    few = {"cmd": "POP", "queue": queue, "count": 5, "min_count": 3, "wait_ms": 0}
    assert client.ask(few) == {"ok": True, "lease": None, "messages": []}
    push(client, queue, 3)
    assert [each["payload"] for each in client.ask(few)["messages"]] == [1, 2, 3]


def test_a_pop_whose_time_is_over_takes_fewer_than_its_min_count(client: Raw, queue: str) -> None:
    push(client, queue, 1, 2)
    reply = client.ask({"cmd": "POP", "queue": queue, "count": 5, "min_count": 3, "wait_ms": 50})
    assert [each["payload"] for each in reply["messages"]] == [1, 2]


def test_a_batch_of_acks_settles_those_that_are_leased(client: Raw, queue: str) -> None:
    first = push(client, queue, 1, 2, 3)
    client.ask({"cmd": "POP", "queue": queue, "count": 2, "wait_ms": 0})
    ids = [first, first + 1, first + 2, first + 70]
    assert client.ask({"cmd": "ACK", "ids": ids}) == {"ok": True, "count": 2, "refused": ids[2:]}
    assert refused(client.ask({"cmd": "ACK", "ids": ids}), "conflict")
    assert [state(client, each)["state"] for each in ids[:3]] == ["completed", "completed", "waiting"]


# Failures.


@pytest.mark.parametrize("by", ["ids", "lease"])
def test_a_failed_message_comes_again_with_its_error_counted(client: Raw, queue: str, by: str) -> None:
    client.ask({"cmd": "QUEUE", "queue": queue, "options": {"backoff": 0}})
    push(client, queue, "a", "b")
    message = pop(client, queue)
    named = {"ids": [message["id"]], "lease": message["lease"]}[by]
    failed = client.ask({"cmd": "NACK", by: named, "error": "boom"})
    assert failed == {"ok": True, "count": 1, "refused": []}
    found = state(client, message["id"])
    assert (found["state"], found["failures"], found["error"]) == ("waiting", 1, "boom")
    again = pop(client, queue)
    assert (again["id"], again["payload"], again["failures"]) == (message["id"], "a", 1)
    assert again["lease"] != message["lease"]
    assert state(client, message["id"])["state"] == "active"


def test_a_batch_of_failures_refuses_what_is_not_leased(client: Raw, queue: str) -> None:
    first = push(client, queue, 1, 2, 3)
    client.ask({"cmd": "POP", "queue": queue, "count": 2, "wait_ms": 0})
    reply = client.ask({"cmd": "NACK", "ids": [first, first + 1, first + 2]})
    assert reply == {"ok": True, "count": 2, "refused": [first + 2]}
    assert refused(client.ask({"cmd": "NACK", "ids": [first]}), "conflict")
    assert refused(client.ask({"cmd": "NACK", "ids": [first + 2]}), "conflict")


def test_an_error_is_cut_to_its_first_2000_characters(client: Raw, queue: str) -> None:
    push(client, queue, 1)
    message = pop(client, queue)
    client.ask({"cmd": "NACK", "ids": [message["id"]], "error": "é" * 2_001})
    assert state(client, message["id"])["error"] == "é" * 2_000


def test_a_lease_that_runs_out_is_a_failure(client: Raw, queue: str) -> None:
    push(client, queue, 1)
    message = pop(client, queue, lease_ms=1)
    again = pop(client, queue, wait_ms=20_000)
    assert (again["id"], again["failures"]) == (message["id"], 1)
    assert state(client, message["id"])["error"] == "lease expired"
    assert refused(client.ask({"cmd": "ACK", "lease": message["lease"]}), "conflict")


# Leases.


@pytest.mark.parametrize("by", ["ids", "lease"])
def test_a_lease_can_be_extended_and_never_gets_shorter(client: Raw, queue: str, by: str) -> None:
    push(client, queue, 1)
    message = pop(client, queue, lease_ms=60_000)
    named = {"ids": [message["id"]], "lease": message["lease"]}[by]
    longer = client.ask({"cmd": "EXTEND", by: named, "lease_ms": 600_000})
    assert longer["expires_at"] >= message["expires_at"] + 540_000
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
    client.ask({"cmd": "POP", "queue": queue, "count": 2, "wait_ms": 0, "lease_ms": 1_000})
    longer = client.ask({"cmd": "EXTEND", "ids": [first], "lease_ms": HOUR_MS})
    assert (
        client.ask({"cmd": "EXTEND", "ids": [first + 1], "lease_ms": 1})["expires_at"] == longer["expires_at"]
    )


def test_extending_what_is_not_leased_is_a_conflict(client: Raw, queue: str) -> None:
    first = push(client, queue, 1)
    assert refused(client.ask({"cmd": "EXTEND", "ids": [first]}), "conflict")
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
            assert set(run) == {"first", "offset", "created_at", "payloads"}
            assert run["first"] == first + run["offset"]
        if page["next"] == offset:
            break
        pages.append([each for run in page["runs"] for each in run["payloads"]])
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
    assert pop_all(client, queue) == [1, 2]
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
    client.ask({"cmd": "ACK", "ids": [pop(client, queue)["id"]]})
    pop(client, queue, group="g")
    described = client.ask({"cmd": "QUEUE", "queue": queue})
    assert described["partitions"] == [
        {"partition": "p", "first": 0, "end": 2, "bytes": 3, "lane": False, "retention": {}}
    ]
    times = [group.pop("oldest_at") for group in described["groups"]]
    assert all(isinstance(each, int) for each in times)
    assert described["groups"] == [
        {"group": "default", "counts": NOBODY | {"waiting": 1, "completed": 1}},
        {"group": "g", "counts": NOBODY | {"waiting": 1, "active": 1}},
    ]


def test_the_lease_of_a_queue_counts_when_a_pop_does_not_say(client: Raw, queue: str) -> None:
    client.ask({"cmd": "QUEUE", "queue": queue, "options": {"lease_ms": HOUR_MS}})
    push(client, queue, 1)
    message = pop(client, queue)
    assert message["expires_at"] >= message["created_at"] + HOUR_MS


def test_every_queue_is_listed_with_its_counts(client: Raw, queue: str) -> None:
    first = push(client, queue, 1, 2, 3)
    client.ask({"cmd": "ACK", "ids": [pop(client, queue)["id"]]})
    pop(client, queue)
    queues = client.ask({"cmd": "QUEUES"})["queues"]
    (found,) = [each for each in queues if each["queue"] == queue]
    counts = NOBODY | {"waiting": 1, "active": 1, "completed": 1}
    oldest_at = state(client, first + 2)["created_at"]
    group = {"group": "default", "counts": counts, "oldest_at": oldest_at}
    about = {"queue": queue, "paused": False, "counts": counts, "oldest_at": oldest_at}
    assert found == {**about, "groups": [group]}
    assert [each["queue"] for each in queues] == sorted(each["queue"] for each in queues)


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
        "failures": 0,
        "deliveries": 0,
        "priority": 0,
    }
    pop(client, queue)
    assert state(client, message)["state"] == "active"
    client.ask({"cmd": "ACK", "ids": [found["uuid"]]})
    assert state(client, found["uuid"]) == {**found, "state": "completed"}
    assert state(client, message, group="another")["state"] == "waiting"


def test_the_state_of_a_message_nobody_pushed_is_not_found(client: Raw, queue: str) -> None:
    message = push(client, queue, 1)
    assert refused(state(client, message + 1), "not_found")
    assert refused(state(client, 0), "not_found")
    assert refused(state(client, str((1 << 64) - 1)), "not_found")


def test_stats_count_the_messages_of_all_queues() -> None:
    with Server() as server, server.connect() as client:
        assert client.ask({"cmd": "STATS"}) == {"ok": True, "queues": 0, "counts": NOBODY, "groups": []}
        first = push(client, "a", 1, 2, 3)
        push(client, "b", 4, 5)
        client.ask({"cmd": "PUSH", "queue": "b", "payload": 6, "depends_on": [first + 1]})
        client.ask({"cmd": "ACK", "ids": [pop(client, "a")["id"]]})
        pop(client, "b")
        counts = NOBODY | {"waiting": 3, "active": 1, "completed": 1, "parked": 1}
        stats = client.ask({"cmd": "STATS"})
        (group,) = stats.pop("groups")
        assert stats == {"ok": True, "queues": 2, "counts": counts, "oldest_at": group["oldest_at"]}
        assert group == {"group": "default", "counts": counts, "oldest_at": group["oldest_at"]}


# Groups.


def test_every_group_gets_every_message(client: Raw, queue: str) -> None:
    push(client, queue, 1, 2)
    for group in ("default", "audit", "é"):
        assert pop_all(client, queue, group=group) == [1, 2]
        assert pop_all(client, queue, group=group) == []


def test_a_group_begins_where_its_first_pop_says(client: Raw, queue: str) -> None:
    old = state(client, push(client, queue, "old"))["created_at"]
    later_than(client, queue, old)
    recent = state(client, push(client, queue, "recent"))["created_at"]
    assert pop_all(client, queue, group="new", **{"from": "new"}) == []
    push(client, queue, "next")
    assert pop_all(client, queue, group="all", **{"from": "all"}) == ["old", "recent", "next"]
    assert pop_all(client, queue, group="new", **{"from": "all"}) == ["next"]
    assert pop_all(client, queue, group="time", **{"from": recent}) == ["recent", "next"]
    assert pop_all(client, queue, group="just after", **{"from": old + 1}) == ["recent", "next"]
    assert pop_all(client, queue, group="ever", **{"from": 0}) == ["old", "recent", "next"]


def test_a_group_can_t_begin_in_the_future(client: Raw, queue: str) -> None:
    now = state(client, push(client, queue, 1))["created_at"]
    reply = client.ask({"cmd": "POP", "queue": queue, "from": now + HOUR_MS, "wait_ms": 0})
    assert refused(reply, "invalid", "from")


def test_an_ack_is_for_the_group_it_names(client: Raw, other: Raw, queue: str) -> None:
    message = push(client, queue, 1)
    pop(client, queue)
    pop(client, queue, group="audit")
    assert other.ask({"cmd": "ACK", "ids": [message], "group": "audit"})["ok"]
    assert state(client, message, group="audit")["state"] == "completed"
    assert state(client, message)["state"] == "active"
    assert refused(other.ask({"cmd": "ACK", "ids": [message], "group": "audit"}), "conflict")


# Waiting.


def test_a_waiting_pop_is_woken_by_a_push_from_another_connection(
    client: Raw, other: Raw, queue: str
) -> None:
    wait_for_pop(client, queue)
    push(other, queue, "hello")
    woken = client.receive()
    assert (woken["reqId"], woken["messages"][0]["payload"]) == ("waiting", "hello")


def test_a_waiting_pop_is_woken_by_a_failure(client: Raw, other: Raw, queue: str) -> None:
    push(other, queue, 1)
    message = pop(other, queue)
    wait_for_pop(client, queue)
    other.ask({"cmd": "NACK", "ids": [message["id"]]})
    assert client.receive()["messages"][0]["id"] == message["id"]


def test_waiting_pops_are_served_in_the_order_they_came(client: Raw, other: Raw, queue: str) -> None:
    client.send(*({"cmd": "POP", "queue": queue, "wait_ms": 60_000, "reqId": at} for at in range(10)))
    assert client.ask({"cmd": "STATS", "reqId": "all wait"})["reqId"] == "all wait"
    push(other, queue, *range(10))
    replies = [client.receive() for _ in range(10)]
    assert [(reply["reqId"], reply["messages"][0]["payload"]) for reply in replies] == [
        (at, at) for at in range(10)
    ]


def test_a_waiting_pop_for_several_waits_until_there_are_enough(client: Raw, other: Raw, queue: str) -> None:
    wait_for_pop(client, queue, count=5, min_count=3)
    push(other, queue, 1)
    push(other, queue, 2)
    assert client.ask({"cmd": "STATS", "reqId": "still"})["reqId"] == "still"
    push(other, queue, 3)
    assert [each["payload"] for each in client.receive()["messages"]] == [1, 2, 3]


def test_a_waiting_pop_is_answered_with_nothing_when_its_time_is_over(client: Raw, queue: str) -> None:
    assert client.ask({"cmd": "POP", "queue": queue, "wait_ms": 50}) == {
        "ok": True,
        "lease": None,
        "messages": [],
    }
    reply = client.ask({"cmd": "POP", "queue": queue, "count": 2, "wait_ms": 50})
    assert reply == {"ok": True, "lease": None, "messages": []}


def test_a_pop_whose_time_was_over_takes_nothing_later(client: Raw, other: Raw, queue: str) -> None:
    client.ask({"cmd": "POP", "queue": queue, "wait_ms": 1})
    push(other, queue, "mine")
    assert pop(other, queue)["payload"] == "mine"


# The order of replies.


def test_without_req_ids_replies_come_in_the_order_of_the_requests(
    client: Raw, other: Raw, queue: str
) -> None:
    client.send(
        {"cmd": "POP", "queue": queue, "wait_ms": 60_000},
        {"cmd": "STATS"},
        {"cmd": "NOPE"},
        {"cmd": "PUSH", "queue": f"{queue}.b", "payload": 1},
    )
    # The last of them was carried out, though its answer has to wait.
    assert pop(other, f"{queue}.b", wait_ms=20_000)["payload"] == 1
    push(other, queue, "first")
    assert client.receive()["messages"][0]["payload"] == "first"
    assert "counts" in client.receive()
    assert refused(client.receive(), "invalid", "cmd")
    assert "id" in client.receive()


def test_with_req_ids_a_reply_comes_as_soon_as_it_is_there(client: Raw, other: Raw, queue: str) -> None:
    client.send(
        {"cmd": "POP", "queue": queue, "wait_ms": 60_000, "reqId": 1},
        {"cmd": "STATS", "reqId": 2},
        {"cmd": "NOPE", "reqId": 3},
    )
    assert sorted([client.receive()["reqId"], client.receive()["reqId"]]) == [2, 3]
    push(other, queue, "late")
    late = client.receive()
    assert (late["reqId"], late["messages"][0]["payload"]) == (1, "late")


def test_5000_requests_in_one_write_get_5000_replies_in_order(client: Raw, queue: str) -> None:
    client.send(packed(*({"cmd": "PUSH", "queue": queue, "payload": at} for at in range(5_000))))
    ids = [client.receive()["id"] for _ in range(5_000)]
    assert ids == list(range(ids[0], ids[0] + 5_000))
    assert client.ask({"cmd": "READ", "queue": queue, "offset": 4_999})["runs"][0]["payloads"] == [4_999]


def test_5000_requests_with_req_ids_are_each_answered_once(client: Raw, queue: str) -> None:
    client.send(packed(*({"cmd": "PUSH", "queue": queue, "payload": 0, "reqId": at} for at in range(5_000))))
    assert sorted(client.receive()["reqId"] for _ in range(5_000)) == list(range(5_000))
