"""Keys, values and crons over HTTP."""

import json
from typing import Any

import pytest

from tests.server.http.talking import Answer, Http, at
from tests.serving import Server

HOUR_MS = 3_600_000


def refused(answer: Answer, status: int, code: str) -> bool:
    return (answer.status, answer.code) == (status, code)


# Keys and values.


def test_a_value_is_set_got_and_deleted(http: Http, queue: str) -> None:
    path = f"/v1/kv/{queue}/7"
    assert refused(http.ask("GET", path), 404, "not_found")
    written = http.put(path, value={"name": "Ada"})
    assert written["deleted"] == 0
    assert http.get(path) == {"key": [queue, "7"], "value": {"name": "Ada"}, "version": written["version"]}
    assert http.delete(path)["deleted"] == 1
    assert http.delete(path)["deleted"] == 0
    assert refused(http.ask("GET", path), 404, "not_found")


def test_a_key_in_a_path_may_be_any_text(http: Http, queue: str) -> None:
    for name, key in (("a%20b", "a b"), ("%C3%A9", "\u00e9"), ("100%25", "100%"), ("..a", "..a")):
        http.send("PUT", f"/v1/kv/{queue}/{name}", b'{"value": 1}')
        assert http.get(f"/v1/kv/{queue}/{name}")["key"] == [queue, key]
    for path in ("/v1/kv/", "/v1/kv//", f"/v1/kv/{queue}//a", f"/v1/kv/{queue}/"):
        assert refused(http.send("PUT", path, b'{"value": 1}'), 400, "invalid")


def test_an_escaped_slash_in_a_path_is_a_part_of_a_part(http: Http, queue: str) -> None:
    http.put(f"/v1/kv/{queue}/a/b", value="two parts")
    http.put(f"/v1/kv/{queue}/a%2Fb", value="one part")
    http.post("/v1/kv", mutations=[{"kind": "set", "key": [queue, "c/d"], "value": 3}])
    assert http.get(f"/v1/kv/{queue}/a/b")["value"] == "two parts"
    found = http.get(f"/v1/kv/{queue}/a%2fb")
    assert (found["key"], found["value"]) == ([queue, "a/b"], "one part")
    assert http.get(f"/v1/kv/{queue}/c%2Fd")["value"] == 3


def test_a_value_is_set_only_if_it_is_of_the_version_that_is_given(http: Http, queue: str) -> None:
    path = f"/v1/kv/{queue}"
    first = http.put(path, value=1, version=None)["version"]
    assert refused(http.ask("PUT", path, {"value": 2, "version": None}), 409, "conflict")
    second = http.put(path, value=2, version=first)["version"]
    assert second > first
    assert refused(http.ask("PUT", path, {"value": 3, "version": first}), 409, "conflict")
    assert refused(http.ask("DELETE", path, version=first), 409, "conflict")
    assert http.get(path)["value"] == 2
    assert http.delete(path, version=second)["deleted"] == 1
    assert refused(http.ask("PUT", path, {"value": 1, "version": "x"}), 400, "invalid")


def test_a_value_may_have_an_end(http: Http, queue: str) -> None:
    http.put(f"/v1/kv/{queue}", value=1, ttl_ms=3_600_000)
    assert http.get(f"/v1/kv/{queue}")["expires_at"] > 0
    answer = http.ask("PUT", f"/v1/kv/{queue}", {"value": 1, "ttl_ms": -1})
    assert refused(answer, 400, "invalid")
    assert answer.details["field"] == "ttl_ms"


def names(entries: list[Any]) -> list[Any]:
    return [each["key"] for each in entries]


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
@pytest.mark.parametrize("reverse", [False, True])
def test_keys_below_a_prefix_are_listed_page_by_page(
    limit: int, reverse: bool, http: Http, queue: str
) -> None:
    wanted = [[queue, "a"], [queue, "b", "1"], [queue, "b", "2"], [queue, "c"]]
    for key in wanted:
        http.put(f"/v1/kv/{'/'.join(key)}", value=key)
    http.put(f"/v1/kv/{queue}x", value="not below it")
    found: list[Any] = []
    query: dict[str, Any] = {"prefix": queue, "limit": limit, "reverse": reverse}
    while True:
        page = http.get("/v1/kv", **query)
        assert len(page["entries"]) <= limit
        found += names(page["entries"])
        if page["cursor"] is None:
            break
        query["cursor"] = page["cursor"]
    assert found == (wanted[::-1] if reverse else wanted)
    assert names(http.get("/v1/kv", prefix=f"{queue}/b")["entries"]) == wanted[1:3]


def test_without_a_prefix_every_key_is_listed(http: Http, queue: str) -> None:
    http.put(f"/v1/kv/{queue}", value=1)
    for query in ({}, {"prefix": ""}, {"prefix": "/"}):
        assert [queue] in names(http.get("/v1/kv", limit=1_000, **query)["entries"])


def test_keys_are_listed_from_one_up_to_another_and_by_a_pattern(http: Http, queue: str) -> None:
    for each in ("a", "b/1", "b/2", "c"):
        http.put(f"/v1/kv/{queue}/{each}", value=1)
    found = http.get("/v1/kv", start=f"{queue}/b", end=f"{queue}/c")["entries"]
    assert names(found) == [[queue, "b", "1"], [queue, "b", "2"]]
    for each in ("one", "two"):
        http.put(f"/v1/kv/{queue}-{each}", value=1)
    assert names(http.get("/v1/kv", pattern=f"{queue}-t?o")["entries"]) == [[f"{queue}-two"]]
    assert names(http.get("/v1/kv", pattern=f"{queue}*")["entries"]) == [[f"{queue}-one"], [f"{queue}-two"]]


def test_several_values_are_got_at_once_in_their_order(http: Http, queue: str) -> None:
    version = http.put(f"/v1/kv/{queue}", value=None)["version"]
    found = http.post("/v1/kv-get", keys=[[queue, "none"], queue])
    assert found == {"values": [None, None], "versions": [None, version]}


def test_a_number_is_added_to(http: Http, queue: str) -> None:
    path = f"/v1/kv/{queue}/n"
    first = http.post(path)
    assert (first["key"], first["value"]) == ([queue, "n"], 1)
    assert http.post(path, by=-3)["value"] == -2
    assert http.get(path)["value"] == -2
    http.put(path, value="text")
    assert refused(http.ask("POST", path, {}), 409, "conflict")


def test_a_watch_waits_until_a_key_changes(server: Server, http: Http, queue: str) -> None:
    unchanged = http.post("/v1/kv-watch", keys=[queue], versions=[None])
    assert unchanged == {"changed": False, "values": [None], "versions": [None]}
    with Http(server.http) as other:
        body = json.dumps({"keys": [queue], "versions": [None], "wait_ms": 30_000})
        other.connection.request("POST", "/v1/kv-watch", body)
        version = http.put(f"/v1/kv/{queue}", value=7)["version"]
        found = json.loads(other.connection.getresponse().read())
    assert found == {"changed": True, "values": [7], "versions": [version]}


def test_what_a_list_may_ask_for_has_limits(http: Http) -> None:
    for query, field in (({"limit": 0}, "limit"), ({"limit": 1_001}, "limit"), ({"cursor": "x"}, "cursor")):
        answer = http.ask("GET", "/v1/kv", **query)
        assert refused(answer, 400, "invalid")
        assert answer.details["field"] == field


def test_keys_of_numbers_are_written_and_listed(http: Http, queue: str) -> None:
    keys: list[list[Any]] = [[queue, 2], [queue, 10], [queue, 1.5], [queue, True]]
    http.post("/v1/kv", mutations=[{"kind": "set", "key": key, "value": 0} for key in keys])
    found = names(http.get("/v1/kv", prefix=queue)["entries"])
    assert sorted(map(str, found)) == sorted(map(str, keys))
    assert found.index([queue, 1.5]) < found.index([queue, 2]) < found.index([queue, 10])


def test_changes_are_made_all_or_none(http: Http, queue: str) -> None:
    version = http.put(f"/v1/kv/{queue}/a", value=1)["version"]
    changes = [
        {"kind": "sum", "key": [queue, "a"], "value": 4},
        {"kind": "set", "key": [queue, "b"], "value": "x", "ttl_ms": 3_600_000},
        {"kind": "max", "key": [queue, "c"], "value": 9},
        {"kind": "append", "key": [queue, "d"], "value": [1]},
    ]
    for checks in ([{"key": [queue, "a"], "version": None}], [{"key": [queue, "z"], "version": version}]):
        answer = http.ask("POST", "/v1/kv", {"checks": checks, "mutations": changes})
        assert refused(answer, 409, "conflict")
    assert names(http.get("/v1/kv", prefix=queue)["entries"]) == [[queue, "a"]]
    good = [{"key": [queue, "a"], "version": version}, {"key": [queue, "z"], "version": None}]
    written = http.post("/v1/kv", checks=good, mutations=changes)
    entries = http.get("/v1/kv", prefix=queue)["entries"]
    assert {each["key"][1]: each["value"] for each in entries} == {"a": 5, "b": "x", "c": 9, "d": [1]}
    assert {each["version"] for each in entries} == {written["version"]}
    gone = [
        {"kind": "delete", "key": [queue, "a"]},
        {"kind": "expire", "key": [queue, "c"], "ttl_ms": 60_000},
    ]
    assert http.post("/v1/kv", mutations=gone)["deleted"] == 1


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"mutations": [{"kind": "dance", "key": "a", "value": 1}]},
        {"mutations": [{"kind": "set", "key": "a"}]},
        {"mutations": [{"kind": "delete", "key": "a", "value": 1}]},
        {"mutations": [{"kind": "set", "key": [], "value": 1}]},
        {"mutations": [{"kind": "set", "key": [None], "value": 1}]},
        {"mutations": [{"kind": "sum", "key": "a", "value": "one"}]},
        {"checks": [{"key": "a"}]},
        {"checks": [{"key": "a", "version": "x"}]},
        {"mutations": [{"kind": "set", "key": "a", "value": 1}] * 1_001},
    ],
)
def test_changes_that_make_no_sense_are_refused(body: dict[str, Any], http: Http) -> None:
    assert refused(http.ask("POST", "/v1/kv", body), 400, "invalid")


# Crons.


def put(http: Http, name: str, **fields: Any) -> Answer:
    return http.ask("PUT", f"/v1/crons/{name}", {"queue": "ticks", "message": {"payload": 1}, **fields})


def test_a_cron_is_made_looked_at_and_deleted(http: Http, queue: str) -> None:
    made = put(http, queue, schedule="0 3 * * *", timezone="Europe/Rome", limit=5, missed="all").json
    assert made == http.get(f"/v1/crons/{queue}")
    assert (made["name"], made["queue"], made["payload"]) == (queue, "ticks", 1)
    assert (made["schedule"], made["every_ms"], made["timezone"]) == ("0 3 * * *", None, "Europe/Rome")
    assert (made["limit"], made["missed"], made["fired"], made["last_at"]) == (5, "all", 0, None)
    assert made["next_at"] > 0
    changed = put(http, queue, every_ms=HOUR_MS).json
    assert (changed["schedule"], changed["every_ms"]) == (None, HOUR_MS)
    assert queue in [each["name"] for each in http.get("/v1/crons")["crons"]]
    assert http.delete(f"/v1/crons/{queue}") == {"name": queue}
    for method in ("GET", "DELETE"):
        assert refused(http.ask(method, f"/v1/crons/{queue}"), 404, "not_found")


def test_a_cron_pushes_its_message(http: Http, queue: str) -> None:
    message = {"payload": {"n": 1}, "tags": ["t"], "priority": 2}
    http.put(f"/v1/crons/{queue}", queue=queue, message=message, every_ms=100, limit=1)
    (found,) = http.pop(queue, wait_ms=30_000)["messages"]
    assert (found["payload"], found["tags"], found["priority"]) == ({"n": 1}, ["t"], 2)


def test_crons_are_listed_by_name_behind_another(http: Http, queue: str) -> None:
    made = [f"{queue}-{n}" for n in range(3)]
    for name in made:
        put(http, name, schedule="@yearly")
    found = http.get("/v1/crons", after=made[0])
    assert [each["name"] for each in found["crons"] if each["name"].startswith(queue)] == made[1:]
    assert found["more"] is False


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "schedule"),
        ({"schedule": "whenever"}, "schedule"),
        ({"schedule": "@daily", "every_ms": 1_000}, "schedule"),
        ({"every_ms": 1}, "every_ms"),
        ({"schedule": "@daily", "timezone": "Mars/Olympus"}, "timezone"),
        ({"schedule": "@daily", "missed": "some"}, "missed"),
        ({"schedule": "@daily", "message": {"payload": 1, "job_id": "x"}}, "message.job_id"),
        ({"schedule": "@daily", "message": {}}, "message.payload"),
        ({"schedule": "@daily", "queue": "not a name"}, "queue"),
    ],
)
def test_a_cron_that_can_not_be_is_refused(
    fields: dict[str, Any], field: str, http: Http, queue: str
) -> None:
    answer = put(http, queue, **fields)
    assert refused(answer, 400, "invalid")
    assert answer.details["field"] == field
    assert http.ask("GET", f"/v1/crons/{queue}").status == 404


def test_a_name_of_a_cron_may_have_slashes(http: Http, queue: str) -> None:
    assert put(http, f"{queue}/a%20b/c", schedule="@yearly").json["name"] == f"{queue}/a b/c"
    assert http.get(f"/v1/crons/{queue}/a%20b/c")["name"] == f"{queue}/a b/c"


def test_what_dies_undelivered_is_kept_under_its_keys(http: Http, queue: str) -> None:
    http.put(at(queue), options={"max_attempts": 1})
    http.post(
        f"{at(queue)}/messages", payload={"n": 1}, keys_if_undelivered=[[queue, "lost"], f"{queue}-lost"]
    )
    http.post("/v1/nack", lease=http.pop(queue)["lease"])
    assert http.get(f"/v1/kv/{queue}/lost")["value"] == {"n": 1}
    assert http.get(f"/v1/kv/{queue}-lost")["value"] == {"n": 1}
