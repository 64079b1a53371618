"""Tells that workers started, stopped or fell silent: in the log, and to whoever listens.

A client can have this happen as often as it likes. So of each worker, the first of what happens within a
second is told at once, and the last when that second is over, so that whoever listens knows how it ended.
"""

import logging
from asyncio import AbstractEventLoop, TimerHandle
from collections import Counter
from collections.abc import Callable

from msgspec import Struct

from forebay.core.words import WORKER_GONE
from forebay.server.worker_room import Worker

logger = logging.getLogger("forebay.workers")

WINDOW_MS = 1_000
"""Of what happens to one worker in this time, the first and the last are told."""
LINES_MAX = 100
"""Lines about workers of one tenant in this time; others are counted."""

Tell = Callable[[str, Worker, int], None]
"""Is told the kind of each event, the worker, and when."""


class Item(Struct, frozen=True):
    """What happened to a worker."""

    kind: str
    worker: Worker
    at: int
    level: int


class News:
    """What there is to tell of workers."""

    def __init__(self, clock: Callable[[], int], loop: AbstractEventLoop | None, tell: Tell) -> None:
        """Without a ``loop``, what is held is told when something else happens later."""
        self._clock, self._loop, self._tell = clock, loop, tell
        self._held: dict[tuple[str, str], Item | None] = {}
        """By tenant and name, the workers that were told of in the current window, and the last that happened
        since."""
        self._ends_at = 0
        self._lines: Counter[str] = Counter()
        """Lines of each tenant in the window."""
        self._left_out: Counter[tuple[str, str, int]] = Counter()
        """Lines that were not written in the window, by tenant, kind and level."""
        self._timer: TimerHandle | None = None

    def happened(self, kind: str, worker: Worker, *, quiet: bool) -> None:
        """Tell what happened to a worker, now or later; at debug only, if it is ``quiet``."""
        now = self._clock()
        if now >= self._ends_at:
            self.end_window()
        level = logging.DEBUG if quiet else logging.WARNING if kind == WORKER_GONE else logging.INFO
        item = Item(kind, worker, now, level)
        key = worker.tenant, worker.name
        if key not in self._held:
            self._held[key] = None
            self._told(item)
            self._plan()
            return
        before, self._held[key] = self._held[key], item
        if before is not None:
            self._left_out[worker.tenant, before.kind, before.level] += 1

    def end_window(self) -> None:
        """Tell what was held, and how much was left out."""
        held = [each for each in self._held.values() if each is not None]
        self._held = {(each.worker.tenant, each.worker.name): None for each in held}
        self._ends_at = self._clock() + WINDOW_MS
        self._lines.clear()
        for (tenant, kind, level), more in self._left_out.items():
            fields = {"more": more, "tenant": tenant}
            logger.log(level, "%s, more of the kind", kind.replace("_", " "), extra={"fields": fields})
        self._left_out.clear()
        for each in held:
            self._told(each)
        self._plan()

    def _told(self, item: Item) -> None:
        worker = item.worker
        self._lines[worker.tenant] += 1
        if self._lines[worker.tenant] <= LINES_MAX or logger.isEnabledFor(logging.DEBUG):
            fields = {"worker": worker.name, "host": worker.host, "tenant": worker.tenant}
            # Names stand in fields only, which are quoted where they have to be: a name can't forge a line.
            logger.log(item.level, item.kind.replace("_", " "), extra={"fields": fields})
        else:
            self._left_out[worker.tenant, item.kind, item.level] += 1
        self._tell(item.kind, worker, item.at)

    def _plan(self) -> None:
        if self._loop is not None and self._timer is None and self._held:
            self._timer = self._loop.call_later(WINDOW_MS / 1000, self._over)

    def _over(self) -> None:
        self._timer = None
        self.end_window()

    def close(self) -> None:
        """Tell what is held: the server stops."""
        if self._timer is not None:
            self._timer.cancel()
        self._loop = None
        self.end_window()
