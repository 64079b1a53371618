"""Requeued flows: what died of a dependency waits again, and never runs before everything is completed."""

from typing import Any

import pytest

from forebay.core.api import commands as c
from forebay.core.errors import Conflict
from forebay.core.jobs import dependencies
from tests.core.harness import Core
from tests.sim.inside import notifying


@pytest.fixture
def core() -> Core:
    return Core()


def child(core: Core, payload: bytes = b"child") -> int:
    return core.push(payload, queue="children", max_attempts=1)


def parent(core: Core, *ids: int, queue: str = "parents", payload: bytes = b"parent") -> int:
    return core.push(payload, queue=queue, depends_on=tuple((each, 1) for each in ids))


def end_children(core: Core, *dead: int) -> None:
    """End every child that can be popped: these die, the others complete."""
    reply = core.pop(100, queue="children")
    for message in [each.first + at for each in reply.deliveries for at in range(each.count)]:
        (core.nack if message in dead else core.ack)(ids=[message])


def requeue(core: Core, queue: str, *ids: int, **how: Any) -> c.Buried:
    return core.ask(c.Requeue("default", queue, ids=list(ids) or None, **how), c.Buried)


def tell_all(core: Core) -> None:
    while notifying(core.engine):
        core.wait(0)


def purge(core: Core, queue: str) -> None:
    core.ask(c.Purge("default", queue), c.Buried)


@pytest.mark.parametrize("order", [("parents", "children"), ("children", "parents")])
@pytest.mark.parametrize("restarts", [False, True])
def test_everything_dead_is_requeued_and_the_parent_waits_for_its_child(
    core: Core, order: tuple[str, str], restarts: bool
) -> None:
    well, ill = child(core, b"3"), child(core, b"4")
    callback = parent(core, well, ill)
    end_children(core, ill)
    assert core.state(callback) == "dead"
    for queue in order:
        if restarts:
            core.restart()
        requeue(core, queue)
        assert core.popped(9, queue="parents") == []
    assert (core.state(ill), core.state(callback)) == ("waiting", "parked")
    if restarts:
        core.restart()
    end_children(core)
    assert core.popped(9, queue="parents") == [b"parent"]


def test_a_requeued_child_revives_the_whole_chain_that_died_of_it(core: Core) -> None:
    first = child(core)
    second = parent(core, first)
    third = parent(core, second, queue="last", payload=b"third")
    end_children(core, first)
    assert (core.state(second), core.state(third)) == ("dead", "dead")
    core.restart()
    done = requeue(core, "children", first)
    assert (done.count, done.dependents) == (1, 2)
    assert (core.state(second), core.state(third)) == ("parked", "parked")
    end_children(core)
    core.ack(core.pop(queue="parents").lease)
    core.restart()
    assert core.popped(9, queue="last") == [b"third"]


def test_a_dry_run_counts_what_would_be_revived_and_changes_nothing(core: Core) -> None:
    first = child(core)
    second = parent(core, first)
    end_children(core, first)
    done = requeue(core, "children", dry_run=True)
    assert (done.count, done.left, done.dependents) == (1, 1, 1)
    assert (core.state(first), core.state(second)) == ("dead", "dead")


def test_reviving_can_be_switched_off_and_the_parent_requeued_later(core: Core) -> None:
    first = child(core)
    second = parent(core, first)
    core.pop(queue="parents", group="audit")
    end_children(core, first)
    assert requeue(core, "children", dependents=False).dependents == 0
    assert core.state(second) == "dead"
    end_children(core)
    assert core.state(second) == "dead"
    core.restart()
    requeue(core, "parents")
    for group in ("default", "audit", "later"):
        assert core.popped(9, queue="parents", group=group) == [b"parent"], group


def test_a_parent_waits_for_all_that_died_and_dies_again_with_one(core: Core) -> None:
    one, two = child(core), child(core)
    callback = parent(core, one, two)
    end_children(core, one, two)
    requeue(core, "children", one)
    end_children(core)
    assert core.state(callback) == "parked"
    requeue(core, "children", two)
    end_children(core, two)
    assert core.state(callback) == "dead"
    requeue(core, "children", two)
    end_children(core)
    assert core.popped(9, queue="parents") == [b"parent"]


@pytest.mark.parametrize("requeued", [False, True])
def test_what_depends_on_a_purged_message_can_not_be_requeued(core: Core, requeued: bool) -> None:
    first, other = child(core), child(core)
    callback = parent(core, first, other)
    end_children(core, first)
    if requeued:
        requeue(core, "parents")
    purge(core, "children")
    core.restart()
    assert core.state(callback) == "dead"
    with pytest.raises(Conflict, match="push it again"):
        requeue(core, "parents", callback)
    done = requeue(core, "parents")
    assert (done.count, done.left) == (0, 1)
    purge(core, "parents")
    partition = core.engine.queues["default", "children"].partitions["default"]
    assert partition.dependents.size == 0


def test_others_are_requeued_past_what_can_not_be(core: Core) -> None:
    first = child(core)
    parent(core, first)
    end_children(core, first)
    purge(core, "children")
    other = core.push(b"other", queue="parents", max_attempts=1)
    core.nack(core.pop(queue="parents").lease)
    done = requeue(core, "parents")
    assert (done.count, done.left, core.state(other)) == (1, 1, "waiting")


def test_a_push_that_depends_on_a_dead_letter_is_revived_with_it(core: Core) -> None:
    first = child(core)
    end_children(core, first)
    callback = parent(core, first)
    assert core.state(callback) == "dead"
    assert requeue(core, "children").dependents == 1
    end_children(core)
    assert core.popped(9, queue="parents") == [b"parent"]


def test_a_batch_with_a_callback_is_revived(core: Core) -> None:
    first = core.push(*[b"%d" % n for n in range(3_000)], queue="children", max_attempts=1)
    callback = core.push(b"parent", queue="parents", depends_on=((first, 3_000),))
    lease = core.pop(1_000, queue="children").lease
    core.nack(ids=[first + 5])
    while lease:
        core.ack(lease)
        lease = core.pop(1_000, queue="children").lease
    assert core.state(callback) == "dead"
    core.restart()
    requeue(core, "children")
    assert core.state(callback) == "parked"
    end_children(core)
    assert core.popped(9, queue="parents") == [b"parent"]


def test_very_many_are_revived_a_number_at_a_time_whatever_stops(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dependencies, "STEP", 20)
    first = child(core)
    for _ in range(50):
        parent(core, first)
    end_children(core, first)
    tell_all(core)
    assert core.counts(queue="parents").dead == 50
    assert requeue(core, "children").dependents == 50
    assert core.counts(queue="parents").dead > 0
    core.restart()
    core.wait(0)
    core.restart()
    tell_all(core)
    assert core.counts(queue="parents").parked == 50
    end_children(core)
    tell_all(core)
    assert core.popped(99, queue="parents") == [b"parent"] * 50


def test_a_revived_message_has_no_past(core: Core) -> None:
    first = child(core)
    callback = parent(core, first)
    end_children(core, first)
    requeue(core, "children")
    found = core.find(callback)
    assert (found.state, found.failures, found.error, found.ended_at) == ("parked", 0, "", None)


def test_a_dependency_that_was_only_in_memory_is_lost_with_a_restart(core: Core) -> None:
    core.configure("children", durability="memory")
    first = child(core)
    callback = parent(core, first)
    end_children(core, first)
    core.restart()
    with pytest.raises(Conflict):
        requeue(core, "parents", callback)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("pushed", ["before", "after"])
def test_what_depends_on_what_can_not_be_requeued_can_not_be_requeued_either(
    core: Core, pushed: str, restarts: bool
) -> None:
    ill = child(core)
    middle = parent(core, ill, queue="middle")
    last = parent(core, middle) if pushed == "before" else 0
    end_children(core, ill)
    purge(core, "children")
    if pushed == "after":
        last = parent(core, middle)
    if restarts:
        core.restart()
    for queue, message in (("middle", middle), ("parents", last)):
        with pytest.raises(Conflict, match="push it again"):
            requeue(core, queue, message)
        assert core.state(message) == "dead"


def test_what_waits_for_a_requeue_that_can_not_come_fails(core: Core) -> None:
    ill = child(core)
    middle = parent(core, ill, queue="middle")
    patient = core.push(queue="parents", depends_on=((middle, 1),), on_failed="wait")
    heedless = core.push(queue="parents", depends_on=((middle, 1),), on_failed="ignore")
    end_children(core, ill)
    assert [core.state(each) for each in (patient, heedless)] == ["parked", "waiting"]
    purge(core, "children")
    assert core.state(patient) == "dead"
    assert core.engine.queues["default", "middle"].partitions["default"].dependents.size == 0


def test_what_dies_at_once_where_no_dead_letters_are_kept_leaves_nothing(core: Core) -> None:
    ill = child(core)
    end_children(core, ill)
    core.configure("parents", dead_letters=False)
    for _ in range(3):
        parent(core, ill)
    assert core.engine.queues["default", "children"].partitions["default"].dependents.size == 0
