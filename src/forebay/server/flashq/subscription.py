"""SUBSCRIBE: events of a queue, sent over the connection that asked for them.

One event of the server may tell of many jobs; flashQ's tell of one each, so they are spread out here. Events
come between answers, and have ``event`` where answers have ``ok``.
"""

import asyncio

import msgspec

from forebay.core.errors import Busy, Unsupported
from forebay.server.events.hub import Listener, Wanted
from forebay.server.flashq.events import OURS, job_events
from forebay.server.tcp.codec import Outlet

SUBSCRIPTIONS_MAX = 100
"""Subscriptions of one connection."""
AT_ONCE = 1_000
"""Events written at a time: then the client must have read some of them."""

_to_json = msgspec.json.Encoder().encode
_to_packed = msgspec.msgpack.Encoder().encode


class Subscriptions:
    """The subscriptions of one connection, by queue."""

    def __init__(self) -> None:
        self._outlet: Outlet | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def open(self, outlet: Outlet) -> None:
        """Set where events are sent."""
        self._outlet = outlet

    def add(self, tenant: str, queue: str, events: list[str], *, packed: bool) -> None:
        """Subscribe to a queue from this moment on, in place of what was subscribed of it before.

        Names of events that nobody knows are ignored, as flashQ does; no names at all means every event.
        """
        outlet = self._outlet
        if outlet is None or outlet.services is None:
            raise Unsupported("SUBSCRIBE needs a connection")
        self.remove(queue)
        if len(self._tasks) >= SUBSCRIPTIONS_MAX:
            raise Busy(f"A connection has at most {SUBSCRIPTIONS_MAX} subscriptions")
        kinds = frozenset(OURS[each] for each in events or OURS if each in OURS)
        if not kinds:
            return
        hub = outlet.services.polls.hub
        wanted = Wanted(tenant, frozenset({queue}), kinds)
        listener, _ = hub.join(wanted)
        listener.on_drop = outlet.abort  # it does not read: it finds out by a connection that is gone
        task = outlet.loop.create_task(_send(listener, outlet, packed=packed))
        # Not in the task itself: one that is cancelled before it began would never leave.
        task.add_done_callback(lambda _: hub.leave(wanted, listener))
        self._tasks[queue] = task

    def remove(self, queue: str) -> None:
        task = self._tasks.pop(queue, None)
        if task is not None:
            task.cancel()

    def close(self) -> None:
        for queue in list(self._tasks):
            self.remove(queue)


async def _send(listener: Listener, outlet: Outlet, *, packed: bool) -> None:
    """Send events as fast as the client reads, until the server ends or it is dropped."""
    encode = _to_packed if packed else _to_json
    while not (listener.ended or listener.dropped):
        await listener.wait()
        payloads = [payload for batch, _ in listener.take() for _, payload in batch.events]
        bodies: list[bytes] = []
        for event in (each for payload in payloads for each in job_events(payload)):
            bodies.append(encode(event))
            if len(bodies) == AT_ONCE:
                await outlet.tell(bodies)
                bodies = []
        if bodies:
            await outlet.tell(bodies)
