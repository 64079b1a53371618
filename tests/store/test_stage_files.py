"""Stages in directories: stopped, killed, backed up, restored, verified and damaged."""

from pathlib import Path

import pytest

from tests.crash.process import DATA, Process
from tests.serving import Raw, Reply, Server, pop_all, refused
from tests.store.test_files import DAMAGE, DONE, blob_flipped, forebay, reports


def stage(client: Raw, name: str, count: int, **fields: object) -> Reply:
    payloads = [f"{name}.{number}." + "x" * 1_000 for number in range(count)]
    reply = client.ask({"cmd": "STAGE", "queue": "q", "stage": name, "messages": payloads, **fields})
    assert reply["ok"], reply
    return reply


def adopt(client: Raw, batch: int, *names: str) -> Reply:
    return client.ask({"cmd": "ADOPT", "queue": "q", "query": "x", "batch": batch, "stages": list(names)})


def fill(client: Raw) -> Reply:
    """One batch that is adopted, one that is staged."""
    stage(client, "a", 3, query="x", batch=0)
    adopted = adopt(client, 0, "a")
    stage(client, "b", 700, query="x", batch=1, part=0)
    stage(client, "b", 1, query="x", batch=1, part=1, unique_keys=["k"])
    return adopted


def check(client: Raw, adopted: Reply) -> None:
    """What was filled is there, and goes on."""
    assert adopt(client, 0, "a") == adopted | {"repeated": True}
    assert stage(client, "b", 1, query="x", batch=1, part=1, unique_keys=["k"])["count"] == 701
    assert adopt(client, 1, "b")["count"] == 701
    assert len(pop_all(client, "q")) == 704


def test_what_is_staged_survives_a_stop_and_is_good(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Server("--data", str(data)) as server, server.connect() as client:
        adopted = fill(client)
    done = forebay("verify", data)
    assert done.returncode == DONE
    assert "no segment" not in done.stdout
    assert reports(data)["q"]["messages"] == 3
    with Server("--data", str(data)) as server, server.connect() as client:
        check(client, adopted)


def test_what_is_staged_survives_a_kill_and_is_good(tmp_path: Path) -> None:
    with Process(tmp_path) as process, process.connect() as client:
        adopted = fill(client)
    done = forebay("verify", tmp_path / DATA)
    assert done.returncode == DONE
    assert "no segment" not in done.stdout
    with Process(tmp_path) as process, process.connect() as client:
        check(client, adopted)
    process.check_log()


def test_what_is_staged_is_in_a_backup(tmp_path: Path) -> None:
    backup, data = tmp_path / "backup", tmp_path / "restored"
    with Server() as server, server.connect() as client:
        adopted = fill(client)
        assert client.ask({"cmd": "BACKUP", "directory": str(backup)})["ok"]
        assert adopt(client, 1, "b")["ok"]
    assert forebay("verify", backup).returncode == DONE
    assert forebay("restore", backup, "--data", data).returncode == DONE
    with Server("--data", str(data)) as server, server.connect() as client:
        check(client, adopted)


@pytest.mark.parametrize("adopted", [False, True], ids=["staged", "adopted"])
def test_a_damaged_body_of_a_stage_is_found_and_stops_nothing_else(tmp_path: Path, adopted: bool) -> None:
    data = tmp_path / "data"
    with Server("--data", str(data)) as server, server.connect() as client:
        stage(client, "a", 3, query="x", batch=0)
        stage(client, "b", 700, query="x", batch=0)
        if adopted:
            adopt(client, 0, "a", "b")
    with Server("--data", str(data)):
        pass  # what is in the log of the store is written to its files
    blob_flipped(data)
    done = forebay("verify", data)
    assert done.returncode == DAMAGE
    assert ("stage b, write 0" in done.stdout) != adopted
    assert "no segment" not in done.stdout
    with Server("--data", str(data), complains=True) as server, server.connect() as client:
        assert adopt(client, 0, "a", "b")["ok"]
        got = 0
        while True:
            reply = client.ask({"cmd": "POP", "queue": "q", "count": 100, "wait_ms": 0})
            if reply["ok"] and not reply["messages"]:
                break
            assert reply["ok"] or refused(reply, "damaged"), reply
            got += len(reply.get("messages", ()))
        assert 3 <= got < 703
