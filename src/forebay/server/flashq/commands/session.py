"""Commands about the connection itself: AUTH, SUBSCRIBE and UNSUBSCRIBE. They need no command of the core."""

from typing import Any

from msgspec import Struct

from forebay.core.api.commands import Command as CoreCommand
from forebay.server.flashq import answers
from forebay.server.flashq.caller import Caller
from forebay.server.flashq.command import Asked
from forebay.server.tcp.codec import Ready


class Session(Asked, gc=False, kw_only=True):
    """Commands that are answered with ok."""

    def reply(self, reply: Any, caller: Caller) -> Struct:
        return answers.Answer()


class Auth(Session, tag="AUTH", gc=False, kw_only=True):
    is_auth = True
    token: str


class Subscribe(Session, tag="SUBSCRIBE", gc=False, kw_only=True):
    queue: str
    events: list[str] | None = None

    def asked(self, caller: Caller) -> CoreCommand:
        caller.subscribe(self.queue, self.events or [], packed=False)
        raise Ready

    def packed_command(self, caller: Caller) -> CoreCommand:
        caller.subscribe(self.queue, self.events or [], packed=True)
        raise Ready


class Unsubscribe(Session, tag="UNSUBSCRIBE", gc=False, kw_only=True):
    queue: str

    def asked(self, caller: Caller) -> CoreCommand:
        caller.subscriptions.remove(self.queue)
        raise Ready
