"""Room on the disk: below a mark, commands that make the store larger are refused, all others go on.

The disk is looked at 20 times a second at most, in the background, and only while there are commits, or
somebody asks. In between, what is written is subtracted from what was free.
"""

import asyncio
import logging
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable, Sequence
from functools import partial

from forebay.broker.committer import Committer
from forebay.core.api.commands import Command, GroupPut, Pop
from forebay.core.api.configure import Configure
from forebay.core.api.growth import grows
from forebay.core.engine import Engine
from forebay.core.errors import Busy
from forebay.core.records.commit import Commit
from forebay.store.base import Room, Store

logger = logging.getLogger("forebay.node")

LOOK_S = 0.05
"""Least time between two looks: a look takes microseconds, and a fast disk takes 50 MB in this time."""
SEEN_S = 0.2
"""How long somebody waits for a look."""
WRITTEN_TIMES = 2
"""How often a byte is written before the first copy goes: to the log, then to a file."""
HIT_S = 5.0
"""How long nothing grows after a commit failed for lack of room, whatever is free by then.

The free bytes say nothing of a quota, or of a limit on the size of files.
"""
AGAIN_S = 1.0
"""Time between two looks while nothing may grow."""
AGAIN_TIMES = 1.25
"""How many times the mark has to be free before everything is taken again, so it does not alternate."""
MB = 1_000_000


class Disk:
    """Knows whether the store may grow."""

    def __init__(self, store: Store, committer: Committer, loop: AbstractEventLoop, mark: int) -> None:
        """``mark``: bytes that stay free; 0 watches nothing."""
        self._store = store
        self._committer = committer
        self._loop = loop
        self.on_turn: Callable[[], object] = lambda: None
        """Called when ``is_full`` changed."""
        self._again: TimerHandle | None = None
        """The next look while nothing may grow: crons wait for room, and ask for no look."""
        self.mark = mark
        self.free_bytes: int | None = None
        """Bytes that were free at the last look; None if the store can't tell, or nothing is watched."""
        self.is_full = False
        """Whether commands that grow are refused."""
        self._left = self._since = 0
        """Bytes free by now, as far as known; bytes written since the last look began."""
        self._looking = False
        self._waiting: list[asyncio.Future[None]] = []
        """Those that wait for the look that is going on."""
        self._looked_at = loop.time()
        self._full_until: float | None = None
        """Until when a commit that failed for lack of room has everything refused that grows; None if not."""
        if mark and (room := store.room(loop.time())) is not None:
            self._see(room)

    @property
    def is_low(self) -> bool:
        """Whether less than twice the mark is free, or nothing may grow."""
        return self.is_full or (self.free_bytes is not None and self._left < 2 * self.mark)

    def may_grow(self) -> bool:
        """Whether the store may grow."""
        return not self.is_full

    def warning(self) -> str | None:
        """Return what is wrong, or soon will be, and what to do about it."""
        if not self.is_low:
            return None
        if self.free_bytes is None:
            return "the server's store is full and takes nothing more: free space, or purge or delete queues"
        free, mark, again = max(self._left, 0) / MB, self.mark / MB, AGAIN_TIMES * self.mark / MB
        if self.is_full and self._left >= AGAIN_TIMES * self.mark:
            why = (
                "the server's disk had no room for a commit a moment ago, so nothing more is taken; "
                f"{free:.1f} MB are free now, so if this goes on, look for a quota or a limit on files"
            )
        else:
            if not self.is_full:
                rule = f"below {mark:.1f} MB nothing more will be taken"
            elif self._left < self.mark:
                rule = f"below {mark:.1f} MB nothing more is taken"
            else:
                rule = f"nothing more is taken below {again:.1f} MB"
            why = f"the server's disk has {free:.1f} MB free, and {rule}"
        return f"{why}: free space, or purge or delete queues"

    def refusal(self, engine: Engine, command: Command, pop_creates: bool) -> Busy | None:
        """Return the reply to a command that grows while the store may not; None if it may be applied."""
        if not grows(command) and not _makes(engine, command, pop_creates):
            return None
        self.look()
        return Busy(self.warning() or "") if self.is_full else None

    async def looked(self) -> None:
        """Wait for a look that is not older than ``LOOK_S``; not for long, as a look may make room, too."""
        self.look()
        if self._looking:
            seen = self._loop.create_future()
            self._waiting.append(seen)
            await asyncio.wait([seen], timeout=SEEN_S)

    def wrote(self, commits: Sequence[Commit]) -> None:
        """Count commits that are about to be written."""
        if self.free_bytes is None:
            return
        size = sum(len(value) for commit in commits for _, value in (*commit.puts, *commit.bodies))
        size *= WRITTEN_TIMES
        self._since += size
        self._left -= size
        self._judge()
        self.look()

    def hit_end(self) -> None:
        """Note that the store could not keep a commit for lack of room."""
        self._full_until = self._loop.time() + HIT_S
        self._set_full(True)

    def look(self) -> None:
        """Look at the disk again, unless that was done a moment ago."""
        now = self._loop.time()
        if self.free_bytes is None:
            self._judge()
            return
        if self._looking or now < self._looked_at + LOOK_S:
            return
        self._looking, self._looked_at, self._since = True, now, 0
        self._committer.aside(partial(self._store.room, now), self._looked)

    def _looked(self, outcome: Room | Exception | None) -> None:
        self._looking = False
        if isinstance(outcome, Room):
            self._see(outcome)
        elif outcome is not None:
            logger.error("the disk can't be looked at: %s", outcome)
        waiting, self._waiting = self._waiting, []
        for seen in waiting:
            if not seen.done():
                seen.set_result(None)

    def _see(self, room: Room) -> None:
        self.free_bytes = room.free_bytes
        self._left = room.free_bytes - self._since
        self._judge()

    def _judge(self) -> None:
        """Set whether commands that grow are refused, by what is known now."""
        if self._full_until is not None and self._loop.time() >= self._full_until:
            self._full_until = None
        wanted = AGAIN_TIMES * self.mark if self.is_full else self.mark
        is_low = self.free_bytes is not None and self._left < wanted
        self._set_full(self._full_until is not None or is_low)

    def _set_full(self, is_full: bool) -> None:
        if is_full != self.is_full:
            self.is_full = is_full
            if is_full:
                logger.error("%s", self.warning())
                if self._again is None:  # one is enough, however often it changes
                    self._again = self._loop.call_later(AGAIN_S, self._look_again)
            else:
                logger.warning("there is room on the disk again: everything is taken")
            self.on_turn()

    def _look_again(self) -> None:
        self._again = None
        self.look()
        if self.is_full and self._again is None:
            self._again = self._loop.call_later(AGAIN_S, self._look_again)

    def close(self) -> None:
        """Look no more."""
        if self._again is not None:
            self._again.cancel()


def _makes(engine: Engine, command: Command, pop_creates: bool) -> bool:
    """Whether a command would create a queue or a group, by asking the engine: with those there it drains."""
    match command:
        case Pop(create=create):
            may = pop_creates if create is None else create
            return may and engine.queue(command.tenant, command.queue) is None
        case GroupPut():
            return not engine.has_group(command.tenant, command.queue, command.group)
        case Configure():
            return engine.queue(command.tenant, command.queue) is None
    return False
