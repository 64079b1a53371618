"""Webhooks: post lifecycle events to registered URLs, at least once each, crashes of the server included.

A webhook is registered as a value of the server's own tenant in the home shard of the webhook's tenant. The
forwarder pushes the events that it wants to a queue of its own, and a courier posts them from there.
"""

import asyncio
import logging
import secrets
from asyncio import AbstractEventLoop, Semaphore, Task
from collections.abc import Callable, Iterable, Mapping

import msgspec
from msgspec import Struct

from forebay.core.api.commands import Command, Obliterate
from forebay.core.api.jobs import KvChange, KvWrite
from forebay.core.api.queries import ListQueues, QueuesFound
from forebay.core.bounds import check_name, check_queue_name
from forebay.core.errors import Busy, ForebayError, Invalid, NotFound, Unsupported
from forebay.core.keyvalue import keys
from forebay.core.words import DELETE, EVENT_KINDS, SET, system_of
from forebay.server.events.hub import Hub, kinds_of
from forebay.server.node_client import NodeClient
from forebay.server.webhooks.courier import AGAIN_S, AT_ONCE, QUEUES, Office, Webhook, configuration, queue_of
from forebay.server.webhooks.forms import Form
from forebay.server.webhooks.forwarder import PROGRESS, Figures, Forwarder, progress_key
from forebay.server.webhooks.post import Posting, Refused, Send, addresses_of, in_thread, target_of

logger = logging.getLogger("forebay.webhooks")

WEBHOOKS_MAX = 100
"""Webhooks of one tenant."""
NAMES_MAX = 100
"""Queues, or kinds, that a webhook names."""
FINDING_MAX = 8
"""Hosts resolved at a time."""
FOUND_S = 10.0
"""Timeout for resolving the host of a new webhook."""
WEBHOOKS = keys.pack(["webhook"])
"""Prefix of the keys of webhooks."""


def key_of(webhook: Webhook) -> bytes:
    return keys.pack(["webhook", webhook.tenant, webhook.id])


_encode = msgspec.json.Encoder().encode


class Found(Struct):
    """What a shard has of webhooks."""

    shard: int
    webhooks: list[Webhook]
    """Those of tenants whose home it is."""
    queues: set[str]
    """Queues of deliveries."""
    progress: list[bytes]
    """Keys of webhooks' progress."""


class Webhooks:
    """All webhooks: registers and deletes them, and starts what delivers to them."""

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
        self._forwarder = Forwarder(hub, questions, self._office)
        self._finding = Semaphore(FINDING_MAX)
        self._is_loaded = False
        self._task: Task[None] | None = None

    def add_form(self, name: str, form: Form) -> None:
        """Let webhooks have this form of deliveries; before ``start``."""
        self._office.forms[name] = form

    # Registration.

    async def register(self, webhook: Webhook) -> None:
        """Register a webhook: it gets events from now on."""
        if not self._node.limits.events_bytes_max:
            raise Unsupported("webhooks need events to be kept: events_bytes_max is 0 here")
        _check(webhook)
        await self._find(webhook)
        async with self._forwarder.lock:
            self._check_ready()
            if len(self._forwarder.by_tenant.get(webhook.tenant, ())) >= WEBHOOKS_MAX:
                raise Busy(f"a tenant has at most {WEBHOOKS_MAX} webhooks; delete some")
            home = self._node.engine.home(webhook.tenant)
            # Which queues of a spread tenant it will be told of is not known yet: its own queues come later.
            shards = [] if self._node.engine.control.is_spread(webhook.tenant) else [home]
            for shard in shards:
                await self._forwarder.ask(configuration(webhook.id, shard, self._node.limits))
            webhook.created_at = self._office.clock()
            webhook.since = self._hub.positions()
            await self._forwarder.ask(
                KvWrite(system_of(home), [KvChange(SET, key_of(webhook), _encode(webhook))])
            )
            self._forwarder.add(webhook, shards)

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
        async with self._forwarder.lock:
            self._check_ready()
            known = self._forwarder.known.get(name)
            if known is None or known.webhook.tenant != tenant:
                raise NotFound("there is no such webhook")
            registered = KvChange(DELETE, key_of(known.webhook))
            await self._forwarder.ask(KvWrite(system_of(self._node.engine.home(tenant)), [registered]))
            await self._forwarder.remove(known)
            queues = {shard: [queue_of(name)] for shard in known.couriers}
            await self._clear(queues, {shard: [progress_key(name)] for shard in known.stored})

    async def _clear(
        self, queues: Mapping[int, Iterable[str]], values: Mapping[int, Iterable[bytes]]
    ) -> None:
        """Remove queues and values of deleted webhooks, by shard. What one shard refuses stops no other."""
        commands: list[Command] = [
            Obliterate(system_of(shard), queue) for shard, some in queues.items() for queue in some
        ]
        for shard, some in values.items():
            commands += [KvWrite(system_of(shard), [KvChange(DELETE, key)]) for key in some]
        replies = [await answer for answer in [self._questions.ask(command) for command in commands]]
        for reply in replies:
            if isinstance(reply, ForebayError):
                raise reply

    async def all(self, tenant: str) -> list[tuple[Webhook, Figures]]:
        """Return the webhooks of a tenant in the order they were registered."""
        async with self._forwarder.lock:
            self._check_ready()
            mine = list(self._forwarder.by_tenant.get(tenant, {}).values())
            mine.sort(key=lambda each: (each.webhook.created_at, each.webhook.id))
            return [(each.webhook, self._forwarder.figures(each)) for each in mine]

    def _check_ready(self) -> None:
        if not self._is_loaded or self._node.draining:
            raise Busy("webhooks are being loaded, or the server stops")

    # Lifecycle.

    def start(self) -> None:
        self._task = self._loop.create_task(self._run())

    def stop(self) -> None:
        """Start nothing more, and store how far events are forwarded."""
        self._forwarder.stop()
        if self._task is not None:
            self._task.cancel()

    async def close(self, grace_s: float) -> None:
        """Give POSTs under way some time to finish."""
        if self._task is not None:
            await asyncio.wait({self._task})
        await self._forwarder.close(grace_s)

    async def _run(self) -> None:
        while True:
            try:
                if not self._is_loaded:
                    async with self._forwarder.lock:  # registrations wait for it
                        await self._load()
                await self._forwarder.run()
            except ForebayError as error:
                logger.warning("webhooks go on in a moment: %s", error.message)
            except Exception:
                logger.exception("bug: events could not be forwarded")
            await asyncio.sleep(AGAIN_S)

    # Load.

    async def _load(self) -> None:
        """Load the webhooks of all shards, remove what deleted ones left, and start couriers."""
        engine = self._node.engine
        found = await asyncio.gather(*map(self._found, list(engine.shards)))
        loaded = [each for each in found if each is not None]
        webhooks = {webhook.id: webhook for each in loaded for webhook in each.webhooks}
        for each in loaded:
            if each.queues:  # couriers of an earlier process may hold leases
                self._node.give_back_all(system_of(each.shard))
        if len(loaded) == engine.count:  # else a webhook may be registered in a shard that is not here
            await self._clear_unused(webhooks, loaded)
        for webhook in webhooks.values():
            shards = [each.shard for each in loaded if queue_of(webhook.id) in each.queues]
            self._forwarder.add(webhook, shards)
        self._is_loaded = True

    async def _found(self, shard: int) -> Found | None:
        """Return what a shard has of webhooks; None if it is damaged."""
        try:
            webhooks = await self._forwarder.values(shard, WEBHOOKS)
            progress = await self._forwarder.values(shard, PROGRESS)
            return Found(
                shard,
                [msgspec.json.decode(data, type=Webhook) for _, data in webhooks],
                await self._queues(shard),
                [key for key, _ in progress],
            )
        except Busy:
            raise
        except ForebayError as error:
            logger.error("webhooks of shard %d are left out: %s", shard, error.message)
            return None

    async def _clear_unused(self, webhooks: Iterable[str], loaded: list[Found]) -> None:
        """Remove queues and progress without a webhook: it was deleted, or never registered."""
        queues, progress = set(map(queue_of, webhooks)), set(map(progress_key, webhooks))
        try:
            await self._clear(
                {each.shard: each.queues - queues for each in loaded},
                {each.shard: [key for key in each.progress if key not in progress] for each in loaded},
            )
        except Busy:
            raise
        except ForebayError as error:
            logger.error("a queue of a deleted webhook is still there: %s", error.message)

    async def _queues(self, shard: int) -> set[str]:
        """Return the queues of deliveries in a shard; its event log is none of them."""
        reply = await self._forwarder.ask(ListQueues(system_of(shard)))
        assert isinstance(reply, QueuesFound)
        return {each.name for each in reply.queues if each.name.startswith(QUEUES)}


def _check(webhook: Webhook) -> None:
    """Raise unless a webhook may be registered."""
    check_name("secret", webhook.secret)
    for name, given in (("queues", webhook.queues), ("kinds", webhook.kinds)):
        if len(given) > NAMES_MAX:
            raise Invalid(name, f"a list of at most {NAMES_MAX}")
    for queue in webhook.queues:
        check_queue_name(queue)
    webhook.kinds = sorted(kinds_of(webhook.kinds, "kinds", EVENT_KINDS))


def new_id() -> str:
    return secrets.token_hex(8)


def new_secret() -> str:
    return secrets.token_hex(32)
