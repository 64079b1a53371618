"""Group commit: while one group is being committed, the next one forms.

A blocking store commits in a thread of its own, and reads in the background in a second one; a store that
does not block does both inline.
"""

from asyncio import AbstractEventLoop
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from msgspec import Struct

from forebay.core.api.commands import Command
from forebay.core.errors import Damaged
from forebay.core.queries.payloads import Absent
from forebay.core.records.commit import Commit
from forebay.core.state import EmittedEvent
from forebay.store.base import Store

T = TypeVar("T")

Bodies = list[bytes | Damaged | None]
Read = Callable[[], Bodies]
Done = Callable[[Bodies | Exception], None]
"""Called on the event loop with the bodies that were read, or with the exception when the commit failed."""


class Meter(Struct):
    """Counters of group commits since the node started."""

    groups: int = 0
    answers: int = 0
    seconds: float = 0.0

    def count(self, answers: int, seconds: float) -> None:
        """Count one group."""
        self.groups += 1
        self.answers += answers
        self.seconds += seconds


class Kept(NamedTuple):
    """Facts about a group that the node needs when its commit is done."""

    began_at: float
    wrote: bool
    synced: bool
    told: list[EmittedEvent]
    """Events to publish once the group is committed; empty without a listener."""
    asked: list[tuple[int, Command]]
    """Places in the group, and the commands that are answered there."""
    absent: list[Absent]
    """Bodies that were read before the commit."""


class Committer:
    """Commits groups, one at a time."""

    def __init__(self, store: Store, loop: AbstractEventLoop) -> None:
        self._store = store
        self._loop = loop
        # One thread each: commits stay in order, and a slow background read never delays a commit.
        self._thread = ThreadPoolExecutor(1, "forebay-commit") if store.blocking else None
        self._aside = ThreadPoolExecutor(1, "forebay-read") if store.blocking else None
        self.busy = False
        """Whether a commit is running; the next group has to wait."""

    def commit(self, group: Sequence[Commit], sync: bool, read: Read, done: Done) -> None:
        """Read bodies, commit ``group``, then call ``done``. Not while ``busy``.

        The bodies are read first, because the group may delete them.
        """
        assert not self.busy, "one commit at a time"
        if self._thread is None:
            done(outcome_of(self._commit, group, sync, read))
            return
        self.busy = True
        kept = self._thread.submit(outcome_of, self._commit, group, sync, read)
        # The callback runs in the commit thread: back to the loop, the only one that touches the engine.
        kept.add_done_callback(lambda future: self._loop.call_soon_threadsafe(self._finish, future, done))

    def _finish(self, kept: "Future[Bodies | Exception]", done: Done) -> None:
        self.busy = False  # first: ``done`` may start the next commit
        done(kept.result())

    def _commit(self, group: Sequence[Commit], sync: bool, read: Read) -> Bodies:
        bodies = read()
        if group:
            self._store.commit(group, sync=sync)
        elif sync:
            self._store.sync()
        return bodies

    def alone(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        """Run ``work`` in the commit thread, then call ``done`` with its result. Not while ``busy``.

        Used for a reload: no commit may run while the store is claimed and scanned.
        """
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
        """Run background ``work`` in the read thread, then call ``done`` with its result."""
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
    """Return the result of a call, or the exception it raised."""
    try:
        return work(*arguments)
    except Exception as error:
        return error
