"""What clears a queue out gives its room back, and is for the group that was meant."""

import pytest

from tests.serving import Raw, push


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    return f"clearing-{abs(hash(request.node.name)) % 10**8}"


def kept(client: Raw, queue: str) -> int:
    """Bytes of the messages that a queue keeps."""
    return sum(each["bytes"] for each in client.ask({"cmd": "QUEUE", "queue": queue})["partitions"])


@pytest.mark.parametrize("before", [None, "DRAIN", "DEADPURGE", "PURGE waiting", "ACK"])
def test_a_purge_gives_back_the_room_of_all_that_is_settled_however_it_was(
    client: Raw, queue: str, before: str | None
) -> None:
    client.ask({"cmd": "QUEUE", "queue": queue, "options": {"max_attempts": 1}})
    push(client, queue, *range(100))
    client.ask({"cmd": "PUSH", "queue": queue, "payload": 1, "delay_ms": 60_000})
    if before in ("DEADPURGE", "ACK"):
        lease = client.ask({"cmd": "POP", "queue": queue, "count": 100})["lease"]
        client.ask({"cmd": "ACK" if before == "ACK" else "NACK", "lease": lease})
    if before in ("DRAIN", "DEADPURGE"):
        assert client.ask({"cmd": before, "queue": queue})["ok"]
    elif before == "PURGE waiting":
        assert client.ask({"cmd": "PURGE", "queue": queue, "states": ["waiting"]})["count"] == 100
    assert kept(client, queue) > 0
    size = kept(client, queue)
    assert client.ask({"cmd": "PURGE", "queue": queue})["freed"] == size
    assert kept(client, queue) == 0
    push(client, queue, "new")
    assert client.ask({"cmd": "POP", "queue": queue})["messages"][0]["payload"] == "new"


def test_what_is_pushed_behind_a_purge_is_not_purged(client: Raw, queue: str) -> None:
    """Though it was sent before the purge was answered."""
    push(client, queue, 1, 2)
    for at, request in enumerate(({"cmd": "PURGE"}, {"cmd": "PUSH", "payload": "new"}, {"cmd": "POP"})):
        client.send({**request, "queue": queue, "reqId": at})
    replies = {reply["reqId"]: reply for reply in (client.receive() for _ in range(3))}
    assert replies[0]["count"] == 2
    assert [each["payload"] for each in replies[2]["messages"]] == ["new"]


def test_a_purge_keeps_what_is_leased_and_what_another_group_has_to_read(client: Raw, queue: str) -> None:
    push(client, queue, 1, 2)
    client.ask({"cmd": "GROUPPUT", "queue": queue, "group": "audit"})
    leased = client.ask({"cmd": "POP", "queue": queue})
    assert client.ask({"cmd": "PURGE", "queue": queue})["count"] == 1
    assert client.ask({"cmd": "ACK", "lease": leased["lease"]})["count"] == 1
    read = client.ask({"cmd": "POP", "queue": queue, "group": "audit", "count": 9})
    assert [each["payload"] for each in read["messages"]] == [1, 2]
    client.ask({"cmd": "ACK", "lease": read["lease"]})
    assert client.ask({"cmd": "PURGE", "queue": queue, "group": "audit"})["count"] == 2
    assert kept(client, queue) == 0


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("command", ["DRAIN", "PURGE"])
def test_a_group_that_is_not_there_is_neither_cleared_out_nor_made(
    client: Raw, queue: str, command: str, dry_run: bool
) -> None:
    push(client, queue, 1, 2)
    for group in ("audit", "index"):
        client.ask({"cmd": "GROUPPUT", "queue": queue, "group": group})
    for group in ("default", "aduit"):
        refused = client.ask({"cmd": command, "queue": queue, "group": group, "dry_run": dry_run})
        assert refused["error"]["code"] == "not_found"
        message = f"queue {queue} has no group {group}; its groups: audit, index: name one"
        assert refused["error"]["message"].startswith(message)
    groups = client.ask({"cmd": "GROUPS", "queue": queue})["groups"]
    assert [each["group"] for each in groups] == ["audit", "index"]
    assert client.ask({"cmd": command, "queue": queue, "group": "audit"})["count"] == 2


@pytest.mark.parametrize("command", ["DRAIN", "PURGE"])
def test_a_queue_that_nobody_has_read_yet_is_cleared_out_for_default(
    client: Raw, queue: str, command: str
) -> None:
    push(client, queue, 1, 2)
    assert client.ask({"cmd": command, "queue": queue})["count"] == 2
    assert client.ask({"cmd": "POP", "queue": queue})["messages"] == []
