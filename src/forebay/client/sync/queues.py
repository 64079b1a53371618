"""Generated from ``aio/queues.py`` by tools/make_sync.py: change that, and run ``make sync``."""

from typing import Any, Unpack

from msgspec import Raw

from forebay.client.payloads import encode
from forebay.client.sync.requests import Asking
from forebay.client.translate import (
    Done,
    OkCount,
    OkCrons,
    OkGroups,
    OkQueue,
    OkRows,
    counts_of,
    groups_of,
    options_of,
    their_state,
)
from forebay.client.types import DEFAULT, Cleared, Cron, Deleted, Group, Options, Queue, QueueSummary, Stats
from forebay.core.errors import NotFound


class Queues(Asking):
    """Everything about queues as a whole."""

    def queues(self) -> list[QueueSummary]:
        """Return all queues, with the counts of their group ``default``."""
        found: OkRows = self._ask(OkRows, "LISTQUEUES", {})
        return [QueueSummary(each["name"], each["paused"], counts_of(each)) for each in found.queues]

    def queue(self, queue: str) -> Queue:
        """Return a queue with its options, partitions and groups."""
        found: OkQueue = self._ask(OkQueue, "QUEUE", {"queue": queue})
        return found.shown()

    def configure(self, queue: str, *, partition: str | None = None, **options: Any) -> Queue:
        """Create a queue if it is missing, and set the given options. See QUEUE in docs/PROTOCOL.md."""
        fields = {"queue": queue, "options": options, "partition": partition}
        found: OkQueue = self._ask(OkQueue, "QUEUE", fields)
        return found.shown()

    def pause(self, queue: str, *, until: int | None = None) -> None:
        """Stop delivery until the queue is resumed, or until a time."""
        self._ask(Done, "PAUSE", {"queue": queue, "until": until})

    def resume(self, queue: str) -> None:
        """Resume delivery."""
        self._ask(Done, "RESUME", {"queue": queue})

    def drain(self, queue: str, *, group: str = DEFAULT, dry_run: bool = False) -> Cleared:
        """Cancel all messages of a group that wait, are delayed or parked. Leased ones go on."""
        return self._clear("DRAIN", queue, group, dry_run, None)

    def purge(
        self,
        queue: str,
        states: list[str] | None = None,
        *,
        group: str = DEFAULT,
        dry_run: bool = False,
    ) -> Cleared:
        """Clear out messages of a group in some states: by default all but leased ones."""
        theirs = None if states is None else [their_state(each) for each in states]
        return self._clear("PURGE", queue, group, dry_run, theirs)

    def _clear(
        self, cmd: str, queue: str, group: str, dry_run: bool, states: list[str | None] | None
    ) -> Cleared:
        """Repeat a command that handles a part at a time, until nothing is left."""
        fields = {"queue": queue, "group": group, "dry_run": dry_run, "states": states}
        done: OkCount = self._ask(OkCount, cmd, fields)
        count = done.count
        while done.more and not dry_run:
            done = self._ask(OkCount, cmd, fields)
            count += done.count
        return Cleared(count, dry_run)

    def delete_queue(self, queue: str, *, force: bool = False) -> Deleted:
        """Delete a queue with its messages once none is leased any more; with ``force``, now."""
        if force:
            self._ask(Done, "OBLITERATE", {"queue": queue})
            return Deleted(queue, True, 0, 0)
        found = self._ask(dict[str, Any], "DELETE", {"queue": queue})
        return Deleted(found["queue"], found["deleted"], found["active"], found["until"])

    def seek(
        self,
        queue: str,
        to: str | int | None = None,
        *,
        group: str = DEFAULT,
        partition: str | None = None,
        offset: int | None = None,
    ) -> dict[str, int]:
        """Move a group to another place: all, new, a time, or an offset. Returns its cursors by partition."""
        fields = {"queue": queue, "group": group, "to": to, "partition": partition, "offset": offset}
        found: OkRows = self._ask(OkRows, "SEEK", fields)
        return {each["partition"]: each["cursor"] for each in found.partitions}

    def offsets(self, queue: str, *, at: int | None = None) -> dict[str, dict[str, Any]]:
        """Return where the log of each partition begins and ends; with ``at``, its offset at a time."""
        found: OkRows = self._ask(OkRows, "OFFSETS", {"queue": queue, "at": at})
        return {each["partition"]: each for each in found.partitions}

    # Groups.

    def groups(self, queue: str) -> list[Group]:
        """Return the groups of a queue, with their messages by state."""
        return (self.queue(queue)).groups

    def create_group(self, queue: str, group: str, *, start: str | int = "all") -> list[Group]:
        """Create a group that begins at all, new or a time; an existing one stays as it is."""
        fields = {"queue": queue, "group": group, "from": start}
        found: OkGroups = self._ask(OkGroups, "GROUP", fields)
        return groups_of(found.groups)

    def delete_group(self, queue: str, group: str) -> list[Group]:
        """Delete a group, with its leases, schedule and dead letters."""
        found: OkGroups = self._ask(OkGroups, "GROUPDELETE", {"queue": queue, "group": group})
        return groups_of(found.groups)

    # Crons.

    def set_cron(
        self,
        name: str,
        queue: str,
        payload: Any,
        *,
        schedule: str | None = None,
        every_ms: int | None = None,
        timezone: str | None = None,
        limit: int | None = None,
        missed: str | None = None,
        **options: Unpack[Options],
    ) -> Cron:
        """Push a message by a schedule, or every so many ms. Replaces a cron of the same name."""
        fields = {
            "name": name,
            "queue": queue,
            "data": Raw(encode(payload)),
            "schedule": schedule,
            "repeat_every": every_ms,
            "timezone": timezone,
            "limit": limit,
            "missed": missed,
            **options_of(options),
        }
        self._ask(Done, "CRON", fields)
        return self.cron(name)

    def cron(self, name: str) -> Cron:
        for each in self.crons():
            if each.name == name:
                return each
        raise NotFound(f"there is no cron {name}")

    def crons(self) -> list[Cron]:
        """Return all crons, by name."""
        found: list[Cron] = []
        more = True
        while more:
            after = found[-1].name if found else None
            page: OkCrons = self._ask(OkCrons, "CRONLIST", {"after": after})
            found += [each.shown() for each in page.crons]
            more = page.more
        return found

    def delete_cron(self, name: str) -> None:
        self._ask(Done, "CRONDELETE", {"name": name})

    # Named limits.

    def set_limit(
        self, name: str, *, rate_limit: Any = None, byte_limit: Any = None, concurrency: int | None = None
    ) -> None:
        """Set a limit for all queues that have its name among their ``limits``."""
        fields = {
            "name": name,
            "rate_limit": rate_limit,
            "byte_limit": byte_limit,
            "concurrency": concurrency,
        }
        self._ask(Done, "LIMIT", fields)

    def limits(self) -> list[dict[str, Any]]:
        found: OkRows = self._ask(OkRows, "LIMITLIST", {})
        return found.limits

    def delete_limit(self, name: str) -> None:
        self._ask(Done, "LIMITDELETE", {"name": name})

    # The server.

    def stats(self) -> Stats:
        """Return counts over all queues."""
        found = self._ask(dict[str, Any], "STATS", {})
        return Stats(found["queues"], counts_of(found))

    def hold(self, held: bool = True) -> str:
        """Hold the server, so that it only answers queries and stores no changes; or resume it.

        Returns the address of its store.
        """
        found = self._ask(dict[str, Any], "HOLD", {"held": held})
        store: str = found["store"]
        return store

    def backup(self, directory: str) -> str:
        """Copy the server's store into a new directory on its machine."""
        found = self._ask(dict[str, Any], "BACKUP", {"directory": directory}, again=False)
        made: str = found["directory"]
        return made
