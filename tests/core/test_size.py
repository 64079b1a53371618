"""How much a queue may hold, and whether its messages are settled by id alone."""

import pytest

from forebay.core.api import commands as c, queries
from forebay.core.errors import Busy, Conflict, ForebayError, Invalid
from forebay.core.state import PLAIN
from tests.core.harness import Core

HOUR_MS = 3_600_000


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def refuse(core: Core, command: c.Command, kind: type[ForebayError]) -> ForebayError:
    core.commit()
    with pytest.raises(kind) as refused:
        core.engine.apply(command, core.now)
    assert core.engine.seal(core.now) == []
    return refused.value


def room(core: Core) -> int:
    """How many more messages may be pushed, found by pushing them."""
    found = 0
    try:
        while True:
            core.push(b"fill")
            found += 1
            assert found < 100
    except Busy:
        return found


@pytest.mark.parametrize("grouped", [False, True])
def test_a_full_queue_refuses_what_is_pushed_and_stays_as_it_is(grouped: bool) -> None:
    core = Core()
    core.configure(max_size=3)
    if grouped:
        core.pop()
    core.push(*numbers(2))
    error = refuse(core, c.Push("default", "q", numbers(2)), Busy)
    assert "3" in str(error)
    assert "retry_after_ms" in error.details
    refuse(core, c.PushMany("default", "q", [("x", numbers(1), PLAIN), ("y", numbers(1), PLAIN)]), Busy)
    core.push(b"2", partition="x")
    refuse(core, c.Push("default", "q", [b"3"]), Busy)
    assert list(core.engine.queues["default", "q"].partitions) == ["default", "x"]
    assert sorted(core.popped(9)) == numbers(3)


def test_what_is_delivered_counts_until_it_is_settled() -> None:
    core = Core()
    core.configure(max_size=3)
    core.push(*numbers(3))
    lease = core.pop(2).lease
    refuse(core, c.Push("default", "q", [b"3"]), Busy)
    core.ack(lease)
    assert room(core) == 2
    core.ack(core.pop(1).lease)
    assert room(core) == 1


def test_what_is_delayed_or_failed_counts_and_what_is_dead_or_cancelled_does_not() -> None:
    core = Core()
    core.configure(max_size=4)
    first = core.push(b"0", b"1")
    core.push(b"later", delay_ms=HOUR_MS)
    core.push(b"urgent", priority=2, max_attempts=1)
    lease = core.pop(2).lease
    assert room(core) == 0
    core.nack(lease)
    assert room(core) == 1
    core.cancel(first + 1)
    assert room(core) == 1
    core.ask(c.Discard("default", [first]), c.Settled)
    assert room(core) == 1


def test_the_group_that_has_most_to_do_counts() -> None:
    core = Core()
    core.configure(max_size=4)
    core.push(*numbers(4))
    core.ack(core.pop(4).lease)
    assert room(core) == 4
    core.ack(core.pop(8).lease)
    core.pop(group="slow", partition="none")
    assert room(core) == 0
    core.ack(core.pop(7, group="slow").lease)
    assert room(core) == 3


def test_what_comes_back_takes_its_room_again() -> None:
    core = Core()
    core.configure(max_size=2, max_attempts=1)
    core.push(*numbers(2))
    core.nack(core.pop(2).lease)
    core.push(b"new")
    core.ask(c.Requeue("default", "q"), c.Buried)
    assert room(core) == 0
    core.ack(core.pop(9).lease)
    core.push(b"one")
    core.ask(c.Seek("default", "q", "default", "all"), c.Sought)
    assert room(core) == 0


def test_the_size_is_the_same_after_a_restart_and_when_the_limit_is_changed() -> None:
    core = Core()
    core.configure(max_size=5)
    core.push(*numbers(3))
    core.pop(1)
    core.restart()
    assert room(core) == 2
    core.configure(max_size=3)
    refuse(core, c.Push("default", "q", [b"1"]), Busy)
    core.configure(max_size=7)
    assert room(core) == 2
    core.configure(max_size=0)
    core.push(*numbers(50))


def test_an_update_takes_no_room() -> None:
    core = Core()
    core.configure(max_size=1)
    message = core.push(b"old")
    core.ask(c.Update("default", message, b"new"), c.Pushed)
    assert room(core) == 0
    assert core.popped(9) == [b"new"]
    core.ack(ids=[message])
    assert room(core) == 1


def test_a_push_that_is_refused_for_another_reason_takes_no_room() -> None:
    core = Core()
    core.configure(max_size=2)
    core.push(b"1")
    for _ in range(3):
        refuse(core, c.Push("default", "q", [b"1"], "\0"), Invalid)
    assert room(core) == 1


def test_what_can_never_fit_is_refused_for_good() -> None:
    core = Core()
    core.configure(max_size=2)
    with pytest.raises(Invalid, match="at most 2"):
        core.push(b"1", b"2", b"3")


def test_a_drain_makes_room() -> None:
    core = Core()
    core.configure(max_size=2)
    core.push(b"1", b"2")
    core.ask(c.Clean("default", "q", ("waiting",)), c.Cleaned)
    assert room(core) == 2


# require_lease.


def test_where_the_lease_is_required_an_id_alone_settles_nothing() -> None:
    core = Core()
    core.configure(require_lease=True)
    first = core.push(*numbers(3))
    lease = core.pop(3).lease
    for command in (
        c.Ack("default", ids=[first]),
        c.Ack("default", ids=[first], results=[b"1"]),
        c.Ack("default", ids=[first], partial=True),
        c.Nack("default", ids=[first]),
        c.Extend("default", ids=[first]),
    ):
        error = refuse(core, command, Invalid)
        assert error.details["field"] == "lease"
    core.restart()
    assert core.counts() == queries.Counts(active=3)
    assert core.ack(lease, [first]).count == 1
    assert core.ask(c.Extend("default", lease), c.Extended).count == 2
    assert core.nack(lease, [first + 1], delay_ms=HOUR_MS).count == 1
    assert core.ack(lease).count == 1


def test_a_late_consumer_can_not_settle_what_another_has() -> None:
    core = Core()
    core.forgive()
    core.configure(require_lease=True)
    message = core.push(b"1")
    late = core.pop(lease_ms=5).lease
    core.wait(5)
    core.pop()
    refuse(core, c.Ack("default", late, [message]), Conflict)
    refuse(core, c.Ack("default", ids=[message]), Invalid)
    assert core.state(message) == "active"


def test_one_queue_that_requires_it_refuses_a_batch_over_several() -> None:
    core = Core()
    core.configure(require_lease=True)
    strict, free = core.push(b"1"), core.push(b"2", queue="free")
    core.pop()
    core.pop(queue="free")
    refuse(core, c.Ack("default", ids=[free, strict]), Invalid)
    assert core.state(free) == core.state(strict) == "active"
    assert core.ack(ids=[free]).count == 1


def test_what_a_queue_requires_is_not_told_to_another_tenant() -> None:
    core = Core()
    core.configure(require_lease=True)
    message = core.push(b"1")
    core.pop()
    refuse(core, c.Ack("evil", ids=[message]), Conflict)
