"""An engine over a memory store, with short words for what tests say often."""

from typing import Any, TypeVar

from msgspec.structs import replace

from forebay.core.api import commands as c, queries
from forebay.core.bounds import Limits
from forebay.core.engine import Engine
from forebay.core.records import keyspace
from forebay.core.state import PLAIN, Attributes, Backoff
from forebay.store.memory import MemoryStore
from tests.sim.world import load

NOW = 1_700_000_000_000
AT_ONCE = Backoff(kind="none")
"""The backoff of a queue that tries again at once."""
T = TypeVar("T")


class Core:
    """One engine and its store at a time that only the test moves."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = replace(limits or Limits(), pop_creates_queues=True)
        self.store = MemoryStore()
        self.now = NOW
        self.engine: Engine = load(self.store, self.limits, self.now)

    def ask(self, command: c.Command, kind: type[T]) -> T:
        reply = self.engine.apply(command, self.now)
        assert isinstance(reply, kind)
        return reply

    def push(
        self,
        *payloads: bytes,
        queue: str = "q",
        partition: str = "default",
        tenant: str = "default",
        attributes: Attributes = PLAIN,
        **also: Any,
    ) -> int:
        """The id of the first. Attributes may be given one by one, too."""
        having = replace(attributes, **also) if also else attributes
        command = c.Push(tenant, queue, list(payloads) or [b"1"], partition, None, having)
        return self.ask(command, c.Pushed).first

    def pop(self, count: int = 1, queue: str = "q", **fields: Any) -> c.Popped:
        tenant = fields.pop("tenant", "default")
        reply = self.ask(c.Pop(tenant, queue, count=count, **fields), c.Popped)
        for each in reply.deliveries:
            if not each.segment.present:
                key = keyspace.body_key(reply.queue.prefix, each.segment.body_name)
                (body,) = self.store.bodies([key])
                assert isinstance(body, bytes)
                each.segment.body = body
        return reply

    def popped(self, count: int = 1, queue: str = "q", **fields: Any) -> list[bytes]:
        """The payloads of a pop."""
        return payloads_of(self.pop(count, queue, **fields))

    def ack(self, lease: str | None = None, ids: list[int] | None = None, **fields: Any) -> c.Settled:
        return self.ask(c.Ack("default", lease, ids, **fields), c.Settled)

    def configure(self, queue: str = "q", **options: Any) -> None:
        self.ask(c.Configure("default", queue, **options), queries.QueueFound)

    def forgive(self, queue: str = "q") -> None:
        """Have a queue try what failed again at once, for ever: for tests of something else."""
        self.configure(queue, backoff=AT_ONCE, max_attempts=0)

    def nack(self, lease: str | None = None, ids: list[int] | None = None, **fields: Any) -> c.Settled:
        return self.ask(c.Nack("default", lease, ids, **fields), c.Settled)

    def cancel(self, *ids: int, group: str | None = None) -> c.Settled:
        return self.ask(c.Cancel("default", list(ids), group), c.Settled)

    def find(self, message: int, group: str = "default", tenant: str = "default") -> queries.StateFound:
        return self.ask(queries.State(tenant, message, group), queries.StateFound)

    def state(self, message: int, group: str = "default", tenant: str = "default") -> str:
        return self.find(message, group, tenant).state

    def counts(self, queue: str = "q", group: str = "default") -> queries.Counts:
        return self.ask(queries.GroupCounts("default", queue, group), queries.Counts)

    def wait(self, ms: int) -> None:
        """Let time pass, and do what is due meanwhile."""
        self.now += ms
        self.engine.tick(self.now)

    def commit(self) -> None:
        commits = self.engine.seal(self.now)
        if commits:
            self.store.commit(commits)

    def restart(self, down_ms: int = 0) -> None:
        self.commit()
        self.now += down_ms
        self.engine = load(self.store, self.limits, self.now, down_ms)


def payloads_of(reply: c.Popped) -> list[bytes]:
    return [bytes(payload) for each in reply.deliveries for payload in each.payloads()]
