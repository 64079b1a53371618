"""A server for the tests of a file, and an app of its own for each."""

import re
from collections.abc import Iterator

import pytest

from forebay.client.tasks.app import App
from forebay.client.worker import leases
from tests.client.worker.simulated import simulated as simulated
from tests.serving import Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def app(server: Server, request: pytest.FixtureRequest) -> Iterator[App]:
    """An app whose tasks have a queue that no other test has."""
    name = re.sub("[^a-z0-9]+", "-", request.node.name)[:150]
    app = App(name, server=server.tcp, queue=f"jobs-{name}")
    yield app
    app.close()


@pytest.fixture
def quick_extends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers hear of cancelled jobs in half a second, though their leases are long.

    A short lease would do that, too, and end whenever the machine is busy for a moment.
    """
    monkeypatch.setattr(leases, "EXTEND_S_MAX", 0.1)
