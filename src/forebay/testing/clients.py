"""Stand-ins for the clients of an app whose tasks run inline: the few methods a job needs."""

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from forebay.client.translate import message_of
from forebay.client.types import New, Progress, PushedMany, Result, Update
from forebay.core.errors import Unsupported
from forebay.testing.inline_run import Order

if TYPE_CHECKING:
    from forebay.testing.inline_tasks import Inline


class _Nothing:
    """Refuses every other method."""

    def __init__(self, inline: "Inline") -> None:
        self._inline = inline

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise Unsupported(
            f"tasks run inline, there is no server for client.{name}; use forebay.testing.Server"
        )


class InlineSyncClient(_Nothing):
    """For ``app.client``."""

    def result(self, id: Any, *, type: Any = Any, **_: Any) -> Result:
        return self._inline.result(id, type)

    def state(self, id: Any, **_: Any) -> str:
        return self._inline.result(id).state

    def progress(self, id: Any) -> Progress:
        return self._inline.progress(id)

    def updates(self, id: Any, *, type: Any = Any) -> Iterator[Update]:
        yield self._inline.update(id, type)

    def cancel(self, id: Any, **_: Any) -> None:
        self._inline.result(id)  # it has ended: there is nothing to cancel

    def push_many(self, queue: str, payloads: Iterable[Any], **options: Any) -> PushedMany:
        orders = _orders(queue, payloads, options)
        return PushedMany([self._inline.run(each).id for each in orders], "memory")

    def close(self) -> None: ...


class InlineClient(_Nothing):
    """For ``app.aclient``."""

    async def result(self, id: Any, *, type: Any = Any, **_: Any) -> Result:
        return self._inline.result(id, type)

    async def state(self, id: Any, **_: Any) -> str:
        return self._inline.result(id).state

    async def progress(self, id: Any) -> Progress:
        return self._inline.progress(id)

    async def updates(self, id: Any, *, type: Any = Any) -> AsyncIterator[Update]:
        yield self._inline.update(id, type)

    async def cancel(self, id: Any, **_: Any) -> None:
        self._inline.result(id)

    async def push_many(self, queue: str, payloads: Iterable[Any], **options: Any) -> PushedMany:
        orders = _orders(queue, payloads, options)
        return PushedMany([(await self._inline.arun(each)).id for each in orders], "memory")

    async def close(self) -> None: ...


def _orders(queue: str, payloads: Iterable[Any], given: dict[str, Any]) -> Iterable[Order]:
    shared = {name: value for name, value in given.items() if name not in ("timeout_s", "retry_s")}
    for each in payloads:
        payload, own = (each.payload, each.options) if isinstance(each, New) else (each, {})
        yield Order(queue, *message_of(payload, {**shared, **own}))


class Everywhere:
    """The same client for every event loop."""

    def __init__(self, client: InlineClient) -> None:
        self._client = client

    def __contains__(self, loop: Any) -> bool:
        return True

    def get(self, loop: Any) -> dict[bool, InlineClient]:
        return dict.fromkeys((False, True), self._client)

    def pop(self, loop: Any, default: Any = None) -> Any:
        return default
