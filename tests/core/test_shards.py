"""A shard is a world: it has everything of its tenants, and works while others are taken and released."""

import gc
from collections import Counter

import pytest

from forebay.core import engine as engines
from forebay.core.api import commands as c, jobs, queries
from forebay.core.bounds import NEVER, NUMBERS_MAX
from forebay.core.engine import Engine, Taken
from forebay.core.errors import Busy, Conflict, Damaged, Elsewhere, NotFound
from forebay.core.keyvalue.keys import pack
from forebay.core.records.commit import Commit
from forebay.core.records.keyspace import CONTROL, control_bounds, control_key, numbers_key
from forebay.core.routing.gather import join
from forebay.core.routing.placement import home_of, shard_of_queue
from forebay.core.shard.shard import Shard
from forebay.core.state import NamedLimit, Queue, Track
from forebay.store.memory import MemoryStore
from tests.core.harness import AT_ONCE, NOW, Core
from tests.sim.checks import SHARDS
from tests.sim.inside import home, queues_in, tenants_in

KEY = pack(["k"])


def shards_of(core: Core) -> dict[str, int]:
    return {tenant: queue.shard for (tenant, _), queue in core.engine.queues.items()}


def test_tenants_are_spread_evenly_over_shards_and_stay_where_they_are() -> None:
    counts = Counter(home_of(f"tenant-{number}", 16) for number in range(16_000))
    assert len(counts) == 16
    assert max(counts.values()) < 1.2 * min(counts.values())
    counts = Counter(shard_of_queue("big", f"queue-{number}", 64) for number in range(64_000))
    assert len(counts) == 64
    assert max(counts.values()) < 1.3 * min(counts.values())
    core = Core()
    for number in range(20):
        core.push(tenant=f"t{number}")
        core.push(tenant=f"t{number}", queue="other")
    found = shards_of(core)
    assert found == {tenant: home_of(tenant, SHARDS) for tenant in found}
    core.restart()
    assert shards_of(core) == found


def test_every_shard_ends_its_own_leases_once_and_at_their_time() -> None:
    core = Core()
    names = [name for shard in range(SHARDS) for name in tenants_in(core.engine, shard, 3)]
    ids = {}
    for at, name in enumerate(names):
        core.ask(c.Configure(name, "q", max_attempts=0, backoff=AT_ONCE), queries.QueueFound)
        ids[name] = core.push(tenant=name)
        core.pop(tenant=name, lease_ms=100 + at)
    for at, _ in enumerate(names):
        core.wait(100 if at == 0 else 1)
        failures = [core.find(ids[name], tenant=name).failures for name in names]
        assert failures == [1] * (at + 1) + [0] * (len(names) - at - 1)
    core.restart()
    core.wait(10_000)
    assert {core.find(message, tenant=name).failures for name, message in ids.items()} == {1}


def test_everything_of_a_tenant_is_in_one_commit_of_its_shard() -> None:
    core = Core()
    core.push(tenant="acme")
    core.commit()
    core.ask(jobs.KvWrite("acme", [jobs.KvChange("set", KEY)]), jobs.KvWritten)
    core.push(tenant="acme", queue="other")
    core.ask(jobs.CronPut("acme", "n", "third", jobs.Job(b"1"), every_ms=1_000), queries.CronsFound)
    (commit,) = core.engine.seal(core.now)
    assert commit.shard == home(core.engine, "acme").number


# A part of the shards.


class Nodes:
    """Two engines over one store: the first has the control records, each some of the shards."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.first = self._load([0, 1], self.store.claim(CONTROL).epoch)
        self.second = self._load([2, 3], None)

    def _load(self, shards: list[int], control: int | None) -> Engine:
        claims = {number: Taken(self.store.claim(number).epoch) for number in shards}
        return engines.load(Core().limits, SHARDS, claims, control, self.store.scan, NOW)

    def commit(self) -> None:
        for engine in (self.first, self.second):
            self.store.commit(engine.seal(NOW))

    def read_control(self) -> None:
        self.commit()
        self.second.read_control(self.store.scan(*control_bounds()))

    def hand_over(self, shard: int, giver: Engine, taker: Engine) -> None:
        self.read_control()
        giver.release(shard)
        taker.take({shard: Taken(self.store.claim(shard).epoch)}, self.store.scan, NOW)


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


def push(engine: Engine, tenant: str, payload: bytes = b"1", queue: str = "q") -> int:
    reply = engine.apply(c.Push(tenant, queue, [payload]), NOW)
    assert isinstance(reply, c.Pushed)
    return reply.first


def test_a_command_for_a_shard_that_is_not_here_is_refused_and_changes_nothing(nodes: Nodes) -> None:
    (there,) = tenants_in(nodes.first, 2)
    for command in (
        c.Push(there, "q", [b"1"]),
        c.Pop(there, "q"),
        c.Configure(there, "q", lease_ms=5),
        c.Transact(there, [jobs.KvWrite(there, [jobs.KvChange("set", KEY)])]),
        jobs.KvWrite(there, [jobs.KvChange("set", KEY)]),
        queries.ListQueues(there),
        queries.KvGet(there, [KEY]),
        queries.EventsPast(2, 0),
    ):
        with pytest.raises(Elsewhere) as refused:
            nodes.first.apply(command, NOW)
        assert (refused.value.shard, refused.value.details) == (2, {"shard": 2})
    assert nodes.first.seal(NOW) == []


def test_only_the_owner_of_the_control_records_makes_tenants(nodes: Nodes) -> None:
    (new,) = tenants_in(nodes.second, 2)
    with pytest.raises(Elsewhere) as refused:
        push(nodes.second, new)
    assert refused.value.shard == CONTROL
    with pytest.raises(Elsewhere):
        nodes.second.apply(c.TenantPut(new), NOW)
    assert nodes.second.seal(NOW) == []
    with pytest.raises(Elsewhere):
        nodes.second.apply(queries.Describe(new, "q"), NOW)  # it may be spread, for all this one knows
    with pytest.raises(NotFound):
        nodes.first.apply(queries.Describe(tenants_in(nodes.first, 0)[0], "q"), NOW)
    nodes.first.apply(c.TenantPut(new), NOW)
    nodes.read_control()
    push(nodes.second, new)


def test_how_a_tenant_lives_is_fixed_when_it_is_made(nodes: Nodes) -> None:
    engine = nodes.first
    for tenant, spread in (("wide", True), ("narrow", False)):
        for _ in range(2):
            assert engine.apply(c.TenantPut(tenant, spread), NOW) == c.TenantFound(tenant, spread, False, NOW)
        with pytest.raises(Conflict, match="which is fixed"):
            engine.apply(c.TenantPut(tenant, not spread), NOW)
    (used,) = tenants_in(engine, 1)
    push(engine, used)
    with pytest.raises(Conflict):
        engine.apply(c.TenantPut(used, True), NOW)
    nodes.commit()
    again = nodes._load([0, 1], nodes.store.claim(CONTROL).epoch)
    assert {name: each.spread for name, each in again.control.tenants.items()} == {
        "wide": True,
        "narrow": False,
        used: False,
    }
    assert again.control.version == 1


def test_a_command_routed_by_other_control_records_is_refused(nodes: Nodes) -> None:
    (there,) = tenants_in(nodes.first, 2)
    nodes.first.apply(c.TenantPut(there), NOW)
    nodes.read_control()
    command = c.Push(there, "q", [b"1"])
    nodes.second.apply_forwarded(command, NOW, nodes.first.control.version)
    nodes.first.apply(c.TenantPut("wide", True), NOW)
    nodes.commit()
    with pytest.raises(Elsewhere, match="version 1 of the placement, and this is 0"):
        nodes.second.apply_forwarded(command, NOW, nodes.first.control.version)
    assert nodes.second.seal(NOW) == []
    nodes.read_control()
    nodes.second.apply_forwarded(command, NOW, nodes.first.control.version)


def test_a_shard_is_handed_over_while_the_others_work(nodes: Nodes) -> None:
    moving, staying = (tenants_in(nodes.first, shard)[0] for shard in (1, 0))
    ids = [push(nodes.first, tenant, tenant.encode()) for tenant in (moving, staying)]
    popped = nodes.first.apply(c.Pop(moving, "q"), NOW)
    assert isinstance(popped, c.Popped)
    nodes.read_control()
    nodes.hand_over(1, nodes.first, nodes.second)
    assert sorted(nodes.first.shards) == [0]
    assert sorted(nodes.second.shards) == [1, 2, 3]
    push(nodes.first, staying)
    with pytest.raises(Elsewhere):
        push(nodes.first, moving)
    assert nodes.second.apply(c.Ack(moving, popped.lease), NOW) == c.Settled(1)
    found = nodes.second.apply(queries.State(moving, ids[0]), NOW)
    assert isinstance(found, queries.StateFound)
    assert found.state == "completed"
    assert push(nodes.second, moving) == ids[0] + 1
    nodes.hand_over(1, nodes.second, nodes.first)
    assert push(nodes.first, moving) == ids[0] + 2


def held(tenant: str) -> list[str]:
    """The kinds of all shards, queues and tracks in memory that have to do with a tenant."""
    gc.collect()
    found = gc.get_objects()
    shards = [each for each in found if isinstance(each, Shard) and tenant in each.names.tenants]
    queues = [each for each in found if isinstance(each, Queue) and each.tenant == tenant]
    tracks = [each for each in found if isinstance(each, Track) and each.queue.tenant == tenant]
    return [type(each).__name__ for each in (*shards, *queues, *tracks)]


def test_a_shard_that_was_release_is_gone_from_memory(nodes: Nodes) -> None:
    tenant = tenants_in(nodes.first, 1, 20)[-1]  # one that no other test has
    for at in range(3):
        push(nodes.first, tenant, b"%d" % at)
    nodes.first.apply(c.Pop(tenant, "q"), NOW)
    nodes.commit()
    nodes.first.take_sealed()
    assert held(tenant) == ["Shard", "Queue", "Track"]
    nodes.first.release(1)
    assert held(tenant) == []
    assert nodes.first.queues == {}
    assert nodes.first.next_due_at() == NEVER


def test_what_is_about_a_shard_that_was_release_does_no_harm(nodes: Nodes) -> None:
    (tenant,) = tenants_in(nodes.first, 1)
    message = push(nodes.first, tenant)
    popped = nodes.first.apply(c.Pop(tenant, "q"), NOW)
    assert isinstance(popped, c.Popped)
    assert popped.lease is not None
    watched = nodes.first.watch(tenant, message)
    nodes.commit()
    nodes.first.release(1)
    nodes.first.give_back(popped, NOW)
    nodes.first.put_off(popped)
    nodes.first.unwatch(watched)
    assert nodes.first.unsettled(popped.lease) is None
    assert not nodes.first.has_group(tenant, "q", "default")
    assert nodes.first.seal(NOW) == []


def test_a_shard_that_cant_be_loaded_is_not_here_and_the_others_are(nodes: Nodes) -> None:
    (tenant,) = tenants_in(nodes.first, 1)
    (other,) = tenants_in(nodes.first, 0)
    push(nodes.first, tenant)
    nodes.commit()
    nodes.first.release(1)

    def broken(low: bytes, high: bytes) -> list[tuple[bytes, bytes]]:
        raise OSError("the network is gone")

    with pytest.raises(OSError, match="gone"):
        nodes.first.take({1: Taken(nodes.store.claim(1).epoch)}, broken, NOW)
    assert sorted(nodes.first.shards) == [0]
    push(nodes.first, other)
    nodes.commit()
    nodes.first.take({1: Taken(nodes.store.claim(1).epoch)}, nodes.store.scan, NOW)
    push(nodes.first, tenant)


def test_a_tick_does_not_look_at_shards_with_nothing_due() -> None:
    core = Core()
    (busy,) = tenants_in(core.engine, 1)
    core.push(tenant=busy)
    core.pop(tenant=busy, lease_ms=50)
    core.commit()
    core.wait(20_000)
    due = {number: shard.timers.alarm.at for number, shard in core.engine.shards.items()}
    assert {number: at for number, at in due.items() if number != 1} == dict.fromkeys((0, 2, 3), NEVER)
    looked: list[int] = []
    tick = engines.tick

    def noted(shard: Shard, now: int, sweeps: int) -> int:
        looked.append(shard.number)
        return tick(shard, now, sweeps)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "tick", noted)
        core.pop(tenant=busy, lease_ms=50)
        core.wait(60)
    assert looked == [1]


# Damage, and numbers that run out.


def change(store: MemoryStore, key: bytes, value: bytes | None) -> None:
    puts, deletes = ([], [key]) if value is None else ([(key, value)], [])
    store.commit([Commit(CONTROL, store.claim(CONTROL).epoch, NOW, puts, deletes, [])])


def test_a_shard_whose_names_are_damaged_is_left_out_and_the_others_work() -> None:
    core = Core()
    bad, good = (tenants_in(core.engine, shard)[0] for shard in (1, 2))
    core.push(tenant=bad)
    core.push(tenant=good)
    core.commit()
    change(core.store, numbers_key(1), None)
    core.restart()
    assert list(core.engine.damaged_shards) == [1]
    with pytest.raises(Damaged, match="shard 1 can't be read"):
        core.push(tenant=bad)
    with pytest.raises(Damaged):
        core.engine.apply(queries.ListQueues(bad), core.now)
    assert core.popped(tenant=good) == [b"1"]
    measured = core.ask(queries.Measure(), queries.Measured).queues
    assert [place for places in measured.values() for place in places] == [(good, "q")]
    core.engine.release(1)
    with pytest.raises(Elsewhere):
        core.push(tenant=bad)


def test_a_tenant_whose_control_record_was_lost_is_listed_again() -> None:
    core = Core()
    core.push(tenant="acme")
    core.commit()
    change(core.store, control_key("acme"), None)
    core.restart()
    assert core.engine.listed_again == ["acme"]
    assert core.popped(tenant="acme") == [b"1"]
    core.restart()
    assert (core.engine.listed_again, list(core.engine.control.tenants)) == ([], ["acme"])


def test_a_spread_tenant_whose_control_record_was_lost_is_damage() -> None:
    core = Core()
    core.ask(c.TenantPut("wide", True), c.TenantFound)
    core.commit()
    change(core.store, control_key("wide"), None)
    with pytest.raises(Damaged, match="placement has version 1"):
        core.restart()


@pytest.mark.parametrize("kind", ["queues_made", "tenants_made"])
def test_a_shard_without_numbers_for_names_is_busy_and_nothing_changes(kind: str) -> None:
    core = Core()
    known, new = tenants_in(core.engine, 1, 2)
    core.push(tenant=known)
    core.commit()
    setattr(core.engine.shards[1].numbering, kind, NUMBERS_MAX // SHARDS - 1)
    for command in (
        c.Push(new, "q", [b"1"]),
        c.Configure(new, "q"),
        jobs.KvWrite(new, [jobs.KvChange("set", KEY)]),
        jobs.LimitPut(new, "n", NamedLimit(concurrency=1)),
    ):
        with pytest.raises(Busy, match="no numbers left"):
            core.engine.apply(command, core.now)
    assert core.engine.seal(core.now) == []
    if kind == "tenants_made":
        core.push(tenant=known, queue="other")  # who is there goes on


def test_parts_of_a_query_are_joined_to_the_whole_answer(nodes: Nodes) -> None:
    nodes.first.apply(c.TenantPut("wide", True), NOW)
    nodes.read_control()
    for shard in range(SHARDS):
        engine = nodes.first if shard in nodes.first.shards else nodes.second
        push(engine, "wide", queue=queues_in(engine, "wide", shard)[0])
    query = queries.Stats("wide")
    for engine in (nodes.first, nodes.second):
        with pytest.raises(Elsewhere):
            engine.apply(query, NOW)
    parts = [engine.apply_part(query, NOW) for engine in (nodes.first, nodes.second)]
    found = join(nodes.first.limits, query, parts)
    assert isinstance(found, queries.StatsFound)
    assert (found.queues, found.counts.waiting) == (SHARDS, SHARDS)


def test_a_reader_with_old_control_records_answers_nothing_about_a_tenant_it_does_not_know(
    nodes: Nodes,
) -> None:
    """It may be spread: an answer from the shard of its name would lack most of it."""
    nodes.first.apply(c.TenantPut("wide", True), NOW)
    (queue,) = queues_in(nodes.first, "wide", 0)
    push(nodes.first, "wide", queue=queue)
    nodes.commit()
    for query in (queries.ListQueues("wide"), queries.Describe("wide", queue), queries.Stats("wide")):
        with pytest.raises(Elsewhere):
            nodes.second.apply(query, NOW)
