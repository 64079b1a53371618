"""A queue that is ordered by partition: one lease at a time, and nothing before its predecessor."""

import pytest

from forebay.core.api import commands as c, queries
from forebay.core.delivery.pop import PLANS_MAX
from forebay.core.errors import Conflict, Invalid
from forebay.core.state import Attributes, Backoff
from tests.core.harness import Core, payloads_of


def ordered(**options: object) -> Core:
    core = Core()
    given = {"backoff": Backoff("fixed", 100), **options}
    core.ask(c.Configure("default", "q", ordering="partition", **given), queries.QueueFound)  # type: ignore[arg-type]
    core.pop()
    return core


def delayed(core: Core, payload: bytes, delay_ms: int) -> int:
    return core.ask(
        c.Push("default", "q", [payload], attributes=Attributes(delay_ms=delay_ms)), c.Pushed
    ).first


def test_a_partition_has_one_lease_at_a_time() -> None:
    core = ordered()
    core.push(b"1", b"2", b"3")
    core.push(b"x", partition="x")
    first = core.pop(2, partition="default")
    assert payloads_of(first) == [b"1", b"2"]
    assert core.popped(10) == [b"x"]
    assert core.popped(10) == []
    core.ack(ids=[first.deliveries[0].first])
    assert core.popped(10) == []
    core.ack(first.lease)
    assert core.popped(10) == [b"3"]


def test_each_group_has_its_own_lease() -> None:
    core = ordered()
    core.push(b"1")
    assert core.popped() == core.popped(group="other") == [b"1"]


def test_those_who_wait_are_told_when_the_lease_before_them_is_over() -> None:
    core = ordered()
    core.push(b"1", b"2")
    first = core.pop()
    core.engine.take_woken()
    core.ack(first.lease)
    assert [wake[2] for wake in core.engine.take_woken()] == ["default"]
    assert core.popped() == [b"2"]


def test_a_failing_head_holds_back_those_behind_it_and_counts_alone() -> None:
    core = ordered()
    first = core.push(b"1", b"2", b"3", b"4")
    lease = core.pop(3).lease
    assert core.nack(lease, error="no").count == 3
    assert core.popped(10) == []
    core.restart()
    core.now += 100
    again = core.pop(10)
    assert payloads_of(again) == [b"1", b"2", b"3", b"4"]
    assert [(each.deliveries, each.failures) for each in again.deliveries] == [(2, 1), (2, 0), (1, 0)]
    assert core.ask(queries.State("default", first), queries.StateFound).failures == 1


def test_a_nack_in_the_middle_returns_all_behind_it_and_leaves_what_is_before() -> None:
    core = ordered()
    first = core.push(b"1", b"2", b"3", b"4")
    lease = core.pop(4).lease
    core.ack(ids=[first + 3])
    assert core.nack(ids=[first + 1]).count == 1
    assert [core.state(first + at) for at in range(4)] == ["active", "delayed", "waiting", "completed"]
    core.now += 100
    assert core.popped(10) == []
    core.ack(lease)
    again = core.pop(10)
    assert payloads_of(again) == [b"2", b"3"]
    assert [each.failures for each in again.deliveries] == [1, 0]


def test_a_lease_that_runs_out_fails_its_first_message_only() -> None:
    core = ordered()
    core.push(b"1", b"2")
    core.pop(2, lease_ms=50)
    core.now += 149
    assert core.popped(10) == []
    core.now += 1
    assert [each.failures for each in core.pop(10).deliveries] == [1, 0]


def test_a_delayed_message_holds_back_those_behind_it() -> None:
    core = ordered()
    core.push(b"1")
    delayed(core, b"2", 500)
    core.push(b"3")
    first = core.pop(10)
    assert payloads_of(first) == [b"1"]
    core.ack(first.lease)
    assert core.popped(10) == []
    core.now += 500
    assert core.popped(10) == [b"2", b"3"]


def test_a_group_made_behind_many_delayed_messages_keeps_the_order() -> None:
    core = ordered()
    wanted = []
    for number in range(2 * PLANS_MAX):
        payload = b"%d" % number
        delayed(core, payload, 1 + number % 3) if number % 2 else core.push(payload)
        wanted.append(payload)
    core.commit()
    core.now += 1_000
    found: list[bytes] = []
    while len(found) < len(wanted):
        reply = core.pop(300, group="late")
        found += payloads_of(reply)
        assert found == wanted[: len(found)]
        assert reply.deliveries or reply.again
        if reply.lease is not None:
            core.ack(reply.lease)
        core.commit()


def test_what_was_moved_waits_for_what_a_group_has_not_sorted_yet() -> None:
    core = ordered()
    wanted = [b"%d" % number for number in range(PLANS_MAX + 1)]
    for number, payload in enumerate(wanted):
        delayed(core, payload, 1 + number % 2)
    last = core.push(b"last")
    core.commit()
    core.now += 1_000
    first = core.pop(group="late")
    assert payloads_of(first) == wanted[:1]
    core.ack(first.lease)
    core.ask(c.Move("default", [last], "late", delay_ms=0), c.Settled)
    second = core.pop(2 * PLANS_MAX, group="late")
    assert payloads_of(second) == wanted[1:PLANS_MAX]
    core.ack(second.lease)
    assert core.popped(group="late") == []
    core.commit()
    assert core.popped(10, group="late") == [wanted[-1], b"last"]


def test_a_pop_that_wants_several_counts_what_was_moved_past_what_a_group_has_sorted() -> None:
    core = ordered()
    for number in range(PLANS_MAX):
        delayed(core, b"%d" % number, 1 + number % 2)
    moved = core.push(b"a", b"b")
    delayed(core, b"c", 1)
    core.commit()
    core.now += 1_000
    core.ack(core.pop(PLANS_MAX, group="late").lease)
    assert core.popped(10, group="late") == []
    core.ask(c.Move("default", [moved, moved + 1], "late", delay_ms=0), c.Settled)
    assert core.popped(10, group="late", min_count=3) == []
    assert core.popped(10, group="late", min_count=2) == [b"a", b"b"]


def test_a_message_that_dies_makes_room_for_the_next() -> None:
    core = ordered(max_attempts=1)
    first = core.push(b"1", b"2")
    core.nack(core.pop().lease)
    assert core.state(first) == "dead"
    assert core.popped() == [b"2"]


def test_a_requeued_dead_letter_goes_before_what_came_after_it() -> None:
    core = ordered(max_attempts=1)
    core.push(b"1", b"2", b"3")
    core.nack(core.pop().lease)
    core.ack(core.pop().lease)
    core.ask(c.Requeue("default", "q"), c.Buried)
    assert core.popped(10) == [b"1", b"3"]


def test_a_cancelled_head_makes_room() -> None:
    core = ordered()
    first = core.push(b"1", b"2")
    core.pop()
    core.ask(c.Cancel("default", [first]), c.Settled)
    assert core.popped() == [b"2"]


def test_gates_hold_in_strict_order_too() -> None:
    core = ordered(delayed_processing_ms=50)
    core.push(b"1")
    core.commit()
    core.now += 30
    core.push(b"2")
    core.commit()
    core.now += 20
    first = core.pop(10)
    assert payloads_of(first) == [b"1"]
    core.ack(first.lease)
    assert core.popped() == []
    core.now += 30
    assert core.popped() == [b"2"]


def test_a_pop_that_wants_several_counts_what_is_in_order() -> None:
    core = ordered()
    core.push(b"1", b"2")
    delayed(core, b"3", 500)
    core.push(b"4")
    assert core.popped(10, min_count=3) == []
    assert core.popped(10, min_count=2) == [b"1", b"2"]


@pytest.mark.parametrize("attributes", [Attributes(priority=1), Attributes(lifo=True)])
def test_what_would_break_the_order_is_refused(attributes: Attributes) -> None:
    core = ordered()
    message = core.push(b"1")
    core.commit()
    with pytest.raises(Invalid, match="another queue"):
        core.engine.apply(c.Push("default", "q", [b"2"], attributes=attributes), core.now)
    pushes = [("default", [b"2"], Attributes()), ("default", [b"3"], attributes)]
    with pytest.raises(Invalid, match="another queue"):
        core.engine.apply(c.PushMany("default", "q", pushes), core.now)
    with pytest.raises(Invalid, match="another queue"):
        core.engine.apply(c.Move("default", [message], priority=5), core.now)
    assert not core.engine.seal(core.now)


def test_the_ordering_can_not_change_once_there_were_messages() -> None:
    core = ordered()
    core.ask(c.Configure("default", "q", ordering="message"), queries.QueueFound)
    core.ask(c.Configure("default", "q", ordering="partition"), queries.QueueFound)
    core.push(b"1")
    with pytest.raises(Conflict, match="ordering"):
        core.engine.apply(c.Configure("default", "q", ordering="message"), core.now)
    core.ask(c.Configure("default", "q", ordering="partition", lease_ms=5), queries.QueueFound)
