"""Keys of jobs, flows, transactions, crons, limits, keys and values: over the wire."""

from typing import Any

import pytest

from tests.serving import Raw, Reply, pull, pull_all, push, refused, state, wait_for_pull

HOUR_MS = 3_600_000


def ask(client: Raw, cmd: str, **fields: Any) -> Reply:
    """The answer to what must succeed."""
    reply = client.ask({"cmd": cmd, **fields})
    assert reply["ok"], reply
    return reply


def job(client: Raw, queue: str, data: Any = 1, **fields: Any) -> Reply:
    return ask(client, "PUSH", queue=queue, data=data, **fields)


def configure(client: Raw, queue: str, **options: Any) -> None:
    ask(client, "QUEUE", queue=queue, options=options)


# Keys and ids of jobs.


def test_a_unique_key_is_held_until_its_job_ends(client: Raw, queue: str) -> None:
    first = job(client, queue, unique_key="k")
    again = job(client, queue, unique_key="k")
    assert (again["id"], again["duplicate"]) == (first["id"], True)
    assert "duplicate" not in first
    ask(client, "ACK", id=pull(client, queue)["id"])
    assert job(client, queue, unique_key="k")["id"] != first["id"]


def test_a_job_takes_the_place_of_the_one_that_holds_its_key(client: Raw, queue: str) -> None:
    first = job(client, queue, "old", unique_key="k")
    again = job(client, queue, "new", unique_key="k", dedup="replace")
    assert (again["id"], again["replaced"]) == (first["id"], True)
    assert pull_all(client, queue) == ["new"]


def test_a_debounced_job_is_refused_for_a_while(client: Raw, queue: str) -> None:
    job(client, queue, debounce_id="d")
    assert refused(client.ask({"cmd": "PUSH", "queue": queue, "data": 1, "debounce_id": "d"}), "conflict")
    assert len(pull_all(client, queue)) == 1


def test_a_batch_says_which_of_its_jobs_were_known(client: Raw, queue: str) -> None:
    jobs = [{"data": at, "transaction_id": f"t{at % 2}"} for at in range(3)]
    reply = ask(client, "PUSHB", queue=queue, jobs=jobs)
    assert reply["duplicates"] == [2]
    assert reply["ids"][2] == reply["ids"][0]


def test_a_request_that_is_sent_again_is_answered_as_the_first_was(client: Raw, queue: str) -> None:
    request = {"queue": queue, "messages": [1, 2], "idempotency_key": "r1", "producer": "me"}
    first, again = ask(client, "PUSHB", **request), ask(client, "PUSHB", **request)
    assert (again["first"], again["count"], again["duplicate"]) == (first["first"], 2, True)
    assert pull_all(client, queue) == [1, 2]


def test_a_job_is_found_by_its_custom_id(client: Raw, queue: str) -> None:
    message = job(client, queue, {"n": 1}, job_id=queue)["id"]
    assert job(client, queue, {"n": 2}, job_id=queue)["id"] == message
    for fields in ({}, {"queue": queue}):
        found = ask(client, "GETJOBBYCUSTOMID", job_id=queue, **fields)
        assert (found["job"]["id"], found["job"]["data"]) == (message, {"n": 1})
    assert refused(client.ask({"cmd": "GETJOBBYCUSTOMID", "job_id": "nobody"}), "not_found")


def test_jobs_of_one_key_come_one_at_a_time(client: Raw, queue: str) -> None:
    for data in range(3):
        job(client, queue, data, group_id="g")
    first = pull(client, queue)
    assert pull_all(client, queue) == []
    ask(client, "ACK", id=first["id"])
    assert pull(client, queue)["data"] == 1


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"unique_key": ""}, "unique_key"),
        ({"dedup": "replace"}, "unique_key"),
        ({"dedup": "often", "unique_key": "k"}, "dedup"),
        ({"dedup": "throttle", "unique_key": "k"}, "dedup_window_ms"),
        ({"debounce_ttl": 5}, "debounce_ttl"),
        ({"debounce_id": "d", "unique_key": "k"}, "debounce_id"),
        ({"job_id": ""}, "job_id"),
        ({"producer": "me", "idempotency_key": ""}, "idempotency_key"),
        ({"key": "a", "group_id": "b"}, "key"),
        ({"key": "a", "partition": "b"}, "key"),
        ({"on_failed": "ignore"}, "depends_on"),
        ({"depends_on": []}, "depends_on"),
        ({"keys_if_undelivered": [[]]}, "key"),
    ],
)
def test_bad_keys_of_a_job_are_refused(client: Raw, queue: str, fields: dict[str, Any], field: str) -> None:
    assert refused(client.ask({"cmd": "PUSH", "queue": queue, "data": 1, **fields}), "invalid", field)


def test_on_failed_without_depends_on_is_refused_in_a_batch_too(client: Raw, queue: str) -> None:
    reply = client.ask({"cmd": "PUSHB", "queue": queue, "jobs": [{"data": 1, "on_failed": "ignore"}]})
    assert refused(reply, "invalid", "depends_on")


# What waits for others.


def test_a_job_waits_for_those_it_depends_on(client: Raw, queue: str) -> None:
    first = push(client, queue, "first")
    second = job(client, queue, "second", depends_on=[first])["id"]
    assert state(client, second)["state"] == "waiting-children"
    assert pull_all(client, queue) == ["first"]
    ask(client, "ACK", id=first)
    assert pull_all(client, queue) == ["second"]
    reply = client.ask({"cmd": "PUSH", "queue": queue, "data": 1, "depends_on": [1 << 60]})
    assert refused(reply, "not_found")


def test_a_flow_is_a_job_and_those_it_waits_for(client: Raw, queue: str) -> None:
    children = [
        {"queue": f"{queue}-a", "data": 1},
        {"queue": f"{queue}-b", "data": 2, "children": [{"queue": f"{queue}-a", "data": 3}]},
    ]
    flow = ask(client, "FLOW", queue=queue, data="parent", children=children)
    assert len(flow["children_ids"]) == 2
    for name, data in ((f"{queue}-a", 1), (f"{queue}-a", 3), (f"{queue}-b", 2)):
        assert pull_all(client, queue) == []
        taken = pull(client, name)
        assert taken["data"] == data
        ask(client, "ACK", id=taken["id"], result={"of": data})
    assert pull(client, queue)["data"] == "parent"
    found = ask(client, "GETCHILDREN", parent_id=flow["parent_id"])
    assert [child["id"] for child in found["children"]] == flow["children_ids"]
    assert [child["state"] for child in found["children"]] == ["completed", "completed"]
    assert [child["result"] for child in found["children"]] == [{"of": 1}, {"of": 2}]


def test_a_child_that_fails_fails_its_parent(client: Raw, queue: str) -> None:
    child = {"queue": f"{queue}-a", "data": 1, "max_attempts": 1}
    flow = ask(client, "FLOW", queue=queue, data=0, children=[child])
    ask(client, "FAIL", id=pull(client, f"{queue}-a")["id"], error="no")
    assert state(client, flow["parent_id"])["state"] == "failed"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"children": []}, "children"),
        ({"children": [{"queue": "no queue", "data": 1}]}, "queue"),
        ({"children": [{"queue": "q", "data": 1, "durability": "os"}]}, "durability"),
        ({"children": [{"queue": "q", "data": 1, "delay": -1}]}, "delay"),
        ({"children": [{"queue": "q", "data": 1}], "idempotency_key": "k"}, "idempotency_key"),
        pytest.param(
            {"children": [{"queue": "q", "data": 1}], "on_failed": "shrug"},
            "on_failed",
        ),
    ],
)
def test_a_bad_flow_is_refused_and_nothing_of_it_is_pushed(
    client: Raw, queue: str, fields: dict[str, Any], field: str
) -> None:
    assert refused(client.ask({"cmd": "FLOW", "queue": queue, "data": 1, **fields}), "invalid", field)
    assert pull_all(client, queue) == []


def test_a_flow_that_is_too_deep_is_refused(client: Raw, queue: str) -> None:
    child: dict[str, Any] = {"queue": "q", "data": 1}
    for _ in range(25):
        child = {"queue": "q", "data": 1, "children": [child]}
    reply = client.ask({"cmd": "FLOW", "queue": queue, "data": 1, "children": [child]})
    assert refused(reply, "invalid", "children")
    deep = b'{"queue":"q","data":1,"children":[' * 2_000 + b"]}" * 2_000
    client.send_frame(b'{"cmd":"FLOW","queue":"q","data":1,"children":[' + deep + b"]}")
    assert not client.receive()["ok"]
    assert client.ask({"cmd": "STATS"})["ok"]


@pytest.mark.parametrize("failing", [False, True])
def test_the_end_of_a_batch_is_a_job_of_its_own(client: Raw, queue: str, failing: bool) -> None:
    jobs = [{"data": at, "max_attempts": 1} for at in range(2)]
    done = {"queue": f"{queue}-done", "data": "all"}
    pushed = ask(client, "PUSHB", queue=queue, jobs=jobs, on_complete=done)
    assert state(client, pushed["completion_id"])["state"] == "waiting-children"
    for _ in jobs:
        ask(client, "FAIL" if failing else "ACK", id=pull(client, queue)["id"])
    assert pull(client, f"{queue}-done")["data"] == "all"


# Transactions.


def test_a_transaction_does_all_of_it(client: Raw, queue: str) -> None:
    message = push(client, queue, "work")
    pull(client, queue)
    ops = [
        {"cmd": "ACK", "id": message, "result": "done"},
        {"cmd": "PUSH", "queue": f"{queue}-next", "data": "next"},
        {"cmd": "PUSHB", "queue": f"{queue}-next", "messages": ["more"]},
        {"cmd": "FLOW", "queue": queue, "data": 1, "children": [{"queue": f"{queue}-child", "data": 2}]},
        {"cmd": "KVINCR", "key": [queue, "n"], "by": 2},
        {"cmd": "KVINCR", "key": [queue, "n"], "by": 3},
    ]
    results = ask(client, "TX", ops=ops)["results"]
    assert [result["ok"] for result in results] == [True] * 6
    assert results[5]["value"] == 5
    assert state(client, message)["state"] == "completed"
    assert pull_all(client, f"{queue}-next") == ["next", "more"]
    assert state(client, results[3]["parent_id"])["state"] == "waiting-children"


@pytest.mark.parametrize(
    ("op", "code", "field"),
    [
        ({"cmd": "ACK", "id": 1 << 60}, "conflict", "ops[1]"),
        ({"cmd": "PUSH", "queue": "no queue", "data": 1}, "invalid", "ops[1].queue"),
        ({"cmd": "KVATOMIC", "checks": [{"key": "nobody", "version": "0" * 24}]}, "conflict", "ops[1]"),
        ({"cmd": "PUSH", "queue": "q", "data": 1, "foo": 1}, "invalid", "ops[1].foo"),
        ({"cmd": "PULL", "queue": "q"}, "invalid", "ops[1].cmd"),
        ({"cmd": "TX", "ops": []}, "invalid", "ops[1].cmd"),
    ],
)
def test_a_transaction_that_fails_does_nothing(
    client: Raw, queue: str, op: dict[str, Any], code: str, field: str | None
) -> None:
    message = push(client, queue, "work")
    pull(client, queue)
    good = [{"cmd": "ACK", "id": message}, {"cmd": "KVSET", "key": queue, "value": 1}]
    assert refused(client.ask({"cmd": "TX", "ops": [good[0], op, good[1]]}), code, field)
    assert state(client, message)["state"] == "active"
    assert ask(client, "KVEXISTS", key=queue)["exists"] is False


def test_a_transaction_settles_each_message_once(client: Raw, queue: str) -> None:
    message = push(client, queue, "work")
    pull(client, queue)
    ops = [{"cmd": "ACK", "id": message}, {"cmd": "FAIL", "id": message}]
    assert refused(client.ask({"cmd": "TX", "ops": ops}), "invalid", "ops[1].ids")
    assert refused(client.ask({"cmd": "TX", "ops": []}), "invalid", "ops")


# Crons.


def crons(client: Raw, name: str) -> list[Reply]:
    return [each for each in ask(client, "CRONLIST")["crons"] if each["name"] == name]


def test_a_cron_pushes_its_job_again_and_again(client: Raw, queue: str) -> None:
    made = ask(client, "CRON", name=queue, queue=queue, data={"n": 1}, repeat_every=100, limit=2)
    assert made["name"] == queue
    for _ in range(2):
        assert pull(client, queue, timeout=20_000)["data"] == {"n": 1}
    assert crons(client, queue) == []


def test_a_cron_is_listed_with_its_schedule_and_deleted(client: Raw, queue: str) -> None:
    fields = {"schedule": "0 9 * * 1", "timezone": "Europe/Rome", "missed": "all", "priority": 3}
    made = ask(client, "CRON", name=queue, queue=queue, data=[1], **fields)
    (cron,) = crons(client, queue)
    assert {name: cron[name] for name in fields} == fields
    assert (cron["data"], cron["executions"], cron["next_run"]) == ([1], 0, made["next_run"])
    assert ask(client, "CRONDELETE", name=queue) == {"ok": True}
    assert crons(client, queue) == []
    assert refused(client.ask({"cmd": "CRONDELETE", "name": queue}), "not_found")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "schedule"),
        ({"schedule": "often"}, "schedule"),
        ({"schedule": "* * * * *", "repeat_every": 1_000}, "schedule"),
        ({"repeat_every": 1}, "repeat_every"),
        ({"repeat_every": 1_000, "timezone": "Mars"}, "timezone"),
        ({"repeat_every": 1_000, "limit": -1}, "limit"),
        ({"repeat_every": 1_000, "missed": "some"}, "missed"),
        ({"repeat_every": 1_000, "job_id": "x"}, "job_id"),
        ({"repeat_every": 1_000, "depends_on": [1]}, "depends_on"),
        ({"repeat_every": 1_000, "name": ""}, "name"),
        ({"repeat_every": 1_000, "queue": "no queue"}, "queue"),
    ],
)
def test_a_bad_cron_is_refused(client: Raw, queue: str, fields: dict[str, Any], field: str) -> None:
    request = {"cmd": "CRON", "name": queue, "queue": queue, "data": 1} | fields
    assert refused(client.ask(request), "invalid", field)
    assert crons(client, queue) == []


# Limits.


def test_a_rate_limit_holds_back_and_is_cleared(client: Raw, queue: str) -> None:
    ask(client, "RATELIMIT", queue=queue, limit=2, per_ms=HOUR_MS)
    push(client, queue, *range(5))
    assert pull_all(client, queue) == [0, 1]
    ask(client, "RATELIMITCLEAR", queue=queue)
    assert pull_all(client, queue) == [2, 3, 4]


def test_a_concurrency_is_set_and_cleared_and_wakes_who_waits(client: Raw, other: Raw, queue: str) -> None:
    ask(client, "SETCONCURRENCY", queue=queue, limit=1)
    push(client, queue, *range(3))
    taken = pull(client, queue)
    wait_for_pull(other, queue, timeout=20_000)
    ask(client, "ACK", id=taken["id"])
    assert other.receive()["job"]["data"] == 1
    ask(client, "CLEARCONCURRENCY", queue=queue)
    assert pull_all(client, queue) == [2]


def test_a_token_that_comes_wakes_who_waits(client: Raw, queue: str) -> None:
    ask(client, "RATELIMIT", queue=queue, limit=20, burst=1)
    push(client, queue, *range(3))
    assert [pull(client, queue, timeout=20_000)["data"] for _ in range(3)] == [0, 1, 2]


def test_queues_share_a_limit_that_has_a_name(client: Raw, queue: str) -> None:
    ask(client, "LIMIT", name=queue, concurrency=1, rate_limit={"limit": 5, "per_ms": HOUR_MS})
    queues = [f"{queue}-{end}" for end in "ab"]
    for each in queues:
        configure(client, each, limits=[queue])
        push(client, each, each)
    taken = pull(client, queues[0])
    assert pull_all(client, queues[1]) == []
    (limit,) = [each for each in ask(client, "LIMITLIST")["limits"] if each["name"] == queue]
    assert (limit["active"], limit["concurrency"], limit["rate_limit"]["limit"]) == (1, 1, 5)
    ask(client, "ACK", id=taken["id"])
    assert pull_all(client, queues[1]) == [queues[1]]
    ask(client, "LIMITDELETE", name=queue)
    assert refused(client.ask({"cmd": "LIMITDELETE", "name": queue}), "not_found")


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        ({"cmd": "RATELIMIT", "queue": "q"}, "limit"),
        ({"cmd": "RATELIMIT", "queue": "no queue", "limit": 1}, "queue"),
        ({"cmd": "SETCONCURRENCY", "queue": "q", "limit": 0}, "limit"),
        ({"cmd": "LIMIT", "name": "n"}, "rate_limit"),
        ({"cmd": "LIMIT", "name": "", "concurrency": 1}, "name"),
        ({"cmd": "LIMIT", "name": "n", "concurrency": -1}, "concurrency"),
        ({"cmd": "LIMIT", "name": "n", "rate_limit": 0}, "rate_limit"),
    ],
)
def test_bad_limits_are_refused(client: Raw, request_: dict[str, Any], field: str) -> None:
    assert refused(client.ask(request_), "invalid", field)


@pytest.mark.parametrize(
    ("fields", "field"),
    [({"limit": 0}, "limit"), ({"bytes": 0}, "bytes"), ({"limit": 1, "per_ms": 0}, "per_ms")],
)
def test_a_bad_rate_is_refused_by_the_name_it_was_given_by(
    client: Raw, queue: str, fields: dict[str, Any], field: str
) -> None:
    assert refused(client.ask({"cmd": "RATELIMIT", "queue": queue, **fields}), "invalid", field)


# Keys and values.


def test_a_value_is_set_read_counted_and_deleted(client: Raw, queue: str) -> None:
    key = [queue, 7, True]
    set_ = ask(client, "KVSET", key=key, value={"a": [1, None]})
    got = ask(client, "KVGET", key=key)
    assert (got["value"], got["version"]) == ({"a": [1, None]}, set_["version"])
    assert ask(client, "KVEXISTS", key=key)["exists"] is True
    assert ask(client, "KVTTL", key=key)["ttl"] == -1
    assert ask(client, "KVDEL", keys=[key, [queue, "nobody"]])["count"] == 1
    assert ask(client, "KVGET", key=key) == {"ok": True, "value": None, "version": None}
    assert ask(client, "KVTTL", key=key)["ttl"] == -2


def test_a_number_is_counted_up_and_down(client: Raw, queue: str) -> None:
    values = [ask(client, "KVINCR", key=queue, by=by)["value"] for by in (1, 5, -2, 0.5)]
    assert values == [1, 6, 4, 4.5]
    ask(client, "KVSET", key=queue, value="text")
    assert refused(client.ask({"cmd": "KVINCR", "key": queue}), "conflict")


def test_values_have_a_time_to_live(client: Raw, queue: str) -> None:
    ask(client, "KVSET", key=queue, value=1, ttl=HOUR_MS)
    assert 0 < ask(client, "KVTTL", key=queue)["ttl"] <= HOUR_MS
    ask(client, "KVEXPIRE", key=queue, ttl=0)
    assert ask(client, "KVTTL", key=queue)["ttl"] == -1
    assert refused(client.ask({"cmd": "KVEXPIRE", "key": [queue, "nobody"], "ttl": 5}), "not_found")
    assert refused(client.ask({"cmd": "KVEXPIRE", "key": queue, "ttl": -5}), "invalid", "ttl")


def test_several_values_are_set_and_read_together(client: Raw, queue: str) -> None:
    entries = [{"key": [queue, at], "value": at * at} for at in range(3)]
    version = ask(client, "KVMSET", entries=entries)["version"]
    got = ask(client, "KVMGET", keys=[[queue, 2], [queue, 9], [queue, 0]])
    assert (got["values"], got["versions"]) == ([4, None, 0], [version, None, version])


def test_keys_are_listed_page_by_page(client: Raw, queue: str) -> None:
    entries = [{"key": [queue, at], "value": at} for at in range(7)]
    ask(client, "KVMSET", entries=entries)
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
    assert ask(client, "KVKEYS", pattern=f"{queue}:?")["keys"] == [f"{queue}:a", f"{queue}:b"]


def test_a_write_is_made_only_if_its_checks_hold(client: Raw, queue: str) -> None:
    checks = [{"key": queue, "version": None}]
    mutations = [{"kind": "set", "key": queue, "value": 1}, {"kind": "append", "key": [queue], "value": 2}]
    reply = client.ask({"cmd": "KVATOMIC", "checks": checks, "mutations": mutations})
    assert refused(reply, "conflict")  # a text is a key of one part: the same key twice
    version = ask(client, "KVATOMIC", checks=checks, mutations=mutations[:1])["version"]
    assert refused(client.ask({"cmd": "KVATOMIC", "checks": checks, "mutations": mutations[:1]}), "conflict")
    checks[0]["version"] = version
    again = ask(client, "KVATOMIC", checks=checks, mutations=[{"kind": "sum", "key": queue, "value": 4}])
    assert again["version"] > version
    assert ask(client, "KVGET", key=queue)["value"] == 5


def test_who_watches_keys_is_told_when_one_changes(client: Raw, other: Raw, queue: str) -> None:
    version = ask(client, "KVSET", key=queue, value=1)["version"]
    keys = [queue, [queue, "other"]]
    other.send(
        {"cmd": "KVWATCH", "keys": keys, "versions": [version, None], "timeout": 20_000, "reqId": "w"},
        {"cmd": "STATS", "reqId": "done"},
    )
    assert other.receive()["reqId"] == "done"
    newer = ask(client, "KVSET", key=queue, value=2)["version"]
    told = other.receive()
    assert (told["reqId"], told["changed"]) == ("w", True)
    assert (told["values"], told["versions"]) == ([2, None], [newer, None])
    same = ask(client, "KVWATCH", keys=[queue], versions=[newer], timeout=0)
    assert same["changed"] is False


def test_a_job_that_dies_leaves_its_data_under_its_keys(client: Raw, queue: str) -> None:
    job(client, queue, {"lost": True}, max_attempts=1, keys_if_undelivered=[[queue, "dead"]])
    ask(client, "FAIL", id=pull(client, queue)["id"])
    assert ask(client, "KVGET", key=[queue, "dead"])["value"] == {"lost": True}


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        ({"cmd": "KVGET", "key": []}, "key"),
        ({"cmd": "KVGET", "key": "x" * 3_000}, "key"),
        ({"cmd": "KVGET", "key": [1] * 21}, "key"),
        ({"cmd": "KVMGET", "keys": []}, "keys"),
        ({"cmd": "KVSET", "key": "a", "value": 1, "ttl": -1}, "ttl"),
        ({"cmd": "KVSET", "key": "a", "value": "x" * 1_048_577}, "value"),
        ({"cmd": "KVDEL"}, "key"),
        ({"cmd": "KVDEL", "key": "a", "keys": ["b"]}, "key"),
        ({"cmd": "KVLIST", "limit": 0}, "limit"),
        ({"cmd": "KVLIST", "cursor": "zz"}, "cursor"),
        ({"cmd": "KVKEYS", "pattern": "x" * 257}, "pattern"),
        ({"cmd": "KVATOMIC", "checks": [{"key": "a", "version": "zz"}]}, "version"),
        ({"cmd": "KVATOMIC", "mutations": [{"kind": "sum", "key": "a"}]}, "mutations.value"),
        ({"cmd": "KVATOMIC", "mutations": [{"kind": "twist", "key": "a", "value": 1}]}, "kind"),
        ({"cmd": "KVATOMIC", "mutations": [{"kind": "sum", "key": "a", "value": "1"}]}, "value"),
        ({"cmd": "KVWATCH", "keys": ["a"], "versions": []}, "versions"),
        ({"cmd": "KVWATCH", "keys": ["a"], "versions": [None], "timeout": -1}, "timeout"),
    ],
)
def test_bad_keys_and_values_are_refused(client: Raw, request_: dict[str, Any], field: str) -> None:
    assert refused(client.ask(request_), "invalid", field)


@pytest.mark.parametrize(
    ("request_", "field"),
    [({"cmd": "KVDEL", "keys": []}, "keys"), ({"cmd": "KVATOMIC"}, "mutations")],
    ids=["KVDEL", "KVATOMIC"],
)
def test_a_write_of_nothing_is_refused_by_a_field_it_has(
    client: Raw, request_: dict[str, Any], field: str
) -> None:
    assert refused(client.ask(request_), "invalid", field)


# What goes together.

OPTIONS = "partition and the options of a message"


def test_a_request_that_is_repeated_is_answered_even_if_it_was_debounced(client: Raw, queue: str) -> None:
    fields = {"debounce_id": "d", "debounce_ttl": HOUR_MS, "idempotency_key": "r"}
    first = job(client, queue, **fields)
    again = job(client, queue, **fields)
    assert (again["id"], again["duplicate"]) == (first["id"], True)
    other = client.ask({"cmd": "PUSH", "queue": queue, "data": 1, **fields, "idempotency_key": "s"})
    assert refused(other, "conflict")


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (
            {"cmd": "PUSHB", "jobs": [{"data": 1}], "on_failed": "fail"},
            "partition and the options of a message",
        ),
        ({"cmd": "PUSH", "data": 1, "debounce_id": "d", "dedup": "drop"}, "debounce_id"),
        ({"cmd": "PUSH", "data": 1, "debounce_id": "d", "dedup_window_ms": 7}, "debounce_id"),
        ({"cmd": "PUSH", "data": 1, "dedup": "drop"}, "unique_key"),
        ({"cmd": "RATELIMIT", "bytes": 5, "burst": 9}, "burst"),
        ({"cmd": "CRON", "name": "c", "schedule": "@daily", "data": 1, "on_failed": "fail"}, "on_failed"),
        ({"cmd": "CRON", "name": "c", "schedule": "@every ٣s", "data": 1}, "schedule"),
    ],
    ids=lambda each: str(each)[:40],
)
def test_what_would_have_no_effect_is_refused(
    client: Raw, queue: str, request_: dict[str, Any], field: str
) -> None:
    assert refused(client.ask({**request_, "queue": queue}), "invalid", field)


def test_crons_behind_a_name_are_listed(client: Raw, queue: str) -> None:
    for name in ("a", "b"):
        ask(client, "CRON", name=f"{queue}-{name}", queue=queue, schedule="@yearly", data=1)
    found = ask(client, "CRONLIST", after=f"{queue}-a")
    assert f"{queue}-b" in [each["name"] for each in found["crons"]]
    assert f"{queue}-a" not in [each["name"] for each in found["crons"]]
    assert "more" not in found
