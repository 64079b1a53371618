"""What a confirmed change survives: power loss, a crash, or nothing; and which ids may come again (none)."""

import pytest

from forebay.core import engine as engines
from forebay.core.api import commands as c, queries
from forebay.core.errors import Conflict, Invalid, NotFound
from forebay.core.ids import OFFSET_BITS
from forebay.core.records import keyspace
from forebay.core.records.keyspace import CONTROL
from forebay.core.state import PLAIN, Partition
from tests.core.harness import Core
from tests.sim.inside import tenants_in
from tests.sim.world import SHARDS, load

LEVELS = ["fsync", "os"]


def push(core: Core, *payloads: bytes, durability: str | None = None, partition: str = "default") -> c.Pushed:
    return core.ask(c.Push("default", "q", list(payloads) or [b"1"], partition, durability), c.Pushed)


def configure(core: Core, durability: str, queue: str = "q") -> queries.QueueFound:
    return core.ask(c.Configure("default", queue, durability=durability), queries.QueueFound)


def sealed(core: Core) -> bool:
    """Commit, and say whether it has to be synced."""
    core.commit()
    return core.engine.must_sync


def partition_of(core: Core, partition: str = "default") -> Partition:
    return core.engine.queues["default", "q"].partitions[partition]


def number(identity: int) -> int:
    return identity >> OFFSET_BITS


# What has to be synced.


def test_a_push_survives_power_loss_unless_it_says_otherwise() -> None:
    core = Core()
    assert push(core).durability == "fsync"
    assert sealed(core)
    assert push(core).durability == "fsync"
    assert sealed(core)


def test_only_the_first_os_push_of_a_partition_has_to_be_synced() -> None:
    core = Core()
    push(core)
    assert sealed(core)
    for synced in (True, False, False):
        assert push(core, durability="os").durability == "os"
        assert sealed(core) is synced
    push(core, partition="x")
    assert sealed(core)
    push(core, durability="os", partition="x")
    assert sealed(core), "each partition has its own mark"


def test_a_push_says_for_itself_what_the_queue_does_not() -> None:
    core = Core()
    configure(core, "os")
    push(core)
    core.commit()
    assert push(core).durability == "os"
    assert not sealed(core)
    assert push(core, durability="fsync").durability == "fsync"
    assert sealed(core)


def test_jobs_pushed_together_have_one_durability() -> None:
    core = Core()
    pushes = [("a", [b"1"], PLAIN), ("b", [b"2"], PLAIN)]
    replies = core.engine.apply(c.PushMany("default", "q", pushes, "os"), core.now)
    assert isinstance(replies, list)
    assert [reply.durability for reply in replies] == ["os", "os"]
    core.commit()
    core.engine.apply(c.PushMany("default", "q", pushes, "os"), core.now)
    assert not sealed(core)


@pytest.mark.parametrize("level", LEVELS)
def test_pops_and_acks_survive_what_the_queue_says(level: str) -> None:
    core = Core()
    configure(core, level)
    push(core, b"1", b"2", b"3", b"4")
    core.pop(1)
    core.commit()
    lease = core.pop(1).lease
    assert sealed(core) is (level == "fsync")
    core.ack(lease)
    assert sealed(core) is (level == "fsync")
    core.nack(core.pop(1).lease)
    assert sealed(core) is (level == "fsync")


def test_new_queues_groups_and_options_survive_power_loss_always() -> None:
    core = Core()
    configure(core, "os")
    assert sealed(core)
    core.pop()
    assert sealed(core)
    core.pop(group="another")
    assert sealed(core)
    core.ask(c.Configure("default", "q", lease_ms=5), queries.QueueFound)
    assert sealed(core)


def test_offsets_that_are_told_have_to_be_synced_first() -> None:
    core = Core()
    push(core)
    core.commit()
    for question in (queries.Read("default", "q", 0), queries.Offsets("default", "q")):
        core.engine.apply(question, core.now)
        assert core.engine.seal(core.now) == []
        assert core.engine.must_sync
    assert core.engine.seal(core.now) == []
    assert not core.engine.must_sync
    core.ask(queries.Describe("default", "q"), queries.QueueFound)
    core.engine.seal(core.now)
    assert not core.engine.must_sync


@pytest.mark.parametrize(
    ("reach", "wanted"), [("fsync", ["fsync", "os"]), ("os", ["os", "os"]), ("memory", ["memory", "memory"])]
)
def test_nothing_survives_more_than_the_store_does(reach: str, wanted: list[str]) -> None:
    core = Core()
    for shard in core.engine.shards.values():
        shard.reach = reach
    assert [push(core, durability=level).durability for level in LEVELS] == wanted


@pytest.mark.parametrize("durability", ["memory", "", "FSYNC", "disk"])
def test_a_push_can_ask_for_fsync_or_os_only(durability: str) -> None:
    core = Core()
    for push_ in (
        c.Push("default", "q", [b"1"], durability=durability),
        c.PushMany("default", "q", [("default", [b"1"], PLAIN)], durability),
    ):
        with pytest.raises(Invalid) as refused:
            core.engine.apply(push_, core.now)
        assert refused.value.field == "durability"
    assert core.engine.seal(core.now) == []


def test_a_queue_can_be_fsync_os_or_memory_only() -> None:
    core = Core()
    with pytest.raises(Invalid) as refused:
        configure(core, "disk")
    assert refused.value.field == "durability"
    assert core.engine.queues == {}


# Numbers.


def test_after_a_crash_a_partition_confirmed_as_os_goes_on_under_a_fresh_number() -> None:
    core = Core()
    old = push(core, b"a", b"b", durability="os")
    plain = push(core, partition="plain")
    core.restart()
    fresh = push(core, b"c", b"d")
    assert number(fresh.first) not in (number(old.first), number(plain.first))
    assert fresh.first & (1 << OFFSET_BITS) - 1 == 0
    assert push(core, partition="plain").first == plain.first + 1
    reply = core.pop(10, partition="default")
    ids = [each.first + at for each in reply.deliveries for at in range(each.count)]
    assert ids == [old.first, old.first + 1, fresh.first, fresh.first + 1]
    assert core.ack(ids=ids).count == 4


def test_ids_that_a_power_loss_took_are_not_found_and_never_mean_another_message() -> None:
    core = Core()
    old = push(core, b"a", durability="os")
    core.restart()
    push(core, b"b")
    taken = old.first + 1
    with pytest.raises(NotFound):
        core.state(taken)
    core.pop(10)
    with pytest.raises(Conflict):
        core.ack(ids=[taken])
    assert core.state(old.first) == "active"


def test_after_a_clean_stop_ids_go_on_where_they_were() -> None:
    core = Core()
    old = push(core, b"a", durability="os")
    core.commit()
    core.engine.clear_marks()
    core.restart()
    assert push(core).first == old.first + 1


def test_a_mark_that_was_cleared_is_set_again_by_the_next_os_push() -> None:
    core = Core()
    push(core, durability="os")
    core.commit()
    core.engine.clear_marks()
    core.restart()
    old = push(core, durability="os")
    assert sealed(core)
    core.restart()
    assert number(push(core).first) != number(old.first)


def test_a_fresh_number_is_kept_with_the_next_commit_and_needs_a_sync() -> None:
    core = Core()
    push(core, durability="os")
    core.restart()
    assert sealed(core)
    numbers = list(partition_of(core).numbers)
    assert len(numbers) == 2
    core.restart()
    assert partition_of(core).numbers == numbers
    assert not partition_of(core).os_marked


def test_a_crash_before_that_commit_is_a_crash_like_the_one_before() -> None:
    core = Core()
    old = push(core, durability="os")
    core.commit()
    for _ in range(3):
        core.engine = load(core.store, core.limits, core.now)  # without a commit
        assert [base for _, base in partition_of(core).numbers] == [0, 1]
    assert number(push(core).first) != number(old.first)


# Restored from a backup.


SKIPS = 70_000


def restored(core: Core) -> None:
    """The store as a backup: names may have been given out since that it knows nothing of."""
    core.commit()
    control = core.store.claim(CONTROL).epoch
    claims = {shard: engines.Taken(core.store.claim(shard).epoch, restored=SKIPS) for shard in range(SHARDS)}
    core.engine = engines.load(core.limits, SHARDS, claims, control, core.store.scan, core.now)


def test_after_a_restore_every_partition_has_a_number_far_from_any_given_out() -> None:
    core = Core()
    old = {name: push(core, partition=name) for name in ("a", "b")}
    restored(core)
    for name in ("a", "b"):
        fresh = push(core, partition=name)
        assert number(fresh.first) - number(old[name].first) >= SKIPS * SHARDS
    new = push(core, partition="new")
    assert number(new.first) > SKIPS * SHARDS
    assert sealed(core)
    core.restart()
    assert push(core, partition="a").first & (1 << OFFSET_BITS) - 1 == 1
    assert core.pop(10, group="g").deliveries[0].first == old["a"].first


def test_after_a_restore_tenants_and_queues_have_numbers_far_from_any_given_out() -> None:
    core = Core()
    push(core)
    old = core.engine.queues["default", "q"].prefix
    restored(core)
    core.push(queue="new")
    fresh = core.engine.queues["default", "new"].prefix
    assert fresh[:4] == old[:4]
    assert number_of(fresh[4:]) - number_of(old[4:]) >= SKIPS * SHARDS
    shard = core.engine.queues["default", "q"].shard
    (other,) = tenants_in(core.engine, shard)
    core.push(tenant=other)
    later = core.engine.queues[other, "q"].prefix
    assert number_of(later[:4]) - number_of(old[:4]) >= SKIPS * SHARDS


def number_of(part: bytes) -> int:
    return int.from_bytes(part, "big")


# Queues in memory.


def memory_queue() -> Core:
    core = Core()
    configure(core, "memory")
    return core


def test_nothing_of_a_memory_queue_is_stored_but_its_name_and_options() -> None:
    core = memory_queue()
    assert push(core, b"1", b"2", b"3").durability == "memory"
    lease = core.pop(2).lease
    core.nack(lease)
    core.commit()
    core.pop(1)
    core.commit()
    prefix = core.engine.queues["default", "q"].prefix
    assert [key for key, _ in core.store.scan(*keyspace.queue_bounds(prefix))] == [keyspace.queue_key(prefix)]
    assert core.store._bodies == {}


def test_after_a_restart_a_memory_queue_is_empty_and_still_one() -> None:
    core = memory_queue()
    core.ask(c.Configure("default", "q", lease_ms=77), queries.QueueFound)
    old = push(core)
    core.pop()
    core.restart()
    assert not core.engine.damaged
    found = core.ask(queries.Describe("default", "q"), queries.QueueFound)
    assert (found.options.durability, found.options.lease_ms) == ("memory", 77)
    assert (found.partitions, found.groups) == ([], [])
    fresh = push(core)
    assert fresh.durability == "memory"
    assert number(fresh.first) != number(old.first)
    with pytest.raises(NotFound):
        core.state(old.first)


def test_a_memory_queue_delivers_settles_and_is_swept_like_any_other() -> None:
    core = memory_queue()
    core.ask(c.Configure("default", "q", completed_retention_ms=0), queries.QueueFound)
    core.forgive()
    push(core, b"1", b"2", b"3")
    core.commit()
    first = core.pop(2)
    core.nack(first.lease)
    again = core.pop(3)
    assert [bytes(each) for piece in again.deliveries for each in piece.payloads()] == [b"1", b"2", b"3"]
    core.ack(again.lease)
    core.now += 60_000
    core.engine.tick(core.now)
    assert partition_of(core).log.segments == []
    core.restart()
    assert not core.engine.damaged


@pytest.mark.parametrize("level", LEVELS)
def test_a_queue_is_memory_from_its_creation_on_or_never(level: str) -> None:
    core = memory_queue()
    with pytest.raises(Conflict):
        configure(core, level)
    with pytest.raises(Conflict):
        push(core, durability=level)
    assert configure(core, "memory").options.durability == "memory"
    configure(core, level, "stored")
    with pytest.raises(Conflict):
        configure(core, "memory", "stored")
    core.restart()
    with pytest.raises(Conflict):
        configure(core, "memory", "stored")
    with pytest.raises(Conflict):
        configure(core, level)


def test_a_push_makes_a_queue_that_is_stored() -> None:
    core = Core()
    push(core)
    assert core.ask(queries.Describe("default", "q"), queries.QueueFound).options.durability == "fsync"
    assert configure(core, "os").options.durability == "os"
