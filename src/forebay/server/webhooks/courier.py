"""Deliver the events of one shard to one webhook, one POST at a time.

Deliveries are messages of a queue of the webhook's own in that shard: a delivery that the endpoint does not
accept is retried after its backoff, and becomes a dead letter when it has failed too often. A courier that is
stopped returns the delivery that it has not posted.
"""

import asyncio
import logging
from asyncio import AbstractEventLoop, Semaphore, Task
from collections.abc import Callable

import msgspec
from msgspec import Struct

from forebay.broker.node import Node
from forebay.core.api.commands import Ack, Command, Configure, Nack, Pop, Popped
from forebay.core.bounds import Limits
from forebay.core.errors import Busy, ForebayError
from forebay.core.state import Backoff
from forebay.core.words import EXPONENTIAL, system_of
from forebay.server.node_client import NodeClient
from forebay.server.webhooks.forms import Form
from forebay.server.webhooks.post import Letter, Send, Sending
from forebay.server.webhooks.signatures import SIGNATURE, TIMESTAMP, signature

logger = logging.getLogger("forebay.webhooks")

AT_ONCE = 64
"""POSTs under way at a time, of all webhooks; each webhook has one per shard of its tenant."""
DEADLINE_S = 20.0
"""Timeout of a whole POST."""
SLOT_S = 60.0
"""How long a popped delivery may wait for a slot before it is returned."""
LEASE_MS = 120_000
"""Longer than the wait for a slot and the POST together."""
ATTEMPTS_MAX = 10
BACKOFF = Backoff(EXPONENTIAL, 1_000, 300_000)
"""Waits of 1 s, 2 s, 4 s … up to 5 min: with 10 attempts, the last is some 9 minutes after the first."""
KEPT_MS = 7 * 86_400_000
"""Retention of deliveries, dead letters included."""
WAIT_MS = 60_000
AGAIN_S = 1.0
"""Wait before a busy server is asked again."""
SETTLES_MAX = 10
PROBLEM_CHARS_MAX = 500
"""Characters of an error that are stored and logged."""


class Webhook(Struct, kw_only=True):
    """A registered webhook, as it is stored in the home shard of its tenant."""

    id: str
    tenant: str
    url: str
    secret: str
    queues: list[str] = []
    """All queues if empty."""
    kinds: list[str] = []
    """All kinds if empty."""
    created_at: int = 0
    form: str = ""
    """Name of the form of its deliveries; empty for the native one."""
    since: dict[int, int] = {}
    """First event to deliver, by shard: the ends of the event logs at registration."""


QUEUES = "webhook."
"""Prefix of the queues of deliveries."""


def queue_of(webhook: str) -> str:
    """Return the queue of deliveries to a webhook; it has one in each shard with events for it."""
    return f"{QUEUES}{webhook}"


def configuration(webhook: str, shard: int, limits: Limits) -> Configure:
    """Return the command that configures this queue."""
    return Configure(
        system_of(shard),
        queue_of(webhook),
        lease_ms=min(LEASE_MS, limits.lease_ms_max),
        completed_retention_ms=0,
        max_attempts=ATTEMPTS_MAX,
        backoff=BACKOFF,
        dead_letters=True,
        retention_ms=KEPT_MS,
    )


class _First(Struct):
    kind: str


_first = msgspec.json.Decoder(list[_First]).decode


def letter(webhook: Webhook, message: int, events: bytes, now_ms: int, private: bool) -> Letter:
    """Return a delivery as it is posted: same id and events on every attempt, but a new signature."""
    delivery = f"{webhook.id}-{message}"
    body = b'{"id":"%s","events":%s}' % (delivery.encode(), events)
    timestamp = now_ms // 1000
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "Forebay",
        "X-Forebay-Event": _first(events)[0].kind,
        "X-Forebay-Delivery": delivery,
        TIMESTAMP: str(timestamp),
        SIGNATURE: signature(webhook.secret, body, timestamp),
    }
    return Letter(webhook.url, headers, body, private)


def printable(text: str) -> str:
    """Return text of an endpoint, shortened and escaped so that it can't break or disguise a line of the log.

    >>> print(printable("no\\nERROR \\x1b[2J\\u202e ü"))
    no\\nERROR \\x1b[2J\\u202e ü
    """
    some = text[:PROBLEM_CHARS_MAX]
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in some)


def letter_of(webhook: Webhook, form: Form, message: int, body: bytes, private: bool) -> Letter:
    """Return a delivery in the form of another system."""
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "Forebay",
        "X-Forebay-Delivery": f"{webhook.id}-{message}",
        **form.headers(webhook.secret, body),
    }
    return Letter(webhook.url, headers, body, private)


class Office(Struct):
    """What all couriers share."""

    node: Node
    loop: AbstractEventLoop
    clock: Callable[[], int]
    private: bool
    send: Send
    slots: Semaphore
    forms: dict[str, Form] = {}
    """Forms of deliveries by name."""


class Courier(NodeClient):
    """Delivers the events of one shard to one webhook."""

    def __init__(self, office: Office, webhook: Webhook, shard: int) -> None:
        super().__init__(office.node)
        self._office = office
        self._webhook = webhook
        self._tenant = system_of(shard)
        self._is_bringing = False
        self._is_stopping = False
        self.delivered = self.failed = 0
        self.task: Task[None] = office.loop.create_task(self._run())

    def stop(self) -> None:
        """Start nothing more; a POST under way may finish."""
        self._is_stopping = True
        if not self._is_bringing:
            self.cancel()

    def cancel(self) -> None:
        """Stop at once; the delivery under way is returned."""
        self._is_stopping = True
        self.task.cancel()
        self.node.forget(self)

    async def _run(self) -> None:
        wait_ms = min(WAIT_MS, self.node.limits.wait_ms_max)
        lease_ms = min(LEASE_MS, self.node.limits.lease_ms_max)
        while not (self._is_stopping or self.node.draining):
            if self._is_suspended():
                await asyncio.sleep(AGAIN_S)
                continue
            pop = Pop(
                self._tenant, queue_of(self._webhook.id), wait_ms=wait_ms, lease_ms=lease_ms, create=True
            )
            popped = await self.ask(pop)
            if isinstance(popped, ForebayError):
                logger.warning("webhook %s waits: %s", self._webhook.id, popped.message)
                await asyncio.sleep(AGAIN_S)
                continue
            assert isinstance(popped, Popped)
            if popped.lease is not None and self._is_suspended():  # meanwhile
                self.node.give_back(popped)
            elif popped.lease is not None:
                await self._bring(popped)
            elif wait_ms < AGAIN_S * 1000:
                await asyncio.sleep(AGAIN_S)

    def _is_suspended(self) -> bool:
        """Return whether the tenant is suspended: its deliveries wait."""
        return self.node.engine.control.is_suspended(self._webhook.tenant)

    async def _bring(self, popped: Popped) -> None:
        self._is_bringing = True
        is_settled = False
        try:
            (delivery,) = popped.deliveries
            (events,) = delivery.payloads()
            if not self._is_stopping and await self._has_slot():
                problem = await self._post(delivery.first, bytes(events))
                await self._settle(popped, problem, delivery.failures)
                is_settled = True
        finally:
            self._is_bringing = False
            # Also if the task is cancelled: no need to wait until the lease expires.
            if not is_settled:
                self.node.give_back(popped)

    async def _has_slot(self) -> bool:
        try:
            await asyncio.wait_for(self._office.slots.acquire(), SLOT_S)
        except TimeoutError:
            return False
        return True

    async def _post(self, message: int, events: bytes) -> str | None:
        """Post a delivery; return the error, or None if the endpoint accepted it."""
        office = self._office
        try:
            posted = await self._letter(message, events)
            sending: Sending = office.send(office.loop, posted)
        except BaseException:
            office.slots.release()
            raise
        # The slot stays taken until the thread ends, even if this task no longer waits for it.
        sending.outcome.add_done_callback(lambda _: office.slots.release())
        try:
            await asyncio.wait({sending.outcome}, timeout=DEADLINE_S)
        finally:
            if not sending.outcome.done():
                sending.cut()
        if not sending.outcome.done():
            return f"no answer within {DEADLINE_S:g} s"
        error = sending.outcome.exception()
        return sending.outcome.result() if error is None else f"{type(error).__name__}: {error}"

    async def _letter(self, message: int, events: bytes) -> Letter:
        office, form = self._office, self._office.forms.get(self._webhook.form)
        if form is None:
            return letter(self._webhook, message, events, office.clock(), office.private)
        (event,) = msgspec.json.decode(events, type=tuple[msgspec.Raw])
        return letter_of(
            self._webhook, form, message, await form.body(self._webhook.tenant, bytes(event)), office.private
        )

    async def _settle(self, popped: Popped, problem: str | None, failures: int) -> None:
        problem = None if problem is None else printable(problem)
        if problem is None:
            command: Command = Ack(self._tenant, popped.lease)
            self.delivered += 1
        else:
            command = Nack(self._tenant, popped.lease, error=problem)
            self.failed += 1
            attempt = (self._webhook.id, failures + 1, ATTEMPTS_MAX, problem)
            logger.warning("webhook %s: attempt %d of %d failed: %s", *attempt)
        for _ in range(SETTLES_MAX):
            reply = await self.ask(command)
            if not isinstance(reply, Busy):
                break
            await asyncio.sleep(AGAIN_S)
        if isinstance(reply, ForebayError):
            logger.warning("webhook %s: a delivery will be repeated: %s", self._webhook.id, reply.message)
