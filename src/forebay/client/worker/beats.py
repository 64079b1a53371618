"""A worker tells the server of itself: when it starts, every 10 s, when it drains, and when it stops.

Nothing depends on it: if the server does not listen, the worker works all the same.
"""

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from heapq import nsmallest

from msgspec import Struct

from forebay.client.aio.client import Client
from forebay.client.tasks.app import App
from forebay.client.worker.leases import LeaseKeeper
from forebay.core.bounds import WORKER_CHARS_MAX, check_name
from forebay.core.errors import ForebayError, Invalid
from forebay.wire.operations.workers import Job, TellWorker

logger = logging.getLogger("forebay.worker")

BEAT_S = 10.0
"""Interval of beats. The server takes a worker for gone after three."""
GOODBYE_S = 0.4
"""Time for the last one: the worker ends without an answer."""
RUNNING_MAX = 100
"""Jobs that a beat lists: those that run longest."""
NAMES_MAX = 1_000
"""Queues, and tasks, that a beat lists."""
CHARS_MAX = 200
"""Characters of a name that a beat tells."""
HOST_CHARS = WORKER_CHARS_MAX - 28
"""Characters of the host in the name of a worker: there is room for process and chance."""


def name_of(given: str | None) -> str:
    """Return the name of a worker: the given one, or one that no other has. Raise if it can't be one.

    The server refuses each pop of a worker with too long a name, and logs and lists are spoilt by others.
    """
    if given is None:
        return default_name()
    if not (isinstance(given, str) and 1 <= len(given) <= WORKER_CHARS_MAX and given.isprintable()):
        raise Invalid("name", f"1 to {WORKER_CHARS_MAX} printable characters")
    check_name("name", given)
    return given


def default_name() -> str:
    """Return a name that no other worker has: its host, its process, and chance."""
    return f"{socket.gethostname()[:HOST_CHARS]}-{os.getpid()}-{secrets.token_hex(2)}"


class About(Struct, frozen=True):
    """What does not change of a worker."""

    name: str
    version: str
    queues: list[str]
    tasks: list[str]
    group: str
    concurrency: int


class Beats:
    """Sends what there is to tell of a worker."""

    def __init__(
        self,
        client: Client,
        about: About,
        holding: LeaseKeeper,
        done: Callable[[], int],
        stopping: asyncio.Event,
        app: App,
    ) -> None:
        self._app = app
        self._client, self._about, self._holding, self._done = client, about, holding, done
        self._stopping = stopping
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()

    async def run(self) -> None:
        """Send beats until this is cancelled; then say goodbye."""
        try:
            while await self._told("draining" if self._stopping.is_set() else "working"):
                if self._app.crons_left:
                    with suppress(ForebayError):  # the next beat looks again
                        await self._app._delete_crons()
                await self._pause()
            await asyncio.Event().wait()  # the server does not list this worker: no more beats
        except asyncio.CancelledError:
            with suppress(TimeoutError):
                async with asyncio.timeout(GOODBYE_S):
                    await self._told("stopped")
            raise

    async def _pause(self) -> None:
        """Wait for the next beat, which comes at once when the worker begins to drain."""
        if self._stopping.is_set():
            await asyncio.sleep(BEAT_S)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(BEAT_S):
                await self._stopping.wait()

    async def _told(self, state: str) -> bool:
        """Tell the server; return whether to go on: one that is out of reach is told again later."""
        try:
            await self._client._ask(self._beat(state), again=False)
        except Invalid as error:
            logger.warning("the server does not list this worker: %s", error)
            return False
        except ForebayError as error:
            logger.debug("the server can't be told of this worker: %s", error)
        return True

    def _beat(self, state: str) -> TellWorker:
        now, runs, about = self._loop.time(), self._holding.runs(), self._about
        longest = nsmallest(RUNNING_MAX, runs, key=lambda run: run.began)
        return TellWorker(
            name=about.name,
            host=socket.gethostname()[:CHARS_MAX],
            pid=os.getpid(),
            version=about.version,
            group=about.group,
            queues=about.queues[:NAMES_MAX],
            tasks=[each[:CHARS_MAX] for each in about.tasks[:NAMES_MAX]],
            concurrency=about.concurrency,
            state=state,
            up_ms=round((now - self._began) * 1000),
            running=[
                Job(run.id, run.task.name[:CHARS_MAX], round((now - run.began) * 1000)) for run in longest
            ],
            running_count=len(runs),
            done=self._done(),
            failed=self._holding.failures,
        )
