"""What becomes of what failed: how long it waits, how often it is tried, when it is dead."""

import pytest

from forebay.core.api import commands as c, queries
from forebay.core.bounds import DELAY_MS_MAX, NEVER
from forebay.core.delivery.retry import wait_ms
from forebay.core.errors import Conflict, Invalid
from forebay.core.state import Backoff, Track
from forebay.core.words import EXPONENTIAL, FIXED, LIST, NONE
from tests.core.harness import AT_ONCE, NOW, Core, payloads_of


def waits(*ms: int) -> Backoff:
    return Backoff(kind=LIST, steps=ms)


def track_of(core: Core) -> Track:
    (track,) = core.engine.queues["default", "q"].groups["default"].tracks.values()
    return track


def fail(core: Core, message: int) -> int | None:
    """Deliver a message and nack it: how long it then waits, None if it is dead."""
    reply = core.pop()
    assert [each.first for each in reply.deliveries] == [message]
    core.nack(reply.lease, error="no")
    found = core.find(message)
    if found.state == "dead":
        return None
    due_at = found.due_at or core.now
    waited = due_at - core.now
    core.wait(waited)
    return waited


def life(core: Core, message: int, most: int = 50) -> list[int | None]:
    """Nack a message until it is dead, or often enough: how long it waited after each time."""
    found: list[int | None] = []
    while len(found) < most:
        found.append(fail(core, message))
        if found[-1] is None:
            break
    return found


# How long it waits.


def test_a_failed_message_waits_a_second_then_two_then_it_is_dead() -> None:
    core = Core()
    assert life(core, core.push()) == [1_000, 2_000, None]


def test_the_wait_doubles_from_its_base_until_attempts_run_out() -> None:
    core = Core()
    message = core.push(b"1", max_attempts=5, backoff=Backoff(base_ms=1_000))
    assert life(core, message) == [1_000, 2_000, 4_000, 8_000, None]


def test_the_fifth_wait_of_a_base_of_a_second_is_sixteen() -> None:
    assert [wait_ms(Backoff(), failures, 0) for failures in range(1, 6)] == [
        1_000,
        2_000,
        4_000,
        8_000,
        16_000,
    ]


def test_the_wait_grows_no_longer_than_its_cap_however_often_it_fails() -> None:
    backoff = Backoff(base_ms=1_000, cap_ms=5_000)
    assert [wait_ms(backoff, failures, 0) for failures in (1, 3, 4, 99, 1_000_000)] == [
        1_000,
        4_000,
        5_000,
        5_000,
        5_000,
    ]
    assert wait_ms(Backoff(cap_ms=DELAY_MS_MAX), 1_000_000, 0) == DELAY_MS_MAX


def test_a_fixed_wait_is_always_the_same_and_none_is_none() -> None:
    assert {wait_ms(Backoff(kind=FIXED, base_ms=70), failures, 0) for failures in (1, 2, 50)} == {70}
    assert {wait_ms(Backoff(kind=NONE), failures, 0) for failures in (1, 2, 50)} == {0}


def test_a_list_gives_the_next_wait_each_time_and_the_last_one_repeats() -> None:
    assert [wait_ms(waits(10, 50, 300), failures, 0) for failures in (1, 2, 3, 4, 9)] == [
        10,
        50,
        300,
        300,
        300,
    ]


@pytest.mark.parametrize("kind", [FIXED, EXPONENTIAL, LIST])
def test_jitter_leaves_out_no_more_than_its_part_and_is_the_same_when_asked_twice(kind: str) -> None:
    plain = Backoff(kind=kind, steps=(1_000,) if kind == LIST else ())
    jittered = Backoff(kind=kind, steps=plain.steps, jitter=0.25)
    for failures in (1, 2, 3):
        whole = wait_ms(plain, failures, 0)
        found = [wait_ms(jittered, failures, offset) for offset in range(1_000)]
        assert found == [wait_ms(jittered, failures, offset) for offset in range(1_000)]
        assert whole * 3 // 4 <= min(found) < whole * 0.76
        assert whole * 0.99 < max(found) <= whole


def test_the_wait_of_a_message_goes_before_that_of_its_queue() -> None:
    core = Core()
    core.configure(backoff=Backoff(kind=FIXED, base_ms=5))
    ours, its = core.push(b"1"), core.push(b"2", backoff=Backoff(kind=FIXED, base_ms=7))
    core.nack(core.pop(2).lease)
    assert (core.find(ours).due_at, core.find(its).due_at) == (NOW + 5, NOW + 7)


def test_a_nack_may_say_how_long_to_wait_instead() -> None:
    core = Core()
    message = core.push()
    core.nack(core.pop().lease, delay_ms=0)
    assert core.state(message) == "waiting"
    core.nack(core.pop().lease, delay_ms=77)
    assert core.find(message).due_at == NOW + 77
    core.wait(77)
    core.nack(core.pop().lease, delay_ms=0)
    assert core.state(message) == "dead"


def test_the_wait_counts_from_when_the_lease_ended_however_late_anyone_looks() -> None:
    core = Core()
    message = core.push()
    core.pop(lease_ms=100)
    core.now += 600
    assert core.find(message).due_at == NOW + 1_100


def test_those_who_wait_are_told_when_a_retry_is_due() -> None:
    core = Core()
    core.push()
    core.nack(core.pop().lease)
    core.commit()
    assert core.engine.next_due_at() == NOW + 1_000
    core.wait(1_000)
    assert [wake[1:] for wake in core.engine.take_woken()] == [("default", "default")]


# How often it is tried.


def test_a_message_without_a_limit_of_attempts_never_dies() -> None:
    core = Core()
    message = core.push(b"1", max_attempts=0, backoff=AT_ONCE)
    assert life(core, message) == [0] * 50
    assert core.find(message).failures == 50


def test_a_message_of_one_attempt_is_dead_at_its_first_failure() -> None:
    core = Core()
    assert life(core, core.push(b"1", max_attempts=1)) == [None]


def test_the_attempts_of_a_message_go_before_those_of_its_queue() -> None:
    core = Core()
    core.configure(backoff=AT_ONCE, max_attempts=2)
    assert life(core, core.push()) == [0, None]
    assert life(core, core.push(b"1", max_attempts=3)) == [0, 0, None]


def test_a_message_that_failed_too_often_is_dead_with_its_error() -> None:
    core = Core()
    message = core.push(b"1", max_attempts=2, backoff=AT_ONCE)
    life(core, message)
    found = core.find(message)
    assert (found.state, found.deliveries, found.failures, found.error) == ("dead", 2, 2, "no")
    assert found.ended_at == core.now
    assert core.counts() == queries.Counts(dead=1)
    assert core.popped() == []


@pytest.mark.parametrize("steps", [(10,), (1_000, 5_000, 10_000), (1_000, 5_000, 30_000)])
def test_a_list_of_n_waits_is_n_retries_each_after_its_wait_then_dead(steps: tuple[int, ...]) -> None:
    core = Core()
    message = core.push(b"1", backoff=waits(*steps))
    assert life(core, message) == [*steps, None]
    found = core.find(message)
    assert (found.state, found.deliveries, found.failures) == ("dead", len(steps) + 1, len(steps) + 1)


def test_a_worker_that_fails_three_times_gets_it_right_at_the_fourth() -> None:
    core = Core()
    message = core.push(b"task", backoff=waits(2_000, 10_000, 60_000))
    assert [fail(core, message) for _ in range(3)] == [2_000, 10_000, 60_000]
    core.ack(core.pop().lease)
    assert core.state(message) == "completed"
    assert core.engine.next_due_at() >= NOW + 72_000


def test_every_step_of_a_life_is_seen() -> None:
    """Waiting, active, delayed by a nack and by a lease that ran out, dead, waiting again, completed."""
    core = Core()
    message = core.push(b"1", backoff=waits(10, 20))
    seen = [core.state(message)]
    lease = core.pop().lease
    seen.append(core.state(message))
    core.nack(lease)
    seen.append(core.state(message))
    core.wait(10)
    core.pop(lease_ms=5)
    core.wait(5)
    seen.append(core.state(message))
    core.wait(20)
    core.nack(core.pop().lease)
    seen.append(core.state(message))
    core.ask(c.Requeue("default", "q"), c.Buried)
    seen.append(core.state(message))
    core.ack(core.pop().lease)
    seen.append(core.state(message))
    assert seen == ["waiting", "active", "delayed", "delayed", "dead", "waiting", "completed"]


def test_each_group_fails_on_its_own() -> None:
    core = Core()
    message = core.push(b"1", max_attempts=1)
    core.nack(core.pop(group="a").lease)
    assert (core.state(message, "a"), core.state(message, "b")) == ("dead", "waiting")
    assert core.popped(group="b") == [b"1"]


def test_only_what_failed_of_a_lease_is_tried_again() -> None:
    core = Core()
    core.forgive()
    first = core.push(*[b"%d" % number for number in range(6)])
    lease = core.pop(6).lease
    core.nack(lease, [first + 1, first + 4])
    assert core.popped(9) == [b"1", b"4"]
    assert core.ack(lease).count == 4


def test_a_restart_forgets_neither_failures_nor_waits() -> None:
    core = Core()
    message = core.push()
    assert fail(core, message) == 1_000
    core.nack(core.pop().lease, error="again")
    before = core.find(message)
    core.restart()
    assert core.find(message) == before
    assert (before.due_at, before.failures, before.error) == (core.now + 2_000, 2, "again")
    core.wait(2_000)
    assert fail(core, message) is None


# Deliveries.


@pytest.mark.parametrize("on_lease_expiry", ["fail", "requeue"])
def test_deliveries_have_a_limit_of_their_own_however_they_end(on_lease_expiry: str) -> None:
    core = Core()
    core.configure(
        max_attempts=0, backoff=AT_ONCE, max_deliveries=3, on_lease_expiry=on_lease_expiry, lease_ms=10
    )
    message = core.push()
    for state in ("waiting", "waiting", "dead"):
        assert core.popped() == [b"1"]
        core.wait(10)
        assert core.state(message) == state
    assert core.find(message).deliveries == 3
    assert core.find(message).error


def test_a_lease_that_runs_out_is_a_failure() -> None:
    core = Core()
    message = core.push()
    core.pop(lease_ms=10)
    core.wait(10)
    found = core.find(message)
    assert (found.state, found.failures, found.error) == ("delayed", 1, "lease expired")


def test_leases_that_run_out_again_and_again_make_a_message_dead() -> None:
    core = Core()
    core.configure(backoff=AT_ONCE, lease_ms=10)
    message = core.push()
    for _ in range(3):
        assert core.popped() == [b"1"]
        core.wait(10)
    assert core.state(message) == "dead"


def test_a_lease_that_runs_out_is_nothing_where_the_queue_says_so() -> None:
    core = Core()
    core.configure(on_lease_expiry="requeue", lease_ms=10)
    message = core.push()
    for deliveries in range(1, 10):
        assert core.popped() == [b"1"]
        core.wait(10)
        found = core.find(message)
        assert (found.state, found.deliveries, found.failures) == ("waiting", deliveries, 0)
    core.nack(core.pop().lease)
    assert core.find(message).failures == 1


def test_who_comes_late_can_neither_ack_nor_nack_what_another_holds() -> None:
    core = Core()
    core.forgive()
    message = core.push()
    late = core.pop(lease_ms=10).lease
    core.wait(10)
    current = core.pop()
    for command in (c.Ack("default", late), c.Nack("default", late), c.Ack("default", late, [message])):
        with pytest.raises(Conflict):
            core.engine.apply(command, core.now)
    assert core.find(message).failures == 1
    assert core.ack(current.lease).count == 1


def test_what_its_consumer_never_heard_of_was_not_delivered() -> None:
    core = Core()
    core.push(b"1", b"2", b"3", priority=2)
    reply = core.pop(2)
    core.engine.give_back(reply, core.now)
    with pytest.raises(Conflict):
        core.ack(reply.lease)
    again = core.pop(9)
    assert payloads_of(again) == [b"1", b"2", b"3"]
    assert {(each.deliveries, each.failures) for each in again.deliveries} == {(1, 0)}


# What it costs.


def test_a_nack_of_ten_thousand_is_one_scheduled_run() -> None:
    core = Core()
    core.push(*[b"1"] * 10_000)
    core.nack(core.pop(10_000).lease)
    assert (len(track_of(core).schedule), track_of(core).schedule.messages) == (1, 10_000)


def test_a_lease_of_ten_thousand_that_runs_out_is_one_scheduled_run() -> None:
    core = Core()
    core.push(*[b"1"] * 10_000)
    core.pop(10_000, lease_ms=10)
    core.wait(10)
    assert (len(track_of(core).schedule), track_of(core).schedule.messages) == (1, 10_000)


def test_ten_thousand_that_die_together_are_one_run_of_dead_letters() -> None:
    core = Core()
    core.push(*[b"1"] * 10_000, max_attempts=1)
    core.nack(core.pop(10_000).lease)
    assert (len(track_of(core).dead), track_of(core).dead_messages) == (1, 10_000)
    assert len(track_of(core).schedule) == 0


# What can't be.

IMPOSSIBLE: dict[str, c.Command] = {
    "negative attempts": c.Configure("default", "q", max_attempts=-1),
    "attempts beyond all bounds": c.Configure("default", "q", max_attempts=1_000_001),
    "negative deliveries": c.Configure("default", "q", max_deliveries=-1),
    "a backoff of a kind nobody knows": c.Configure("default", "q", backoff=Backoff(kind="maybe")),
    "a backoff of ten thousand steps": c.Configure(
        "default", "q", backoff=Backoff(kind=LIST, steps=(1,) * 10_000)
    ),
    "jitter of more than all": c.Configure("default", "q", backoff=Backoff(jitter=2.0)),
    "an end of leases nobody knows": c.Configure("default", "q", on_lease_expiry="explode"),
    "a good option with a bad one": c.Configure("default", "q", lease_ms=5, max_attempts=-1),
    "a nack with a negative delay": c.Nack("default", "1", delay_ms=-1),
    "a nack with a delay beyond all bounds": c.Nack("default", "1", delay_ms=DELAY_MS_MAX + 1),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_retries_that_can_not_be_are_refused_and_nothing_changes(name: str) -> None:
    core = Core()
    core.push()
    core.pop()
    core.commit()
    with pytest.raises(Invalid):
        core.engine.apply(IMPOSSIBLE[name], core.now)
    assert core.engine.seal(core.now) == []
    assert core.ask(queries.Describe("default", "q"), queries.QueueFound).options.lease_ms == 30_000
    assert core.engine.next_due_at() < NEVER


# What is final.


def test_what_fails_finally_is_dead_at_once_with_its_error_and_its_failure() -> None:
    core = Core()
    message = core.push(b"1", max_attempts=0)
    lease = core.pop().lease
    core.nack(lease, [message], error="no such user", final=True)
    found = core.find(message)
    assert (found.state, found.error, found.failures) == ("dead", "no such user", 1)


def test_in_strict_order_only_the_first_fails_finally_and_those_behind_it_come_again() -> None:
    core = Core()
    core.configure(ordering="partition")
    first = core.push(b"1", b"2")
    lease = core.pop(2).lease
    core.nack(lease, final=True)
    assert [core.find(each).state for each in (first, first + 1)] == ["dead", "waiting"]


def test_what_is_final_has_no_delay() -> None:
    core = Core()
    core.push()
    lease = core.pop().lease
    with pytest.raises(Invalid, match="delay_ms must be left out"):
        core.nack(lease, delay_ms=5, final=True)


def test_what_is_given_back_is_due_at_once_and_nothing_of_it_counts() -> None:
    core = Core()
    first = core.push(b"1", b"2", b"3")
    reply = core.pop(3)
    assert core.nack(reply.lease, [first], undelivered=True).count == 1
    assert core.nack(reply.lease, undelivered=True).count == 2
    found = [core.find(first + at) for at in range(3)]
    assert [(each.state, each.deliveries, each.failures) for each in found] == [("waiting", 0, 0)] * 3
    with pytest.raises(Conflict):
        core.nack(reply.lease, undelivered=True)


def test_what_somebody_else_has_by_now_is_not_given_back() -> None:
    core = Core()
    message = core.push()
    late = core.pop(lease_ms=1_000).lease
    core.wait(5_000)
    core.pop()
    with pytest.raises(Conflict):
        core.nack(late, [message], undelivered=True)
    assert core.state(message) == "active"
