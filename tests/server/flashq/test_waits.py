"""How long a pull waits at flashQ's door."""

import pytest

from forebay.core.api.commands import Pop
from forebay.core.api.principals import ANYONE
from forebay.core.bounds import Limits
from forebay.server.flashq.door import Door
from forebay.server.workers import Workers


@pytest.mark.parametrize(
    "request_", [b'{"cmd":"PULL","queue":"q"}', b'{"cmd":"PULLB","queue":"q","count":5}']
)
def test_a_pull_that_does_not_say_how_long_waits_a_minute(request_: bytes) -> None:
    door = Door(Workers(lambda: 0))
    for limits, wait_ms in ((Limits(), 60_000), (Limits(wait_ms_max=500), 500)):
        command = door.decode(request_).command(door.context(1, limits, ANYONE))
        assert isinstance(command, Pop)
        assert command.wait_ms == wait_ms
