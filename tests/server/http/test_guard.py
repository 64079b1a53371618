"""What breaks is answered like everything else, and told to the log and not to the client."""

import asyncio
import json
import logging
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from forebay.server.http.guard import Guard
from forebay.server.http.request_body import Gone

SCOPE = {"type": "http", "method": "POST", "path": "/v1/secret", "headers": [(b"x-request-id", b"mine")]}


def answered(error: Exception, *, starts: bool = False) -> list[Any]:
    """What is sent for a request that breaks."""
    sent: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if starts:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        raise error

    async def receive() -> Any:
        raise AssertionError("nothing is read")

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(Guard(app, ())(dict(SCOPE), receive, send))
    return sent


def test_a_bug_is_answered_in_json_without_its_particulars(caplog: pytest.LogCaptureFixture) -> None:
    start, body = answered(RuntimeError("particulars"))
    assert start["status"] == 503
    assert (b"x-request-id", b"mine") in start["headers"]
    assert json.loads(body["body"])["error"]["code"] == "busy"
    assert b"particulars" not in body["body"]
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "bug: request mine of /v1/secret broke" in record.getMessage()


def test_a_bug_in_the_middle_of_an_answer_ends_it() -> None:
    (start,) = answered(RuntimeError(), starts=True)
    assert start["status"] == 200


def test_who_is_gone_is_not_answered(caplog: pytest.LogCaptureFixture) -> None:
    assert answered(Gone()) == []
    assert caplog.records == []
