"""A mistyped queue is not made by looking at it: every way to look at one says so."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay.client.sync.client import SyncClient
from tests.cli.running import run
from tests.client.worker.working import Process, until_so
from tests.server.http.streaming import get
from tests.serving import Server, push

OFF = ("--pop-creates-queues", "off")
THEIRS = """
import forebay

app = forebay.App("theirs", queue="theirs")

@app.task
def nothing() -> None: ...
"""
SAID = "there is no queue emials; is emails meant?"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(*OFF) as server, server.connect() as client:
        push(client, "emails", 1)
        yield server


@pytest.mark.parametrize("cmd", ["POP", "PAUSE", "RESUME", "QUEUE", "OFFSETS", "BROWSE"])
def test_a_command_names_the_queue_that_may_be_meant(server: Server, cmd: str) -> None:
    with server.connect() as client:
        answer = client.ask({"cmd": cmd, "queue": "emials"})
        assert (answer["error"]["code"], answer["error"]["message"]) == ("not_found", SAID)
        assert [each["queue"] for each in client.ask({"cmd": "QUEUES"})["queues"]] == ["emails"]


def test_so_does_a_listener_and_the_command_line(server: Server, tmp_path: Path) -> None:
    status, answer = get(server.http, "/v1/queues/emials/listen")
    assert (status, answer["error"]["message"]) == (404, SAID)
    for words in ("tail", "pop", "queue pause", "queue describe"):
        done = run(tmp_path, *words.split(), "emials", "--server", server.tcp)
        assert (done.code, SAID in done.err) == (1, True), words


def test_a_pop_that_says_so_creates_its_queue(server: Server) -> None:
    with SyncClient(server.tcp) as client:
        assert not client.pop("made-by-a-pop", create=True)
        assert not client.pop("made-by-a-pop")
        client.delete_queue("made-by-a-pop")


def test_a_worker_makes_its_queues(server: Server, tmp_path: Path) -> None:
    with Process(tmp_path, THEIRS, server.tcp), SyncClient(server.tcp) as client:
        until_so(lambda: "theirs" in {each.queue for each in client.queues()})
