"""Keys of messages, flows, transactions, crons, limits, keys and values: over the wire."""

import time
from typing import Any

import pytest

from tests.serving import Raw, Reply, pop, pop_all, push, refused, state, wait_for_pop

HOUR_MS = 3_600_000


def ask(client: Raw, cmd: str, **fields: Any) -> Reply:
    """The answer to what must succeed."""
    reply = client.ask({"cmd": cmd, **fields})
    assert reply["ok"], reply
    return reply


def push_one(client: Raw, queue: str, payload: Any = 1, **fields: Any) -> Reply:
    return ask(client, "PUSH", queue=queue, payload=payload, **fields)


def configure(client: Raw, queue: str, **options: Any) -> None:
    ask(client, "QUEUE", queue=queue, options=options)


# Keys and ids of messages.


def test_a_unique_key_is_held_until_its_message_ends(client: Raw, queue: str) -> None:
    first = push_one(client, queue, unique_key="k")
    again = push_one(client, queue, unique_key="k")
    assert (again["id"], again["duplicate"]) == (first["id"], True)
    assert "duplicate" not in first
    ask(client, "ACK", ids=[pop(client, queue)["id"]])
    assert push_one(client, queue, unique_key="k")["id"] != first["id"]


def test_a_message_takes_the_place_of_the_one_that_holds_its_key(client: Raw, queue: str) -> None:
    first = push_one(client, queue, "old", unique_key="k")
    again = push_one(client, queue, "new", unique_key="k", dedup="replace")
    assert (again["id"], again["replaced"]) == (first["id"], True)
    assert pop_all(client, queue) == ["new"]


def test_a_throttled_message_is_known_for_a_while(client: Raw, queue: str) -> None:
    throttled = {"unique_key": "k", "dedup": "throttle", "dedup_window_ms": HOUR_MS}
    first = push_one(client, queue, **throttled)
    ask(client, "ACK", ids=[pop(client, queue)["id"]])
    again = push_one(client, queue, **throttled)
    assert (again["id"], again["duplicate"]) == (first["id"], True)
    assert pop_all(client, queue) == []


def test_a_batch_says_which_of_its_items_were_known(client: Raw, queue: str) -> None:
    items = [{"payload": at, "transaction_id": f"t{at % 2}"} for at in range(3)]
    reply = ask(client, "PUSH", queue=queue, items=items)
    assert (reply["count"], reply["duplicates"]) == (3, [2])
    assert reply["ids"][2] == reply["ids"][0]


def test_a_batch_says_which_of_its_items_replaced_others(client: Raw, queue: str) -> None:
    held = push_one(client, queue, "old", unique_key="k")["id"]
    items = [{"payload": "new"}, {"payload": "newer", "unique_key": "k", "dedup": "replace"}]
    reply = ask(client, "PUSH", queue=queue, items=items)
    assert (reply["replacements"], reply["ids"][1]) == ([1], held)
    assert "duplicates" not in reply
    assert sorted(pop_all(client, queue)) == ["new", "newer"]


def test_a_request_that_is_sent_again_is_answered_as_the_first_was(client: Raw, queue: str) -> None:
    request = {"queue": queue, "messages": [1, 2], "idempotency_key": "r1", "producer": "me"}
    first, again = ask(client, "PUSH", **request), ask(client, "PUSH", **request)
    assert (again["first"], again["count"], again["duplicate"]) == (first["first"], 2, True)
    assert pop_all(client, queue) == [1, 2]


def test_a_message_is_found_by_its_job_id(client: Raw, queue: str) -> None:
    message = push_one(client, queue, {"n": 1}, job_id=queue)["id"]
    assert push_one(client, queue, {"n": 2}, job_id=queue)["id"] == message
    for fields in ({}, {"queue": queue}):
        found = ask(client, "FIND", job_id=queue, **fields)
        assert (found["id"], found["payload"], found["job_id"]) == (message, {"n": 1}, queue)
    assert refused(client.ask({"cmd": "FIND", "job_id": "nobody"}), "not_found")


def test_messages_of_one_key_come_one_at_a_time(client: Raw, queue: str) -> None:
    for payload in range(3):
        push_one(client, queue, payload, key="k")
    first = pop(client, queue)
    assert pop_all(client, queue) == []
    ask(client, "ACK", ids=[first["id"]])
    assert pop(client, queue)["payload"] == 1


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"unique_key": ""}, "unique_key"),
        ({"dedup": "replace"}, "unique_key"),
        ({"dedup": "often", "unique_key": "k"}, "dedup"),
        ({"dedup": "throttle", "unique_key": "k"}, "dedup_window_ms"),
        ({"job_id": ""}, "job_id"),
        ({"producer": "me", "idempotency_key": ""}, "idempotency_key"),
        ({"key": "default"}, "key"),
        ({"key": "a", "partition": "b"}, "key"),
        ({"on_failed": "ignore"}, "depends_on"),
        ({"depends_on": []}, "depends_on"),
        ({"keys_if_undelivered": [[]]}, "key"),
    ],
)
def test_bad_keys_of_a_message_are_refused(
    client: Raw, queue: str, fields: dict[str, Any], field: str
) -> None:
    assert refused(client.ask({"cmd": "PUSH", "queue": queue, "payload": 1, **fields}), "invalid", field)


def test_on_failed_without_depends_on_is_refused_in_a_batch_too(client: Raw, queue: str) -> None:
    reply = client.ask({"cmd": "PUSH", "queue": queue, "items": [{"payload": 1, "on_failed": "ignore"}]})
    assert refused(reply, "invalid", "depends_on")


# What waits for others.


def test_a_message_waits_for_those_it_depends_on(client: Raw, queue: str) -> None:
    first = push(client, queue, "first")
    second = push_one(client, queue, "second", depends_on=[first])["id"]
    assert state(client, second)["state"] == "parked"
    assert pop_all(client, queue) == ["first"]
    ask(client, "ACK", ids=[first])
    assert pop_all(client, queue) == ["second"]
    reply = client.ask({"cmd": "PUSH", "queue": queue, "payload": 1, "depends_on": [1 << 60]})
    assert refused(reply, "not_found")


def test_a_flow_is_a_message_and_those_it_waits_for(client: Raw, queue: str) -> None:
    children = [
        {"queue": f"{queue}-a", "payload": 1},
        {"queue": f"{queue}-b", "payload": 2, "children": [{"queue": f"{queue}-a", "payload": 3}]},
    ]
    flow = ask(client, "FLOW", queue=queue, payload="parent", children=children)
    assert len(flow["children"]) == 2
    for name, payload in ((f"{queue}-a", 1), (f"{queue}-a", 3), (f"{queue}-b", 2)):
        assert pop_all(client, queue) == []
        taken = pop(client, name)
        assert taken["payload"] == payload
        ask(client, "ACK", ids=[taken["id"]], result={"of": payload})
    assert pop(client, queue)["payload"] == "parent"
    found = ask(client, "CHILDREN", id=flow["id"])
    assert (found["id"], found["completed"], found["total"]) == (flow["id"], 2, 2)
    assert [child["id"] for child in found["children"]] == flow["children"]
    assert [child["state"] for child in found["children"]] == ["completed", "completed"]
    assert [child["result"] for child in found["children"]] == [{"of": 1}, {"of": 2}]


def test_a_child_that_fails_fails_its_parent(client: Raw, queue: str) -> None:
    child = {"queue": f"{queue}-a", "payload": 1, "max_attempts": 1}
    flow = ask(client, "FLOW", queue=queue, payload=0, children=[child])
    ask(client, "NACK", ids=[pop(client, f"{queue}-a")["id"]], error="no")
    assert state(client, flow["id"])["state"] == "dead"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"children": []}, "children"),
        ({"children": [{"queue": "no queue", "payload": 1}]}, "queue"),
        ({"children": [{"queue": "q", "payload": 1, "durability": "os"}]}, "children[0].durability"),
        ({"children": [{"queue": "q", "payload": 1, "delay_ms": -1}]}, "delay_ms"),
        ({"children": [{"queue": "q", "payload": 1}], "idempotency_key": "k"}, "idempotency_key"),
        ({"children": [{"queue": "q", "payload": 1}], "on_failed": "shrug"}, "on_failed"),
    ],
)
def test_a_bad_flow_is_refused_and_nothing_of_it_is_pushed(
    client: Raw, queue: str, fields: dict[str, Any], field: str
) -> None:
    assert refused(client.ask({"cmd": "FLOW", "queue": queue, "payload": 1, **fields}), "invalid", field)
    assert pop_all(client, queue) == []


def test_a_flow_that_is_too_deep_is_refused(client: Raw, queue: str) -> None:
    child: dict[str, Any] = {"queue": "q", "payload": 1}
    for _ in range(25):
        child = {"queue": "q", "payload": 1, "children": [child]}
    reply = client.ask({"cmd": "FLOW", "queue": queue, "payload": 1, "children": [child]})
    assert refused(reply, "invalid", "children")
    deep = b'{"queue":"q","payload":1,"children":[' * 2_000 + b"]}" * 2_000
    client.send_frame(b'{"cmd":"FLOW","queue":"q","payload":1,"children":[' + deep + b"]}")
    assert not client.receive()["ok"]
    assert client.ask({"cmd": "STATS"})["ok"]


@pytest.mark.parametrize("failing", [False, True])
def test_the_end_of_a_batch_is_a_message_of_its_own(client: Raw, queue: str, failing: bool) -> None:
    items = [{"payload": at, "max_attempts": 1} for at in range(2)]
    done = {"queue": f"{queue}-done", "payload": "all"}
    pushed = ask(client, "PUSH", queue=queue, items=items, on_complete=done)
    assert state(client, pushed["completion_id"])["state"] == "parked"
    for _ in items:
        ask(client, "NACK" if failing else "ACK", ids=[pop(client, queue)["id"]])
    assert pop(client, f"{queue}-done")["payload"] == "all"


# Transactions.


def test_a_transaction_does_all_of_it(client: Raw, queue: str) -> None:
    message = push(client, queue, "work")
    pop(client, queue)
    ops = [
        {"cmd": "ACK", "ids": [message], "result": "done"},
        {"cmd": "PUSH", "queue": f"{queue}-next", "payload": "next"},
        {"cmd": "PUSH", "queue": f"{queue}-next", "messages": ["more"]},
        {
            "cmd": "FLOW",
            "queue": queue,
            "payload": 1,
            "children": [{"queue": f"{queue}-child", "payload": 2}],
        },
        {"cmd": "KVADD", "key": [queue, "n"], "by": 2},
        {"cmd": "KVADD", "key": [queue, "n"], "by": 3},
    ]
    results = ask(client, "TX", ops=ops)["results"]
    assert len(results) == 6
    assert results[0] == {"count": 1, "refused": []}
    assert (results[2]["count"], results[5]["key"], results[5]["value"]) == (1, [queue, "n"], 5)
    assert state(client, message)["state"] == "completed"
    assert pop_all(client, f"{queue}-next") == ["next", "more"]
    assert state(client, results[3]["id"])["state"] == "parked"


@pytest.mark.parametrize(
    ("op", "code", "field"),
    [
        ({"cmd": "ACK", "ids": [1 << 60]}, "conflict", "ops[1]"),
        ({"cmd": "PUSH", "queue": "no queue", "payload": 1}, "invalid", "ops[1].queue"),
        ({"cmd": "KVWRITE", "checks": [{"key": "nobody", "version": "0" * 24}]}, "conflict", "ops[1]"),
        ({"cmd": "PUSH", "queue": "q", "payload": 1, "foo": 1}, "invalid", "ops[1].foo"),
        ({"cmd": "POP", "queue": "q"}, "invalid", "ops[1].cmd"),
        ({"cmd": "TX", "ops": []}, "invalid", "ops[1].cmd"),
    ],
)
def test_a_transaction_that_fails_does_nothing(
    client: Raw, queue: str, op: dict[str, Any], code: str, field: str | None
) -> None:
    message = push(client, queue, "work")
    pop(client, queue)
    good = [{"cmd": "ACK", "ids": [message]}, {"cmd": "KVSET", "key": queue, "value": 1}]
    assert refused(client.ask({"cmd": "TX", "ops": [good[0], op, good[1]]}), code, field)
    assert state(client, message)["state"] == "active"
    assert refused(client.ask({"cmd": "KVGET", "key": queue}), "not_found")


def test_a_transaction_settles_each_message_once(client: Raw, queue: str) -> None:
    message = push(client, queue, "work")
    pop(client, queue)
    ops = [{"cmd": "ACK", "ids": [message]}, {"cmd": "NACK", "ids": [message]}]
    assert refused(client.ask({"cmd": "TX", "ops": ops}), "invalid", "ops[1].ids")
    assert refused(client.ask({"cmd": "TX", "ops": []}), "invalid", "ops")


# Crons.


def crons(client: Raw, name: str) -> list[Reply]:
    return [each for each in ask(client, "CRONS")["crons"] if each["name"] == name]


def test_a_cron_pushes_its_message_again_and_again(client: Raw, queue: str) -> None:
    made = ask(
        client, "CRONPUT", name=queue, queue=queue, message={"payload": {"n": 1}}, every_ms=100, limit=2
    )
    assert (made["name"], made["every_ms"], made["limit"], made["fired"]) == (queue, 100, 2, 0)
    for _ in range(2):
        assert pop(client, queue, wait_ms=20_000)["payload"] == {"n": 1}
    assert crons(client, queue) == []


def test_a_cron_is_listed_with_its_schedule_and_deleted(client: Raw, queue: str) -> None:
    fields = {"schedule": "0 9 * * 1", "timezone": "Europe/Rome", "missed": "all"}
    message = {"payload": [1], "priority": 3}
    made = ask(client, "CRONPUT", name=queue, queue=queue, message=message, **fields)
    (cron,) = crons(client, queue)
    assert {"ok": True, **cron} == made == ask(client, "CRON", name=queue)
    assert {name: cron[name] for name in fields} == fields
    assert (cron["payload"], cron["priority"], cron["fired"], cron["last_at"]) == ([1], 3, 0, None)
    assert cron["next_at"] > 0
    assert ask(client, "CRONDELETE", name=queue) == {"ok": True, "name": queue}
    assert crons(client, queue) == []
    assert refused(client.ask({"cmd": "CRON", "name": queue}), "not_found")
    assert refused(client.ask({"cmd": "CRONDELETE", "name": queue}), "not_found")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "schedule"),
        ({"schedule": "often"}, "schedule"),
        ({"schedule": "* * * * *", "every_ms": 1_000}, "schedule"),
        ({"every_ms": 1}, "every_ms"),
        ({"every_ms": 1_000, "timezone": "Mars"}, "timezone"),
        ({"every_ms": 1_000, "limit": -1}, "limit"),
        ({"every_ms": 1_000, "missed": "some"}, "missed"),
        ({"every_ms": 1_000, "message": {"payload": 1, "job_id": "x"}}, "message.job_id"),
        ({"every_ms": 1_000, "message": {"payload": 1, "depends_on": [1]}}, "message.depends_on"),
        ({"every_ms": 1_000, "name": ""}, "name"),
        ({"every_ms": 1_000, "queue": "no queue"}, "queue"),
    ],
)
def test_a_bad_cron_is_refused(client: Raw, queue: str, fields: dict[str, Any], field: str) -> None:
    request = {"cmd": "CRONPUT", "name": queue, "queue": queue, "message": {"payload": 1}} | fields
    assert refused(client.ask(request), "invalid", field)
    assert crons(client, queue) == []


# Limits.


def test_a_rate_limit_holds_back_and_is_cleared(client: Raw, queue: str) -> None:
    configure(client, queue, rate_limit={"limit": 2, "per_ms": HOUR_MS})
    push(client, queue, *range(5))
    assert pop_all(client, queue) == [0, 1]
    configure(client, queue, rate_limit=None)
    assert pop_all(client, queue) == [2, 3, 4]


def test_a_concurrency_is_set_and_cleared_and_wakes_who_waits(client: Raw, other: Raw, queue: str) -> None:
    configure(client, queue, concurrency=1)
    push(client, queue, *range(3))
    taken = pop(client, queue)
    wait_for_pop(other, queue)
    ask(client, "ACK", ids=[taken["id"]])
    assert other.receive()["messages"][0]["payload"] == 1
    configure(client, queue, concurrency=0)
    assert pop_all(client, queue) == [2]


def test_a_token_that_comes_wakes_who_waits(client: Raw, queue: str) -> None:
    configure(client, queue, rate_limit={"limit": 20, "burst": 1})
    push(client, queue, *range(3))
    assert [pop(client, queue, wait_ms=20_000)["payload"] for _ in range(3)] == [0, 1, 2]


def test_queues_share_a_limit_that_has_a_name(client: Raw, queue: str) -> None:
    ask(client, "LIMITPUT", name=queue, concurrency=1, rate_limit={"limit": 5, "per_ms": HOUR_MS})
    queues = [f"{queue}-{end}" for end in "ab"]
    for each in queues:
        configure(client, each, limits=[queue])
        push(client, each, each)
    taken = pop(client, queues[0])
    assert pop_all(client, queues[1]) == []
    (limit,) = [each for each in ask(client, "LIMITS")["limits"] if each["name"] == queue]
    assert (limit["active"], limit["concurrency"], limit["rate_limit"]["limit"]) == (1, 1, 5)
    ask(client, "ACK", ids=[taken["id"]])
    assert pop_all(client, queues[1]) == [queues[1]]
    ask(client, "LIMITDELETE", name=queue)
    assert refused(client.ask({"cmd": "LIMITDELETE", "name": queue}), "not_found")


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        ({"cmd": "QUEUE", "queue": "q", "options": {"rate_limit": {}}}, "options.rate_limit.limit"),
        ({"cmd": "QUEUE", "queue": "no queue", "options": {"rate_limit": 1}}, "queue"),
        ({"cmd": "QUEUE", "queue": "q", "options": {"concurrency": -1}}, "concurrency"),
        ({"cmd": "LIMITPUT", "name": "n"}, "rate_limit"),
        ({"cmd": "LIMITPUT", "name": "", "concurrency": 1}, "name"),
        ({"cmd": "LIMITPUT", "name": "n", "concurrency": -1}, "concurrency"),
        ({"cmd": "LIMITPUT", "name": "n", "rate_limit": 0}, "rate_limit"),
    ],
)
def test_bad_limits_are_refused(client: Raw, request_: dict[str, Any], field: str) -> None:
    assert refused(client.ask(request_), "invalid", field)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"rate_limit": {"limit": 0}}, "rate_limit"),
        ({"byte_limit": {"limit": 0}}, "byte_limit"),
        ({"rate_limit": -1}, "rate_limit"),
        ({"rate_limit": {"limit": 1, "per_ms": 0}}, "rate_limit.per_ms"),
    ],
)
def test_a_bad_rate_is_refused_by_the_name_it_was_given_by(
    client: Raw, queue: str, options: dict[str, Any], field: str
) -> None:
    assert refused(client.ask({"cmd": "QUEUE", "queue": queue, "options": options}), "invalid", field)


# Keys and values.


def test_a_value_is_set_read_counted_and_deleted(client: Raw, queue: str) -> None:
    key = [queue, 7, True]
    set_ = ask(client, "KVSET", key=key, value={"a": [1, None]})
    got = ask(client, "KVGET", key=key)
    assert got == {"ok": True, "key": key, "value": {"a": [1, None]}, "version": set_["version"]}
    assert ask(client, "KVDELETE", key=key)["deleted"] == 1
    assert refused(client.ask({"cmd": "KVGET", "key": key}), "not_found")
    assert ask(client, "KVDELETE", key=key)["deleted"] == 0


def test_a_number_is_counted_up_and_down(client: Raw, queue: str) -> None:
    values = [ask(client, "KVADD", key=queue, by=by)["value"] for by in (1, 5, -2, 0.5)]
    assert values == [1, 6, 4, 4.5]
    ask(client, "KVSET", key=queue, value="text")
    assert refused(client.ask({"cmd": "KVADD", "key": queue}), "conflict")


def test_values_have_a_time_to_live(client: Raw, queue: str) -> None:
    ask(client, "KVSET", key=queue, value=1, ttl_ms=HOUR_MS)
    expires_at = ask(client, "KVGET", key=queue)["expires_at"]
    assert 0 < expires_at - time.time_ns() // 1_000_000 <= HOUR_MS

    def expire(key: Any, ttl_ms: int) -> Reply:
        mutations = [{"kind": "expire", "key": key, "ttl_ms": ttl_ms}]
        return client.ask({"cmd": "KVWRITE", "mutations": mutations})

    assert expire(queue, 0)["ok"]
    assert "expires_at" not in ask(client, "KVGET", key=queue)
    assert refused(expire([queue, "nobody"], 5), "not_found")
    assert refused(expire(queue, -5), "invalid", "ttl_ms")


def test_several_values_are_set_and_read_together(client: Raw, queue: str) -> None:
    mutations = [{"kind": "set", "key": [queue, at], "value": at * at} for at in range(3)]
    version = ask(client, "KVWRITE", mutations=mutations)["version"]
    got = ask(client, "KVMGET", keys=[[queue, 2], [queue, 9], [queue, 0]])
    assert (got["values"], got["versions"]) == ([4, None, 0], [version, None, version])


def test_keys_are_listed_page_by_page(client: Raw, queue: str) -> None:
    mutations = [{"kind": "set", "key": [queue, at], "value": at} for at in range(7)]
    ask(client, "KVWRITE", mutations=mutations)
    for reverse in (False, True):
        came: list[int] = []
        fields: dict[str, Any] = {"prefix": [queue], "limit": 3, "reverse": reverse}
        while True:
            reply = ask(client, "KVLIST", **fields)
            came += [entry["key"][1] for entry in reply["entries"]]
            if reply["cursor"] is None:
                break
            fields["cursor"] = reply["cursor"]
        assert came == sorted(range(7), reverse=reverse)
    found = ask(client, "KVLIST", prefix=[queue], start=[queue, 2], end=[queue, 4])
    assert [entry["value"] for entry in found["entries"]] == [2, 3]


def test_keys_of_one_text_are_found_by_a_pattern(client: Raw, queue: str) -> None:
    for end in ("a", "b", "ab"):
        ask(client, "KVSET", key=f"{queue}:{end}", value=1)
    found = ask(client, "KVLIST", pattern=f"{queue}:?")["entries"]
    assert [entry["key"] for entry in found] == [[f"{queue}:a"], [f"{queue}:b"]]


def test_a_write_is_made_only_if_its_checks_hold(client: Raw, queue: str) -> None:
    checks = [{"key": queue, "version": None}]
    mutations = [{"kind": "set", "key": queue, "value": 1}, {"kind": "append", "key": [queue], "value": 2}]
    reply = client.ask({"cmd": "KVWRITE", "checks": checks, "mutations": mutations})
    assert refused(reply, "conflict")  # a text is a key of one part: the same key twice
    version = ask(client, "KVWRITE", checks=checks, mutations=mutations[:1])["version"]
    assert refused(client.ask({"cmd": "KVWRITE", "checks": checks, "mutations": mutations[:1]}), "conflict")
    checks[0]["version"] = version
    again = ask(client, "KVWRITE", checks=checks, mutations=[{"kind": "sum", "key": queue, "value": 4}])
    assert again["version"] > version
    assert ask(client, "KVGET", key=queue)["value"] == 5


def test_who_watches_keys_is_told_when_one_changes(client: Raw, other: Raw, queue: str) -> None:
    version = ask(client, "KVSET", key=queue, value=1)["version"]
    keys = [queue, [queue, "other"]]
    other.send(
        {"cmd": "KVWATCH", "keys": keys, "versions": [version, None], "wait_ms": 20_000, "reqId": "w"},
        {"cmd": "STATS", "reqId": "done"},
    )
    assert other.receive()["reqId"] == "done"
    newer = ask(client, "KVSET", key=queue, value=2)["version"]
    told = other.receive()
    assert (told["reqId"], told["changed"]) == ("w", True)
    assert (told["values"], told["versions"]) == ([2, None], [newer, None])
    same = ask(client, "KVWATCH", keys=[queue], versions=[newer], wait_ms=0)
    assert same["changed"] is False


def test_a_message_that_dies_leaves_its_payload_under_its_keys(client: Raw, queue: str) -> None:
    push_one(client, queue, {"lost": True}, max_attempts=1, keys_if_undelivered=[[queue, "dead"]])
    ask(client, "NACK", ids=[pop(client, queue)["id"]])
    assert ask(client, "KVGET", key=[queue, "dead"])["value"] == {"lost": True}


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        ({"cmd": "KVGET", "key": []}, "key"),
        ({"cmd": "KVGET", "key": "x" * 3_000}, "key"),
        ({"cmd": "KVGET", "key": [1] * 21}, "key"),
        ({"cmd": "KVMGET", "keys": []}, "keys"),
        ({"cmd": "KVSET", "key": "a", "value": 1, "ttl_ms": -1}, "ttl_ms"),
        ({"cmd": "KVSET", "key": "a", "value": "x" * 1_048_577}, "value"),
        ({"cmd": "KVDELETE"}, "key"),
        ({"cmd": "KVDELETE", "key": "a", "keys": ["b"]}, "keys"),
        ({"cmd": "KVLIST", "limit": 0}, "limit"),
        ({"cmd": "KVLIST", "cursor": "zz"}, "cursor"),
        ({"cmd": "KVLIST", "pattern": "x" * 257}, "pattern"),
        ({"cmd": "KVWRITE", "checks": [{"key": "a", "version": "zz"}]}, "version"),
        ({"cmd": "KVWRITE", "mutations": [{"kind": "sum", "key": "a"}]}, "mutations.value"),
        ({"cmd": "KVWRITE", "mutations": [{"kind": "twist", "key": "a", "value": 1}]}, "kind"),
        ({"cmd": "KVWRITE", "mutations": [{"kind": "sum", "key": "a", "value": "1"}]}, "value"),
        ({"cmd": "KVWATCH", "keys": ["a"], "versions": []}, "versions"),
        ({"cmd": "KVWATCH", "keys": ["a"], "versions": [None], "wait_ms": -1}, "wait_ms"),
    ],
)
def test_bad_keys_and_values_are_refused(client: Raw, request_: dict[str, Any], field: str) -> None:
    assert refused(client.ask(request_), "invalid", field)


def test_a_write_of_nothing_is_refused_by_a_field_it_has(client: Raw) -> None:
    assert refused(client.ask({"cmd": "KVWRITE"}), "invalid", "mutations")


# What goes together.


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        ({"cmd": "PUSH", "items": [{"payload": 1}], "on_failed": "fail"}, "on_failed"),
        ({"cmd": "PUSH", "payload": 1, "dedup": "drop"}, "unique_key"),
        (
            {
                "cmd": "CRONPUT",
                "name": "c",
                "schedule": "@daily",
                "message": {"payload": 1, "on_failed": "fail"},
            },
            "message.on_failed",
        ),
        ({"cmd": "CRONPUT", "name": "c", "schedule": "@every ٣s", "message": {"payload": 1}}, "schedule"),
    ],
    ids=lambda each: str(each)[:40],
)
def test_what_would_have_no_effect_is_refused(
    client: Raw, queue: str, request_: dict[str, Any], field: str
) -> None:
    assert refused(client.ask({**request_, "queue": queue}), "invalid", field)


def test_crons_behind_a_name_are_listed(client: Raw, queue: str) -> None:
    for name in ("a", "b"):
        ask(
            client, "CRONPUT", name=f"{queue}-{name}", queue=queue, schedule="@yearly", message={"payload": 1}
        )
    found = ask(client, "CRONS", after=f"{queue}-a")
    assert f"{queue}-b" in [each["name"] for each in found["crons"]]
    assert f"{queue}-a" not in [each["name"] for each in found["crons"]]
    assert found["more"] is False
