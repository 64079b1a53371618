"""One computation for everyone who asks for its result at the same time."""

import asyncio
from asyncio import Task
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from msgspec import Struct

T = TypeVar("T")


class _Run(Struct, Generic[T], eq=False):
    task: "Task[T]"
    readers: int = 0


class Shared(Generic[T]):
    """Runs a computation when somebody asks, one at a time; it stops when all who asked have left."""

    def __init__(self, compute: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._compute = compute
        self._run: _Run[T] | None = None

    async def get(self) -> T:
        """Return the result of the computation that runs, or of a new one."""
        run = self._run
        if run is None or run.task.done():
            run = self._run = _Run(asyncio.create_task(self._compute()))
        run.readers += 1
        try:
            # Shielded: the cancellation of one reader is not that of the others.
            return await asyncio.shield(run.task)
        finally:
            run.readers -= 1
            if not run.readers:
                run.task.cancel()
                if self._run is run:  # nobody joins what was cancelled
                    self._run = None
