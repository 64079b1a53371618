"""Both clients in the same words, so that a promise about both is written once."""

import asyncio
from collections.abc import Iterator
from inspect import isawaitable
from typing import Any

from forebay.client.aio.tenants import Tenants, Tokens
from forebay.client.aio.values import Values


class Blocking:
    """A client, or a part of one: whatever is to be awaited is, in a loop of the test."""

    def __init__(self, inner: Any, runner: asyncio.Runner) -> None:
        self._inner = inner
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return self._shown(found)
        return lambda *given, **fields: self._shown(found(*given, **fields))

    def _shown(self, found: Any) -> Any:
        if isawaitable(found):
            return self._await(found)
        if hasattr(found, "__aiter__"):
            return self._each(found)
        wrapped = isinstance(found, Values | Tenants | Tokens) or hasattr(found, "__aenter__")
        return Blocking(found, self._runner) if wrapped else found

    def _await(self, found: Any) -> Any:
        async def awaited() -> Any:
            return await found

        return self._runner.run(awaited())

    def _each(self, found: Any) -> Iterator[Any]:
        while True:
            try:
                yield self._await(anext(found))
            except StopAsyncIteration:
                return

    def __enter__(self) -> Any:
        entered = self._await(self._inner.__aenter__())
        return self if entered is self._inner else entered

    def __exit__(self, *raised: object) -> bool:
        return bool(self._await(self._inner.__aexit__(*raised)))
