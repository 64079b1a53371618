"""Backups, and what is said of damage: with real servers, real directories and the real command line."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serving import Server, pop_all, push, refused

DONE, USAGE, SERVER, NOTHING, DAMAGE = 0, 1, 2, 4, 5


def forebay(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "forebay", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=cwd)


def reports(directory: Path) -> dict[str, dict[str, object]]:
    """What verify says, by queue."""
    done = forebay("verify", directory, "--json")
    return {found["queue"]: found for found in json.loads(done.stdout)["queues"]}


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A data directory with two queues, stopped cleanly."""
    data = tmp_path / "data"
    with Server("--data", str(data)) as server, server.connect() as client:
        for number in range(5):
            push(client, "first", *([number] * 20_000))
        push(client, "second", "a", "b")
    return data


def blob_flipped(data: Path) -> None:
    """Flip a bit in the middle of the largest file of payloads."""
    blob = max((data / "db").glob("*.blob"), key=lambda path: path.stat().st_size)
    damaged = bytearray(blob.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    blob.write_bytes(damaged)


def test_a_backup_of_a_running_server_holds_what_was_confirmed_before_it_and_nothing_after(
    tmp_path: Path,
) -> None:
    backup, data = tmp_path / "backup", tmp_path / "restored"
    with Server() as server, server.connect() as client:
        push(client, "q", *range(1_000))
        done = forebay("backup", backup, "--server", server.tcp)
        assert done.returncode == DONE, done.stderr
        push(client, "q", "later")
    assert forebay("verify", backup).returncode == DONE
    assert forebay("restore", backup, "--data", data).returncode == DONE
    with Server("--data", str(data)) as server, server.connect() as client:
        assert pop_all(client, "q") == list(range(1_000))
        assert pop_all(client, "q") == []


def test_ids_given_out_after_a_backup_are_not_given_out_again_by_its_restored_copy(tmp_path: Path) -> None:
    backup, data = tmp_path / "backup", tmp_path / "restored"
    with Server() as server, server.connect() as client:
        push(client, "q", "before")
        assert client.ask({"cmd": "BACKUP", "directory": str(backup)}) == {
            "ok": True,
            "directory": str(backup),
        }
        lost = push(client, "q", "after")
        lost_too = push(client, "q", "after", partition="new")
        lease = client.ask({"cmd": "POP", "queue": "q", "count": 3, "compact": True})["lease"]
    assert forebay("restore", backup, "--data", data).returncode == DONE
    with Server("--data", str(data)) as server, server.connect() as client:
        again = [push(client, "q", "x"), push(client, "q", "x", partition="other")]
        assert not {lost, lost_too} & set(again)
        taken = client.ask({"cmd": "POP", "queue": "q", "count": 9, "compact": True})
        assert taken["lease"] != lease
        assert refused(client.ask({"cmd": "ACK", "lease": lease}), "conflict")
        assert refused(client.ask({"cmd": "ACK", "ids": [lost]}), "conflict")


def test_two_copies_of_one_backup_give_out_different_ids_and_leases(tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    with Server() as server, server.connect() as client:
        push(client, "q", "before")
        assert client.ask({"cmd": "BACKUP", "directory": str(backup)})["ok"]
    ids, leases = set(), set()
    for data in (tmp_path / "one", tmp_path / "two"):
        assert forebay("restore", backup, "--data", data).returncode == DONE
        with Server("--data", str(data)) as server, server.connect() as client:
            ids.add(push(client, "q", "after"))
            leases.add(client.ask({"cmd": "POP", "queue": "q", "count": 9, "compact": True})["lease"])
    assert len(ids) == len(leases) == 2


@pytest.mark.parametrize("name", ["data", "data/deeper", ".", "link"])
def test_a_backup_is_restored_into_any_directory_that_is_new_or_empty(tmp_path: Path, name: str) -> None:
    backup, here = tmp_path / "backup", tmp_path / "here"
    with Server() as server, server.connect() as client:
        push(client, "q", 1)
        assert client.ask({"cmd": "BACKUP", "directory": str(backup)})["ok"]
    here.mkdir()
    if name == "link":
        (tmp_path / "elsewhere").mkdir()
        (here / "link").symlink_to(tmp_path / "elsewhere")
    done = forebay("restore", backup, "--data", name, cwd=here)
    assert done.returncode == DONE, done.stderr
    with Server("--data", str(here / name)) as server, server.connect() as client:
        assert pop_all(client, "q") == [1]


def test_a_restore_that_fails_leaves_nothing_behind(tmp_path: Path, filled: Path) -> None:
    (filled / "db" / "CURRENT").unlink()
    data = tmp_path / "restored"
    assert forebay("restore", filled, "--data", data).returncode == USAGE
    assert not data.exists()


def test_repair_has_nothing_to_do_where_nothing_is_damaged(filled: Path) -> None:
    before = {path: path.read_bytes() for path in filled.glob("**/*") if path.name in ("FORMAT", "CURRENT")}
    assert forebay("repair", filled, "--accept-loss").returncode == NOTHING
    assert {path: path.read_bytes() for path in before} == before


def test_a_backup_can_be_looked_at_without_writing_to_it(tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    with Server() as server, server.connect() as client:
        push(client, "q", 1)
        assert client.ask({"cmd": "BACKUP", "directory": str(backup)})["ok"]
    before = sorted(path.name for path in backup.glob("**/*"))
    assert forebay("verify", backup).returncode == DONE
    assert sorted(path.name for path in backup.glob("**/*")) == before
    assert forebay("restore", backup, "--data", backup / "sub").returncode == USAGE


def test_repair_leaves_the_directory_of_a_running_server_alone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Server("--data", str(data)) as server, server.connect() as client:
        push(client, "q", 1)
        before = (data / "FORMAT").read_bytes()
        done = forebay("repair", data, "--accept-loss")
        assert done.returncode == USAGE
        assert "in use" in done.stderr
        assert (data / "FORMAT").read_bytes() == before
        push(client, "q", 2)
    with Server("--data", str(data)) as server, server.connect() as client:
        assert pop_all(client, "q") == [1, 2]


def test_payloads_whose_file_is_gone_are_damaged_and_nothing_else_is(filled: Path) -> None:
    with Server("--data", str(filled)) as server, server.connect() as client:
        push(client, "third", "c")
    blob = max((filled / "db").glob("*.blob"), key=lambda path: path.stat().st_size)
    blob.unlink()
    assert forebay("verify", filled).returncode == DAMAGE
    with Server("--data", str(filled)) as server, server.connect() as client:
        assert client.ask({"cmd": "POP", "queue": "first", "wait_ms": 0})["error"]["code"] == "damaged"
        assert pop_all(client, "third") == ["c"]
        push(client, "first", "d")


def test_a_backup_into_a_directory_that_exists_is_refused_and_leaves_it_alone(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with Server() as server, server.connect() as client:
        reply = client.ask({"cmd": "BACKUP", "directory": str(tmp_path / "there")})
        assert refused(reply, "conflict")
        assert refused(client.ask({"cmd": "BACKUP", "directory": "relative"}), "invalid", "directory")
        # Even the server's owner can't make a directory below a file.
        (tmp_path / "file").touch()
        for place in (tmp_path / "file" / "x", Path("/"), tmp_path / ("x" * 300), server.data / "db" / "x"):
            assert refused(client.ask({"cmd": "BACKUP", "directory": str(place)}), "conflict"), place
    assert list((tmp_path / "there").iterdir()) == []


def test_a_server_without_a_store_has_nothing_to_back_up(tmp_path: Path) -> None:
    with Server("--store", "memory:") as server, server.connect() as client:
        reply = client.ask({"cmd": "BACKUP", "directory": str(tmp_path / "x")})
        assert refused(reply, "conflict")


def test_restore_refuses_what_is_no_backup_and_a_directory_in_use(filled: Path, tmp_path: Path) -> None:
    assert forebay("restore", tmp_path, "--data", tmp_path / "x").returncode == USAGE
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for place, why in ((filled, "inside the backup"), (tmp_path / "full", "not empty")):
        done = forebay("restore", filled, "--data", place)
        assert done.returncode == USAGE
        assert why in done.stderr


def test_verify_counts_what_is_there(filled: Path) -> None:
    found = reports(filled)
    assert found["first"]["messages"] == 100_000
    assert found["second"] == {
        "tenant": "default",
        "queue": "second",
        "partitions": 1,
        "segments": 1,
        "messages": 2,
        "payload_bytes": 6,
        "damage": [],
    }


def test_verify_names_the_damaged_segment_and_no_other(filled: Path) -> None:
    blob_flipped(filled)
    found = reports(filled)
    damage = found["first"]["damage"]
    assert isinstance(damage, list)
    (line,) = damage
    assert "partition default, segment of offsets" in line
    assert found["second"]["damage"] == []
    shown = forebay("verify", filled)
    assert shown.returncode == DAMAGE
    assert line in shown.stdout


def test_a_damaged_segment_stops_neither_the_rest_of_its_queue_nor_another(filled: Path) -> None:
    blob_flipped(filled)
    with Server("--data", str(filled)) as server, server.connect() as client:
        assert pop_all(client, "second") == ["a", "b"]
        read = errors = 0
        while True:
            reply = client.ask(
                {"cmd": "POP", "queue": "first", "count": 1_000, "compact": True, "wait_ms": 0}
            )
            if reply["ok"] and not reply["runs"]:
                break
            assert reply["ok"] or reply["error"]["code"] == "damaged"
            errors += not reply["ok"]
            read += sum(len(run["payloads"]) for run in reply.get("runs", ()))
        assert 50_000 < read < 100_000
        assert errors <= 1, "a damaged segment is met once, not message by message"


def test_verify_refuses_a_directory_that_a_server_has_open(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Server("--data", str(data)) as server, server.connect() as client:
        push(client, "q", 1)
        done = forebay("verify", data)
        assert done.returncode == USAGE
        assert "in use" in done.stderr
        second = forebay("serve", "--data", data, "--tcp", "127.0.0.1:0", "--http", "off")
        assert second.returncode == SERVER
        assert "in use" in second.stderr


def test_a_damaged_log_is_refused_until_it_is_repaired_and_what_came_before_stays(tmp_path: Path) -> None:
    data, crashed = tmp_path / "data", tmp_path / "crashed"
    with Server("--data", str(data)) as server, server.connect() as client:
        for number in range(10):
            first = push(client, "q", number)
        shutil.copytree(data, crashed)  # as a crash would leave it
    (log,) = (path for path in (crashed / "db").glob("*.log") if path.stat().st_size)
    damaged = bytearray(log.read_bytes())
    damaged[-20] ^= 1
    log.write_bytes(damaged)
    done = forebay("serve", "--data", crashed, "--tcp", "127.0.0.1:0", "--http", "off")
    assert done.returncode == SERVER
    assert "is damaged" in done.stderr
    assert "repair" in done.stderr
    assert log.read_bytes() == damaged
    assert forebay("verify", crashed).returncode == DAMAGE
    assert forebay("repair", crashed).returncode == USAGE
    assert forebay("repair", crashed, "--accept-loss").returncode == DONE
    with Server("--data", str(crashed)) as server, server.connect() as client:
        assert pop_all(client, "q") == list(range(9))
        assert push(client, "q", "again") != first


def test_a_directory_that_can_not_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = forebay("serve", "--data", tmp_path / "file" / "data", "--tcp", "127.0.0.1:0", "--http", "off")
    assert done.returncode == SERVER
    assert "can't be made" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_queue_in_memory_keeps_its_options_over_a_restart_and_nothing_else(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Server("--data", str(data)) as server, server.connect() as client:
        assert client.ask({"cmd": "QUEUE", "queue": "m", "options": {"durability": "memory"}})["ok"]
        reply = client.ask({"cmd": "PUSH", "queue": "m", "messages": [1, 2]})
        assert reply["durability"] == "memory"
        assert pop_all(client, "m") == [1, 2]
        push(client, "m", "kept nowhere")
    files = b"".join(path.read_bytes() for path in (data / "db").iterdir())
    assert b"kept nowhere" not in files
    with Server("--data", str(data)) as server, server.connect() as client:
        assert pop_all(client, "m") == []
        assert client.ask({"cmd": "QUEUE", "queue": "m"})["options"]["durability"] == "memory"
        assert push(client, "m", 4) != reply["first"]


def test_a_server_keeps_its_number_of_shards(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Server("--data", str(data), "--shards", "3") as server, server.connect() as client:
        first = push(client, "q", 1)
    for flags, told in (("--shards", "64"), 1), (("--shards", "3"), 0), ((), 0):
        with Server("--data", str(data), *flags) as server, server.connect() as client:
            assert client.ask({"cmd": "STATE", "id": first})["state"] == "waiting"
            assert (
                server._read_log().count("is ignored: the store was made with 3 shards, and keeps them")
                == told
            )
    assert shards_of(data) == 3


def test_a_directory_has_16_shards_unless_another_number_is_wanted(filled: Path) -> None:
    assert shards_of(filled) == 16


def shards_of(data: Path) -> object:
    return json.loads((data / "FORMAT").read_text().splitlines()[0])["shards"]


def test_relative_directories_are_taken_from_where_the_command_runs(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    done = subprocess.run(
        [sys.executable, "-m", "forebay", "verify"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == USAGE
    assert "forebay-data is no data directory" in done.stderr
