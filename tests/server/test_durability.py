"""Durability and backups over the wire, on the store a server has when it is told nothing."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.talking import invalid
from tests.serving import Raw, Server, pop, pop_all, push, refused


@pytest.fixture
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="forebay-backup-") as name:
        yield Path(name)


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_a_push_is_answered_with_what_it_survives(client: Raw, queue: str, durability: str) -> None:
    given = {"queue": queue, "durability": durability}
    assert client.ask({"cmd": "PUSH", "payload": 1, **given})["durability"] == durability
    assert client.ask({"cmd": "PUSH", "messages": [2, 3], **given})["durability"] == durability
    assert client.ask({"cmd": "PUSH", "items": [{"payload": 4}], **given})["durability"] == durability
    assert pop_all(client, queue) == [1, 2, 3, 4]


def test_a_queue_says_what_its_pushes_survive(client: Raw, queue: str) -> None:
    made = client.ask({"cmd": "QUEUE", "queue": queue, "options": {"durability": "os"}})
    assert made["options"]["durability"] == "os"
    assert client.ask({"cmd": "PUSH", "queue": queue, "payload": 1})["durability"] == "os"


def test_a_memory_queue_is_one_for_good(client: Raw, queue: str) -> None:
    client.ask({"cmd": "QUEUE", "queue": queue, "options": {"durability": "memory"}})
    assert client.ask({"cmd": "PUSH", "queue": queue, "payload": 1})["durability"] == "memory"
    assert refused(client.ask({"cmd": "PUSH", "queue": queue, "payload": 2, "durability": "os"}), "conflict")
    changed = {"cmd": "QUEUE", "queue": queue, "options": {"durability": "fsync"}}
    assert refused(client.ask(changed), "conflict")
    assert pop(client, queue)["payload"] == 1


def test_a_durability_nobody_knows_is_refused_with_those_there_are() -> None:
    accepted = "fsync or os (only a whole queue can be memory)"
    assert invalid("PUSH", queue="q", payload=1, durability="disk") == ("durability", accepted)
    assert invalid("PUSH", queue="q", messages=[1], durability="memory") == ("durability", accepted)
    given = invalid("QUEUE", queue="q", options={"durability": "disk"})
    assert given == ("durability", "fsync, os or memory")


def test_the_durability_of_items_is_given_beside_them() -> None:
    items = [{"payload": 1}, {"payload": 2, "durability": "os"}]
    field, _ = invalid("PUSH", queue="q", items=items)
    assert field == "items[1].durability"


def test_a_backup_goes_into_a_directory_that_does_not_exist_yet(client: Raw, queue: str, home: Path) -> None:
    push(client, queue, 1, 2, 3)
    target = str(home / "monday")
    assert client.ask({"cmd": "BACKUP", "directory": target}) == {"ok": True, "directory": target}
    assert (home / "monday" / "FORMAT").exists()
    assert refused(client.ask({"cmd": "BACKUP", "directory": target}), "conflict")
    assert refused(client.ask({"cmd": "BACKUP", "directory": "monday"}), "invalid", "directory")
    assert pop_all(client, queue) == [1, 2, 3]


def test_a_store_in_memory_has_nothing_to_back_up(home: Path) -> None:
    with Server("--store", "memory:") as server, server.connect() as client:
        reply = client.ask({"cmd": "BACKUP", "directory": str(home / "x")})
        assert refused(reply, "conflict")
        assert "memory" in reply["error"]["message"]
        assert client.ask({"cmd": "PUSH", "queue": "q", "payload": 1})["durability"] == "memory"
    assert not (home / "x").exists()


def test_what_was_confirmed_is_there_after_the_process_was_killed(home: Path) -> None:
    command = [sys.executable, "-m", "forebay", "serve", "--tcp", "127.0.0.1:0", "--http", "off"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    environment["FOREBAY_POP_CREATES_QUEUES"] = "on"
    ids: list[int] = []
    for life in range(3):
        with (home / "log").open("ab") as log:
            process = subprocess.Popen(command, cwd=home, env=environment, stdout=subprocess.PIPE, stderr=log)
        assert process.stdout is not None
        with process, process.stdout:
            ready = json.loads(process.stdout.readline())
            host, _, port = ready["tcp"].rpartition(":")
            with Raw((host, int(port))) as client:
                for level in ("fsync", "os"):
                    given = {"queue": level, "payload": life, "durability": level}
                    ids.append(client.ask({"cmd": "PUSH", **given})["id"])
                    assert pop_all(client, level, group=f"g{life}") == list(range(life + 1))
            os.kill(process.pid, signal.SIGKILL)
    assert len(set(ids)) == len(ids)
    assert [each >> 32 for each in ids[::2]] == [ids[0] >> 32] * 3
    assert len({each >> 32 for each in ids[1::2]}) == 3, "ids confirmed as os take a fresh number"
