"""What a queue holds back until it is old enough, and what it gives up because it is too old."""

import pytest

from forebay.core.api import commands as c, queries
from forebay.core.errors import Invalid, NotFound
from forebay.core.state import Attributes, Backoff
from tests.core.harness import Core


def gated(**options: int) -> Core:
    """A core whose queue has these options, and a group that waits."""
    core = Core()
    command = c.Configure("default", "q", backoff=Backoff("none"), **options)  # type: ignore[arg-type]
    core.ask(command, queries.QueueFound)
    core.pop()
    return core


def rings_at(core: Core) -> int:
    """When the core wants to be told the time, if not for a sweep."""
    return min(shard.timers.tracks.next_at() for shard in core.engine.shards.values())


def counts(core: Core) -> queries.Counts:
    return core.ask(queries.GroupCounts("default", "q"), queries.Counts)


def test_a_message_is_held_back_until_it_is_old_enough() -> None:
    core = gated(delayed_processing_ms=100)
    first = core.push(b"1")
    core.commit()
    core.now += 40
    core.push(b"2")
    core.commit()
    assert core.state(first) == "delayed"
    core.now += 59
    assert core.popped(10) == []
    core.now += 1
    assert core.popped(10) == [b"1"]
    core.now += 40
    assert core.popped(10) == [b"2"]


def test_those_who_wait_are_told_when_a_message_is_old_enough() -> None:
    core = gated(delayed_processing_ms=100)
    core.push(b"1")
    core.engine.seal(core.now)
    assert core.popped() == []
    assert rings_at(core) == core.now + 100
    core.now += 100
    core.engine.tick(core.now)
    assert [wake[2] for wake in core.engine.take_woken()] == ["default"]
    assert core.popped() == [b"1"]


def test_a_retry_is_not_held_back_again() -> None:
    core = gated(delayed_processing_ms=100)
    core.push(b"1")
    core.now += 100
    core.nack(core.pop().lease)
    assert core.popped() == [b"1"]


def test_what_is_delayed_by_itself_waits_for_that_alone() -> None:
    core = gated(delayed_processing_ms=100)
    core.ask(c.Push("default", "q", [b"1"], attributes=Attributes(delay_ms=10)), c.Pushed)
    core.now += 10
    assert core.popped() == [b"1"]


def test_a_partition_is_withheld_while_messages_still_come_in() -> None:
    core = gated(window_buffer_ms=100)
    for payload in (b"1", b"2", b"3"):
        core.push(payload)
        core.commit()
        assert core.popped(10) == []
        core.now += 60
    core.push(b"x", partition="x")
    core.now += 39
    assert core.popped(10) == []
    core.now += 1
    assert core.popped(10) == [b"1", b"2", b"3"]
    assert rings_at(core) == core.now + 60
    core.now += 60
    assert core.popped(10) == [b"x"]


def test_a_partition_is_not_withheld_for_what_is_no_longer_waiting() -> None:
    core = gated(window_buffer_ms=100)
    core.push(b"old")
    core.commit()
    core.now += 100
    newer = core.push(b"newer")
    assert core.popped() == []
    core.ask(c.Cancel("default", [newer]), c.Settled)
    assert core.popped() == [b"old"]


@pytest.mark.parametrize("by", ["pop", "sweep", "a pop of its partition"])
def test_what_has_waited_too_long_is_evicted(by: str) -> None:
    core = gated(max_wait_ms=20_000)
    old = core.push(b"1", b"2")
    core.commit()
    core.now += 15_000
    young = core.push(b"3")
    core.commit()
    core.now += 5_000
    assert core.state(old) == "waiting"
    core.now += 1
    assert core.state(old) == "evicted"
    if by == "sweep":
        core.now += 10_000
        core.engine.tick(core.now)
        assert counts(core).waiting == 1
    else:
        assert core.popped(10, partition=None if by == "pop" else "default") == [b"3"]
    found = counts(core)
    assert (found.evicted, found.waiting + found.active, found.completed) == (2, 1, 0)
    core.restart()
    assert counts(core) == found
    assert [core.state(old), core.state(old + 1)] == ["evicted", "evicted"]
    assert core.state(young) in ("waiting", "active")


def test_what_was_evicted_stays_until_retention_takes_it() -> None:
    core = gated(max_wait_ms=1_000, completed_retention_ms=60_000)
    message = core.push(b"1")
    core.commit()
    core.now += 1_001
    assert core.popped() == []
    for _ in range(4):
        core.wait(10_000)
        core.commit()
        assert core.state(message) == "evicted"
    for _ in range(5):
        core.wait(10_000)
        core.commit()
    with pytest.raises(NotFound):
        core.state(message)


def test_eviction_also_meets_queues_that_nobody_pops() -> None:
    core = gated(max_wait_ms=5_000)
    core.push(b"1")
    core.commit()
    core.now += 30_000
    core.engine.tick(core.now)
    assert counts(core).evicted == 1


def test_waiting_counts_from_when_a_message_could_have_been_delivered() -> None:
    core = gated(max_wait_ms=50, delayed_processing_ms=100)
    core.push(b"1")
    core.now += 150
    assert core.popped() == [b"1"]
    core.push(b"2")
    core.now += 151
    assert core.popped() == []
    core.ask(c.Push("default", "q", [b"3"], attributes=Attributes(delay_ms=1_000)), c.Pushed)
    core.now += 1_050
    assert core.popped() == [b"3"]


def test_a_retry_that_nobody_takes_is_evicted_too() -> None:
    core = gated(max_wait_ms=50)
    message = core.push(b"1")
    core.nack(core.pop().lease)
    core.now += 51
    assert core.popped() == []
    assert core.state(message) == "evicted"


@pytest.mark.parametrize("count", [1, 10])
def test_eviction_leaves_what_is_not_in_line_alone(count: int) -> None:
    core = gated(max_wait_ms=300)
    core.push(b"1")
    core.commit()
    core.ask(c.Push("default", "q", [b"2"], attributes=Attributes(delay_ms=600)), c.Pushed)
    core.commit()
    core.now += 400
    assert core.popped(count) == []
    found = counts(core)
    assert (found.waiting, found.delayed, found.evicted) == (0, 1, 1)
    core.now += 200
    assert core.popped(count) == [b"2"]


def test_eviction_leaves_what_is_leased_alone() -> None:
    core = gated(max_wait_ms=50)
    core.push(b"1")
    lease = core.pop().lease
    core.now += 10_000
    core.engine.tick(core.now)
    assert core.ack(lease).count == 1


def test_a_pop_that_wants_several_does_not_count_what_is_held_back_or_too_old() -> None:
    core = gated(max_wait_ms=50, delayed_processing_ms=10)
    core.push(b"old")
    core.commit()
    core.now += 61
    core.push(b"1")
    core.commit()
    core.now += 10
    core.push(b"young")
    assert core.popped(10, min_count=2) == []
    assert core.popped(10) == [b"1"]


@pytest.mark.parametrize("option", ["delayed_processing_ms", "window_buffer_ms", "max_wait_ms"])
def test_what_is_no_duration_is_refused(option: str) -> None:
    core = Core()
    with pytest.raises(Invalid, match=option):
        core.engine.apply(c.Configure("default", "q", **{option: -1}), core.now)  # type: ignore[arg-type]
    assert not core.engine.seal(core.now)
