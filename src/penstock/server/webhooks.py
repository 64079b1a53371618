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
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import chain

import msgspec
from msgspec import Struct

from penstock.core import keys
from penstock.core.commands import (
    Change,
    Command,
    Job,
    KvFound,
    KvGet,
    KvList,
    KvListed,
    KvWrite,
    ListQueues,
    Log,
    Obliterate,
    Popped,
    PushJobs,
    QueuesFound,
    Read,
    Reply,
    Transact,
)
from penstock.core.errors import Busy, Invalid, NotFound, PenstockError, Unsupported
from penstock.core.eventlogs import Told
from penstock.core.events import SYSTEM, queue_name
from penstock.core.ids import lease_token
from penstock.core.limits import check_name, check_queue_name
from penstock.core.look import queue_counts
from penstock.core.values import DELETE, SET
from penstock.server.couriers import (
    AGAIN_S,
    AT_ONCE,
    TENANT,
    Courier,
    Office,
    Webhook,
    configuration,
    queue_of,
)
from penstock.server.http.endpoints import Questions
from penstock.server.hub import Hub, Positions, Wanted, kinds_of, named, read_event
from penstock.server.posting import Posting, Refused, Send, addresses_of, in_thread, target_of

logger = logging.getLogger("penstock.webhooks")

WEBHOOKS_MAX = 100
"""Webhooks of one tenant."""
NAMES_MAX = 100
"""Queues, or kinds, that a webhook names."""
TOGETHER_MAX = 100
"""Events of one delivery."""
TOGETHER_BYTES = 128 * 1024
"""Bytes of them; one that is larger goes alone."""
SHARDS_AT_ONCE = 16
"""Logs of events that are read for one commit."""
READ_BYTES = 4 * 1024 * 1024
"""Bytes that one commit may push, about."""
UNKEPT_MAX = 10_000
"""Events nobody wants that are read again after a crash, at most."""
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
        questions: Questions,
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
            await self._ask(configuration(webhook.id))
            webhook.created_at = self._office.clock()
            webhook.since = self._hub.positions()
            changes = [Change(SET, key_of(webhook), _encode(webhook))]
            if not self._known:
                changes.append(Change(SET, POSITION, _encode(webhook.since)))
            await self._ask(KvWrite(TENANT, changes))
            if not self._known:
                self._at = dict(webhook.since)
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
            await self._ask(KvWrite(TENANT, [Change(DELETE, key_of(known.webhook))]))
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
        queue = self._node.engine.queues.get((TENANT, queue_of(known.webhook.id)))
        if queue is not None:
            counts = queue_counts(queue, self._node.engine.now).counts
            found.waiting, found.dead = counts.waiting + counts.delayed + counts.active, counts.dead
        return found

    def _check_ready(self) -> None:
        if not self._is_loaded or self._node.draining:
            raise Busy("webhooks are being loaded, or the server stops")

    # From the start to the end.

    def start(self) -> None:
        self._task = self._loop.create_task(self._run())

    def stop(self) -> None:
        """Begin nothing more."""
        self._hub.follow(None)
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
                    await self._news.wait()
                    self._news.clear()
                    while await self._forward():
                        pass
            except PenstockError as error:
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
        for shard in self._node.engine.shards:
            for name, lease in list(shard.leases.items()):
                if lease.queue.tenant == TENANT:
                    self._node.give_back(Popped(lease.queue, lease_token(shard.number, name), []))
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

    def _hear(self, told: list[Told]) -> None:
        """There are events; those of tenants without webhooks wait until others come."""
        tenants = {each.webhook.tenant for each in self._known.values()}
        if any(each.tenant in tenants for each in told):
            self._news.set()

    async def _ask(self, command: Command) -> Reply:
        reply = await self._questions.ask(command)
        if isinstance(reply, PenstockError):
            raise reply
        return reply

    # Forwarding.

    async def _forward(self) -> bool:
        """Push what webhooks want of the next events; whether there may be more."""
        async with self._lock:
            ends = self._hub.positions()
            behind = [shard for shard in ends if self._at.get(shard, 0) < ends[shard]][:SHARDS_AT_ONCE]
            if not behind or not self._known:
                return False
            share = max(READ_BYTES // (len(behind) * len(self._known)), 1)
            asked = [
                self._questions.ask(Read(SYSTEM, queue_name(shard), self._at.get(shard, 0), max_bytes=share))
                for shard in behind
            ]
            after = dict(self._at)
            wanted: dict[str, list[bytes]] = {}
            for shard, answer in zip(behind, asked, strict=True):
                reply = await answer
                if isinstance(reply, PenstockError):
                    raise reply
                assert isinstance(reply, Log)
                self._sort(shard, reply, wanted)
                after[shard] = reply.next
            self._unkept += sum(after[shard] - self._at.get(shard, 0) for shard in behind)
            if wanted or self._unkept >= UNKEPT_MAX:
                await self._push(wanted, after)
            is_ahead = after != self._at
            self._at = after
            return is_ahead

    def _sort(self, shard: int, log: Log, wanted: dict[str, list[bytes]]) -> None:
        """Add the events of a log to what each webhook wants."""
        offset = self._at.get(shard, 0)
        first = log.runs[0].offset if log.runs else log.next
        if first > offset:
            logger.error(
                "events of shard %d were dropped before webhooks were told: %d to %d", shard, offset, first
            )
            lost = _encode({"kind": "lost", "shard": shard, "from": offset, "to": first})
            for known in self._known.values():
                if known.webhook.since.get(shard, 0) < first:
                    wanted.setdefault(known.webhook.id, []).append(lost)
        for run in log.runs:
            for place, payload in enumerate(run.payloads(), run.offset):
                event = read_event(payload)
                for known in self._known.values():
                    if known.wants(shard, place, event.tenant, event.queue, event.kind):
                        told = named(event.kind, bytes(payload))
                        wanted.setdefault(known.webhook.id, []).append(told)

    async def _push(self, wanted: dict[str, list[bytes]], after: Positions) -> None:
        """Push deliveries, and move on in the logs: in one commit."""
        most = self._node.limits.payload_bytes_max
        pushes = [
            PushJobs(TENANT, queue_of(name), jobs)
            for name, events in wanted.items()
            if (jobs := [Job(each) for each in together(events, most)])
        ]
        moved = KvWrite(TENANT, [Change(SET, POSITION, _encode(after))])
        while True:
            try:
                await self._ask(Transact(TENANT, [*pushes, moved]))
                break
            except Busy:
                raise
            except PenstockError as error:
                # One queue that can't be pushed to must not hold up all the others.
                at = re.match(r"ops\[(\d+)\]", str(error.details.get("field", "")))
                if at is None or int(at[1]) >= len(pushes):
                    raise
                logger.error("events for %s are lost: %s", pushes.pop(int(at[1])).queue, error.message)
        self._unkept = 0


def _check(webhook: Webhook) -> None:
    """Raise unless a webhook may be registered."""
    check_name("secret", webhook.secret)
    for name, given in (("queues", webhook.queues), ("kinds", webhook.kinds)):
        if len(given) > NAMES_MAX:
            raise Invalid(name, f"a list of at most {NAMES_MAX}")
    for queue in webhook.queues:
        check_queue_name(queue)
    webhook.kinds = sorted(kinds_of(webhook.kinds))


def new_id() -> str:
    return secrets.token_hex(8)


def new_secret() -> str:
    return secrets.token_hex(32)


def together(events: list[bytes], most: int) -> Iterator[bytes]:
    """Events as JSON arrays that can be delivered: not too many, nor too large, in each.

    >>> list(together([b"1", b"2", b"[3, 4]"], 7))
    [b'[1,2]']
    """
    room = min(TOGETHER_BYTES, most)
    some: list[bytes] = []
    size = 2
    for each in chain(events, [b""]):
        if some and (not each or len(some) == TOGETHER_MAX or size + len(each) > room):
            yield b"[" + b",".join(some) + b"]"
            some, size = [], 2
        if len(each) + 2 > most:
            logger.error(
                "an event of %d bytes is larger than payload_bytes_max, and was not forwarded", len(each)
            )
        elif each:
            some.append(each)
            size += len(each) + 1
