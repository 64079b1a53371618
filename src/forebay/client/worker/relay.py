"""What a task in a process reports, on its way to the server."""

import asyncio
import threading
from concurrent.futures import Future

from forebay.client.worker.current import Run
from forebay.client.worker.pipe import Told


class Relay:
    """Sends on the reports of one run, for the thread that waits for its process."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._sending: Future[None] | None = None
        self._is_closed = False

    def send(self, told: Told) -> None:
        """Send a report, and wait until it is taken; raise if it is not. Called in the thread."""
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the task is interrupted")
            sending = self._sending = asyncio.run_coroutine_threadsafe(self._send(told), self._loop)
        sending.result()

    async def _send(self, told: Told) -> None:
        if told.kind == "progress":
            await self._run.aprogress(*told.given)
        else:
            line, level = told.given
            await self._run.alog(line, level=level)

    def close(self) -> None:
        """Let the thread go: a server that does not answer would hold it long after the process is killed."""
        with self._lock:
            self._is_closed = True
            if self._sending is not None:
                self._sending.cancel()
