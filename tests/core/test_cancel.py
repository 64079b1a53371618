"""Cancel and move: what shall not be delivered, or at another time or priority."""

from collections.abc import Callable

import pytest

from forebay.core.api import commands as c, queries
from forebay.core.bounds import DELAY_MS_MAX, PRIORITY_MAX, Limits
from forebay.core.delivery.cancel import SCATTERED_MAX
from forebay.core.delivery.pop import PLANS_MAX
from forebay.core.errors import Busy, Conflict, Invalid, NotFound
from forebay.core.shard.timers import SWEEP_MS
from tests.core.harness import NOW, Core


def extend(core: Core, lease: str | None = None, ids: list[int] | None = None) -> c.Extended:
    return core.ask(c.Extend("default", lease, ids), c.Extended)


def move(core: Core, *ids: int, **fields: object) -> c.Settled:
    return core.ask(c.Move("default", list(ids), **fields), c.Settled)  # type: ignore[arg-type]


def fresh(core: Core) -> int:
    message = core.push(b"x")
    core.push(b"y")
    return message


def fresh_behind_others(core: Core) -> int:
    core.push(b"y")
    return core.push(b"x")


def urgent(core: Core) -> int:
    core.pop()
    return core.push(b"x", priority=5)


def urgent_unplanned(core: Core) -> int:
    message = core.push(b"x", priority=5)
    core.commit()
    return message


def delayed(core: Core) -> int:
    core.pop()
    return core.push(b"x", delay_ms=1_000)


def lifo(core: Core) -> int:
    core.pop()
    return core.push(b"w", b"x", b"y", lifo=True) + 1


def retried(core: Core) -> int:
    message = core.push(b"x")
    core.nack(core.pop().lease, error="no")
    return message


def leased(core: Core) -> int:
    message = core.push(b"x")
    core.pop()
    return message


def leased_with_others(core: Core) -> int:
    message = core.push(b"w", b"x", b"y") + 1
    core.pop(3)
    return message


def without_groups(core: Core) -> int:
    return core.push(b"w", b"x", b"y") + 1


UNSETTLED: list[Callable[[Core], int]] = [
    fresh,
    fresh_behind_others,
    urgent,
    urgent_unplanned,
    delayed,
    lifo,
    retried,
    leased,
    leased_with_others,
    without_groups,
]


def acked(core: Core) -> int:
    message = core.push(b"x")
    core.ack(core.pop().lease)
    return message


def cancelled(core: Core) -> int:
    message = core.push(b"x")
    core.pop(partition="nowhere")
    core.cancel(message)
    return message


def dead(core: Core) -> int:
    message = core.push(b"x", max_attempts=1)
    core.nack(core.pop().lease)
    return message


def discarded(core: Core) -> int:
    core.configure(dead_letters=False)
    return dead(core)


def expired(core: Core) -> int:
    message = core.push(b"x", ttl_ms=5)
    core.wait(5)
    core.pop()
    return message


def swept(core: Core) -> int:
    core.configure(completed_retention_ms=0)
    message = acked(core)
    core.commit()
    core.wait(2 * SWEEP_MS)
    return message


def unknown(core: Core) -> int:
    return core.push(b"x") + 1


OVER: list[Callable[[Core], int]] = [acked, cancelled, dead, discarded, expired, swept, unknown]


def everything(core: Core) -> list[bytes]:
    """Whatever the group default still gets, however late."""
    found = []
    for _ in range(5):
        core.wait(60_000)
        found += core.popped(100)
    return found


# Cancel.


@pytest.mark.parametrize("made", UNSETTLED)
def test_what_was_cancelled_is_never_delivered(made: Callable[[Core], int]) -> None:
    core = Core()
    message = made(core)
    assert core.cancel(message) == c.Settled(1, [])
    found = core.find(message)
    assert (found.state, found.due_at) == ("cancelled", None)
    assert b"x" not in everything(core)
    assert core.state(message) == "cancelled"


@pytest.mark.parametrize("made", UNSETTLED)
def test_what_was_cancelled_stays_so_over_a_restart(made: Callable[[Core], int]) -> None:
    core = Core()
    message = made(core)
    core.cancel(message)
    core.restart()
    assert core.state(message) == "cancelled"
    assert b"x" not in everything(core)


@pytest.mark.parametrize("made", UNSETTLED)
def test_a_group_made_later_does_not_see_what_was_cancelled_for_all(made: Callable[[Core], int]) -> None:
    core = Core()
    message = made(core)
    core.cancel(message)
    core.restart()
    core.now += 5_000
    assert b"x" not in core.popped(9, group="later")
    assert core.state(message, "later") == core.state(message, "even later") == "cancelled"


def test_the_others_are_delivered_as_ever() -> None:
    core = Core()
    first = core.push(*[b"%d" % number for number in range(10)])
    core.pop(start="all", partition="nowhere")
    assert core.cancel(*(first + at for at in (0, 1, 4, 9))).count == 4
    assert core.counts() == queries.Counts(waiting=6, cancelled=4)
    core.restart()
    assert core.popped(100) == [b"2", b"3", b"5", b"6", b"7", b"8"]


def test_a_message_may_be_cancelled_for_one_group_only() -> None:
    core = Core()
    message = core.push(b"1")
    for group in ("a", "b"):
        core.pop(group=group, partition="nowhere")
    core.cancel(message, group="a")
    assert core.popped(group="a") == []
    assert core.popped(group="b") == core.popped(group="later") == [b"1"]


def test_a_message_done_in_one_group_may_still_be_cancelled_in_another() -> None:
    core = Core()
    message = core.push(b"1")
    core.ack(core.pop(group="done").lease)
    core.pop(group="not yet", partition="nowhere")
    assert core.cancel(message).count == 1
    assert core.state(message, "done") == "completed"
    assert core.state(message, "not yet") == core.state(message, "later") == "cancelled"


def test_some_of_what_is_asked_for_may_be_refused() -> None:
    core = Core()
    first = core.push(b"1", b"2", b"3")
    core.ack(core.pop().lease)
    assert core.cancel(first, first + 1, first + 9) == c.Settled(1, [first, first + 9])


def test_messages_of_several_queues_may_be_cancelled_together() -> None:
    core = Core()
    ids = [core.push(queue=name) for name in "abcde"]
    assert core.cancel(*ids).count == 5


def test_what_was_cancelled_is_swept_like_what_is_done() -> None:
    core = Core()
    core.configure(completed_retention_ms=0)
    message = core.push(b"1", b"2")
    core.pop(group="a", partition="nowhere")
    core.cancel(message, message + 1)
    core.commit()
    core.wait(SWEEP_MS)
    queue = core.engine.queues["default", "q"]
    assert queue.partitions["default"].log.segments == []
    assert len(queue.partitions["default"].withdrawn) == 0
    assert all(len(track.outcomes) == 0 for track in queue.groups["a"].tracks.values())


def test_who_holds_a_cancelled_message_hears_of_it_when_it_asks_for_more_time() -> None:
    core = Core()
    first = core.push(b"1", b"2", b"3")
    lease = core.pop(2).lease
    assert not extend(core, lease).cancelled
    core.cancel(first)
    assert extend(core, lease) == c.Extended(NOW + 30_000, 1, (), True)
    assert extend(core, ids=[first, first + 1]) == c.Extended(NOW + 30_000, 1, [first], True)
    core.cancel(first + 1)
    assert extend(core, lease).cancelled
    assert extend(core, ids=[first + 1]).cancelled
    with pytest.raises(Conflict):
        core.ack(lease)
    with pytest.raises(Conflict):
        extend(core, ids=[first + 2])


def test_another_tenant_does_not_hear_of_it() -> None:
    core = Core()
    message = core.push(b"1")
    lease = core.pop().lease
    core.cancel(message)
    for command in (c.Extend("evil", lease), c.Extend("evil", ids=[message])):
        with pytest.raises(Conflict):
            core.engine.apply(command, core.now)


def test_a_late_ack_does_not_undo_a_cancel() -> None:
    core = Core()
    message = core.push(b"1", b"2")
    lease = core.pop(2).lease
    core.cancel(message)
    assert core.ack(lease, [message, message + 1]) == c.Settled(1, [message])
    assert core.state(message) == "cancelled"


# Move.


@pytest.mark.parametrize("made", UNSETTLED)
def test_a_message_can_be_put_off_in_any_state(made: Callable[[Core], int]) -> None:
    core = Core()
    message = made(core)
    assert move(core, message, delay_ms=5_000) == c.Settled(1, [])
    assert core.find(message).due_at == NOW + 5_000
    core.wait(4_999)
    assert b"x" not in core.popped(100)
    core.wait(1)
    assert b"x" in core.popped(100)


@pytest.mark.parametrize("made", UNSETTLED)
def test_a_message_can_be_promoted_in_any_state(made: Callable[[Core], int]) -> None:
    core = Core()
    message = made(core)
    assert move(core, message, delay_ms=0) == c.Settled(1, [])
    assert core.state(message) == "waiting"
    core.restart()
    assert b"x" in core.popped(100)


@pytest.mark.parametrize("made", [each for each in UNSETTLED if "leased" not in each.__name__])
def test_a_message_that_is_not_held_can_be_given_another_priority(made: Callable[[Core], int]) -> None:
    core = Core()
    message = made(core)
    before = core.find(message)
    assert move(core, message, priority=9) == c.Settled(1, [])
    found = core.find(message)
    assert (found.priority, found.state, found.due_at) == (9, before.state, before.due_at)
    core.push(b"8", priority=8)
    core.push(b"10", priority=10)
    core.restart()
    core.now += 1_000
    assert core.popped(3) == [b"10", b"x", b"8"]


@pytest.mark.parametrize("made", [leased, leased_with_others])
def test_what_someone_holds_can_not_be_given_another_priority(made: Callable[[Core], int]) -> None:
    core = Core()
    message = made(core)
    core.commit()
    with pytest.raises(Conflict):
        move(core, message, priority=9)
    assert core.engine.seal(core.now) == []


def test_what_is_taken_from_its_consumer_was_not_delivered() -> None:
    core = Core()
    message = leased_with_others(core)
    (lease,) = [lease for shard in core.engine.shards.values() for lease in shard.leases.values()]
    move(core, message, delay_ms=10)
    assert sum(run.unsettled for run in lease.runs.values()) == 2
    core.wait(10)
    (each,) = core.pop(9).deliveries
    assert (each.first, each.deliveries, each.failures) == (message, 1, 0)


def test_a_retry_that_is_put_off_keeps_its_failures() -> None:
    core = Core()
    message = retried(core)
    move(core, message, delay_ms=0, priority=-4)
    found = core.find(message)
    assert (found.state, found.priority, found.failures, found.error) == ("waiting", -4, 1, "no")


def test_a_move_may_be_of_what_is_delayed_only() -> None:
    core = Core()
    later, now = delayed(core), core.push(b"now")
    held = core.push(b"held", priority=9)
    core.pop()
    assert move(core, later, now, held, delay_ms=0, only_delayed=True) == c.Settled(1, [now, held])
    core.commit()
    with pytest.raises(Conflict):
        move(core, later, now, held, delay_ms=0, only_delayed=True)
    assert core.engine.seal(core.now) == []
    assert core.state(held) == "active"


def test_lifo_stays_lifo_at_another_priority() -> None:
    core = Core()
    core.pop()
    first = core.push(b"1", b"2", lifo=True)
    core.push(b"fifo", priority=3)
    move(core, first, first + 1, priority=3)
    assert core.popped(9) == [b"2", b"1", b"fifo"]


def test_a_move_is_for_one_group_which_is_made_if_need_be() -> None:
    core = Core()
    message = core.push(b"1")
    move(core, message, group="slow", delay_ms=500)
    assert core.popped() == [b"1"]
    assert core.popped(group="slow") == []
    core.wait(500)
    assert core.popped(group="slow") == [b"1"]


def test_a_message_that_moves_within_many_leaves_them_where_they_are() -> None:
    core = Core()
    core.pop()
    first = core.push(*[b"%d" % number for number in range(6)], priority=1)
    move(core, first + 2, first + 3, priority=2)
    core.restart()
    assert core.popped(9) == [b"2", b"3", b"0", b"1", b"4", b"5"]


def test_those_who_wait_are_told_of_what_was_promoted() -> None:
    core = Core()
    message = delayed(core)
    core.commit()
    assert core.engine.take_woken() == []
    move(core, message, delay_ms=0)
    assert [wake[1:] for wake in core.engine.take_woken()] == [("default", "default")]


# What can't be.


@pytest.mark.parametrize("made", OVER)
@pytest.mark.parametrize("group", [None, "default"])
def test_what_is_over_can_not_be_cancelled_and_nothing_changes(
    made: Callable[[Core], int], group: str | None
) -> None:
    core = Core()
    message = made(core)
    core.commit()
    with pytest.raises((Conflict, NotFound)):
        core.cancel(message, group=group)
    assert core.engine.seal(core.now) == []


@pytest.mark.parametrize("made", OVER)
@pytest.mark.parametrize("change", [{"delay_ms": 5}, {"priority": 5}])
def test_what_is_over_can_not_be_moved_and_nothing_changes(
    made: Callable[[Core], int], change: dict[str, int]
) -> None:
    core = Core()
    message = made(core)
    core.commit()
    with pytest.raises((Conflict, NotFound)):
        move(core, message, **change)
    assert core.engine.seal(core.now) == []


def test_a_refused_move_makes_no_group() -> None:
    core = Core()
    message = core.push(b"1")
    core.cancel(message)
    core.commit()
    with pytest.raises(Conflict):
        move(core, message, priority=3)
    assert core.engine.seal(core.now) == []
    assert core.engine.queues["default", "q"].groups == {}


IMPOSSIBLE: dict[str, c.Command] = {
    "cancel nothing": c.Cancel("default", []),
    "cancel too many": c.Cancel("default", list(range(100_001))),
    "cancel in a group without a name": c.Cancel("default", [1], ""),
    "move nothing": c.Move("default", [], delay_ms=1),
    "move into the past": c.Move("default", [1], delay_ms=-1),
    "move beyond all bounds": c.Move("default", [1], delay_ms=DELAY_MS_MAX + 1),
    "too urgent": c.Move("default", [1], priority=PRIORITY_MAX + 1),
    "not urgent enough": c.Move("default", [1], priority=-PRIORITY_MAX - 1),
    "move in a group without a name": c.Move("default", [1], "", delay_ms=1),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_can_not_be_is_refused_and_nothing_changes(name: str) -> None:
    core = Core()
    core.push()
    core.commit()
    with pytest.raises(Invalid):
        core.engine.apply(IMPOSSIBLE[name], core.now)
    assert core.engine.seal(core.now) == []


def test_another_tenants_messages_look_exactly_like_missing_ones() -> None:
    core = Core()
    message = core.push()
    core.commit()
    for ids in ([message], [message + (1 << 40)]):
        for command in (c.Cancel("evil", ids), c.Move("evil", ids, delay_ms=1)):
            with pytest.raises(NotFound, match="no such message"):
                core.engine.apply(command, core.now)
    assert core.engine.seal(core.now) == []
    assert core.popped() == [b"1"]


def test_what_was_cancelled_among_many_is_not_counted_after_a_restart() -> None:
    core = Core()
    ids = [core.push(b"1", priority=1 + number % 2) for number in range(PLANS_MAX + 500)]
    core.cancel(*ids)
    core.pop()
    core.restart()
    assert core.counts() == queries.Counts(cancelled=PLANS_MAX + 500)


def test_a_move_over_several_queues_is_refused_before_it_changed_any() -> None:
    core = Core(Limits(groups_max=2))
    free, full = (core.push(b"1", queue=name) for name in ("free", "full"))
    for group in ("one", "two"):
        core.pop(queue="full", group=group)
    core.commit()
    for ids in ([free, full], [full, free]):
        with pytest.raises(Busy):
            move(core, *ids, priority=5)
        assert core.engine.seal(core.now) == []


def test_ids_that_lie_too_scattered_are_refused() -> None:
    core = Core()
    first = core.push(*[b"1"] * (2 * SCATTERED_MAX + 2))
    core.commit()
    with pytest.raises(Invalid, match="several commands"):
        core.cancel(*range(first, first + 2 * SCATTERED_MAX + 2, 2))
    assert core.engine.seal(core.now) == []
    assert core.cancel(*range(first, first + 2 * SCATTERED_MAX + 2)).count == 2 * SCATTERED_MAX + 2
