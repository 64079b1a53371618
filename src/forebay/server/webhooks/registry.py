"""Webhooks: whoever registered one is told of lifecycle events, at least once each, whatever happens here.

    logs of events ──> forwarder ──> a queue a webhook ──> courier ──> POST
                          │                ▲                  │
                          └─ one commit ───┘                  └── not taken: again after its backoff
                             moves on in the logs

The forwarder reads the logs of events from where it stopped. What webhooks want of them is pushed to their
queues in the commit that moves the place where it goes on: after a crash nothing is missing, and nothing is
pushed twice. Webhooks, and that place, are values of a tenant that is nobody's.
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
"""Logs of events that are read for one commit."""
READ_BYTES = 4 * 1024 * 1024
"""Bytes that one commit may push, about."""
UNKEPT_MAX = 10_000
"""Events nobody wants that are read again after a crash, at most."""
TIDY_S = 60.0
"""How often the place in the logs is kept at least, if it moved, and what is too much is given up."""
DEAD_MAX = 10_000
"""Dead letters of a webhook; with more, all of them go."""
FINDING_MAX = 8
"""Hosts that are looked up at a time."""
FOUND_S = 10.0
"""How long a host may take to be found when a webhook is registered."""
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
    """How a webhook is doing: since the server started, and right now."""

    delivered: int = 0
    failed: int = 0
    """Attempts."""
    waiting: int = 0
    dead: int = 0


class Webhooks:
    """All webhooks: registers them, and forwards to them."""

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
        """Where the logs of events go on."""
        self._unkept = 0
        """Events behind the place that is kept which nobody wants."""
        self._last = -1
        """The shard whose events were read last: the next ones have their turn before it."""
        self._tidied_at = loop.time()
        self._news = asyncio.Event()
        self._lock = asyncio.Lock()
        """One at a time changes what is known: a registration, a removal, or the forwarder."""
        self._finding = Semaphore(FINDING_MAX)
        self._is_loaded = False
        self._task: Task[None] | None = None

    # What can be asked for.

    async def register(self, webhook: Webhook) -> None:
        """Tell somebody of events from now on."""
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
        """Raise unless the host of a webhook is there and may be called."""
        target = target_of(webhook.url)
        if self._finding.locked():
            raise Busy(f"{FINDING_MAX} hosts are being looked up already")
        await self._finding.acquire()
        found = in_thread(self._loop, lambda: addresses_of(target, self._office.private))
        found.add_done_callback(lambda _: self._finding.release())
        try:
            # The thread goes on, whether anybody waits for it or not: it counts until it ends.
            await asyncio.wait_for(asyncio.shield(found), FOUND_S)
        except TimeoutError:
            raise Invalid("url", f"of a host that can be found: {target.host} was not") from None
        except Refused as error:
            raise Invalid("url", f"of a host that can be called: {error}") from None

    async def delete(self, tenant: str, name: str) -> None:
        """Tell somebody nothing more, and forget what has not been delivered."""
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
        """The webhooks of a tenant, in the order they were registered."""
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
        """Deliveries of a webhook, by state; none before the first."""
        found = self._node.peek(GroupCounts(TENANT, queue_of(known.webhook.id)))
        return found if isinstance(found, Counts) else Counts()

    def _check_ready(self) -> None:
        if not self._is_loaded or self._node.draining:
            raise Busy("webhooks are being loaded, or the server stops")

    # From the start to the end.

    def start(self) -> None:
        self._task = self._loop.create_task(self._run())

    def stop(self) -> None:
        """Begin nothing more; the place in the logs is kept."""
        self._hub.follow(None)
        if self._known and self._unkept:
            self._questions.ask(KvWrite(TENANT, [self._place(self._at)]))
        if self._task is not None:
            self._task.cancel()
        for each in self._known.values():
            each.courier.stop()

    async def close(self, grace_s: float) -> None:
        """Give what is on its way some time to arrive."""
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
        """What is kept; at the start, couriers for it. What nobody needs any more goes."""
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
        """Give back what couriers of a process before this one had; remove queues of no webhook."""
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
        """There are events; those of tenants without webhooks wait until others come, or for a while."""
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
        """Push what webhooks want of the next events; whether there may be more."""
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
        """The next shards with events that were not read."""
        ends = self._hub.positions()
        behind = [shard for shard in ends if self._at.get(shard, 0) < ends[shard]]
        behind.sort(key=lambda shard: (shard <= self._last, shard))
        return behind[:SHARDS_AT_ONCE]

    async def _read(self, behind: list[int]) -> list[tuple[int, LogSlice | None]]:
        """The next events of shards; None where they are damaged."""
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
        """Tell each webhook what it wants of the events of a log; where the log goes on."""
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
        """Push deliveries, and move on in the logs: in one commit, or as few as they fit in.

        If there are several, those who have been told all in one before the last are not told again after a
        crash: where they are told from is kept with it.
        """
        self._unkept = 0  # before it is so: nothing else may keep a place while this is on its way
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
                # One queue that can't be pushed to must not hold up all the others.
                at = re.match(r"ops\[(\d+)\]", str(error.details.get("field", "")))
                if at is None or int(at[1]) >= len(pushes):
                    raise
                logger.error("events for %s are lost: %s", pushes.pop(int(at[1])).queue, error.message)
        for webhook in changed:
            self._known[webhook.id].webhook = webhook

    def _place(self, at: Positions) -> KvChange:
        return KvChange(SET, POSITION, _encode(at))

    def _waiting(self, known: Known) -> int:
        """Deliveries that wait for a webhook."""
        counts = self._counts(known)
        return counts.waiting + counts.delayed + counts.active

    async def _tidy(self) -> None:
        """Once in a while, keep the place in the logs, and give up dead letters that are too many."""
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
