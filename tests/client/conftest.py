"""One server for the session, every client in the same words, and a queue for each test."""

import asyncio
import re
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from forebay.client.aio.client import Client
from forebay.client.sync.client import SyncClient
from tests.client.blocking import Blocking
from tests.client.proxy import Proxy
from tests.serving import Server

_numbers = count(1)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server("--unix", str(tmp_path_factory.mktemp("unix") / "socket")) as running:
        yield running


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    """The name of a queue nobody has used."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", request.node.name)
    return f"{name[:200]}-{next(_numbers)}"


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    """What stands before the TCP listener."""
    with Proxy(server.tcp) as running:
        yield running


@pytest.fixture
def web_proxy(server: Server) -> Iterator[Proxy]:
    """What stands before the HTTP listener."""
    with Proxy(server.http) as running:
        yield running


Dial = Callable[..., Blocking]
"""Makes a client of a kind for a server, with settings if need be; it is closed at the end of the test."""


@pytest.fixture(params=["SyncClient", "Client"])
def dial(request: pytest.FixtureRequest) -> Iterator[Dial]:
    with asyncio.Runner() as runner:
        made: list[Blocking] = []

        def dialled(server: str, **settings: Any) -> Blocking:
            kind = SyncClient if request.param == "SyncClient" else Client
            made.append(Blocking(kind(server, **settings), runner))
            return made[-1]

        yield dialled
        for each in made:
            each.close()


@pytest.fixture
def client(dial: Dial, server: Server) -> Blocking:
    """A client over TCP."""
    return dial(server.tcp)


@pytest.fixture(params=["TCP", "HTTP"])
def either(request: pytest.FixtureRequest, dial: Dial, server: Server) -> Blocking:
    """A client over TCP, and one over HTTP."""
    return dial(server.tcp if request.param == "TCP" else f"http://{server.http}")


@pytest.fixture
def direct(server: Server) -> Iterator[SyncClient]:
    """A client with nothing in between, to look at what became of things."""
    with SyncClient(server.tcp) as made:
        yield made
