"""forebay backup, restore, verify and repair, as scripts see them: what they do is tested with the store."""

import json
import re
from pathlib import Path

import pytest

from forebay import config
from forebay.cli.files import DATA
from forebay.client.sync.client import SyncClient
from tests.cli.running import Run, Terminal
from tests.serving import Server, pop, push


@pytest.fixture
def backup(cli: Run, client: SyncClient, queue: str, tmp_path: Path) -> Path:
    """A backup with a queue of ten messages."""
    client.push_many(queue, range(10))
    made = tmp_path / "backup"
    assert cli("backup", str(made)).code == 0
    return made


SUMMARY = r"[\d,]+ messages?, [\d,]+ bytes?, \d+\.\d s"
"""How the last line of what reads everything ends."""


def test_a_backup_ends_with_a_summary(cli: Run, client: SyncClient, queue: str, tmp_path: Path) -> None:
    client.push_many(queue, range(10))
    one, other = tmp_path / "one", tmp_path / "other"
    done = cli("backup", str(one))
    assert (done.code, done.err) == (0, "")
    assert re.fullmatch(f"backed up to {one}: {SUMMARY}; check it: forebay verify {one}\n", done.out)
    found = cli("backup", str(other), "--json").object
    held = cli("verify", str(other), "--json").object
    assert found["directory"] == str(other)
    assert found["messages"] == held["messages"] >= 10
    assert found["payload_bytes"] == held["payload_bytes"] >= 10
    assert found["seconds"] > 0


def test_events_of_the_server_are_not_counted_as_messages(tmp_path: Path, cli: Run) -> None:
    data, made, other = (tmp_path / name for name in ("data", "made", "other"))
    with Server("--data", str(data)) as server:
        with server.connect() as client:
            push(client, "q", *range(6))
            client.ask({"cmd": "ACK", "ids": [pop(client, "q")["id"]]})
        backup = cli("backup", str(made), "--server", server.tcp, "--json").object
    found = cli("verify", str(made), "--json").object
    copied = cli("copy", f"rocksdb:{made}", f"rocksdb:{other}", "--json").object
    assert [each["messages"] for each in (backup, found, copied)] == [6, 6, 6]
    assert backup["payload_bytes"] == found["payload_bytes"] == 6
    assert [each["queue"] for each in found["queues"]] == ["q"]
    assert cli("verify", str(made)).out.splitlines()[-1].startswith("ok: 1 queue; 6 messages, 6 bytes, ")


def test_a_backup_is_verified_with_a_report_for_each_queue(cli: Run, backup: Path, queue: str) -> None:
    found = cli("verify", str(backup), "--json").object
    assert (found["ok"], found["damage"]) == (True, 0)
    (report,) = (each for each in found["queues"] if each["queue"] == queue)
    assert report == {
        "tenant": "default",
        "queue": queue,
        "partitions": 1,
        "segments": 1,
        "messages": 10,
        "payload_bytes": 10,
        "damage": [],
    }
    shown = cli("verify", str(backup))
    assert shown.err == ""
    assert re.fullmatch(rf"ok: \d+ queues?; {SUMMARY}", shown.out.splitlines()[-1])
    rows = shown.rows
    assert rows[0] == ["QUEUE", "TENANT", "PARTITIONS", "SEGMENTS", "MESSAGES", "BYTES", "DAMAGE"]
    assert [queue, "default", "1", "1", "10", "10", "none"] in rows


def test_progress_is_shown_at_a_terminal_only(server: Server, backup: Path, tmp_path: Path) -> None:
    for given, label in (
        (["verify", str(backup)], "reading"),
        (["copy", f"rocksdb:{backup}", f"rocksdb:{tmp_path / 'copy'}"], "copying"),
        (["backup", str(tmp_path / "second"), "--server", server.tcp], "backing up"),
    ):
        with Terminal(*given) as terminal:
            assert terminal.end() == 0, terminal.shown
        assert f"{label} " in terminal.shown


def test_a_backup_is_restored_once(cli: Run, backup: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert cli("restore", str(backup), "--data", str(data), "--json").object == {"directory": str(data)}
    again = cli("restore", str(backup), "--data", str(data))
    assert (again.code, again.out) == (1, "")
    assert again.err == f"forebay: {data} is not empty; move what is there away first\n"


def test_a_directory_that_opens_is_not_repaired(cli: Run, backup: Path) -> None:
    assert cli("repair", str(backup)).code == 1
    done = cli("repair", str(backup), "--accept-loss", "--json")
    assert (done.code, done.out) == (4, f'{{"directory":"{backup}","repaired":false}}\n')


def test_damage_has_an_exit_code_of_its_own(cli: Run, backup: Path) -> None:
    for file in (backup / "db").glob("*.blob"):
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    done = cli("verify", str(backup))
    assert done.code == 5
    assert "damaged: tenant default, queue " in done.out
    last = done.out.splitlines()[-1]
    assert re.fullmatch(rf"damaged: \d+ places? in \d+ of \d+ queues?; {SUMMARY}", last)
    told = json.loads(cli("verify", str(backup), "--json").out)
    assert not told["ok"]
    assert told["damage"] == sum(len(each["damage"]) for each in told["queues"]) > 0


def test_what_is_no_data_directory_is_wrong_input(cli: Run, tmp_path: Path) -> None:
    done = cli("verify", str(tmp_path))
    assert (done.code, done.err) == (
        1,
        f"forebay: {tmp_path} is no data directory: it has no file FORMAT\n",
    )


def test_the_directory_that_is_meant_is_that_of_a_server() -> None:
    assert config.Settings().data == DATA


def test_a_backup_to_a_place_that_exists_is_refused(cli: Run, tmp_path: Path) -> None:
    assert cli("backup", str(tmp_path)).code == 1
