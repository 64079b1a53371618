"""One commit after another: while one is being kept, the next group forms.

A store that blocks commits in a thread of its own; one that does not commits on the spot.
"""

from asyncio import AbstractEventLoop
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from penstock.core.records import Commit
from penstock.store.base import Store

Done = Callable[[BaseException | None], None]
"""Told on the event loop that the group is kept, or why it is not."""

Bodies = list[bytes | None] | Exception


class Committer:
    """Keeps groups of commits, one at a time."""

    def __init__(self, store: Store, loop: AbstractEventLoop) -> None:
        self._store = store
        self._loop = loop
        self._thread = ThreadPoolExecutor(1, "penstock-commit") if store.blocking else None
        self.busy = False
        """Whether a group is being kept right now; the next has to wait."""

    def commit(self, group: Sequence[Commit], done: Done) -> None:
        """Keep ``group``, then call ``done``. Not while ``busy``."""
        assert not self.busy, "one commit at a time"
        if self._thread is None:
            error: BaseException | None = None
            try:
                self._store.commit(group)
            except Exception as failure:
                error = failure
            done(error)
            return
        self.busy = True
        kept = self._thread.submit(self._store.commit, group)
        kept.add_done_callback(lambda future: self._loop.call_soon_threadsafe(self._finish, future, done))

    def _finish(self, kept: "Future[None]", done: Done) -> None:
        self.busy = False
        done(kept.exception())

    def read(self, keys: Sequence[bytes], done: Callable[[Bodies], None]) -> None:
        """Read bodies, then call ``done`` with them, or with why they could not be read."""
        if self._thread is None:
            done(self._read(keys))
            return
        found = self._thread.submit(self._read, keys)
        found.add_done_callback(lambda future: self._loop.call_soon_threadsafe(done, future.result()))

    def _read(self, keys: Sequence[bytes]) -> Bodies:
        try:
            return self._store.bodies(keys)
        except Exception as error:
            return error

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()
