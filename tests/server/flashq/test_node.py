"""Whole lives of a client of flashQ in Node."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.server.flashq.serving import FlashqServer
from tests.serving import PATIENCE_S

NODE = shutil.which("node")
CLIENT = Path(__file__).parent / "client.mjs"
MAJOR = 20

pytestmark = pytest.mark.skipif(NODE is None, reason=f"node is not installed; {MAJOR} or later is needed")


@pytest.fixture(params=["framed", "lines"])
def form(request: pytest.FixtureRequest) -> str:
    form: str = request.param
    return form


@contextmanager
def client(what: str, server: FlashqServer, form: str) -> Iterator["subprocess.Popen[str]"]:
    """The client in a process of its own."""
    assert NODE is not None
    host, port = server.address
    command = [NODE, str(CLIENT), what, host, str(port), form]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def seen(process: "subprocess.Popen[str]") -> Any:
    """What it printed in the end."""
    out, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    return json.loads(out)


def test_a_node_client_lives_a_whole_life(server: FlashqServer, form: str) -> None:
    with server.talk() as talk:
        for each in talk.do("LISTQUEUES")["queues"]:
            talk.do("OBLITERATE", queue=each["name"])
    with client("life", server, form) as process:
        saw = seen(process)
    assert saw == {
        "results": True,
        "once": True,
        "flow": True,
        "failed": True,
        "dead": [[True, 2]],
        "duplicate": "Duplicate job with key: k",
        "named": True,
        "cron": {"cron": True},
        "event": ["job:completed", "doubles", True],
        "count": 0,
        "slow": "now",
    }


def test_a_node_client_goes_on_after_the_server_was_killed(tmp_path: Path, form: str) -> None:
    stored = ("--data", str(tmp_path / "data"))
    with FlashqServer(*stored) as server, client("survive", server, form) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "confirmed\n"
        server.kill()
        with FlashqServer(*stored, at=server.flashq):
            process.stdin.write("go on\n")
            process.stdin.flush()
            saw = seen(process)
    assert saw["results"] is True
    assert saw["connects"] >= 2
