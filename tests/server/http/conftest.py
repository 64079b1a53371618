"""The server of the session, over HTTP."""

from collections.abc import Iterator

import pytest

from tests.server.http.talking import Http
from tests.serving import Server


@pytest.fixture
def http(server: Server) -> Iterator[Http]:
    with Http(server.http) as connection:
        yield connection
