"""A server for the tests of a file, and an app of its own for each."""

import re
from collections.abc import Iterator

import pytest

from forebay.client.tasks.app import App
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
