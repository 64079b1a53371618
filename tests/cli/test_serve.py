"""forebay serve, as a user runs it: a process, its exit code, standard output and standard error."""

import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from forebay.client.sync.client import SyncClient
from forebay.config import names
from tests.cli.running import PATIENCE_S, Run, command, environment, run


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
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a data directory that these tests know."""
    with serving(tmp_path_factory.mktemp("server")) as running:
        yield running


def test_help_of_serve_lists_every_setting(cli: Run) -> None:
    shown = cli("serve", "--help").out
    assert all(f"--{name.replace('_', '-')} VALUE" in shown for name in names())


def test_serve_says_when_it_is_ready_and_where(own: Server) -> None:
    http = own.ready["http"]
    where = {"http": http, "tcp": own.tcp, "unix": None, "store": own.store}
    assert own.ready == {"ready": True, **where, "flashq": None, "flashq_http": None}
    assert re.fullmatch("rocksdb:/.*/forebay-data", own.store)
    assert re.fullmatch(r"127\.0\.0\.1:\d+", own.tcp)
    assert re.fullmatch(r"127\.0\.0\.1:\d+", http)


def test_serve_refuses_bad_settings_with_every_problem_on_its_own_line(
    cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FOREBAY_COLOUR", "red")
    (tmp_path / "forebay.toml").write_text("shape = 'round'")
    done = cli("serve", "--shards", "0", "--stall-ms", "long")
    assert (done.code, done.out) == (1, "")
    lines = done.err.splitlines()
    assert sorted(line.split(":")[1].strip() for line in lines) == [
        "--shards",
        "--stall-ms",
        "FOREBAY_COLOUR",
        "shape in forebay.toml",
    ]
    assert all(line.startswith("forebay: ") for line in lines)


def test_serve_refuses_by_name_what_comes_later(
    cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = cli("serve", "--grpc", "--capnp", "--dialects", "queen")
    assert (done.code, done.out) == (1, "")
    assert [line.split(": ")[1] for line in done.err.splitlines()] == ["--grpc", "--capnp", "--dialects"]
    assert done.err.count("not part of this version yet") == 2


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the pid is not known")
def test_serve_on_the_directory_of_a_live_server_says_only_whose_it_is(own: Server, tmp_path: Path) -> None:
    place = own.store.removeprefix("rocksdb:")
    in_use = f"forebay: {place} is in use by another server (pid {own.process.pid}); stop that one"
    done = run(tmp_path, "serve", "--tcp", "127.0.0.1:0", "--data", place)
    assert (done.code, done.out) == (2, "")
    assert done.err == f"{in_use}, or use another directory\n"
    looked = run(tmp_path, "verify", place)
    assert (looked.code, looked.out, looked.err) == (1, "", f"{in_use}, or take a backup of it\n")


def test_serve_finds_again_what_it_kept(cli: Run, tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        assert cli("push", "q", "1", "2", "--server", server.tcp).code == 0
    with serving(tmp_path) as server, SyncClient(server.tcp) as client:
        assert client.pop("q", 5).payloads == [1, 2]


def test_serve_with_a_store_in_memory_says_so_and_leaves_no_files(tmp_path: Path) -> None:
    with serving(tmp_path, "--store", "memory:") as server:
        assert server.store == "memory:"
    assert not (tmp_path / "forebay-data").exists()


def test_serve_needs_the_file_it_is_given(cli: Run) -> None:
    done = cli("serve", "--config", "missing.toml")
    assert (done.code, done.err) == (
        1,
        "forebay: missing.toml: can't be read: No such file or directory\n",
    )


def test_serve_on_a_port_in_use_says_so_in_one_line(own: Server, tmp_path: Path) -> None:
    done = run(tmp_path, "serve", "--tcp", own.tcp, "--log-level", "error")
    assert (done.code, done.out) == (2, "")
    (line,) = done.err.splitlines()
    assert line.startswith(f"forebay: can't listen on {own.tcp}: ")
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


def test_serve_reads_its_settings_file_and_serves_a_unix_socket(cli: Run, tmp_path: Path) -> None:
    (tmp_path / "forebay.toml").write_text("unix = './socket'\nbatch_max = 2")
    with serving(tmp_path) as server:
        assert server.ready["unix"] == "./socket"
        assert cli("push", "q", "1", "2", "--server", str(tmp_path / "socket")).code == 0
        assert cli("push", "q", "1", "2", "3", "--server", server.tcp).code == 1
    assert not (tmp_path / "socket").exists()


def test_serve_leaves_the_socket_of_a_live_server_alone_and_takes_that_of_a_dead_one(
    cli: Run, tmp_path: Path
) -> None:
    with serving(tmp_path, "--unix", "./socket") as first:
        given = ["--tcp", "off", "--unix", "./socket", "--log-level", "error", "--data", "./other"]
        refused = run(tmp_path, "serve", *given)
        assert (refused.code, refused.out) == (2, "")
        assert refused.err == "forebay: a server is already listening on ./socket\n"
        assert cli("queues", "--server", str(tmp_path / "socket")).code == 0
        first.die()
    assert (tmp_path / "socket").exists()
    with serving(tmp_path, "--unix", "./socket"):
        assert cli("queues", "--server", str(tmp_path / "socket")).code == 0


def test_serve_does_not_remove_a_file_that_is_no_socket(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    done = run(tmp_path, "serve", "--tcp", "off", "--unix", "./notes", "--log-level", "error")
    assert (done.code, done.err) == (2, "forebay: ./notes exists and is not a socket\n")
    assert (tmp_path / "notes").read_text() == "mine"
