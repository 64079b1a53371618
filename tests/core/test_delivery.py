"""Who is served first, and when: priority, lifo, delay, time to live and timeout."""

from itertools import permutations

import pytest

from forebay.core.api import commands as c, queries
from forebay.core.bounds import DELAY_MS_MAX, PRIORITY_MAX, Limits
from forebay.core.delivery.pop import PLANS_MAX
from forebay.core.errors import Invalid, NotFound
from forebay.core.shard.timers import SWEEP_MS
from forebay.core.state import PLAIN, Attributes, Backoff
from forebay.core.words import FIXED, LIST
from tests.core.harness import AT_ONCE, NOW, Core

MINUTE = 60_000
URGENT, LIFO = Attributes(priority=3), Attributes(lifo=True)


def forget_woken(core: Core) -> None:
    core.commit()
    assert core.engine.take_woken() == []


# Order.


def test_the_higher_priority_goes_first() -> None:
    core = Core()
    for priority in (0, 5, -3, 9, 1):
        core.push(b"%d" % priority, priority=priority)
    assert core.popped(9) == [b"9", b"5", b"1", b"0", b"-3"]


def test_of_one_priority_what_was_due_first_goes_first() -> None:
    core = Core()
    for delay_ms in (30, 10, 20):
        core.push(b"%d" % delay_ms, priority=1, delay_ms=delay_ms)
    core.wait(100)
    assert core.popped(9) == [b"10", b"20", b"30"]


def test_of_one_priority_and_time_what_was_pushed_first_goes_first() -> None:
    core = Core()
    core.push(b"1", b"2", priority=1)
    core.push(b"3", priority=1)
    assert core.popped(9) == [b"1", b"2", b"3"]


def test_lifo_is_newest_first_and_before_the_others_of_its_priority() -> None:
    core = Core()
    core.push(b"fifo 1")
    core.push(b"lifo 1", b"lifo 2", lifo=True)
    core.commit()
    core.wait(5)
    core.push(b"fifo 2")
    core.push(b"lifo 3", lifo=True)
    core.push(b"urgent", priority=1)
    assert core.popped(9) == [b"urgent", b"lifo 3", b"lifo 2", b"lifo 1", b"fifo 1", b"fifo 2"]


@pytest.mark.parametrize("order", list(permutations("FLf")))
def test_the_order_is_transitive_however_fifo_and_lifo_mix(order: tuple[str, ...]) -> None:
    core = Core()
    for name in order:
        core.push(name.encode(), lifo=name == "L")
    wanted = [b"L", *[name.encode() for name in order if name != "L"]]
    assert core.popped(9) == wanted


def test_lifo_takes_only_as_many_as_it_is_asked_for() -> None:
    core = Core()
    core.push(*[b"%d" % number for number in range(5)], lifo=True)
    assert [core.popped(2), core.popped(1), core.popped(9)] == [[b"4", b"3"], [b"2"], [b"1", b"0"]]


def test_what_is_ready_is_not_held_up_by_what_is_more_urgent_and_not_due() -> None:
    core = Core()
    core.push(b"urgent, later", priority=9, delay_ms=1_000)
    core.push(b"now", priority=1)
    core.push(b"plain")
    assert core.popped(9) == [b"now", b"plain"]
    core.wait(1_000)
    assert core.popped(9) == [b"urgent, later"]


def test_what_has_a_negative_priority_comes_after_all_that_has_none() -> None:
    core = Core()
    core.push(b"last", priority=-1)
    core.push(b"1")
    core.push(b"2")
    assert core.popped(2) == [b"1", b"2"]
    core.push(b"3")
    assert core.popped(9) == [b"3", b"last"]


def test_due_retries_go_before_fresh_messages() -> None:
    core = Core()
    core.push(b"1", b"2", b"3")
    core.nack(core.pop(2).lease, delay_ms=10)
    assert core.popped() == [b"3"]
    core.push(b"4")
    core.wait(10)
    assert core.popped(9) == [b"1", b"2", b"4"]


def test_a_retry_keeps_its_priority() -> None:
    core = Core()
    core.forgive()
    core.push(b"urgent", priority=5)
    core.nack(core.pop().lease)
    core.push(b"more urgent", priority=6)
    core.push(b"less urgent", priority=4)
    assert core.popped(9) == [b"more urgent", b"urgent", b"less urgent"]


def test_partitions_take_turns_at_equal_priority() -> None:
    core = Core()
    for name in ("x", "y", "z"):
        core.push(*[name.encode()] * 2, partition=name, priority=7)
        core.push(name.encode(), partition=name)
    assert [core.popped() for _ in range(6)] == [[b"x"], [b"y"], [b"z"]] * 2
    assert sorted(core.popped(9)) == [b"x", b"y", b"z"]


def test_the_most_urgent_partition_goes_first_whoever_was_served_last() -> None:
    core = Core()
    for name in ("x", "y"):
        core.push(*[name.encode()] * 3, partition=name)
    assert [core.popped() for _ in range(2)] == [[b"x"], [b"y"]]
    core.push(b"urgent", partition="y", priority=1)
    assert [core.popped() for _ in range(3)] == [[b"urgent"], [b"x"], [b"y"]]


def test_the_order_is_the_same_in_every_group_early_or_late() -> None:
    core = Core()
    core.pop(group="early")
    for number, priority in enumerate((0, 3, -2, 3, 0)):
        core.push(b"%d" % number, priority=priority)
        core.commit()
    wanted = [b"1", b"3", b"0", b"4", b"2"]
    assert core.popped(9, group="early") == core.popped(9, group="late") == wanted
    assert core.popped(9, group="new", start="new") == []


def test_the_order_is_the_same_after_a_restart() -> None:
    core = Core()
    core.pop()
    core.push(b"plain", partition="x")
    core.push(b"lowest", partition="x", priority=-5)
    core.push(b"low", partition="y", priority=-1)
    core.push(b"high", partition="z", priority=2)
    core.push(b"old", b"new", partition="z", priority=1, lifo=True)
    core.restart()
    assert core.popped(9) == [b"high", b"new", b"old", b"plain", b"low", b"lowest"]


def test_a_delivery_says_its_priority() -> None:
    core = Core()
    core.push(b"1", priority=4)
    core.push(b"2", priority=-4, lifo=True)
    core.push(b"3")
    assert [each.priority for each in core.pop(9).deliveries] == [4, 0, -4]


def test_a_pop_right_after_a_push_sees_it() -> None:
    core = Core()
    for number, having in enumerate((PLAIN, URGENT, LIFO, Attributes(ttl_ms=5))):
        core.push(b"%d" % number, attributes=having)
        assert core.popped() == [b"%d" % number]


def test_a_group_made_behind_many_priorities_gets_them_all() -> None:
    core = Core()
    for number in range(PLANS_MAX + 100):
        core.push(b"1", priority=1 + number % 2)
    core.commit()
    found = 0
    while True:
        reply = core.pop(1_000, group="late")
        found += sum(each.count for each in reply.deliveries)
        if not reply.deliveries and not reply.again:
            break
        core.commit()
    assert found == PLANS_MAX + 100


# Delay.


@pytest.mark.parametrize("delay_ms", [1, MINUTE, 5 * MINUTE, DELAY_MS_MAX])
def test_a_delayed_message_is_not_delivered_before_its_time(delay_ms: int) -> None:
    core = Core()
    message = core.push(b"1", delay_ms=delay_ms)
    found = core.find(message)
    assert (found.state, found.due_at) == ("delayed", NOW + delay_ms)
    core.wait(delay_ms - 1)
    assert core.popped() == []
    core.wait(1)
    assert core.state(message) == "waiting"
    assert core.popped() == [b"1"]


def test_a_delay_counts_from_the_push_however_slow_the_commit() -> None:
    core = Core()
    core.push(b"1")
    core.now += 50  # the first push is not committed yet
    core.push(b"2", delay_ms=40)
    core.wait(39)
    assert core.popped(9) == [b"1"]
    core.wait(1)
    assert core.popped(9) == [b"2"]


def test_delayed_messages_are_counted_apart_until_they_are_due() -> None:
    core = Core()
    core.pop()
    core.push(b"1", b"2", delay_ms=10)
    core.push(b"3")
    assert core.counts() == queries.Counts(waiting=1, delayed=2)
    core.wait(10)
    assert core.counts() == queries.Counts(waiting=3)


def test_a_delay_outlasts_a_restart() -> None:
    core = Core()
    core.push(b"1", delay_ms=100)
    core.pop()
    core.restart(down_ms=99)
    assert core.popped() == []
    core.wait(1)
    assert core.popped() == [b"1"]


def test_those_who_wait_are_told_when_a_delay_has_passed() -> None:
    core = Core()
    core.pop(group="g")
    core.push(b"1", partition="x", delay_ms=70)
    forget_woken(core)
    assert core.engine.next_due_at() == NOW + 70
    core.wait(69)
    assert core.engine.take_woken() == []
    core.wait(1)
    assert [wake[1:] for wake in core.engine.take_woken()] == [("g", "x")]
    assert core.popped(group="g") == [b"1"]


def test_every_one_of_several_delays_wakes_at_its_time() -> None:
    core = Core()
    core.pop()
    for delay_ms in (30, 10, 20):
        core.push(b"%d" % delay_ms, delay_ms=delay_ms, priority=delay_ms)
    for at in (10, 20, 30):
        forget_woken(core)
        assert core.engine.next_due_at() == NOW + at
        core.wait(10)
        assert core.engine.take_woken()
        assert core.popped(9) == [b"%d" % at]


def test_a_batch_of_ten_thousand_delayed_is_one_entry_in_each_group() -> None:
    core = Core()
    for name in ("a", "b"):
        core.pop(group=name)
    core.push(*[b"1"] * 10_000, delay_ms=10)
    for group in core.engine.queues["default", "q"].groups.values():
        (track,) = group.tracks.values()
        assert (len(track.schedule), track.schedule.messages) == (1, 10_000)


def test_delayed_messages_pushed_one_by_one_into_a_commit_are_one_entry() -> None:
    core = Core()
    core.pop()
    for _ in range(100):
        core.push(b"1", delay_ms=10)
    (track,) = core.engine.queues["default", "q"].groups["default"].tracks.values()
    assert (len(track.schedule), track.schedule.messages) == (1, 100)


# Time to live.


@pytest.mark.parametrize("having", [PLAIN, URGENT, LIFO])
def test_a_message_past_its_time_to_live_is_not_delivered(having: Attributes) -> None:
    core = Core()
    core.push(b"1", attributes=having, ttl_ms=100)
    core.commit()
    core.wait(1)
    core.push(b"2", attributes=having, ttl_ms=100)
    core.wait(99)
    assert core.popped(9) == [b"2"]


def test_a_time_to_live_counts_from_the_push_whatever_the_delay() -> None:
    core = Core()
    core.push(b"1", delay_ms=50, ttl_ms=100)
    core.push(b"2", delay_ms=50, ttl_ms=101)
    core.wait(100)
    assert core.popped(9) == [b"2"]


def test_a_time_to_live_counts_from_the_push_however_slow_the_commit() -> None:
    core = Core()
    core.push(b"1")
    core.now += 50  # the first push is not committed yet
    core.push(b"2", ttl_ms=40)
    core.wait(39)
    assert core.popped(9) == [b"1", b"2"]


def test_a_retry_past_its_time_to_live_is_not_delivered_again() -> None:
    core = Core()
    message = core.push(b"1", ttl_ms=100)
    core.nack(core.pop().lease, delay_ms=100)
    core.wait(100)
    assert core.popped() == []
    assert core.state(message) == "expired"


def test_a_delivery_in_time_may_be_acked_after_the_time_to_live() -> None:
    core = Core()
    message = core.push(b"1", ttl_ms=100)
    lease = core.pop().lease
    core.wait(200)
    assert core.ack(lease).count == 1
    assert core.state(message) == "completed"


def test_an_expired_message_has_a_state_and_is_counted() -> None:
    core = Core()
    core.configure(completed_retention_ms=0)
    message = core.push(b"1", b"2", ttl_ms=100)
    core.commit()
    core.wait(100)
    expired = core.find(message)
    assert (expired.state, expired.ended_at) == ("expired", NOW + 100)
    core.wait(5)
    core.pop()
    assert core.find(message) == expired
    assert core.counts() == queries.Counts(expired=2)
    core.restart()
    assert core.find(message) == expired
    core.wait(SWEEP_MS)
    with pytest.raises(NotFound):
        core.state(message)


def test_what_has_expired_counts_as_waiting_until_a_pop_passes_it() -> None:
    core = Core()
    core.push(b"1", ttl_ms=5)
    core.commit()
    core.wait(5)
    core.push(b"2")
    assert core.counts() == queries.Counts(waiting=2)
    assert core.popped(9, min_count=2) == [b"2"]
    assert core.counts() == queries.Counts(active=1, expired=1)


# Timeout.


def test_a_lease_lasts_as_long_as_the_pop_says_else_the_message_else_the_queue() -> None:
    core = Core()
    core.configure(lease_ms=500)
    core.push(b"1", b"2", timeout_ms=200)
    core.push(b"3")
    assert core.pop(lease_ms=100).deliveries[0].expires_at == NOW + 100
    assert [each.expires_at for each in core.pop(2).deliveries] == [NOW + 200, NOW + 500]


def test_messages_of_one_lease_run_out_each_at_its_own_time() -> None:
    core = Core()
    core.forgive()
    core.push(b"1", timeout_ms=200)
    core.push(b"2", timeout_ms=100)
    assert core.popped(2) == [b"1", b"2"]
    assert core.engine.next_due_at() == NOW + 100
    core.wait(100)
    assert core.popped(9, lease_ms=1_000) == [b"2"]
    core.wait(100)
    assert core.popped(9) == [b"1"]


# What can't be.

IMPOSSIBLE = {
    "negative delay": Attributes(delay_ms=-1),
    "delay beyond all bounds": Attributes(delay_ms=DELAY_MS_MAX + 1),
    "negative ttl": Attributes(ttl_ms=-1),
    "ttl beyond all bounds": Attributes(ttl_ms=DELAY_MS_MAX + 1),
    "ttl that ends before the delay": Attributes(delay_ms=10, ttl_ms=9),
    "ttl that ends with the delay": Attributes(delay_ms=10, ttl_ms=10),
    "priority too high": Attributes(priority=PRIORITY_MAX + 1),
    "priority too low": Attributes(priority=-PRIORITY_MAX - 1),
    "negative timeout": Attributes(timeout_ms=-1),
    "timeout beyond all bounds": Attributes(timeout_ms=Limits().lease_ms_max + 1),
    "negative attempts": Attributes(max_attempts=-1),
    "attempts beyond all bounds": Attributes(max_attempts=1_000_001),
    "a backoff of a kind nobody knows": Attributes(backoff=Backoff(kind="quadratic")),
    "a backoff below 0": Attributes(backoff=Backoff(kind=FIXED, base_ms=-1)),
    "a backoff beyond all bounds": Attributes(backoff=Backoff(base_ms=DELAY_MS_MAX + 1)),
    "a cap below 0": Attributes(backoff=Backoff(cap_ms=-1)),
    "jitter of more than all": Attributes(backoff=Backoff(jitter=2.0)),
    "jitter below 0": Attributes(backoff=Backoff(jitter=-0.1)),
    "jitter that is no number": Attributes(backoff=Backoff(jitter=float("nan"))),
    "a list of no waits": Attributes(backoff=Backoff(kind=LIST)),
    "a list of ten thousand waits": Attributes(backoff=Backoff(kind=LIST, steps=(1,) * 10_000)),
    "a list with a wait below 0": Attributes(backoff=Backoff(kind=LIST, steps=(5, -1))),
    "a list with a wait beyond all bounds": Attributes(backoff=Backoff(kind=LIST, steps=(DELAY_MS_MAX + 1,))),
    "steps of what is no list": Attributes(backoff=Backoff(kind=FIXED, steps=(5,))),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_attributes_that_can_not_be_are_refused_and_nothing_changes(name: str) -> None:
    core = Core()
    for command in (
        c.Push("default", "q", [b"1"], attributes=IMPOSSIBLE[name]),
        c.PushMany("default", "q", [("x", [b"1"], Attributes(priority=1)), ("x", [b"2"], IMPOSSIBLE[name])]),
    ):
        with pytest.raises(Invalid) as refused:
            core.engine.apply(command, core.now)
        assert refused.value.field
        assert refused.value.accepted
    assert core.engine.seal(core.now) == []
    assert core.engine.queues == {}


@pytest.mark.parametrize(
    "attributes",
    [
        Attributes(delay_ms=DELAY_MS_MAX),
        Attributes(delay_ms=DELAY_MS_MAX - 1, ttl_ms=DELAY_MS_MAX),
        Attributes(priority=PRIORITY_MAX, lifo=True),
        Attributes(priority=-PRIORITY_MAX),
        Attributes(timeout_ms=Limits().lease_ms_max, max_attempts=1_000_000),
        Attributes(backoff=Backoff(kind=LIST, steps=(DELAY_MS_MAX,) * 100, jitter=1.0)),
        Attributes(backoff=AT_ONCE),
    ],
)
def test_attributes_at_their_limits_are_kept_over_a_restart(attributes: Attributes) -> None:
    core = Core()
    core.push(b"1", attributes=attributes)
    core.restart()
    (segment,) = core.engine.queues["default", "q"].partitions["default"].log.segments
    assert [run.attributes for run in segment.runs] == [attributes]
    core.wait(attributes.delay_ms)
    assert core.popped() == [b"1"]


# What is over leaves nothing behind.


@pytest.mark.parametrize("how", ["cancelled", "acked"])
def test_a_thousand_priorities_that_came_and_went_leave_nothing_behind(how: str) -> None:
    core = Core()
    core.pop()
    for number in range(1_000):
        message = core.push(b"1", priority=number, delay_ms=5 if how == "cancelled" else 0)
        if how == "cancelled":
            core.cancel(message)
        else:
            core.ack(core.pop().lease)
    group = core.engine.queues["default", "q"].groups["default"]
    (track,) = group.tracks.values()
    schedule = track.schedule
    assert len(schedule) == schedule.messages == 0
    heaps = len(schedule._future) + len(schedule._later) + len(schedule._ready) + len(group.ready)
    assert heaps + len(schedule._ready_levels) < 300
