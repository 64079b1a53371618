"""Requests carried out by a core of their own, with neither a server nor a socket between."""

import asyncio
import json
from typing import Any, cast

import pytest

from forebay.core.api import commands as core
from forebay.core.bounds import Limits
from forebay.core.engine import Taken, load
from forebay.core.errors import ForebayError
from forebay.server.operations import codec
from forebay.server.operations.carried import Context
from forebay.server.tcp.codec import Services

CONTEXT = Context("acme", 7)
SHARDS = 4
NOW = 1_700_000_000_000
UUID = "018bcfe5-67ff-7000-8001-040000000400"
"""Of the message with offset 1 under partition number 65."""

Request = dict[str, Any]
Fields = dict[str, Any]


def body_of(request: Request) -> bytes:
    return json.dumps(request).encode()


def command_of(cmd: str, **fields: Any) -> core.Command:
    command: core.Command = codec.decode(body_of({"cmd": cmd, **fields})).command(CONTEXT)
    return command


class _Steps:
    """Carries out requests of several steps, one command of the core after the other."""

    def __init__(self, talk: "Talk") -> None:
        self._talk = talk
        self.questions = self
        self.node = self
        self.limits = Limits(pop_creates_queues=True)

    async def ask(self, command: core.Command) -> core.Reply | ForebayError:
        try:
            return self._talk.engine.apply(command, NOW)
        except ForebayError as error:
            return error


class Talk:
    """A core, asked in the words of the wire."""

    def __init__(self, *, numbers_made: int = 0) -> None:
        limits = Limits(pop_creates_queues=True)
        claims = {number: Taken(1) for number in range(SHARDS)}
        self.engine = load(limits, SHARDS, claims, 1, lambda low, high: (), NOW)
        for shard in self.engine.shards.values():
            shard.numbering.made = numbers_made

    def ask(self, cmd: str, **fields: Any) -> dict[str, Any]:
        request = codec.decode(body_of({"cmd": cmd, **fields}))
        if request.is_command:
            reply = self.engine.apply(request.command(CONTEXT), NOW)
        else:
            reply = asyncio.run(request.carry_out(cast(Services, _Steps(self)), CONTEXT))
        answer: dict[str, Any] = json.loads(codec.encode(request, reply, CONTEXT))
        return answer

    def refusal(self, body: bytes) -> dict[str, Any]:
        """The answer to a request that breaks a rule."""
        try:
            request = codec.decode(body)
        except ForebayError as refused:
            error = refused
        else:
            with pytest.raises(ForebayError) as found:
                self.engine.apply(request.command(CONTEXT), NOW)
            error = codec.in_words(request, found.value)
        answer: dict[str, Any] = json.loads(codec.encode_error(error))
        assert answer["ok"] is False
        return answer


def refusal(cmd: str, **fields: Any) -> dict[str, Any]:
    return Talk().refusal(body_of({"cmd": cmd, **fields}))


def invalid(cmd: str, **fields: Any) -> tuple[str, str]:
    """Field and accepted of a request that is invalid."""
    answer = refusal(cmd, **fields)
    error = answer["error"]
    assert error["code"] == "invalid"
    details = error["details"]
    assert error["message"] == f"{details['field']} must be {details['accepted']}"
    return details["field"], details["accepted"]
