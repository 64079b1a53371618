"""forebay tail, top, stats and bench."""

import json
import os
import signal
import subprocess

import pytest

from forebay.cli.watch import HEAD, Sample
from forebay.client.sync.client import SyncClient
from forebay.client.types import Counts, Group, QueueSummary
from tests.cli.running import PATIENCE_S, Run, Terminal, command, environment
from tests.serving import Server


def test_tail_prints_the_log_of_all_partitions_and_leases_nothing(
    cli: Run, client: SyncClient, queue: str
) -> None:
    client.push_many(queue, [1, {"n": 2}], tags=["t"])
    client.push(queue, 3, partition="x")
    shown = cli("tail", queue, "--from-start", "--count", "3", "--json").objects
    assert [(each["partition"], each["offset"], each["payload"]) for each in shown] == [
        ("default", 0, 1),
        ("default", 1, {"n": 2}),
        ("x", 0, 3),
    ]
    assert shown[0]["tags"] == ["t"]
    lines = cli("tail", queue, "--from-start", "--count", "1", "--partition", "x").out.splitlines()
    assert [line.split("\t")[1:] for line in lines] == [["x", "0", "3"]]
    assert len(client.pop(queue, 10)) == 3


def test_tail_goes_on_with_what_is_pushed_and_with_new_partitions(
    server: Server, client: SyncClient, queue: str
) -> None:
    client.push(queue, "before")
    given = command("tail", queue, "--from-start", "--count", "3", "--json", "--server", server.tcp)
    with subprocess.Popen(given, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["payload"] == "before"
        client.push(queue, "after", partition="new")
        assert json.loads(process.stdout.readline())["payload"] == "after"
        client.push(queue, "last")
        assert json.loads(process.stdout.readline())["payload"] == "last"
        assert process.wait(PATIENCE_S) == 0


def test_tail_of_a_queue_that_is_not_there_is_an_error(cli: Run, queue: str) -> None:
    assert cli("tail", queue).code == 1


def test_stats_count_everything(cli: Run, client: SyncClient, queue: str) -> None:
    client.push(queue, 1)
    told = cli("stats", "--json").object
    assert told["queues"] == len(client.queues())
    assert told["waiting"] == client.stats().counts.waiting
    states = ["waiting", "active", "delayed", "parked", "completed", "dead"]
    assert list(told) == ["queues", *states, "oldest_at", "groups"]
    assert ["queues", str(told["queues"])] in cli("stats").rows


def test_stats_tell_what_is_left_for_the_groups_of_one_name_in_all_queues(
    cli: Run, client: SyncClient, queue: str
) -> None:
    client.push_many(queue, range(5))
    client.push_many(f"{queue}-b", range(3))
    client.create_group(queue, f"audit-{queue}")
    client.create_group(f"{queue}-b", f"audit-{queue}")
    client.pop(queue, 2, group=f"audit-{queue}")
    (mine,) = (each for each in cli("stats", "--json").object["groups"] if each["group"] == f"audit-{queue}")
    assert (mine["waiting"], mine["active"]) == (6, 2)
    assert mine["oldest_at"] == client.queue(queue).groups[0].oldest_at
    (row,) = (row for row in cli("stats").rows if row[:1] == [f"audit-{queue}"])
    assert row[:5] == [f"audit-{queue}", "6", "0", "0", "2"]


def test_top_prints_one_frame_and_ends_if_it_is_told_to(cli: Run, client: SyncClient, queue: str) -> None:
    client.push_many(queue, range(1_000))
    client.pop(queue, 10)
    rows = cli("top", "--once").rows
    assert rows[0] == HEAD
    (row,) = (row for row in rows if row[0] == queue)
    assert [*row[:6], *row[7:]] == [queue, "default", "990", "10", "0", "0", "-", "-"]
    (told,) = (each for each in cli("top", "--once", "--json").objects if each["queue"] == queue)
    assert (told["waiting"], told["pushed_s"], told["paused"]) == (990, None, False)
    assert told["oldest_s"] >= 0


def test_top_and_queues_show_what_is_left_for_each_group(cli: Run, client: SyncClient, queue: str) -> None:
    client.push_many(queue, range(60))
    client.create_group(queue, "audit")
    client.create_group(queue, "index", start="new")
    client.push_many(queue, range(2_000))  # top shows the 40 queues with most to do
    client.ack(client.pop(queue, 60, group="audit"))
    shown = [each for each in cli("top", "--once", "--json").objects if each["queue"] == queue]
    assert [(each["group"], each["waiting"]) for each in shown] == [("audit", 2_000), ("index", 2_000)]
    rows = [row for row in cli("queues").rows if row[0] == queue]
    # QUEUE GROUP WAITING DELAYED DEFERRED ACTIVE COMPLETED DEAD OLDEST PAUSED
    assert [row[1:8] for row in rows] == [
        ["audit", "2000", "0", "0", "0", "60", "0"],
        ["index", "2000", "0", "0", "0", "60", "0"],
    ]
    (told,) = (each for each in cli("queues", "--json").objects if each["queue"] == queue)
    # Nothing waits for "default", which does not read here.
    assert (told["waiting"], [each["group"] for each in told["groups"]]) == (2_000, ["audit", "index"])
    assert told["oldest_at"] == told["groups"][0]["oldest_at"]


def test_what_no_group_reads_yet_waits_for_a_first_one(cli: Run, client: SyncClient, queue: str) -> None:
    client.push_many(queue, range(3))
    (row,) = (row for row in cli("queues").rows if row[0] == queue)
    assert row[1:3] == ["-", "3"]
    (told,) = (each for each in cli("queues", "--json").objects if each["queue"] == queue)
    assert (told["waiting"], told["groups"]) == (3, [])


def test_rates_are_what_came_and_went_between_two_frames() -> None:
    def sample(waiting: int, active: int, pushed: int, at_s: float) -> Sample:
        return Sample(QueueSummary("q", False, Counts(waiting=waiting, active=active)), pushed, at_s)

    before, now = sample(10, 5, 100, 1.0), sample(20, 5, 150, 3.0)
    (row,) = now.rows(before, 0)
    assert (row["pushed_s"], row["settled_s"]) == (25.0, 20.0)
    assert next(now.rows(now, 0))["pushed_s"] is None


def test_each_group_has_its_own_rate_and_a_new_one_has_none_yet() -> None:
    def sample(left: dict[str, int], pushed: int, at_s: float) -> Sample:
        groups = [Group(name, Counts(waiting=waiting)) for name, waiting in left.items()]
        return Sample(QueueSummary("q", False, Counts(), None, groups), pushed, at_s)

    before, now = sample({"a": 10, "b": 40}, 100, 1.0), sample({"a": 10, "b": 90, "c": 7}, 150, 2.0)
    told = {row["group"]: (row["pushed_s"], row["settled_s"]) for row in now.rows(before, 0)}
    assert told == {"a": (50.0, 50.0), "b": (50.0, 0.0), "c": (50.0, None)}


def test_top_goes_on_with_rates_until_ctrl_c(server: Server, client: SyncClient, queue: str) -> None:
    client.push_many(queue, range(50_000))
    given = command("top", "--json", "--interval", "0.05", "--server", server.tcp)
    with subprocess.Popen(
        given, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        rates: list[float] = []
        while not rates:
            row = json.loads(process.stdout.readline())
            if row["queue"] == queue and row["pushed_s"] is not None:
                rates.append(row["pushed_s"])
        os.kill(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert rates == [0.0]
    assert (process.returncode, errors) == (0, "")
    client.delete_queue(queue)


def test_top_is_a_live_picture_at_a_terminal(server: Server, client: SyncClient, queue: str) -> None:
    client.push_many(queue, range(60_000))
    with Terminal("top", "--interval", "0.05", FOREBAY_SERVER=server.tcp) as terminal:
        terminal.until(queue)
        terminal.until("0.0")
        terminal.interrupt()
        assert terminal.end() == 0
    assert "\x1b[?1049l" in terminal.shown  # the screen is as it was before
    client.delete_queue(queue)


def test_bench_measures_and_leaves_no_server_behind(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    popen = subprocess.Popen

    def noted(*given: object, **more: object) -> object:
        started.append(popen(*given, **more))  # type: ignore[call-overload]
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", noted)
    figures = cli("bench", "--seconds", "0.1", "--json").objects
    assert [each["what"].split(",")[0] for each in figures[:2]] == ["push 1", "push 100 a batch"]
    assert len(figures) == 6
    for each in figures:
        assert each["messages"] > 0
        assert 0 < each["p50_ms"] <= each["p99_ms"]
    (server,) = started
    assert server.returncode == 0


@pytest.mark.skipif(not os.path.exists("/proc/self"), reason="needs /proc")
def test_bench_that_is_told_to_end_stops_its_server() -> None:
    with subprocess.Popen(
        command("bench", "--seconds", "60"), env=environment(), stderr=subprocess.PIPE, text=True
    ) as process:
        children = f"/proc/{process.pid}/task/{process.pid}/children"
        server = ""
        while not server:
            with open(children) as told:
                server = told.read().strip()
        os.kill(process.pid, signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (1, "forebay: interrupted\n")
    assert not os.path.exists(f"/proc/{server}")


def test_bench_is_a_table_for_people(cli: Run) -> None:
    done = cli("bench", "--seconds", "0.05")
    assert done.code == 0
    assert done.out.startswith("WHAT ")
    assert "pop and ack 10,000 " in done.out
