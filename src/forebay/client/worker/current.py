"""The running job, as the task and middleware see it."""

import asyncio
import contextvars
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from forebay.client.aio.client import Client
from forebay.client.tasks.task import Task
from forebay.client.types import Message
from forebay.client.worker.progress import Reports, whole
from forebay.core.errors import Busy, Conflict, ForebayError, NotFound

CANCELLED, LOST, STOPPED = "cancelled", "lost", "stopped"
"""Why a run is interrupted: the job was cancelled, its lease expired, or the worker stops."""

DROPPED_S = 60.0
"""Least interval of warnings that lines are dropped."""

_current: contextvars.ContextVar["Run"] = contextvars.ContextVar("forebay.run")


logger = logging.getLogger("forebay.worker")


class Run:
    """A running job, as middleware and the task see it."""

    task: Task[Any, Any, Any]
    message: Message
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    interrupted: str
    """Why it was interrupted; empty if it was not."""

    def __init__(
        self,
        task: Task[Any, Any, Any],
        message: Message,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        client: Client,
    ) -> None:
        self.task = task
        self.message = message
        self.args, self.kwargs = args, kwargs
        self._client = client
        self._loop = asyncio.get_running_loop()
        self.interrupted = ""
        self.runner: asyncio.Task[None] | None = None
        self.reports: Reports | None = None
        """Its progress on the way to the server, once there is any."""
        self.began = self._loop.time()

    @property
    def id(self) -> int:
        """Id of its message."""
        return self.message.id

    @property
    def attempt(self) -> int:
        """Attempt number, from 1."""
        return self.message.failures + 1

    async def aprogress(self, percent: float, message: str | None = None) -> None:
        """Report progress, from 0 to 100; fractions are rounded.

        Ten reports a second are sent at most; the last one always is, before the job ends.
        """
        if self.reports is None:
            self.reports = Reports(self._send_progress)
        await self.reports.tell(whole(percent), message)

    async def _send_progress(self, percent: int, message: str | None) -> None:
        try:
            await self._client.set_progress(self.id, percent, message, lease=self.message.lease)
        except (Conflict, NotFound):
            await self._lost()
            raise

    async def _lost(self) -> None:
        """Interrupt the run: the server has just told that the job is not leased to this worker any more."""
        try:
            state = await self._client.state(self.id)
        except ForebayError:
            state = ""
        self.interrupt(CANCELLED if state == "cancelled" else LOST)
        # A runner that reports for itself gets its cancel here: kept for its next await, it would hit
        # another job.
        await asyncio.sleep(0)

    def progress(self, percent: float, message: str | None = None) -> None:
        """Report progress from a function that runs in a thread."""
        self._block(self.aprogress(percent, message))

    async def alog(self, line: str, *, level: str = "info") -> None:
        """Add a line to the job's log. It is dropped, with a warning, while the server takes none."""
        try:
            await self._client.log(self.id, line, level=level)
        except Busy as error:  # as on a full disk: no reason for the job to fail
            app, now = self.task.app, time.monotonic()
            if now - app.dropped_lines_at >= DROPPED_S:
                app.dropped_lines_at = now
                logger.warning("lines that jobs log are dropped: %s", error)

    def log(self, line: str, *, level: str = "info") -> None:
        """Add a line to the job's log from a function that runs in a thread."""
        self._block(self.alog(line, level=level))

    def _block(self, told: Any) -> None:
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is self._loop:
            told.close()
            raise RuntimeError("a coroutine has to await this: await run.aprogress(…), await run.alog(…)")
        asyncio.run_coroutine_threadsafe(told, self._loop).result()

    def interrupt(self, why: str) -> None:
        """Cancel the run. Only the first reason counts."""
        if not self.interrupted and self.runner is not None:
            self.interrupted = why
            self.runner.cancel()


def current() -> Run:
    """Return the running job, for its id, attempt and progress. Raises outside of a task."""
    try:
        return _current.get()
    except LookupError:
        raise RuntimeError("no task runs here") from None


def forgive() -> None:
    """Uncancel this runner after a cancel that was meant for one job, so that it can go on."""
    runner = asyncio.current_task()
    while runner is not None and runner.cancelling():
        runner.uncancel()
