"""Lives that Hypothesis invents, and shrinks when one goes wrong: 7,500 steps, and 1,200 on a disk."""

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.store.memory import MemoryStore
from tests.sim.rocks import RocksWorlds
from tests.sim.world import World

queues = st.sampled_from(["a", "b"])
partitions = st.sampled_from(["default", "x"])
groups = st.sampled_from(["default", "audit"])
owners = st.integers(0, 2)
verbs = st.sampled_from(["ack", "nack"])
levels = st.sampled_from([None, "fsync", "os"])


class Life(RuleBasedStateMachine):
    """The rules of one life; the world does each of them twice and compares."""

    @initialize()
    def begin(self) -> None:
        self.world = World(MemoryStore())

    @rule(queue=queues, partition=partitions, count=st.integers(1, 12), level=levels)
    def push(self, queue: str, partition: str, count: int, level: str | None) -> None:
        self.world.push(queue, partition, count, level)

    @rule(queue=queues, names=st.lists(partitions, min_size=1, max_size=4))
    def push_many(self, queue: str, names: list[str]) -> None:
        self.world.push_many(queue, names)

    @rule(
        queue=queues,
        group=groups,
        count=st.integers(1, 20),
        enough=st.booleans(),
        partition=st.none() | partitions,
        lease_ms=st.none() | st.integers(1, 60),
        start=st.sampled_from(["all", "new"]) | st.integers(0, 100),
        owner=owners,
    )
    def pop(
        self,
        queue: str,
        group: str,
        count: int,
        enough: bool,
        partition: str | None,
        lease_ms: int | None,
        start: str | int,
        owner: int,
    ) -> None:
        begin = self.world.now - start if isinstance(start, int) else start
        self.world.pop(queue, group, count, count if enough else 1, partition, lease_ms, begin, owner)

    @precondition(lambda self: self.world.model.leases or self.world.model.ended)
    @rule(verb=verbs, data=st.data())
    def settle_lease(self, verb: str, data: st.DataObject) -> None:
        self.world.settle_lease(verb, self.token(data))

    @precondition(lambda self: self.world.model.leases or self.world.model.ended)
    @rule(lease_ms=st.integers(1, 200), data=st.data())
    def extend(self, lease_ms: int, data: st.DataObject) -> None:
        self.world.extend(self.token(data), lease_ms)

    @precondition(lambda self: any(queue.messages for queue in self.world.model.queues.values()))
    @rule(verb=verbs, group=st.none() | groups, owner=owners, data=st.data())
    def settle_ids(self, verb: str, group: str | None, owner: int, data: st.DataObject) -> None:
        known = {name: queue for name, queue in self.world.model.queues.items() if queue.messages}
        name = data.draw(st.sampled_from(sorted(known)))
        places = [
            (partition, offset)
            for partition, messages in known[name].messages.items()
            for offset in range(known[name].first[partition], len(messages))
        ]
        if places:
            chosen = data.draw(st.lists(st.sampled_from(places), min_size=1, max_size=8, unique=True))
            held = [token for token, lease in self.world.model.leases.items() if lease.queue == name]
            token = data.draw(st.none() | st.sampled_from(held)) if held else None
            self.world.settle_ids(verb, name, chosen, token, group, owner)

    @rule(queue=queues, lease_ms=st.integers(1, 100), kept=st.sampled_from([0, 20_000]))
    def configure(self, queue: str, lease_ms: int, kept: int) -> None:
        self.world.configure(queue, lease_ms, kept, 50 if kept else 0)

    @rule(ms=st.sampled_from([0, 1, 2, 3, 30, 31, 10_001, 60_000]))
    def wait(self, ms: int) -> None:
        self.world.wait(ms)

    @rule()
    def commit(self) -> None:
        self.world.commit()

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        self.world.restart(clean=clean)

    @rule(at_least=st.integers(2, 4))
    def plan_merge(self, at_least: int) -> None:
        self.world.plan_merge(at_least)

    @precondition(lambda self: self.world.merging)
    @rule()
    def apply_merge(self) -> None:
        self.world.apply_merge()

    @rule(at=st.integers(0, 20))
    def let_go(self, at: int) -> None:
        self.world.let_go(at)

    @invariant()
    def everything_is_in_exactly_one_place(self) -> None:
        self.world.check_all()

    def token(self, data: st.DataObject) -> str:
        model = self.world.model
        return data.draw(st.sampled_from([*model.leases, *model.ended[-5:]]))


LifeTest = Life.TestCase
LifeTest.settings = settings(
    max_examples=150,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


class LifeOnDisk(Life):
    """The same lives over a database that every restart opens again."""

    @initialize()
    def begin(self) -> None:
        self.home = tempfile.TemporaryDirectory(prefix="penstock-life-")
        self.worlds = RocksWorlds(Path(self.home.name))
        self.world = self.worlds.begin()

    def teardown(self) -> None:
        self.worlds.close()
        self.home.cleanup()


LifeOnDiskTest = LifeOnDisk.TestCase
LifeOnDiskTest.settings = settings(LifeTest.settings, max_examples=30, stateful_step_count=40)
