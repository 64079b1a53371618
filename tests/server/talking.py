"""Requests carried out by a core of their own, with neither a server nor a socket between."""

import json
from typing import Any

import pytest

from forebay.core.api import commands as core
from forebay.core.bounds import Limits
from forebay.core.engine import Taken, load
from forebay.core.errors import ForebayError
from forebay.server.flashq import decode, request as flashq_request

CONTEXT = flashq_request.Context("acme", 7)
SHARDS = 4
NOW = 1_700_000_000_000
UUID = "018bcfe5-67ff-7000-8001-040000000400"
"""Of the message with offset 1 under partition number 65."""

Request = dict[str, Any]
Fields = dict[str, Any]


def body_of(request: Request) -> bytes:
    return json.dumps(request).encode()


def command_of(cmd: str, **fields: Any) -> core.Command:
    return decode.decode(body_of({"cmd": cmd, **fields})).command(CONTEXT)


class Talk:
    """A core, asked in the words of the wire."""

    def __init__(self, *, numbers_made: int = 0) -> None:
        limits = Limits()
        claims = {number: Taken(1) for number in range(SHARDS)}
        self.engine = load(limits, SHARDS, claims, 1, lambda low, high: (), NOW)
        for shard in self.engine.shards.values():
            shard.numbering.made = numbers_made

    def ask(self, cmd: str, **fields: Any) -> dict[str, Any]:
        request = decode.decode(body_of({"cmd": cmd, **fields}))
        reply = self.engine.apply(request.command(CONTEXT), NOW)
        answer: dict[str, Any] = json.loads(decode.encode(request, reply, CONTEXT))
        return answer

    def refusal(self, body: bytes) -> dict[str, Any]:
        """The answer to a request that breaks a rule."""
        try:
            request = decode.decode(body)
        except ForebayError as refused:
            error = refused
        else:
            with pytest.raises(ForebayError) as found:
                self.engine.apply(request.command(CONTEXT), NOW)
            error = decode.in_words(request, found.value)
        answer: dict[str, Any] = json.loads(decode.encode_error(error))
        assert answer["ok"] is False
        return answer


def refusal(cmd: str, **fields: Any) -> dict[str, Any]:
    return Talk().refusal(body_of({"cmd": cmd, **fields}))


def invalid(cmd: str, **fields: Any) -> tuple[str, str]:
    """Field and accepted of a request that is invalid."""
    answer = refusal(cmd, **fields)
    assert answer["code"] == "invalid"
    details = answer["details"]
    assert answer["error"] == f"{details['field']} must be {details['accepted']}"
    return details["field"], details["accepted"]
