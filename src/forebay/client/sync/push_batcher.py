"""Pushes from threads: each is a request of its own. The server groups those of the same moment."""

from collections.abc import Callable
from typing import Any

from msgspec import Raw

from forebay.client.backoff import Within
from forebay.client.later import Later
from forebay.client.translate import pushed_one
from forebay.client.types import Pushed
from forebay.wire.operations import push as wire


class Pusher:
    """Pushes messages."""

    def __init__(
        self, ask: Callable[..., Any], once: Callable[[Within], dict[str, Any]], later: Later
    ) -> None:
        self._ask = ask
        self._once = once
        self.later = later

    def push(self, queue: str, payload: bytes, options: dict[str, Any], within: Within) -> Pushed:
        known = {} if "idempotency_key" in options else self._once(within)
        pushed = self._ask(wire.Push(queue=queue, payload=Raw(payload), **options, **known), within=within)
        return pushed_one(pushed, options)

    def close(self) -> None:
        self.later.close()
