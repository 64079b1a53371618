"""One server for the session; every test has its own connections and its own queue."""

import re
from collections.abc import Iterator
from itertools import count

import pytest
from hypothesis import HealthCheck, settings

from tests.serving import Raw, Server

# The same examples on every run, however fast the machine is.
settings.register_profile(
    "server", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("server")

_numbers = count(1)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[Raw]:
    with server.connect() as connection:
        yield connection


@pytest.fixture
def other(server: Server) -> Iterator[Raw]:
    """A second connection."""
    with server.connect() as connection:
        yield connection


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    """The name of a queue nobody has used."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", request.node.name)
    return f"{name[:200]}-{next(_numbers)}"
