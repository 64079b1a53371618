"""A dashboard whose client leaves ends in silence, wherever it is just then."""

import asyncio
from typing import Any, cast

import pytest
from starlette.types import Message, Receive, Scope

from forebay.server.flashq.web.calls import Call
from forebay.server.flashq.web.commands import Commands
from forebay.server.flashq.web.streams import Dashboard
from forebay.server.http.identity import CONTEXT
from forebay.server.http.request_body import Gone
from forebay.server.operations.carried import Context
from tests.serving import PATIENCE_S


class Watching:
    """Commands that listen for the end of their client, as those do that are withdrawn when it leaves."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    async def ask(self, scope: Scope, receive: Receive, cmd: str, fields: Any) -> Any:
        if self._error is not None:
            raise self._error
        listening = asyncio.ensure_future(receive())
        await asyncio.sleep(0)
        listening.cancel()
        return {}


async def sent_to_one_that_leaves(commands: Watching) -> list[Message]:
    sent: list[Message] = []
    has_figures = asyncio.Event()
    calls = 0

    async def receive() -> Message:
        nonlocal calls
        calls += 1
        if not sent:
            return {"type": "websocket.connect"}
        await has_figures.wait()
        return {"type": "websocket.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)
        if message["type"] == "websocket.send":
            has_figures.set()

    async def figures(call: Call) -> bytes:
        await call.ask("STATS")
        return b"{}"

    dashboard = Dashboard(figures, cast(Commands, commands))
    await asyncio.wait_for(dashboard({"type": "websocket", CONTEXT: Context()}, receive, send), PATIENCE_S)
    assert calls <= 2, "somebody else received, too"
    return sent


def test_the_end_of_a_connection_is_not_taken_from_its_dashboard() -> None:
    sent = asyncio.run(sent_to_one_that_leaves(Watching()))
    assert [each["type"] for each in sent] == ["websocket.accept", "websocket.send"]


@pytest.mark.parametrize("error", [Gone(), ConnectionResetError()])
def test_a_client_that_leaves_while_figures_are_made_is_no_bug(error: Exception) -> None:
    sent = asyncio.run(sent_to_one_that_leaves(Watching(error)))
    assert [each["type"] for each in sent] == ["websocket.accept"]
