"""Updates: another payload under the same id, and everything that is asked of that id afterwards."""

from typing import Any

import pytest

from forebay.core import ids
from forebay.core.api import commands as c, queries
from forebay.core.bounds import Limits
from forebay.core.errors import Conflict, ForebayError, Invalid, NotFound
from forebay.core.records import keyspace
from forebay.core.shard.timers import SWEEP_MS
from forebay.core.state import Attributes, Backoff
from forebay.core.words import LINE, RESULT
from tests.core.harness import AT_ONCE, NOW, Core, payloads_of

HOUR_MS = 3_600_000


def update(core: Core, message: int, payload: bytes) -> c.Pushed:
    return core.ask(c.Update("default", message, payload), c.Pushed)


def show(core: Core, message: int, group: str = "default") -> tuple[bytes, queries.StateFound]:
    (found,) = core.ask(queries.Show("default", [message], group), queries.ShownAll).deliveries
    if not found.segment.present:
        (body,) = core.store.bodies([keyspace.body_key(found.queue.prefix, found.segment.body_name)])
        assert isinstance(body, bytes)
        found.segment.body = body
    (payload,) = found.payloads()
    return bytes(payload), found.state


def refuse(core: Core, command: c.Command, kind: type[ForebayError]) -> None:
    core.commit()
    with pytest.raises(kind):
        core.engine.apply(command, core.now)
    assert core.engine.seal(core.now) == []


def delivered(reply: c.Popped) -> list[tuple[int, bytes]]:
    """Ids and payloads."""
    found = [each.first + at for each in reply.deliveries for at in range(each.count)]
    return list(zip(found, payloads_of(reply), strict=True))


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("options", [{}, {"priority": 3}, {"delay_ms": 50}, {"lifo": True}])
def test_a_message_has_another_payload_under_the_same_id(options: dict[str, Any], grouped: bool) -> None:
    core = Core()
    if grouped:
        core.pop()
    message = core.push(b"old", **options)
    core.commit()
    core.wait(5)
    reply = update(core, message, b"new")
    assert (reply.first, reply.count, reply.created_at) == (message, 1, NOW)
    for restarted in (False, True):
        if restarted:
            core.restart()
        payload, state = show(core, message)
        assert (payload, state.id, state.created_at) == (b"new", message, NOW)
        assert ids.to_uuid(state.id, state.created_at) == ids.to_uuid(message, NOW)
    core.wait(50)
    reply_ = core.pop(9)
    assert delivered(reply_) == [(message, b"new")]
    assert reply_.deliveries[0].created_at == NOW
    core.ack(ids=[message])
    assert core.popped(9) == []
    assert core.state(message) == "completed"


def test_what_was_asked_of_a_message_stays_when_it_is_updated() -> None:
    core = Core()
    core.pop()
    options = Attributes(7, 100, ttl_ms=1_000, timeout_ms=77, max_attempts=2, backoff=Backoff("fixed", 5))
    message = core.push(b"old", attributes=options)
    core.commit()
    core.wait(40)
    update(core, message, b"new")
    found = core.find(message)
    assert (found.state, found.due_at, found.priority) == ("delayed", NOW + 100, 7)
    core.wait(59)
    assert core.popped() == []
    core.wait(1)
    reply = core.pop()
    assert reply.deliveries[0].expires_at == core.now + 77
    core.nack(reply.lease)
    assert core.find(message).due_at == core.now + 5
    core.wait(5)
    core.nack(core.pop().lease)
    assert core.state(message) == "dead"
    other = core.push(b"old", ttl_ms=1_000)
    core.wait(500)
    update(core, other, b"new")
    core.wait(499)
    assert core.state(other) == "waiting"
    core.wait(1)
    assert core.state(other) == "expired"
    assert core.popped() == []


def test_an_update_sets_and_removes_headers_and_leaves_the_others() -> None:
    core = Core()
    message = core.push(b"old", headers=(("a", "1"), ("b", "2"), ("c", "3")))
    core.ask(c.Update("default", message, b"new", (("b", None), ("c", "4"), ("d", "5"))), c.Pushed)
    core.restart()
    payload, state = show(core, message)
    assert payload == b"new"
    assert dict(state.attributes.headers) == {"a": "1", "c": "4", "d": "5"}
    refuse(core, c.Update("default", message, b"x", (("e", "x" * 100_000),)), Invalid)


def test_what_had_happened_to_a_message_stays_when_it_is_updated() -> None:
    core = Core()
    core.configure(backoff=Backoff("fixed", 1_000))
    message = core.push(b"old")
    core.nack(core.pop().lease, error="broken")
    core.wait(10)
    update(core, message, b"new")
    core.restart()
    found = core.find(message)
    assert (found.state, found.deliveries, found.failures, found.error) == ("delayed", 1, 1, "broken")
    core.wait(990)
    reply = core.pop()
    assert delivered(reply) == [(message, b"new")]
    assert (reply.deliveries[0].deliveries, reply.deliveries[0].failures) == (2, 1)


def test_a_moved_message_stays_where_it_was_moved() -> None:
    core = Core()
    message = core.push(b"old")
    core.ask(c.Move("default", [message], delay_ms=500, priority=4), c.Settled)
    update(core, message, b"new")
    found = core.find(message)
    assert (found.state, found.due_at, found.priority) == ("delayed", NOW + 500, 4)


def test_a_message_in_line_goes_to_the_end_of_the_line() -> None:
    core = Core()
    first = core.push(b"a", b"b", b"c")
    update(core, first, b"A")
    core.push(b"d")
    assert delivered(core.pop(9)) == [(first + 1, b"b"), (first + 2, b"c"), (first, b"A"), (first + 4, b"d")]


def test_a_message_is_updated_as_often_as_one_likes_and_the_last_one_counts() -> None:
    core = Core()
    message = core.push(b"0", delay_ms=HOUR_MS)
    for number in range(1, 6):
        core.wait(1_000)
        update(core, message, b"%d" % number)
        if number % 2:
            core.restart()
        assert show(core, message)[0] == b"%d" % number
    assert core.find(message).due_at == NOW + HOUR_MS
    core.wait(HOUR_MS)
    for group in ("default", "audit"):
        assert delivered(core.pop(9, group=group)) == [(message, b"5")]
    prefix = core.engine.queues["default", "q"].prefix
    core.commit()
    assert len(list(core.store.scan(prefix + b"u", prefix + b"v"))) == 1


def test_every_group_gets_the_new_payload_once() -> None:
    core = Core()
    message = core.push(b"old")
    for group in ("one", "two"):
        core.pop(group=group, partition="none")
    update(core, message, b"new")
    for group in ("one", "two", "later"):
        assert delivered(core.pop(9, group=group)) == [(message, b"new")]


def test_a_waiting_message_is_counted_once() -> None:
    core = Core()
    message = core.push(b"old", b"other")
    core.pop(partition="none")
    update(core, message, b"new")
    assert core.counts().waiting == 2
    core.restart()
    assert core.counts().waiting == 2


# What can't be updated.


def test_what_anybody_had_is_not_updated() -> None:
    core = Core()
    core.configure(max_attempts=1, backoff=AT_ONCE)
    first = core.push(*[b"%d" % at for at in range(5)])
    lease = core.pop(3).lease
    core.ack(lease, [first])
    core.nack(lease, [first + 1])
    core.cancel(first + 3)
    core.pop(partition="none", group="audit")
    for at in range(4):
        refuse(core, c.Update("default", first + at, b"new"), Conflict)
    update(core, first + 4, b"new")
    core.pop(9, group="audit")
    refuse(core, c.Update("default", first + 4, b"newer"), Conflict)
    assert show(core, first)[0] == b"0"
    assert show(core, first + 4)[0] == b"new"


def test_what_was_cancelled_or_has_expired_is_not_updated() -> None:
    core = Core()
    cancelled, expired = core.push(b"1"), core.push(b"2", ttl_ms=10)
    core.cancel(cancelled)
    core.wait(10)
    for message in (cancelled, expired):
        refuse(core, c.Update("default", message, b"new"), Conflict)
    core.pop()
    for message in (cancelled, expired):
        refuse(core, c.Update("default", message, b"new"), Conflict)


def test_what_is_not_there_or_another_tenants_is_not_found() -> None:
    core = Core()
    message = core.push(b"1")
    refuse(core, c.Update("default", message + 1, b"new"), NotFound)
    refuse(core, c.Update("evil", message, b"new"), NotFound)
    update(core, message, b"new")
    refuse(core, c.Update("evil", message, b"new"), NotFound)
    for command in (
        queries.State("evil", message),
        c.Cancel("evil", [message]),
        queries.GetNotes("evil", message),
    ):
        refuse(core, command, NotFound)
    refuse(core, c.Ack("evil", ids=[message]), Conflict)
    assert core.ask(queries.Show("evil", [message]), queries.ShownAll).deliveries == []


def test_a_payload_that_is_too_large_is_refused() -> None:
    core = Core(Limits(payload_bytes_max=10))
    message = core.push(b"1")
    refuse(core, c.Update("default", message, b"x" * 11), Invalid)
    update(core, message, b"x" * 10)


# Commands by the first id mean what took its place.


def updated(core: Core, **options: Any) -> int:
    """The id of a message that was updated, and stands beside others."""
    core.push(b"before")
    message = core.push(b"old", **options)
    core.push(b"after")
    core.pop(partition="none")
    update(core, message, b"older")
    update(core, message, b"new")
    core.restart()
    return message


def hold(core: Core) -> str:
    """Have everything that is there delivered."""
    lease = core.pop(9).lease
    assert lease is not None
    return lease


def test_acks_with_and_without_a_lease_follow() -> None:
    for with_lease in (False, True):
        core = Core()
        message = updated(core)
        lease = hold(core)
        assert core.ack(lease if with_lease else None, [message], results=[b"42"]) == c.Settled(1, [])
        assert core.state(message) == "completed"
        (results,) = core.ask(queries.GetNotes("default", message, (RESULT,)), queries.NotesFound).notes
        assert [bytes(each) for note in results for each in note.payloads()] == [b"42"]
        assert core.ack(None, [message], partial=True) == c.Settled(0, [message])


def test_fails_follow_and_dead_letters_are_shown_delivered_again_and_given_up_by_the_id() -> None:
    core = Core()
    message = updated(core, max_attempts=1)
    hold(core)
    core.nack(ids=[message], error="no")
    (letter,) = core.ask(queries.ListDead("default", "q"), queries.DeadFound).deliveries
    assert (letter.first, letter.created_at) == (message, NOW)
    assert [bytes(each) for each in letter.payloads()] == [b"new"]
    assert core.ask(c.Requeue("default", "q", ids=[message]), c.Buried) == c.Buried(1, 0, [])
    assert delivered(core.pop(9)) == [(message, b"new")]
    core.nack(ids=[message])
    purge = c.Purge("default", "q", ids=[message, message + 9], dry_run=True)
    assert core.ask(purge, c.Buried) == c.Buried(1, 1, [message + 9])
    assert core.ask(c.Purge("default", "q", ids=[message]), c.Buried) == c.Buried(1, 0, [])


def test_extends_and_progress_follow() -> None:
    core = Core()
    message = updated(core)
    hold(core)
    reply = core.ask(c.Extend("default", ids=[message], lease_ms=HOUR_MS), c.Extended)
    assert (reply.count, reply.expires_at) == (1, core.now + HOUR_MS)
    core.ask(c.TellProgress("default", message, 50), c.Noted)
    found = core.ask(queries.GetNotes("default", message), queries.NotesFound)
    assert found.progress is not None
    assert found.progress.percent == 50
    core.cancel(message)
    assert core.ask(c.Extend("default", ids=[message]), c.Extended).cancelled


def test_cancels_discards_promotes_and_priorities_follow() -> None:
    core = Core()
    message = updated(core, delay_ms=HOUR_MS)
    assert core.state(message) == "delayed"
    core.ask(c.Move("default", [message], delay_ms=0, only_delayed=True), c.Settled)
    assert core.state(message) == "waiting"
    core.ask(c.Move("default", [message], priority=8), c.Settled)
    assert core.find(message).priority == 8
    assert delivered(core.pop()) == [(message, b"new")]
    core.ask(c.Discard("default", [message]), c.Settled)
    assert core.state(message) == "dead"
    other = Core()
    message = updated(other)
    assert other.cancel(message) == c.Settled(1, [])
    assert other.state(message) == other.state(message, "later") == "cancelled"
    assert other.popped(9) == [b"before", b"after"]


def test_log_lines_follow() -> None:
    core = Core()
    message = updated(core)
    core.ask(c.AddNote("default", message, LINE, b"line"), c.Noted)
    (lines,) = core.ask(queries.GetNotes("default", message, (LINE,)), queries.NotesFound).notes
    assert len(lines) == 1


def test_log_lines_of_before_an_update_are_still_there() -> None:
    core = Core()
    message = core.push(b"old")
    core.ask(c.AddNote("default", message, LINE, b"line"), c.Noted)
    update(core, message, b"new")
    (lines,) = core.ask(queries.GetNotes("default", message, (LINE,)), queries.NotesFound).notes
    assert len(lines) == 1


def test_refused_ids_come_back_as_they_were_given() -> None:
    core = Core()
    message = updated(core)
    nothing = message + 9
    assert core.ack(None, [message, nothing], partial=True).refused == [message, nothing]
    hold(core)
    core.ack(ids=[message])
    rest = [message - 1, message, nothing]
    assert sorted(core.nack(ids=rest, delay_ms=5).refused) == [message, nothing]
    core.wait(5)
    hold(core)
    assert sorted(core.ask(c.Extend("default", ids=rest), c.Extended).refused) == [message, nothing]
    assert sorted(core.cancel(*rest).refused) == [message, nothing]
    moved = core.ask(c.Move("default", [message, message + 1], delay_ms=5), c.Settled)
    assert moved == c.Settled(1, [message])


def test_a_message_in_the_list_of_all_has_the_id_it_was_given() -> None:
    core = Core()
    message = updated(core)
    waiting = core.ask(queries.Browse("default", "q", "waiting"), queries.ShownAll)
    assert sorted(each.state.id for each in waiting.deliveries) == [message - 1, message, message + 1]


# How long.


def test_successors_are_forgotten_with_their_messages() -> None:
    core = Core()
    core.configure(completed_retention_ms=1_000)
    message = updated(core)
    core.ack(hold(core))
    core.commit()
    for _ in range(3):
        core.wait(SWEEP_MS)
    core.commit()
    with pytest.raises(NotFound):
        core.state(message)
    prefix = core.engine.queues["default", "q"].prefix
    assert not list(core.store.scan(prefix + b"u", prefix + b"v"))
    assert not any(shard.updated for shard in core.engine.shards.values())


def test_an_id_leads_to_its_successor_after_the_first_is_gone() -> None:
    core = Core()
    core.configure(completed_retention_ms=1_000)
    message = core.push(b"old", delay_ms=HOUR_MS)
    core.pop()
    core.commit()
    core.wait(1)
    update(core, message, b"new")
    for _ in range(3):
        core.commit()
        core.wait(SWEEP_MS)
    core.restart()
    assert show(core, message)[0] == b"new"
    core.wait(HOUR_MS)
    assert delivered(core.pop()) == [(message, b"new")]
    assert core.ack(ids=[message]).count == 1
    assert core.state(message) == "completed"


def test_a_queue_in_memory_takes_updates_too() -> None:
    core = Core()
    core.configure(durability="memory")
    message = core.push(b"old")
    core.commit()
    update(core, message, b"new")
    core.commit()
    assert delivered(core.pop(9)) == [(message, b"new")]
    assert core.ack(ids=[message]).count == 1


def test_those_who_wait_are_woken_by_an_update_as_by_a_push() -> None:
    core = Core()
    message = core.push(b"old")
    core.pop(partition="none")
    core.commit()
    update(core, message, b"new")
    assert core.engine.take_woken()


def test_what_is_noted_of_an_updated_message_is_kept_as_long_as_it() -> None:
    core = Core()
    core.configure(completed_retention_ms=1_000)
    message = core.push(b"old")
    core.pop(partition="none")
    core.ask(c.AddNote("default", message, LINE, b"line"), c.Noted)
    core.commit()
    update(core, message, b"new")
    lease = hold(core)
    core.ask(c.TellProgress("default", message, 50), c.Noted)
    core.ask(c.Extend("default", lease, lease_ms=HOUR_MS), c.Extended)
    for _ in range(3):
        core.commit()
        core.wait(SWEEP_MS)
    assert core.engine.queues["default", "q"].partitions["default"].log.first > 0
    for restarted in (False, True):
        if restarted:
            core.restart()
        found = core.ask(queries.GetNotes("default", message, (LINE,)), queries.NotesFound)
        assert len(found.notes[0]) == 1
        assert found.progress is not None
