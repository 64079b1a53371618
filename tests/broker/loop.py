"""What a node stands on in a test: a loop with a time of its own, a store that obeys, an asker that listens.

Time moves only when a test says so. A blocking store commits in a real thread, and the loop waits for it.
"""

import threading
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from heapq import heappop, heappush
from queue import SimpleQueue
from typing import Any, TypeVar, cast

from forebay.broker.node import Node
from forebay.broker.waiters import Ticket
from forebay.core.api.commands import Command, Configure, Pop, Popped, Push, Pushed, Reply
from forebay.core.api.queries import ListQueues, QueuesFound, State, StateFound
from forebay.core.bounds import Limits
from forebay.core.errors import Damaged, ForebayError
from forebay.core.records.commit import Commit
from forebay.core.state import Backoff, Log
from forebay.core.words import DEFAULT
from forebay.store.base import Claim
from forebay.store.memory import MemoryStore

T = TypeVar("T")

BEGIN = 1_700_000_000_000
"""The instant every test begins at; a round time for sweeps."""
SHARDS = 4
PATIENCE_S = 30.0
"""How long a thread may take before a test that waits for it fails."""
COMMITS_MAX = 1_000
"""More commits than any test makes."""
TURNS_MAX = 10_000
"""Turns without rest after which a loop is said to spin."""


class Handle:
    """Something the loop will call, unless it is cancelled."""

    def __init__(self, call: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self._call = call
        self._arguments = arguments
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True

    def run(self) -> None:
        if not self.cancelled:
            self._call(*self._arguments)


class Promise:
    """A future, as far as the node needs one."""

    def __init__(self) -> None:
        self._done = False

    def done(self) -> bool:
        return self._done

    def set_result(self, _: None) -> None:
        assert not self._done, "a result is set once"
        self._done = True

    def __await__(self) -> Generator[None, None, None]:
        while not self._done:
            yield


class FakeLoop:
    """An event loop whose time moves only when it is told to.

    As in asyncio, what is called soon runs in the next turn, and timers due at one instant run in one turn.
    """

    def __init__(self, at_ms: int = 0) -> None:
        self._ms = at_ms
        self._ready: deque[Handle] = deque()
        self._timers: list[tuple[int, int, Handle]] = []
        self._made = 0
        self._from_threads: SimpleQueue[Handle] = SimpleQueue()

    @property
    def as_loop(self) -> AbstractEventLoop:
        return cast(AbstractEventLoop, self)

    # What the node uses.

    def time(self) -> float:
        return self._ms / 1000

    def now(self) -> int:
        """The clock that goes with the loop, in ms."""
        return BEGIN + self._ms

    def call_soon(self, call: Callable[..., object], *arguments: Any) -> Handle:
        handle = Handle(call, arguments)
        self._ready.append(handle)
        return handle

    def call_later(self, delay_s: float, call: Callable[..., object], *arguments: Any) -> Handle:
        handle = Handle(call, arguments)
        self._made += 1
        heappush(self._timers, (self._ms + round(delay_s * 1000), self._made, handle))
        return handle

    def call_at(self, at_s: float, call: Callable[..., object], *arguments: Any) -> Handle:
        return self.call_later(max(at_s - self.time(), 0), call, *arguments)

    def call_soon_threadsafe(self, call: Callable[..., object], *arguments: Any) -> None:
        self._from_threads.put(Handle(call, arguments))

    def create_future(self) -> Promise:
        return Promise()

    # What the test uses.

    def run_ready(self) -> None:
        """Run what is due by now, and what that calls, until nothing is left."""
        for _ in range(TURNS_MAX):
            if not self._has_work():
                return
            self._turn()
        raise AssertionError("the loop spins: there is always something to do at once")

    def advance(self, ms: int) -> None:
        """Let time pass, from one timer to the next."""
        end = self._ms + ms
        self.run_ready()
        while self._timers and self._timers[0][0] <= end:
            self._ms = max(self._timers[0][0], self._ms)
            self.run_ready()
        self._ms = end

    def await_thread(self) -> None:
        """Wait until a thread has called; run that and what follows from it."""
        self._ready.append(self._from_threads.get(timeout=PATIENCE_S))
        self.run_ready()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end, waiting for threads where nothing else is left to do."""
        while True:
            try:
                coroutine.send(None)
            except StopIteration as end:
                return cast(T, end.value)
            if self._has_work():
                self._turn()
            else:
                self.await_thread()

    def timers(self) -> int:
        """How many timers are set."""
        return sum(not handle.cancelled for _, _, handle in self._timers)

    def _has_work(self) -> bool:
        return bool(self._ready or (self._timers and self._timers[0][0] <= self._ms))

    def _turn(self) -> None:
        while self._timers and self._timers[0][0] <= self._ms:
            self._ready.append(heappop(self._timers)[2])
        for _ in range(len(self._ready)):
            self._ready.popleft().run()


class Recorder:
    """An asker that keeps what it is told."""

    def __init__(self) -> None:
        self.answers: dict[Ticket, Reply | ForebayError] = {}
        """By ticket, in the order they came."""
        self.flushes = 0

    def answered(self, ticket: Ticket, reply: Reply | ForebayError) -> None:
        assert ticket not in self.answers, "a question is answered once"
        self.answers[ticket] = reply

    def flush(self) -> None:
        self.flushes += 1


class ObedientStore(MemoryStore):
    """A memory store that writes down its commits and fails when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.groups: list[Sequence[Commit]] = []
        """Every group that was kept."""
        self.synced: list[bool] = []
        """Whether each of them was to be synced; True once more for a sync alone."""
        self.commit_error: Exception | None = None
        """Raised by the next commit, which then keeps nothing."""
        self.claim_error: Exception | None = None
        self.bodies_error: Exception | None = None
        """Raised as long as they are set."""
        self.sync_error: Exception | None = None
        """Raised by the next sync."""
        self.bodies_lost = False
        self.damage: dict[bytes, bytes | Damaged] = {}
        """What is read in the place of some bodies, by key."""

    def claim(self, shard: int) -> Claim:
        if self.claim_error is not None:
            raise self.claim_error
        return super().claim(shard)

    def commit(self, group: Sequence[Commit], *, sync: bool = True) -> None:
        error, self.commit_error = self.commit_error, None
        if error is not None:
            raise error
        super().commit(group)
        self.groups.append(group)
        self.synced.append(sync)

    def sync(self) -> None:
        error, self.sync_error = self.sync_error, None
        if error is not None:
            raise error
        self.synced.append(True)

    def bodies(self, keys: Sequence[bytes]) -> list[bytes | Damaged | None]:
        if self.bodies_error is not None:
            raise self.bodies_error
        if self.bodies_lost:
            return [None] * len(keys)
        found = zip(keys, super().bodies(keys), strict=True)
        return [self.damage.get(key, body) for key, body in found]

    def open_gate(self) -> None:
        """Let every commit go from now on."""

    def close(self) -> None:
        """The next node finds again what this one left."""


class BlockingStore(ObedientStore):
    """A store that belongs into a thread."""

    blocking = True


class SlowStore(BlockingStore):
    """A store whose commits wait until each is let go."""

    def __init__(self) -> None:
        super().__init__()
        self._gate = threading.Semaphore(0)

    def commit(self, group: Sequence[Commit], *, sync: bool = True) -> None:
        assert self._gate.acquire(timeout=PATIENCE_S), "nobody let the commit go"
        super().commit(group, sync=sync)

    def let_go(self, commits: int = 1) -> None:
        self._gate.release(commits)

    def open_gate(self) -> None:
        self.let_go(COMMITS_MAX)

    def shut(self) -> None:
        """Forget what was let go in advance."""
        self._gate = threading.Semaphore(0)


class DurableStore(BlockingStore):
    """A store that survives power loss, and whose syncs wait while they are held."""

    durability = "fsync"

    def __init__(self) -> None:
        super().__init__()
        self._gate = threading.Event()
        self.open_gate()

    def hold(self) -> None:
        """From now on a sync takes until the gate is open again."""
        self._gate.clear()

    def open_gate(self) -> None:
        self._gate.set()

    def commit(self, group: Sequence[Commit], *, sync: bool = True) -> None:
        if sync:
            assert self._gate.wait(PATIENCE_S), "nobody let the sync go"
        super().commit(group, sync=sync)

    def sync(self) -> None:
        assert self._gate.wait(PATIENCE_S), "nobody let the sync go"
        super().sync()


def push(*payloads: str, queue: str = "q", partition: str = DEFAULT, durability: str | None = None) -> Push:
    return Push(DEFAULT, queue, [payload.encode() for payload in payloads], partition, durability)


def pop(
    count: int = 1,
    *,
    queue: str = "q",
    group: str = DEFAULT,
    min_count: int = 1,
    partition: str | None = None,
    lease_ms: int | None = None,
    wait_ms: int = 0,
) -> Pop:
    return Pop(DEFAULT, queue, group, count, min_count, partition, lease_ms, "all", wait_ms)


def payloads(reply: Reply | ForebayError | None) -> list[str]:
    assert isinstance(reply, Popped), reply
    return [bytes(payload).decode() for each in reply.deliveries for payload in each.payloads()]


class Rig:
    """A node on a loop and a store, and somebody who asks it."""

    def __init__(
        self,
        store: ObedientStore,
        at_ms: int = 0,
        memory_bytes_max: int = 1 << 28,
        disk_free_min_bytes: int = 0,
    ) -> None:
        self.store = store
        self.loop = FakeLoop(at_ms)
        self.asker = Recorder()
        self.lost: list[str] = []
        """What the node said of a store that can't be written any more."""
        self.node = Node(
            store,
            self.loop.as_loop,
            self.loop.now,
            Limits(pop_creates_queues=True),
            shards=SHARDS,
            memory_bytes_max=memory_bytes_max,
            disk_free_min_bytes=disk_free_min_bytes,
            lost=self.lost.append,
        )
        self.loop.run_ready()
        self._asked = 0

    def close(self) -> None:
        """Stop the node as it should."""
        self.store.open_gate()
        self.node.close()

    def ask(self, command: Command, asker: Recorder | None = None) -> int:
        """Ask, and let the loop be; the ticket."""
        self._asked += 1
        self.node.ask(asker or self.asker, self._asked, command)
        return self._asked

    def wait(self, command: Pop) -> int:
        """Ask, and see that there is no answer yet; the ticket."""
        ticket = self.ask(command)
        self.loop.run_ready()
        assert self.waits(ticket)
        return ticket

    def get(self, command: Command) -> Reply | ForebayError:
        """Ask, and run the loop until the answer is there."""
        ticket = self.ask(command)
        self.loop.run_ready()
        while self.waits(ticket):
            self.loop.await_thread()
        self.await_reload()
        return self.asker.answers[ticket]

    def await_reload(self) -> None:
        """If the node loads its state again in a thread, wait until it has."""
        while self.node.reloading:
            self.loop.await_thread()

    def forgive(self) -> None:
        """Have the queue try what failed again at once, for ever: for tests of something else."""
        self.get(Configure(DEFAULT, "q", backoff=Backoff(kind="none"), max_attempts=0))

    def pushed(self, command: Push) -> Pushed:
        reply = self.get(command)
        assert isinstance(reply, Pushed), reply
        return reply

    def log(self, queue: str = "q", partition: str = DEFAULT) -> Log:
        """The log of a partition, as the core has it."""
        return self.node._engine.queues[DEFAULT, queue].partitions[partition].log

    def waits(self, ticket: int) -> bool:
        return ticket not in self.asker.answers

    def reply(self, ticket: int) -> Reply | ForebayError | None:
        return self.asker.answers.get(ticket)

    def got(self, ticket: int) -> list[str]:
        """The payloads of a pop that has been answered."""
        return payloads(self.reply(ticket))

    def lease(self, command: Pop) -> Popped:
        reply = self.get(command)
        assert isinstance(reply, Popped)
        assert reply.lease is not None
        return reply

    def state(self, id: int) -> StateFound:
        reply = self.get(State(DEFAULT, id))
        assert isinstance(reply, StateFound)
        return reply

    def queues(self) -> list[str]:
        reply = self.get(ListQueues(DEFAULT))
        assert isinstance(reply, QueuesFound)
        return [each.name for each in reply.queues]
