"""Lives that Hypothesis invents, and shrinks when one goes wrong: 10,000 steps, and 1,200 on a disk."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from forebay.core.retention import carve
from forebay.core.state import PLAIN, Attributes, Backoff
from forebay.core.words import LINE, PART
from forebay.store.memory import MemoryStore
from tests.sim.drive import CLEANED
from tests.sim.labels import FEW, NO_LABELS
from tests.sim.model import Place
from tests.sim.test_drive import WORTH
from tests.sim.world import STATES, World
from tests.sim.worlds import RocksWorlds


@pytest.fixture(autouse=True, scope="module")
def small_islands() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(carve, "PART_BYTES", WORTH)
        yield


queues = st.sampled_from(["a", "b", "gated", "strict"])
gates = st.fixed_dictionaries(
    {},
    optional={
        "delayed_processing_ms": st.sampled_from([2, 30]),
        "window_buffer_ms": st.sampled_from([3, 30]),
        "max_wait_ms": st.sampled_from([1, 30, 10_000]),
    },
)
partitions = st.sampled_from(["default", "x"])
groups = st.sampled_from(["default", "audit"])
owners = st.integers(0, 2)
verbs = st.sampled_from(["ack", "nack"])
levels = st.sampled_from([None, "fsync", "os"])
priorities = st.sampled_from([-1, 0, 1])
delays = st.sampled_from([0, 3, 31])
backoffs = st.sampled_from(
    [Backoff("none"), Backoff("fixed", 3), Backoff("exponential", 2, 5), Backoff("list", steps=(0, 3))]
)
labels = st.sampled_from([NO_LABELS, *FEW])


@st.composite
def some_attributes(draw: st.DrawFn) -> Attributes:
    delay_ms, ttl_ms = draw(delays), draw(st.sampled_from([0, 30, 60]))
    headers, tags = draw(labels)
    return Attributes(
        draw(priorities),
        delay_ms,
        draw(st.booleans()),
        ttl_ms if ttl_ms > delay_ms else 0,
        draw(st.sampled_from([0, 2])),
        draw(st.sampled_from([None, 0, 1, 2])),
        draw(st.none() | backoffs),
        headers=headers,
        tags=tags,
    )


attributes = st.just(PLAIN) | some_attributes()


def allowed(queue: str, how: Attributes) -> Attributes:
    """What messages of a queue may have."""
    return replace(how, priority=0, lifo=False) if queue == "strict" else how


class Life(RuleBasedStateMachine):
    """The rules of one life; the world does each of them twice and compares."""

    @initialize(held=gates, strict=st.just({}) | gates)
    def begin(self, held: dict[str, int], strict: dict[str, int]) -> None:
        self.world = self.new_world()
        self.world.configure("gated", **held)
        self.world.configure("strict", ordering="partition", **strict)

    def new_world(self) -> World:
        return World(MemoryStore())

    @rule(queue=queues, partition=partitions, count=st.integers(1, 12), level=levels, how=attributes)
    def push(self, queue: str, partition: str, count: int, level: str | None, how: Attributes) -> None:
        self.world.push(queue, partition, count, level, allowed(queue, how))

    @rule(queue=queues, parts=st.lists(st.tuples(partitions, attributes), min_size=1, max_size=4))
    def push_many(self, queue: str, parts: list[tuple[str, Attributes]]) -> None:
        self.world.push_many(queue, [(partition, allowed(queue, how)) for partition, how in parts])

    @rule(
        queue=queues,
        group=groups,
        count=st.integers(1, 20),
        enough=st.booleans(),
        partition=st.none() | partitions,
        lease_ms=st.none() | st.integers(1, 60),
        start=st.sampled_from(["all", "new"]) | st.integers(0, 100),
        owner=owners,
        lost=st.sampled_from([None, None, "unheard", "damaged"]),
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
        lost: str | None,
    ) -> None:
        begin = self.world.now - start if isinstance(start, int) else start
        least = count if enough else 1
        how = (count, least, partition, lease_ms, begin, owner)
        self.world.pop(queue, group, *how, unheard=lost == "unheard", damaged=lost == "damaged")

    @precondition(lambda self: self.world.unread)
    @rule()
    def put_off(self) -> None:
        self.world.put_off()

    @precondition(lambda self: self.world.model.leases or self.world.model.ended)
    @rule(verb=verbs, delay_ms=st.none() | delays, data=st.data())
    def settle_lease(self, verb: str, delay_ms: int | None, data: st.DataObject) -> None:
        self.world.settle_lease(verb, self.token(data), delay_ms)

    @precondition(lambda self: self.world.model.leases or self.world.model.ended)
    @rule(lease_ms=st.none() | st.integers(1, 200), data=st.data())
    def extend(self, lease_ms: int | None, data: st.DataObject) -> None:
        self.world.extend(self.token(data), lease_ms)

    @precondition(lambda self: self.has_messages())
    @rule(verb=verbs, group=st.none() | groups, owner=owners, delay_ms=st.none() | delays, data=st.data())
    def settle_ids(
        self, verb: str, group: str | None, owner: int, delay_ms: int | None, data: st.DataObject
    ) -> None:
        name, chosen = self.places(data)
        self.world.settle_ids(verb, name, chosen, self.held(name, data), group, owner, delay_ms)

    @precondition(lambda self: self.has_messages())
    @rule(group=st.none() | groups, lease_ms=st.integers(1, 200), data=st.data())
    def extend_ids(self, group: str | None, lease_ms: int, data: st.DataObject) -> None:
        name, chosen = self.places(data)
        self.world.extend_ids(name, chosen, self.held(name, data), group, lease_ms)

    @precondition(lambda self: self.has_messages())
    @rule(group=st.none() | groups, data=st.data())
    def cancel(self, group: str | None, data: st.DataObject) -> None:
        self.world.cancel(dict([self.places(data)]), group)

    @precondition(lambda self: self.has_messages())
    @rule(group=groups, delay_ms=st.none() | delays, priority=st.none() | priorities, data=st.data())
    def move(self, group: str, delay_ms: int | None, priority: int | None, data: st.DataObject) -> None:
        self.world.move(dict([self.places(data)]), group, delay_ms, priority)

    @precondition(lambda self: self.has_messages())
    @rule(group=groups, data=st.data())
    def promote(self, group: str, data: st.DataObject) -> None:
        self.world.move(dict([self.places(data)]), group, 0, None, only_delayed=True)

    @precondition(lambda self: self.has_messages())
    @rule(
        verb=st.sampled_from(["requeue", "purge", "count"]), group=groups, every=st.booleans(), data=st.data()
    )
    def bury(self, verb: str, group: str, every: bool, data: st.DataObject) -> None:
        name, chosen = self.places(data)
        self.world.bury(verb, name, group, None if every else chosen)

    @precondition(lambda self: self.has_messages())
    @rule(group=groups, count=st.integers(1, 5), skip=st.integers(0, 3), data=st.data())
    def list_dead(self, group: str, count: int, skip: int, data: st.DataObject) -> None:
        self.world.list_dead(self.places(data)[0], group, count, skip)

    @precondition(lambda self: self.has_messages())
    @rule(group=groups, data=st.data())
    def check_state(self, group: str, data: st.DataObject) -> None:
        name, chosen = self.places(data)
        self.world.check_state(name, *chosen[0], group)
        self.world.show(name, chosen, group)

    @precondition(lambda self: self.has_messages())
    @rule(data=st.data())
    def update(self, data: st.DataObject) -> None:
        name, chosen = self.places(data)
        self.world.update(name, chosen[0])

    @precondition(lambda self: self.has_messages())
    @rule(group=groups, data=st.data())
    def discard(self, group: str, data: st.DataObject) -> None:
        self.world.move(dict([self.places(data)]), group, None, None, discard=True)

    @precondition(lambda self: self.has_messages())
    @rule(
        group=groups,
        states=st.sets(st.sampled_from(CLEANED), min_size=1),
        grace_ms=st.sampled_from([0, 3]),
        count=st.none() | st.integers(1, 5),
        data=st.data(),
    )
    def clean(
        self, group: str, states: set[str], grace_ms: int, count: int | None, data: st.DataObject
    ) -> None:
        self.world.clean(self.places(data)[0], group, tuple(sorted(states)), grace_ms, count)

    @precondition(lambda self: self.has_messages())
    @rule(group=groups, start=st.sampled_from(["all", "new"]) | st.integers(0, 100), data=st.data())
    def seek(self, group: str, start: str | int, data: st.DataObject) -> None:
        name, chosen = self.places(data)
        begin = self.world.now - start if isinstance(start, int) else start
        where = data.draw(st.sampled_from([(None, None), (chosen[0][0], None), chosen[0]]))
        self.world.seek(name, group, begin, *where)

    @precondition(lambda self: self.has_messages())
    @rule(
        state=st.none() | st.sampled_from(STATES), group=groups, skip=st.sampled_from([0, 1]), data=st.data()
    )
    def browse(self, state: str | None, group: str, skip: int, data: st.DataObject) -> None:
        self.world.browse(self.places(data)[0], state, group, 100, skip)

    @precondition(lambda self: self.has_messages())
    @rule(kind=st.sampled_from([LINE, PART, None]), data=st.data())
    def note(self, kind: int | None, data: st.DataObject) -> None:
        name, chosen = self.places(data)
        self.world.note(name, chosen[0], kind, self.held(name, data))
        self.world.check_notes(name, chosen[-1])

    @precondition(lambda self: self.has_messages())
    @rule(data=st.data())
    def ack_with_results(self, data: st.DataObject) -> None:
        name, chosen = self.places(data)
        self.world.settle_ids("ack", name, chosen, self.held(name, data), None, 0, with_results=True)
        self.world.check_notes(name, chosen[0])

    @precondition(lambda self: self.has_messages())
    @rule(data=st.data())
    def obliterate(self, data: st.DataObject) -> None:
        self.world.obliterate(self.places(data)[0])

    @rule(
        queue=queues,
        retention_ms=st.sampled_from([0, 0, 20_000]),
        partition_retention_ms=st.sampled_from([0, 10_000]),
        group_idle_ms=st.sampled_from([0, 1]),
        max_size=st.sampled_from([0, 0, 10]),
        require_lease=st.booleans(),
    )
    def configure_limits(self, queue: str, **options: object) -> None:
        self.world.configure(queue, **options)

    @rule(queue=queues, ms=st.none() | st.sampled_from([1, 30]))
    def pause(self, queue: str, ms: int | None) -> None:
        self.world.pause(queue, ms)

    @precondition(lambda self: self.world.model.queues)
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        self.world.resume(data.draw(st.sampled_from(sorted(self.world.model.queues))))

    @rule(queue=queues, lease_ms=st.integers(1, 100), kept=st.sampled_from([0, 20_000]))
    def configure(self, queue: str, lease_ms: int, kept: int) -> None:
        self.world.configure(
            queue,
            lease_ms=lease_ms,
            completed_retention_ms=kept,
            completed_retention_bytes=50 if kept else 0,
        )

    @rule(
        queue=queues,
        max_attempts=st.integers(0, 3),
        backoff=backoffs,
        max_deliveries=st.sampled_from([0, 0, 2]),
        dead_letters=st.booleans(),
        on_lease_expiry=st.sampled_from(["fail", "requeue"]),
    )
    def configure_retries(self, queue: str, **options: object) -> None:
        self.world.configure(queue, **options)

    @rule(queue=st.sampled_from(["gated", "strict"]), held=gates)
    def configure_gates(self, queue: str, held: dict[str, int]) -> None:
        self.world.configure(queue, **held)

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

    @rule()
    def plan_carving(self) -> None:
        self.world.plan_carving()

    @precondition(lambda self: self.world.carving)
    @rule()
    def apply_carving(self) -> None:
        self.world.apply_carving()

    @rule(at=st.integers(0, 20))
    def let_go(self, at: int) -> None:
        self.world.let_go(at)

    @invariant()
    def everything_is_in_exactly_one_place(self) -> None:
        self.world.check_all()

    def has_messages(self) -> bool:
        return any(any(queue.messages.values()) for queue in self.world.model.queues.values())

    def places(self, data: st.DataObject) -> tuple[str, list[Place]]:
        """Some messages of a queue."""
        known = {
            name: queue for name, queue in self.world.model.queues.items() if any(queue.messages.values())
        }
        name = data.draw(st.sampled_from(sorted(known)))
        found = [
            (partition, offset)
            for partition, messages in known[name].messages.items()
            for offset in range(len(messages))
        ]
        return name, data.draw(st.lists(st.sampled_from(found), min_size=1, max_size=8, unique=True))

    def held(self, queue: str, data: st.DataObject) -> str | None:
        """A lease of a queue, or none."""
        held = [token for token, lease in self.world.model.leases.items() if lease.queue == queue]
        return data.draw(st.none() | st.sampled_from(held)) if held else None

    def token(self, data: st.DataObject) -> str:
        model = self.world.model
        return data.draw(st.sampled_from([*model.leases, *model.ended[-5:]]))


LifeTest = Life.TestCase
LifeTest.settings = settings(
    max_examples=200,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


class LifeOnDisk(Life):
    """The same lives over a database that every restart opens again."""

    def new_world(self) -> World:
        self.home = tempfile.TemporaryDirectory(prefix="forebay-life-")
        self.worlds = RocksWorlds(Path(self.home.name))
        return self.worlds.begin()

    def teardown(self) -> None:
        self.worlds.close()
        self.home.cleanup()


LifeOnDiskTest = LifeOnDisk.TestCase
LifeOnDiskTest.settings = settings(LifeTest.settings, max_examples=30, stateful_step_count=40)
