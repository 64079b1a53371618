"""Queues over HTTP: described, configured, paused, cleared, deleted; their dead letters and groups."""

import os
import signal
from typing import Any

import pytest

from forebay.core.state import QueueOptions
from tests.server.http.talking import Answer, Http, at
from tests.serving import Server

HOUR_MS = 3_600_000


def refused(answer: Answer, status: int, code: str) -> bool:
    return (answer.status, answer.code) == (status, code)


# Describe and configure.


def test_a_queue_is_made_and_described(http: Http, queue: str) -> None:
    assert refused(http.ask("GET", at(queue)), 404, "not_found")
    made = http.put(at(queue), options={"lease_ms": 5_000, "backoff": [1, 2], "rate_limit": 7})
    assert http.get(at(queue)) == made
    assert (made["queue"], made["paused"], made["groups"]) == (queue, False, [])
    assert set(made["options"]) == set(QueueOptions.__struct_fields__)
    assert (made["options"]["lease_ms"], made["options"]["backoff"]) == (5_000, [1, 2])
    assert made["options"]["rate_limit"] == {"limit": 7, "per_ms": 1_000, "burst": 7}


def test_options_that_are_not_given_stay(http: Http, queue: str) -> None:
    http.put(at(queue), options={"lease_ms": 5_000})
    after = http.put(at(queue), options={"max_attempts": 9})["options"]
    assert (after["lease_ms"], after["max_attempts"]) == (5_000, 9)
    assert http.put(at(queue))["options"] == after


def test_what_a_queue_shows_can_be_given_to_another(http: Http, queue: str) -> None:
    options = http.put(at(queue), options={"backoff": {"kind": "fixed", "base_ms": 5}})["options"]
    assert http.put(at(f"{queue}-too"), options=options)["options"] == options


def test_a_queue_shows_its_partitions_and_groups(http: Http, queue: str) -> None:
    http.push(queue, 1, 22)
    http.push(queue, 3, partition="p")
    http.pop(queue)
    http.put(at(queue), options={"retention_ms": HOUR_MS}, partition="p")
    found = http.get(at(queue))
    parts = {each["partition"]: each for each in found["partitions"]}
    assert parts["default"] == {
        "partition": "default",
        "first": 0,
        "end": 2,
        "bytes": 3,
        "lane": False,
        "retention": {},
    }
    assert parts["p"]["retention"] == {"retention_ms": HOUR_MS}
    assert [each["group"] for each in found["groups"]] == ["default"]
    assert (found["groups"][0]["counts"]["waiting"], found["groups"][0]["counts"]["active"]) == (2, 1)


def test_a_dry_run_counts_what_would_be_cleared_out(http: Http, queue: str) -> None:
    first = http.push(queue, 1, 2, 3, 4, 5)
    http.post(f"/v1/queues/{queue}/messages", payload=6, depends_on=[first + 4])
    http.push(queue, 7, delay_ms=3_600_000)
    http.post("/v1/ack", lease=http.pop(queue, 2)["lease"])
    for group in ("default", "other"):
        http.put(f"/v1/groups/{queue}/{group}")
        for path, fields in (
            ("purge", {"states": ["completed", "completed"]}),
            ("purge", {"states": ["waiting", "waiting"]}),
            ("drain", {}),
            ("purge", {"states": ["parked"]}),
        ):
            tried = http.post(f"/v1/queues/{queue}/{path}", group=group, dry_run=True, **fields)
            done = http.post(f"/v1/queues/{queue}/{path}", group=group, **fields)
            assert tried == {**done, "dry_run": True}, (group, path, fields)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"surprise": 1}, "options.surprise"),
        ({"lease_ms": "long"}, "options.lease_ms"),
        ({"lease_ms": 0}, "lease_ms"),
        ({"durability": "maybe"}, "durability"),
        ({"backoff": {"kind": "dance"}}, "backoff.kind"),
    ],
)
def test_options_that_can_not_be_are_refused(
    options: dict[str, Any], field: str, http: Http, queue: str
) -> None:
    answer = http.ask("PUT", at(queue), {"options": options})
    assert refused(answer, 400, "invalid")
    assert answer.details["field"] in (field, field.partition(".")[0])
    assert http.ask("GET", at(queue)).status == 404


def test_queues_are_listed_and_counted() -> None:
    with Server() as alone, Http(alone.http) as http:
        http.push("other", 1)
        before = http.get("/v1/stats")
        http.push("counted", 1, 2, 3)
        http.pop("counted")
        (found,) = [each for each in http.get("/v1/queues")["queues"] if each["queue"] == "counted"]
        assert (found["paused"], found["counts"]["waiting"], found["counts"]["active"]) == (False, 2, 1)
        after = http.get("/v1/stats")
        assert (before["queues"], after["queues"]) == (1, 2)
        assert (before["counts"]["waiting"], after["counts"]["waiting"]) == (1, 3)
        assert (before["counts"]["active"], after["counts"]["active"]) == (0, 1)


def test_the_name_of_a_queue_has_limits(http: Http) -> None:
    for name in ("a%20b", "x" * 257, "%C3%A9"):
        answer = http.send("PUT", f"/v1/queues/{name}", b"{}")
        assert refused(answer, 400, "invalid")
        assert answer.details["field"] == "queue"


# Pause, drain, purge, seek.


def test_a_paused_queue_delivers_nothing_until_it_is_resumed(http: Http, queue: str) -> None:
    http.push(queue, 1)
    assert http.post(f"{at(queue)}/pause") == {"paused": True}
    assert http.get(at(queue))["paused"] is True
    http.push(queue, 2)
    assert http.popped(queue) == []
    assert http.post(f"{at(queue)}/resume") == {"paused": False}
    assert http.popped(queue) == [1, 2]


def test_a_pause_may_have_an_end(http: Http, queue: str) -> None:
    http.push(queue, 1)
    created_at = http.get(f"{at(queue)}/messages")["messages"][0]["created_at"]
    until = created_at + HOUR_MS
    assert http.post(f"{at(queue)}/pause", until=until) == {"paused": True, "until": until}
    assert http.get(at(queue))["paused_until"] == until
    assert refused(http.ask("POST", f"{at(queue)}/pause", {"until": 1}), 400, "invalid")


def test_what_waits_is_drained_and_what_is_leased_goes_on(http: Http, queue: str) -> None:
    http.push(queue, 1, 2, 3)
    http.push(queue, 4, delay_ms=HOUR_MS)
    lease = http.pop(queue)["lease"]
    assert http.post(f"{at(queue)}/drain", dry_run=True) == {"count": 3, "more": False, "dry_run": True}
    assert http.counts(queue) == {"waiting": 2, "delayed": 1, "active": 1}
    assert http.post(f"{at(queue)}/drain") == {"count": 3, "more": False, "dry_run": False}
    assert http.counts(queue) == {"cancelled": 3, "active": 1}
    assert http.post("/v1/ack", lease=lease)["count"] == 1


def test_states_can_be_purged_one_by_one(http: Http, queue: str) -> None:
    http.put(at(queue), options={"max_attempts": 1})
    http.push(queue, 1, 2)
    http.post("/v1/nack", lease=http.pop(queue)["lease"])
    assert http.post(f"{at(queue)}/purge", states=["dead"], dry_run=True)["count"] == 1
    assert http.post(f"{at(queue)}/purge", states=["dead"])["count"] == 1
    assert http.counts(queue) == {"waiting": 1, "discarded": 1}
    for states in ([], ["active"], ["nowhere"]):
        answer = http.ask("POST", f"{at(queue)}/purge", {"states": states})
        assert refused(answer, 400, "invalid")
        assert answer.details["field"] == "states"
    http.post(f"{at(queue)}/purge")
    assert http.popped(queue) == []


def test_a_group_reads_on_from_where_it_is_told_to(http: Http, queue: str) -> None:
    http.push(queue, 0, 1, 2)
    http.popped(queue)
    path = f"{at(queue)}/seek"
    assert http.post(path, to="all") == {"partitions": [{"partition": "default", "cursor": 0}]}
    assert http.popped(queue) == [0, 1, 2]
    assert http.post(path, partition="default", offset=2)["partitions"][0]["cursor"] == 2
    assert http.popped(queue) == [2]
    assert http.post(path, to="new")["partitions"][0]["cursor"] == 3
    created_at = http.get(f"{at(queue)}/messages")["messages"][0]["created_at"]
    assert http.post(path, to=created_at)["partitions"][0]["cursor"] == 0
    for body in ({}, {"to": "all", "offset": 1}, {"to": "sometime"}, {"offset": 1}):
        assert refused(http.ask("POST", path, body), 400, "invalid")
    assert refused(http.ask("POST", path, {"to": "all", "group": "none"}), 404, "not_found")


# Deletion in two phases.


def closing(http: Http, queue: str) -> tuple[str, int]:
    """A queue that is closed, and waits for the end of a lease: that, and the id of what it holds."""
    first = http.push(queue, 1, 2)
    lease = http.pop(queue, lease_ms=HOUR_MS)["lease"]
    answer = http.delete(at(queue))
    assert (answer["queue"], answer["deleted"], answer["active"]) == (queue, False, 1)
    assert answer["until"] >= HOUR_MS
    return lease, first


def test_a_queue_of_which_nothing_is_leased_goes_at_once(http: Http, queue: str) -> None:
    http.push(queue, 1)
    answer = http.delete(at(queue))
    assert (answer["deleted"], answer["active"]) == (True, 0)
    for method in ("GET", "DELETE"):
        assert refused(http.ask(method, at(queue)), 404, "not_found")
    assert http.popped(queue) == []


def test_a_closed_queue_takes_and_gives_nothing(http: Http, queue: str) -> None:
    lease, _ = closing(http, queue)
    for method, path, body in (
        ("POST", "/messages", {"payload": 1}),
        ("POST", "/pop", {}),
        ("GET", "", None),
        ("PUT", "", {}),
        ("POST", "/pause", {}),
        ("GET", "/messages", None),
        ("POST", "/bulk", {"action": "cancel"}),
    ):
        answer = http.ask(method, f"{at(queue)}{path}", body)
        assert refused(answer, 409, "conflict"), (method, path, answer)
    assert refused(http.lines(queue, b'{"payload": 1}\n'), 409, "conflict")
    assert queue not in [each["queue"] for each in http.get("/v1/queues")["queues"]]
    assert http.post("/v1/extend", lease=lease, lease_ms=1_000)["count"] == 1
    again = http.delete(at(queue))
    assert (again["deleted"], again["active"]) == (False, 1)


@pytest.mark.parametrize("how", ["ack", "nack"])
def test_a_closed_queue_goes_with_the_last_lease(how: str, http: Http, queue: str) -> None:
    lease, first = closing(http, queue)
    assert http.post(f"/v1/{how}", lease=lease)["count"] == 1
    assert refused(http.ask("GET", at(queue)), 404, "not_found")
    assert refused(http.ask("GET", f"{at(queue)}/messages/{first}"), 404, "not_found")
    http.push(queue, "another")
    assert http.popped(queue) == ["another"]


def test_a_queue_goes_at_once_by_force(http: Http, queue: str) -> None:
    lease, _ = closing(http, queue)
    assert http.delete(at(queue), force=True)["deleted"] is True
    assert refused(http.ask("GET", at(queue)), 404, "not_found")
    assert refused(http.ask("POST", "/v1/ack", {"lease": lease}), 409, "conflict")
    http.push(queue, 1)
    http.pop(queue)
    assert http.delete(at(queue), force=True)["deleted"] is True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_what_was_closed_and_what_was_made_is_so_after_a_restart(number: int, tmp_path: Any) -> None:
    flags = ("--data", str(tmp_path / "data"))
    server = Server(*flags)
    server.__enter__()
    with Http(server.http) as http:
        lease, _ = closing(http, "q")
        http.push("kept", 1, 2, 3)
        http.put("/v1/groups/kept/late", **{"from": "new"})
        http.put("/v1/groups/kept/gone")
        http.delete("/v1/groups/kept/gone")
        http.put("/v1/kv/a/b", value=1)
        http.put("/v1/crons/nightly", queue="kept", message={"payload": 1}, schedule="@yearly")
    os.kill(server.pid, number)
    server.wait()
    server.__exit__(ValueError)
    with Server(*flags) as server, Http(server.http) as http:
        assert refused(http.ask("POST", f"{at('q')}/messages", {"payload": 1}), 409, "conflict")
        assert refused(http.ask("POST", f"{at('q')}/pop", {}), 409, "conflict")
        assert http.post("/v1/ack", lease=lease)["count"] == 1
        assert refused(http.ask("GET", at("q")), 404, "not_found")
        groups = [each["group"] for each in http.get("/v1/groups/kept")["groups"]]
        assert groups == ["late"]
        assert http.popped("kept", group="late") == []
        assert http.popped("kept", group="gone") == [1, 2, 3]
        assert http.get("/v1/kv/a/b")["value"] == 1
        assert http.get("/v1/crons/nightly")["queue"] == "kept"


def test_crons_go_with_their_queue(http: Http, queue: str) -> None:
    http.put(f"/v1/crons/{queue}", queue=queue, message={"payload": 1}, schedule="@yearly")
    http.delete(at(queue))
    assert refused(http.ask("GET", f"/v1/crons/{queue}"), 404, "not_found")


# Dead letters.


def bury(http: Http, queue: str, *payloads: Any) -> int:
    """Dead letters; the id of the first."""
    http.put(at(queue), options={"max_attempts": 1})
    first = http.push(queue, *payloads, tags=["t"], headers={"h": "v"})
    http.post("/v1/nack", lease=http.pop(queue, len(payloads))["lease"], error="no")
    return first


def test_dead_letters_are_listed_with_their_errors(http: Http, queue: str) -> None:
    first = bury(http, queue, "a", "b", "c")
    found = http.get(f"{at(queue)}/dead")
    assert found["total"] == 3
    letter = found["messages"][0]
    assert (letter["id"], letter["payload"], letter["error"]) == (first, "a", "no")
    assert (letter["deliveries"], letter["failures"], letter["group"]) == (1, 1, "default")
    assert (letter["queue"], letter["state"]) == (queue, "dead")
    assert letter["ended_at"] >= letter["created_at"]
    assert (letter["tags"], letter["headers"]) == (["t"], {"h": "v"})
    page = http.get(f"{at(queue)}/dead", limit=1, skip=1)
    assert ([each["payload"] for each in page["messages"]], page["total"]) == (["b"], 3)
    assert http.get(f"{at(queue)}/dead", group="audit") == {"messages": [], "total": 0}
    for field, value in (("limit", 0), ("limit", 1_001), ("skip", -1)):
        answer = http.ask("GET", f"{at(queue)}/dead?{field}={value}")
        assert refused(answer, 400, "invalid")
        assert answer.details["field"] == field


def test_dead_letters_are_requeued(http: Http, queue: str) -> None:
    first = bury(http, queue, "a", "b", "c")
    path = f"{at(queue)}/dead"
    tried = http.post(path, ids=[first], dry_run=True)
    assert tried == {"count": 1, "left": 3, "dry_run": True, "refused": [], "dependents": 0}
    assert http.popped(queue) == []
    done = http.post(path, ids=[first, first + 100])
    assert done == {"count": 1, "left": 2, "dry_run": False, "refused": [first + 100], "dependents": 0}
    assert http.popped(queue) == ["a"]
    assert http.post(path)["count"] == 2
    assert http.popped(queue) == ["b", "c"]
    assert refused(http.ask("POST", path, {"ids": [first]}), 404, "not_found")


def test_dead_letters_are_purged(http: Http, queue: str) -> None:
    first = bury(http, queue, "a", "b", "c", "d")
    path = f"{at(queue)}/dead"
    assert http.delete(path, dry_run=True) == {"count": 4, "left": 4, "dry_run": True, "refused": []}
    assert http.delete(path, ids=[first, str(first + 2)])["count"] == 2
    assert [each["payload"] for each in http.get(path)["messages"]] == ["b", "d"]
    assert http.delete(path) == {"count": 2, "left": 0, "dry_run": False, "refused": []}
    assert http.counts(queue) == {"discarded": 4}


# Groups.


def test_a_group_is_made_before_anybody_pops_for_it(http: Http, queue: str) -> None:
    assert refused(http.ask("PUT", f"/v1/groups/{queue}/audit", {}), 404, "not_found")
    http.push(queue, 1)
    made = http.put(f"/v1/groups/{queue}/late", **{"from": "new"})
    assert (made["queue"], [each["group"] for each in made["groups"]]) == (queue, ["late"])
    http.put(f"/v1/groups/{queue}/audit/eu")
    http.push(queue, 2)
    assert http.popped(queue, group="late") == [2]
    assert http.popped(queue, group="audit/eu") == [1, 2]
    again = http.put(f"/v1/groups/{queue}/late", **{"from": "all"})
    assert again == http.get(f"/v1/groups/{queue}")
    assert http.popped(queue, group="late") == []


def test_a_group_that_is_deleted_begins_anew(http: Http, queue: str) -> None:
    http.put(at(queue), options={"max_attempts": 1})
    http.push(queue, 1, 2, 3)
    http.post("/v1/nack", lease=http.pop(queue, group="g")["lease"])
    lease = http.pop(queue, group="g")["lease"]
    http.push(queue, 4, delay_ms=HOUR_MS)
    assert http.delete(f"/v1/groups/{queue}/g")["groups"] == []
    assert refused(http.ask("POST", "/v1/ack", {"lease": lease}), 409, "conflict")
    assert refused(http.ask("DELETE", f"/v1/groups/{queue}/g"), 404, "not_found")
    assert http.get(f"{at(queue)}/dead", group="g")["total"] == 0
    http.put(f"/v1/groups/{queue}/g", **{"from": "new"})
    assert http.popped(queue, group="g") == []
    http.delete(f"/v1/groups/{queue}/g")
    assert http.popped(queue, group="g") == [1, 2, 3]


def test_the_group_default_stays(http: Http, queue: str) -> None:
    http.push(queue, 1)
    http.pop(queue)
    assert refused(http.ask("DELETE", f"/v1/groups/{queue}/default"), 409, "conflict")
    assert http.counts(queue) == {"active": 1}


def test_a_group_nobody_made_has_everything_before_it(http: Http, queue: str) -> None:
    http.push(queue, 1)
    http.push(queue, 2, delay_ms=HOUR_MS)
    assert http.counts(queue, "nobody") == {"waiting": 1, "delayed": 1}
    assert http.get(f"/v1/groups/{queue}")["groups"] == []
    assert refused(http.ask("GET", f"/v1/groups/{queue}/"), 400, "invalid")
    assert refused(http.ask("PUT", f"/v1/groups/{queue}/g", {"from": "whenever"}), 400, "invalid")
