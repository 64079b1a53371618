"""forebay worker: what a worker does is tested with the client; here it is started and stopped."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from forebay.client.sync.client import SyncClient
from tests.cli.running import PATIENCE_S, Run, command, environment
from tests.serving import Server

APP = """
import forebay

app = forebay.App("shop")

@app.task(queue={queue!r})
def double(number: int) -> int:
    return 2 * number

other = 5
"""


@pytest.fixture
def shop(tmp_path: Path, queue: str) -> Path:
    """A directory with an application."""
    (tmp_path / f"shop_{queue.replace('-', '_')}.py").write_text(APP.format(queue=queue))
    return tmp_path


def test_a_worker_runs_tasks_until_it_is_told_to_stop(
    server: Server, client: SyncClient, queue: str, shop: Path
) -> None:
    target = f"shop_{queue.replace('-', '_')}:app"
    push = f"import {target[:-4]} as shop; print(shop.double.push(21).result())"
    given = ["--concurrency", "2", "--queues", f"{queue}, ", "--prefetch", "1", "--lease-ms", "5000"]
    logs = ["--log-format", "json", "--log-level", "info", "--drain-s", "5", "--name", "w"]
    variables = environment(FOREBAY_SERVER=server.tcp)
    with subprocess.Popen(
        command("worker", target, *given, *logs), cwd=shop, env=variables, stderr=subprocess.PIPE, text=True
    ) as process:
        python = [command()[0], "-c", push]
        done = subprocess.run(
            python, cwd=shop, env=variables, capture_output=True, text=True, timeout=PATIENCE_S, check=True
        )
        os.kill(process.pid, signal.SIGTERM)
        _, logged = process.communicate(timeout=PATIENCE_S)
    assert done.stdout == "42\n"
    assert process.returncode == 0
    messages = [json.loads(line)["message"] for line in logged.splitlines()]
    assert f"working on {queue} at {server.tcp}, 2 at once" in messages


def test_the_address_of_an_app_comes_before_that_of_the_environment(
    server: Server, client: SyncClient, queue: str, tmp_path: Path
) -> None:
    app = APP.format(queue=queue).replace("App(", f"App(server={server.tcp!r}, name=")
    (tmp_path / "there.py").write_text(app)
    logs = ["--log-format", "json", "--log-level", "info"]
    with subprocess.Popen(
        command("worker", "there:app", *logs),
        cwd=tmp_path,
        env=environment(FOREBAY_SERVER="127.0.0.1:1"),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        said = json.loads(process.stderr.readline())["message"]
        os.kill(process.pid, signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
    assert said == f"working on {queue} at {server.tcp}, 16 at once"


@pytest.mark.parametrize("name", ["missing:app", "shop:missing", "shop:other"])
def test_a_worker_needs_an_application_that_is_there(
    name: str, cli: Run, queue: str, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shop)
    monkeypatch.syspath_prepend(str(shop))
    done = cli("worker", name.replace("shop", f"shop_{queue.replace('-', '_')}"))
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("forebay: invalid: app must be MODULE:NAME")
