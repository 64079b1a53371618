"""Queues, groups, crons, limits and the server itself."""

from typing import Any, Unpack

import msgspec
from msgspec import Raw

from forebay.client.aio.requests import Asking
from forebay.client.translate import counts_of, cron_of, groups_of, message_of, worker_of
from forebay.client.types import (
    DEFAULT,
    Cleared,
    Cron,
    Deleted,
    Group,
    Offsets,
    Options,
    Partition,
    Queue,
    QueueSummary,
    Stats,
    WorkerInfo,
)
from forebay.core.errors import Invalid
from forebay.wire.operations import (
    crons,
    groups,
    limits,
    messages,
    push,
    queues as wire_queues,
    server,
    workers,
)


class Queues(Asking):
    """Everything about queues as a whole."""

    async def queues(self) -> list[QueueSummary]:
        """Return all queues, with their messages by state and their groups."""
        found: wire_queues.Queues = await self._ask(wire_queues.ListQueues())
        return [
            QueueSummary(
                each.queue, each.paused, counts_of(each.counts), each.oldest_at, groups_of(each.groups)
            )
            for each in found.queues
        ]

    async def queue(self, queue: str) -> Queue:
        """Return a queue with its options, partitions and groups."""
        return _queue(await self._ask(wire_queues.Configure(queue=queue)))

    async def configure(self, queue: str, *, partition: str | None = None, **options: Any) -> Queue:
        """Create a queue if it is missing, and set the given options. See QUEUE in docs/PROTOCOL.md."""
        given: Any = options  # sent as they are: the server says what is wrong with one
        return _queue(await self._ask(wire_queues.Configure(queue=queue, options=given, partition=partition)))

    async def pause(self, queue: str, *, until: int | None = None) -> None:
        """Stop delivery until the queue is resumed, or until a time."""
        await self._ask(wire_queues.Pause(queue=queue, until=until))

    async def resume(self, queue: str) -> None:
        """Resume delivery."""
        await self._ask(wire_queues.Resume(queue=queue))

    async def drain(self, queue: str, *, group: str = DEFAULT, dry_run: bool = False) -> Cleared:
        """Cancel all messages of a group that wait, are delayed or parked. Leased ones go on."""
        return await self._clear(wire_queues.Drain(queue=queue, group=group, dry_run=dry_run))

    async def purge(
        self,
        queue: str,
        states: list[str] | None = None,
        *,
        group: str = DEFAULT,
        grace_ms: int = 0,
        limit: int | None = None,
        dry_run: bool = False,
    ) -> Cleared:
        """Clear out messages of a group in some states: by default all but leased ones.

        Only those that are so for ``grace_ms`` or longer, and at most ``limit``, the oldest first.
        """
        asked = wire_queues.Purge(queue=queue, group=group, dry_run=dry_run, states=states)
        asked.grace_ms, asked.limit = grace_ms, limit
        return await self._clear(asked)

    async def _clear(self, request: wire_queues.Clearing) -> Cleared:
        """Repeat a request that handles a part at a time, until nothing is left."""
        done: wire_queues.Cleared = await self._ask(request)
        count, freed = done.count, done.freed
        while done.more and not request.dry_run:
            if isinstance(request, wire_queues.Purge) and request.limit is not None:
                request.limit -= done.count
            done = await self._ask(request)
            count, freed = count + done.count, freed + done.freed
        return Cleared(count, request.dry_run, freed)

    async def delete_queue(self, queue: str, *, force: bool = False) -> Deleted:
        """Delete a queue with its messages once none is leased any more; with ``force``, now."""
        found: wire_queues.Deleted = await self._ask(wire_queues.Delete(queue=queue, force=force))
        return Deleted(found.queue, found.deleted, found.active, found.until)

    async def seek(
        self,
        queue: str,
        to: str | int | None = None,
        *,
        group: str = DEFAULT,
        partition: str | None = None,
        offset: int | None = None,
    ) -> dict[str, int]:
        """Move a group to another place: all, new, a time, or an offset. Returns its cursors by partition."""
        where: Any = {"queue": queue, "group": group, "partition": partition}
        found: groups.Sought = await self._ask(groups.Seek(**where, to=to, offset=offset))
        return {each.partition: each.cursor for each in found.partitions}

    async def offsets(self, queue: str, *, at: int | None = None) -> dict[str, Offsets]:
        """Return where the log of each partition begins and ends; with ``at``, its offset at a time."""
        found: messages.OffsetsFound = await self._ask(messages.Offsets(queue=queue, at=at))
        return {
            each.partition: Offsets(each.partition, each.first, each.end, each.synced, each.bytes, each.at)
            for each in found.partitions
        }

    # Groups.

    async def groups(self, queue: str) -> list[Group]:
        """Return the groups of a queue, with their messages by state."""
        return (await self.queue(queue)).groups

    async def create_group(self, queue: str, group: str, *, start: str | int = "all") -> list[Group]:
        """Create a group that begins at all, new or a time; an existing one stays as it is."""
        found: groups.Groups = await self._ask(groups.PutGroup(queue=queue, group=group, start=start))
        return groups_of(found.groups)

    async def delete_group(self, queue: str, group: str) -> list[Group]:
        """Delete a group, with its leases, schedule and dead letters."""
        found: groups.Groups = await self._ask(groups.DeleteGroup(queue=queue, group=group))
        return groups_of(found.groups)

    # Crons.

    async def set_cron(
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
        body, given = message_of(payload, options)
        for option in ("durability", "idempotency_key"):
            if option in given:
                raise Invalid(option, "left out: a cron has none")
        request = crons.PutCron(
            name=name,
            queue=queue,
            message=push.Item(payload=Raw(body), **given),
            schedule=schedule,
            every_ms=every_ms,
            timezone=timezone or "UTC",
            limit=limit,
            missed=missed or "last",
        )
        return cron_of(await self._ask(request))

    async def cron(self, name: str) -> Cron:
        """Return a cron. Raises ``NotFound``."""
        return cron_of(await self._ask(crons.GetCron(name=name)))

    async def crons(self) -> list[Cron]:
        """Return all crons, by name."""
        found: list[Cron] = []
        more = True
        while more:
            after = found[-1].name if found else None
            page: crons.Crons = await self._ask(crons.ListCrons(after=after))
            found += map(cron_of, page.crons)
            more = page.more
        return found

    async def delete_cron(self, name: str) -> None:
        """Delete a cron."""
        await self._ask(crons.DeleteCron(name=name))

    # Named limits.

    async def set_limit(
        self, name: str, *, rate_limit: Any = None, byte_limit: Any = None, concurrency: int | None = None
    ) -> None:
        """Set a limit for all queues that have its name among their ``limits``."""
        rates: Any = {"rate_limit": rate_limit, "byte_limit": byte_limit}
        await self._ask(limits.PutLimit(name=name, **rates, concurrency=concurrency or 0))

    async def limits(self) -> list[dict[str, Any]]:
        """Return the named limits, which queues share."""
        found: limits.Limits = await self._ask(limits.ListLimits())
        return [msgspec.structs.asdict(each) for each in found.limits]

    async def delete_limit(self, name: str) -> None:
        """Delete a named limit."""
        await self._ask(limits.DeleteLimit(name=name))

    # The server.

    async def stats(self) -> Stats:
        """Return counts over all queues."""
        found: wire_queues.Totals = await self._ask(wire_queues.CountAll())
        return Stats(found.queues, counts_of(found.counts), found.oldest_at, groups_of(found.groups))

    async def workers(self, queue: str | None = None) -> list[WorkerInfo]:
        """Return the workers that tell of themselves, by name; with ``queue``, those that work on it."""
        found: list[WorkerInfo] = []
        more = True
        while more:
            after = found[-1].name if found else None
            page: workers.WorkersShown = await self._ask(workers.ListWorkers(queue=queue, after=after))
            found += map(worker_of, page.workers)
            more = page.more
        return found

    async def hold(self, held: bool = True) -> str:
        """Hold the server, so that it only answers queries and stores no changes; or resume it.

        Returns the address of its store.
        """
        found: server.Held = await self._ask(server.Hold(held=held))
        return found.store

    async def backup(self, directory: str) -> str:
        """Copy the server's store into a new directory on its machine."""
        found: server.BackedUp = await self._ask(server.Backup(directory=directory), again=False)
        return found.directory


def _queue(found: wire_queues.Queue) -> Queue:
    partitions = [
        Partition(each.partition, each.first, each.end, each.bytes, each.lane) for each in found.partitions
    ]
    return Queue(
        found.queue,
        found.options,
        found.paused,
        found.paused_until,
        partitions,
        groups_of(found.groups),
    )
