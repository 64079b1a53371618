"""What flashQ kept in its SQLite file is there after an import: once, in its state, with its options."""

import re
import shlex
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from forebay.cli.flashq import run as running
from forebay.cli.flashq.file import FlashqFile
from forebay.cli.flashq.report import Report
from forebay.client.sync.client import SyncClient
from forebay.client.types import Counts
from tests.cli.running import Done, Run, run
from tests.serving import Server

HOUR_MS = 3_600_000
PAGE = (Path(__file__).parents[2] / "docs" / "FLASHQ.md").read_text()
COMMAND_ROWS = re.findall(r"^\| (`[A-Z` ]+) \| (.*) \|$", PAGE.split("| flashQ | native |")[1], re.MULTILINE)
FLASHQ_COMMANDS = """
PUSH PUSHB PULL PULLB ACK ACKB FAIL GETRESULT GETJOB GETSTATE WAITJOB GETJOBBYCUSTOMID CANCEL
PROGRESS GETPROGRESS DLQ RETRYDLQ PURGEDLQ GETJOBSBATCH SUBSCRIBE UNSUBSCRIBE METRICS STATS CRON
CRONDELETE CRONLIST RATELIMIT RATELIMITCLEAR PAUSE RESUME SETCONCURRENCY CLEARCONCURRENCY LISTQUEUES
AUTH LOG GETLOGS HEARTBEAT PARTIAL FLOW GETCHILDREN GETJOBS CLEAN DRAIN OBLITERATE CHANGEPRIORITY
MOVETODELAYED PROMOTE UPDATEJOB UPDATE DISCARD ISPAUSED COUNT GETJOBCOUNTS KVSET KVGET KVDEL KVMGET
KVMSET KVEXISTS KVEXPIRE KVTTL KVKEYS KVINCR
"""

FIRST_TABLES = """
create table jobs (
    id integer primary key, queue text not null, data text not null, priority integer not null default 0,
    created_at integer not null, run_at integer not null, started_at integer,
    attempts integer not null default 0, max_attempts integer not null default 3,
    backoff integer not null default 1000, ttl integer, timeout integer,
    unique_key text, depends_on text, progress integer default 0, progress_msg text, tags text,
    state text not null default 'waiting', lifo integer not null default 0
);
create table job_results (job_id integer primary key, result text, completed_at integer not null);
create table dlq_jobs (
    id integer primary key autoincrement, job_id integer not null, queue text not null, data text not null,
    error text, failed_at integer not null, attempts integer not null
);
create table cron_jobs (
    name text primary key, queue text not null, data text not null, schedule text, repeat_every integer,
    priority integer not null default 0, next_run integer not null, executions integer not null default 0,
    max_limit integer
);
create table webhooks (
    id text primary key, url text not null, events text not null, queue text, secret text,
    created_at integer not null
);
"""
"""The columns of flashQ's first SQLite release."""
LATER_COLUMNS = """
alter table jobs add column custom_id text;
alter table jobs add column parent_id integer;
alter table jobs add column children_ids text;
alter table jobs add column children_completed integer not null default 0;
alter table jobs add column group_id text;
alter table jobs add column keep_completed_age integer not null default 0;
alter table jobs add column keep_completed_count integer not null default 0;
"""


class Flashq:
    """A file as flashQ writes it."""

    def __init__(self, path: Path, *, later: bool = True) -> None:
        self.path = path
        self.now = int(time.time() * 1000)
        self._database = sqlite3.connect(path, isolation_level=None)
        self._database.execute("pragma journal_mode = wal")
        self._database.executescript(FIRST_TABLES + (LATER_COLUMNS if later else ""))

    def job(self, id: int, queue: str, data: object = None, **columns: Any) -> None:
        text = data if isinstance(data, bytes) else msgspec.json.encode({"id": id} if data is None else data)
        given = {
            "created_at": self.now - 1000,
            "run_at": self.now - 1000,
            "max_attempts": 0,
            "backoff": 0,
            **columns,
        }
        self._insert("jobs", {"id": id, "queue": queue, "data": text.decode(), **given})

    def dead(self, id: int, queue: str, error: str | None = None, data: object = "dead") -> None:
        row = {"job_id": id, "queue": queue, "data": msgspec.json.encode(data).decode(), "error": error}
        self._insert("dlq_jobs", {**row, "failed_at": self.now - 500, "attempts": 3})

    def cron(self, name: str, queue: str, **columns: Any) -> None:
        self._insert(
            "cron_jobs", {"name": name, "queue": queue, "data": '{"c": 1}', "next_run": self.now, **columns}
        )

    def result(self, id: int) -> None:
        self._insert("job_results", {"job_id": id, "result": "1", "completed_at": self.now})

    def many(self, queue: str, count: int) -> None:
        rows = (
            (id, queue, f'{{"n": {id}}}', id % 3, self.now, self.now, 3, 1000) for id in range(1, count + 1)
        )
        self._database.execute("begin")
        self._database.executemany(
            "insert into jobs (id, queue, data, priority, created_at, run_at, max_attempts, backoff)"
            " values (?, ?, ?, ?, ?, ?, ?, ?)",
            rows,
        )
        self._database.execute("commit")

    def _insert(self, table: str, row: dict[str, object]) -> None:
        places = ", ".join("?" * len(row))
        self._database.execute(
            f"insert into {table} ({', '.join(row)}) values ({places})", tuple(row.values())
        )

    def close(self) -> Path:
        """End flashQ in peace: the log is taken into the file."""
        self._database.close()
        return self.path


@pytest.fixture
def flashq(tmp_path: Path) -> Iterator[Flashq]:
    made = Flashq(tmp_path / "flashq.db")
    yield made
    made.close()


def counts(client: SyncClient, queue: str) -> Counts:
    found = {each.queue: each.counts for each in client.queues()}
    return found.get(queue, Counts())


def row(done: Done, queue: str, state: str) -> list[int]:
    """In the file, imported, already there, skipped."""
    report = msgspec.json.decode(done.out)
    (found,) = (each for each in report["rows"] if (each["queue"], each["state"]) == (queue, state))
    return [found[name] for name in ("in_file", "imported", "already_there", "skipped")]


def imported(cli: Run, path: Path, *more: str) -> Done:
    return cli("import", "flashq", str(path), "--json", *more)


# What comes over.


def test_jobs_come_over_by_state_with_their_options(
    cli: Run, client: SyncClient, queue: str, flashq: Flashq
) -> None:
    flashq.job(1, queue, {"a": [1, "ä"]}, tags='["x", "y", "x"]', max_attempts=5, attempts=2, timeout=7_000)
    flashq.job(2, queue, run_at=flashq.now + HOUR_MS, priority=7)
    flashq.job(3, queue, state="active", started_at=flashq.now, lifo=1, custom_id="mine")
    flashq.job(4, queue, state="delayed", run_at=flashq.now + HOUR_MS, ttl=3 * HOUR_MS, unique_key="only")
    flashq.job(5, queue, group_id="lane")
    flashq.dead(6, queue, "it broke")
    flashq.job(7, queue, state="failed")
    done = imported(cli, flashq.close())
    assert done.code == 0, done.out
    assert row(done, queue, "waiting") == [3, 3, 0, 0]
    assert row(done, queue, "delayed") == [2, 2, 0, 0]
    assert row(done, queue, "dead") == [2, 2, 0, 0]
    assert counts(client, queue) == Counts(waiting=3, delayed=2, dead=2)
    found = {
        each.payload.get("id", 1): each for each in client.browse(queue) if isinstance(each.payload, dict)
    }
    assert found[1].payload == {"a": [1, "ä"]}
    assert found[1].tags == ("x", "y")
    assert found[2].priority == 7
    assert abs((found[2].due_at or 0) - flashq.now - HOUR_MS) < 60_000
    assert (found[3].job_id, found[5].job_id) == ("mine", f"flashq:5:{flashq.now - 1000}")
    assert found[4].unique_key == "only"
    assert found[5].partition == "lane"
    (dead,) = (each for each in client.dead(queue).messages if each.payload == "dead")
    assert dead.headers == {"flashq-error": "it broke"}
    assert client.pop(queue, 1)[0].payload == {"id": 3}  # lifo comes first


def test_a_job_has_the_attempts_and_the_lease_that_it_had_left(
    cli: Run, client: SyncClient, queue: str, flashq: Flashq
) -> None:
    flashq.job(1, queue, attempts=2, max_attempts=3, timeout=90_000)
    assert imported(cli, flashq.close()).code == 0
    (message,) = client.pop(queue)
    assert message.expires_at - int(time.time() * 1000) > 60_000
    client.nack(message, error="no")
    assert counts(client, queue).dead == 1


def test_jobs_come_in_flashq_s_order(cli: Run, client: SyncClient, queue: str, flashq: Flashq) -> None:
    for id, priority, age in ((1, 0, 10), (2, 5, 10), (3, 0, 30), (4, 5, 20)):
        flashq.job(id, queue, priority=priority, run_at=flashq.now - age)
    assert imported(cli, flashq.close()).code == 0
    assert [each["id"] for each in client.pop(queue, 10).payloads] == [4, 2, 3, 1]


def test_jobs_wait_for_the_same_jobs_under_their_new_ids(
    cli: Run, client: SyncClient, queue: str, flashq: Flashq
) -> None:
    other = f"{queue}-other"
    flashq.job(10, queue)
    flashq.dead(11, other)
    flashq.job(20, queue, state="waiting_children", depends_on="[10, 21, 10]")
    flashq.job(21, other, state="waiting-children", depends_on="[10]")
    flashq.job(22, queue, state="waiting_children", depends_on="[1, 2]")  # both are done: not in the file
    flashq.job(23, queue, state="waiting_parent", children_ids="[11, 3]")
    done = imported(cli, flashq.close())
    assert done.code == 0, done.out
    assert row(done, queue, "parked") == [2, 2, 0, 0]
    assert counts(client, queue) == Counts(waiting=2, parked=2)
    assert counts(client, other) == Counts(parked=1, dead=1)
    by_old = {
        each.payload["id"]: each
        for name in (queue, other)
        for each in client.browse(name)
        if each.payload != "dead"
    }
    assert by_old[20].depends_on == [by_old[10].id, by_old[21].id]
    client.ack(client.pop(queue, 2, min_count=2))
    client.requeue_dead(other)
    ready = client.pop(other, 2, min_count=2, wait_ms=5_000)
    assert {each.id for each in ready} == {by_old[21].id, by_old[23].depends_on[0]}
    client.ack(ready)
    assert {each.id for each in client.pop(queue, 2, min_count=2, wait_ms=5_000)} == {
        by_old[20].id,
        by_old[23].id,
    }


def test_crons_come_over_with_what_is_left_of_their_limit(
    cli: Run, client: SyncClient, queue: str, flashq: Flashq
) -> None:
    flashq.cron(f"{queue}-daily", queue, schedule="0 3 * * *", priority=4)
    flashq.cron(f"{queue}-often", queue, repeat_every=HOUR_MS, max_limit=10, executions=4)
    flashq.cron(f"{queue}-over", queue, repeat_every=HOUR_MS, max_limit=10, executions=10)
    flashq.cron(f"{queue}-taken", queue, repeat_every=HOUR_MS)
    flashq.cron(f"{queue}-odd", queue, schedule="whenever")
    client.set_cron(f"{queue}-taken", "elsewhere", 1, every_ms=HOUR_MS)
    path = flashq.close()
    done = imported(cli, path)
    assert done.code == 1
    assert row(done, queue, "cron") == [5, 2, 0, 3]
    daily, often = client.cron(f"{queue}-daily"), client.cron(f"{queue}-often")
    assert (daily.schedule, daily.payload, daily.queue) == ("0 3 * * *", {"c": 1}, queue)
    assert (often.every_ms, often.limit) == (HOUR_MS, 6)
    assert client.cron(f"{queue}-taken").queue == "elsewhere"
    assert row(imported(cli, path), queue, "cron") == [5, 0, 2, 3]


def test_a_file_of_flashq_s_first_release_comes_over(
    cli: Run, client: SyncClient, queue: str, tmp_path: Path
) -> None:
    old = Flashq(tmp_path / "old.db", later=False)
    old.job(1, queue)
    assert imported(cli, old.close()).code == 0
    assert counts(client, queue).waiting == 1


# What is skipped.


def test_what_can_t_come_over_is_named_with_its_reason(
    cli: Run, client: SyncClient, queue: str, flashq: Flashq
) -> None:
    flashq.job(1, queue, b"{broken")
    flashq.job(2, queue, ttl=500)
    flashq.job(3, queue, tags=msgspec.json.encode(["x" * 300]).decode())
    flashq.job(4, queue, state="waiting_children", depends_on="[1]")
    flashq.job(5, queue, state="completed")
    flashq.job(6, "no such/queue")
    for id in range(10, 30):
        flashq.job(id, queue)
    flashq.result(900)
    path = flashq.close()
    done = imported(cli, path)
    assert done.code == 1
    report = msgspec.json.decode(done.out)
    reasons = {id: each["reason"] for each in report["skipped"] for id in each["ids"]}
    assert reasons == {
        1: "the data is not JSON",
        2: "the time to live is over",
        3: "tags must be 1 to 255 bytes of UTF-8 without NUL",
        4: "it waits for a job that is not imported",
        5: "completed",
        6: "queue must be 1 to 256 characters of A-Z a-z 0-9 _ . -",
    }
    assert (report["same"], report["differences"], report["left_out"]["results"]) == (False, [], 1)
    assert counts(client, queue) == Counts(waiting=20)
    shown = cli("import", "flashq", str(path))
    assert "skipped 1 of no such/queue: queue must be" in shown.out
    assert "left out: 1 result of completed jobs" in shown.out


def test_a_job_that_is_over_is_skipped_and_no_error(cli: Run, queue: str, flashq: Flashq) -> None:
    flashq.job(1, queue, ttl=500)
    flashq.job(2, queue, run_at=flashq.now + HOUR_MS, ttl=60_000)  # over before it is due
    flashq.job(3, queue)
    done = imported(cli, flashq.close())
    assert done.code == 0
    assert row(done, queue, "waiting") == [2, 1, 0, 1]
    assert row(done, queue, "delayed") == [1, 0, 0, 1]


def test_a_unique_key_that_another_message_has_is_told(
    cli: Run, client: SyncClient, queue: str, flashq: Flashq
) -> None:
    client.push(queue, "another", unique_key="k")
    flashq.job(1, queue, unique_key="k")
    flashq.job(2, queue, unique_key="free")
    done = imported(cli, flashq.close())
    assert (done.code, row(done, queue, "waiting")) == (1, [2, 1, 0, 1])
    assert "another message has its unique key or id" in done.out


def test_a_unique_key_that_two_jobs_of_the_file_have_is_told(
    cli: Run, client: SyncClient, queue: str, flashq: Flashq
) -> None:
    for id in (1, 2):
        flashq.job(id, queue, "the same", unique_key="k")
    path = flashq.close()
    done = imported(cli, path)
    assert (done.code, row(done, queue, "waiting")) == (1, [2, 1, 0, 1])
    assert row(imported(cli, path), queue, "waiting") == [2, 0, 1, 1]
    assert counts(client, queue) == Counts(waiting=1)


def test_nothing_waits_for_a_job_that_is_over(
    cli: Run, client: SyncClient, queue: str, flashq: Flashq
) -> None:
    flashq.job(1, queue, ttl=500)
    flashq.job(2, queue, state="completed")
    flashq.job(3, queue, state="waiting_children", depends_on="[1, 2]")
    flashq.job(4, queue, b"{broken")
    flashq.job(5, queue, state="waiting_children", depends_on="[4]", ttl=500)  # over itself
    flashq.job(6, queue, state="waiting_children", depends_on="[5]")
    done = imported(cli, flashq.close())
    skipped = {id: each["reason"] for each in msgspec.json.decode(done.out)["skipped"] for id in each["ids"]}
    assert skipped == {
        1: "the time to live is over",
        2: "completed",
        4: "the data is not JSON",
        5: "the time to live is over",
    }
    assert sorted(each["id"] for each in client.pop(queue, 5).payloads) == [3, 6]


def test_an_empty_name_is_none(cli: Run, client: SyncClient, queue: str, flashq: Flashq) -> None:
    for id in (1, 2):
        flashq.job(id, queue, unique_key="", custom_id="", group_id="")
    done = imported(cli, flashq.close())
    assert (done.code, row(done, queue, "waiting")) == (0, [2, 2, 0, 0])
    found = client.browse(queue)
    assert {(each.unique_key, each.partition) for each in found} == {(None, "default")}


def test_what_is_null_has_a_default(cli: Run, client: SyncClient, queue: str, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "nulls.db", isolation_level=None)) as database:
        database.executescript(FIRST_TABLES.replace(" not null", ""))
        database.execute("insert into jobs (id, queue, data, ttl) values (1, ?, '1', 60000)", (queue,))
        database.execute(
            "update jobs set state = null, priority = null, attempts = null, max_attempts = null"
        )
        database.execute("insert into jobs (id) values (2)")
        for _ in range(2):
            database.execute("insert into dlq_jobs (queue, data) values (?, '2')", (queue,))
        database.execute("insert into dlq_jobs (job_id) values (3)")
        database.execute("insert into cron_jobs (queue, data) values (?, '3')", (queue,))
        database.execute("insert into cron_jobs (name) values ('c')")
    done = imported(cli, tmp_path / "nulls.db")
    assert done.code == 1, done.err
    assert row(done, queue, "waiting") == [1, 1, 0, 0]
    assert row(done, queue, "dead") == [2, 2, 0, 0]
    assert row(done, queue, "cron") == [1, 0, 0, 1]
    assert [row(done, "", state) for state in ("waiting", "dead", "cron")] == [[1, 0, 0, 1]] * 3
    assert counts(client, queue) == Counts(waiting=1, dead=2)


def test_only_the_queues_that_are_asked_for(cli: Run, client: SyncClient, queue: str, flashq: Flashq) -> None:
    for id, name in enumerate(("a.x", "a.y", "b")):
        flashq.job(id, f"{queue}.{name}")
        flashq.cron(f"{queue}.{name}", f"{queue}.{name}", repeat_every=HOUR_MS)
    path = flashq.close()
    assert imported(cli, path, "--queue", f"{queue}.a.*").code == 0
    assert [each.queue for each in client.queues() if each.queue.startswith(queue)] == [
        f"{queue}.a.x",
        f"{queue}.a.y",
    ]
    assert [each.name for each in client.crons() if each.name.startswith(queue)] == [
        f"{queue}.a.x",
        f"{queue}.a.y",
    ]
    nothing = imported(cli, path, "--queue", "nothing")
    assert nothing.code == 4


# Once.


def test_a_second_import_doubles_nothing_and_disturbs_nothing(
    cli: Run, client: SyncClient, queue: str, flashq: Flashq
) -> None:
    client.configure(queue, dedup_window_ms=0)  # as if the second came days later
    flashq.many(queue, 50)
    flashq.job(100, queue, unique_key="k", custom_id="c")
    for id in (200, 201):
        flashq.dead(id, queue, data=id)
    flashq.job(300, queue, state="waiting_children", depends_on="[1]")
    flashq.cron(queue, queue, repeat_every=HOUR_MS)
    path = flashq.close()
    assert imported(cli, path).code == 0
    client.ack(client.pop(queue, 10))
    client.requeue_dead(queue, [client.dead(queue).messages[0].id])
    before = counts(client, queue)
    done = imported(cli, path)
    assert done.code == 0, done.out
    assert counts(client, queue) == before
    assert row(done, queue, "waiting") == [51, 0, 51, 0]
    assert row(done, queue, "dead") == [2, 0, 2, 0]
    assert row(done, queue, "parked") == [1, 0, 1, 0]
    assert row(done, queue, "cron") == [1, 0, 1, 0]


def test_an_import_that_died_goes_on_where_it_was(
    cli: Run, client: SyncClient, queue: str, flashq: Flashq, monkeypatch: pytest.MonkeyPatch
) -> None:
    flashq.many(queue, 25)
    for id in range(100, 110):
        flashq.dead(id, queue, data=id)
    path = flashq.close()
    monkeypatch.setattr(running, "BATCH", 10)

    class Dies(SyncClient):
        """Dies between the push of dead letters and what makes them dead."""

        def discard(self, *_: object, **__: object) -> Any:
            raise KeyboardInterrupt

    with FlashqFile(path) as source, Dies(client.server) as dying, pytest.raises(KeyboardInterrupt):
        running.Import(source, [queue], dying, Report()).run(lambda done, total=None: None)
    assert counts(client, queue) == Counts(delayed=10)
    done = imported(cli, path)
    assert row(done, queue, "dead") == [10, 0, 10, 0]
    assert row(done, queue, "waiting") == [25, 25, 0, 0]
    assert counts(client, queue) == Counts(waiting=25, dead=10)


def test_a_job_with_an_id_that_flashq_gave_out_again_is_another(
    cli: Run, client: SyncClient, queue: str, tmp_path: Path
) -> None:
    for number in range(2):
        each = Flashq(tmp_path / f"{number}.db")
        each.job(1, queue, number, created_at=1_700_000_000_000 + number)
        assert imported(cli, each.close()).code == 0
    assert sorted(client.pop(queue, 5).payloads) == [0, 1]


def test_what_others_do_meanwhile_is_told(client: SyncClient, queue: str) -> None:
    report = Report()
    report.tally(queue, "waiting").imported = 3
    report.tally(queue, "delayed").imported = 2
    report.compare({queue: Counts(waiting=1)}, {queue: Counts(waiting=4, delayed=2)})
    assert report.is_whole
    report.compare({}, {queue: Counts(waiting=4, delayed=1, dead=1)})
    assert [(each.states, each.expected, each.found) for each in report.differences] == [("dead", 0, 1)]
    assert not report.is_whole


# The file.


def test_a_file_that_flashq_has_open_is_read_with_its_log_and_left_as_it_is(
    cli: Run, client: SyncClient, queue: str, flashq: Flashq
) -> None:
    flashq.many(queue, 100)
    log = flashq.path.with_name("flashq.db-wal")
    assert log.stat().st_size > 0
    before = flashq.path.read_bytes(), log.read_bytes()
    assert imported(cli, flashq.path).code == 0
    assert (flashq.path.read_bytes(), log.read_bytes()) == before
    assert counts(client, queue).waiting == 100


def test_a_file_of_a_flashq_that_was_killed_is_read_with_its_log(
    cli: Run, client: SyncClient, queue: str, flashq: Flashq, tmp_path: Path
) -> None:
    flashq.many(queue, 100)
    (tmp_path / "copy").mkdir()
    for name in ("flashq.db", "flashq.db-wal"):
        (tmp_path / "copy" / name).write_bytes((tmp_path / name).read_bytes())
    assert imported(cli, tmp_path / "copy" / "flashq.db").code == 0
    assert counts(client, queue).waiting == 100


def test_reading_leaves_nothing_beside_the_file(cli: Run, queue: str, flashq: Flashq) -> None:
    flashq.job(1, queue)
    path = flashq.close()
    assert cli("import", "flashq", str(path), "--dry-run").code == 0
    assert [each.name for each in path.parent.iterdir()] == ["flashq.db"]


def test_a_file_that_is_not_flashq_s_is_told(cli: Run, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello " * 1000)
    (tmp_path / "empty").write_bytes(b"")
    with closing(sqlite3.connect(tmp_path / "other")) as database:
        database.execute("create table jobs (id integer, name text)")
    with closing(sqlite3.connect(tmp_path / "odd")) as database:
        database.execute("create table jobs (id integer, queue text, data text)")
        database.execute("insert into jobs values (1, 'q', '1')")
        database.commit()
    for name, says in {
        "missing": "there is no file",
        ".": "there is no file",
        "text": "is not a SQLite file",
        "empty": "is a SQLite file, but not flashQ's",
        "other": "is a SQLite file, but not flashQ's",
        "odd": "is not flashQ's: its table jobs has no column state",
    }.items():
        done = cli("import", "flashq", str(tmp_path / name))
        assert (done.code, done.out) == (1, ""), name
        assert done.err.startswith("forebay: ")
        assert says in done.err, done.err


# The command.


def test_a_dry_run_needs_no_server_and_changes_nothing(
    cli: Run, client: SyncClient, queue: str, flashq: Flashq
) -> None:
    flashq.many(queue, 5)
    flashq.dead(9, queue)
    flashq.job(10, queue, state="waiting_children", depends_on="[1]")
    flashq.cron(queue, queue, repeat_every=HOUR_MS)
    path = flashq.close()
    done = cli("import", "flashq", str(path), "--dry-run", "--server", "127.0.0.1:1")
    assert done.code == 0
    assert "TO IMPORT" in done.out
    assert [each[:4] for each in done.rows[1:]] == [
        [queue, "cron", "1", "1"],
        [queue, "dead", "1", "1"],
        [queue, "parked", "1", "1"],
        [queue, "waiting", "5", "5"],
    ]
    assert counts(client, queue) == Counts()


def test_a_table_shows_what_was_done(cli: Run, queue: str, flashq: Flashq) -> None:
    flashq.many(queue, 5)
    done = cli("import", "flashq", str(flashq.close()))
    head, line = done.out.splitlines()
    assert " ".join(head.split()) == "QUEUE STATE IN FILE IMPORTED ALREADY THERE SKIPPED ON SERVER"
    assert line.split() == [queue, "waiting", "5", "5", "0", "0", "5"]


def test_without_a_server_nothing_is_read_in_vain(cli: Run, queue: str, flashq: Flashq) -> None:
    flashq.job(1, queue)
    done = cli("import", "flashq", str(flashq.close()), "--server", "127.0.0.1:1")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("forebay: no server at 127.0.0.1:1")


def test_a_server_that_goes_away_is_told_with_what_to_do(
    cli: Run, queue: str, flashq: Flashq, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    flashq.many(queue, 20)
    monkeypatch.setattr(running, "BATCH", 10)
    with Server() as server:
        pushing = SyncClient.push_many
        calls: list[int] = []

        def dying(self: SyncClient, *given: Any, **more: Any) -> Any:
            if calls:
                server.terminate()
                server.wait()
            calls.append(1)
            return pushing(self, *given, **more)

        monkeypatch.setattr(SyncClient, "push_many", dying)
        done = cli("import", "flashq", str(flashq.close()), "--server", server.tcp)
    assert done.code == 2
    assert "10 were imported before; run the same command again to go on" in done.err


def test_many_jobs_come_over_in_batches(
    server: Server, client: SyncClient, queue: str, flashq: Flashq
) -> None:
    flashq.many(queue, 3 * running.BATCH + 1)
    path = flashq.close()
    done = run(path.parent, "import", "flashq", str(path), FOREBAY_SERVER=server.tcp)
    assert done.code == 0, done.err
    assert counts(client, queue).waiting == 3 * running.BATCH + 1
    assert len({each["n"] for each in client.pop(queue, 20_000).payloads}) == 3 * running.BATCH + 1


# The page.


def test_the_page_about_flashq_names_every_command_of_flashq_once() -> None:
    told = [name for left, _ in COMMAND_ROWS for name in re.findall(r"`([A-Z]+)`", left)]
    assert len(told) == len(set(told))
    assert set(told) == set(FLASHQ_COMMANDS.split())


def test_the_page_about_flashq_names_native_commands_that_exist() -> None:
    table = pytest.importorskip("forebay.wire.table")
    told = {name for _, right in COMMAND_ROWS for name in re.findall(r"`([A-Z]+)`", right)}
    assert told <= set(table.BY_NAME)


def test_the_import_on_the_page_about_flashq_runs_as_it_is(
    cli: Run, client: SyncClient, queue: str, flashq: Flashq, monkeypatch: pytest.MonkeyPatch
) -> None:
    flashq.many(queue, 3)
    monkeypatch.chdir(flashq.close().parent)
    (block,) = re.findall(r"^ *```sh import\n(.*?)^ *```", PAGE, re.MULTILINE | re.DOTALL)
    for line in block.split("\n")[:-1]:
        program, *given = shlex.split(line)
        assert (program, cli(*given).code) == ("forebay", 0)
    assert counts(client, queue).waiting == 3
