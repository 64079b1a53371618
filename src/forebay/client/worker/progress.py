"""Progress of a job on its way to the server: the first report at once, later ones a few times a second."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from forebay.core.errors import ForebayError

logger = logging.getLogger("forebay.worker")

EVERY_S = 0.1
"""Least time between two reports of a job. Each is a commit and an event for everybody who looks on."""
TEXT_MAX = 500
"""Longest text that waits: a longer one goes at once, so that the task gets the error if it is refused."""

Send = Callable[[int, str | None], Awaitable[None]]


def whole(percent: float) -> int:
    """Return a percentage as it is reported: 100 * i / n is one, too."""
    return round(percent) if isinstance(percent, float) else percent


class Reports:
    """Sends the progress of one job, at most once in ``EVERY_S``. The last report always is sent."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._free_at = 0.0
        self._last: tuple[int, str | None] | None = None
        """The newest report, while it waits."""
        self._sending = asyncio.Lock()
        """Held during a request: a report must not overtake the one before it."""
        self._waiting: asyncio.Task[None] | None = None

    async def tell(self, percent: int, message: str | None) -> None:
        """Report now, or have it wait for its turn. What may be refused goes now, and raises here."""
        waits = self._waiting is not None or self._sending.locked() or self._loop.time() < self._free_at
        if waits and _is_plain(percent, message):
            self._last = percent, message
            if self._waiting is None:
                self._waiting = asyncio.create_task(self._wait())
            return
        async with self._sending:
            self._last = None
            self._free_at = self._loop.time() + EVERY_S
            await self._send(percent, message)

    async def _wait(self) -> None:
        try:
            while self._last is not None:
                await asyncio.sleep(max(self._free_at - self._loop.time(), 0))
                await self._send_last()
        finally:
            self._waiting = None

    async def _send_last(self) -> None:
        async with self._sending:
            last, self._last = self._last, None
            if last is None:
                return
            self._free_at = self._loop.time() + EVERY_S
            try:
                await self._send(*last)
            except ForebayError as error:
                logger.debug("progress can't be told: %s", error)

    async def finish(self) -> None:
        """Send what waits: the job is about to end."""
        await self._send_last()
        if self._waiting is not None:
            self._waiting.cancel()


def _is_plain(percent: object, message: object) -> bool:
    is_right = type(percent) is int and 0 <= percent <= 100
    return is_right and (message is None or (isinstance(message, str) and len(message) <= TEXT_MAX))
