"""One commit after another: while one is being kept, the next group forms.

A store that blocks commits in a thread of its own, and reads what nobody waits for in another; one that does
not block does both on the spot.
"""

from asyncio import AbstractEventLoop
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from msgspec import Struct

from forebay.core.errors import Damaged
from forebay.core.records.commit import Commit
from forebay.core.state import EmittedEvent
from forebay.store.base import Store

T = TypeVar("T")

Bodies = list[bytes | Damaged | None]
Read = Callable[[], Bodies]
Done = Callable[[Bodies | Exception], None]
"""Told on the event loop that the group is kept, with the bodies asked for along; or why it is not."""


class Meter(Struct):
    """What was kept since the node started."""

    groups: int = 0
    answers: int = 0
    seconds: float = 0.0


class Kept(NamedTuple):
    """How a group was kept."""

    began_at: float
    wrote: bool
    synced: bool
    told: list[EmittedEvent]
    """Events that tell of it, if somebody listens."""


class Committer:
    """Keeps groups of commits, one at a time."""

    def __init__(self, store: Store, loop: AbstractEventLoop) -> None:
        self._store = store
        self._loop = loop
        self._thread = ThreadPoolExecutor(1, "forebay-commit") if store.blocking else None
        self._aside = ThreadPoolExecutor(1, "forebay-read") if store.blocking else None
        self.busy = False
        """Whether a group is being kept right now; the next has to wait."""

    def commit(self, group: Sequence[Commit], sync: bool, read: Read, done: Done) -> None:
        """Read bodies, keep ``group``, then call ``done``. Not while ``busy``.

        The bodies are read first, because the group may delete them.
        """
        assert not self.busy, "one commit at a time"
        if self._thread is None:
            done(outcome_of(self._commit, group, sync, read))
            return
        self.busy = True
        kept = self._thread.submit(outcome_of, self._commit, group, sync, read)
        kept.add_done_callback(lambda future: self._loop.call_soon_threadsafe(self._finish, future, done))

    def _finish(self, kept: "Future[Bodies | Exception]", done: Done) -> None:
        self.busy = False
        done(kept.result())

    def _commit(self, group: Sequence[Commit], sync: bool, read: Read) -> Bodies:
        bodies = read()
        if group:
            self._store.commit(group, sync=sync)
        elif sync:
            self._store.sync()
        return bodies

    def alone(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        """Do work in the place of a commit, then call ``done`` with what came of it. Not while ``busy``."""
        assert not self.busy, "one commit at a time"
        if self._thread is None:
            done(outcome_of(work))
            return
        self.busy = True

        def finish(future: "Future[T | Exception]") -> None:
            self.busy = False
            done(future.result())

        ended = self._thread.submit(outcome_of, work)
        ended.add_done_callback(lambda future: self._loop.call_soon_threadsafe(finish, future))

    def aside(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        """Do work that nobody waits for beside the commits, then call ``done`` with what came of it."""
        if self._aside is None:
            done(outcome_of(work))
            return
        future = self._aside.submit(outcome_of, work)
        future.add_done_callback(lambda ended: self._loop.call_soon_threadsafe(done, ended.result()))

    def close(self) -> None:
        for thread in (self._thread, self._aside):
            if thread is not None:
                thread.shutdown()


def outcome_of(work: Callable[..., T], *arguments: object) -> T | Exception:
    """What comes of some work, or what it raises."""
    try:
        return work(*arguments)
    except Exception as error:
        return error
