"""An engine over a memory store, with short words for what tests say often."""

from typing import Any, TypeVar

from penstock.core import commands as c
from penstock.core import records
from penstock.core.engine import Engine
from penstock.core.limits import Limits
from penstock.store.memory import MemoryStore
from tests.sim.world import load

NOW = 1_700_000_000_000
T = TypeVar("T")


class Core:
    """One engine and its store at a time that only the test moves."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.store = MemoryStore()
        self.now = NOW
        self.engine: Engine = load(self.store, self.limits, self.now)

    def ask(self, command: c.Command, kind: type[T]) -> T:
        reply = self.engine.apply(command, self.now)
        assert isinstance(reply, kind)
        return reply

    def push(
        self, *payloads: bytes, queue: str = "q", partition: str = "default", tenant: str = "default"
    ) -> int:
        """The id of the first."""
        return self.ask(c.Push(tenant, queue, list(payloads) or [b"1"], partition), c.Pushed).first

    def pop(self, count: int = 1, queue: str = "q", **fields: Any) -> c.Popped:
        tenant = fields.pop("tenant", "default")
        reply = self.ask(c.Pop(tenant, queue, count=count, **fields), c.Popped)
        for each in reply.deliveries:
            if not each.segment.present:
                key = records.body_key(reply.queue.prefix, each.segment.body_name)
                (body,) = self.store.bodies([key])
                assert isinstance(body, bytes)
                each.segment.body = body
        return reply

    def popped(self, count: int = 1, queue: str = "q", **fields: Any) -> list[bytes]:
        """The payloads of a pop."""
        return payloads_of(self.pop(count, queue, **fields))

    def ack(self, lease: str | None = None, ids: list[int] | None = None, **fields: Any) -> c.Settled:
        return self.ask(c.Ack("default", lease, ids, **fields), c.Settled)

    def nack(self, lease: str | None = None, ids: list[int] | None = None, **fields: Any) -> c.Settled:
        return self.ask(c.Nack("default", lease, ids, **fields), c.Settled)

    def state(self, message: int, group: str = "default", tenant: str = "default") -> str:
        return self.ask(c.State(tenant, message, group), c.StateFound).state

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
