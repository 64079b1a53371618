"""Events on their way out: what the node tells is put together for a moment, then given to all who listen.

Those who ask for the same share what is made of it: an event is encoded once for all of them. One that does
not read what it gets is dropped, so nobody's slowness takes up memory, or anybody else's time.
"""

from asyncio import AbstractEventLoop, Future, TimerHandle
from collections.abc import Callable, Iterable, Iterator

import msgspec
from msgspec import Struct

from forebay.broker.node import Node
from forebay.core.api.queries import EventPositions, EventsPast, PastFound, PositionsFound
from forebay.core.errors import ForebayError, Invalid
from forebay.core.state import NOT_KEPT, EmittedEvent
from forebay.core.words import EVENT_KINDS

FLUSH_S = 0.02
"""How long events are put together before they leave."""
WAITING_BYTES_MAX = 1 << 20
"""Bytes that wait for a listener, unless they are one batch; with more it is dropped."""

NAMES = {
    "pushed": ("job:pushed", "pushed"),
    "popped": ("job:popped", "popped"),
    "settled": ("job:completed", "completed"),
    "retried": ("job:retried", "retried"),
    "returned": ("job:returned", "returned"),
    "dead": ("job:failed", "failed"),
    "requeued": ("job:requeued", "requeued"),
    "cancelled": ("job:cancelled", "cancelled"),
    "discarded": ("job:discarded", "discarded"),
    "expired": ("messages:expired", "expired"),
    "evicted": ("messages:evicted", "evicted"),
    "created": ("queue:created", "created"),
    "configured": ("queue:configured", "configured"),
    "deleted": ("queue:deleted", "deleted"),
    "retired": ("messages:retired", "retired"),
    "outdated": ("messages:outdated", "outdated"),
    "removed": ("partition:removed", "removed"),
}
"""What other systems call an event: ``event`` and ``event_type`` of each kind."""
_OURS = {theirs: kind for kind, (_, theirs) in NAMES.items()} | {kind: kind for kind in EVENT_KINDS}
_PREFIXES = {
    kind: f'{{"event":"{event}","event_type":"{event_type}",'.encode()
    for kind, (event, event_type) in NAMES.items()
}


def kinds_of(names: Iterable[str], field: str = "kind") -> frozenset[str]:
    """Kinds by their names, ours or others'."""
    found = frozenset(_OURS.get(name, "") for name in names)
    if "" in found:
        raise Invalid(field, f"of {', '.join(_OURS)}")
    return found


class Wanted(Struct, frozen=True):
    """Which events somebody wants to hear of."""

    tenant: str
    queues: frozenset[str] = frozenset()
    """All if empty."""
    kinds: frozenset[str] = frozenset()
    """All if empty."""

    def has(self, tenant: str, queue: str, kind: str) -> bool:
        return (
            tenant == self.tenant
            and (not self.queues or queue in self.queues)
            and (not self.kinds or kind in self.kinds)
        )


BEGINNING = "0.0"
"""The id before the first event of all."""
POSITIONS_MAX = 40_000
"""Characters of the id of an event, at most: it has a part for each shard."""
Positions = dict[int, int]
"""Where each log of events goes on, by shard."""


def shown_positions(positions: Positions) -> str:
    """Positions as the id of an event.

    >>> shown_positions({3: 105, 7: 2}), parse_positions("3.105-7.2")
    ('3.105-7.2', {3: 105, 7: 2})
    """
    return "-".join(f"{shard}.{offset}" for shard, offset in sorted(positions.items())) or BEGINNING


def parse_positions(text: str) -> Positions:
    found: Positions = {}
    if len(text) > POSITIONS_MAX:
        raise Invalid("after", "the id of an event as it was given out")
    for part in text.split("-") if text else ():
        shard, _, offset = part.partition(".")
        if not (shard.isdigit() and offset.isdigit() and part.isascii() and len(part) <= 30):
            raise Invalid("after", "the id of an event as it was given out, as Last-Event-ID, too")
        found[int(shard)] = int(offset)
    return found


def named(kind: str, payload: bytes) -> bytes:
    """An event with the names that others know it by."""
    return _PREFIXES[kind] + payload[1:]


class Batch(Struct, frozen=True, gc=False):
    """Events that leave together, and where their logs go on behind them."""

    events: list[tuple[str, bytes]]
    """Kind and JSON of each."""
    after: str

    def as_stream(self) -> bytes:
        """As server-sent events; the last one has the id."""
        out = [b"event: %s\ndata: %s\n\n" % (kind.encode(), payload) for kind, payload in self.events]
        out[-1] = b"id: %s\n%s" % (self.after.encode(), out[-1])
        return b"".join(out)


class Listener:
    """Somebody who hears of events, as fast as they are read."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[tuple[Batch, bytes]] = []
        self._bytes = 0
        self._wake: Future[None] | None = None
        self.dropped = False
        """It did not read, and gets nothing more."""
        self.on_drop: Callable[[], None] = lambda: None
        """Called when it is dropped: who waits until something is read would wait for ever."""
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
        """Until there is something to take, it is over, or somebody wakes it."""
        if not (self._waiting or self.dropped or self.ended):
            self._wake = self._loop.create_future()
            await self._wake
            self._wake = None


class _Kept(Struct):
    """What a kept event says of itself."""

    kind: str
    tenant: str
    queue: str


read_event = msgspec.json.Decoder(_Kept).decode


class Hub:
    """Everyone who listens."""

    def __init__(self, node: Node, loop: AbstractEventLoop) -> None:
        self._node = node
        self._loop = loop
        self._wanted: dict[Wanted, Wanted] = {}
        """What somebody listens for, each once."""
        self._listeners: dict[Wanted, dict[Listener, None]] = {}
        self._by_queue: dict[tuple[str, str], dict[Wanted, None]] = {}
        """By tenant and queue; the queue is empty for those who want to hear of all."""
        self._pending: list[EmittedEvent] = []
        self._timer: TimerHandle | None = None
        self._positions: Positions = {}
        """Where the logs go on behind what was told."""
        self._engine = node.engine
        """Whose events those were."""
        self._follower: Callable[[list[EmittedEvent]], None] | None = None
        self._is_listening = False
        self.count = 0

    def positions(self) -> Positions:
        """Where the logs of events end that are kept now, or soon will be."""
        found = self._node.peek(EventPositions())
        if isinstance(found, ForebayError):
            raise found
        assert isinstance(found, PositionsFound)
        return found.ends

    def reached(self) -> str:
        """The id of all that has been told, or is about to be."""
        self._flush()
        return shown_positions(self._positions)

    def past_damage(self, shard: int, offset: int) -> int:
        """Where a log of events goes on behind a segment that is damaged: nothing of it can be read."""
        found = self._node.peek(EventsPast(shard, offset))
        if isinstance(found, ForebayError):
            raise found
        assert isinstance(found, PastFound)
        return found.offset

    def join(self, wanted: Wanted) -> tuple[Listener, Positions]:
        """Hear of events from now on; where their logs go on behind those it has not heard of."""
        self._flush()
        listener = Listener(self._loop)
        # The same object for all who want the same: large ones take long to compare.
        wanted = self._wanted.setdefault(wanted, wanted)
        self._listeners.setdefault(wanted, {})[listener] = None
        for place in _places(wanted):
            self._by_queue.setdefault(place, {})[wanted] = None
        self.count += 1
        self._listen()
        return listener, dict(self._positions)

    def follow(self, follower: Callable[[list[EmittedEvent]], None] | None) -> None:
        """Have somebody told that there are events; they are read from their logs. Nobody, if it is None."""
        self._flush()
        self._follower = follower
        self._listen()

    def _listen(self) -> None:
        """Be told of events as long as anybody wants to hear of them."""
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
        """The server stops: everyone is told so."""
        for there in self._listeners.values():
            for listener in there:
                listener.end()

    def _hear(self, told: list[EmittedEvent]) -> None:
        if self._node.engine is not self._engine:
            self._begin_again(told)
        # What was on its way when the first one joined is before its place.
        self._pending += [each for each in told if each.offset == NOT_KEPT or not self._is_known(each)]
        if self._timer is None:
            self._timer = self._loop.call_later(FLUSH_S, self._flush)

    def _is_known(self, told: EmittedEvent) -> bool:
        return told.offset < self._positions.get(told.shard, 0)

    def _begin_again(self, told: list[EmittedEvent]) -> None:
        """The node has reloaded: offsets of events that were not kept are now those of others."""
        self._flush()
        self._engine, self._positions = self._node.engine, self.positions()
        for each in reversed(told):
            if each.offset != NOT_KEPT:
                self._positions[each.shard] = each.offset

    def _flush(self) -> None:
        """Give everyone what was told since the last time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        told, self._pending = self._pending, []
        if not told:
            return
        for each in told:
            if each.offset != NOT_KEPT:
                self._positions[each.shard] = each.offset + 1
        if self._follower is not None:
            self._follower(told)
        if not self.count:
            return
        found: dict[Wanted, list[tuple[str, bytes]]] = {}
        for each in told:
            kind = EVENT_KINDS[each.kind]
            event = None
            for place in ((each.tenant, each.queue), (each.tenant, "")):
                for wanted in self._by_queue.get(place, ()):
                    if not wanted.kinds or kind in wanted.kinds:
                        event = event or (kind, named(kind, each.payload))
                        found.setdefault(wanted, []).append(event)
        after = shown_positions(self._positions)
        for wanted, events in found.items():
            batch = Batch(events, after)
            stream = batch.as_stream()
            for listener in list(self._listeners[wanted]):
                listener.offer(batch, stream)


def _places(wanted: Wanted) -> list[tuple[str, str]]:
    return [(wanted.tenant, queue) for queue in wanted.queues] or [(wanted.tenant, "")]


def matching(payloads: Iterable[bytes], wanted: Wanted) -> Iterator[tuple[str, bytes]]:
    """Those of kept events that somebody wants."""
    for payload in payloads:
        event = read_event(payload)
        if wanted.has(event.tenant, event.queue, event.kind):
            yield event.kind, named(event.kind, bytes(payload))
