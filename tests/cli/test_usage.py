"""What all commands share: exit codes, errors, help, finding the server, starting fast, completion."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forebay import __version__
from forebay.cli.main import SECTIONS, cli as program
from forebay.client.sync.client import SyncClient
from tests.cli.running import PATIENCE_S, Run, command, environment, run
from tests.serving import Server, framed

COMMANDS = [name for names in SECTIONS.values() for name in names]
HEAVY = {"rich", "rocksdict", "uvloop", "starlette", "uvicorn", "pyspark", "httpx", "cronsim", "cryptography"}
OURS = ("forebay.app", "forebay.broker", "forebay.config", "forebay.server", "forebay.store")


@contextmanager
def answering(reply: dict[str, object]) -> Iterator[str]:
    """The address of something that gives every request the same answer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(framed(json.dumps(reply).encode()))

        thread = threading.Thread(target=answer)
        thread.start()
        yield "{}:{}".format(*listener.getsockname())
        thread.join()


@contextmanager
def nobody() -> Iterator[str]:
    """An address where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


# Exit codes.


@pytest.mark.parametrize(
    ("code", "exits"),
    [
        ("invalid", 1),
        ("not_found", 1),
        ("conflict", 1),
        ("unsupported", 1),
        ("teapot", 1),
        ("busy", 2),
        ("denied", 3),
        ("damaged", 5),
    ],
)
def test_what_a_server_says_has_its_exit_code(code: str, exits: int, cli: Run) -> None:
    with answering({"ok": False, "error": {"code": code, "message": "because"}}) as address:
        done = cli("queues", "--server", address)
    assert (done.code, done.out, done.err) == (exits, "", f"forebay: {code}: because\n")


@pytest.mark.parametrize(
    "given",
    [["push", "q", "1"], ["pop", "q"], ["ack", "1"], ["queues"], ["top", "--once"], ["dead", "list", "q"]],
)
def test_without_a_server_there_is_a_hint_how_to_start_one(given: list[str], cli: Run) -> None:
    with nobody() as address:
        done = cli(*given, "--server", address)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"forebay: no server at {address} ")
    assert done.err.endswith("start one with: forebay serve\n")


def test_a_socket_that_is_not_there_is_no_server(cli: Run) -> None:
    assert cli("queues", "--server", "./missing").code == 2
    assert cli("queues", "--server", "http://127.0.0.1:1").code == 2


def test_an_address_that_is_none_is_wrong_usage(cli: Run) -> None:
    assert cli("queues", "--server", "somewhere:else").code == 1


def test_what_answers_but_is_no_server_of_ours_is_told(cli: Run, server: Server) -> None:
    with answering({"queues": 3}) as address:
        assert cli("queues", "--server", address).code == 2
    done = cli("queues", "--server", server.http)
    assert done.code == 2
    assert done.err == (
        f"forebay: {server.http} speaks HTTP: use http://{server.http}, or the TCP port (6780 by default)\n"
    )


def test_ctrl_c_ends_what_goes_on_until_then(server: Server, client: SyncClient, queue: str) -> None:
    client.push(queue, "seen")
    given = command("tail", queue, "--from-start", "--server", server.tcp)
    with subprocess.Popen(
        given, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert "seen" in process.stdout.readline()
        os.kill(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (0, "")


def test_a_reader_that_has_seen_enough_is_no_error(server: Server, client: SyncClient, queue: str) -> None:
    client.push_many(queue, ["x" * 1_000] * 1_000)
    given = command("pop", queue, "--count", "1000", "--json", "--ack", "--server", server.tcp)
    with subprocess.Popen(
        given, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.wait(PATIENCE_S) == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_output_that_can_t_be_written_is_told(server: Server) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command("queues", "--server", server.tcp),
            env=environment(),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr.startswith("forebay: can't read or write: ")


def test_output_that_does_not_take_a_character_is_told(
    server: Server, client: SyncClient, queue: str, tmp_path: Path
) -> None:
    client.push(queue, "ä")
    done = run(tmp_path, "pop", queue, FOREBAY_SERVER=server.tcp, PYTHONIOENCODING="ascii")
    assert (done.code, done.err) == (2, "forebay: the output can't take '\\xe4': set PYTHONUTF8=1\n")


# Finding the server.


def test_the_server_can_be_named_in_the_environment_and_a_flag_wins(
    cli: Run, server: Server, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("push", queue, "1").code == 0
    monkeypatch.setenv("FOREBAY_SERVER", "127.0.0.1:1")
    assert cli("pop", queue).code == 2
    assert cli("pop", queue, "--json", "--server", server.tcp).object["payload"] == 1


def test_the_server_can_be_asked_over_http(cli: Run, server: Server, queue: str) -> None:
    url = f"http://{server.http}"
    assert cli("push", queue, '{"a":  1}', "--server", url).code == 0
    assert cli("pop", queue, "--json", "--ack", "--server", url).object["payload"] == {"a": 1}
    assert cli("pop", queue, "--server", url).code == 4
    assert cli("tail", queue, "--from-start", "--count", "1", "--server", url).code == 0


# Usage.


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str, cli: Run) -> None:
    done = cli(name, "--help")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"usage: forebay {name} ")
    assert f"Example:\n  forebay {name}" in done.out or "Commands:" in done.out


def test_help_lists_every_command_in_one_line_and_every_exit_code(cli: Run) -> None:
    done = cli("--help")
    assert done.code == 0
    assert all(re.search(rf"^  {name} +\S.*[^.]\.?$", done.out, re.MULTILINE) for name in COMMANDS)
    assert all(f"{code} " in done.out for code in range(6))
    assert "..." not in done.out.partition("Run:")[2]


@pytest.mark.parametrize("name", ["queue", "dead", "groups", "crons"])
def test_help_of_a_group_cuts_nothing_off(name: str, cli: Run) -> None:
    assert "..." not in cli(name, "--help").out.partition("Commands:")[2]


def test_version(cli: Run) -> None:
    assert cli("--version").out == f"forebay {__version__}\n"


@pytest.mark.parametrize(
    "given",
    [
        [],
        ["fly"],
        ["queue"],
        ["queue", "fly", "q"],
        ["queues", "--colour"],
        ["queues", "more"],
        ["pop", "q", "--count", "x"],
        ["messages", "q", "--since", "soon"],
        ["bench", "--seconds", "0"],
        ["completion", "tcsh"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_explained(given: list[str], cli: Run) -> None:
    done = cli(*given)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("usage: forebay")
    if len(given) > 1:
        assert re.search(r"^forebay: .*; see: forebay .*--help$", done.err, re.MULTILINE)


# Starting fast.


@pytest.mark.parametrize("given", [["--version"], ["--help"], ["push", "q", "1"], ["queues"], ["pop", "q"]])
def test_a_command_imports_only_what_it_needs(given: list[str], server: Server) -> None:
    script = (
        "import sys; from forebay.cli.main import main; main(sys.argv[1:]);"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *given],
        env=environment(FOREBAY_SERVER=server.tcp),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    modules = set(done.stderr.splitlines()[-1].split())
    assert "forebay.cli.main" in modules
    assert not modules & HEAVY
    assert not [name for name in modules if name.startswith(OURS)]


# Completion.


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_the_script_of_a_shell(shell: str, cli: Run) -> None:
    done = cli("completion", shell)
    assert (done.code, done.err) == (0, "")
    assert f"_FOREBAY_COMPLETE={shell}_complete" in done.out


def test_a_shell_completes_commands_flags_and_queues(
    cli: Run, client: SyncClient, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.push(queue, 1)

    def completed(line: str) -> list[str]:
        monkeypatch.setenv("_FOREBAY_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(line.count(" ")))
        done = cli()
        assert (done.code, done.err) == (0, "")
        return [each.partition(",")[2] for each in done.out.splitlines() if each]

    assert completed("forebay que") == ["queues", "queue"]
    assert completed("forebay queue de") == ["describe", "delete"]
    assert completed("forebay messages q --sta") == ["--state"]
    assert completed("forebay seek q --to n") == ["new"]
    assert queue in completed(f"forebay queue describe {queue[:-1]}")
    monkeypatch.setenv("FOREBAY_SERVER", "127.0.0.1:1")
    assert completed("forebay queue describe que") == []


def test_the_commands_are_those_of_the_sections() -> None:
    import click

    assert program.list_commands(click.Context(program)) == COMMANDS
