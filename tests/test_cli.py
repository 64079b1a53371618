"""The command line, as a user runs it: processes, exit codes, standard output and standard error."""

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import IO, Any

import pytest

from penstock import __version__
from penstock.client.wire import Wire
from penstock.config import names

PATIENCE_S = 30.0
"""How long a process may take before a test that waits for it fails."""
COMMANDS = ["serve", "push", "pop", "ack", "queues", "backup", "restore", "verify", "repair"]

Done = subprocess.CompletedProcess[str]
Run = Callable[..., Done]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "penstock", *arguments]


def environment(**extra: str) -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    return plain | {"PENSTOCK_HTTP": "off"} | extra


def run(cwd: Path, *arguments: str, stdin: str = "", **variables: str) -> Done:
    """Run a command to its end."""
    return subprocess.run(
        command(*arguments),
        cwd=cwd,
        env=environment(**variables),
        input=stdin,
        text=True,
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )


class Server:
    """A server that runs, and what it said."""

    def __init__(self, process: "subprocess.Popen[str]", ready: dict[str, Any], log: Path) -> None:
        self.process = process
        self.ready = ready
        self.tcp: str = ready["tcp"]
        self.store: str = ready["store"]
        self.log = log

    def stop(self) -> None:
        """SIGTERM, and exit code 0."""
        os.kill(self.process.pid, signal.SIGTERM)
        assert self.process.wait(PATIENCE_S) == 0, self.log.read_text()

    def die(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE_S)


@contextmanager
def serving(cwd: Path, *flags: str) -> Iterator[Server]:
    """A server on a free port, stopped at the end unless it has ended before."""
    log = cwd / "log"
    with log.open("w") as errors, started(cwd, errors, *flags) as process:
        try:
            assert process.stdout is not None
            readable, _, _ = select.select([process.stdout], [], [], PATIENCE_S)
            line = process.stdout.readline() if readable else ""
            assert line, log.read_text()
            server = Server(process, json.loads(line), log)
            yield server
            if process.poll() is None:
                server.stop()
        finally:
            if process.poll() is None:
                process.kill()


def started(cwd: Path, errors: IO[str], *flags: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        command("serve", "--tcp", "127.0.0.1:0", "--http", "127.0.0.1:0", *flags),
        cwd=cwd,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def cli(server: Server, tmp_path: Path) -> Run:
    """Runs a command against the server."""

    def ran(*arguments: str, stdin: str = "") -> Done:
        return run(tmp_path, *arguments, "--server", server.tcp, stdin=stdin)

    return ran


@pytest.fixture
def wire(server: Server) -> Iterator[Wire]:
    """A connection to the server, for what a test needs to be there."""
    with Wire(server.tcp) as connection:
        yield connection


_numbers = count(1)


@pytest.fixture
def queue() -> str:
    """A queue of the test's own."""
    return f"queue-{next(_numbers)}"


def objects(done: Done) -> list[dict[str, Any]]:
    """The JSON objects that a command printed, one a line."""
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def push(wire: Wire, queue: str, *messages: object, partition: str = "default") -> None:
    wire.ask("PUSHB", queue=queue, messages=messages, partition=partition)


def pop(wire: Wire, queue: str, count: int = 10, group: str = "default") -> list[dict[str, Any]]:
    jobs: list[dict[str, Any]] = wire.ask("PULLB", queue=queue, count=count, timeout=0, group=group)["jobs"]
    return jobs


def data(jobs: list[dict[str, Any]]) -> list[object]:
    return [job["data"] for job in jobs]


def counts(wire: Wire, queue: str) -> list[int]:
    """Waiting, active and completed messages of a queue."""
    (found,) = (each for each in wire.ask("LISTQUEUES")["queues"] if each["name"] == queue)
    return [found["pending"], found["processing"], found["completed"]]


# push


def test_push_of_one(cli: Run, wire: Wire, queue: str) -> None:
    done = cli("push", queue, '{"to": "ada"}')
    assert (done.returncode, done.stderr) == (0, "")
    (job,) = pop(wire, queue)
    assert done.stdout == f"pushed 1 to {queue}, first id {job['id']}\n"
    assert job["data"] == {"to": "ada"}


def test_push_of_several_keeps_their_order(cli: Run, wire: Wire, queue: str) -> None:
    (pushed,) = objects(cli("push", queue, "1", '"two"', "[3]", "null", "--json", "--partition", "x"))
    jobs = pop(wire, queue)
    assert pushed == {"first": jobs[0]["id"], "count": 4, "durability": "fsync"}
    assert data(jobs) == [1, "two", [3], None]
    assert {job["partition"] for job in jobs} == {"x"}


def test_push_reads_lines_from_standard_input_and_passes_blank_ones(cli: Run, wire: Wire, queue: str) -> None:
    done = cli("push", queue, "-", stdin='{"n": 1}\n\n   \n{"n": 2}\r\n"ä"')
    assert done.stdout.startswith(f"pushed 3 to {queue}, ")
    assert data(pop(wire, queue)) == [{"n": 1}, {"n": 2}, "ä"]


def test_push_of_no_lines_at_all_has_nothing_to_do(cli: Run, queue: str) -> None:
    done = cli("push", queue, "-", stdin="\n\n")
    assert (done.returncode, done.stdout) == (4, "")


@pytest.mark.parametrize(
    ("given", "stdin"), [(["1", "{bad", "3"], ""), (["-"], "1\n\n{bad\n3\n")], ids=["arguments", "lines"]
)
def test_push_says_which_payload_is_not_json_and_pushes_none(
    given: list[str], stdin: str, cli: Run, wire: Wire, queue: str
) -> None:
    done = cli("push", queue, *given, stdin=stdin)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "penstock: payload 2 is not JSON: {bad\n"
    assert pop(wire, queue) == []


def test_push_tells_how_to_quote_a_plain_word(cli: Run, queue: str) -> None:
    done = cli("push", queue, "hello")
    assert done.returncode == 1
    assert "'\"word\"'" in done.stderr


def test_what_the_server_refuses_is_shown_with_its_code(cli: Run) -> None:
    done = cli("push", "no spaces", "1")
    assert done.returncode == 1
    assert done.stderr.startswith("penstock: invalid: queue must be ")


# pop


def test_pop_prints_ids_and_payloads_and_how_to_go_on(cli: Run, wire: Wire, queue: str) -> None:
    push(wire, queue, 1, {"n": 2}, 3)
    done = cli("pop", queue, "--count", "2")
    assert done.returncode == 0
    assert re.fullmatch(r'\d+\t1\n\d+\t\{"n":2\}\n', done.stdout)
    hint = re.search(r"penstock ack (\d+)$", done.stderr.strip())
    assert hint
    assert wire.ask("ACKB", lease=hint[1])["count"] == 2


def test_pop_prints_json_one_object_a_line(cli: Run, wire: Wire, queue: str) -> None:
    push(wire, queue, {"n": 1}, 2, partition="x")
    done = cli("pop", queue, "--count", "5", "--json")
    assert done.stderr == ""
    jobs = objects(done)
    assert data(jobs) == [{"n": 1}, 2]
    assert {(job["queue"], job["partition"]) for job in jobs} == {(queue, "x")}
    assert wire.ask("ACKB", lease=jobs[0]["lease"])["count"] == 2


def test_pop_of_an_empty_queue_has_nothing_to_do(cli: Run, queue: str) -> None:
    done = cli("pop", queue)
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr == f"nothing to pop from {queue}\n"
    quiet = cli("pop", queue, "--json", "--wait-ms", "1")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (4, "", "")


def test_pop_with_ack_settles_what_it_printed(cli: Run, wire: Wire, queue: str) -> None:
    push(wire, queue, 1, 2)
    done = cli("pop", queue, "--ack")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("\t1\n")
    assert counts(wire, queue) == [1, 0, 1]


def test_pop_waits_for_what_is_pushed_meanwhile(
    server: Server, wire: Wire, queue: str, tmp_path: Path
) -> None:
    waiting = command("pop", queue, "--wait-ms", "30000", "--json", "--server", server.tcp)
    with subprocess.Popen(
        waiting, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        push(wire, queue, "here")
        out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert json.loads(out)["data"] == "here"


def test_pop_takes_a_group_a_partition_and_a_lease_time(cli: Run, wire: Wire, queue: str) -> None:
    push(wire, queue, "x", partition="x")
    push(wire, queue, "y", partition="y")
    (job,) = objects(
        cli("pop", queue, "--group", "audit", "--partition", "y", "--lease-ms", "7200000", "--json")
    )
    assert job["data"] == "y"
    assert job["expires_at"] - job["created_at"] >= 7_200_000
    assert data(pop(wire, queue)) == ["x", "y"]
    assert data(pop(wire, queue, group="audit")) == ["x"]


# ack


def test_ack_of_a_lease_settles_all_of_it(cli: Run, wire: Wire, queue: str) -> None:
    push(wire, queue, 1, 2)
    done = cli("ack", pop(wire, queue)[0]["lease"])
    assert (done.returncode, done.stdout, done.stderr) == (0, "acked 2\n", "")
    assert counts(wire, queue) == [0, 0, 2]


def test_ack_of_ids_settles_those_that_are_leased_and_names_the_rest(
    cli: Run, wire: Wire, queue: str
) -> None:
    push(wire, queue, 1, 2, 3)
    leased, other = (str(job["id"]) for job in pop(wire, queue, 2))
    fresh = str(int(other) + 1)
    done = cli("ack", "--id", leased, "--id", fresh)
    assert (done.returncode, done.stdout, done.stderr) == (0, "acked 1\n", f"not leased: {fresh}\n")
    assert counts(wire, queue) == [1, 1, 1]
    (found,) = objects(cli("ack", "--id", other, "--json"))
    assert found == {"count": 1, "refused": []}
    assert cli("ack", "--id", other).returncode == 4


def test_ack_of_ids_is_for_the_group_that_popped_them(cli: Run, wire: Wire, queue: str) -> None:
    push(wire, queue, 1)
    (job,) = pop(wire, queue, group="audit")
    assert cli("ack", "--id", str(job["id"])).returncode == 4
    assert cli("ack", "--id", str(job["id"]), "--group", "audit").stdout == "acked 1\n"


def test_ack_of_a_stale_lease_is_a_conflict(cli: Run, wire: Wire, queue: str) -> None:
    push(wire, queue, 1)
    lease = pop(wire, queue)[0]["lease"]
    wire.ask("ACK", lease=lease)
    done = cli("ack", lease)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("penstock: conflict: the lease is not live")


def test_ack_of_nothing_says_what_is_missing(cli: Run) -> None:
    done = cli("ack")
    assert (done.returncode, done.stderr) == (1, "penstock: say what to ack: a LEASE, or --id ID\n")


# queues


def test_queues_are_a_table_in_columns(cli: Run, wire: Wire, queue: str) -> None:
    push(wire, queue, *range(10))
    push(wire, f"{queue}-with-a-long-name", 1)
    wire.ask("ACK", lease=pop(wire, queue, 3)[0]["lease"])
    pop(wire, queue, 2)
    done = cli("queues")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["QUEUE", "WAITING", "ACTIVE", "COMPLETED"]
    assert [queue, "5", "2", "3"] in [line.split() for line in lines]
    assert len({len(line) for line in lines}) == 1


def test_queues_are_json_one_object_a_line(cli: Run, wire: Wire, queue: str) -> None:
    push(wire, queue, 1)
    found = {each["queue"]: each for each in objects(cli("queues", "--json"))}
    assert found[queue] == {"queue": queue, "waiting": 1, "active": 0, "completed": 0}
    assert list(found) == sorted(found)


# Finding the server.


@pytest.mark.parametrize(
    "given", [["push", "q", "1"], ["pop", "q"], ["ack", "1"], ["queues"]], ids=lambda given: given[0]
)
def test_without_a_server_there_is_a_hint_how_to_start_one(given: list[str], tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run(tmp_path, *given, "--server", address)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"penstock: no server at {address} ")
    assert done.stderr.endswith("start one with: penstock serve\n")


def test_a_socket_that_is_not_there_is_no_server(tmp_path: Path) -> None:
    assert run(tmp_path, "queues", "--server", "./missing").returncode == 2


def test_an_address_that_is_none_is_wrong_usage(tmp_path: Path) -> None:
    assert run(tmp_path, "queues", "--server", "somewhere:else").returncode == 1


def test_the_server_can_be_named_in_the_environment(server: Server, queue: str, tmp_path: Path) -> None:
    assert run(tmp_path, "push", queue, "1", PENSTOCK_SERVER=server.tcp).returncode == 0
    done = run(tmp_path, "pop", queue, "--json", "--server", server.tcp, PENSTOCK_SERVER="127.0.0.1:1")
    assert data(objects(done)) == [1]


# Usage.


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(name: str, tmp_path: Path) -> None:
    done = run(tmp_path, name, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"Example:\n  penstock {name}" in done.stdout


def test_help_lists_every_command_and_every_exit_code(tmp_path: Path) -> None:
    done = run(tmp_path, "--help")
    assert done.returncode == 0
    assert all(re.search(rf"^ +{name} ", done.stdout, re.MULTILINE) for name in COMMANDS)
    assert all(f"{code} " in done.stdout for code in range(6))


def test_help_of_serve_lists_every_setting(tmp_path: Path) -> None:
    shown = run(tmp_path, "serve", "--help").stdout
    assert all(f"--{name.replace('_', '-')} VALUE" in shown for name in names())


def test_version(tmp_path: Path) -> None:
    done = run(tmp_path, "--version")
    assert (done.returncode, done.stdout) == (0, f"penstock {__version__}\n")


@pytest.mark.parametrize(
    "given", [[], ["fly"], ["queues", "--colour"], ["push", "q"], ["pop", "q", "--count", "x"]]
)
def test_wrong_usage_is_explained(given: list[str], tmp_path: Path) -> None:
    done = run(tmp_path, *given)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("usage: penstock")
    assert "Traceback" not in done.stderr


# serve


def test_serve_says_when_it_is_ready_and_where(server: Server) -> None:
    http = server.ready["http"]
    where = {"http": http, "tcp": server.tcp, "unix": None, "store": server.store}
    assert server.ready == {"ready": True, **where}
    assert re.fullmatch("rocksdb:/.*/penstock-data", server.store)
    assert re.fullmatch(r"127\.0\.0\.1:\d+", server.tcp)
    assert re.fullmatch(r"127\.0\.0\.1:\d+", http)


def test_serve_refuses_bad_settings_with_every_problem_on_its_own_line(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text("shape = 'round'")
    done = run(tmp_path, "serve", "--shards", "0", "--stall-ms", "long", PENSTOCK_COLOUR="red")
    assert (done.returncode, done.stdout) == (1, "")
    lines = done.stderr.splitlines()
    assert sorted(line.split(":")[1].strip() for line in lines) == [
        "--shards",
        "--stall-ms",
        "PENSTOCK_COLOUR",
        "shape in penstock.toml",
    ]
    assert all(line.startswith("penstock: ") for line in lines)


def test_serve_refuses_by_name_what_comes_later(tmp_path: Path) -> None:
    done = run(tmp_path, "serve", "--grpc", "--capnp", "--dialects", "queen,flashq")
    assert (done.returncode, done.stdout) == (1, "")
    assert [line.split(": ")[1] for line in done.stderr.splitlines()] == ["--grpc", "--capnp", "--dialects"]
    assert done.stderr.count("not part of this version yet") == 3
    store = run(tmp_path, "serve", "--store", "postgresql:x")
    assert store.returncode == 1
    assert store.stderr.startswith("penstock: --store: the store postgresql is not part of this version yet")


def test_serve_leaves_the_directory_of_a_live_server_alone(server: Server, tmp_path: Path) -> None:
    place = server.store.removeprefix("rocksdb:")
    done = run(tmp_path, "serve", "--tcp", "127.0.0.1:0", "--data", place, "--log-level", "error")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"penstock: {place} is in use by another server; stop that one, or use another directory\n"
    )


def test_serve_finds_again_what_it_kept(tmp_path: Path) -> None:
    for payload in "12":
        with serving(tmp_path) as server:
            assert run(tmp_path, "push", "q", payload, "--server", server.tcp).returncode == 0
    with serving(tmp_path) as server, Wire(server.tcp) as wire:
        jobs = wire.ask("PULLB", queue="q", count=5, timeout=0)["jobs"]
        assert [job["data"] for job in jobs] == [1, 2]


def test_serve_with_a_store_in_memory_says_so_and_leaves_no_files(tmp_path: Path) -> None:
    with serving(tmp_path, "--store", "memory:") as server:
        assert server.store == "memory:"
    assert not (tmp_path / "penstock-data").exists()


def test_serve_needs_the_file_it_is_given(tmp_path: Path) -> None:
    done = run(tmp_path, "serve", "--config", "missing.toml")
    assert (done.returncode, done.stderr) == (
        1,
        "penstock: missing.toml: can't be read: No such file or directory\n",
    )


def test_serve_on_a_port_in_use_says_so_in_one_line(server: Server, tmp_path: Path) -> None:
    done = run(tmp_path, "serve", "--tcp", server.tcp, "--log-level", "error")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"penstock: can't listen on {server.tcp}: ")
    assert "address already in use" in line


def test_serve_logs_json_one_object_a_line(tmp_path: Path) -> None:
    with serving(tmp_path, "--log-format", "json", "--log-level", "debug") as server:
        server.stop()
    lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    assert all(list(line)[:4] == ["at", "level", "logger", "message"] for line in lines)
    messages = [line["message"] for line in lines]
    assert [each for each in messages if each in ("ready", "stopping", "stopped")] == [
        "ready",
        "stopping",
        "stopped",
    ]


def test_serve_reads_its_settings_file_and_serves_a_unix_socket(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text("unix = './socket'\nbatch_max = 2")
    with serving(tmp_path) as server:
        assert server.ready["unix"] == "./socket"
        assert run(tmp_path, "push", "q", "1", "2", "--server", "./socket").returncode == 0
        assert run(tmp_path, "push", "q", "1", "2", "3", "--server", server.tcp).returncode == 1
    assert not (tmp_path / "socket").exists()


def test_serve_leaves_the_socket_of_a_live_server_alone_and_takes_that_of_a_dead_one(tmp_path: Path) -> None:
    with serving(tmp_path, "--unix", "./socket") as first:
        given = ["--tcp", "off", "--unix", "./socket", "--log-level", "error", "--data", "./other"]
        refused = run(tmp_path, "serve", *given)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert refused.stderr == "penstock: a server is already listening on ./socket\n"
        assert run(tmp_path, "queues", "--server", "./socket").returncode == 0
        first.die()
    assert (tmp_path / "socket").exists()
    with serving(tmp_path, "--unix", "./socket"):
        assert run(tmp_path, "queues", "--server", "./socket").returncode == 0


def test_serve_does_not_remove_a_file_that_is_no_socket(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    done = run(tmp_path, "serve", "--tcp", "off", "--unix", "./notes", "--log-level", "error")
    assert (done.returncode, done.stderr) == (2, "penstock: ./notes exists and is not a socket\n")
    assert (tmp_path / "notes").read_text() == "mine"
