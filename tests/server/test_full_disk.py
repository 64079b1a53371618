"""A disk that is nearly full: nothing more is taken, and all that is there can be drained."""

import json
from pathlib import Path
from urllib.request import urlopen

import pytest

from forebay.core.api.commands import Ack, Command, Delete, Nack, Pop, Purge, Push, Transact
from forebay.core.api.growth import grows
from forebay.core.api.jobs import KvChange, KvWrite, PushJobs
from tests.serving import Server

EVERYTHING = str(1 << 60)
"""A mark that every disk is below of."""


def _get(server: Server, path: str) -> str:
    with urlopen(f"http://{server.http}{path}") as answer:
        return str(answer.read().decode())


def test_below_the_mark_pushes_are_busy_and_all_that_is_there_is_drained(tmp_path: Path) -> None:
    data = ("--data", str(tmp_path / "data"))
    with Server(*data, "--disk-free-min-bytes", "0") as server:
        client = server.connect()
        assert client.ask({"cmd": "PUSH", "queue": "q", "messages": [1, 2, 3]})["ok"]
        client.close()
        assert json.loads(_get(server, "/readyz")) == {"ready": True}
    with Server(*data, "--disk-free-min-bytes", EVERYTHING) as server:
        client = server.connect()
        refused = client.ask({"cmd": "PUSH", "queue": "q", "payload": 4})
        assert refused["error"]["code"] == "busy"
        assert "free space, or purge" in refused["error"]["message"]
        assert "nothing more is taken" in json.loads(_get(server, "/readyz"))["warning"]
        metrics = _get(server, "/metrics")
        assert "forebay_disk_full 1.0" in metrics
        assert "forebay_disk_free_bytes " in metrics
        popped = client.ask({"cmd": "POP", "queue": "q", "count": 3})
        assert [each["payload"] for each in popped["messages"]] == [1, 2, 3]
        assert client.ask({"cmd": "ACK", "lease": popped["lease"]})["ok"]
        assert client.ask({"cmd": "PURGE", "queue": "q", "states": ["completed"]})["count"] == 3
        assert client.ask({"cmd": "QUEUEDELETE", "queue": "q"})["ok"]
        client.close()


PUT = KvWrite("t", [KvChange("set", b"k", b"1")])
REMOVE = KvWrite("t", [KvChange("delete", b"k")])


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        (Push("t", "q", [b"1"]), True),
        (PUT, True),
        (REMOVE, False),
        (Transact("t", [Ack("t", "l"), PushJobs("t", "q", [])]), True),
        (Transact("t", [Ack("t", "l"), Nack("t", "l"), REMOVE]), False),
        (Pop("t", "q"), False),
        (Purge("t", "q"), False),
        (Delete("t", "q"), False),
    ],
)
def test_only_what_adds_something_grows(command: Command, wanted: bool) -> None:
    assert grows(command) is wanted


def test_below_the_mark_no_queue_and_no_group_is_created_and_those_there_may_be_named(tmp_path: Path) -> None:
    data = ("--data", str(tmp_path / "data"))
    with Server(*data, "--disk-free-min-bytes", "0") as server:
        client = server.connect()
        assert client.ask({"cmd": "PUSH", "queue": "q", "messages": [1]})["ok"]
        assert client.ask({"cmd": "GROUPPUT", "queue": "q", "group": "g"})["ok"]
        client.close()
    with Server(*data, "--disk-free-min-bytes", EVERYTHING) as server:
        client = server.connect()
        for creating in (
            {"cmd": "QUEUE", "queue": "new", "options": {"max_attempts": 2}},
            {"cmd": "POP", "queue": "new", "create": True},
            {"cmd": "GROUPPUT", "queue": "q", "group": "new"},
        ):
            assert client.ask(creating)["error"]["code"] == "busy", creating
        assert client.ask({"cmd": "QUEUE", "queue": "q", "options": {"completed_retention_ms": 1}})["ok"]
        assert client.ask({"cmd": "GROUPPUT", "queue": "q", "group": "g"})["ok"]
        assert client.ask({"cmd": "POP", "queue": "q", "create": True})["messages"]
        client.close()
