"""Dead letters by cause, over TCP: counted, requeued, purged and moved."""

import pytest

from tests.serving import Raw, push


@pytest.fixture
def queue(client: Raw, request: pytest.FixtureRequest) -> str:
    """Four dead letters: two timeouts of bill, and two errors of send."""
    name = f"causes-{abs(hash(request.node.name)) % 10**8}"
    client.ask({"cmd": "QUEUE", "queue": name, "options": {"max_attempts": 1}})
    for task, kind, error in (
        ("bill", "TimeoutError", "timed out after 3 s"),
        ("bill", "TimeoutError", "timed out after 4 s"),
        ("send", "KeyError", "no user 5"),
        ("send", "ValueError", "no user 6"),
    ):
        about = {"task": task, "tags": [task], "priority": 2}
        client.ask({"cmd": "PUSH", "queue": name, "payload": error, **about})
        lease = client.ask({"cmd": "POP", "queue": name})["lease"]
        client.ask({"cmd": "NACK", "lease": lease, "error": error, "error_type": kind})
    return name


def dead(client: Raw, queue: str) -> int:
    return int(client.ask({"cmd": "DEAD", "queue": queue})["total"])


def bulk(client: Raw, queue: str, action: str, **fields: object) -> tuple[int, int]:
    done = client.ask({"cmd": "BULK", "queue": queue, "action": action, **fields})
    assert done["ok"], done
    return done["matched"], done["count"]


def complete(client: Raw, queue: str) -> None:
    lease = client.ask({"cmd": "POP", "queue": queue})["lease"]
    assert client.ask({"cmd": "ACK", "lease": lease})["count"] == 1


def test_causes_are_counted_the_most_frequent_first(client: Raw, queue: str) -> None:
    found = client.ask({"cmd": "DEADGROUPS", "queue": queue, "limit": 2})
    assert (found["total"], found["rest"]) == (4, 1)
    timeouts, other = found["groups"]
    assert [timeouts[name] for name in ("count", "task", "error_type", "error")] == [
        2,
        "bill",
        "TimeoutError",
        "timed out after * s",
    ]
    assert other["count"] == 1
    matched = {"error": timeouts["error"], "error_type": timeouts["error_type"], "task": timeouts["task"]}
    assert bulk(client, queue, "purge", dry_run=True, **matched) == (2, 0)


def test_dead_letters_are_requeued_and_purged_by_cause(client: Raw, queue: str) -> None:
    assert bulk(client, queue, "requeue", error="timed out") == (2, 2)
    assert bulk(client, queue, "purge", task="send", error_type="KeyError") == (1, 1)
    assert dead(client, queue) == 1
    assert client.ask({"cmd": "QUEUE", "queue": queue})["groups"][0]["counts"]["waiting"] == 2


def test_dead_letters_are_moved_with_what_they_were_pushed_with(client: Raw, queue: str) -> None:
    to = f"{queue}-by-hand"
    assert bulk(client, queue, "move", to=to, tag="send", create=True, dry_run=True) == (2, 0)
    assert client.ask({"cmd": "QUEUE", "queue": to})["error"]["code"] == "not_found"
    assert bulk(client, queue, "move", to=to, tag="send", create=True) == (2, 2)
    assert dead(client, queue) == 2
    found = client.ask({"cmd": "BROWSE", "queue": to})["messages"]
    assert [(each["payload"], each["task"], each["tags"], each["priority"]) for each in found] == [
        ("no user 5", "send", ["send"], 2),
        ("no user 6", "send", ["send"], 2),
    ]
    assert {each["state"] for each in found} == {"waiting"}


def test_a_move_that_its_queue_does_not_take_moves_nothing(client: Raw, queue: str) -> None:
    to = f"{queue}-full"
    client.ask({"cmd": "QUEUE", "queue": to, "options": {"max_size": 4}})
    push(client, to, 1)
    refused = client.ask({"cmd": "BULK", "queue": queue, "action": "move", "to": to})
    assert (refused["error"]["code"], refused["error"]["details"]["field"]) == ("busy", "to")
    assert refused["error"]["message"].startswith(f"queue {to} ")
    assert dead(client, queue) == 4


def die(client: Raw, queue: str, *priorities: int) -> None:
    client.ask({"cmd": "QUEUE", "queue": queue, "options": {"max_attempts": 1}})
    for priority in priorities:
        client.ask({"cmd": "PUSH", "queue": queue, "payload": priority, "priority": priority})
        lease = client.ask({"cmd": "POP", "queue": queue})["lease"]
        client.ask({"cmd": "NACK", "lease": lease, "error": "ill"})


def test_a_move_keeps_what_the_other_queue_does_not_take(client: Raw, queue: str) -> None:
    to, source = f"{queue}-strict", f"{queue}-mixed"
    client.ask({"cmd": "QUEUE", "queue": to, "options": {"ordering": "partition"}})
    die(client, source, 0, 5)
    done = client.ask({"cmd": "BULK", "queue": source, "action": "move", "to": to})
    assert (done["matched"], done["count"], done["kept"], done["cursor"]) == (2, 1, 1, None)
    refused = client.ask({"cmd": "BULK", "queue": source, "action": "move", "to": to})
    assert refused["error"]["code"] == "invalid"
    assert refused["error"]["message"].startswith("to must be a queue that takes them: priority must be ")


def test_a_move_goes_on_behind_a_page_that_the_other_queue_does_not_take(client: Raw, queue: str) -> None:
    to, source = f"{queue}-strict", f"{queue}-mixed"
    client.ask({"cmd": "QUEUE", "queue": to, "options": {"ordering": "partition"}})
    die(client, source, 5, 5, 5, 0)
    request = {"cmd": "BULK", "queue": source, "action": "move", "to": to, "limit": 3}
    first = client.ask(request)
    assert (first["count"], first["kept"]) == (0, 3)
    second = client.ask({**request, "cursor": first["cursor"]})
    assert (second["count"], second["cursor"]) == (1, None)


def test_a_move_that_fills_the_other_queue_says_how_many_were_moved(client: Raw, queue: str) -> None:
    to, source = f"{queue}-small", f"{queue}-mixed"
    client.ask({"cmd": "QUEUE", "queue": to, "options": {"ordering": "partition", "max_size": 2}})
    die(client, source, 5, 0, 0, 0)
    request = {"cmd": "BULK", "queue": source, "action": "move", "to": to}
    done = client.ask(request)
    assert (done["matched"], done["count"], done["cursor"] is None) == (2, 2, False)
    assert client.ask({**request, "cursor": done["cursor"]})["error"]["code"] == "busy"
    assert dead(client, source) == 2
    complete(client, to)
    assert client.ask({**request, "cursor": done["cursor"]})["count"] == 1


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_move_to_a_mistyped_queue_names_the_one_that_may_be_meant(
    client: Raw, queue: str, dry_run: bool
) -> None:
    push(client, f"{queue}-by-hand", 1)
    to = f"{queue}-by-hnad"
    refused = client.ask({"cmd": "BULK", "queue": queue, "action": "move", "to": to, "dry_run": dry_run})
    error = refused["error"]
    assert (error["code"], error["details"]) == ("not_found", {"field": "to"})
    assert error["message"].startswith(f"there is no queue {to}; is {queue}-by-hand ")
    assert error["message"].endswith(" meant? Say create to have it made")
    assert client.ask({"cmd": "QUEUE", "queue": to})["error"]["code"] == "not_found"
    bad = client.ask({"cmd": "BULK", "queue": queue, "action": "move", "to": "no queue!", "create": True})
    assert bad["error"]["details"]["field"] == "to"
    assert dead(client, queue) == 4


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_move_keeps_what_others_depend_on_and_what_died_of_a_dependency(
    client: Raw, queue: str, dry_run: bool
) -> None:
    child = client.ask({"cmd": "PUSH", "queue": queue, "payload": "child"})["id"]
    parent = client.ask({"cmd": "PUSH", "queue": f"{queue}-p", "payload": "p", "depends_on": [child]})["id"]
    lease = client.ask({"cmd": "POP", "queue": queue})["lease"]
    client.ask({"cmd": "NACK", "lease": lease, "error": "ill"})
    fields = {"action": "move", "to": f"{queue}-to", "create": True, "dry_run": dry_run}
    done = client.ask({"cmd": "BULK", "queue": queue, **fields})
    assert (done["matched"], done["count"], done["kept"]) == (5, 0 if dry_run else 4, 1)
    assert dead(client, queue) == (5 if dry_run else 1)
    done = client.ask({"cmd": "BULK", "queue": f"{queue}-p", **fields})
    assert (done["matched"], done["count"], done["kept"]) == (1, 0, 1)
    assert client.ask({"cmd": "REQUEUE", "queue": queue, "ids": [child]})["dependents"] == 1
    complete(client, queue)
    assert client.ask({"cmd": "STATE", "id": parent})["state"] == "waiting"


def test_a_move_keeps_what_has_dependencies_even_if_they_are_completed(client: Raw, queue: str) -> None:
    child = client.ask({"cmd": "PUSH", "queue": f"{queue}-c", "payload": "child"})["id"]
    client.ask({"cmd": "PUSH", "queue": queue, "payload": "parent", "depends_on": [child], "task": "sum"})
    complete(client, f"{queue}-c")
    lease = client.ask({"cmd": "POP", "queue": queue, "wait_ms": 10_000})["lease"]
    client.ask({"cmd": "NACK", "lease": lease, "error": "ill"})
    done = client.ask({"cmd": "BULK", "queue": queue, "action": "move", "to": f"{queue}-to", "create": True})
    assert (done["matched"], done["count"], done["kept"]) == (5, 4, 1)
    assert dead(client, queue) == 1


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"action": "move"}, "to"),
        ({"action": "purge", "to": "x"}, "to"),
        ({"action": "purge", "create": True}, "create"),
        ({"action": "cancel", "error": "x"}, "action"),
    ],
)
def test_what_does_not_go_together_is_refused(
    client: Raw, queue: str, fields: dict[str, str], field: str
) -> None:
    refused = client.ask({"cmd": "BULK", "queue": queue, **fields})
    assert (refused["error"]["code"], refused["error"]["details"]["field"]) == ("invalid", field)
    to_itself = client.ask({"cmd": "BULK", "queue": queue, "action": "move", "to": queue})
    assert to_itself["error"]["code"] == "invalid"
    assert dead(client, queue) == 4
