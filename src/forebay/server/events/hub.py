"""Live events: collect what the node emits for a moment, then send it to all subscribers.

Subscribers with the same filter share the encoded events: each event is encoded once for all of them. A
subscriber that does not read is dropped, so a slow one takes up neither memory nor the others' time.
"""

from asyncio import AbstractEventLoop, Future, TimerHandle
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec
from msgspec import Struct

from forebay.broker.node import Node
from forebay.core.api.principals import has_queue
from forebay.core.api.queries import EventPositions, EventsPast, PastFound, PositionsFound
from forebay.core.errors import ForebayError, Invalid
from forebay.core.state import NOT_KEPT, EmittedEvent
from forebay.core.words import EVENT_KINDS, WORKER_KINDS

FLUSH_S = 0.02
"""How long events are collected before a batch is sent."""
WAITING_BYTES_MAX = 1 << 20
"""Bytes queued for one subscriber, unless they are a single batch; beyond this the subscriber is dropped."""


LIVE_KINDS = (*EVENT_KINDS, *WORKER_KINDS)
"""Kinds of events that subscribers may be told of; those of the core are first, under their numbers."""


def kinds_of(names: Iterable[str], field: str = "kind", known: Sequence[str] = LIVE_KINDS) -> frozenset[str]:
    """Return event kinds by their names; raise if one is unknown."""
    found = frozenset(names)
    if not found <= frozenset(known):
        raise Invalid(field, f"of {', '.join(known)}")
    return found


class Wanted(Struct, frozen=True):
    """Filter of a subscription."""

    tenant: str
    queues: frozenset[str] = frozenset()
    """All queues if empty."""
    kinds: frozenset[str] = frozenset()
    """All kinds if empty."""
    within: tuple[str, ...] = ()
    """Patterns, one of which the queue must match; all queues, and events of none, if empty."""

    def has(self, tenant: str, queue: str, kind: str) -> bool:
        return (
            tenant == self.tenant
            and (not self.queues or queue in self.queues)
            and (not self.kinds or kind in self.kinds)
            and has_queue(self.within, queue)
        )


NO_SHARD, NO_QUEUE = -1, ""
"""Where an event belongs that is about no queue."""
BEGINNING = "0.0"
"""Event id before the first event."""
POSITIONS_MAX = 40_000
"""Characters of an event id, at most: it has one part per shard."""
Positions = dict[int, int]
"""Next offset in each event log, by shard."""


def shown_positions(positions: Positions) -> str:
    """Return positions as an event id.

    >>> shown_positions({3: 105, 7: 2}), parse_positions("3.105-7.2", 16)
    ('3.105-7.2', {3: 105, 7: 2})
    """
    return "-".join(f"{shard}.{offset}" for shard, offset in sorted(positions.items())) or BEGINNING


def parse_positions(text: str, shards: int) -> Positions:
    """Return the positions of an event id; raise if no store with so many shards can have given it out."""
    found: Positions = {}
    if len(text) > POSITIONS_MAX:
        raise Invalid("after", "the id of an event as it was given out")
    for part in text.split("-"):
        shard, _, offset = part.partition(".")
        whole = shard.isdigit() and offset.isdigit() and part.isascii() and len(part) <= 30
        if not whole or int(shard) >= shards or int(shard) in found:
            raise Invalid("after", "the id of an event as this server gave it out, as Last-Event-ID, too")
        found[int(shard)] = int(offset)
    return found


class Batch(Struct, frozen=True, gc=False):
    """Events sent together, and the event id to resume from after them."""

    events: list[tuple[str, bytes]]
    """Kind and JSON of each event."""
    after: str

    def as_stream(self) -> bytes:
        """Return the batch as server-sent events; only the last one carries the id."""
        out = [b"event: %s\ndata: %s\n\n" % (kind.encode(), payload) for kind, payload in self.events]
        out[-1] = b"id: %s\n%s" % (self.after.encode(), out[-1])
        return b"".join(out)


class Listener:
    """One subscription: a bounded buffer of batches between the hub and one client."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[tuple[Batch, bytes]] = []
        self._bytes = 0
        self._wake: Future[None] | None = None
        self.dropped = False
        """The client did not read: its buffer is gone, and it gets nothing more."""
        self.on_drop: Callable[[], None] = lambda: None
        """Called when it is dropped. The task of the client may be blocked in a send that never completes, so
        it can't be woken through ``wait``."""
        self.ended = False

    def offer(self, batch: Batch, stream: bytes) -> None:
        if self.dropped:
            return
        if self._waiting and self._bytes + len(stream) > WAITING_BYTES_MAX:
            self.dropped = True
            self._waiting.clear()
            self.on_drop()
        else:
            self._waiting.append((batch, stream))
            self._bytes += len(stream)
        self.wake()

    def end(self) -> None:
        self.ended = True
        self.wake()

    def wake(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def take(self) -> list[tuple[Batch, bytes]]:
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        return waiting

    async def wait(self) -> None:
        """Wait for batches to take, the end of the subscription, its drop, or a call of ``wake``."""
        if not (self._waiting or self.dropped or self.ended):
            self._wake = self._loop.create_future()
            await self._wake
            self._wake = None


class _Kept(Struct):
    """Fields of a stored event that filters need."""

    kind: str
    tenant: str
    queue: str


read_event = msgspec.json.Decoder(_Kept).decode


class Hub:
    """All subscriptions to events, and the follower that forwards them to webhooks."""

    def __init__(self, node: Node, loop: AbstractEventLoop) -> None:
        self._node = node
        self._loop = loop
        self._wanted: dict[Wanted, Wanted] = {}
        """Filters in use, each once."""
        self._listeners: dict[Wanted, dict[Listener, None]] = {}
        self._by_queue: dict[tuple[str, str], dict[Wanted, None]] = {}
        """Filters by tenant and queue; the queue is empty for filters that match all queues."""
        self._pending: list[EmittedEvent] = []
        self._timer: TimerHandle | None = None
        self._positions: Positions = {}
        """Next offset of each log after the events already sent."""
        self._engine = node.engine
        """Engine that emitted them. The node replaces its engine when it reloads after a failed commit."""
        self._follower: Callable[[list[EmittedEvent]], None] | None = None
        self._is_listening = False
        self.count = 0

    def parse(self, text: str) -> Positions:
        """Return the positions of an event id of this store."""
        return parse_positions(text, self._node.engine.count)

    def positions(self) -> Positions:
        """Return the ends of the event logs, including events not stored yet."""
        found = self._node.peek(EventPositions())
        if isinstance(found, ForebayError):
            raise found
        assert isinstance(found, PositionsFound)
        return found.ends

    def reached(self, tenant: str) -> str:
        """Send what is pending, and return the event id of a tenant behind it."""
        self._flush()
        return shown_positions(self._of(tenant))

    def _of(self, tenant: str) -> Positions:
        """Return the positions in the logs of a tenant's shards: others would tell what other tenants do."""
        engine, at = self._node.engine, self._positions
        if engine.control.is_spread(tenant):
            return dict(at)
        home = engine.home(tenant)
        return {home: at[home]} if home in at else {}

    def past_damage(self, shard: int, offset: int) -> int:
        """Return the offset behind a damaged segment of an event log; none of its events can be read."""
        found = self._node.peek(EventsPast(shard, offset))
        if isinstance(found, ForebayError):
            raise found
        assert isinstance(found, PastFound)
        return found.offset

    def join(self, wanted: Wanted) -> tuple[Listener, Positions]:
        """Subscribe. Return the listener, and the positions where its live events begin."""
        # Events collected so far belong to the backlog of the new subscriber: send them before it is added,
        # so that the positions returned leave neither a gap nor an overlap.
        self._flush()
        listener = Listener(self._loop)
        # One object per filter, so that dicts find it by identity: large filters take long to compare.
        wanted = self._wanted.setdefault(wanted, wanted)
        self._listeners.setdefault(wanted, {})[listener] = None
        for place in _places(wanted):
            self._by_queue.setdefault(place, {})[wanted] = None
        self.count += 1
        self._listen()
        return listener, self._of(wanted.tenant)

    def follow(self, follower: Callable[[list[EmittedEvent]], None] | None) -> None:
        """Call ``follower`` when there are new events, which it reads from their logs; None removes it."""
        self._flush()
        self._follower = follower
        self._listen()

    def _listen(self) -> None:
        """Have the node emit events exactly while there are subscribers or a follower."""
        wanted = self.count > 0 or self._follower is not None
        if wanted and not self._is_listening:
            self._engine, self._positions = self._node.engine, self.positions()
        if wanted != self._is_listening:
            self._node.listen(self._hear if wanted else None)
        self._is_listening = wanted

    def leave(self, wanted: Wanted, listener: Listener) -> None:
        wanted = self._wanted.get(wanted, wanted)
        there = self._listeners.get(wanted, {})
        if listener in there:
            del there[listener]
            self.count -= 1
        if not there and self._listeners.pop(wanted, None) is not None:
            del self._wanted[wanted]
            for place in _places(wanted):
                self._by_queue[place].pop(wanted, None)
                if not self._by_queue[place]:
                    del self._by_queue[place]
        self._listen()

    def end(self) -> None:
        """End all subscriptions: the server shuts down."""
        for there in self._listeners.values():
            for listener in there:
                listener.end()

    def _hear(self, told: list[EmittedEvent]) -> None:
        if self._node.engine is not self._engine:
            self._begin_again(told)
        # Events under way when the first subscriber joined lie before its position: its backlog has them.
        self._pending += [each for each in told if each.offset == NOT_KEPT or not self._is_known(each)]
        self._plan_flush()

    def _plan_flush(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(FLUSH_S, self._flush)

    def tell(self, kind: str, tenant: str, payload: bytes) -> None:
        """Tell subscribers to all queues of something that is no matter of the core, and not stored."""
        if self.count:
            number = LIVE_KINDS.index(kind)
            self._pending.append(EmittedEvent(NO_SHARD, NOT_KEPT, number, tenant, NO_QUEUE, payload))
            self._plan_flush()

    def _is_known(self, told: EmittedEvent) -> bool:
        return told.offset < self._positions.get(told.shard, 0)

    def _begin_again(self, told: list[EmittedEvent]) -> None:
        """Start over after the node reloaded: offsets of events that were never stored are used again."""
        self._flush()
        self._engine, self._positions = self._node.engine, self.positions()
        # The first event of each shard in this batch is where its log continues.
        for each in reversed(told):
            if each.offset != NOT_KEPT:
                self._positions[each.shard] = each.offset

    def _flush(self) -> None:
        """Send the collected events to all subscribers that match."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        told, self._pending = self._pending, []
        if not told:
            return
        # Positions move over all events, also those that match no filter: every id resumes behind them.
        for each in told:
            if each.offset != NOT_KEPT:
                self._positions[each.shard] = each.offset + 1
        if self._follower is not None:
            self._follower(told)
        if not self.count:
            return
        found: dict[Wanted, list[tuple[str, bytes]]] = {}
        for each in told:
            kind = LIVE_KINDS[each.kind]
            event = None
            places = dict.fromkeys([(each.tenant, each.queue), (each.tenant, NO_QUEUE)])
            for place in places:
                for wanted in self._by_queue.get(place, ()):
                    if wanted.has(each.tenant, each.queue, kind):
                        event = event or (kind, each.payload)
                        found.setdefault(wanted, []).append(event)
        reached = {tenant: shown_positions(self._of(tenant)) for tenant in {each.tenant for each in found}}
        for wanted, events in found.items():
            batch = Batch(events, reached[wanted.tenant])
            stream = batch.as_stream()
            for listener in list(self._listeners[wanted]):
                listener.offer(batch, stream)


def _places(wanted: Wanted) -> list[tuple[str, str]]:
    return [(wanted.tenant, queue) for queue in wanted.queues] or [(wanted.tenant, "")]


def matching(payloads: Iterable[bytes], wanted: Wanted) -> Iterator[tuple[str, bytes]]:
    """Yield kind and JSON of those stored events that match a filter."""
    for payload in payloads:
        event = read_event(payload)
        if wanted.has(event.tenant, event.queue, event.kind):
            yield event.kind, bytes(payload)
