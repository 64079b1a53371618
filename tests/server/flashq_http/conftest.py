"""One server for the session; every test has a connection and a queue of its own."""

from collections.abc import Iterator

import pytest

from tests.server.flashq_http.talking import Door, DoorServer


@pytest.fixture(scope="session")
def served() -> Iterator[DoorServer]:
    with DoorServer("--webhooks-private", "on") as running:
        yield running


@pytest.fixture
def door(served: DoorServer) -> Iterator[Door]:
    with Door(served.door) as connection:
        yield connection
