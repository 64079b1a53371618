"""A store in memory that fails, or is slow, when a test wants it to."""

import threading
from collections.abc import Sequence

from forebay.core.records.commit import Commit
from forebay.store.base import StoreError
from forebay.store.memory import MemoryStore


class FaultyStore(MemoryStore):
    """Commits in a thread, as a store on disk does, and outlives its node."""

    blocking = True

    def __init__(self) -> None:
        super().__init__()
        self.fails = 0
        """Commits that will fail from here on."""
        self.is_failing = False
        """Whether all commits fail."""
        self.delay_s = 0.0
        """Extra seconds per commit."""

    def commit(self, group: Sequence[Commit], *, sync: bool = True) -> None:
        if self.delay_s:
            threading.Event().wait(self.delay_s)
        if self.fails or self.is_failing:
            self.fails = max(self.fails - 1, 0)
            raise StoreError("the test has the store fail")
        super().commit(group, sync=sync)

    def close(self) -> None:
        """Keep everything: the next node loads it."""
