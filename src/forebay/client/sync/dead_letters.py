"""Generated from ``aio/dead_letters.py`` by tools/make_sync.py: change that, and run ``make sync``."""

from collections.abc import Sequence
from typing import Any, Unpack

from forebay.client.sync.requests import Asking
from forebay.client.translate import filter_of, seen
from forebay.client.types import (
    Attempt,
    DeadFilter,
    DeadGroup,
    DeadGroups,
    Id,
    Moved,
    Page,
    Requeued,
    Settled,
)
from forebay.core.errors import ForebayError, Invalid
from forebay.core.words import DEFAULT
from forebay.wire.operations import dead_letters, messages, notes


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

    def dead_groups(self, queue: str, *, group: str = DEFAULT, limit: int = 100) -> DeadGroups:
        """Count dead letters by cause: by task, and by type and text of their errors."""
        request = dead_letters.GroupDead(queue=queue, group=group, limit=limit)
        found: dead_letters.DeadGroups = self._ask(request)
        groups = [
            DeadGroup(
                each.count,
                each.error,
                each.error_type or None,
                each.task or None,
                each.first_at,
                each.last_at,
                int(each.example),
            )
            for each in found.groups
        ]
        return DeadGroups(groups, found.total, found.rest)

    def requeue_dead(
        self,
        queue: str,
        ids: Sequence[Id] | None = None,
        *,
        group: str = DEFAULT,
        dry_run: bool = False,
        dependents: bool = True,
        **of: Unpack[DeadFilter],
    ) -> Requeued:
        """Deliver dead letters again, as if for the first time: these, those that match, or all of them.

        What died of a dependency waits again until all its dependencies are completed. So do those that died
        of these, unless ``dependents`` is False.
        """
        if of or (dry_run and ids is None):
            more = {"dry_run": dry_run, "dependents": dependents, "group": group}
            done = self._matching("requeue", queue, ids, of, **more)
            return Requeued(done.count, [], done.dependents, done.kept)
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
        **of: Unpack[DeadFilter],
    ) -> Settled:
        """Drop dead letters for good: these, those that match, or all of them."""
        if of or (dry_run and ids is None):
            done = self._matching("purge", queue, ids, of, dry_run=dry_run, group=group)
            return Settled(done.count, [])
        given = None if ids is None else list(ids)
        request = dead_letters.PurgeDead(queue=queue, ids=given, group=group, dry_run=dry_run)
        return self._all_dead(request)

    def move_dead(
        self,
        queue: str,
        to: str,
        *,
        create: bool = False,
        group: str = DEFAULT,
        dry_run: bool = False,
        **of: Unpack[DeadFilter],
    ) -> Moved:
        """Push dead letters to another queue and drop them here: those that match, or all of them.

        They keep payload, partition, priority, limits, headers, tags and task, and get new ids. Those with
        dependencies, or that others depend on, stay. The other queue must exist, unless ``create`` is True.
        """
        more = {"to": to, "create": create, "dry_run": dry_run, "group": group}
        done = self._matching("move", queue, None, of, **more)
        return Moved(done.count, [], done.kept)

    def _matching(
        self, action: str, queue: str, ids: Sequence[Id] | None, of: DeadFilter, **fields: Any
    ) -> messages.Acted:
        """Act on dead letters that match, page by page; in a dry run, count them."""
        if ids is not None:
            raise Invalid("ids", "left out, or given without a filter such as error or task")
        if of and not filter_of(of):
            raise Invalid(next(iter(of)), "a value: with None alone, all dead letters would be meant")
        all_done = messages.Acted(matched=0, count=0, dry_run=fields["dry_run"], cursor=None)
        while True:
            request = messages.Bulk(
                queue=queue, state="dead", action=action, cursor=all_done.cursor, **filter_of(of), **fields
            )
            try:
                done: messages.Acted = self._ask(request)
            except ForebayError as error:
                if all_done.count:
                    error.add_note(f"{all_done.count} were done before that; the others are as they were")
                raise
            all_done.matched += done.matched
            all_done.count += done.matched - done.kept if done.dry_run else done.count
            all_done.dependents += done.dependents
            all_done.kept += done.kept
            all_done.cursor = done.cursor
            if done.cursor is None:
                return all_done

    def _all_dead(self, request: dead_letters.OfDead) -> Requeued:
        """Repeat a request that handles a part at a time, until nothing is left."""
        count = dependents = 0
        while True:
            done: dead_letters.Buried = self._ask(request)
            count += done.count
            dependents += done.dependents if isinstance(done, dead_letters.Requeued) else 0
            if request.ids is not None or not done.left or not done.count or request.dry_run:
                left = 0 if request.ids is not None or request.dry_run else done.left
                return Requeued(count, list(map(int, done.refused)), dependents, left)
