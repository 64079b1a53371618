"""Seeking: a group reads on from another place, and everything it knew of what lies there is forgotten."""

from typing import Any

import pytest

from forebay.core.api import commands as c, queries
from forebay.core.errors import Conflict, ForebayError, Invalid, NotFound
from forebay.core.shard.timers import SWEEP_MS
from forebay.core.state import Backoff
from tests.core.harness import AT_ONCE, NOW, Core

HOUR_MS = 3_600_000


def seek(core: Core, start: int | str = "all", group: str = "default", **fields: Any) -> dict[str, int]:
    return core.ask(c.Seek("default", "q", group, start, **fields), c.Sought).cursors


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def refuse(core: Core, command: c.Command, kind: type[ForebayError]) -> None:
    core.commit()
    with pytest.raises(kind):
        core.engine.apply(command, core.now)
    assert core.engine.seal(core.now) == []


def ticking(core: Core, count: int = 6) -> int:
    """Messages a millisecond apart, which the group has completed; the id of the first."""
    first = -1
    for number in range(count):
        message = core.push(b"%d" % number)
        first = message if first < 0 else first
        core.commit()
        core.now += 1
    core.ack(core.pop(count).lease)
    return first


# Where.


def test_a_group_reads_everything_again() -> None:
    core = Core()
    first = ticking(core)
    assert seek(core) == {"default": 0}
    assert core.counts() == queries.Counts(waiting=6)
    assert core.state(first) == "waiting"
    reply = core.pop(9)
    assert {(each.deliveries, each.failures) for each in reply.deliveries} == {(1, 0)}
    core.restart()
    assert core.ack(reply.lease).count == 6


def test_a_group_reads_only_what_comes_from_now_on() -> None:
    core = Core()
    core.push(*numbers(4))
    core.pop(1)
    assert seek(core, "new") == {"default": 4}
    assert core.counts() == queries.Counts(completed=4)
    core.restart()
    assert core.popped(9) == []
    core.push(b"new")
    assert core.popped(9) == [b"new"]


@pytest.mark.parametrize(("at", "wanted"), [(-5, 0), (0, 0), (1, 1), (4, 4), (6, 6)])
def test_a_group_reads_on_from_a_time(at: int, wanted: int) -> None:
    core = Core()
    ticking(core)
    assert seek(core, NOW + at) == {"default": wanted}
    assert core.popped(9) == numbers(6)[wanted:]


def test_a_group_reads_on_from_an_offset_of_one_partition() -> None:
    core = Core()
    core.push(*numbers(4))
    core.push(b"x0", b"x1", partition="x")
    core.ack(core.pop(9).lease)
    assert seek(core, partition="default", offset=2) == {"default": 2}
    assert core.popped(9) == [b"2", b"3"]
    assert seek(core, partition="x") == {"x": 0}
    core.restart()
    assert core.popped(9) == [b"x0", b"x1"]
    assert seek(core, "new", partition="default") == {"default": 4}


def test_all_partitions_are_meant_if_none_is_named() -> None:
    core = Core()
    core.push(*numbers(2))
    core.push(b"x", partition="x")
    core.ack(core.pop(9).lease)
    assert seek(core) == {"default": 0, "x": 0}
    assert sorted(core.popped(9)) == [b"0", b"1", b"x"]


def test_what_is_no_longer_kept_is_not_read_again() -> None:
    core = Core()
    core.configure(completed_retention_ms=0)
    ticking(core)
    core.wait(SWEEP_MS)
    core.push(b"kept")
    assert seek(core, NOW) == {"default": 6}
    assert core.popped(9) == [b"kept"]


# What was held.


@pytest.mark.parametrize("partition", [None, "default"])
def test_leases_are_void_and_a_late_ack_is_a_conflict(partition: str | None) -> None:
    core = Core()
    first = core.push(*numbers(3))
    lease = core.pop(2).lease
    single = core.pop(1).lease
    seek(core, partition=partition)
    for command in (
        c.Ack("default", lease),
        c.Nack("default", single),
        c.Extend("default", lease),
        c.Ack("default", ids=[first]),
    ):
        refuse(core, command, Conflict)
    core.restart()
    refuse(core, c.Ack("default", lease), Conflict)
    assert core.counts() == queries.Counts(waiting=3)
    core.wait(HOUR_MS)
    assert core.popped(9) == numbers(3)
    assert core.find(first).failures == 0


def test_a_lease_over_several_partitions_keeps_what_was_not_sought() -> None:
    core = Core()
    core.push(*numbers(2))
    other = core.push(b"x", partition="x")
    lease = core.pop(9).lease
    seek(core, partition="default")
    core.restart()
    assert core.state(other) == "active"
    assert core.ack(lease).count == 1
    assert core.popped(9) == numbers(2)


def test_the_schedule_is_made_anew_from_what_was_pushed() -> None:
    core = Core()
    core.configure(backoff=Backoff("fixed", HOUR_MS))
    core.push(b"low", priority=-1)
    core.push(b"plain")
    core.push(b"urgent", priority=5)
    later = core.push(b"later", delay_ms=1_000)
    moved = core.push(b"moved")
    core.ask(c.Move("default", [moved], priority=9), c.Settled)
    core.nack(core.pop(2).lease)
    for partition in (None, "default"):
        seek(core, partition=partition)
        core.commit()
        assert core.popped(9) == [b"urgent", b"plain", b"moved", b"low"]
    found = core.find(later)
    assert (found.state, found.due_at) == ("delayed", NOW + 1_000)
    core.restart()
    core.wait(1_000)
    assert core.popped(9) == [b"later"]


def test_what_was_scheduled_below_the_new_place_is_given_up() -> None:
    core = Core()
    core.configure(backoff=Backoff("fixed", 100))
    first = core.push(*numbers(4))
    core.nack(core.pop(2).lease)
    core.push(b"later", delay_ms=50)
    seek(core, "new")
    core.restart()
    core.wait(HOUR_MS)
    assert core.popped(9) == []
    assert core.state(first) == "completed"
    assert core.counts() == queries.Counts(completed=5)


# Dead letters and outcomes.


def half_dead(core: Core) -> int:
    """Six messages: dead, cancelled, completed, and so again."""
    core.configure(max_attempts=1, backoff=AT_ONCE)
    first = core.push(*numbers(6))
    lease = core.pop(6).lease
    core.nack(lease, [first, first + 3], error="broken")
    core.cancel(first + 1, first + 4, group="default")
    core.ack(lease)
    return first


@pytest.mark.parametrize("partition", [None, "default"])
def test_dead_letters_and_outcomes_below_stay_and_those_above_are_read_again(partition: str | None) -> None:
    core = Core()
    first = half_dead(core)
    if partition is None:
        core.commit()
        core.now += 1
        core.push(b"new")
        seek(core, NOW + 1)
        wanted, states = [b"new"], ["dead", "cancelled", "completed"] * 2
        states.append("waiting")
    else:
        seek(core, partition=partition, offset=3)
        wanted, states = [b"3", b"4", b"5"], ["dead", "cancelled", "completed", *["waiting"] * 3]
    for restarted in (False, True):
        if restarted:
            core.restart()
        assert [core.state(first + at) for at in range(len(states))] == states
    assert core.popped(9) == wanted
    letters = core.ask(queries.ListDead("default", "q"), queries.DeadFound)
    assert letters.total == states.count("dead")
    requeued = core.ask(c.Requeue("default", "q"), c.Buried)
    assert (requeued.count, core.popped(9)) == (states.count("dead"), numbers(6)[: 3 * requeued.count : 3])


@pytest.mark.parametrize("partition", [None, "default"])
def test_a_run_of_dead_letters_is_cut_where_the_group_begins(partition: str | None) -> None:
    core = Core()
    core.configure(max_attempts=1)
    first = core.push(*numbers(4))
    core.nack(core.pop(4).lease)
    seek(core, partition="default", offset=2)
    assert core.counts() == queries.Counts(waiting=2, dead=2)
    seek(core, partition=partition)
    core.restart()
    assert core.counts() == queries.Counts(waiting=4)
    assert core.state(first) == "waiting"


def test_what_was_cancelled_for_all_stays_cancelled() -> None:
    core = Core()
    first = core.push(*numbers(3))
    later = core.push(b"later", delay_ms=10)
    core.cancel(first + 1, later)
    core.ack(core.pop(9).lease)
    for partition in (None, "default"):
        seek(core, partition=partition)
        core.restart()
        assert core.counts() == queries.Counts(waiting=2, cancelled=2)
    core.wait(10)
    assert core.popped(9) == [b"0", b"2"]


# Everything else.


def test_other_groups_are_left_alone() -> None:
    core = Core()
    core.configure(max_attempts=1)
    first = core.push(*numbers(4))
    lease = core.pop(2, group="audit").lease
    core.nack(lease, [first])
    core.pop(3)
    before = core.counts(group="audit")
    seek(core, "new")
    seek(core)
    core.restart()
    assert core.counts(group="audit") == before == queries.Counts(waiting=2, active=1, dead=1)
    assert core.ack(lease).count == 1
    assert core.popped(9, group="audit") == [b"2", b"3"]


def test_a_restart_finds_what_a_seek_left() -> None:
    for partition in (None, "default"):
        core = Core()
        first = half_dead(core)
        core.push(b"x", partition="x", delay_ms=500)
        core.push(b"urgent", priority=3)
        core.pop(1)
        seek(core, partition=partition)
        seen = [core.find(first + at) for at in range(7)]
        counts = core.counts()
        core.restart()
        assert [core.find(first + at) for at in range(7)] == seen
        assert core.counts() == counts
        queue = core.engine.queues["default", "q"]
        known = {each.number for each in queue.groups.values()}
        for kind in (b"c", b"d", b"g", b"o", b"s", b"v"):
            for key, _ in core.store.scan(queue.prefix + kind, queue.prefix + kind + b"\xff" * 32):
                assert int.from_bytes(key[9:13], "big") in known


def test_a_group_may_seek_often_in_one_commit() -> None:
    core = Core()
    half_dead(core)
    for _ in range(3):
        seek(core, "new")
        seek(core, partition="default", offset=1)
        seek(core)
    core.restart()
    assert core.popped(9) == numbers(6)


def test_those_who_wait_are_told() -> None:
    core = Core()
    core.push(b"1")
    core.ack(core.pop().lease)
    core.commit()
    assert core.engine.take_woken() == []
    seek(core)
    assert [wake[1:] for wake in core.engine.take_woken()] == [("default", "default")]


def test_a_group_in_a_memory_queue_seeks_too() -> None:
    core = Core()
    core.configure(durability="memory")
    core.push(*numbers(3))
    core.push(b"later", delay_ms=5)
    core.ack(core.pop(9).lease)
    seek(core)
    core.commit()
    assert core.popped(9) == numbers(3)
    core.wait(5)
    assert core.popped(9) == [b"later"]


def test_a_queue_in_strict_order_can_be_read_again() -> None:
    core = Core()
    core.configure(ordering="partition", backoff=Backoff("fixed", HOUR_MS))
    core.push(*numbers(3))
    core.nack(core.pop(2).lease)
    assert core.popped(9) == []
    seek(core)
    assert core.popped(2) == [b"0", b"1"]
    seek(core, partition="default", offset=2)
    assert core.popped(9) == [b"2"]


@pytest.mark.parametrize("partition", [None, "default"])
def test_a_message_that_waits_long_after_the_log_went_on_is_not_lost_by_a_seek(partition: str | None) -> None:
    core = Core()
    core.configure(completed_retention_ms=0)
    message = core.push(b"far", delay_ms=HOUR_MS)
    core.commit()
    core.push(b"near")
    core.ack(core.pop().lease)
    core.commit()
    core.wait(SWEEP_MS)
    assert core.state(message) == "delayed"
    seek(core, partition=partition)
    core.restart()
    assert core.state(message) == "delayed"
    core.wait(HOUR_MS)
    assert core.popped(9) == [b"far"]


def test_what_can_not_be_sought_is_refused_and_nothing_changes() -> None:
    core = Core()
    core.push(*numbers(2))
    lease = core.pop(1).lease
    refuse(core, c.Seek("default", "nope", "default", "all"), NotFound)
    refuse(core, c.Seek("evil", "q", "default", "all"), NotFound)
    refuse(core, c.Seek("default", "q", "nobody", "all"), NotFound)
    refuse(core, c.Seek("default", "q", "default", "all", "nope"), NotFound)
    refuse(core, c.Seek("default", "q", "default", "all", "nope", 0), NotFound)
    for start in ("", "end", -1):
        refuse(core, c.Seek("default", "q", "default", start), Invalid)
    for offset in (-1, 3):
        refuse(core, c.Seek("default", "q", "default", "all", "default", offset), Invalid)
    refuse(core, c.Seek("default", "q", "default", "all", offset=0), Invalid)
    refuse(core, c.Seek("default", "q", "", "all"), Invalid)
    assert core.ack(lease).count == 1
    assert core.popped(9) == [b"1"]


def test_a_promote_that_is_refused_right_after_a_seek_changes_nothing() -> None:
    core = Core()
    message = core.push(b"urgent", priority=3)
    core.pop(partition="none")
    seek(core)
    refuse(core, c.Move("default", [message], delay_ms=0, only_delayed=True), Conflict)
