"""One real server for all tests of the command line, and queues of their own."""

import io
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from forebay.cli.main import main
from forebay.client.access import VARIABLES
from forebay.client.sync.client import SyncClient
from tests.cli.running import Done, Run
from tests.serving import Server

_numbers = count(1)


@pytest.fixture(scope="package")
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.fixture(scope="package")
def client(server: Server) -> Iterator[SyncClient]:
    """For what a test needs to be there, or wants to know."""
    with SyncClient(server.tcp) as asking:
        yield asking


@pytest.fixture
def cli(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Run:
    """Runs a command in this process, against the server, as somebody who has never logged in."""
    monkeypatch.setenv("FOREBAY_SERVER", server.tcp)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in VARIABLES.values():
        monkeypatch.delenv(name, raising=False)

    def ran(*arguments: str, stdin: bytes = b"") -> Done:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
            code = main(list(arguments))
        said = capsys.readouterr()
        return Done(code, said.out, said.err)

    return ran


@pytest.fixture
def queue() -> str:
    """A queue of the test's own."""
    return f"queue-{next(_numbers)}"
