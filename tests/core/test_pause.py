"""Pause: nothing of a queue is delivered, until it is resumed or a time has come."""

import pytest

from forebay.core.api import commands as c, queries
from forebay.core.bounds import NEVER
from forebay.core.errors import Invalid, NotFound
from tests.core.harness import NOW, Core


def pause(core: Core, until: int | None = None) -> queries.Paused:
    return core.ask(c.Pause("default", "q", until), queries.Paused)


def resume(core: Core) -> queries.Paused:
    return core.ask(c.Resume("default", "q"), queries.Paused)


def paused(core: Core) -> queries.Paused:
    return core.ask(queries.Describe("default", "q"), queries.QueueFound).paused


def test_a_paused_queue_takes_messages_and_gives_none() -> None:
    core = Core()
    core.push(b"1")
    assert pause(core) == queries.Paused(True)
    core.push(b"2", priority=3)
    assert core.popped(9) == core.popped(9, partition="default") == []
    assert core.engine.deliverable(c.Pop("default", "q")) == 0
    assert resume(core) == queries.Paused(False)
    assert core.popped(9) == [b"2", b"1"]


def test_a_pause_is_for_one_queue() -> None:
    core = Core()
    core.push(b"1", queue="other")
    core.push(b"2")
    pause(core)
    assert core.popped(queue="other") == [b"1"]


def test_what_was_delivered_before_a_pause_is_settled_as_ever() -> None:
    core = Core()
    core.forgive()
    first = core.push(b"1", b"2", b"3")
    one, two, three = (core.pop(lease_ms=100).lease for _ in range(3))
    pause(core)
    core.ack(one)
    core.nack(two)
    core.ask(c.Extend("default", three, lease_ms=200), c.Extended)
    core.wait(200)
    assert [core.state(first + at) for at in range(3)] == ["completed", "waiting", "waiting"]
    assert core.popped(9) == []


def test_a_pause_ends_at_its_time() -> None:
    core = Core()
    core.push(b"1")
    assert pause(core, NOW + 500) == queries.Paused(True, NOW + 500)
    assert core.engine.next_due_at() <= NOW + 500
    core.wait(499)
    assert core.popped() == []
    core.wait(1)
    assert paused(core) == queries.Paused(False)
    assert core.popped() == [b"1"]


def test_the_last_word_counts() -> None:
    core = Core()
    core.push(b"1")
    pause(core, NOW + 100)
    pause(core, NOW + 300)
    core.wait(100)
    assert paused(core) == queries.Paused(True, NOW + 300)
    pause(core)
    core.wait(300)
    assert paused(core) == queries.Paused(True)
    resume(core)
    pause(core, core.now + 50)
    resume(core)
    assert core.popped() == [b"1"]


def test_a_pause_outlasts_a_restart() -> None:
    core = Core()
    core.push(b"1")
    pause(core)
    core.restart()
    assert (paused(core), core.popped()) == (queries.Paused(True), [])
    pause(core, core.now + 100)
    core.restart(down_ms=99)
    assert core.popped() == []
    core.wait(1)
    assert core.popped() == [b"1"]


def test_a_pause_that_ended_while_nobody_was_there_is_over() -> None:
    core = Core()
    core.push(b"1")
    pause(core, NOW + 100)
    core.restart(down_ms=5_000)
    assert (paused(core), core.popped()) == (queries.Paused(False), [b"1"])


@pytest.mark.parametrize("by", ["command", "time"])
def test_those_who_wait_are_told_when_a_pause_ends(by: str) -> None:
    core = Core()
    core.push(b"1")
    core.pop(group="g", start="new")
    pause(core, NOW + 100 if by == "time" else None)
    core.commit()
    assert core.engine.take_woken() == []
    if by == "time":
        core.wait(100)
    else:
        resume(core)
    (wake,) = core.engine.take_woken()
    assert (wake[0].name, wake[1:]) == ("q", (None, None))


def test_a_delay_that_passes_during_a_pause_is_due_when_it_ends() -> None:
    core = Core()
    core.push(b"1", delay_ms=50)
    pause(core)
    core.wait(100)
    assert core.popped() == []
    resume(core)
    assert core.popped() == [b"1"]


def test_a_queue_can_be_paused_before_there_is_anything_in_it() -> None:
    core = Core()
    core.configure()
    assert pause(core) == queries.Paused(True)
    core.push(b"1")
    assert core.popped() == []
    (found,) = core.ask(queries.ListQueues("default"), queries.QueuesFound).queues
    assert (found.paused, found.counts.waiting) == (True, 1)


def test_a_missing_queue_is_not_made_by_pausing_it() -> None:
    core = Core()
    core.push(b"1", queue="emails")
    with pytest.raises(NotFound, match=r"there is no queue emials; is emails meant\?"):
        core.engine.apply(c.Pause("default", "emials"), core.now)
    assert set(core.engine.queues) == {("default", "emails")}


@pytest.mark.parametrize("until", [NOW, NOW - 1, 0, -5, NEVER])
def test_a_pause_until_what_is_not_ahead_is_refused_and_nothing_changes(until: int) -> None:
    core = Core()
    with pytest.raises(Invalid):
        pause(core, until)
    assert core.engine.seal(core.now) == []
    assert core.engine.queues == {}


def test_a_queue_that_is_not_there_can_not_be_resumed() -> None:
    core = Core()
    with pytest.raises(NotFound):
        resume(core)
    assert core.engine.seal(core.now) == []
