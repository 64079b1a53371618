"""The README's quick start, from ``make serve`` to a processed job, and the page about Python."""

import inspect
import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import forebay
from tests.serving import PATIENCE_S, Server
from tests.test_docs import ROOT, blocks, curled, curls

PYTHON = (ROOT / "docs" / "PYTHON.md").read_text()
PROGRAMS = Path(sys.executable).parent


class Made:
    """A server that ``make serve`` started."""

    def __init__(self, ready: dict[str, str]) -> None:
        self.tcp, self.http = ready["tcp"], ready["http"]


@contextmanager
def process(command: list[str], cwd: Path, environment: dict[str, str]) -> Iterator["subprocess.Popen[str]"]:
    """A process that is told to stop, and does so as it should, when the block is left."""
    running = subprocess.Popen(
        command,
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield running
        os.killpg(running.pid, signal.SIGTERM)
        _, said = running.communicate(timeout=PATIENCE_S)
        assert "Traceback" not in said, said
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
            running.communicate()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    (serve,) = blocks("sh server")
    assert serve == "make serve\n"
    data = tmp_path_factory.mktemp("data") / "data"
    flags = f"ARGS=--tcp 127.0.0.1:0 --http 127.0.0.1:0 --data {data}"
    # Nor is it to know of a `make test` that runs all this.
    ours = ("FOREBAY_", "MAKE", "MFLAGS")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    with process([*shlex.split(serve), flags], ROOT, environment) as server:
        assert server.stdout is not None
        assert select.select([server.stdout], [], [], PATIENCE_S)[0], "make serve says nothing"
        yield Made(json.loads(server.stdout.readline()))


def test_a_job_is_processed_as_the_quick_start_says(served: Made, tmp_path: Path) -> None:
    module, _ = blocks("python")
    (tmp_path / "mailer.py").write_text(module)
    environment = {**os.environ, "FOREBAY_SERVER": served.tcp, "PYTHONUNBUFFERED": "1"}
    (worker,), (job,) = blocks("sh worker"), blocks("sh job")
    with process(program(worker), tmp_path, environment) as working:
        done = subprocess.run(
            program(job), cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert (done.returncode, done.stdout) == (0, "sent to ada@example.com\n"), done.stderr
        assert working.stdout is not None
        assert working.stdout.readline() == "sending to ada@example.com\n"


def program(line: str) -> list[str]:
    """A line of the README as a command, whose programs are where these tests run."""
    name, *arguments = shlex.split(line)
    assert name.startswith(".venv/bin/")
    return [str(PROGRAMS / name.removeprefix(".venv/bin/")), *arguments]


def test_messages_come_and_go_as_the_quick_start_says(served: Made, tmp_path: Path) -> None:
    environment = {**os.environ, "FOREBAY_SERVER": served.tcp}
    (shell,) = blocks("sh")
    shown = "".join(run(program(line), environment) for line in shell.splitlines())
    assert "alan@example.com" in shown
    _, python = blocks("python")
    assert run([sys.executable, "-c", python], environment) == "499500\n"


def run(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_curl_does_what_the_quick_start_says(served: Made) -> None:
    (over_http,) = blocks("sh curl")
    there: Any = served
    told = [curled(command, there) for command, _ in curls(over_http)]
    assert [sorted(each) for each in told] == [
        ["durability", "id"],
        ["lease", "messages"],
        ["cursor", "messages", "total"],
    ]
    assert told[1]["messages"][0]["payload"] == {"to": "grace@example.com"}
    assert told[2]["messages"][0]["id"] == told[0]["id"]


# The page about Python.


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.mark.parametrize("number", range(len(blocks("python", PYTHON))))
def test_every_example_of_the_page_about_python_runs(server: Server, number: int) -> None:
    example = blocks("python", PYTHON)[number]
    environment = {**os.environ, "FOREBAY_SERVER": server.tcp, "PYTHONWARNINGS": "error"}
    shown = run([sys.executable, "-c", example], environment)
    for told in re.findall(r"print\(.*\)  # (.*)$", example, re.MULTILINE):
        assert told in shown


PUBLIC = [
    name
    for name, member in inspect.getmembers(forebay.Client)
    if not name.startswith("_") and inspect.isfunction(member)
]


@pytest.mark.parametrize("name", PUBLIC)
def test_every_method_of_the_clients_is_on_the_page(name: str) -> None:
    assert re.search(rf"`{name}`", PYTHON)


@pytest.mark.parametrize("name", ["kv", "transaction"])
def test_every_method_of_what_a_client_has_is_on_the_page(name: str) -> None:
    client = forebay.SyncClient("127.0.0.1:1")
    part = client.kv if name == "kv" else client.transaction()
    prefix = "kv." if name == "kv" else ""
    for method, _ in inspect.getmembers(part, inspect.ismethod):
        if not method.startswith("_"):
            assert f"`{prefix}{method}`" in PYTHON, method


def test_every_parameter_of_a_task_and_a_worker_is_on_the_page() -> None:
    for part, function in (
        ("| of `@app.task` |", forebay.App.task),
        ("| of `forebay.Worker`", forebay.Worker),
    ):
        table = PYTHON.split(part)[1].split("\n\n")[0]
        for name in inspect.signature(function).parameters:
            if name not in ("self", "function", "app", "options", "group"):
                assert f"`{name}`" in table, name
