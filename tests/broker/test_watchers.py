"""Those who wait for the end of a message: when they are answered, and with what."""

import pytest

from forebay.core.api.commands import (
    Ack,
    Cancel,
    Clean,
    Command,
    Configure,
    Discard,
    GroupDelete,
    Nack,
    Obliterate,
    Pop,
    Push,
    Pushed,
    Requeue,
    Seek,
    Update,
)
from forebay.core.api.queries import Await, NotesFound
from forebay.core.errors import Busy, NotFound
from forebay.core.shard.timers import SWEEP_MS
from forebay.core.state import PLAIN, Attributes
from forebay.core.words import DEFAULT
from tests.broker.conftest import Start
from tests.broker.loop import BlockingStore, ObedientStore, Recorder, Rig, SlowStore, pop, push

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


@pytest.fixture
def rig(start: Start) -> Rig:
    return start()


def pushed(rig: Rig, attributes: Attributes = PLAIN) -> int:
    """The id of a message."""
    reply = rig.get(Push(DEFAULT, "q", [b"1"], attributes=attributes))
    assert isinstance(reply, Pushed)
    return reply.first


def watch(
    rig: Rig, message: int, wait_ms: int = HOUR_MS, group: str = DEFAULT, asker: Recorder | None = None
) -> int:
    """Wait for the end of a message; the ticket."""
    ticket = rig.ask(Await(DEFAULT, message, wait_ms, group), asker)
    rig.loop.run_ready()
    assert ticket not in (asker or rig.asker).answers
    return ticket


def found(rig: Rig, ticket: int) -> NotesFound:
    reply = rig.reply(ticket)
    assert isinstance(reply, NotesFound), reply
    return reply


def ended(rig: Rig, ticket: int) -> str:
    """The state that somebody was told as the end of a message."""
    reply = found(rig, ticket)
    assert reply.is_over
    return reply.state.state


def result(rig: Rig, ticket: int) -> list[bytes]:
    (results,) = found(rig, ticket).notes
    return [bytes(payload) for note in results for payload in note.payloads()]


# The end.


def test_who_waits_is_told_the_result_with_the_commit_of_the_ack(start: Start) -> None:
    store = SlowStore()
    rig = start(store)
    store.let_go(3)
    message = pushed(rig)
    rig.get(pop())
    ticket = watch(rig, message)
    store.shut()
    acked = rig.ask(Ack(DEFAULT, ids=[message], results=[b"42"]))
    rig.loop.run_ready()
    assert rig.waits(ticket)
    assert rig.waits(acked)
    store.let_go()
    rig.loop.await_thread()
    assert (ended(rig, ticket), result(rig, ticket)) == ("completed", [b"42"])
    assert not rig.waits(acked)


def test_who_asks_after_the_end_is_told_at_once(rig: Rig) -> None:
    message = pushed(rig)
    rig.get(pop())
    rig.get(Ack(DEFAULT, ids=[message], results=[b"42"]))
    reply = rig.get(Await(DEFAULT, message, HOUR_MS))
    assert isinstance(reply, NotesFound)
    assert reply.is_over
    assert rig.loop.timers() <= 1


@pytest.mark.parametrize(
    ("command", "state"),
    [
        (Cancel(DEFAULT, []), "cancelled"),
        (Discard(DEFAULT, []), "dead"),
        (Clean(DEFAULT, "q", ("waiting",)), "cancelled"),
    ],
)
def test_who_waits_is_told_of_an_end_that_is_no_ack(rig: Rig, command: Command, state: str) -> None:
    message = pushed(rig)
    ticket = watch(rig, message)
    if isinstance(command, Cancel | Discard):
        command.ids = [message]
    rig.get(command)
    assert ended(rig, ticket) == state
    assert rig.node._watchers.count == 0


def test_who_waits_is_told_of_a_death_and_not_of_a_failure_before(rig: Rig) -> None:
    message = pushed(rig, Attributes(max_attempts=2))
    ticket = watch(rig, message)
    rig.get(pop())
    rig.get(Nack(DEFAULT, ids=[message], error="first", delay_ms=0))
    assert rig.waits(ticket)
    rig.get(pop())
    rig.get(Nack(DEFAULT, ids=[message], error="second"))
    assert ended(rig, ticket) == "dead"
    assert found(rig, ticket).state.error == "second"


def test_a_lease_that_runs_out_once_too_often_is_an_end(rig: Rig) -> None:
    message = pushed(rig, Attributes(max_attempts=1))
    rig.get(pop(lease_ms=1_000))
    ticket = watch(rig, message)
    rig.loop.advance(999)
    assert rig.waits(ticket)
    rig.loop.advance(1)
    assert ended(rig, ticket) == "dead"


@pytest.mark.parametrize("popped", [False, True])
def test_a_message_that_expires_is_over_at_that_instant(rig: Rig, popped: bool) -> None:
    if popped:
        rig.get(pop())
    message = pushed(rig, Attributes(ttl_ms=5_000, delay_ms=10 if popped else 0))
    tickets = [watch(rig, message), watch(rig, message)]
    rig.loop.advance(4_999)
    assert rig.waits(tickets[0])
    rig.loop.advance(1)
    assert [ended(rig, ticket) for ticket in tickets] == ["expired", "expired"]
    assert rig.node._watchers.count == 0


def test_a_message_that_is_held_past_its_time_to_live_is_not_over(rig: Rig) -> None:
    message = pushed(rig, Attributes(ttl_ms=1_000))
    lease = rig.lease(pop(lease_ms=MINUTE_MS)).lease
    ticket = watch(rig, message)
    rig.loop.advance(5_000)
    assert rig.waits(ticket)
    rig.get(Ack(DEFAULT, lease))
    assert ended(rig, ticket) == "completed"


def test_a_message_that_was_delivered_while_watched_and_comes_back_expires(rig: Rig) -> None:
    message = pushed(rig, Attributes(ttl_ms=2_000, max_attempts=0))
    ticket = watch(rig, message)
    lease = rig.lease(pop(lease_ms=MINUTE_MS)).lease
    rig.loop.advance(5_000)
    assert rig.waits(ticket)
    rig.get(Nack(DEFAULT, lease))
    assert ended(rig, ticket) == "expired"


def test_a_message_that_is_dropped_is_not_found(rig: Rig) -> None:
    rig.get(Configure(DEFAULT, "q", retention_ms=MINUTE_MS))
    message = pushed(rig)
    ticket = watch(rig, message)
    rig.loop.advance(MINUTE_MS + 2 * SWEEP_MS)
    assert isinstance(rig.reply(ticket), NotFound)


def test_a_queue_that_is_obliterated_is_the_end_of_all_its_messages(rig: Rig) -> None:
    tickets = [watch(rig, pushed(rig)) for _ in range(3)]
    other = watch(rig, rig.pushed(push("1", queue="other")).first)
    rig.get(Obliterate(DEFAULT, "q"))
    assert [isinstance(rig.reply(ticket), NotFound) for ticket in tickets] == [True] * 3
    assert rig.waits(other)
    assert rig.node._watchers.count == 1


# Not yet.


def test_nobody_waits_longer_than_it_said(rig: Rig) -> None:
    message = pushed(rig)
    short, long = watch(rig, message, 1_000), watch(rig, message, 2_000)
    rig.loop.advance(999)
    assert rig.waits(short)
    rig.loop.advance(1)
    reply = found(rig, short)
    assert (reply.is_over, reply.state.state) == (False, "waiting")
    assert rig.waits(long)
    rig.loop.advance(1_000)
    assert not found(rig, long).is_over
    assert rig.node._watchers.count == 0


def test_who_does_not_wait_is_answered_at_once(rig: Rig) -> None:
    message = pushed(rig)
    reply = rig.get(Await(DEFAULT, message, 0))
    assert isinstance(reply, NotesFound)
    assert not reply.is_over


def test_a_message_that_is_not_there_is_not_waited_for(rig: Rig) -> None:
    message = pushed(rig)
    assert isinstance(rig.get(Await(DEFAULT, message + 1, HOUR_MS)), NotFound)
    assert isinstance(rig.get(Await("evil", message, HOUR_MS)), NotFound)


def test_who_waits_for_one_group_is_not_answered_by_another(rig: Rig) -> None:
    message = pushed(rig)
    mine, audit = watch(rig, message), watch(rig, message, group="audit")
    rig.get(pop())
    rig.get(Ack(DEFAULT, ids=[message]))
    assert ended(rig, mine) == "completed"
    assert rig.waits(audit)
    rig.get(pop(group="audit"))
    rig.get(Ack(DEFAULT, ids=[message], group="audit"))
    assert ended(rig, audit) == "completed"


def test_the_end_of_one_message_is_not_that_of_its_neighbours(rig: Rig) -> None:
    first = rig.pushed(push(*"abc")).first
    tickets = [watch(rig, first + at) for at in range(3)]
    rig.get(pop(3))
    rig.get(Ack(DEFAULT, ids=[first + 1]))
    assert [rig.waits(ticket) for ticket in tickets] == [True, False, True]
    rig.get(Ack(DEFAULT, ids=[first, first + 2]))
    assert [ended(rig, ticket) for ticket in tickets] == ["completed"] * 3


def test_everyone_who_waits_for_a_message_is_told_in_the_order_they_came(rig: Rig) -> None:
    message = pushed(rig)
    other = Recorder()
    mine = [watch(rig, message) for _ in range(2)]
    theirs = watch(rig, message, asker=other)
    rig.get(pop())
    rig.get(Ack(DEFAULT, ids=[message]))
    assert [each for each in rig.asker.answers if each in mine] == mine
    assert isinstance(other.answers[theirs], NotesFound)


def test_a_dead_letter_that_is_delivered_again_can_be_waited_for_again(rig: Rig) -> None:
    message = pushed(rig, Attributes(max_attempts=1))
    rig.get(pop())
    rig.get(Nack(DEFAULT, ids=[message]))
    rig.get(Requeue(DEFAULT, "q", ids=[message]))
    ticket = watch(rig, message)
    rig.get(pop())
    rig.get(Ack(DEFAULT, ids=[message]))
    assert ended(rig, ticket) == "completed"


def test_who_waits_for_a_message_waits_for_what_took_its_place(rig: Rig) -> None:
    message = pushed(rig)
    ticket = watch(rig, message)
    rig.get(Update(DEFAULT, message, b"2"))
    assert rig.waits(ticket)
    late = watch(rig, message)
    rig.get(Update(DEFAULT, message, b"3"))
    rig.get(pop())
    assert rig.waits(ticket)
    rig.get(Ack(DEFAULT, ids=[message], results=[b"42"]))
    assert (ended(rig, ticket), result(rig, ticket)) == ("completed", [b"42"])
    assert (ended(rig, late), found(rig, late).state.id) == ("completed", message)


def test_a_group_that_seeks_past_a_message_is_done_with_it(rig: Rig) -> None:
    message = pushed(rig)
    rig.get(pop(lease_ms=HOUR_MS))
    ticket = watch(rig, message)
    rig.get(Seek(DEFAULT, "q", DEFAULT, "all"))
    assert rig.waits(ticket)
    rig.get(Seek(DEFAULT, "q", DEFAULT, "new"))
    assert ended(rig, ticket) == "completed"


# Those who leave, and nodes that stop.


def test_an_asker_that_is_gone_is_not_answered_and_others_are(rig: Rig) -> None:
    message = pushed(rig)
    gone = Recorder()
    watch(rig, message, asker=gone)
    ticket = watch(rig, message)
    rig.node.forget(gone)
    assert rig.node._watchers.count == 1
    rig.get(Cancel(DEFAULT, [message]))
    assert ended(rig, ticket) == "cancelled"
    rig.loop.advance(2 * HOUR_MS)
    assert gone.answers == {}


def test_nothing_is_left_of_an_asker_that_is_gone(rig: Rig) -> None:
    message = pushed(rig)
    timers = rig.loop.timers()
    gone = Recorder()
    for _ in range(3):
        watch(rig, message, asker=gone)
    rig.node.forget(gone)
    assert (rig.node._watchers.count, rig.loop.timers()) == (0, timers)
    assert all(not shard.watched.by_partition for shard in rig.node._engine.shards.values())


def test_an_asker_that_sends_no_more_is_told_how_far_it_is(rig: Rig) -> None:
    message = pushed(rig)
    done = Recorder()
    ticket, other = watch(rig, message, asker=done), watch(rig, message)
    rig.node.give_up(done)
    rig.loop.run_ready()
    reply = done.answers[ticket]
    assert isinstance(reply, NotesFound)
    assert not reply.is_over
    assert rig.waits(other)


def test_a_node_that_stops_answers_everyone(rig: Rig) -> None:
    message = pushed(rig)
    ticket = watch(rig, message)
    rig.loop.run(rig.node.drain())
    assert not found(rig, ticket).is_over
    reply = rig.get(Await(DEFAULT, message, HOUR_MS))
    assert isinstance(reply, NotesFound)


def test_who_waits_waits_on_after_a_failed_commit(rig: Rig) -> None:
    message = pushed(rig)
    ticket = watch(rig, message)
    rig.store.commit_error = OSError("disk full")
    assert isinstance(rig.get(push("2")), Busy)
    rig.loop.run_ready()
    assert rig.waits(ticket)
    rig.get(pop())
    rig.get(Ack(DEFAULT, ids=[message], results=[b"42"]))
    assert (ended(rig, ticket), result(rig, ticket)) == ("completed", [b"42"])


def test_who_was_to_be_told_of_an_end_that_could_not_be_kept_is_told_busy(rig: Rig) -> None:
    message = pushed(rig)
    ticket = watch(rig, message)
    rig.store.commit_error = OSError("disk full")
    assert isinstance(rig.get(Cancel(DEFAULT, [message])), Busy)
    rig.loop.run_ready()
    assert isinstance(rig.reply(ticket), Busy)
    assert rig.state(message).state == "waiting"


def test_a_wait_that_ends_during_an_outage_is_answered(rig: Rig) -> None:
    message = pushed(rig)
    ticket = watch(rig, message, 5_000)
    rig.store.commit_error = OSError("disk full")
    rig.store.claim_error = OSError("disk full")
    rig.get(push("2"))
    rig.loop.advance(6_000)
    assert isinstance(rig.reply(ticket), Busy)
    rig.store.claim_error = None
    rig.loop.advance(10_000)
    assert rig.state(message).state == "waiting"


def test_a_wait_goes_on_over_an_outage_and_ends_in_time(rig: Rig) -> None:
    message = pushed(rig)
    ticket = watch(rig, message, MINUTE_MS)
    rig.store.commit_error = OSError("disk full")
    rig.get(push("2"))
    rig.loop.advance(MINUTE_MS - 1)
    assert rig.waits(ticket)
    rig.loop.advance(1)
    assert not found(rig, ticket).is_over


def test_a_bug_reloads_the_node_and_who_waits_waits_on(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    message = pushed(rig)
    ticket = watch(rig, message)
    with monkeypatch.context() as patch:
        patch.setattr(rig.node._engine, "seal", lambda *_: 1 // 0)
        assert isinstance(rig.get(push("2")), Busy)
    rig.loop.run_ready()
    assert rig.waits(ticket)
    rig.get(Cancel(DEFAULT, [message]))
    assert ended(rig, ticket) == "cancelled"


@pytest.mark.parametrize("kind", [ObedientStore, BlockingStore])
def test_a_result_is_read_from_the_store_after_a_restart(start: Start, kind: type[ObedientStore]) -> None:
    store = kind()
    rig = start(store)
    message = pushed(rig)
    rig.get(pop())
    rig.get(Ack(DEFAULT, ids=[message], results=[b"42"]))
    rig.close()
    again = start(store)
    ticket = again.ask(Await(DEFAULT, message, HOUR_MS))
    again.loop.run_ready()
    while again.waits(ticket):
        again.loop.await_thread()
    assert result(again, ticket) == [b"42"]


# Pops that wait in a queue that goes.


def test_a_pop_that_waits_goes_on_waiting_when_its_queue_is_obliterated(rig: Rig) -> None:
    rig.get(push("old", queue="q"))
    rig.get(pop(lease_ms=HOUR_MS))
    ticket = rig.wait(pop(wait_ms=HOUR_MS))
    rig.get(Obliterate(DEFAULT, "q"))
    assert rig.waits(ticket)
    rig.loop.advance(MINUTE_MS)
    rig.get(push("new"))
    assert rig.got(ticket) == ["new"]


def test_a_pop_that_waits_in_a_queue_that_is_gone_is_answered_in_time(rig: Rig) -> None:
    ticket = rig.wait(pop(wait_ms=1_000))
    rig.get(Obliterate(DEFAULT, "q"))
    rig.loop.advance(1_000)
    assert rig.got(ticket) == []
    assert rig.queues() == []


def test_who_waits_for_a_group_that_is_deleted_is_told_and_gets_nothing_it_has_settled(rig: Rig) -> None:
    rig.get(push("1"))
    rig.get(Ack(DEFAULT, rig.lease(Pop(DEFAULT, "q", "g")).lease))
    waiting = [Pop(DEFAULT, "q", "g", wait_ms=HOUR_MS), Pop(DEFAULT, "q", "g", 5, 5, wait_ms=HOUR_MS)]
    tickets = [rig.wait(each) for each in waiting]
    other = rig.wait(Pop(DEFAULT, "q", "h", 2, 2, wait_ms=HOUR_MS))
    rig.get(GroupDelete(DEFAULT, "q", "g"))
    assert [type(rig.reply(ticket)) for ticket in tickets] == [NotFound, NotFound]
    assert rig.waits(other)
    rig.get(push("2"))
    assert rig.got(other) == ["1", "2"]
    assert list(rig.node.engine.queues[DEFAULT, "q"].groups) == ["h"]


def test_a_pop_that_waits_for_a_partition_is_served_when_that_is_made_anew(rig: Rig) -> None:
    rig.get(Configure(DEFAULT, "q", completed_retention_ms=0, partition_retention_ms=1))
    rig.get(push("1", partition="x"))
    rig.get(Ack(DEFAULT, rig.lease(pop()).lease))
    tickets = [rig.wait(Pop(DEFAULT, "q", partition="x", wait_ms=HOUR_MS)), rig.wait(pop(wait_ms=HOUR_MS))]
    rig.loop.advance(5 * SWEEP_MS)
    assert rig.node._engine.queues[DEFAULT, "q"].partitions == {}
    rig.get(push("2", "3", partition="x"))
    assert [rig.got(ticket) for ticket in tickets] == [["2"], ["3"]]


def test_a_pop_that_waits_is_woken_by_a_seek(rig: Rig) -> None:
    rig.get(push("1"))
    rig.get(Ack(DEFAULT, rig.lease(pop()).lease))
    ticket = rig.wait(pop(wait_ms=HOUR_MS))
    rig.get(Seek(DEFAULT, "q", DEFAULT, "all"))
    assert rig.got(ticket) == ["1"]
