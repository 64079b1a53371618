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
    assert bulk(client, queue, "move", to=to, tag="send", dry_run=True) == (2, 0)
    assert bulk(client, queue, "move", to=to, tag="send") == (2, 2)
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
    assert refused["error"]["code"] == "busy"
    assert dead(client, queue) == 4


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"action": "move"}, "to"),
        ({"action": "purge", "to": "x"}, "to"),
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
