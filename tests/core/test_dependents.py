"""Messages that wait for others: parked, released once, or failed with what they depend on."""

import random
from typing import Any

import pytest

from forebay.core.api import commands as c
from forebay.core.errors import Conflict, Invalid, NotFound
from forebay.core.ids import OFFSET_BITS, spans_of
from forebay.core.jobs import dependencies
from forebay.core.queues import delete as queue_delete
from forebay.core.records import keyspace
from forebay.core.state import Attributes
from tests.core.harness import AT_ONCE, Core
from tests.sim.inside import notifying

ENDS = ("complete", "die", "expire", "cancel", "discard", "drop", "obliterate")


@pytest.fixture
def core() -> Core:
    core = Core()
    core.configure("first", max_attempts=1, backoff=AT_ONCE)
    return core


def after(core: Core, *ids: int, payload: bytes = b"then", queue: str = "q", **fields: Any) -> int:
    """Push a message that depends on others."""
    return core.push(payload, queue=queue, depends_on=spans_of(list(ids)), **fields)


def end(core: Core, message: int, how: str) -> None:
    match how:
        case "complete":
            core.pop(queue="first")
            core.ack(ids=[message])
        case "die":
            core.pop(queue="first")
            core.nack(ids=[message])
        case "expire":
            core.wait(1_000)
        case "cancel":
            core.cancel(message)
        case "discard":
            core.ask(c.Discard("default", [message]), c.Settled)
        case "drop":
            core.configure("first", retention_ms=1_000)
            core.restart()  # only what is sealed can be dropped
            core.wait(30_000)
        case "obliterate":
            core.ask(c.Obliterate("default", "first"), c.Cleaned)


def test_a_message_is_delivered_once_all_it_depends_on_is_completed(core: Core) -> None:
    one, two = core.push(queue="first"), core.push(queue="first")
    waiting = after(core, one, two)
    assert core.state(waiting) == "parked"
    assert core.popped() == []
    end(core, one, "complete")
    assert core.popped() == []
    assert core.counts().parked == 1
    end(core, two, "complete")
    assert core.state(waiting) == "waiting"
    assert core.popped() == [b"then"]
    assert core.counts().parked == 0


def clean(core: Core, *states: str, **fields: Any) -> c.Cleaned:
    return core.ask(c.Clean("default", "q", states, **fields), c.Cleaned)


def test_what_waits_for_others_is_drained_with_the_rest(core: Core) -> None:
    one = core.push(queue="first")
    waiting, last = after(core, one), after(core, one)
    plain = core.push()
    on_it = after(core, waiting, queue="third")
    assert clean(core, "waiting", "delayed", "parked", count=2).count == 2
    assert [core.state(each) for each in (waiting, last, plain)] == ["cancelled", "cancelled", "waiting"]
    assert core.state(on_it) == "dead", "what waits for it fails"
    core.restart()
    end(core, one, "complete")
    assert core.popped() == [b"1"]
    assert core.counts().parked == 0
    assert core.popped(10, group="late") == [b"1"], "a group that is made later does not get it either"


def test_what_waits_for_others_in_several_groups_is_cleaned_only_if_asked_for(core: Core) -> None:
    one = core.push(queue="first")
    core.pop(group="other")
    core.pop()
    waiting = after(core, one)
    assert clean(core, "waiting", "delayed", "parked").count == 0
    assert core.state(waiting) == "parked"
    core.commit()
    core.wait(1_000)
    young = after(core, one)
    assert clean(core, "parked", grace_ms=500).count == 1
    assert [core.state(each) for each in (waiting, young)] == ["cancelled", "parked"]
    assert core.counts(group="other").parked == 1


def test_a_drain_of_very_many_that_wait_stops_and_goes_on(core: Core) -> None:
    ones = [core.push(queue="first") for _ in range(2_002)]
    for each in ones:
        after(core, each)
    found = clean(core, "waiting", "parked")
    assert (found.count, found.more) == (2_000, True)
    found = clean(core, "waiting", "parked")
    assert (found.count, found.more) == (2, False)


CASES = [
    (when, how)
    for when in ("before", "after", "after a restart")
    for how in ENDS
    if when != "before" or how not in ("drop", "obliterate")  # nothing would be known of it any more
]


@pytest.mark.parametrize("policy", ["fail", "ignore", "wait"])
@pytest.mark.parametrize(("when", "how"), CASES)
def test_what_becomes_of_a_dependent_follows_its_policy(core: Core, how: str, policy: str, when: str) -> None:
    """Whether the dependency ends before or after the dependent is pushed makes no difference."""
    message = core.push(queue="first", ttl_ms=1_000 if how == "expire" else 0)
    if when == "before":
        end(core, message, how)
    waiting = after(core, message, on_failed=policy)
    if when == "after a restart":
        core.restart()
    if when != "before":
        assert core.state(waiting) == "parked"
        end(core, message, how)
    core.restart()
    if how == "complete" or policy == "ignore":
        assert core.popped() == [b"then"]
    elif how in ("die", "discard") and policy == "wait":
        assert core.state(waiting) == "parked"
        core.ask(c.Requeue("default", "first"), c.Buried)
        end(core, message, "complete")
        assert core.popped() == [b"then"]
    else:
        assert core.state(waiting) == "dead"
        assert core.find(waiting).error == f"it depends on {message}, which did not complete"
        assert core.popped() == []


def test_a_dead_dependency_that_is_given_up_fails_what_waits_for_it(core: Core) -> None:
    message = core.push(queue="first")
    waiting = after(core, message, on_failed="wait")
    end(core, message, "die")
    assert core.state(waiting) == "parked"
    core.ask(c.Purge("default", "first"), c.Buried)
    assert core.state(waiting) == "dead"


def test_failure_goes_down_the_chain(core: Core) -> None:
    first = core.push(queue="first")
    second = after(core, first)
    third = after(core, second)
    fourth = after(core, third, on_failed="ignore", payload=b"4")
    end(core, first, "die")
    assert [core.state(each) for each in (second, third, fourth)] == ["dead", "dead", "waiting"]
    assert core.popped(9) == [b"4"]


def test_a_failed_dependent_can_be_requeued(core: Core) -> None:
    first = core.push(queue="first")
    waiting = after(core, first)
    core.pop(group="other")
    end(core, first, "die")
    core.restart()
    assert core.state(waiting, "other") == "cancelled"
    core.ask(c.Requeue("default", "q"), c.Buried)
    assert core.state(waiting) == core.state(waiting, "other") == core.state(waiting, "later") == "parked"
    core.ask(c.Requeue("default", "first"), c.Buried)
    end(core, first, "complete")
    for group in ("default", "other", "later"):
        assert core.popped(9, group=group) == [b"then"], group


def test_every_group_gets_what_is_released(core: Core) -> None:
    first = core.push(queue="first")
    core.pop(group="before")
    after(core, first)
    core.pop(group="meanwhile")
    core.restart()
    end(core, first, "complete")
    core.restart()
    for group in ("before", "meanwhile", "later", "default"):
        assert core.popped(9, group=group) == [b"then"], group


def test_priority_delay_and_order_hold_for_what_is_released(core: Core) -> None:
    first = core.push(queue="first")
    after(core, first, payload=b"low", priority=-1)
    after(core, first, payload=b"late", delay_ms=1_000)
    after(core, first, payload=b"high", priority=5)
    core.push(b"plain")
    end(core, first, "complete")
    assert core.popped(9) == [b"high", b"plain", b"low"]
    core.wait(1_000)
    assert core.popped(9) == [b"late"]


def test_a_parked_message_can_be_cancelled(core: Core) -> None:
    first = core.push(queue="first")
    waiting = after(core, first)
    with pytest.raises(Conflict):
        core.ask(c.Update("default", waiting, b"2"), c.Pushed)
    core.cancel(waiting)
    assert core.state(waiting) == "cancelled"
    end(core, first, "complete")
    core.restart()
    assert core.popped(9) == []
    assert core.state(waiting) == "cancelled"


def test_a_parked_message_expires(core: Core) -> None:
    first = core.push(queue="first")
    waiting = after(core, first, ttl_ms=1_000)
    last = after(core, waiting)
    core.wait(1_000)
    assert core.state(waiting) == "expired"
    assert core.state(last) == "dead"


def test_a_dependency_that_is_updated_is_still_waited_for(core: Core) -> None:
    first = core.push(queue="first")
    waiting = after(core, first)
    core.ask(c.Update("default", first, b"2"), c.Pushed)
    assert core.state(waiting) == "parked"
    later = after(core, first, payload=b"later")
    core.restart()
    core.pop(queue="first")
    core.ack(ids=[first])
    assert [core.state(each) for each in (waiting, later)] == ["waiting", "waiting"]


def test_many_wait_for_a_batch(core: Core) -> None:
    first = core.push(*[b"%d" % n for n in range(5_000)], queue="first")
    waiting = core.push(b"a", b"b", b"c", depends_on=((first, 5_000),))
    partition = core.engine.queues["default", "first"].partitions["default"]
    assert partition.dependents.size == 5
    order = list(range(first, first + 5_000))
    random.Random(1).shuffle(order)
    while core.pop(1_000, queue="first").deliveries:
        pass
    for at in range(0, 5_000, 500):
        assert core.state(waiting) == "parked"
        core.ack(ids=order[at : at + 500])
        core.restart()
        tell_all(core)
    assert core.popped(9) == [b"a", b"b", b"c"]
    partition = core.engine.queues["default", "first"].partitions["default"]
    assert (partition.dependents.size, partition.links_count) == (0, 0)


@pytest.mark.parametrize("crash", [False, True])
def test_many_dependents_are_released_a_number_at_a_time(
    core: Core, monkeypatch: pytest.MonkeyPatch, crash: bool
) -> None:
    monkeypatch.setattr(dependencies, "STEP", 10)
    first = core.push(queue="first")
    waiting = []
    for n in range(95):
        waiting.append(after(core, first, payload=b"%d" % n))
        core.push(queue="between")
        core.commit()
    end(core, first, "complete")
    assert core.counts().parked == 85
    steps = 0
    while core.counts().parked:
        assert core.engine.next_due_at() <= core.now
        if crash:
            core.restart()
        core.wait(0)
        steps += 1
    assert steps <= 9
    assert core.popped(99) == [b"%d" % n for n in range(95)]
    core.restart()
    assert not notifying(core.engine)
    assert core.popped(99) == []


@pytest.fixture
def slow(core: Core, monkeypatch: pytest.MonkeyPatch) -> Core:
    """Those who wait are told two at a time."""
    monkeypatch.setattr(dependencies, "STEP", 2)
    return core


def tell_all(core: Core) -> None:
    while notifying(core.engine):
        core.wait(0)


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("how", ["die", "complete"])
def test_those_who_come_while_others_are_told_are_not_told_of_what_is_over(
    slow: Core, how: str, crash: bool
) -> None:
    core = slow
    first = core.push(queue="first")
    early = [after(core, first, queue=f"d{n}") for n in range(6)]
    end(core, first, how)
    if how == "die":
        core.ask(c.Requeue("default", "first"), object)
    else:
        core.ask(c.Seek("default", "first", "default", "all"), c.Sought)
    assert core.state(first) == "waiting"
    assert notifying(core.engine)
    late = after(core, first, queue="late")
    if crash:
        core.commit()
        core.restart()
    tell_all(core)
    assert {core.state(each) for each in early} == {"parked" if how == "die" else "waiting"}
    assert core.state(late) == "parked"
    core.commit()
    end(core, first, "complete")
    tell_all(core)
    assert core.state(late) == "waiting"


def test_the_first_end_counts_for_those_who_have_not_been_told_of_it_yet(slow: Core) -> None:
    core = slow
    first = core.push(queue="first")
    waiting = [after(core, first, queue=f"d{n}") for n in range(6)]
    end(core, first, "die")
    core.ask(c.Requeue("default", "first", dependents=False), object)
    end(core, first, "complete")
    core.restart()
    tell_all(core)
    assert {core.state(each) for each in waiting} == {"dead"}


@pytest.mark.parametrize("crash", [False, True])
def test_of_two_ends_at_the_same_place_both_are_told_to_the_end(slow: Core, crash: bool) -> None:
    core = slow
    first = core.push(*[b"x"] * 5, queue="first")
    for _ in range(8):
        after(core, first, queue="e")
    for _ in range(6):
        after(core, first + 4, queue="d")
    core.nack(core.pop(5, queue="first").lease)
    core.ask(c.Requeue("default", "first", ids=[first]), object)
    core.nack(core.pop(queue="first").lease)
    if crash:
        core.commit()
        core.restart()
    tell_all(core)
    assert core.counts("d").parked == core.counts("e").parked == 0
    assert core.counts("d").dead == 6
    core.restart()
    assert not notifying(core.engine)


def test_those_of_one_queue_do_not_wait_until_all_of_another_are_told(slow: Core) -> None:
    core = slow
    first, other = core.push(queue="first"), core.push(queue="other")
    for n in range(50):
        after(core, first, queue=f"d{n}")
    for n in range(6):
        after(core, other, queue=f"e{n}")
    end(core, first, "complete")
    core.ack(core.pop(queue="other").lease)
    for _ in range(8):
        core.wait(0)
    assert [core.counts(f"e{n}").waiting for n in range(6)] == [1] * 6
    assert notifying(core.engine)


@pytest.mark.parametrize("how", ["sweep", "clean", "obliterate"])
def test_those_who_wait_for_what_was_completed_are_released_even_if_it_is_gone(slow: Core, how: str) -> None:
    core = slow
    first = core.push(queue="first")
    waiting = [after(core, first, queue=f"d{n}") for n in range(6)]
    core.commit()
    end(core, first, "complete")
    assert notifying(core.engine)
    if how == "sweep":
        core.configure("first", completed_retention_ms=0)
        core.wait(30_000)
    elif how == "clean":
        core.ask(c.Clean("default", "first", ("completed",)), c.Cleaned)
    else:
        end(core, first, "obliterate")
    with pytest.raises(NotFound):
        core.state(first)
    core.restart()
    tell_all(core)
    assert {core.state(each) for each in waiting} == {"waiting"}


@pytest.mark.parametrize("how", ["complete", "die"])
def test_a_long_chain_falls_over_several_turns(core: Core, how: str) -> None:
    last = first = core.push(queue="first")
    chain = [last := after(core, last) for _ in range(200)]
    end(core, first, how)
    turns = 0
    while notifying(core.engine):
        turns += 1
        core.restart()
        core.wait(0)
    if how == "die":
        assert turns >= 3
        assert {core.state(each) for each in chain} == {"dead"}
    else:
        assert [core.state(each) for each in chain] == ["waiting"] + ["parked"] * 199


def test_a_queue_for_whose_messages_very_many_wait_is_drained_before_it_goes(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_delete, "TOLD_AT_ONCE", 5)
    first = core.push(queue="first")
    waiting = [after(core, first, queue=f"d{n}") for n in range(6)]
    with pytest.raises(Conflict, match="6 pushes wait"):
        end(core, first, "obliterate")
    assert core.state(first) == "waiting"
    core.ask(c.Clean("default", "first", ("waiting",)), c.Cleaned)
    end(core, first, "obliterate")
    assert {core.state(each) for each in waiting} == {"dead"}


@pytest.mark.parametrize(("policy", "found"), [("fail", "dead"), ("wait", "dead"), ("ignore", "parked")])
def test_what_was_in_memory_only_is_not_waited_for_after_a_restart(
    core: Core, policy: str, found: str
) -> None:
    core.configure("memory", durability="memory")
    lost, met, kept = core.push(queue="memory"), core.push(queue="memory"), core.push(queue="first")
    core.pop(2, queue="memory")
    core.ack(ids=[met])
    both = after(core, lost, met, kept, on_failed=policy)
    alone = core.push(b"1", b"2", depends_on=((lost, 1),), on_failed=policy)
    other = after(core, kept)
    on_it = after(core, alone, queue="next")
    assert [core.state(each) for each in (both, alone, other)] == ["parked"] * 3
    core.commit()
    core.restart()
    states = [core.state(each) for each in (both, alone, alone + 1, other)]
    if policy == "ignore":
        assert states == ["parked", "waiting", "waiting", "parked"]
    else:
        assert states == ["dead", "dead", "dead", "parked"]
        assert core.find(both).error == f"it depends on {lost}, which did not complete"
    assert core.state(on_it) == ("parked" if policy == "ignore" else "dead")
    end(core, kept, "complete")
    assert core.state(both) == ("waiting" if policy == "ignore" else "dead")
    assert core.state(other) == "waiting"


def test_what_a_damaged_queue_had_may_come_back_and_is_waited_for(core: Core) -> None:
    core.configure("memory", durability="memory")
    kept = core.push(queue="first")
    waiting = after(core, kept)
    core.commit()
    bounds = keyspace.queue_bounds(core.engine.queues["default", "first"].prefix)
    before = dict(core.store.scan(*bounds))
    core.store._records.update(dict.fromkeys(before, b"\xc1"))
    core.restart()
    assert list(core.engine.damaged) == [("default", "first")]
    assert core.state(waiting) == "parked"
    core.store._records.update(before)
    core.restart()
    end(core, kept, "complete")
    assert core.state(waiting) == "waiting"


def test_all_are_told_at_once_if_what_they_wait_for_goes_with_its_queue(slow: Core) -> None:
    core = slow
    first = core.push(queue="first")
    waiting = [after(core, first, queue=f"d{n}") for n in range(6)]
    end(core, first, "die")
    core.ask(c.Requeue("default", "first"), object)
    late = [after(core, first, queue=f"e{n}") for n in range(6)]
    end(core, first, "obliterate")
    assert not notifying(core.engine)
    core.restart()
    assert {core.state(each) for each in waiting + late} == {"dead"}


def test_what_is_parked_is_kept_while_the_log_goes_on(core: Core) -> None:
    core.configure(completed_retention_ms=0)
    first = core.push(queue="first")
    core.push(b"done")
    waiting = after(core, first)
    core.push(b"done")
    core.commit()
    for _ in range(3):
        popped = core.pop(9)
        if popped.lease:
            core.ack(popped.lease)
        core.commit()
        core.wait(20_000)
    assert core.state(waiting) == "parked"
    core.restart()
    end(core, first, "complete")
    assert core.popped(9) == [b"then"]


def test_depending_on_nothing_known_is_refused(core: Core) -> None:
    core.configure()
    core.push(queue="first")
    other = core.push(tenant="other")
    for message in (1, 5 << OFFSET_BITS, other):
        with pytest.raises(NotFound):
            after(core, message)
    with pytest.raises(Invalid, match="on_failed"):
        core.push(depends_on=spans_of([1]), on_failed="hope")
    core.configure("ordered", ordering="partition")
    with pytest.raises(Invalid, match="depends_on"):
        after(core, core.push(queue="first"), queue="ordered")


def test_a_dependent_of_what_was_dropped_long_ago_is_not_held_up(core: Core) -> None:
    core.configure("first", completed_retention_ms=0)
    message = core.push(queue="first")
    core.commit()
    end(core, message, "complete")
    for _ in range(3):
        core.commit()
        core.wait(20_000)
    with pytest.raises(NotFound):
        core.state(message)
    after(core, message)
    assert core.popped() == [b"then"]


def test_attributes_are_equal_to_themselves_without_dependencies() -> None:
    assert Attributes().in_line
    assert not Attributes(depends_on=((1, 1),)).in_line
