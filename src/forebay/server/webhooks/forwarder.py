"""Forward events to the queues of the webhooks that want them: each shard on its own.

    event log ──> forwarder ──> queue of the webhook ──> courier ──> POST
                      │                  ▲
                      └─── one commit ───┘
                           moves the position in the log

The log, the position in it and the queues belong to the server's own tenant of one shard, so one transaction
covers them: a crash loses no event and pushes none twice. A shard that fails is tried again in a moment, and
the others go on meanwhile.

A webhook has a queue and a courier in every shard with events for it. That is one shard, the home of its
tenant, unless the tenant is spread.
"""

import asyncio
import logging
import re
from asyncio import Lock
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial

import msgspec
from msgspec import Struct

from forebay.core.api.commands import Command, Purge, Reply, Transact
from forebay.core.api.jobs import KvChange, KvWrite, PushJobs
from forebay.core.api.queries import Counts, GroupCounts, KvFound, KvGet, KvList, KvListed, LogSlice, Read
from forebay.core.errors import Busy, Conflict, Damaged, ForebayError
from forebay.core.keyvalue import keys
from forebay.core.state import EmittedEvent
from forebay.core.words import EVENTS, SET, system_of
from forebay.server.events.hub import Hub, Wanted, read_event
from forebay.server.node_client import NodeClient
from forebay.server.webhooks.batches import Part, Progress, Round, commits, lost, parts
from forebay.server.webhooks.courier import AGAIN_S, Courier, Office, Webhook, configuration, queue_of

logger = logging.getLogger("forebay.webhooks")

SHARDS_AT_ONCE = 16
"""Event logs read at a time."""
READ_BYTES = 4 * 1024 * 1024
"""Bytes that are pushed at a time, about, in all shards together."""
SPREAD_BYTES = 4 * 1024
"""The same where events are told message by message: one event of a batch tells of thousands."""
UNKEPT_MAX = 10_000
"""Unwanted events of a shard that are read again after a crash, at most."""
TIDY_S = 60.0
"""Interval at which a moved position is stored and excess dead letters are purged, at the latest."""
DEAD_MAX = 10_000
"""Dead letters of a webhook; beyond this, all of them are purged."""
POSITION = keys.pack(["position"])
"""Key of the forwarder's position in the event log of a shard."""
PROGRESS = keys.pack(["progress"])
"""Prefix of the keys of webhooks' progress in a shard."""

_encode = msgspec.json.Encoder().encode


def progress_key(webhook: str) -> bytes:
    return keys.pack(["progress", webhook])


class Known(Struct, eq=False):
    """A webhook at work."""

    webhook: Webhook
    wanted: Wanted
    couriers: dict[int, Courier] = {}
    """By shard: those in which it has a queue."""
    stored: dict[int, Progress] = {}
    """Its progress by shard, where it is not the one it had when it was registered."""

    def progress(self, shard: int) -> Progress:
        return self.stored.get(shard) or Progress(self.webhook.since.get(shard, 0))

    def wants(self, shard: int, offset: int, tenant: str, queue: str, kind: str) -> bool:
        return offset >= self.progress(shard).since and self.wanted.has(tenant, queue, kind)


class Figures(Struct):
    """Figures of a webhook, of all its queues: since the server started, and right now."""

    delivered: int = 0
    failed: int = 0
    """Failed attempts."""
    waiting: int = 0
    dead: int = 0


class Log(Struct, eq=False):
    """How far the event log of one shard is forwarded."""

    shard: int
    at: int | None = None
    """Next offset to read; None if it has to be loaded."""
    unkept: int = 0
    """Events read since the position was last stored; no webhook wanted them."""
    retry_at: float = 0.0
    """When to try again after a failure."""

    def begin(self, mine: Iterable[Known]) -> int:
        """Return the next offset that some webhook may want."""
        return max(self.at or 0, min(known.progress(self.shard).since for known in mine))


class Forwarder:
    """Forwards the events of all shards of a node."""

    def __init__(self, hub: Hub, questions: NodeClient, office: Office) -> None:
        self._hub, self._questions, self._office = hub, questions, office
        self._node, self._loop = questions.node, office.loop
        self.known: dict[str, Known] = {}
        """All webhooks by id."""
        self.by_tenant: dict[str, dict[str, Known]] = {}
        self.lock = Lock()
        """Serializes changes of webhooks and positions: registration, deletion and forwarding."""
        self._logs: dict[int, Log] = {}
        """By shard: those of tenants with webhooks."""
        self._last = -1
        """Shard read last: the shards after it have their turn first."""
        self._tidied_at = self._loop.time()
        self._news = asyncio.Event()

    async def ask(self, command: Command) -> Reply:
        """Return the reply to a command; raise if it is an error."""
        reply = await self._questions.ask(command)
        if isinstance(reply, ForebayError):
            raise reply
        return reply

    async def values(self, shard: int, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """Return the keys and values of the server's own tenant in a shard that have a prefix."""
        found: list[tuple[bytes, bytes]] = []
        low: bytes | None = b""
        while low is not None:
            reply = await self.ask(KvList(system_of(shard), prefix, low, None, 1_000))
            assert isinstance(reply, KvListed)
            found += [(key, value.data) for key, value in reply.entries]
            low = reply.next
        return found

    # Webhooks.

    def add(self, webhook: Webhook, shards: Iterable[int]) -> None:
        """Forward to a webhook from now on. It has queues in these shards."""
        wanted = Wanted(webhook.tenant, frozenset(webhook.queues), frozenset(webhook.kinds))
        known = self.known[webhook.id] = Known(webhook, wanted)
        self.by_tenant.setdefault(webhook.tenant, {})[webhook.id] = known
        for shard in shards:
            known.couriers[shard] = Courier(self._office, webhook, shard)
        self._follow()

    async def remove(self, known: Known) -> None:
        """Forward to a webhook no more, and wait until its couriers have stopped."""
        webhook = known.webhook
        del self.known[webhook.id], self.by_tenant[webhook.tenant][webhook.id]
        if not self.by_tenant[webhook.tenant]:
            del self.by_tenant[webhook.tenant]
        self._follow()
        for courier in known.couriers.values():
            courier.cancel()
        if known.couriers:
            await asyncio.wait([courier.task for courier in known.couriers.values()])

    def figures(self, known: Known) -> Figures:
        found = Figures()
        for shard, courier in known.couriers.items():
            found.delivered += courier.delivered
            found.failed += courier.failed
            counts = self._node.peek(GroupCounts(system_of(shard), queue_of(known.webhook.id)))
            if isinstance(counts, Counts):
                found.waiting += counts.waiting + counts.delayed + counts.active
                found.dead += counts.dead
        return found

    def _follow(self) -> None:
        self._hub.follow(self._hear if self.known else None)

    def _hear(self, told: list[EmittedEvent]) -> None:
        """Wake up for events of tenants with webhooks; other events are read along later."""
        if any(each.tenant in self.by_tenant for each in told):
            self._news.set()

    def _by_shard(self) -> dict[int, list[Known]]:
        """Return the webhooks of the tenants that live in each shard of this node."""
        engine = self._node.engine
        found: dict[int, list[Known]] = {}
        for tenant, mine in self.by_tenant.items():
            is_spread = engine.control.is_spread(tenant)
            for shard in engine.shards if is_spread else [self._node.engine.home(tenant)]:
                if shard in engine.shards:
                    found.setdefault(shard, []).extend(mine.values())
        return found

    # Lifecycle.

    async def run(self) -> None:
        """Forward for ever."""
        self._news.set()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._rest_s()):
                    await self._news.wait()
            self._news.clear()
            is_ahead = True
            while is_ahead:
                is_ahead = await self._forward()
                await self._tidy()

    def _rest_s(self) -> float:
        """Return how long to wait for news."""
        retries = [log.retry_at for log in self._logs.values() if log.at is None]
        return min([TIDY_S, *(at - self._loop.time() for at in retries)])

    def stop(self) -> None:
        """Start nothing more, and store the positions."""
        self._hub.follow(None)
        for log in self._logs.values():
            if log.unkept and log.at is not None:
                self._questions.ask(KvWrite(system_of(log.shard), [_place(log.at)]))
        for courier in self._couriers():
            courier.stop()

    async def close(self, grace_s: float) -> None:
        """Give POSTs under way some time to finish."""
        couriers = self._couriers()
        tasks = [courier.task for courier in couriers]
        if tasks:
            await asyncio.wait(tasks, timeout=grace_s)
            for courier in couriers:
                courier.cancel()
            await asyncio.wait(tasks)

    def _couriers(self) -> list[Courier]:
        return [courier for known in self.known.values() for courier in known.couriers.values()]

    # Forward.

    async def _forward(self) -> bool:
        """Push what webhooks want of the next events of some shards; return whether there may be more."""
        async with self.lock:
            ends, by_shard = self._hub.positions(), self._by_shard()
            due = self._due(by_shard, ends)
            share = READ_BYTES // max(len(due), 1)
            works = [
                partial(self._forward_log, log, by_shard[log.shard], ends.get(log.shard, 0), share)
                for log in due
            ]
            moved = await asyncio.gather(*map(self._attempt, due, works))
            self._last = due[-1].shard if due else self._last
            return any(moved)

    def _due(self, by_shard: dict[int, list[Known]], ends: dict[int, int]) -> list[Log]:
        """Return the logs of the next shards with something to do."""
        self._logs = {shard: self._logs.get(shard) or Log(shard) for shard in by_shard}
        now = self._loop.time()
        due = [
            log
            for log in self._logs.values()
            if log.retry_at <= now and self._is_due(log, by_shard[log.shard], ends.get(log.shard, 0))
        ]
        # Round robin, so that a busy shard does not starve those after it.
        due.sort(key=lambda log: (log.shard <= self._last, log.shard))
        return due[:SHARDS_AT_ONCE]

    def _is_due(self, log: Log, mine: list[Known], end: int) -> bool:
        if log.at is None or log.begin(mine) < end:
            return True
        behind = [known for known in mine if known.progress(log.shard).lost is not None]
        return any(not known.progress(log.shard).is_full(self.figures(known).waiting) for known in behind)

    async def _attempt(self, log: Log, work: Callable[[], Awaitable[bool]]) -> bool:
        """Do some work in a shard; if it fails, try again in a moment. Return whether there may be more."""
        try:
            return await work()
        except ForebayError as error:
            logger.warning("webhooks of shard %d go on in a moment: %s", log.shard, error.message)
        except Exception:
            logger.exception("bug: events of shard %d could not be forwarded", log.shard)
        # What was stored of it is not known: begin again with what the store has.
        log.at, log.unkept, log.retry_at = None, 0, self._loop.time() + AGAIN_S
        return True

    async def _forward_log(self, log: Log, mine: list[Known], end: int, share: int) -> bool:
        """Push what webhooks want of the next events of a shard; return whether there may be more."""
        is_new = log.at is None
        if is_new:
            await self._load(log, mine)
        begin, told = log.begin(mine), Round(log.shard)
        for known in mine:
            progress = known.progress(log.shard)
            if known.webhook.form in self._office.forms:
                told.alone.add(known.webhook.id)
            told.begin(known.webhook.id, progress, self.figures(known).waiting, begin)
        after = begin
        if begin < end:
            # Each webhook may want every event: together they must not push more than their share.
            share = min(share, SPREAD_BYTES) if told.alone else share
            found = await self._read(log.shard, begin, max(share // len(mine), 1))
            after = self._sort(log.shard, begin, found, told, mine)
        unkept = log.unkept + after - begin
        if told.events or told.changed or unkept >= UNKEPT_MAX:
            await self._push(log, told, mine, after)
            unkept = 0
        log.at, log.unkept = after, unkept
        return is_new or after != begin or bool(told.changed)

    async def _load(self, log: Log, mine: list[Known]) -> None:
        """Load the position in an event log, and how far its webhooks are."""
        reply = await self.ask(KvGet(system_of(log.shard), [POSITION]))
        assert isinstance(reply, KvFound)
        (position,) = reply.values
        stored = await self.values(log.shard, PROGRESS)
        for known in mine:
            known.stored.pop(log.shard, None)
        for key, data in stored:
            _, webhook = keys.unpack(key)
            if (found := self.known.get(str(webhook))) is not None:
                found.stored[log.shard] = msgspec.json.decode(data, type=Progress)
        log.at = 0 if position is None else msgspec.json.decode(position.data, type=int)

    async def _read(self, shard: int, offset: int, max_bytes: int) -> LogSlice | None:
        """Read the next events of a shard; return None if they are damaged."""
        try:
            reply = await self.ask(Read(system_of(shard), EVENTS, offset, max_bytes=max_bytes))
        except Damaged:
            return None
        assert isinstance(reply, LogSlice)
        return reply

    def _sort(self, shard: int, offset: int, log: LogSlice | None, told: Round, mine: list[Known]) -> int:
        """Add the events of a log to each webhook that wants them; return the next offset to read."""
        if log is None:
            end = self._hub.past_damage(shard, offset)
            _tell_lost(shard, offset, end, "are damaged", told, mine)
            return end
        first = log.runs[0].offset if log.runs else log.next
        if first > offset:
            _tell_lost(shard, offset, first, "were dropped before webhooks were told", told, mine)
        for run in log.runs:
            for place, payload in enumerate(run.payloads(), run.offset):
                event = read_event(payload)
                for known in self.by_tenant.get(event.tenant, {}).values():
                    if known.wants(shard, place, event.tenant, event.queue, event.kind):
                        for each in self._in_form(known.webhook, bytes(payload)):
                            told.tell(known.webhook.id, place, each)
        return log.next

    def _in_form(self, webhook: Webhook, event: bytes) -> Iterable[bytes]:
        """Return an event as a webhook is told of it."""
        form = self._office.forms.get(webhook.form)
        return [event] if form is None else form.spread(event)

    # Push.

    async def _push(self, log: Log, told: Round, mine: list[Known], after: int) -> None:
        """Push deliveries and move the position: in one commit, or in as few as they fit in.

        The position moves in the last one. A webhook whose deliveries are complete in an earlier one stores
        its own position (``since``) with it, so that after a crash in between it is not sent the same events
        again.
        """
        log.unkept = 0  # first, so that stop() does not overwrite the new position with the old
        limits = self._node.limits
        webhooks = {known.webhook.id: known.progress(log.shard) for known in mine}
        *others, last = commits(
            parts(told, webhooks, limits.payload_bytes_max, limits.batch_max), limits.batch_max
        )
        for some in others:
            for part in some:
                if part.is_last:
                    part.progress, part.is_changed = part.progress.told_up_to(after), True
            await self._commit(log.shard, some, [])
        await self._commit(log.shard, last, [_place(after)])

    async def _commit(self, shard: int, some: list[Part], changes: list[KvChange]) -> None:
        changed = {part.webhook: part.progress for part in some if part.is_changed}
        changes += [
            KvChange(SET, progress_key(webhook), _encode(progress)) for webhook, progress in changed.items()
        ]
        pushes = [
            PushJobs(system_of(shard), queue_of(part.webhook), part.jobs)
            for part in some
            if part.jobs and await self._is_open(part.webhook, shard)
        ]
        moved = [KvWrite(system_of(shard), changes)] if changes else []
        while pushes or moved:
            try:
                await self.ask(Transact(system_of(shard), [*pushes, *moved]))
                break
            except Busy:
                raise
            except ForebayError as error:
                # One queue that refuses a push must not block all the others.
                at = re.match(r"ops\[(\d+)\]", str(error.details.get("field", "")))
                if at is None or int(at[1]) >= len(pushes):
                    raise
                logger.error("events for %s are lost: %s", pushes.pop(int(at[1])).queue, error.message)
        for webhook, progress in changed.items():
            self.known[webhook].stored[shard] = progress

    async def _is_open(self, webhook: str, shard: int) -> bool:
        """Whether a webhook has a queue in a shard; it gets one with its first event there."""
        known = self.known[webhook]
        if shard not in known.couriers:
            try:
                await self.ask(configuration(webhook, shard, self._node.limits))
            except (Damaged, Conflict) as error:
                logger.error("events for %s are lost: %s", queue_of(webhook), error.message)
                return False
            known.couriers[shard] = Courier(self._office, known.webhook, shard)
        return True

    # Tidy up.

    async def _tidy(self) -> None:
        """Every TIDY_S, store the positions and purge dead letters above the limit."""
        now = self._loop.time()
        if now - self._tidied_at < TIDY_S:
            return
        self._tidied_at = now
        async with self.lock:
            full = {id for id, known in self.known.items() if self.figures(known).dead > DEAD_MAX}
            for id in full:
                logger.error("webhook %s: its dead letters are too many, and dropped", id)
            by_shard = self._by_shard()
            logs = [log for log in self._logs.values() if log.shard in by_shard]
            works = [partial(self._tidy_log, log, by_shard[log.shard], full) for log in logs]
            await asyncio.gather(*map(self._attempt, logs, works))

    async def _tidy_log(self, log: Log, mine: list[Known], full: set[str]) -> bool:
        if log.unkept and log.at is not None:
            await self._push(log, Round(log.shard), mine, log.at)
        for known in mine:
            if known.webhook.id in full and log.shard in known.couriers:
                await self.ask(Purge(system_of(log.shard), queue_of(known.webhook.id)))
        return False


def _place(at: int) -> KvChange:
    return KvChange(SET, POSITION, _encode(at))


def _tell_lost(shard: int, first: int, end: int, why: str, told: Round, mine: Iterable[Known]) -> None:
    logger.error("events of shard %d %s: %d to %d", shard, why, first, end)
    for known in mine:
        if known.progress(shard).since < end:
            told.tell(known.webhook.id, first, lost(shard, first, end))
