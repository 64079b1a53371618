"""How long messages, partitions and groups count: retention of each kind, idle groups."""

from typing import Any

import pytest

from forebay.core.api import commands as c, queries
from forebay.core.bounds import SEGMENT_BYTES_MAX
from forebay.core.delivery import pop as pops
from forebay.core.delivery.pop import ACTIVE_MS
from forebay.core.errors import Conflict, ForebayError, Invalid, NotFound
from forebay.core.retention import merge as merges, sweep as sweeps
from forebay.core.shard.timers import SWEEP_MS
from forebay.core.state import Partition
from forebay.core.words import LINE
from tests.core.harness import Core

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def swept(core: Core, times: int = 1) -> None:
    for _ in range(times):
        core.commit()
        core.wait(SWEEP_MS)


def partition_of(core: Core, name: str = "default") -> Partition:
    return core.engine.queues["default", "q"].partitions[name]


def offsets(core: Core, name: str = "default") -> tuple[int, int]:
    log = partition_of(core, name).log
    return log.first, log.end


def gone(core: Core, message: int) -> bool:
    try:
        core.state(message)
    except NotFound:
        return True
    return False


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def refuse(core: Core, command: c.Command, kind: type[ForebayError]) -> None:
    core.commit()
    with pytest.raises(kind):
        core.engine.apply(command, core.now)
    assert core.engine.seal(core.now) == []


# retention_ms.


@pytest.mark.parametrize("grouped", [False, True])
def test_what_waits_for_too_long_is_dropped_unread(grouped: bool) -> None:
    core = Core()
    core.configure(retention_ms=HOUR_MS)
    if grouped:
        core.pop()
    old = core.push(b"old", b"urgent", priority=3)
    core.push(b"plain")
    core.commit()
    core.wait(HOUR_MS - SWEEP_MS)
    new = core.push(b"new")
    swept(core)
    assert not gone(core, old)
    swept(core)
    assert (gone(core, old), gone(core, new)) == (True, False)
    core.restart()
    assert offsets(core) == (3, 4)
    assert core.counts() == queries.Counts(waiting=1)
    assert core.popped(9) == [b"new"]


def test_what_is_delayed_or_dead_for_too_long_is_dropped_too() -> None:
    core = Core()
    core.configure(retention_ms=HOUR_MS, max_attempts=1)
    dead = core.push(b"dead")
    core.nack(core.pop().lease)
    later = core.push(b"later", delay_ms=DAY_MS)
    core.ask(c.AddNote("default", later, LINE, b"line"), c.Noted)
    swept(core)
    core.wait(HOUR_MS + SWEEP_MS)
    core.restart()
    assert gone(core, dead)
    assert gone(core, later)
    assert core.counts() == queries.Counts()
    assert core.ask(queries.ListDead("default", "q"), queries.DeadFound).total == 0
    core.wait(DAY_MS)
    assert core.popped(9) == []


def test_an_island_that_is_too_old_is_dropped() -> None:
    core = Core()
    core.configure(completed_retention_ms=0)
    far = core.push(b"far", delay_ms=DAY_MS)
    core.push(b"near")
    core.commit()
    core.ack(core.pop().lease)
    swept(core)
    assert partition_of(core).log.islands == 1
    core.configure(retention_ms=HOUR_MS)
    core.wait(HOUR_MS)
    assert partition_of(core).log.islands == 0
    assert gone(core, far)
    core.restart()
    assert core.counts() == queries.Counts()


def test_what_is_leased_is_dropped_only_after_its_lease() -> None:
    core = Core()
    core.configure(retention_ms=HOUR_MS)
    first = core.push(*numbers(3))
    lease = core.pop(2, lease_ms=3 * HOUR_MS).lease
    swept(core)
    core.wait(2 * HOUR_MS)
    assert [core.state(first + at) for at in range(3)] == ["active", "active", "waiting"]
    assert core.ack(lease, [first]).count == 1
    core.wait(HOUR_MS)
    swept(core)
    assert all(gone(core, first + at) for at in range(3))
    refuse(core, c.Ack("default", lease), Conflict)


def test_what_is_acked_after_its_retention_is_dropped_then() -> None:
    core = Core()
    core.configure(retention_ms=HOUR_MS)
    message = core.push(b"1")
    lease = core.pop(lease_ms=3 * HOUR_MS).lease
    swept(core)
    core.wait(2 * HOUR_MS)
    assert core.ack(lease).count == 1
    swept(core)
    assert gone(core, message)


def test_a_lease_that_begins_on_an_island_keeps_what_it_has_in_the_log() -> None:
    core = Core()
    core.configure(completed_retention_bytes=0)
    half = SEGMENT_BYTES_MAX // 2
    first = core.push(b"a" * half, b"b" * (half - 99), b"c" * half, delay_ms=HOUR_MS)
    core.commit()
    core.pop()
    partition = partition_of(core)
    assert len(partition.log.segments) > 1
    core.configure(completed_retention_bytes=sum(each.size for each in partition.log.segments[1:]))
    swept(core)
    assert 0 < partition.log.islands < len(partition.log.segments)
    core.wait(HOUR_MS)
    lease = core.pop(3, lease_ms=3 * HOUR_MS).lease
    core.configure(retention_ms=HOUR_MS)
    core.wait(HOUR_MS)
    assert [core.state(first + at) for at in range(3)] == ["active"] * 3
    core.restart()
    assert core.engine.damaged == {}
    assert core.nack(lease).count == 3


def test_a_retention_of_zero_keeps_for_ever() -> None:
    core = Core()
    message = core.push(b"1")
    core.commit()
    core.pop(partition="none")
    core.wait(3_650 * DAY_MS)
    assert core.state(message) == "waiting"


def test_of_a_merged_segment_only_what_is_old_is_not_delivered() -> None:
    core = Core()
    core.pop()
    for number in range(4):
        core.push(b"%d" % number)
        core.push(b"late %d" % number, delay_ms=DAY_MS)
        core.commit()
        core.wait(HOUR_MS // 2)
    queue, partition = core.engine.queues["default", "q"], partition_of(core)
    core.engine.shards[queue.shard].changes.to_merge[partition.key] = (queue, partition)
    merge = core.engine.plan_merge(2)
    assert merge is not None
    bodies = [each.body for each in merge.parts if each.body is not None]
    assert core.engine.apply_merge(merge, merges.join(merge, bodies))
    assert len(partition.log.segments) < 4
    core.configure(retention_ms=HOUR_MS + HOUR_MS // 4)
    swept(core, 3)
    assert core.popped(9) == [b"2", b"3"]
    core.restart()
    core.wait(HOUR_MS)
    assert core.counts().waiting >= 0


def test_a_retention_that_is_taken_back_drops_nothing_more() -> None:
    core = Core()
    core.configure(retention_ms=HOUR_MS)
    first = core.push(b"1")
    core.commit()
    core.configure(partition="default", partition_retention_ms=1)
    core.wait(HOUR_MS)
    swept(core)
    assert gone(core, first)
    second = core.push(b"2")
    core.commit()
    core.configure(retention_ms=0)
    core.configure(partition="default", partition_retention_ms=None)
    core.restart()
    core.wait(DAY_MS)
    swept(core)
    assert core.state(second) == "waiting"


def test_ten_thousand_that_are_old_go_with_one_header_and_one_body() -> None:
    core = Core()
    core.configure(retention_ms=HOUR_MS)
    core.pop()
    core.push(*numbers(10_000))
    core.commit()
    assert len(list(core.store.body_keys())) == 1
    core.wait(HOUR_MS + SWEEP_MS)
    deletes = [key for commit in core.engine.seal(core.now) for key in commit.deletes]
    assert sorted(key[8:9] for key in deletes) == [b"b", b"h"]
    assert core.counts() == queries.Counts()


def test_what_is_acked_is_removed_where_nothing_completed_is_kept() -> None:
    core = Core()
    core.configure(completed_retention_ms=0)
    message = core.push(b"1")
    core.ack(core.pop().lease)
    assert core.state(message) == "completed"
    swept(core)
    assert gone(core, message)
    core.commit()
    assert list(core.store.body_keys()) == []


# Retention of a partition.


def test_a_partition_may_keep_shorter_or_longer_than_its_queue() -> None:
    core = Core()
    core.configure(retention_ms=HOUR_MS)
    ids = {name: core.push(b"1", partition=name) for name in ("short", "long", "usual")}
    core.commit()
    core.configure(partition="short", retention_ms=SWEEP_MS)
    core.configure(partition="long", retention_ms=0)
    core.restart()
    swept(core, 3)
    assert [name for name, message in ids.items() if gone(core, message)] == ["short"]
    core.wait(HOUR_MS)
    swept(core)
    assert [name for name, message in ids.items() if not gone(core, message)] == ["long"]


def test_a_partition_may_keep_what_is_completed_shorter_than_its_queue() -> None:
    core = Core()
    ids = {name: core.push(b"1", partition=name) for name in ("short", "usual")}
    core.configure(partition="short", completed_retention_ms=0)
    core.ack(core.pop(9).lease)
    swept(core)
    assert [name for name, message in ids.items() if gone(core, message)] == ["short"]


def test_a_partition_that_was_empty_when_its_retention_was_set_keeps_to_it() -> None:
    core = Core()
    core.configure(completed_retention_ms=0)
    core.push(b"1")
    core.ack(core.pop().lease)
    swept(core, 2)
    core.configure(partition="default", retention_ms=SWEEP_MS)
    swept(core, 2)
    message = core.push(b"2")
    swept(core, 4)
    assert gone(core, message)


def test_only_retention_can_be_set_for_a_partition_that_is_there() -> None:
    core = Core()
    core.push(b"1")
    refuse(core, c.Configure("default", "q", lease_ms=5, partition="default"), Invalid)
    refuse(core, c.Configure("default", "q", retention_ms=5, max_size=5, partition="default"), Invalid)
    refuse(core, c.Configure("default", "q", retention_ms=5, partition="nope"), NotFound)
    refuse(core, c.Configure("default", "nope", retention_ms=5, partition="default"), NotFound)
    refuse(core, c.Configure("default", "q", retention_ms=-1, partition="default"), Invalid)


# Empty partitions.


def emptied(core: Core, *names: str) -> dict[str, int]:
    """Partitions that had a message each, and have none any more; the ids of those."""
    core.configure(completed_retention_ms=0, partition_retention_ms=HOUR_MS)
    ids = {name: core.push(b"1", partition=name) for name in names}
    core.ack(core.pop(99).lease)
    swept(core)
    return ids


def names(core: Core) -> list[str]:
    return list(core.engine.queues["default", "q"].partitions)


def test_a_partition_that_is_empty_for_long_enough_is_removed_but_for_the_default_one() -> None:
    core = Core()
    ids = emptied(core, "default", "x", "y")
    core.wait(HOUR_MS - SWEEP_MS)
    assert names(core) == ["default", "x", "y"]
    core.push(b"2", partition="y")
    core.restart()
    swept(core, 2)
    assert names(core) == ["default", "y"]
    assert gone(core, ids["x"])
    core.restart()
    assert names(core) == ["default", "y"]
    assert core.popped(9) == [b"2"]
    queue = core.engine.queues["default", "q"]
    number = (ids["x"] >> 32).to_bytes(4, "big")
    keys = [key for key, _ in core.store.scan(queue.prefix + b"c", queue.prefix + b"w")]
    assert not [key for key in keys if key[8:9] in b"cp" and key.endswith(number)]


def test_a_removed_partition_is_made_anew_under_another_number() -> None:
    core = Core()
    ids = emptied(core, "x")
    lease = core.pop(queue="q").lease
    swept(core)
    core.wait(HOUR_MS)
    assert names(core) == []
    assert lease is None
    message = core.push(b"new", partition="x")
    assert message >> 32 != ids["x"] >> 32
    core.restart()
    assert gone(core, ids["x"])
    for group in ("default", "later"):
        assert core.popped(9, group=group) == [b"new"]


def test_ids_of_a_removed_partition_are_refused_like_any_other() -> None:
    core = Core()
    message = emptied(core, "x")["x"]
    core.wait(HOUR_MS + SWEEP_MS)
    assert names(core) == []
    for command in (
        c.Cancel("default", [message]),
        queries.State("default", message),
        queries.GetNotes("default", message),
    ):
        refuse(core, command, NotFound)
    refuse(core, c.Ack("default", ids=[message]), Conflict)
    refuse(core, c.Seek("default", "q", "default", "all", "x"), NotFound)
    refuse(core, c.Update("default", message, b"2"), NotFound)


def test_a_partition_may_be_empty_for_as_long_as_it_likes_if_it_says_so() -> None:
    core = Core()
    core.push(b"1", partition="x")
    core.configure(partition="x", partition_retention_ms=0)
    emptied(core, "y")
    core.wait(2 * HOUR_MS)
    assert names(core) == ["x"]


def test_partitions_come_and_go_and_deliver_all_the_same() -> None:
    core = Core()
    for round_ in range(3):
        emptied(core, "x", "y")
        core.push(b"%d" % round_, partition="z")
        core.wait(HOUR_MS)
        swept(core)
        assert names(core) == ["z"]
        core.restart()
        assert core.popped(9) == [b"%d" % round_]
        core.configure(max_attempts=0)
        core.wait(HOUR_MS)
        core.ack(core.pop(9).lease)
        swept(core)
        core.wait(HOUR_MS)
        swept(core)
        assert names(core) == []


# Idle groups.


def with_idle(core: Core, idle_ms: int = DAY_MS, **options: Any) -> int:
    """A queue that one group reads and another has left; the id of the first message."""
    core.configure(group_idle_ms=idle_ms, completed_retention_ms=0, **options)
    core.pop(group="gone")
    first = core.push(*numbers(3))
    core.commit()
    core.ack(core.pop(9).lease)
    return first


def test_a_group_that_does_not_pop_for_long_no_longer_keeps_messages() -> None:
    core = Core()
    first = with_idle(core)
    core.wait(DAY_MS - ACTIVE_MS)
    core.pop()
    swept(core)
    assert core.state(first, "gone") == "waiting"
    core.wait(2 * ACTIVE_MS + SWEEP_MS)
    core.push(b"new")
    core.ack(core.pop().lease)
    swept(core, 2)
    assert gone(core, first)
    core.restart()
    assert core.popped(9, group="gone") == []


def test_an_idle_group_lets_messages_go_even_if_nobody_does_anything() -> None:
    core = Core()
    first = with_idle(core)
    swept(core, 2)
    core.wait(DAY_MS + ACTIVE_MS + SWEEP_MS)
    swept(core, 2)
    assert gone(core, first)


def test_a_group_that_pops_again_in_time_misses_nothing() -> None:
    core = Core()
    with_idle(core)
    for _ in range(3):
        core.wait(DAY_MS // 2)
        core.pop(group="gone", partition="none")
        swept(core)
    assert core.popped(9, group="gone") == numbers(3)


def test_the_work_queue_is_never_idle() -> None:
    core = Core()
    core.configure(group_idle_ms=DAY_MS, completed_retention_ms=0)
    core.pop()
    core.push(*numbers(3))
    core.commit()
    core.ack(core.pop(9, group="other").lease)
    core.wait(2 * DAY_MS)
    core.push(b"new")
    core.ack(core.pop(group="other").lease)
    swept(core, 2)
    assert core.popped(9) == [*numbers(3), b"new"]


def test_if_every_group_is_idle_all_of_them_keep_messages() -> None:
    core = Core()
    core.configure(group_idle_ms=DAY_MS, completed_retention_ms=0)
    for group in ("one", "two"):
        core.pop(group=group)
    core.push(*numbers(3))
    core.commit()
    core.ack(core.pop(9, group="one").lease)
    core.wait(3 * DAY_MS)
    core.push(b"new")
    swept(core, 2)
    assert core.popped(9, group="two") == [*numbers(3), b"new"]


def test_when_a_group_was_last_seen_survives_a_restart() -> None:
    core = Core()
    first = with_idle(core)
    core.wait(DAY_MS // 2)
    core.restart()
    core.wait(DAY_MS // 2 + 2 * ACTIVE_MS)
    core.push(b"new")
    core.ack(core.pop(9).lease)
    swept(core, 2)
    assert gone(core, first)


def test_what_an_idle_group_holds_or_has_set_aside() -> None:
    core = Core()
    core.configure(group_idle_ms=DAY_MS, completed_retention_ms=0, max_attempts=1)
    first = core.push(*numbers(4))
    core.push(b"later", delay_ms=3 * DAY_MS)
    core.commit()
    lease = core.pop(1, group="gone").lease
    core.nack(lease)
    core.wait(DAY_MS)
    held = core.pop(1, group="gone", lease_ms=12 * HOUR_MS).lease
    core.ack(core.pop(9).lease)
    core.ask(c.Clean("default", "q", ("delayed",)), c.Cleaned)
    core.wait(DAY_MS // 2 - SWEEP_MS)
    swept(core)
    assert core.state(first, "gone") == "dead"
    core.wait(DAY_MS)
    core.push(b"new")
    core.ack(core.pop(9).lease)
    swept(core, 3)
    assert gone(core, first)
    refuse(core, c.Ack("default", held), Conflict)
    core.restart()
    assert core.counts(group="gone").dead == core.counts(group="gone").delayed == 0
    assert core.popped(9, group="gone") in ([b"new"], [])


def test_a_group_that_never_counts_as_idle() -> None:
    core = Core()
    first = with_idle(core, 0)
    core.wait(365 * DAY_MS)
    core.push(b"new")
    core.ack(core.pop().lease)
    swept(core, 2)
    assert core.state(first, "gone") == "waiting"


def test_what_an_idle_group_has_still_to_sort_is_given_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pops, "PLANS_MAX", 1)
    core = Core()
    core.configure(group_idle_ms=DAY_MS, completed_retention_ms=0)
    for number in range(4):
        core.push(b"%d" % number, priority=number + 1)
    core.push(*numbers(4))
    core.commit()
    core.pop(group="gone", partition="none")
    for _ in range(8):
        core.pop(9, partition="none")
        core.commit()
    lease = core.pop(5, lease_ms=12 * HOUR_MS).lease
    core.ack(lease)
    core.wait(2 * DAY_MS)
    core.pop(partition="none")
    core.commit()
    swept(core, 4)
    found = core.counts(group="gone")
    assert min(getattr(found, field) for field in queries.Counts.__struct_fields__) >= 0
    core.restart()
    assert core.counts(group="gone") == found


def test_so_much_that_is_old_goes_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps, "OLD_MAX", 2)
    core = Core()
    core.pop()
    ids = [core.push(b"far", delay_ms=DAY_MS)]
    for _ in range(6):
        core.commit()
        core.now += 1
        ids.append(core.push(b"plain"))
    core.commit()
    core.wait(HOUR_MS)
    core.configure(retention_ms=HOUR_MS // 2)
    left = []
    for _ in range(5):
        swept(core)
        left.append(sum(not gone(core, each) for each in ids))
    assert left[0] in (5, 6, 7)
    assert left == sorted(left, reverse=True)
    assert left[-1] == 0
    core.restart()
    assert core.counts() == queries.Counts()
