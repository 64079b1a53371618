"""One run of a task: in the event loop, in a thread, or in a child process."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from forebay.client.payloads import encode
from forebay.client.tasks.app import Middleware
from forebay.client.tasks.task import GiveUp, Task
from forebay.client.worker.current import Run as Run, _current, current as current
from forebay.client.worker.pipe import Asked
from forebay.client.worker.processes import Call, Children
from forebay.client.worker.relay import Relay
from forebay.client.worker.threads import Threaded, Threads
from forebay.core.errors import Invalid

LAST_REPORT_S = 3.0
"""How long a run that failed waits for its last progress: a silent server must not hold its slot."""


class Running:
    """Runs functions in the way their tasks ask for."""

    def __init__(self, threads: int, middlewares: Sequence[Middleware]) -> None:
        self._threads = Threads(threads)
        self._children = Children()
        self._middlewares = list(middlewares)

    async def go(self, run: Run) -> Any:
        """Return what the task returns; raise what it raises."""
        token = _current.set(run)
        try:
            returned = await self._go(run)
            if run.reports is not None:
                await run.reports.finish()
            return returned
        except Exception:
            if run.reports is not None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(LAST_REPORT_S):
                        await run.reports.finish()
            raise
        finally:
            _current.reset(token)

    async def _go(self, run: Run) -> Any:
        task = run.task
        # The common case, without a coroutine per middleware or a timeout scope.
        if not self._middlewares and task.timeout_s is None and task.is_async:
            return await task.function(*run.args, **run.kwargs)
        call: Callable[[], Awaitable[Any]] = lambda: self._call(run)  # noqa: E731
        for middleware in reversed(self._middlewares):
            call = _around(middleware, run, call)
        return await call()

    async def _call(self, run: Run) -> Any:
        task = run.task
        if not task.is_async:
            return await (self._in_process(run) if task.process else self._in_thread(run))
        if task.timeout_s is None:
            return await task.function(*run.args, **run.kwargs)
        scope = asyncio.timeout(task.timeout_s)
        try:
            async with scope:
                return await task.function(*run.args, **run.kwargs)
        except TimeoutError:
            if scope.expired():
                raise _too_long(task) from None
            raise

    async def _in_thread(self, run: Run) -> Any:
        threaded = self._threads.run(partial(run.task.function, *run.args, **run.kwargs))
        return await _until(threaded, run.task, threaded.interrupt)

    async def _in_process(self, run: Run) -> Any:
        place = run.task.function.__module__, run.task.name
        about = replace(run.message, payload=None)
        app = run.task.app
        asked = Asked(place, tuple(run.args), dict(run.kwargs), app.server, about, access=app.access)
        relay = Relay(run)
        call = Call(self._children, asked, relay.send)

        def interrupt() -> None:
            call.kill()  # before its report ends, or it could go on for a moment
            relay.close()

        return await _until(self._threads.run(call.go), run.task, interrupt, lambda: call.has_said)

    def close(self) -> None:
        self._children.close()
        self._threads.close()


def _around(
    middleware: Middleware, run: Run, call: Callable[[], Awaitable[Any]]
) -> Callable[[], Awaitable[Any]]:
    return lambda: middleware(run, call)


def _too_long(task: Task[Any, Any, Any]) -> TimeoutError:
    return TimeoutError(f"{task.name} took longer than {task.timeout_s:g} s")


async def _until(
    threaded: Threaded,
    task: Task[Any, Any, Any],
    interrupt: Callable[[], None],
    has_ended: Callable[[], bool] = lambda: False,
) -> Any:
    """Return the result of a function in a thread, interrupting it on timeout or cancel.

    ``has_ended`` says that the task itself has: what follows is not part of its time. On return the function
    has ended, unless the worker exits first: some code can't be interrupted.
    """
    ended = threaded.future
    try:
        if task.timeout_s is None:
            return await ended
        if not (await asyncio.wait([ended], timeout=task.timeout_s))[0] and not has_ended():
            interrupt()
            await asyncio.wait([ended])
            if ended.exception() is not None:
                raise _too_long(task) from None
        return await ended
    except asyncio.CancelledError:
        interrupt()
        await threaded.until_over()
        raise


def result_of(value: Any) -> Raw | None:
    """Return a task's result as it is stored."""
    if value is None:
        return None
    try:
        return Raw(encode(value))
    except Invalid as error:
        raise GiveUp(f"it is done, and what it returned is not {error.accepted}") from None
