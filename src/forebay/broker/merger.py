"""Merging of small segments in the background, one merge at a time.

    idle ──plan──> joining (in a thread) ──apply──> applied ──seal──> sealed ──kept──> idle

The next merge is planned only when the last one is committed: until then the store does not have the body
that it made, so another merge could not read it.
"""

import logging
from collections.abc import Callable

from forebay.broker.body_cache import read_bodies
from forebay.broker.committer import Committer
from forebay.core.engine import Engine
from forebay.core.retention import carve, merge as merges
from forebay.core.retention.carve import Carved, Carving
from forebay.core.retention.merge import Joined, Merge
from forebay.store.base import Store

logger = logging.getLogger("forebay.merger")


class Merger:
    """Merges small segments of one engine, and carves islands."""

    def __init__(
        self,
        engine: Engine,
        store: Store,
        committer: Committer,
        applied: Callable[[], None],
        may_grow: Callable[[], bool],
    ) -> None:
        """``applied`` is called when there is something to commit.

        Nothing is merged unless ``may_grow``: it writes a copy before the store drops what was merged.
        """
        self._engine = engine
        self._store = store
        self._committer = committer
        self._applied = applied
        self._may_grow = may_grow
        self._state = "idle"
        self.stopped = False
        """The engine was replaced: results of a running merge are dropped."""

    def go_on(self) -> None:
        """Start the next merge, unless one is running or none is due."""
        if self._state != "idle" or self.stopped or not self._may_grow():
            return
        merge = self._engine.plan_merge() or self._engine.plan_carving()
        if merge is None:
            if self._engine.may_merge:
                self._applied()  # planning is bounded per turn of the loop: continue after the next flush
        else:
            self._state = "joining"
            self._committer.aside(lambda: self._join(merge), lambda joined: self._apply(merge, joined))

    def _join(self, merge: Merge | Carving) -> Joined | list[Carved] | None:
        """Read and join the bodies. Runs in a thread, which is safe because sealed segments never change."""
        absent = merge.absent()
        bodies = {each.body_name: each.body for each in merge.parts}
        read = read_bodies(self._store, [(merge.queue, each) for each in absent])
        for segment, body in zip(absent, read, strict=True):
            if not isinstance(body, bytes):
                return None
            bodies[segment.body_name] = body
        present = [body for body in bodies.values() if body is not None]
        return carve.join(merge, present) if isinstance(merge, Carving) else merges.join(merge, present)

    def _apply(self, merge: Merge | Carving, joined: Joined | list[Carved] | Exception | None) -> None:
        if isinstance(joined, Exception):
            logger.error("segments could not be merged: %s", joined)
        if self.stopped:
            return
        self._state = "idle"
        if isinstance(merge, Carving):
            if isinstance(joined, list) and self._engine.apply_carving(merge, joined):
                self._state = "applied"
        elif not isinstance(joined, Joined):
            merges.give_up(merge)
        elif self._engine.apply_merge(merge, joined):
            self._state = "applied"
        self._applied()

    def sealed(self) -> None:
        """Note that the applied merge is part of the group being committed."""
        if self._state == "applied":
            self._state = "sealed"

    def kept(self) -> None:
        if self._state == "sealed":
            self._state = "idle"
        self.go_on()
