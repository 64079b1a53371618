"""Limits on delivery: so many in a time, so many at once; what frees them, and who is woken by that."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from forebay.core.api import commands as c, jobs as job_commands
from forebay.core.bounds import NEVER
from forebay.core.errors import Invalid
from forebay.core.state import Rate
from tests.core.harness import Core
from tests.core.limiting import active, fill, got, ids_of, share, woken


@pytest.fixture
def core() -> Core:
    return Core()


# So many in a time.


def test_a_rate_lets_a_burst_go_and_then_one_token_at_a_time(core: Core) -> None:
    core.configure(rate_limit=Rate(10, per_ms=1_000))
    fill(core)
    assert got(core) == 10
    assert got(core) == 0
    core.wait(99)
    assert got(core) == 0
    core.wait(1)
    assert got(core) == 1
    core.wait(350)
    assert got(core) == 3
    core.wait(50)
    assert got(core) == 1


def test_the_burst_is_as_large_as_it_is_told(core: Core) -> None:
    core.configure(rate_limit=Rate(10, per_ms=1_000, burst=25))
    fill(core)
    assert got(core) == 25
    core.wait(1_000)
    assert got(core) == 10
    core.wait(60_000)
    assert got(core) == 25


def test_a_burst_of_one_lets_no_two_go_at_once(core: Core) -> None:
    core.configure(rate_limit=Rate(10, per_ms=1_000, burst=1))
    fill(core)
    for _ in range(5):
        assert got(core) == 1
        core.wait(100)


@pytest.mark.parametrize(("limit", "per_ms"), [(1, 3_600_000), (7, 1_000), (3, 7), (999, 1_000)])
def test_tokens_come_to_the_millisecond_and_nothing_is_rounded_off(
    core: Core, limit: int, per_ms: int
) -> None:
    core.configure(rate_limit=Rate(limit, per_ms, burst=5))
    fill(core, 200)
    assert got(core) == 5
    came = 0
    step = max(per_ms // limit, 1)
    for elapsed in range(step, 100 * step, step):
        core.wait(step)
        came += got(core)
        assert came == elapsed * limit // per_ms


def test_a_pop_that_finds_nothing_spends_nothing(core: Core) -> None:
    core.configure(rate_limit=Rate(3))
    for _ in range(10):
        assert got(core) == 0
    fill(core)
    assert got(core) == 3


def test_a_pop_of_another_partition_that_finds_nothing_spends_nothing(core: Core) -> None:
    core.configure(rate_limit=Rate(3))
    fill(core)
    for _ in range(10):
        assert got(core, partition="nobody") == 0
    assert got(core) == 3


def test_a_delivery_that_comes_again_takes_a_token_again(core: Core) -> None:
    core.forgive()
    core.configure(rate_limit=Rate(3))
    fill(core)
    core.nack(core.pop(2).lease)
    assert got(core) == 1
    assert got(core) == 0


def test_every_group_has_tokens_of_its_own(core: Core) -> None:
    core.configure(rate_limit=Rate(3))
    fill(core)
    assert [got(core, group=group) for group in ("default", "a", "b")] == [3, 3, 3]


def test_a_limit_that_is_taken_away_holds_nothing_back(core: Core) -> None:
    core.configure(rate_limit=Rate(3), concurrency=1)
    fill(core)
    assert got(core) == 1
    core.configure(rate_limit=None, concurrency=0)
    assert got(core) == 99


def test_another_option_does_not_fill_the_bucket(core: Core) -> None:
    core.configure(rate_limit=Rate(3))
    fill(core)
    assert got(core) == 3
    core.configure(rate_limit=Rate(3), concurrency=50)
    core.configure(lease_ms=5_000)
    assert got(core) == 0


def test_a_restart_begins_without_tokens(core: Core) -> None:
    core.configure(rate_limit=Rate(10), partition_rate_limit=Rate(100))
    fill(core)
    assert got(core, 1) == 1
    core.restart()
    assert got(core) == 0
    core.wait(99)
    assert got(core) == 0
    core.wait(1)
    assert got(core) == 1
    for _ in range(5):
        core.restart()
        assert got(core) == 0


# Bytes.


def large(core: Core, count: int, queue: str = "q") -> None:
    """Messages of 100 bytes, each in a commit of its own."""
    for _ in range(count):
        core.push(b"x" * 100, queue=queue)
        core.commit()


def test_bytes_are_overdrawn_by_the_last_and_paid_back(core: Core) -> None:
    core.configure(byte_limit=Rate(250))
    large(core, 20)
    assert got(core) == 3
    core.wait(200)
    assert got(core) == 0
    core.wait(4)
    assert got(core) == 1
    core.wait(1_000)
    assert got(core) == 2


def test_a_message_larger_than_the_bucket_is_delivered_all_the_same(core: Core) -> None:
    core.configure(byte_limit=Rate(10))
    large(core, 2)
    assert got(core) == 1
    core.wait(9_000)
    assert got(core) == 0
    core.wait(100)
    assert got(core) == 1


def test_bytes_over_a_long_time_are_no_more_than_allowed(core: Core) -> None:
    """Whatever lies together is taken as one, and paid back."""
    core.configure(byte_limit=Rate(1_000))
    for count in (1, 30, 7, 100, 2, 60):
        core.push(*[b"x" * 50] * count)
        core.commit()
    came = [0]
    for _ in range(30):
        came.append(came[-1] + 50 * got(core, 1_000))
        core.wait(250)
    most = max(later - earlier for earlier, later in pairwise(came))
    for at, total in enumerate(came[1:]):
        assert total <= 1_000 + 250 * at + most
    assert came[-1] > 0


def test_empty_messages_need_a_byte_and_take_none(core: Core) -> None:
    core.configure(byte_limit=Rate(1))
    core.push(*[b""] * 10)
    assert got(core, 5) == 5
    assert got(core, 5) == 5


# So many at once.


Free = Callable[[Core, c.Popped], None]
FREEING: dict[str, Free] = {
    "ack": lambda core, popped: void(core.ack(popped.lease)),
    "ack by id": lambda core, popped: void(core.ack(ids=ids_of(popped))),
    "nack": lambda core, popped: void(core.nack(popped.lease)),
    "nack by id": lambda core, popped: void(core.nack(ids=ids_of(popped))),
    "expiry": lambda core, _: core.wait(30_000),
    "cancel": lambda core, popped: void(core.cancel(*ids_of(popped))),
    "discard": lambda core, popped: void(core.ask(c.Discard("default", ids_of(popped)), c.Settled)),
    "move": lambda core, popped: void(core.ask(c.Move("default", ids_of(popped), delay_ms=9), c.Settled)),
    "seek": lambda core, _: void(core.ask(c.Seek("default", "q", "default", "all"), c.Sought)),
    "give back": lambda core, popped: core.engine.give_back(popped, core.now),
}


def void(_: object) -> None:
    """Commands answer; what they answer does not matter here."""


LIMITED: dict[str, dict[str, Any]] = {
    "group": {"concurrency": 3},
    "partition": {"partition_concurrency": 3},
    "named": {"limits": ("n",)},
    "all": {"limits": ("n",), "concurrency": 3, "partition_concurrency": 3},
}


@pytest.mark.parametrize("reload", [False, True])
@pytest.mark.parametrize("limit", LIMITED)
@pytest.mark.parametrize("how", FREEING)
def test_a_place_is_free_again_once_a_message_is_not_leased(
    core: Core, how: str, limit: str, reload: bool
) -> None:
    core.forgive()
    share(core, concurrency=3)
    core.configure(**LIMITED[limit])
    fill(core)
    popped = core.pop(9)
    assert len(ids_of(popped)) == 3
    if reload:
        core.restart()
    assert got(core) == 0
    core.engine.take_woken()
    FREEING[how](core, popped)
    assert {("q", "default"), ("q", None)} & woken(core)
    assert got(core) == 3
    assert got(core) == 0


@pytest.mark.parametrize("limit", LIMITED)
def test_each_message_that_is_settled_frees_one_place(core: Core, limit: str) -> None:
    share(core, concurrency=3)
    core.configure(**LIMITED[limit])
    fill(core)
    ids = ids_of(core.pop(9))
    core.ack(ids=ids[1:2])
    assert got(core) == 1
    core.ack(ids=[ids[0], ids[2]])
    assert got(core) == 2
    assert got(core) == 0


def test_an_extended_lease_keeps_its_place(core: Core) -> None:
    core.configure(concurrency=1)
    fill(core)
    popped = core.pop()
    core.wait(29_000)
    core.ask(c.Extend("default", popped.lease), c.Extended)
    core.wait(29_000)
    assert got(core) == 0


def test_every_group_has_places_of_its_own(core: Core) -> None:
    core.configure(concurrency=2)
    fill(core)
    assert [got(core, group=group) for group in ("default", "a", "b")] == [2, 2, 2]


def test_partitions_have_places_of_their_own(core: Core) -> None:
    core.configure(partition_concurrency=2)
    for partition in "abc":
        fill(core, 10, partition=partition)
    (popped, other) = core.pop(9), core.pop(9)
    assert sorted(each.partition for each in popped.deliveries for _ in range(each.count)) == list("aabbcc")
    assert other.deliveries == []
    mine = next(each for each in popped.deliveries if each.partition == "b")
    core.ack(ids=[mine.first])
    assert [each.partition for each in core.pop(9).deliveries] == ["b"]


def test_partitions_have_rates_of_their_own(core: Core) -> None:
    core.configure(partition_rate_limit=Rate(2))
    for partition in "ab":
        fill(core, 10, partition=partition)
    assert got(core) == 4
    assert got(core) == 0
    core.wait(500)
    assert got(core, partition="a") == 1
    assert got(core) == 1


def test_a_full_partition_does_not_hold_the_others_back(core: Core) -> None:
    core.configure(partition_concurrency=1)
    fill(core, 50, partition="busy")
    assert got(core) == 1
    fill(core, 1, partition="idle")
    assert [each.partition for each in core.pop(9).deliveries] == ["idle"]


@pytest.mark.parametrize("options", [{"concurrency": 2}, {"partition_concurrency": 2}, {"limits": ("n",)}])
def test_limits_that_come_while_messages_are_leased_count_them(core: Core, options: dict[str, Any]) -> None:
    share(core, concurrency=2)
    fill(core)
    popped = core.pop(5)
    core.configure(**options)
    assert got(core) == 0
    core.ack(ids=ids_of(popped)[:3])
    assert got(core) == 0
    core.ack(ids=ids_of(popped)[3:4])
    assert got(core) == 1
    core.ack(ids=ids_of(popped)[4:])
    assert got(core) == 1
    assert got(core) == 0


@pytest.mark.parametrize("limit", ["group", "partition", "named", "all"])
def test_limits_that_change_while_messages_are_leased_keep_count(core: Core, limit: str) -> None:
    share(core, concurrency=3)
    core.configure(**LIMITED[limit])
    fill(core)
    popped = core.pop(9)
    core.configure(concurrency=0, partition_concurrency=0, limits=())
    assert active(core) == 0
    others = core.pop(4)
    core.configure(**LIMITED[limit])
    core.ack(others.lease)
    assert got(core) == 0
    core.ack(popped.lease)
    assert got(core) == 3
    assert got(core) == 0


def test_a_limit_that_is_raised_wakes_who_waits(core: Core) -> None:
    core.configure(concurrency=1)
    fill(core)
    assert (got(core), got(core)) == (1, 0)
    core.engine.take_woken()
    core.configure(concurrency=2)
    assert ("q", None) in woken(core)
    assert got(core) == 1


# Lanes.


def push_lane(core: Core, *payloads: bytes, partition: str = "lane", lane: bool = True) -> None:
    jobs = [job_commands.Job(payload, partition, lane=lane) for payload in payloads]
    core.ask(job_commands.PushJobs("default", "q", jobs), job_commands.PushedJobs)


@pytest.mark.parametrize("reload", [False, True])
def test_a_lane_has_one_message_at_a_time(core: Core, reload: bool) -> None:
    push_lane(core, b"1", b"2", b"3")
    fill(core, 2)
    came = []
    for _ in range(3):
        if reload:
            core.restart()
        popped = core.pop(9, partition="lane")
        came += [bytes(payload) for each in popped.deliveries for payload in each.payloads()]
        if reload:
            core.restart()
        assert got(core, partition="lane") == 0
        core.ack(popped.lease)
    assert came == [b"1", b"2", b"3"]
    assert got(core) == 2


def test_a_partition_becomes_a_lane_while_messages_of_it_are_leased(core: Core) -> None:
    push_lane(core, b"1", b"2", b"3", lane=False)
    popped = core.pop(2)
    push_lane(core, b"4")
    core.ack(ids=ids_of(popped)[:1])
    assert got(core) == 0
    core.ack(ids=ids_of(popped)[1:])
    assert core.popped(9) == [b"3"]


def test_a_lane_stays_one_and_holds_in_every_group(core: Core) -> None:
    push_lane(core, b"1", b"2")
    push_lane(core, b"3", lane=False)
    assert [got(core, group=group) for group in ("default", "a")] == [1, 1]
    core.restart()
    assert [got(core, group=group) for group in ("default", "a", "b")] == [0, 0, 1]


def test_a_lane_is_narrower_than_other_partitions(core: Core) -> None:
    core.configure(partition_concurrency=2)
    push_lane(core, b"1", b"2", b"3")
    push_lane(core, *[b"x"] * 3, partition="wide", lane=False)
    assert got(core) == 3
    core.configure(partition_concurrency=0)
    assert got(core) == 1


# Waking.


@pytest.mark.parametrize(
    "options", [{"rate_limit": Rate(4, burst=1)}, {"partition_rate_limit": Rate(4, burst=1)}], ids=str
)
def test_who_was_held_back_by_a_rate_is_woken_when_a_token_comes(core: Core, options: dict[str, Any]) -> None:
    core.configure(**options)
    fill(core)
    assert (got(core), got(core)) == (1, 0)
    core.engine.take_woken()
    assert core.engine.next_due_at() <= core.now + 250
    core.wait(249)
    assert woken(core) == set()
    core.wait(1)
    assert woken(core) == {("q", "default")}
    assert got(core) == 1


def test_who_was_held_back_by_bytes_is_woken_when_they_are_paid_back(core: Core) -> None:
    core.configure(byte_limit=Rate(150))
    large(core, 3)
    assert got(core) == 2  # 50 bytes too many
    assert got(core) == 0
    core.engine.take_woken()
    core.wait(339)
    assert woken(core) == set()
    core.wait(1)
    assert woken(core) == {("q", "default")}
    assert got(core) == 1


def test_nobody_is_woken_for_a_token_that_nobody_asked_for(core: Core) -> None:
    core.configure(rate_limit=Rate(4, burst=1), completed_retention_ms=3_600_000)
    fill(core)
    assert got(core) == 1
    core.engine.take_woken()
    core.wait(10_000)
    assert woken(core) == set()


def test_a_queue_that_is_gone_wakes_nobody(core: Core) -> None:
    core.configure(rate_limit=Rate(4, burst=1))
    fill(core)
    assert (got(core), got(core)) == (1, 0)
    core.ask(c.Obliterate("default", "q"), c.Cleaned)
    core.wait(1_000)
    assert woken(core) == set()
    assert core.engine.next_due_at() == NEVER


# At least so many.


@pytest.mark.parametrize(
    "options", [{"concurrency": 2}, {"rate_limit": Rate(2, per_ms=1_000)}, {"limits": ("n",)}], ids=str
)
def test_with_fewer_allowed_than_wanted_at_least_nothing_is_taken_or_spent(
    core: Core, options: dict[str, Any]
) -> None:
    share(core, concurrency=2)
    core.configure(**options)
    fill(core)
    assert got(core, 5, min_count=3) == 0
    assert got(core, 5, min_count=2) == 2


def test_who_wants_several_is_woken_when_all_may_go(core: Core) -> None:
    core.configure(rate_limit=Rate(10))
    fill(core)
    assert got(core) == 10
    assert got(core, 5, min_count=3) == 0
    core.engine.take_woken()
    core.wait(299)
    assert woken(core) == set()
    core.wait(1)
    assert woken(core) == {("q", "default")}
    assert got(core, 5, min_count=3) == 3


@pytest.mark.parametrize(
    "options", [{"partition_concurrency": 2}, {"partition_rate_limit": Rate(2)}], ids=str
)
def test_limits_of_partitions_count_for_at_least_so_many(core: Core, options: dict[str, Any]) -> None:
    core.configure(**options)
    fill(core)
    assert got(core, 5, min_count=3) == 0


def test_a_lane_never_has_several(core: Core) -> None:
    push_lane(core, b"1", b"2", b"3")
    assert got(core, 5, min_count=2) == 0


# Bad input.


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"rate_limit": Rate(0)}, "rate_limit"),
        ({"byte_limit": Rate(1, per_ms=-1)}, "byte_limit.per_ms"),
        ({"partition_rate_limit": Rate(1, burst=-1)}, "partition_rate_limit.burst"),
        ({"concurrency": -1}, "concurrency"),
        ({"partition_concurrency": -1}, "partition_concurrency"),
        ({"limits": ("a", "a")}, "limits"),
        ({"limits": ("",)}, "limits"),
        ({"limits": tuple(map(str, range(11)))}, "limits"),
    ],
)
def test_bad_options_change_nothing(core: Core, options: dict[str, Any], named: str) -> None:
    with pytest.raises(Invalid) as refused:
        core.configure(**options)
    assert refused.value.field == named
    assert not core.engine.seal(core.now)
