"""What a node promises to those who ask it, whatever its store does."""

import asyncio

import pytest
import uvloop

from forebay.broker.node import Node
from forebay.broker.waiters import Asker, Ticket
from forebay.core.api.commands import (
    Ack,
    Command,
    Configure,
    Move,
    Nack,
    Pause,
    Popped,
    Push,
    Pushed,
    Reply,
    Requeue,
    Resume,
)
from forebay.core.api.queries import Describe, ListQueues, LogSlice, QueueFound, QueuesFound, Read, State
from forebay.core.bounds import Limits
from forebay.core.delivery.pop import PLANS_MAX
from forebay.core.engine import Engine
from forebay.core.errors import Busy, Conflict, Damaged, ForebayError, NotFound
from forebay.core.records.keyspace import CONTROL
from forebay.core.state import Attributes
from forebay.core.words import DEFAULT
from tests.broker.conftest import Start
from tests.broker.loop import (
    BEGIN,
    SHARDS,
    BlockingStore,
    ObedientStore,
    Recorder,
    Rig,
    SlowStore,
    payloads,
    pop,
    push,
)

LEASE_MS = 30_000
"""The lease of a queue that was not configured."""


@pytest.fixture
def rig(start: Start) -> Rig:
    return start()


# Commits.


def test_an_answer_leaves_only_after_its_commit(start: Start) -> None:
    store = SlowStore()
    rig = start(store)
    ticket = rig.ask(push("a"))
    rig.loop.run_ready()
    assert rig.waits(ticket)
    store.let_go()
    rig.loop.await_thread()
    assert isinstance(rig.reply(ticket), Pushed)
    assert len(store.groups) == 1


def test_a_second_group_forms_while_the_first_commits_and_is_one_commit(start: Start) -> None:
    store = SlowStore()
    rig = start(store)
    first = rig.ask(push("a"))
    rig.loop.run_ready()
    second = []
    for payload in "bcd":
        second.append(rig.ask(push(payload, queue=payload)))
        rig.loop.run_ready()
    store.let_go()
    rig.loop.await_thread()
    assert list(rig.asker.answers) == [first]
    store.let_go()
    rig.loop.await_thread()
    assert list(rig.asker.answers) == [first, *second]
    assert len(store.groups) == 2


def test_an_answer_that_saw_what_is_not_kept_yet_waits_for_it(start: Start) -> None:
    store = SlowStore()
    rig = start(store)
    rig.ask(push("a"))
    rig.loop.run_ready()
    seen = rig.ask(ListQueues(DEFAULT))
    refused = rig.ask(Ack(DEFAULT, "0"))
    rig.loop.run_ready()
    assert rig.waits(seen)
    assert rig.waits(refused)
    store.let_go()
    rig.loop.await_thread()
    assert isinstance(rig.reply(seen), QueuesFound)
    assert isinstance(rig.reply(refused), Conflict)


def test_all_commands_of_one_turn_are_one_commit_and_one_flush(rig: Rig) -> None:
    for number in range(10):
        rig.ask(push("a", queue=f"q{number}"))
    lease = rig.ask(pop(queue="q0"))
    assert not rig.asker.answers
    rig.loop.run_ready()
    assert len(rig.store.groups) == 1
    assert len(rig.asker.answers) == 11
    assert rig.got(lease) == ["a"]
    assert rig.asker.flushes == 1


def test_a_question_that_changes_nothing_is_answered_without_a_commit(rig: Rig) -> None:
    rig.get(push("a"))
    rig.get(Describe(DEFAULT, "q"))
    assert len(rig.store.groups) == 1


def test_answers_go_to_those_who_asked_in_the_order_they_asked(rig: Rig) -> None:
    other = Recorder()
    mine = [rig.ask(push("a")), rig.ask(pop())]
    theirs = [rig.ask(push("b"), other), rig.ask(pop(), other)]
    rig.loop.run_ready()
    assert list(rig.asker.answers) == mine
    assert list(other.answers) == theirs
    assert payloads(other.answers[theirs[1]]) == ["b"]
    assert (rig.asker.flushes, other.flushes) == (1, 1)


def test_what_was_answered_is_there_after_a_restart(rig: Rig, start: Start) -> None:
    rig.get(push("a", "b"))
    lease = rig.lease(pop()).lease
    again = start(rig.store)
    assert payloads(again.get(pop(10))) == ["b"]
    assert not isinstance(again.get(Ack(DEFAULT, lease)), ForebayError)


# When a commit fails.


def test_a_failed_commit_answers_its_group_with_busy_and_leaves_nothing_behind(rig: Rig) -> None:
    rig.get(push("kept"))
    rig.store.commit_error = OSError("disk full")
    group = [
        rig.ask(push("lost")),
        rig.ask(push("lost", queue="new")),
        rig.ask(pop(10)),
        rig.ask(ListQueues(DEFAULT)),
    ]
    rig.loop.run_ready()
    assert [type(rig.reply(ticket)) for ticket in group] == [Busy] * 4
    assert rig.node.failures == 1
    assert rig.queues() == ["q"]
    assert payloads(rig.get(pop(10))) == ["kept"]
    assert isinstance(rig.get(push("works")), Pushed)
    assert payloads(rig.get(pop(10))) == ["works"]


def test_a_failed_commit_fails_its_group_and_everything_behind_it(start: Start) -> None:
    store = SlowStore()
    rig = start(store)
    first = rig.ask(push("lost"))
    rig.loop.run_ready()
    behind = [rig.ask(push("lost too")), rig.ask(push("lost too", queue="other")), rig.ask(pop(10))]
    rig.loop.run_ready()
    store.commit_error = OSError("disk full")
    store.let_go(10)
    rig.loop.await_thread()
    assert [type(rig.reply(ticket)) for ticket in [first, *behind]] == [Busy] * 4
    assert store.groups == []
    rig.await_reload()
    assert rig.queues() == []
    assert isinstance(rig.get(push("works")), Pushed)
    assert payloads(rig.get(pop(10))) == ["works"]


def test_a_commit_that_another_owner_fenced_fails_like_any_other(rig: Rig) -> None:
    rig.get(push("kept"))
    for shard in range(CONTROL, SHARDS):
        rig.store.claim(shard)
    assert isinstance(rig.get(push("lost")), Busy)
    assert isinstance(rig.get(push("works")), Pushed)
    assert payloads(rig.get(pop(10))) == ["kept", "works"]


def test_busy_is_answered_until_the_store_can_be_loaded_again(rig: Rig) -> None:
    rig.get(push("kept"))
    rig.store.commit_error = rig.store.claim_error = OSError("gone")
    assert isinstance(rig.get(push("lost")), Busy)
    for command in (push("lost"), pop(), ListQueues(DEFAULT)):
        assert isinstance(rig.get(command), Busy)
    rig.loop.advance(5_000)
    assert isinstance(rig.get(push("lost")), Busy)
    rig.store.claim_error = None
    rig.loop.advance(1_000)
    assert isinstance(rig.get(push("works")), Pushed)
    assert payloads(rig.get(pop(10))) == ["kept", "works"]


def test_a_bug_in_the_core_fails_the_forming_group_and_keeps_what_was_confirmed(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply = Engine.apply

    def broken(engine: Engine, command: Command, now: int) -> Reply:
        reply = apply(engine, command, now)
        if isinstance(command, Configure):
            raise RuntimeError("a bug, after the change")
        return reply

    monkeypatch.setattr(Engine, "apply", broken)
    rig = start()
    rig.get(push("kept"))
    group = [rig.ask(push("lost")), rig.ask(Configure(DEFAULT, "q", lease_ms=7)), rig.ask(push("lost"))]
    rig.loop.run_ready()
    assert [type(rig.reply(ticket)) for ticket in group] == [Busy] * 3
    found = rig.get(Describe(DEFAULT, "q"))
    assert isinstance(found, QueueFound)
    assert found.options.lease_ms == LEASE_MS
    assert payloads(rig.get(pop(10))) == ["kept"]


def test_a_bug_in_the_core_spares_the_group_that_is_being_kept(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply = Engine.apply

    def broken(engine: Engine, command: Command, now: int) -> Reply:
        if isinstance(command, Configure):
            raise RuntimeError("a bug")
        return apply(engine, command, now)

    monkeypatch.setattr(Engine, "apply", broken)
    store = SlowStore()
    rig = start(store)
    kept = rig.ask(push("kept"))
    rig.loop.run_ready()
    lost = [rig.ask(push("lost")), rig.ask(Configure(DEFAULT, "q"))]
    rig.loop.run_ready()
    store.let_go(10)
    rig.loop.await_thread()
    assert isinstance(rig.reply(kept), Pushed)
    assert [type(rig.reply(ticket)) for ticket in lost] == [Busy] * 2
    rig.await_reload()
    assert payloads(rig.get(pop(10))) == ["kept"]


def break_once(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The next call of an engine's method does its work and then raises."""
    working = getattr(Engine, name)

    def broken(engine: Engine, now: int) -> None:
        monkeypatch.undo()
        working(engine, now)
        raise RuntimeError("a bug, after the change")

    monkeypatch.setattr(Engine, name, broken)


def test_a_bug_in_what_is_due_is_not_kept(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.forgive()
    pushed = rig.get(push("a"))
    assert isinstance(pushed, Pushed)
    rig.lease(pop(lease_ms=100))
    break_once(monkeypatch, "tick")
    rig.loop.advance(100)
    found = rig.state(pushed.first)
    assert (found.state, found.failures) == ("waiting", 1)


def test_a_sweep_that_breaks_is_logged_and_the_next_one_does_its_work(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig.get(Configure(DEFAULT, "q", retention_ms=60_000))
    old = rig.pushed(push("old"))
    rig.loop.advance(55_000)
    new = rig.pushed(push("new"))
    for _ in range(3):
        break_once(monkeypatch, "tick")
        rig.loop.advance(10_000)
    assert "bug: what was due could not be done" in caplog.text
    rig.loop.advance(20_000)
    assert isinstance(rig.get(State(DEFAULT, old.first)), NotFound)
    assert rig.state(new.first).state == "waiting"


def test_a_bug_in_encoding_a_commit_fails_its_group(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.get(push("kept"))
    break_once(monkeypatch, "seal")
    group = [rig.ask(push("lost")), rig.ask(push("lost", queue="new"))]
    rig.loop.run_ready()
    assert [type(rig.reply(ticket)) for ticket in group] == [Busy] * 2
    assert rig.queues() == ["q"]
    assert payloads(rig.get(pop(10))) == ["kept"]


# Waiting.


def test_those_who_wait_are_served_first_come_first_served(rig: Rig) -> None:
    first, second, third = (rig.wait(pop(wait_ms=1_000)) for _ in range(3))
    rig.get(push("a"))
    assert rig.got(first) == ["a"]
    assert rig.waits(second)
    rig.get(push("b", "c"))
    assert (rig.got(second), rig.got(third)) == (["b"], ["c"])


def test_a_push_and_those_it_wakes_are_one_commit(rig: Rig) -> None:
    tickets = [rig.wait(pop(wait_ms=1_000)) for _ in range(3)]
    before = len(rig.store.groups)
    rig.get(push("a", "b", "c"))
    assert [rig.got(ticket) for ticket in tickets] == [["a"], ["b"], ["c"]]
    assert len(rig.store.groups) == before + 1


def test_a_nack_wakes_who_waits(rig: Rig) -> None:
    rig.forgive()
    rig.get(push("a"))
    lease = rig.lease(pop()).lease
    ticket = rig.wait(pop(wait_ms=1_000))
    rig.get(Nack(DEFAULT, lease))
    assert rig.got(ticket) == ["a"]


def test_a_lease_that_runs_out_wakes_who_waits_at_that_instant(rig: Rig) -> None:
    rig.forgive()
    rig.get(push("a"))
    rig.lease(pop(lease_ms=700))
    ticket = rig.wait(pop(wait_ms=10_000))
    rig.loop.advance(699)
    assert rig.waits(ticket)
    rig.loop.advance(1)
    assert rig.got(ticket) == ["a"]


def test_who_waits_gets_a_delayed_message_at_its_instant(rig: Rig) -> None:
    tickets = [rig.wait(pop(wait_ms=10_000)) for _ in range(2)]
    rig.get(Push(DEFAULT, "q", [b"later"], attributes=Attributes(delay_ms=700)))
    rig.get(Push(DEFAULT, "q", [b"sooner"], attributes=Attributes(delay_ms=300)))
    rig.loop.advance(299)
    assert rig.waits(tickets[0])
    rig.loop.advance(1)
    assert rig.got(tickets[0]) == ["sooner"]
    rig.loop.advance(399)
    assert rig.waits(tickets[1])
    rig.loop.advance(1)
    assert rig.got(tickets[1]) == ["later"]


def test_who_waits_gets_a_retry_when_its_backoff_is_over(rig: Rig) -> None:
    rig.get(push("a"))
    lease = rig.lease(pop()).lease
    ticket = rig.wait(pop(wait_ms=10_000))
    rig.get(Nack(DEFAULT, lease))
    rig.loop.advance(999)
    assert rig.waits(ticket)
    rig.loop.advance(1)
    assert rig.got(ticket) == ["a"]


def test_who_waits_gets_what_was_promoted_or_requeued(rig: Rig) -> None:
    pushed = rig.pushed(Push(DEFAULT, "q", [b"a"], attributes=Attributes(delay_ms=60_000, max_attempts=1)))
    first = rig.wait(pop(wait_ms=10_000))
    rig.get(Move(DEFAULT, [pushed.first], delay_ms=0))
    assert rig.got(first) == ["a"]
    rig.get(Nack(DEFAULT, ids=[pushed.first]))
    second = rig.wait(pop(wait_ms=10_000))
    rig.get(Requeue(DEFAULT, "q"))
    assert rig.got(second) == ["a"]


@pytest.mark.parametrize("partition", [None, DEFAULT])
def test_who_waits_for_a_paused_queue_is_served_when_it_is_resumed(rig: Rig, partition: str | None) -> None:
    rig.get(push("a", "b", "c"))
    rig.get(Pause(DEFAULT, "q"))
    one = rig.wait(pop(wait_ms=10_000, partition=partition))
    two = rig.wait(pop(2, min_count=2, wait_ms=10_000, partition=partition))
    rig.loop.advance(5_000)
    rig.get(Resume(DEFAULT, "q"))
    assert (rig.got(one), rig.got(two)) == (["a"], ["b", "c"])


def test_who_waits_for_a_paused_queue_is_served_when_its_pause_ends(rig: Rig) -> None:
    rig.get(push("a"))
    rig.get(Pause(DEFAULT, "q", rig.loop.now() + 500))
    ticket = rig.wait(pop(wait_ms=10_000))
    rig.loop.advance(499)
    assert rig.waits(ticket)
    rig.loop.advance(1)
    assert rig.got(ticket) == ["a"]


def test_who_waits_gets_what_could_not_be_sent_to_another(rig: Rig) -> None:
    rig.get(push("a"))
    unsent = rig.lease(pop())
    ticket = rig.wait(pop(wait_ms=10_000))
    rig.node.give_back(unsent)
    rig.loop.run_ready()
    assert rig.got(ticket) == ["a"]
    reply = rig.reply(ticket)
    assert isinstance(reply, Popped)
    assert [(each.deliveries, each.failures) for each in reply.deliveries] == [(1, 0)]


def test_a_pop_that_does_not_wait_is_answered_at_once(rig: Rig) -> None:
    assert payloads(rig.get(pop(wait_ms=0))) == []


def test_a_pop_of_a_new_group_goes_on_until_it_has_looked_at_everything(rig: Rig) -> None:
    for number in range(PLANS_MAX + 10):
        rig.get(Push(DEFAULT, "q", [b"1"], attributes=Attributes(delay_ms=9_000 + number % 2)))
    rig.get(Push(DEFAULT, "q", [b"urgent"], attributes=Attributes(priority=1)))
    assert payloads(rig.get(pop(group="late"))) == ["urgent"]


def test_nobody_waits_longer_than_it_said(rig: Rig) -> None:
    ticket = rig.wait(pop(wait_ms=250))
    rig.loop.advance(249)
    assert rig.waits(ticket)
    rig.loop.advance(1)
    assert rig.got(ticket) == []
    rig.get(push("a"))
    assert payloads(rig.get(pop())) == ["a"]


def test_a_pop_that_found_something_or_does_not_wait_is_answered_at_once(rig: Rig) -> None:
    assert payloads(rig.get(pop())) == []
    rig.get(push("a"))
    assert payloads(rig.get(pop(10, wait_ms=1_000))) == ["a"]


def test_who_wants_several_waits_until_there_are_enough(rig: Rig) -> None:
    ticket = rig.wait(pop(10, min_count=3, wait_ms=1_000))
    rig.get(push("a"))
    rig.get(push("b"))
    assert rig.waits(ticket)
    rig.get(push("c"))
    assert rig.got(ticket) == ["a", "b", "c"]


def test_who_wants_several_takes_what_there_is_at_the_end(rig: Rig) -> None:
    ticket = rig.wait(pop(10, min_count=3, wait_ms=1_000))
    rig.get(push("a", "b"))
    rig.loop.advance(999)
    assert rig.waits(ticket)
    rig.loop.advance(1)
    assert rig.got(ticket) == ["a", "b"]


def test_who_wants_several_does_not_hold_back_who_wants_one(rig: Rig) -> None:
    several = rig.wait(pop(3, min_count=3, wait_ms=1_000))
    two = rig.wait(pop(2, min_count=2, wait_ms=1_000))
    one = rig.wait(pop(wait_ms=1_000))
    rig.get(push("a"))
    assert rig.got(one) == ["a"]
    rig.get(push("b", "c"))
    assert rig.got(two) == ["b", "c"]
    assert rig.waits(several)


def test_who_came_first_is_served_first_even_if_it_wants_several(rig: Rig) -> None:
    several = rig.wait(pop(2, min_count=2, wait_ms=1_000))
    one = rig.wait(pop(wait_ms=1_000))
    rig.get(push("a", "b", "c"))
    assert (rig.got(several), rig.got(one)) == (["a", "b"], ["c"])


def test_who_waits_for_a_partition_gets_only_from_it(rig: Rig) -> None:
    x, y = rig.wait(pop(partition="x", wait_ms=1_000)), rig.wait(pop(partition="y", wait_ms=1_000))
    either = rig.wait(pop(wait_ms=1_000))
    rig.get(push("z", partition="z"))
    assert rig.got(either) == ["z"]
    rig.get(push("y1", "y2", partition="y"))
    assert rig.got(y) == ["y1"]
    assert rig.waits(x)
    rig.get(push("x", partition="x"))
    assert rig.got(x) == ["x"]


def test_one_push_serves_who_waits_in_every_group(rig: Rig) -> None:
    groups = [rig.wait(pop(group=name, wait_ms=1_000)) for name in ("default", "audit", "audit", "mail")]
    rig.get(push("a"))
    assert [rig.got(groups[at]) for at in (0, 1, 3)] == [["a"]] * 3
    assert rig.waits(groups[2])


def test_a_nack_wakes_only_its_own_group(rig: Rig) -> None:
    rig.forgive()
    rig.get(push("a"))
    leases = {name: rig.lease(pop(group=name)).lease for name in ("default", "audit")}
    waiting = {name: rig.wait(pop(group=name, wait_ms=1_000)) for name in ("default", "audit")}
    rig.get(Nack(DEFAULT, leases["audit"]))
    assert rig.got(waiting["audit"]) == ["a"]
    assert rig.waits(waiting["default"])


def test_who_waits_for_a_queue_makes_it(rig: Rig, start: Start) -> None:
    ticket = rig.wait(pop(queue="later", group="audit", wait_ms=1_000))
    found = start(rig.store).get(Describe(DEFAULT, "later"))
    assert isinstance(found, QueueFound)
    assert [each.name for each in found.groups] == ["audit"]
    assert rig.waits(ticket)


def test_who_waits_for_a_queue_nobody_has_pushed_to_is_woken_by_its_first_message(rig: Rig) -> None:
    elsewhere = rig.wait(pop(queue="elsewhere", wait_ms=1_000))
    ticket = rig.wait(pop(queue="later", wait_ms=1_000))
    rig.get(push("a", queue="later"))
    assert rig.got(ticket) == ["a"]
    assert rig.waits(elsewhere)


def test_an_asker_that_is_gone_takes_nothing(rig: Rig) -> None:
    gone = Recorder()
    for _ in range(2):
        rig.ask(pop(wait_ms=1_000), gone)
    mine = rig.wait(pop(wait_ms=1_000))
    rig.node.forget(gone)
    rig.get(push("a"))
    assert rig.got(mine) == ["a"]
    rig.loop.advance(2_000)
    assert gone.answers == {}


def test_an_asker_that_sends_no_more_gets_nothing_for_each_waiting_pop(rig: Rig) -> None:
    ending = Recorder()
    tickets = [rig.ask(pop(queue=name, wait_ms=1_000), ending) for name in ("q", "r")]
    mine = rig.wait(pop(wait_ms=1_000))
    rig.node.give_up(ending)
    rig.loop.run_ready()
    assert [payloads(ending.answers[ticket]) for ticket in tickets] == [[], []]
    rig.get(push("a"))
    assert rig.got(mine) == ["a"]
    rig.loop.advance(2_000)
    assert len(ending.answers) == 2


def test_who_waits_waits_on_after_a_failed_commit(rig: Rig) -> None:
    ticket = rig.wait(pop(wait_ms=1_000))
    rig.store.commit_error = OSError("disk full")
    assert isinstance(rig.get(push("lost", queue="other")), Busy)
    assert rig.waits(ticket)
    rig.get(push("a"))
    assert rig.got(ticket) == ["a"]


def test_who_made_a_queue_by_waiting_waits_on_when_that_could_not_be_kept(rig: Rig) -> None:
    rig.store.commit_error = OSError("disk full")
    ticket = rig.wait(pop(wait_ms=1_000))
    assert rig.queues() == ["q"]
    rig.get(push("a"))
    assert rig.got(ticket) == ["a"]


def test_who_was_woken_by_a_push_that_could_not_be_kept_is_answered_with_busy(rig: Rig) -> None:
    ticket = rig.wait(pop(wait_ms=1_000))
    rig.store.commit_error = OSError("disk full")
    assert isinstance(rig.get(push("lost")), Busy)
    assert isinstance(rig.reply(ticket), Busy)


# Bodies that are not in memory.

STORES = pytest.mark.parametrize("kind", [ObedientStore, BlockingStore])


@STORES
def test_after_a_restart_payloads_come_from_the_store(start: Start, kind: type[ObedientStore]) -> None:
    rig = start(kind())
    rig.get(push("a", "b", "c"))
    rig.get(push("d"))
    again = start(rig.store)
    assert payloads(again.get(pop(2))) == ["a", "b"]
    assert payloads(again.get(pop(10))) == ["c", "d"]


@STORES
def test_after_a_failed_commit_payloads_come_from_the_store(start: Start, kind: type[ObedientStore]) -> None:
    rig = start(kind())
    rig.get(push("a"))
    rig.store.commit_error = OSError("disk full")
    assert isinstance(rig.get(push("lost")), Busy)
    assert payloads(rig.get(pop(10))) == ["a"]


@STORES
def test_after_a_restart_the_log_is_read_from_the_store(start: Start, kind: type[ObedientStore]) -> None:
    rig = start(kind())
    rig.get(push("a", "b"))
    found = start(rig.store).get(Read(DEFAULT, "q", 1))
    assert isinstance(found, LogSlice)
    assert [bytes(payload) for run in found.runs for payload in run.payloads()] == [b"b"]


@STORES
def test_a_body_that_can_not_be_read_is_answered_with_busy_and_was_not_delivered(
    start: Start, kind: type[ObedientStore]
) -> None:
    rig = start(kind())
    rig.get(push("a"))
    again = start(rig.store)
    rig.store.bodies_error = OSError("unreadable")
    assert isinstance(again.get(pop(lease_ms=100)), Busy)
    rig.store.bodies_error = None
    assert payloads(again.get(pop())) == ["a"]


@STORES
def test_a_body_that_is_gone_is_damage(start: Start, kind: type[ObedientStore]) -> None:
    rig = start(kind())
    rig.get(push("a"))
    again = start(rig.store)
    rig.store.bodies_lost = True
    assert isinstance(again.get(pop()), Damaged)


# Time.


def test_a_lease_ends_at_its_instant_without_anyone_asking(rig: Rig) -> None:
    rig.forgive()
    pushed = rig.get(push("a"))
    assert isinstance(pushed, Pushed)
    rig.lease(pop(lease_ms=700))
    before = len(rig.store.groups)
    rig.loop.advance(699)
    assert len(rig.store.groups) == before
    assert rig.state(pushed.first).state == "active"
    rig.loop.advance(1)
    assert len(rig.store.groups) == before + 1
    found = rig.state(pushed.first)
    assert (found.state, found.failures, found.error) == ("waiting", 1, "lease expired")


def test_leases_end_in_the_order_of_their_instants(rig: Rig) -> None:
    rig.forgive()
    rig.get(push("a", "b", "c"))
    for lease_ms in (300, 100, 200):
        rig.lease(pop(lease_ms=lease_ms))
    tickets = [rig.wait(pop(wait_ms=10_000)) for _ in range(3)]
    rig.loop.advance(1_000)
    assert [rig.got(ticket) for ticket in tickets] == [["b"], ["c"], ["a"]]


def test_a_lease_of_many_hours_ends_at_its_instant(rig: Rig) -> None:
    rig.forgive()
    rig.get(push("a"))
    hours = 5 * 3_600_000
    rig.lease(pop(lease_ms=hours))
    rig.loop.advance(hours - 1)
    ticket = rig.wait(pop(wait_ms=1_000))
    rig.loop.advance(1)
    assert rig.got(ticket) == ["a"]


def test_a_lease_ends_at_its_instant_after_a_restart(rig: Rig, start: Start) -> None:
    rig.forgive()
    rig.get(push("a"))
    rig.lease(pop(lease_ms=700))
    again = start(rig.store, at_ms=200)
    ticket = again.wait(pop(wait_ms=10_000))
    again.loop.advance(699)
    assert again.waits(ticket)
    again.loop.advance(1)
    assert again.got(ticket) == ["a"]


# The end.


def test_drain_answers_who_waits_and_keeps_what_has_formed(rig: Rig, start: Start) -> None:
    waiting = rig.wait(pop(queue="empty", wait_ms=60_000))
    several = rig.wait(pop(5, min_count=5, wait_ms=60_000))
    pushed = rig.ask(push("a", "b"))
    rig.loop.run(rig.node.drain())
    assert rig.got(waiting) == []
    assert rig.got(several) == ["a", "b"]
    assert isinstance(rig.reply(pushed), Pushed)
    assert start(rig.store).queues() == ["empty", "q"]
    rig.loop.advance(60_000)
    assert len(rig.asker.answers) == 3


def test_drain_waits_for_the_commit_under_way_and_the_one_behind_it(start: Start) -> None:
    store = SlowStore()
    rig = start(store)
    tickets = [rig.ask(push("a"))]
    rig.loop.run_ready()
    tickets.append(rig.ask(push("b")))
    store.let_go(2)
    rig.loop.run(rig.node.drain())
    assert [type(rig.reply(ticket)) for ticket in tickets] == [Pushed] * 2
    assert len(store.groups) == 2


def test_drain_without_a_store_answers_who_waits_with_busy_once(rig: Rig) -> None:
    ticket = rig.wait(pop(wait_ms=60_000))
    rig.store.commit_error = rig.store.claim_error = OSError("gone")
    assert isinstance(rig.get(push("lost", queue="other")), Busy)
    rig.loop.run(rig.node.drain())
    rig.loop.run_ready()
    assert isinstance(rig.reply(ticket), Busy)


def test_nobody_begins_to_wait_once_the_node_drains(rig: Rig) -> None:
    rig.loop.run(rig.node.drain())
    assert payloads(rig.get(pop(wait_ms=1_000))) == []


def test_drain_of_an_idle_node_ends_at_once(rig: Rig) -> None:
    rig.loop.run(rig.node.drain())
    assert rig.store.groups == []


# On a real event loop.


class Futures:
    """An asker whose tickets are futures."""

    def answered(self, ticket: Ticket, reply: Reply | ForebayError) -> None:
        assert isinstance(ticket, asyncio.Future)
        ticket.set_result(reply)

    def flush(self) -> None:
        pass


def test_a_node_runs_on_a_real_event_loop_with_a_store_in_a_thread() -> None:
    asker: Asker = Futures()

    async def life() -> list[str]:
        loop = asyncio.get_running_loop()
        node = Node(
            BlockingStore(),
            loop,
            lambda: BEGIN + int(loop.time() * 1000),
            Limits(pop_creates_queues=True),
            shards=SHARDS,
        )

        def ask(command: Command) -> "asyncio.Future[Reply | ForebayError]":
            future: asyncio.Future[Reply | ForebayError] = loop.create_future()
            node.ask(asker, future, command)
            return future

        waiting = ask(pop(2, min_count=2, wait_ms=60_000))
        await asyncio.gather(ask(push("a")), ask(push("b")))
        got = payloads(await waiting)
        await node.drain()
        node.close()
        return got

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(life()) == ["a", "b"]
