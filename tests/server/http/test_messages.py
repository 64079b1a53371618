"""Messages over HTTP: pushed, popped, settled, looked at, and many at once."""

import json
import threading
from typing import Any

import pytest

from forebay.core.words import STATES
from forebay.wire.operations.messages import ACTIONS
from tests.server.http.talking import Answer, Http, at
from tests.serving import Server


def push(http: Http, queue: str, **fields: Any) -> Any:
    return http.post(f"{at(queue)}/messages", **fields)


def refused(answer: Answer, status: int, code: str) -> bool:
    return (answer.status, answer.code) == (status, code)


# Push.


@pytest.mark.parametrize("field", ["delay_ms", "ttl_ms", "timeout_ms", "priority", "max_attempts"])
def test_what_is_refused_is_told_by_the_name_it_has_here(field: str, http: Http, queue: str) -> None:
    for body in (
        {"payload": 1, field: -2_000_000_000},
        {"items": [{"payload": 1, field: -2_000_000_000}]},
    ):
        answer = http.ask("POST", f"{at(queue)}/messages", body)
        assert refused(answer, 400, "invalid")
        assert answer.details["field"] == field


def test_a_push_of_one_says_its_id(http: Http, queue: str) -> None:
    answer = push(http, queue, payload={"a": 1})
    assert answer == {"id": answer["id"], "durability": "fsync"}
    (message,) = http.pop(queue)["messages"]
    assert (message["id"], message["payload"]) == (answer["id"], {"a": 1})


def test_messages_that_share_options_have_consecutive_ids(http: Http, queue: str) -> None:
    answer = push(http, queue, messages=[1, None, "x"], priority=3, durability="os")
    assert (answer["count"], answer["durability"]) == (3, "os")
    found = http.pop(queue, 9)["messages"]
    assert [each["id"] for each in found] == list(range(answer["first"], answer["first"] + 3))
    assert [each["payload"] for each in found] == [1, None, "x"]
    assert {each["priority"] for each in found} == {3}


def test_items_have_each_their_own_options(http: Http, queue: str) -> None:
    answer = push(
        http,
        queue,
        items=[
            {"payload": 1},
            {"payload": 2, "priority": 5},
            {"payload": 3, "partition": "p"},
            {"payload": 4, "key": "lane"},
            {"payload": 5, "delay_ms": 60_000},
        ],
    )
    assert (answer["count"], len(answer["ids"])) == (5, 5)
    found = {each["payload"]: each for each in http.pop(queue, 9)["messages"]}
    assert set(found) == {1, 2, 3, 4}
    assert [found[n]["id"] for n in (1, 2, 3, 4)] == answer["ids"][:4]
    assert (found[3]["partition"], found[4]["partition"]) == ("p", "lane")
    assert http.state(queue, answer["ids"][4]) == "delayed"


def test_items_that_are_alike_have_the_ids_they_are_told(http: Http, queue: str) -> None:
    answer = push(http, queue, items=[{"payload": n, "tags": ["t"]} for n in range(3)])
    assert [each["id"] for each in http.pop(queue, 9)["messages"]] == answer["ids"]


def test_what_is_pushed_is_what_is_popped_byte_by_byte(http: Http, queue: str) -> None:
    payload = '{ "b" : 1.50, "a":[ ], "\\u00e9":"\\u00e9" , "big": 12345678901234567890123 }'
    http.send("POST", f"{at(queue)}/messages", b'{"payload": ' + payload.encode() + b"}")
    body = http.ask("POST", f"{at(queue)}/pop", {}).body
    assert payload.encode() in body


def test_a_unique_key_is_known_again(http: Http, queue: str) -> None:
    first = push(http, queue, payload=1, unique_key="k")
    again = push(http, queue, payload=2, unique_key="k")
    assert again == {**first, "duplicate": True}
    replaced = push(http, queue, payload=3, unique_key="k", dedup="replace")
    assert (replaced["id"], replaced["replaced"]) == (first["id"], True)
    many = push(http, queue, items=[{"payload": 4}, {"payload": 5, "unique_key": "k"}])
    assert (many["duplicates"], many["ids"][1]) == ([1], first["id"])
    assert sorted(http.popped(queue)) == [3, 4]


def test_a_request_that_is_sent_again_is_done_once(http: Http, queue: str) -> None:
    for fields in ({"payload": 1}, {"messages": [1, 2]}, {"items": [{"payload": 1}, {"payload": 2}]}):
        key = json.dumps(fields)
        first = push(http, queue, idempotency_key=key, producer="p", **fields)
        again = push(http, queue, idempotency_key=key, producer="p", **fields)
        assert {name: again[name] for name in first} == first
        assert again != first
    assert len(http.popped(queue)) == 5


def test_what_waits_for_others_is_parked(http: Http, queue: str) -> None:
    first = push(http, queue, payload="first")["id"]
    second = push(http, queue, payload="second", depends_on=[str(first)])["id"]
    assert http.state(queue, second) == "parked"
    http.post("/v1/ack", lease=http.pop(queue)["lease"])
    assert http.popped(queue, wait_ms=30_000) == ["second"]


# Pop.


def test_a_message_comes_with_all_that_is_known_of_it(http: Http, queue: str) -> None:
    first = push(http, queue, payload=1, headers={"a": "b"}, tags=["x", "y"], priority=2)["id"]
    popped = http.pop(queue, lease_ms=60_000)
    (message,) = popped["messages"]
    assert message == {
        "id": first,
        "queue": queue,
        "partition": "default",
        "offset": 0,
        "payload": 1,
        "created_at": message["created_at"],
        "deliveries": 1,
        "failures": 0,
        "priority": 2,
        "lease": popped["lease"],
        "expires_at": message["expires_at"],
        "headers": {"a": "b"},
        "tags": ["x", "y"],
    }
    assert message["created_at"] < message["expires_at"]


def test_an_empty_queue_gives_nothing(http: Http, queue: str) -> None:
    assert http.pop(queue) == {"lease": None, "messages": []}
    assert http.pop(queue, compact=True) == {"lease": None, "runs": []}


def test_a_compact_pop_has_runs_cut_where_labels_change(http: Http, queue: str) -> None:
    first = http.push(queue, 1, 2)
    http.push(queue, 3, 4, tags=["t"], headers={"h": "v"})
    popped = http.pop(queue, 9, compact=True)
    assert set(popped) == {"lease", "runs"}
    assert [(run["first"], run["offset"], run["payloads"]) for run in popped["runs"]] == [
        (first, 0, [1, 2]),
        (first + 2, 2, [3, 4]),
    ]
    assert "tags" not in popped["runs"][0]
    assert (popped["runs"][1]["tags"], popped["runs"][1]["headers"]) == (["t"], {"h": "v"})
    assert http.post("/v1/ack", lease=popped["lease"])["count"] == 4


def test_a_pop_waits_until_something_is_pushed(server: Server, http: Http, queue: str) -> None:
    http.put(at(queue))
    got: list[Any] = []

    def wait() -> None:
        with Http(server.http) as other:
            got.append(other.popped(queue, wait_ms=30_000))

    waiting = threading.Thread(target=wait)
    waiting.start()
    http.push(queue, "it came")
    waiting.join(30)
    assert got == [["it came"]]


def test_a_pop_that_waits_in_vain_is_answered_with_nothing(http: Http, queue: str) -> None:
    assert http.popped(queue, wait_ms=1) == []


def test_what_a_client_that_went_away_waited_for_goes_to_another(server: Server, queue: str) -> None:
    with Http(server.http) as http:
        http.put(at(queue))
        with Http(server.http) as gone:
            gone.connection.request("POST", f"{at(queue)}/pop", json.dumps({"wait_ms": 60_000}))
        http.push(queue, 1)
        popped = http.pop(queue, wait_ms=30_000)
        assert [each["payload"] for each in popped["messages"]] == [1]


def test_groups_begin_where_they_say(http: Http, queue: str) -> None:
    http.push(queue, 1, 2)
    assert http.post(f"{at(queue)}/pop", group="late", **{"from": "new"})["messages"] == []
    http.push(queue, 3)
    assert http.popped(queue, group="late") == [3]
    assert http.popped(queue, group="early") == [1, 2, 3]
    assert http.popped(queue) == [1, 2, 3]
    answer = http.ask("POST", f"{at(queue)}/pop", {"group": "odd", "from": "yesterday"})
    assert refused(answer, 400, "invalid")


def test_one_partition_can_be_popped_alone(http: Http, queue: str) -> None:
    http.push(queue, 1)
    http.push(queue, 2, partition="p")
    assert http.popped(queue, partition="p") == [2]
    assert http.popped(queue) == [1]


@pytest.mark.parametrize(
    "fields", [{"count": 0}, {"min_count": 2}, {"wait_ms": -1}, {"lease_ms": 0}, {"group": ""}]
)
def test_what_a_pop_may_ask_for_has_limits(fields: dict[str, Any], http: Http, queue: str) -> None:
    answer = http.ask("POST", f"{at(queue)}/pop", fields)
    assert refused(answer, 400, "invalid")
    assert answer.details["field"] == next(iter(fields))


# Ack, nack, release, extend.

SETTLING = ("/v1/ack", "/v1/nack", "/v1/release", "/v1/extend")


def test_a_lease_is_acked_whole(http: Http, queue: str) -> None:
    http.push(queue, 1, 2, 3)
    lease = http.pop(queue, 3)["lease"]
    assert http.post("/v1/ack", lease=lease) == {"count": 3, "refused": []}
    assert http.counts(queue) == {"completed": 3}
    for path in SETTLING:
        assert refused(http.ask("POST", path, {"lease": lease}), 409, "conflict")


def test_some_of_a_lease_are_acked_by_their_ids(http: Http, queue: str) -> None:
    first = http.push(queue, 1, 2, 3)
    lease = http.pop(queue, 3)["lease"]
    assert http.post("/v1/ack", ids=[first, str(first + 1)], lease=lease) == {"count": 2, "refused": []}
    assert http.post("/v1/ack", ids=[first, first + 2]) == {"count": 1, "refused": [first]}
    assert http.counts(queue) == {"completed": 3}
    assert refused(http.ask("POST", "/v1/ack", {"ids": [first]}), 409, "conflict")


def test_a_uuid_means_the_message_it_was_given_for(http: Http, queue: str) -> None:
    first = http.push(queue, 1)
    uuid = http.get(f"{at(queue)}/messages/{first}")["uuid"]
    assert http.get(f"{at(queue)}/messages/{uuid}")["id"] == first
    http.pop(queue)
    assert http.post("/v1/ack", ids=[uuid])["count"] == 1


@pytest.mark.parametrize("path", SETTLING)
@pytest.mark.parametrize(
    ("body", "field"), [({}, "lease"), ({"ids": []}, "ids"), ({"ids": ["x"]}, "ids"), ({"ids": [-1]}, "ids")]
)
def test_what_is_to_be_settled_must_be_said(path: str, body: dict[str, Any], field: str, http: Http) -> None:
    answer = http.ask("POST", path, body)
    assert refused(answer, 400, "invalid")
    assert answer.details["field"] == field


def test_a_result_is_kept_beside_the_message(http: Http, queue: str) -> None:
    first = http.push(queue, 1, 2)
    http.pop(queue, 2)
    result = f"{at(queue)}/messages/{first}/result"
    assert http.get(result) == {"id": first, "state": "active", "done": False, "result": None}
    assert http.get(result, wait_ms=1)["done"] is False
    http.post("/v1/ack", ids=[first, first + 1], results=[{"sum": 3}, None])
    assert http.get(result, wait_ms=30_000) == {
        "id": first,
        "state": "completed",
        "done": True,
        "result": {"sum": 3},
        "has_result": True,
    }
    assert http.ask("GET", f"{at('another')}/messages/{first}/result").status == 404


def test_what_is_nacked_comes_again_and_dies_at_last(http: Http, queue: str) -> None:
    http.put(at(queue), options={"max_attempts": 2})
    first = http.push(queue, 1)
    lease = http.pop(queue)["lease"]
    assert http.post("/v1/nack", lease=lease, error="first", delay_ms=0) == {"count": 1, "refused": []}
    (again,) = http.pop(queue)["messages"]
    assert (again["deliveries"], again["failures"]) == (2, 1)
    assert http.post("/v1/nack", ids=[first], error="second") == {"count": 1, "refused": []}
    seen = http.get(f"{at(queue)}/messages/{first}")
    assert (seen["state"], seen["error"], seen["failures"]) == ("dead", "second", 2)
    came = http.get(f"{at(queue)}/messages/{first}/result")
    assert (came["done"], came["error"]) == (True, "second")


def test_what_is_nacked_with_a_delay_waits_for_it(http: Http, queue: str) -> None:
    first = http.push(queue, 1)
    http.pop(queue)
    http.post("/v1/nack", ids=[first], delay_ms=3_600_000)
    seen = http.get(f"{at(queue)}/messages/{first}")
    assert seen["state"] == "delayed"
    assert seen["due_at"] - seen["created_at"] >= 3_600_000


def test_what_is_released_is_there_at_once_as_if_it_had_not_been_delivered(http: Http, queue: str) -> None:
    http.push(queue, 1, 2)
    lease = http.pop(queue, 2)["lease"]
    assert http.post("/v1/release", lease=lease) == {"count": 2, "refused": []}
    again = http.pop(queue, 2)["messages"]
    assert [(each["payload"], each["deliveries"], each["failures"]) for each in again] == [
        (1, 1, 0),
        (2, 1, 0),
    ]


def test_messages_are_delayed_promoted_prioritised_updated_and_discarded(http: Http, queue: str) -> None:
    first = http.push(queue, "a", "b", "c")
    one = {"count": 1, "refused": []}
    assert http.post("/v1/delay", ids=[first], delay_ms=3_600_000) == one
    assert http.state(queue, first) == "delayed"
    assert http.post("/v1/promote", ids=[first, first + 1]) == {"count": 1, "refused": [first + 1]}
    assert http.post("/v1/priority", ids=[first + 2], priority=5) == one
    assert http.put(f"/v1/messages/{first + 2}", payload="new")["id"] == first + 2
    assert http.post("/v1/discard", ids=[first + 1]) == one
    assert http.state(queue, first + 1) == "dead"
    assert http.popped(queue) == ["new", "a"]


def test_a_lease_that_is_extended_lasts_longer(http: Http, queue: str) -> None:
    first = http.push(queue, 1)
    popped = http.pop(queue, lease_ms=60_000)
    before = popped["messages"][0]["expires_at"]
    answer = http.post("/v1/extend", lease=popped["lease"], lease_ms=120_000)
    assert answer["expires_at"] >= before + 60_000
    assert (answer["count"], answer["cancelled"]) == (1, False)
    assert http.post("/v1/extend", ids=[first], lease_ms=600_000)["expires_at"] > answer["expires_at"]


def test_a_consumer_is_told_that_its_message_was_cancelled(http: Http, queue: str) -> None:
    first = http.push(queue, 1, 2)
    lease = http.pop(queue, 2)["lease"]
    assert http.post("/v1/cancel", ids=[first]) == {"count": 1, "refused": []}
    assert http.post("/v1/extend", lease=lease)["cancelled"] is True
    assert http.state(queue, first) == "cancelled"


def test_a_queue_may_require_the_lease(http: Http, queue: str) -> None:
    http.put(at(queue), options={"require_lease": True})
    first = http.push(queue, 1)
    lease = http.pop(queue)["lease"]
    assert refused(http.ask("POST", "/v1/ack", {"ids": [first]}), 400, "invalid")
    assert http.post("/v1/ack", ids=[first], lease=lease)["count"] == 1


# Transactions.


def test_a_transaction_does_all_of_it(http: Http, queue: str) -> None:
    http.push(queue, 1, 2)
    popped = http.pop(queue, 2)
    first, second = (each["id"] for each in popped["messages"])
    done = http.post(
        "/v1/transaction",
        ops=[
            {"cmd": "ACK", "ids": [first], "lease": popped["lease"], "results": [7]},
            {"cmd": "NACK", "ids": [second], "error": "later", "delay_ms": 60_000},
            {"cmd": "PUSH", "queue": f"{queue}-out", "items": [{"payload": "a"}, {"payload": "b"}]},
            {"cmd": "KVWRITE", "mutations": [{"kind": "set", "key": [queue], "value": 1}]},
        ],
    )["results"]
    assert [sorted(each) for each in done] == [
        ["count", "refused"],
        ["count", "refused"],
        ["count", "durability", "ids"],
        ["deleted", "version"],
    ]
    assert http.counts(queue) == {"completed": 1, "delayed": 1}
    assert [each["id"] for each in http.pop(f"{queue}-out", 9)["messages"]] == done[2]["ids"]
    assert http.get(f"/v1/kv/{queue}")["version"] == done[3]["version"]
    assert http.get(f"{at(queue)}/messages/{first}/result")["result"] == 7


@pytest.mark.parametrize(
    "bad",
    [
        {"cmd": "ACK", "lease": "1.2.3"},
        {"cmd": "ACK"},
        {"cmd": "PUSH", "queue": "not a name", "payload": 1},
        {"cmd": "PUSH", "queue": "q", "messages": []},
        {"cmd": "PUSH", "queue": "q"},
        {
            "cmd": "KVWRITE",
            "checks": [{"key": "missing", "version": "0000000000000000000000001"}],
            "mutations": [],
        },
        {"cmd": "KVWRITE"},
        {"cmd": "DANCE"},
        {"cmd": "POP", "queue": "q"},
        {"op": "push", "queue": "q", "payload": 1},
        {"cmd": "KVWRITE", "mutations": [{"kind": "set", "key": "k"}]},
    ],
)
def test_a_transaction_of_which_something_is_refused_does_nothing(
    bad: dict[str, Any], http: Http, queue: str
) -> None:
    http.push(queue, 1)
    lease = http.pop(queue)["lease"]
    good = [
        {"cmd": "PUSH", "queue": f"{queue}-out", "items": [{"payload": 1}]},
        {"cmd": "ACK", "lease": lease},
        {"cmd": "KVWRITE", "mutations": [{"kind": "set", "key": queue, "value": 1}]},
    ]
    for ops in ([*good, bad], [bad, *good]):
        answer = http.ask("POST", "/v1/transaction", {"ops": ops})
        assert answer.status in (400, 409), answer
        assert answer.code in ("invalid", "conflict")
    assert http.counts(queue) == {"active": 1}
    assert http.ask("GET", at(f"{queue}-out")).status == 404
    assert http.ask("GET", f"/v1/kv/{queue}").status == 404
    assert http.post("/v1/transaction", ops=good)["results"][1] == {"count": 1, "refused": []}


# Look.


def test_a_message_of_another_queue_is_not_found(http: Http, queue: str) -> None:
    first = http.push(queue, 1)
    http.push(f"{queue}-other", 1)
    for message in (first, first + 1, 1):
        answer = http.ask("GET", f"{at(f'{queue}-other')}/messages/{message}")
        assert refused(answer, 404, "not_found")


def one_of_each(http: Http, queue: str) -> dict[str, list[Any]]:
    """A queue with messages in the states that do not take time."""
    http.put(at(queue), options={"max_attempts": 1})
    first = http.push(
        queue, "completed", "dead", "discarded", "active", "cancelled", "waiting", tags=["blue"]
    )
    http.pop(queue, 4)
    http.post("/v1/ack", ids=[first])
    http.post("/v1/nack", ids=[first + 1, first + 2], error="no")
    http.delete(f"{at(queue)}/dead", ids=[first + 2])
    http.post("/v1/cancel", ids=[first + 4])
    http.push(queue, "delayed", delay_ms=3_600_000)
    push(http, queue, payload="parked", depends_on=[first + 3])
    http.push(queue, "waiting too", partition="p", tags=["red", "blue"])
    return {
        "waiting": ["waiting", "waiting too"],
        "delayed": ["delayed"],
        "parked": ["parked"],
        "active": ["active"],
        "completed": ["completed"],
        "dead": ["dead"],
        "cancelled": ["cancelled"],
        "discarded": ["discarded"],
    }


def browse(http: Http, queue: str, **query: Any) -> list[Any]:
    return [each["payload"] for each in http.get(f"{at(queue)}/messages", **query)["messages"]]


def test_messages_are_browsed_by_state(http: Http, queue: str) -> None:
    wanted = one_of_each(http, queue)
    for state in STATES:
        answer = http.get(f"{at(queue)}/messages", state=state)
        assert [each["payload"] for each in answer["messages"]] == wanted.get(state, [])
        assert (answer["total"], answer["cursor"]) == (len(wanted.get(state, [])), None)
    assert len(browse(http, queue)) == 9


def test_messages_are_browsed_by_group(http: Http, queue: str) -> None:
    one_of_each(http, queue)
    assert "completed" in browse(http, queue, group="audit", state="waiting")
    assert browse(http, queue, group="audit", state="active") == []


def test_messages_are_browsed_by_partition_tag_and_time(http: Http, queue: str) -> None:
    one_of_each(http, queue)
    assert browse(http, queue, partition="p") == ["waiting too"]
    assert http.ask("GET", f"{at(queue)}/messages?partition=none").status == 404
    assert browse(http, queue, tag="red") == ["waiting too"]
    assert browse(http, queue, tag="blue", state="waiting") == ["waiting", "waiting too"]
    assert browse(http, queue, tag="green") == []
    (last,) = http.get(f"{at(queue)}/messages", partition="p")["messages"]
    (first,) = http.get(f"{at(queue)}/messages", state="completed")["messages"]
    assert browse(http, queue, before=first["created_at"]) == []
    assert browse(http, queue, since=last["created_at"] + 1) == []
    assert len(browse(http, queue, since=first["created_at"], before=last["created_at"] + 1)) == 9


def test_payloads_are_searched_for_text(http: Http, queue: str) -> None:
    http.push(queue, {"to": "ada@example.com"}, {"to": "alan@example.com"}, {"to": "gr\u00e9goire"})
    assert browse(http, queue, text="ada@") == [{"to": "ada@example.com"}]
    assert len(browse(http, queue, text="example.com")) == 2
    assert browse(http, queue, text="gr\\u00e9") == [{"to": "gr\u00e9goire"}]
    assert browse(http, queue, text="nobody") == []
    assert browse(http, queue, text="null") == []


@pytest.mark.parametrize("limit", [1, 2, 7, 1_000])
@pytest.mark.parametrize("filters", [{}, {"state": "waiting"}, {"tag": "odd"}, {"text": "7"}, {"text": "x"}])
def test_pages_have_each_message_exactly_once(
    limit: int, filters: dict[str, str], server: Server, queue: str
) -> None:
    with Http(server.http) as http:
        for partition in ("default", "b", "c"):
            for n in range(5):
                http.push(
                    queue, f"{partition}{n}", f"x{n}7", partition=partition, tags=["odd"] if n % 2 else []
                )
        whole = browse(http, queue, limit=1_000, **filters)
        found: list[Any] = []
        query: dict[str, Any] = {"limit": limit, **filters}
        while True:
            page = http.get(f"{at(queue)}/messages", **query)
            assert len(page["messages"]) <= limit
            found += [each["id"] for each in page["messages"]]
            if page["cursor"] is None:
                break
            query["cursor"] = page["cursor"]
        assert len(found) == len(set(found)) == len(whole) > 0


def test_the_log_is_read_from_an_offset_without_a_lease(http: Http, queue: str) -> None:
    first = http.push(queue, 0, 1, 2)
    http.push(queue, 3, tags=["t"], headers={"h": "v"})
    log = http.get(f"{at(queue)}/log", offset=1)
    assert (log["partition"], log["next"], log["end"]) == ("default", 4, 4)
    assert [(run["first"], run["offset"], run["payloads"]) for run in log["runs"]] == [
        (first + 1, 1, [1, 2]),
        (first + 3, 3, [3]),
    ]
    assert (log["runs"][1]["tags"], log["runs"][1]["headers"]) == (["t"], {"h": "v"})
    assert http.get(f"{at(queue)}/log", offset=0, max_count=2)["next"] == 2
    assert http.get(f"{at(queue)}/log", offset=0, max_bytes=1)["next"] == 1
    assert http.get(f"{at(queue)}/log", offset=4)["runs"] == []
    assert http.ask("GET", f"{at(queue)}/log").details["field"] == "offset"
    assert http.ask("GET", f"{at(queue)}/log", offset=5).status == 400
    assert http.ask("GET", f"{at(queue)}/log", offset=0, partition="none").status == 404


# Cancel, and bulk.


def test_what_is_cancelled_is_not_delivered(http: Http, queue: str) -> None:
    first = http.push(queue, 1, 2, 3)
    assert http.post("/v1/cancel", ids=[first + 1]) == {"count": 1, "refused": []}
    assert http.popped(queue) == [1, 3]
    answer = http.ask("POST", "/v1/cancel", {"ids": [first + 1]})
    assert refused(answer, 409, "conflict")


def bulk(http: Http, queue: str, action: str, **fields: Any) -> Any:
    return http.post(f"{at(queue)}/bulk", action=action, **fields)


BULKS: list[tuple[str, dict[str, Any], str, str]] = [
    ("cancel", {}, "waiting", "cancelled"),
    ("promote", {}, "delayed", "waiting"),
    ("delay", {"delay_ms": 3_600_000}, "waiting", "delayed"),
    ("priority", {"priority": 9}, "waiting", "waiting"),
    ("discard", {}, "waiting", "dead"),
    ("requeue", {}, "dead", "waiting"),
    ("purge", {}, "dead", "discarded"),
    ("move", {"to": "by-hand", "create": True}, "dead", "discarded"),
]


def in_state(http: Http, queue: str, state: str) -> None:
    """Five messages in a state; two of them are odd."""
    http.put(at(queue), options={"max_attempts": 1})
    for n in range(5):
        http.push(
            queue, n, tags=["odd"] if n % 2 else ["even"], delay_ms=3_600_000 if state == "delayed" else 0
        )
    if state == "dead":
        http.post("/v1/nack", lease=http.pop(queue, 5)["lease"])
    assert http.counts(queue) == {state: 5}


def test_every_action_is_tried() -> None:
    assert [action for action, *_ in BULKS] == list(ACTIONS)


@pytest.mark.parametrize(("action", "fields", "before", "after"), BULKS)
def test_an_action_reaches_all_that_match_and_nothing_else(
    action: str, fields: dict[str, Any], before: str, after: str, http: Http, queue: str
) -> None:
    in_state(http, queue, before)
    tried = bulk(http, queue, action, tag="odd", state=before, dry_run=True, **fields)
    assert tried == {"matched": 2, "count": 0, "dry_run": True, "cursor": None}
    assert http.counts(queue) == {before: 5}
    done = bulk(http, queue, action, tag="odd", state=before, **fields)
    assert done == {"matched": 2, "count": 2, "dry_run": False, "cursor": None}
    if before != after:
        assert http.counts(queue) == {before: 3, after: 2}
        assert browse(http, queue, state=after) == [1, 3]
    else:
        assert http.popped(queue) == [1, 3, 0, 2, 4]


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_a_bulk_goes_on_where_it_stopped(limit: int, http: Http, queue: str) -> None:
    in_state(http, queue, "waiting")
    counts = []
    cursor = None
    while True:
        done = bulk(http, queue, "cancel", limit=limit, cursor=cursor)
        counts.append(done["count"])
        cursor = done["cursor"]
        if cursor is None:
            break
    assert sum(counts) == 5
    assert max(counts) <= limit
    assert http.counts(queue) == {"cancelled": 5}


def test_a_bulk_of_more_than_a_page_reaches_what_a_dry_run_counts(http: Http, queue: str) -> None:
    delayed = {"payload": 1, "delay_ms": 3_600_000}
    http.post(f"{at(queue)}/messages", items=[{"payload": 0}, delayed] * 1_500)
    tried = bulk(http, queue, "cancel", state="waiting", dry_run=True)
    done = bulk(http, queue, "cancel", state="waiting")
    assert (tried["matched"], done["matched"], done["count"]) == (1_500, 1_500, 1_500)
    assert http.counts(queue) == {"delayed": 1_500, "cancelled": 1_500}


def test_a_bulk_does_not_reach_what_took_the_place_of_what_it_means(http: Http, queue: str) -> None:
    http.post(f"{at(queue)}/messages", payload="old", unique_key="k")
    http.post(f"{at(queue)}/messages", payload="new", unique_key="k", dedup="replace")
    done = bulk(http, queue, "cancel", text="old")
    assert (done["matched"], done["count"]) == (0, 0)
    assert http.popped(queue) == ["new"]


def test_a_bulk_cancels_what_waits_for_others(http: Http, queue: str) -> None:
    first = http.push(queue, 1)
    for _ in range(3):
        http.post(f"{at(queue)}/messages", payload=2, depends_on=[first])
    done = bulk(http, queue, "cancel", state="parked")
    assert (done["matched"], done["count"]) == (3, 3)
    assert http.counts(queue) == {"waiting": 1, "cancelled": 3}


def test_a_bulk_passes_over_what_it_can_not_be_done_to(http: Http, queue: str) -> None:
    http.push(queue, 1, 2, 3, 4)
    http.post("/v1/ack", lease=http.pop(queue, 2)["lease"])
    assert bulk(http, queue, "discard", dry_run=True)["matched"] == 2
    assert bulk(http, queue, "discard")["count"] == 2


def test_a_bulk_with_text_and_a_small_limit_looks_as_far_as_any(http: Http, queue: str) -> None:
    http.push(queue, *range(3_000), "needle", "needle")
    for _ in range(2):
        done = bulk(http, queue, "cancel", text="needle", limit=1)
        assert (done["matched"], done["count"]) == (1, 1)
    assert http.counts(queue) == {"waiting": 3_000, "cancelled": 2}


def test_a_bulk_may_search_for_text(http: Http, queue: str) -> None:
    http.push(queue, *[f"user {n}" for n in range(2_500)])
    assert bulk(http, queue, "cancel", text="user 24")["count"] == 111
    assert http.counts(queue) == {"waiting": 2_389, "cancelled": 111}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"action": "dance"}, "action"),
        ({}, "action"),
        ({"action": "delay"}, "delay_ms"),
        ({"action": "cancel", "delay_ms": 1}, "delay_ms"),
        ({"action": "priority"}, "priority"),
        ({"action": "cancel", "priority": 1}, "priority"),
        ({"action": "requeue", "state": "waiting"}, "state"),
        ({"action": "purge", "state": "waiting"}, "state"),
        ({"action": "cancel", "state": "completed"}, "state"),
        ({"action": "delay", "delay_ms": -1, "dry_run": True}, "delay_ms"),
        ({"action": "priority", "priority": 1 << 40, "dry_run": True}, "priority"),
        ({"action": "cancel", "limit": 0}, "limit"),
        ({"action": "cancel", "state": "nowhere"}, "state"),
        ({"action": "cancel", "cursor": "x"}, "cursor"),
        ({"action": "delay", "delay_ms": -1}, "delay_ms"),
    ],
)
def test_a_bulk_that_makes_no_sense_is_refused(
    fields: dict[str, Any], field: str, http: Http, queue: str
) -> None:
    http.push(queue, 1)
    answer = http.ask("POST", f"{at(queue)}/bulk", fields)
    assert refused(answer, 400, "invalid")
    assert answer.details["field"] == field
