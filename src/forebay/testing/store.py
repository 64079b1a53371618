"""A store in memory that fails, or takes its time, when a test wants it to."""

import threading
from collections.abc import Sequence

from forebay.core.records.commit import Commit
from forebay.store.base import StoreError
from forebay.store.memory import MemoryStore


class FaultyStore(MemoryStore):
    """Commits in a thread, as a store on disk does, and is still there when its node is gone."""

    blocking = True

    def __init__(self) -> None:
        super().__init__()
        self.fails = 0
        """Commits that fail from here on."""
        self.is_failing = False
        """Whether all of them do."""
        self.delay_s = 0.0
        """How much longer a commit takes."""

    def commit(self, group: Sequence[Commit], *, sync: bool = True) -> None:
        if self.delay_s:
            threading.Event().wait(self.delay_s)
        if self.fails or self.is_failing:
            self.fails = max(self.fails - 1, 0)
            raise StoreError("the test has the store fail")
        super().commit(group, sync=sync)

    def close(self) -> None:
        """The next node finds what this one left."""
