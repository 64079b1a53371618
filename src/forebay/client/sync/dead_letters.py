"""Generated from ``aio/dead_letters.py`` by tools/make_sync.py: change that, and run ``make sync``."""

from collections.abc import Sequence
from typing import Any

from forebay.client.sync.requests import Asking
from forebay.client.translate import seen
from forebay.client.types import Attempt, Id, Page, Requeued, Settled
from forebay.core.words import DEFAULT
from forebay.wire.operations import dead_letters, notes


class DeadLetters(Asking):
    """Requests about dead letters."""

    def attempts(self, id: Id, *, group: str = DEFAULT) -> list[Attempt]:
        """Return the newest failed attempts of a message, oldest first."""
        found: notes.Attempts = self._ask(notes.GetAttempts(id=id, group=group))
        return [
            Attempt(
                each.at,
                each.deliveries,
                each.error,
                each.error_type or None,
                each.traceback or None,
                each.worker or None,
            )
            for each in found.attempts
        ]

    def dead(
        self, queue: str, *, group: str = DEFAULT, limit: int = 100, skip: int = 0, type: Any = Any
    ) -> Page:
        """Return dead letters of a group, by partition and offset."""
        request = dead_letters.ListDead(queue=queue, group=group, limit=limit, skip=skip)
        found: dead_letters.DeadLetters = self._ask(request)
        return Page([seen(each, type) for each in found.messages], found.total, None)

    def requeue_dead(
        self,
        queue: str,
        ids: Sequence[Id] | None = None,
        *,
        group: str = DEFAULT,
        dry_run: bool = False,
        dependents: bool = True,
    ) -> Requeued:
        """Deliver dead letters again, as if for the first time: these, or all of them.

        What died of a dependency waits again until all its dependencies are completed. So do those that died
        of these, unless ``dependents`` is False.
        """
        given = None if ids is None else list(ids)
        request = dead_letters.RequeueDead(
            queue=queue, ids=given, group=group, dry_run=dry_run, dependents=dependents
        )
        return self._all_dead(request)

    def purge_dead(
        self,
        queue: str,
        ids: Sequence[Id] | None = None,
        *,
        group: str = DEFAULT,
        dry_run: bool = False,
    ) -> Settled:
        """Drop dead letters for good: these, or all of them."""
        given = None if ids is None else list(ids)
        request = dead_letters.PurgeDead(queue=queue, ids=given, group=group, dry_run=dry_run)
        return self._all_dead(request)

    def _all_dead(self, request: dead_letters.OfDead) -> Requeued:
        """Repeat a request that handles a part at a time, until nothing is left."""
        count = dependents = 0
        while True:
            done: dead_letters.Buried = self._ask(request)
            count += done.count
            dependents += done.dependents if isinstance(done, dead_letters.Requeued) else 0
            if request.ids is not None or not done.left or not done.count or request.dry_run:
                return Requeued(count, list(map(int, done.refused)), dependents)
