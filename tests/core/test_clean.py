"""Clearing out: drain, clean by state, discard, and obliterate."""

from typing import Any

import pytest
from msgspec.structs import replace

from forebay.core.api import commands as c, queries
from forebay.core.bounds import NEVER, Limits
from forebay.core.delivery import cancel as cancels
from forebay.core.errors import Conflict, ForebayError, Invalid, NotFound
from forebay.core.queues import clean as cleans
from forebay.core.retention import sweep
from forebay.core.shard.timers import SWEEP_MS
from forebay.core.state import Backoff
from forebay.core.words import LINE
from tests.core.harness import Core
from tests.sim.checks import SHARDS
from tests.sim.inside import tenants_in

HOUR_MS = 3_600_000


def clean(core: Core, *states: str, **fields: Any) -> c.Cleaned:
    """What was cleared; how many bytes that freed is looked at in tests/server/test_clearing.py."""
    return replace(core.ask(c.Clean("default", "q", states, **fields), c.Cleaned), freed=0)


def drain(core: Core, **fields: Any) -> c.Cleaned:
    return clean(core, "waiting", "delayed", **fields)


def discard(core: Core, *ids: int, group: str = "default") -> c.Settled:
    return core.ask(c.Discard("default", list(ids), group), c.Settled)


def obliterate(core: Core, queue: str = "q") -> int:
    return core.ask(c.Obliterate("default", queue), c.Cleaned).count


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def refuse(core: Core, command: c.Command, kind: type[ForebayError]) -> None:
    core.commit()
    with pytest.raises(kind):
        core.engine.apply(command, core.now)
    assert core.engine.seal(core.now) == []


def kill(core: Core, *payloads: bytes) -> int:
    first = core.push(*payloads, max_attempts=1, priority=9)
    core.nack(core.pop(len(payloads)).lease, error="broken")
    return first


# Drain.


def test_a_drain_cancels_what_waits_and_what_is_delayed_and_leaves_the_rest() -> None:
    core = Core()
    dead = kill(core, b"dead")
    held = core.push(b"held")
    lease = core.pop().lease
    waits = core.push(b"waits")
    later = core.push(b"later", delay_ms=HOUR_MS)
    urgent = core.push(b"urgent", priority=5)
    assert drain(core) == c.Cleaned(3)
    states = [core.state(each) for each in (dead, held, waits, later, urgent)]
    assert states == ["dead", "active", "cancelled", "cancelled", "cancelled"]
    assert core.popped(9) == []
    core.restart()
    assert core.counts() == queries.Counts(active=1, dead=1, cancelled=3)
    assert core.ack(lease).count == 1
    core.wait(2 * HOUR_MS)
    assert core.popped(9) == []


def test_a_drain_is_for_one_group_and_what_comes_later_is_delivered() -> None:
    core = Core()
    core.push(*numbers(3))
    assert core.popped(group="audit") == [b"0"]
    assert drain(core) == c.Cleaned(3)
    assert core.popped(9, group="audit") == [b"1", b"2"]
    core.push(b"new")
    assert core.popped(9) == core.popped(9, group="audit") == [b"new"]


def test_a_drain_of_a_group_that_does_not_exist_makes_it() -> None:
    core = Core()
    core.push(*numbers(3))
    core.push(b"later", delay_ms=HOUR_MS)
    assert drain(core, group="new") == c.Cleaned(4)
    assert core.popped(9, group="new") == []
    assert core.popped(9) == numbers(3)


def test_a_drain_of_nothing_is_nothing() -> None:
    core = Core()
    core.configure()
    assert drain(core) == c.Cleaned(0)


@pytest.mark.parametrize("states", [("completed",), ("waiting", "delayed", "parked", "dead", "completed")])
def test_what_an_idle_group_has_to_read_stays_whoever_clears_out(states: tuple[str, ...]) -> None:
    core = Core()
    core.configure(group_idle_ms=60_000)
    core.push(*numbers(3))
    core.ask(c.GroupPut("default", "q", "rep"), queries.QueueFound)
    core.ack(core.pop(3).lease)
    core.commit()
    core.wait(HOUR_MS // 2)
    core.push(b"new")
    core.ack(core.pop(3).lease)
    for group in ("default", "rep"):
        core.ask(c.Clean("default", "q", ("completed",) if group == "rep" else states, group), c.Cleaned)
    assert core.popped(9, group="rep") == [*numbers(3), b"new"]


# Clean.


def test_what_waits_and_what_is_delayed_are_cleaned_apart() -> None:
    core = Core()
    waits = core.push(b"waits")
    later = core.push(b"later", delay_ms=HOUR_MS)
    low = core.push(b"low", priority=-1)
    core.wait(1)
    assert clean(core, "delayed") == c.Cleaned(1)
    assert [core.state(each) for each in (waits, later, low)] == ["waiting", "cancelled", "waiting"]
    assert clean(core, "waiting") == c.Cleaned(2)
    assert core.counts() == queries.Counts(cancelled=3)


def test_a_grace_spares_what_was_pushed_not_long_ago() -> None:
    core = Core()
    core.push(b"old")
    core.push(b"old delayed", delay_ms=HOUR_MS)
    core.commit()
    core.wait(100)
    core.push(b"new")
    core.push(b"new delayed", delay_ms=HOUR_MS)
    assert drain(core, grace_ms=101) == c.Cleaned(0)
    assert drain(core, grace_ms=100) == c.Cleaned(2)
    assert core.popped(9) == [b"new"]
    assert core.counts().delayed == 1


def test_a_limit_takes_the_oldest_of_what_waits() -> None:
    core = Core()
    core.push(*numbers(5))
    assert clean(core, "waiting", count=2).count == 2
    assert core.popped(9) == [b"2", b"3", b"4"]


def test_a_limit_counts_over_partitions_and_kinds_of_waiting() -> None:
    core = Core()
    core.push(*numbers(2))
    core.push(b"high", priority=3)
    core.push(*numbers(2), partition="x")
    assert clean(core, "waiting", count=4).count == 4
    assert core.counts() == queries.Counts(waiting=1, cancelled=4)


def test_a_limit_cuts_a_run_of_delayed_messages() -> None:
    core = Core()
    first = core.push(*numbers(5), delay_ms=HOUR_MS)
    assert clean(core, "delayed", count=2).count == 2
    assert [core.state(first + at) for at in range(5)] == ["cancelled"] * 2 + ["delayed"] * 3
    core.restart()
    core.wait(HOUR_MS)
    assert core.popped(9) == [b"2", b"3", b"4"]


def test_dead_letters_are_given_up_once_they_are_old_enough() -> None:
    core = Core()
    old = kill(core, b"a", b"b")
    core.wait(100)
    new = kill(core, b"c")
    assert clean(core, "dead", grace_ms=101) == c.Cleaned(0)
    assert clean(core, "dead", grace_ms=100) == c.Cleaned(2)
    assert core.counts() == queries.Counts(dead=1, discarded=2)
    assert clean(core, "dead", count=5) == c.Cleaned(1)
    core.restart()
    assert core.counts() == queries.Counts(discarded=3)
    assert core.state(old) == core.state(new) == "dead"


def test_a_limit_cuts_a_run_of_dead_letters() -> None:
    core = Core()
    kill(core, *numbers(5))
    assert clean(core, "dead", count=2).count == 2
    found = core.ask(queries.ListDead("default", "q"), queries.DeadFound)
    assert [bytes(p) for each in found.deliveries for p in each.payloads()] == [b"2", b"3", b"4"]
    core.restart()
    assert core.counts() == queries.Counts(dead=3, discarded=2)


def test_several_states_are_counted_together() -> None:
    core = Core()
    kill(core, b"dead")
    core.push(b"waits")
    assert clean(core, "waiting", "dead") == c.Cleaned(2)
    assert core.counts() == queries.Counts(cancelled=1, discarded=1)


def settled(core: Core, *payloads: bytes) -> int:
    """Messages in a segment of their own that the group has acked."""
    first = core.push(*payloads)
    core.ack(core.pop(len(payloads)).lease)
    core.commit()
    return first


def test_what_is_completed_is_dropped_for_its_group_and_for_good_when_every_group_is_done() -> None:
    core = Core()
    first = settled(core, *numbers(3))
    held = core.push(b"3", b"4")
    core.ack(core.pop().lease)
    core.commit()
    core.pop(2, group="audit")
    assert clean(core, "completed") == c.Cleaned(4)
    (partition,) = core.engine.queues["default", "q"].partitions.values()
    assert partition.log.first == 0
    assert core.counts() == queries.Counts(waiting=1)
    assert core.counts(group="audit") == queries.Counts(active=2, waiting=3)
    core.ack(core.pop(9, group="audit").lease)
    core.wait(HOUR_MS // 2)  # the first lease ran out, and comes again
    core.ack(core.pop(9, group="audit").lease)
    assert clean(core, "completed", group="audit") == c.Cleaned(5)
    assert partition.log.first == 3, "the other segment has what waits"
    for message in (first, held):
        with pytest.raises(NotFound):
            core.state(message)
    assert core.state(held + 1) == "waiting"
    core.restart()
    assert core.popped(9) == [b"4"]


def test_what_is_completed_is_spared_for_its_grace() -> None:
    core = Core()
    settled(core, *numbers(3))
    core.wait(SWEEP_MS)
    assert clean(core, "completed", grace_ms=SWEEP_MS) == c.Cleaned(0)
    core.wait(SWEEP_MS)
    assert clean(core, "completed", grace_ms=SWEEP_MS) == c.Cleaned(3)


def test_of_what_is_completed_a_limit_takes_exactly_so_many_the_oldest() -> None:
    core = Core()
    first = [settled(core, *numbers(2)) for _ in range(5)]
    assert clean(core, "completed", count=3) == c.Cleaned(3)
    with pytest.raises(NotFound):
        core.state(first[1])
    assert core.counts() == queries.Counts(completed=7)
    assert core.state(first[1] + 1) == "completed"
    core.restart()
    assert clean(core, "completed", count=1) == c.Cleaned(1)
    assert clean(core, "completed") == c.Cleaned(6)
    assert clean(core, "completed") == c.Cleaned(0)
    assert core.counts() == queries.Counts()


def test_of_several_partitions_the_oldest_are_dropped_first() -> None:
    core = Core()
    ids = []
    for number in range(9):
        ids.append(core.push(b"%d" % number, partition=f"p{number % 2}"))
        core.commit()
        core.wait(1)
    core.pop(9)
    core.ack(ids=ids)
    assert clean(core, "completed", count=5) == c.Cleaned(5)
    found = core.ask(queries.Show("default", ids), queries.ShownAll)
    assert [each.state.id for each in found.deliveries] == ids[5:]


def test_what_is_acked_late_is_found_behind_what_was_dropped() -> None:
    core = Core()
    first = core.push(*numbers(6))
    core.pop(6)
    core.ack(ids=[first + 2, first + 3])
    assert clean(core, "completed") == c.Cleaned(2)
    core.ack(ids=[first])
    assert clean(core, "completed", count=1) == c.Cleaned(1)
    core.ack(ids=[first + 1, first + 5])
    assert clean(core, "completed") == c.Cleaned(2)


def test_a_message_that_is_discarded_while_it_is_leased_keeps_when_that_began() -> None:
    core = Core()
    active, waiting = core.push(b"1"), core.push(b"2")
    core.pop()
    began = core.now
    core.wait(5)
    discard(core, active, waiting)
    core.restart()
    assert [core.find(each).leased_at for each in (active, waiting)] == [began, None]


def test_there_is_no_more_to_do_once_the_limit_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "DROPPED_RUNS_MAX", 3)
    core = Core()
    core.configure(max_attempts=1)
    first = core.push(*numbers(10))
    core.pop(10)
    core.ack(ids=list(range(first, first + 10, 2)))
    core.nack(ids=list(range(first + 1, first + 10, 2)))
    core.push(*numbers(9))
    assert clean(core, "completed", "waiting", count=5) == c.Cleaned(5)
    assert clean(core, "completed") == c.Cleaned(2)


def test_a_dry_run_counts_what_is_completed() -> None:
    core = Core()
    settled(core, *numbers(5))
    clean(core, "completed", count=2)
    would = core.ask(queries.WouldClean("default", "q", ("completed",)), c.Cleaned)
    assert would == c.Cleaned(3) == clean(core, "completed")


def test_what_nobody_read_is_not_completed() -> None:
    core = Core()
    core.push(*numbers(3))
    core.commit()
    assert clean(core, "completed") == c.Cleaned(0)
    assert core.popped(9) == numbers(3)


def test_so_much_that_it_takes_several_commands_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleans, "RUNS_MAX", 3)
    core = Core()
    for number in range(7):
        core.push(b"%d" % number, delay_ms=HOUR_MS + number)
    found = [drain(core) for _ in range(3)]
    assert [each.count for each in found] == [3, 3, 1]
    assert [each.more for each in found[:2]] == [True, True]
    assert not found[2].more
    assert core.counts() == queries.Counts(cancelled=7)


def test_what_can_not_be_cleaned_is_refused_and_nothing_changes() -> None:
    core = Core()
    core.push(b"1")
    for states in ((), ("active",), ("waiting", "nope"), ("cancelled",)):
        refuse(core, c.Clean("default", "q", states), Invalid)
    refuse(core, c.Clean("default", "q", ("waiting",), grace_ms=-1), Invalid)
    refuse(core, c.Clean("default", "q", ("waiting",), count=0), Invalid)
    refuse(core, c.Clean("default", "q", ("waiting",), ""), Invalid)
    refuse(core, c.Clean("default", "nope", ("waiting",)), NotFound)
    refuse(core, c.Clean("evil", "q", ("waiting",)), NotFound)
    assert core.popped() == [b"1"]


# Discard.


def letters(core: Core, group: str = "default") -> list[tuple[bytes, str, int, int]]:
    found = core.ask(queries.ListDead("default", "q", group), queries.DeadFound)
    return [
        (bytes(payload), each.error, each.deliveries, each.failures)
        for each in found.deliveries
        for payload in each.payloads()
    ]


def test_what_is_discarded_is_a_dead_letter_at_once_whatever_it_was() -> None:
    core = Core()
    core.configure(backoff=Backoff(kind="fixed", base_ms=HOUR_MS))
    failed = core.push(b"failed")
    core.nack(core.pop().lease, error="broken")
    held = core.push(b"held")
    lease = core.pop().lease
    fresh, later = core.push(b"fresh"), core.push(b"later", delay_ms=HOUR_MS)
    assert discard(core, failed, held, fresh, later) == c.Settled(4, [])
    assert letters(core) == [
        (b"failed", "broken", 1, 1),
        (b"held", "discarded", 1, 0),
        (b"fresh", "discarded", 0, 0),
        (b"later", "discarded", 0, 0),
    ]
    refuse(core, c.Ack("default", lease), Conflict)
    core.restart()
    assert core.counts() == queries.Counts(dead=4)
    core.wait(2 * HOUR_MS)
    assert core.popped(9) == []


def test_what_was_discarded_can_be_delivered_again() -> None:
    core = Core()
    message = core.push(b"1", priority=3)
    discard(core, message)
    core.ask(c.Requeue("default", "q", ids=[message]), c.Buried)
    reply = core.pop()
    assert [(each.first, each.deliveries, each.priority) for each in reply.deliveries] == [(message, 1, 3)]


def test_a_discard_is_for_one_group() -> None:
    core = Core()
    message = core.push(b"1")
    core.pop(group="audit")
    discard(core, message)
    assert (core.state(message), core.state(message, "audit")) == ("dead", "active")
    discard(core, message, group="audit")
    assert core.state(message, "audit") == core.state(message, "default") == "dead"
    assert core.state(message, "third") == "waiting"


def test_who_holds_what_was_discarded_hears_of_it_and_keeps_the_rest() -> None:
    core = Core()
    first = core.push(*numbers(3))
    lease = core.pop(3).lease
    discard(core, first + 1)
    extended = core.ask(c.Extend("default", lease), c.Extended)
    assert (extended.count, extended.cancelled) == (2, True)
    assert core.ack(lease).count == 2
    assert [core.state(first + at) for at in range(3)] == ["completed", "dead", "completed"]


def test_an_extend_by_id_tells_of_a_discard_too() -> None:
    core = Core()
    first = core.push(b"1", b"2")
    lease = core.pop(2).lease
    core.ask(c.Discard("default", [first]), c.Settled)
    for ids, given in (([first], None), ([first, first + 1], None), ([first, first + 1], lease)):
        assert core.ask(c.Extend("default", given, ids), c.Extended).cancelled
    assert not core.ask(c.Extend("default", None, [first + 1]), c.Extended).cancelled


def test_where_no_dead_letters_are_kept_a_discard_is_the_end() -> None:
    core = Core()
    core.configure(dead_letters=False, completed_retention_ms=0)
    message = core.push(b"1")
    discard(core, message)
    assert letters(core) == []
    assert core.counts() == queries.Counts(discarded=1)
    core.commit()
    core.wait(SWEEP_MS)
    with pytest.raises(NotFound):
        core.state(message)


def test_what_is_over_can_not_be_discarded() -> None:
    core = Core()
    first = core.push(*numbers(3))
    core.ack(core.pop().lease)
    core.cancel(first + 1)
    refuse(core, c.Discard("default", [first, first + 1]), Conflict)
    assert discard(core, first, first + 2, first + 7) == c.Settled(1, [first, first + 7])
    refuse(core, c.Discard("default", [first + 2]), Conflict)
    refuse(core, c.Discard("default", [first + 7]), NotFound)
    refuse(core, c.Discard("evil", [first + 2]), NotFound)


# Obliterate.


def left_of(core: Core, prefix: bytes) -> list[bytes]:
    """Keys of records and bodies that begin with a prefix."""
    return [key for key in (*core.store._records, *core.store._bodies) if key.startswith(prefix)]


def crowded(core: Core) -> int:
    """A queue with something of every kind; the id of a message in it."""
    message = core.push(*numbers(4))
    core.push(b"later", delay_ms=HOUR_MS)
    core.push(b"x", partition="x")
    kill(core, b"dead")
    core.cancel(message + 3)
    core.ask(c.Update("default", message + 2, b"new"), c.Pushed)
    core.commit()
    core.pop(2)
    core.pop(1, group="audit")
    core.ask(c.AddNote("default", message, LINE, b"line"), c.Noted)
    core.ask(c.TellProgress("default", message, 5), c.Noted)
    core.ack(ids=[message], results=[b"1"])
    core.ask(c.Pause("default", "q", core.now + HOUR_MS), queries.Paused)
    return message


@pytest.mark.parametrize("committed", [False, True])
def test_nothing_of_an_obliterated_queue_is_left(committed: bool) -> None:
    core = Core()
    message = crowded(core)
    queue = core.engine.queues["default", "q"]
    (other,) = tenants_in(core.engine, (queue.shard + 1) % SHARDS)
    core.push(b"other", queue="other", tenant=other)
    if committed:
        core.commit()
    lease = next(iter(core.engine.shards[queue.shard].leases))
    assert obliterate(core) == 8
    core.commit()
    assert left_of(core, queue.prefix) == []
    for restarted in (False, True):
        if restarted:
            core.restart()
        shard = core.engine.shards[queue.shard]
        assert (lease in shard.leases, shard.timers.next_at()) == (False, NEVER)
        with pytest.raises(NotFound):
            core.state(message)
        with pytest.raises(NotFound):
            core.counts()
    assert core.popped(queue="other", tenant=other) == [b"other"]
    core.wait(2 * HOUR_MS)


def test_a_queue_of_the_same_name_is_another_one() -> None:
    core = Core()
    core.configure(lease_ms=5, max_attempts=1)
    first = core.push(*numbers(3))
    lease = core.pop().lease
    core.commit()
    obliterate(core)
    second = core.push(b"new")
    core.restart()
    assert second >> 32 != first >> 32
    with pytest.raises(NotFound):
        core.state(first)
    refuse(core, c.Ack("default", lease), Conflict)
    refuse(core, c.Ack("default", ids=[first]), Conflict)
    assert core.popped(9) == [b"new"]
    found = core.ask(queries.Describe("default", "q"), queries.QueueFound)
    assert (found.options.lease_ms, len(found.groups)) == (30_000, 1)


def test_a_queue_made_and_obliterated_in_one_commit_leaves_nothing() -> None:
    core = Core()
    core.commit()
    for _ in range(3):
        core.push(b"1")
        prefix = core.engine.queues["default", "q"].prefix
        core.pop()
        obliterate(core)
    core.commit()
    assert left_of(core, prefix) == []
    core.restart()
    assert core.ask(queries.ListQueues("default"), queries.QueuesFound).queues == []


def test_an_obliterated_queue_makes_room_for_another() -> None:
    core = Core(Limits(queues_max=1))
    core.push(b"1")
    with pytest.raises(ForebayError):
        core.push(b"1", queue="r")
    obliterate(core)
    core.push(b"1", queue="r")


def test_a_queue_in_memory_can_be_obliterated() -> None:
    core = Core()
    core.configure(durability="memory")
    message = core.push(*numbers(3))
    core.pop()
    core.commit()
    assert obliterate(core) == 3
    core.restart()
    with pytest.raises(NotFound):
        core.state(message)
    assert core.ask(queries.ListQueues("default"), queries.QueuesFound).queues == []


def test_what_is_not_there_or_another_tenants_can_not_be_obliterated() -> None:
    core = Core()
    core.push(b"1")
    refuse(core, c.Obliterate("default", "nope"), NotFound)
    refuse(core, c.Obliterate("evil", "q"), NotFound)
    refuse(core, c.Obliterate("default", ""), Invalid)
    assert core.popped() == [b"1"]


def test_other_queues_of_the_shard_go_on() -> None:
    core = Core()
    for at in range(9):
        core.push(b"%d" % at, queue=f"q{at}", delay_ms=10)
        core.pop(queue=f"q{at}")
    core.commit()
    for at in range(0, 9, 2):
        obliterate(core, f"q{at}")
    core.restart()
    core.wait(10)
    for at in range(9):
        assert core.popped(queue=f"q{at}") == ([b"%d" % at] if at % 2 else [])


def test_a_command_takes_no_more_scheduled_runs_apart_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancels, "RUNS_MAX", 3)
    core = Core()
    core.pop()
    ids = [core.push(b"1", delay_ms=HOUR_MS + at) for at in range(5)]
    for command in (
        c.Cancel("default", ids),
        c.Discard("default", ids),
        c.Move("default", ids, delay_ms=5),
    ):
        refuse(core, command, Invalid)
    assert core.cancel(*ids[:3]).count == 3
    assert core.counts() == queries.Counts(delayed=2, cancelled=3)
