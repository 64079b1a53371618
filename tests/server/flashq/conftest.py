"""One server for the tests of flashQ's door that leave it as they found it."""

from collections.abc import Iterator

import pytest

from tests.server.flashq.serving import FORMS, FlashqServer, Talk


@pytest.fixture(scope="module")
def server() -> Iterator[FlashqServer]:
    with FlashqServer("--store", "memory:") as server:
        yield server


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    form: str = request.param
    return form


@pytest.fixture
def talk(server: FlashqServer, form: str) -> Iterator[Talk]:
    """A connection in each of the forms, to a server in which there is nothing."""
    with server.talk(form) as talk:
        yield talk
        clear(talk)


@pytest.fixture
def line(server: FlashqServer) -> Iterator[Talk]:
    """A connection of lines, to a server in which there is nothing."""
    with server.talk() as talk:
        yield talk
        clear(talk)


def clear(talk: Talk) -> None:
    """Leave nothing for the next test, on a connection of its own."""
    for each in talk.do("LISTQUEUES")["queues"]:
        talk.do("OBLITERATE", queue=each["name"])
    for each in talk.do("CRONLIST")["crons"]:
        talk.do("CRONDELETE", name=each["name"])
    for key in talk.do("KVKEYS")["keys"]:
        talk.do("KVDEL", key=key)
