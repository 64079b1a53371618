"""Webhooks: post lifecycle events to registered URLs, at least once each, crashes of the server included.

    event logs ──> forwarder ──> one queue per webhook ──> courier ──> POST
                       │                 ▲                   │
                       └── one commit ───┘                   └── not accepted: retried after its backoff
                           moves the position in the logs

The forwarder reads the event logs from its position. It pushes the events that webhooks want to their queues
in the commit that also moves the position: a crash loses no event and pushes none twice. Webhooks and the
position are stored as values of an internal tenant.
"""

import asyncio
import logging
import re
import secrets
from asyncio import AbstractEventLoop, Semaphore, Task
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import msgspec
from msgspec import Struct

from forebay.core.api.commands import Command, Obliterate, Purge, Reply, Transact
from forebay.core.api.jobs import KvChange, KvWrite, PushJobs
from forebay.core.api.queries import (
    Counts,
    GroupCounts,
    KvFound,
    KvGet,
    KvList,
    KvListed,
    ListQueues,
    LogSlice,
    QueuesFound,
    Read,
)
from forebay.core.bounds import check_name, check_queue_name
from forebay.core.errors import Busy, Damaged, ForebayError, Invalid, NotFound, Unsupported
from forebay.core.keyvalue import keys
from forebay.core.state import EmittedEvent, queue_name
from forebay.core.words import DELETE, SET, SYSTEM
from forebay.server.events.hub import Hub, Positions, Wanted, kinds_of, named, read_event
from forebay.server.node_client import NodeClient
from forebay.server.webhooks.batches import Part, Round, commits, lost, parts, told_up_to
from forebay.server.webhooks.courier import (
    AGAIN_S,
    AT_ONCE,
    TENANT,
    Courier,
    Office,
    Webhook,
    configuration,
    queue_of,
)
from forebay.server.webhooks.post import Posting, Refused, Send, addresses_of, in_thread, target_of

logger = logging.getLogger("forebay.webhooks")

WEBHOOKS_MAX = 100
"""Webhooks of one tenant."""
NAMES_MAX = 100
"""Queues, or kinds, that a webhook names."""
SHARDS_AT_ONCE = 16
"""Event logs read for one commit."""
READ_BYTES = 4 * 1024 * 1024
"""Bytes that one commit may push, about."""
UNKEPT_MAX = 10_000
"""Unwanted events that are read again after a crash, at most."""
TIDY_S = 60.0
"""Interval at which a moved position is stored and excess dead letters are purged, at the latest."""
DEAD_MAX = 10_000
"""Dead letters of a webhook; beyond this, all of them are purged."""
FINDING_MAX = 8
"""Hosts resolved at a time."""
FOUND_S = 10.0
"""Timeout for resolving the host of a new webhook."""
POSITION = keys.pack(["position"])
WEBHOOKS = keys.pack(["webhook"])


def key_of(webhook: Webhook) -> bytes:
    return keys.pack(["webhook", webhook.tenant, webhook.id])


def read_position(data: bytes) -> Positions:
    return msgspec.json.decode(data, type=dict[int, int])


_encode = msgspec.json.Encoder().encode


class Known(Struct):
    """A webhook at work."""

    webhook: Webhook
    wanted: Wanted
    courier: Courier

    def wants(self, shard: int, offset: int, tenant: str, queue: str, kind: str) -> bool:
        return offset >= self.webhook.since.get(shard, 0) and self.wanted.has(tenant, queue, kind)


class Figures(Struct):
    """Figures of a webhook: since the server started, and right now."""

    delivered: int = 0
    failed: int = 0
    """Failed attempts."""
    waiting: int = 0
    dead: int = 0


class Webhooks:
    """All webhooks: registers them, and forwards events to their queues."""

    def __init__(
        self,
        hub: Hub,
        questions: NodeClient,
        loop: AbstractEventLoop,
        clock: Callable[[], int],
        *,
        private: bool = False,
        send: Send = Posting,
    ) -> None:
        self._hub, self._questions, self._loop = hub, questions, loop
        self._node = questions.node
        self._office = Office(self._node, loop, clock, private, send, Semaphore(AT_ONCE))
        self._known: dict[str, Known] = {}
        self._at: Positions = {}
        """Next offset to read in each event log."""
        self._unkept = 0
        """Events read since the position was last stored; no webhook wanted them."""
        self._last = -1
        """Shard read last: the shards after it have their turn first."""
        self._tidied_at = loop.time()
        self._news = asyncio.Event()
        self._lock = asyncio.Lock()
        """Serializes changes of webhooks and position: registration, deletion and the forwarder."""
        self._finding = Semaphore(FINDING_MAX)
        self._is_loaded = False
        self._task: Task[None] | None = None

    # Registration.

    async def register(self, webhook: Webhook) -> None:
        """Register a webhook: it gets events from now on."""
        if not self._node.limits.events_bytes_max:
            raise Unsupported("webhooks need events to be kept: events_bytes_max is 0 here")
        _check(webhook)
        await self._find(webhook)
        async with self._lock:
            self._check_ready()
            mine = sum(each.webhook.tenant == webhook.tenant for each in self._known.values())
            if mine >= WEBHOOKS_MAX:
                raise Busy(f"a tenant has at most {WEBHOOKS_MAX} webhooks; delete some")
            await self._ask(configuration(webhook.id, self._node.limits))
            webhook.created_at = self._office.clock()
            webhook.since = self._hub.positions()
            changes = [KvChange(SET, key_of(webhook), _encode(webhook))]
            if not self._known:
                changes.append(KvChange(SET, POSITION, _encode(webhook.since)))
            await self._ask(KvWrite(TENANT, changes))
            if not self._known:
                self._at, self._unkept = dict(webhook.since), 0
            self._add(webhook)

    async def _find(self, webhook: Webhook) -> None:
        """Raise unless the host of a webhook resolves and may be called."""
        target = target_of(webhook.url)
        if self._finding.locked():
            raise Busy(f"{FINDING_MAX} hosts are being looked up already")
        await self._finding.acquire()
        found = in_thread(self._loop, lambda: addresses_of(target, self._office.private))
        found.add_done_callback(lambda _: self._finding.release())
        try:
            # The thread can't be cancelled: it counts against FINDING_MAX until it ends.
            await asyncio.wait_for(asyncio.shield(found), FOUND_S)
        except TimeoutError:
            raise Invalid("url", f"of a host that can be found: {target.host} was not") from None
        except Refused as error:
            raise Invalid("url", f"of a host that can be called: {error}") from None

    async def delete(self, tenant: str, name: str) -> None:
        """Delete a webhook, and drop its deliveries."""
        async with self._lock:
            self._check_ready()
            known = self._known.get(name)
            if known is None or known.webhook.tenant != tenant:
                raise NotFound("there is no such webhook")
            await self._ask(KvWrite(TENANT, [KvChange(DELETE, key_of(known.webhook))]))
            del self._known[name]
            known.courier.cancel()
            await asyncio.wait({known.courier.task})
            await self._ask(Obliterate(TENANT, queue_of(name)))
            self._follow()

    async def all(self, tenant: str) -> list[tuple[Webhook, Figures]]:
        """Return the webhooks of a tenant in the order they were registered."""
        async with self._lock:
            self._check_ready()
            mine = [each for each in self._known.values() if each.webhook.tenant == tenant]
            mine.sort(key=lambda each: (each.webhook.created_at, each.webhook.id))
            return [(each.webhook, self._figures(each)) for each in mine]

    def _figures(self, known: Known) -> Figures:
        found = Figures(known.courier.delivered, known.courier.failed)
        counts = self._counts(known)
        found.waiting, found.dead = counts.waiting + counts.delayed + counts.active, counts.dead
        return found

    def _counts(self, known: Known) -> Counts:
        """Return the deliveries of a webhook by state; zero before the first."""
        found = self._node.peek(GroupCounts(TENANT, queue_of(known.webhook.id)))
        return found if isinstance(found, Counts) else Counts()

    def _check_ready(self) -> None:
        if not self._is_loaded or self._node.draining:
            raise Busy("webhooks are being loaded, or the server stops")

    # Lifecycle.

    def start(self) -> None:
        self._task = self._loop.create_task(self._run())

    def stop(self) -> None:
        """Start nothing more, and store the position."""
        self._hub.follow(None)
        if self._known and self._unkept:
            self._questions.ask(KvWrite(TENANT, [self._place(self._at)]))
        if self._task is not None:
            self._task.cancel()
        for each in self._known.values():
            each.courier.stop()

    async def close(self, grace_s: float) -> None:
        """Give POSTs under way some time to finish."""
        if self._task is not None:
            await asyncio.wait({self._task})
        couriers = [each.courier for each in self._known.values()]
        tasks = [courier.task for courier in couriers]
        if tasks:
            await asyncio.wait(tasks, timeout=grace_s)
            for courier in couriers:
                courier.cancel()
            await asyncio.wait(tasks)

    async def _run(self) -> None:
        while True:
            try:
                async with self._lock:
                    await self._load()
                while True:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(TIDY_S):
                            await self._news.wait()
                    self._news.clear()
                    is_ahead = True
                    while is_ahead:
                        is_ahead = await self._forward()
                        await self._tidy()
            except ForebayError as error:
                logger.warning("webhooks go on in a moment: %s", error.message)
            except Exception:
                logger.exception("bug: events could not be forwarded")
            await asyncio.sleep(AGAIN_S)

    async def _load(self) -> None:
        """Load the position; at the start also load webhooks, start couriers, and remove unused queues."""
        reply = await self._ask(KvGet(TENANT, [POSITION]))
        assert isinstance(reply, KvFound)
        (position,) = reply.values
        self._at = {} if position is None else read_position(position.data)
        self._unkept = 0
        if not self._is_loaded:
            kept = [webhook async for webhook in self._kept()]
            await self._clear(kept)
            for webhook in kept:
                self._add(webhook)
            self._is_loaded = True
        self._news.set()

    async def _kept(self) -> AsyncIterator[Webhook]:
        low: bytes | None = b""
        while low is not None:
            reply = await self._ask(KvList(TENANT, WEBHOOKS, low, None, 1_000))
            assert isinstance(reply, KvListed)
            for _, value in reply.entries:
                yield msgspec.json.decode(value.data, type=Webhook)
            low = reply.next

    async def _clear(self, kept: list[Webhook]) -> None:
        """Return leases of couriers of an earlier process; remove queues without a webhook."""
        self._node.give_back_all(TENANT)
        needed = {queue_of(each.id) for each in kept}
        reply = await self._ask(ListQueues(TENANT))
        assert isinstance(reply, QueuesFound)
        for each in reply.queues:
            if each.name not in needed:
                await self._ask(Obliterate(TENANT, each.name))

    def _add(self, webhook: Webhook) -> None:
        wanted = Wanted(webhook.tenant, frozenset(webhook.queues), frozenset(webhook.kinds))
        self._known[webhook.id] = Known(webhook, wanted, Courier(self._office, webhook))
        self._follow()

    def _follow(self) -> None:
        self._hub.follow(self._hear if self._known else None)

    def _hear(self, told: list[EmittedEvent]) -> None:
        """Wake the forwarder for events of tenants with webhooks; other events are read along later."""
        tenants = {each.webhook.tenant for each in self._known.values()}
        if any(each.tenant in tenants for each in told):
            self._news.set()

    async def _ask(self, command: Command) -> Reply:
        reply = await self._questions.ask(command)
        if isinstance(reply, ForebayError):
            raise reply
        return reply

    # Forwarding.

    async def _forward(self) -> bool:
        """Push what webhooks want of the next events; return whether there may be more."""
        async with self._lock:
            if not self._known:
                return False
            told, after = Round(), dict(self._at)
            for known in self._known.values():
                told.begin(known.webhook, self._waiting(known), self._at)
            behind = self._behind()
            for shard, reply in await self._read(behind):
                after[shard] = self._sort(shard, reply, told)
            self._unkept += sum(after[shard] - self._at.get(shard, 0) for shard in behind)
            if told.events or told.changed or self._unkept >= UNKEPT_MAX:
                await self._push(told, after)
            is_ahead = after != self._at
            self._at = after
            self._last = behind[-1] if behind else self._last
            return is_ahead

    def _behind(self) -> list[int]:
        """Return the next shards with unread events."""
        ends = self._hub.positions()
        behind = [shard for shard in ends if self._at.get(shard, 0) < ends[shard]]
        # Round robin, so that a busy shard does not starve those after it.
        behind.sort(key=lambda shard: (shard <= self._last, shard))
        return behind[:SHARDS_AT_ONCE]

    async def _read(self, behind: list[int]) -> list[tuple[int, LogSlice | None]]:
        """Read the next events of shards; None where they are damaged."""
        # Each webhook may want every event: together they must not push more than READ_BYTES.
        share = max(READ_BYTES // (max(len(behind), 1) * len(self._known)), 1)
        asked = [
            self._questions.ask(Read(SYSTEM, queue_name(shard), self._at.get(shard, 0), max_bytes=share))
            for shard in behind
        ]
        found: list[tuple[int, LogSlice | None]] = []
        for shard, answer in zip(behind, asked, strict=True):
            reply = await answer
            if isinstance(reply, ForebayError) and not isinstance(reply, Damaged):
                raise reply
            assert isinstance(reply, LogSlice | Damaged)
            found.append((shard, reply if isinstance(reply, LogSlice) else None))
        return found

    def _sort(self, shard: int, log: LogSlice | None, told: Round) -> int:
        """Add the events of a log to each webhook that wants them; return the next offset to read."""
        offset = self._at.get(shard, 0)
        if log is None:
            end = self._hub.past_damage(shard, offset)
            self._tell_lost(shard, offset, end, "are damaged", told)
            return end
        first = log.runs[0].offset if log.runs else log.next
        if first > offset:
            self._tell_lost(shard, offset, first, "were dropped before webhooks were told", told)
        for run in log.runs:
            for place, payload in enumerate(run.payloads(), run.offset):
                event = read_event(payload)
                for known in self._known.values():
                    if known.wants(shard, place, event.tenant, event.queue, event.kind):
                        told.tell(known.webhook, shard, place, named(event.kind, bytes(payload)))
        return log.next

    def _tell_lost(self, shard: int, first: int, end: int, why: str, told: Round) -> None:
        logger.error("events of shard %d %s: %d to %d", shard, why, first, end)
        for known in self._known.values():
            if known.webhook.since.get(shard, 0) < end:
                told.tell(known.webhook, shard, first, lost(shard, first, end))

    async def _push(self, told: Round, after: Positions) -> None:
        """Push deliveries and move the position: in one commit, or in as few as they fit in.

        The position moves in the last one. A webhook whose deliveries are complete in an earlier one stores
        its own position (``since``) with it, so that after a crash in between it is not sent the same events
        again.
        """
        self._unkept = 0  # first, so that stop() does not overwrite the new position with the old
        limits = self._node.limits
        webhooks = [known.webhook for known in self._known.values()]
        *others, last = commits(
            parts(told, webhooks, limits.payload_bytes_max, limits.batch_max), limits.batch_max
        )
        for some in others:
            for part in some:
                if part.is_last:
                    part.webhook, part.is_changed = told_up_to(part.webhook, after), True
            await self._commit(some, [])
        await self._commit(last, [self._place(after)])

    async def _commit(self, some: list[Part], changes: list[KvChange]) -> None:
        changed = [part.webhook for part in some if part.is_changed]
        changes += [KvChange(SET, key_of(webhook), _encode(webhook)) for webhook in changed]
        pushes = [PushJobs(TENANT, queue_of(part.webhook.id), part.jobs) for part in some if part.jobs]
        moved = [KvWrite(TENANT, changes)] if changes else []
        while pushes or moved:
            try:
                await self._ask(Transact(TENANT, [*pushes, *moved]))
                break
            except Busy:
                raise
            except ForebayError as error:
                # One queue that refuses a push must not block all the others.
                at = re.match(r"ops\[(\d+)\]", str(error.details.get("field", "")))
                if at is None or int(at[1]) >= len(pushes):
                    raise
                logger.error("events for %s are lost: %s", pushes.pop(int(at[1])).queue, error.message)
        for webhook in changed:
            self._known[webhook.id].webhook = webhook

    def _place(self, at: Positions) -> KvChange:
        return KvChange(SET, POSITION, _encode(at))

    def _waiting(self, known: Known) -> int:
        """Return how many deliveries wait for a webhook."""
        counts = self._counts(known)
        return counts.waiting + counts.delayed + counts.active

    async def _tidy(self) -> None:
        """Every TIDY_S, store the position and purge dead letters above the limit."""
        now = self._loop.time()
        if now - self._tidied_at < TIDY_S:
            return
        self._tidied_at = now
        async with self._lock:
            if self._known and self._unkept:
                await self._push(Round(), self._at)
            for known in self._known.values():
                if self._figures(known).dead > DEAD_MAX:
                    logger.error("webhook %s: its dead letters are too many, and dropped", known.webhook.id)
                    await self._ask(Purge(TENANT, queue_of(known.webhook.id)))


def _check(webhook: Webhook) -> None:
    """Raise unless a webhook may be registered."""
    check_name("secret", webhook.secret)
    for name, given in (("queues", webhook.queues), ("kinds", webhook.kinds)):
        if len(given) > NAMES_MAX:
            raise Invalid(name, f"a list of at most {NAMES_MAX}")
    for queue in webhook.queues:
        check_queue_name(queue)
    webhook.kinds = sorted(kinds_of(webhook.kinds, "kinds"))


def new_id() -> str:
    return secrets.token_hex(8)


def new_secret() -> str:
    return secrets.token_hex(32)
