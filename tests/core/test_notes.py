"""What is kept beside messages: results, log lines, parts, progress, and how long."""

from collections.abc import Sequence

import pytest

from forebay.core.api import commands as c, queries
from forebay.core.bounds import ERROR_CHARS_MAX, NOTES_MS_MAX, Limits
from forebay.core.delivery import notes
from forebay.core.errors import Conflict, ForebayError, Invalid, NotFound
from forebay.core.records import codec, keyspace
from forebay.core.shard.timers import SWEEP_MS
from forebay.core.state import Progress
from forebay.core.words import LINE, PART, RESULT
from tests.core.harness import NOW, Core


def noted(core: Core, message: int, kind: int = RESULT, tenant: str = "default") -> list[bytes]:
    """What was noted of a message, wherever its bodies are."""
    found = core.ask(queries.GetNotes(tenant, message, (kind,)), queries.NotesFound)
    (notes_,) = found.notes
    for each in notes_:
        if not each.segment.present:
            (body,) = core.store.bodies([keyspace.body_key(found.queue.prefix, each.segment.body_name)])
            assert isinstance(body, bytes)
            each.segment.body = body
    return [bytes(payload) for each in notes_ for payload in each.payloads()]


def progress(core: Core, message: int) -> Progress | None:
    return core.ask(queries.GetNotes("default", message), queries.NotesFound).progress


def add(core: Core, message: int, payload: bytes, kind: int = LINE, lease: str | None = None) -> None:
    core.ask(c.AddNote("default", message, kind, payload, lease), c.Noted)


def tell(core: Core, message: int, percent: int, text: str = "", lease: str | None = None) -> None:
    core.ask(c.TellProgress("default", message, percent, text, lease), c.Noted)


def done(core: Core, ids: Sequence[int], results: Sequence[bytes], **fields: object) -> c.Settled:
    return core.ack(None, list(ids), results=list(results), **fields)


def refuse(core: Core, command: c.Command, kind: type[ForebayError]) -> ForebayError:
    """A command is refused, and has changed nothing."""
    core.commit()
    with pytest.raises(kind) as refused:
        core.engine.apply(command, core.now)
    assert core.engine.seal(core.now) == []
    return refused.value


# Results.


def test_a_result_is_kept_with_its_ack_and_over_a_restart() -> None:
    core = Core()
    message = core.push(b"1")
    core.pop()
    assert noted(core, message) == []
    done(core, [message], [b'{"sum":3}'])
    assert noted(core, message) == [b'{"sum":3}']
    core.restart()
    assert noted(core, message) == [b'{"sum":3}']
    assert core.state(message) == "completed"


def test_each_of_a_batch_has_its_own_result_and_those_refused_have_none() -> None:
    core = Core()
    first = core.push(*[b"%d" % at for at in range(6)])
    core.pop(4)
    done(core, [first + 1], [b"early"])
    reply = done(core, [first + 5, first, first + 1, first + 3], [b"five", b"0", b"late", b"3"], partial=True)
    assert (reply.count, sorted(reply.refused)) == (2, [first + 1, first + 5])
    for restarted in (False, True):
        if restarted:
            core.restart()
        found = [noted(core, first + at) for at in range(6)]
        assert found == [[b"0"], [b"early"], [], [b"3"], [], []]


def test_results_of_messages_in_several_queues_go_where_they_belong() -> None:
    core = Core()
    one, two = core.push(b"1"), core.push(b"2", queue="r")
    core.pop()
    core.pop(queue="r")
    assert done(core, [two, one], [b'"two"', b'"one"']).count == 2
    assert (noted(core, one), noted(core, two)) == ([b'"one"'], [b'"two"'])


def test_only_the_work_queue_has_results() -> None:
    core = Core()
    message = core.push(b"1")
    lease = core.pop(group="audit").lease
    for fields in ({"lease": lease}, {"group": "audit"}):
        error = refuse(core, c.Ack("default", ids=[message], results=[b"1"], **fields), Invalid)
        assert "result" in str(error)
    assert core.state(message, "audit") == "active"
    core.ack(lease)
    assert noted(core, message) == []


def test_a_mixed_batch_with_results_is_refused_as_a_whole() -> None:
    core = Core()
    mine, theirs = core.push(b"1"), core.push(b"2", queue="r")
    core.ask(c.Pop("default", "q", owner=7), c.Popped)
    core.ask(c.Pop("default", "r", "audit", owner=7), c.Popped)
    command = c.Ack("default", ids=[mine, theirs], owner=7, results=[b"1", b"2"])
    refuse(core, command, Invalid)
    assert core.state(mine) == core.state(theirs, "audit") == "active"


@pytest.mark.parametrize("results", [[], [b"1"], [b"1", b"2", b"3"]])
def test_there_are_as_many_results_as_ids(results: list[bytes]) -> None:
    core = Core()
    first = core.push(b"1", b"2")
    lease = core.pop(2).lease
    refuse(core, c.Ack("default", ids=[first, first + 1], results=results), Invalid)
    refuse(core, c.Ack("default", lease, results=results), Invalid)
    assert core.counts().active == 2


def test_a_result_is_as_large_as_a_payload_may_be() -> None:
    core = Core(Limits(payload_bytes_max=10))
    first = core.push(b"1", b"2")
    core.pop(2)
    refuse(core, c.Ack("default", ids=[first, first + 1], results=[b"1", b"x" * 11]), Invalid)
    done(core, [first], [b"x" * 10])
    assert noted(core, first) == [b"x" * 10]
    refuse(core, c.AddNote("default", first, LINE, b"x" * 11), Invalid)


def test_a_late_ack_keeps_no_result() -> None:
    core = Core()
    core.forgive()
    message = core.push(b"1")
    lease = core.pop(lease_ms=10).lease
    core.wait(11)
    refuse(core, c.Ack("default", lease, [message], results=[b"1"]), Conflict)
    assert noted(core, message) == []


# Log lines and parts.


def test_log_lines_come_back_in_order_whatever_the_state_of_the_message() -> None:
    core = Core()
    message, other = core.push(b"1"), core.push(b"2")
    add(core, message, b"waiting")
    core.pop()
    core.commit()
    core.wait(3)
    add(core, other, b"other")
    add(core, message, b"active")
    core.commit()
    core.ack(ids=[message])
    add(core, message, b"completed")
    assert noted(core, message, LINE) == [b"waiting", b"active", b"completed"]
    core.restart()
    assert noted(core, message, LINE) == [b"waiting", b"active", b"completed"]
    (lines,) = core.ask(queries.GetNotes("default", message, (LINE,)), queries.NotesFound).notes
    assert [each.created_at for each in lines] == [NOW, NOW + 3, NOW + 3]


def test_no_more_than_the_newest_lines_of_a_message_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes, "SHOWN_MAX", 3)
    core = Core()
    message = core.push(b"1")
    for number in range(5):
        add(core, message, b"%d" % number)
    assert noted(core, message, LINE) == [b"2", b"3", b"4"]


def test_a_part_of_a_result_needs_a_live_delivery() -> None:
    core = Core()
    message = core.push(b"1")
    part = c.AddNote("default", message, PART, b"a")
    refuse(core, part, Conflict)
    lease = core.pop(lease_ms=100).lease
    add(core, message, b"a", PART)
    add(core, message, b"b", PART, lease)
    core.push(b"2", queue="other")
    foreign = core.pop(queue="other").lease
    refuse(core, c.AddNote("default", message, PART, b"c", foreign), Conflict)
    core.ack(lease)
    refuse(core, part, Conflict)
    refuse(core, c.AddNote("default", message, PART, b"c", lease), Conflict)
    assert noted(core, message, PART) == [b"a", b"b"]


def test_a_delivery_to_another_group_is_none_for_parts_and_progress() -> None:
    core = Core()
    message = core.push(b"1")
    core.pop(group="audit")
    refuse(core, c.AddNote("default", message, PART, b"a"), Conflict)
    refuse(core, c.TellProgress("default", message, 5), Conflict)


def test_kinds_are_apart() -> None:
    core = Core()
    message = core.push(b"1")
    core.pop()
    add(core, message, b"line")
    add(core, message, b"part", PART)
    done(core, [message], [b"result"])
    core.restart()
    assert [noted(core, message, kind) for kind in (RESULT, LINE, PART)] == [
        [b"result"],
        [b"line"],
        [b"part"],
    ]


# Progress.


def test_progress_is_what_was_told_last_and_survives_a_restart() -> None:
    core = Core()
    message = core.push(b"1")
    lease = core.pop().lease
    assert progress(core, message) is None
    tell(core, message, 0)
    core.wait(5)
    tell(core, message, 100, "almost", lease)
    core.restart()
    assert progress(core, message) == Progress(100, "almost", NOW + 5)
    core.ack(lease)
    assert progress(core, message) == Progress(100, "almost", NOW + 5)


def test_progress_needs_a_live_delivery() -> None:
    core = Core()
    core.forgive()
    message = core.push(b"1")
    refuse(core, c.TellProgress("default", message, 5), Conflict)
    lease = core.pop(lease_ms=10).lease
    core.wait(11)
    refuse(core, c.TellProgress("default", message, 5), Conflict)
    refuse(core, c.TellProgress("default", message, 5, lease=lease), Conflict)
    core.pop()
    refuse(core, c.TellProgress("default", message, 5, lease=lease), Conflict)
    tell(core, message, 5)
    assert progress(core, message) == Progress(5, "", core.now)


@pytest.mark.parametrize("percent", [-1, 101])
def test_progress_is_a_percentage(percent: int) -> None:
    core = Core()
    message = core.push(b"1")
    core.pop()
    refuse(core, c.TellProgress("default", message, percent), Invalid)


def test_the_words_of_a_progress_are_cut_where_those_of_an_error_are() -> None:
    core = Core()
    message = core.push(b"1")
    core.pop()
    tell(core, message, 1, "x" * (ERROR_CHARS_MAX + 1))
    found = progress(core, message)
    assert found is not None
    assert found.message == "x" * ERROR_CHARS_MAX


def test_the_progress_of_so_many_messages_is_kept_the_last_told_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notes, "PROGRESS_MAX", 3)
    core = Core()
    first = core.push(*[b"%d" % at for at in range(5)])
    core.pop(5)
    for at in (0, 1, 2, 0, 3, 4):
        tell(core, first + at, at)
    for restarted in (False, True):
        if restarted:
            core.restart()
        assert [progress(core, first + at) is not None for at in range(5)] == [True, False, False, True, True]


# Bounds.


def one_by_one(core: Core, count: int, size: int = 1) -> int:
    """Messages with a line each, a commit apart; the id of the first."""
    first = core.push(*[b"%d" % at for at in range(count)])
    for at in range(count):
        add(core, first + at, b"%d" % at * size)
        core.commit()
    return first


def lines_of(core: Core, first: int, count: int) -> list[int]:
    """Which of some messages have lines."""
    return [at for at in range(count) if noted(core, first + at, LINE)]


def note_records(core: Core) -> tuple[int, int]:
    """How many records and bodies of notes the store has: of headers, and of all but the messages'."""
    prefix = core.engine.queues["default", "q"].prefix
    kinds = [key[8:9] for key, _ in core.store.scan(*keyspace.queue_bounds(prefix))]
    bodies = sum(key.startswith(prefix) for key in core.store._bodies)
    return kinds.count(b"i"), bodies - kinds.count(b"h")


def test_a_queue_keeps_the_newest_notes_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes, "NOTES_MAX", 4)
    core = Core()
    first = one_by_one(core, 10)
    assert lines_of(core, first, 10) == [6, 7, 8, 9]
    assert note_records(core) == (4, 4)
    core.restart()
    assert lines_of(core, first, 10) == [6, 7, 8, 9]


def test_of_a_large_batch_of_results_no_more_goes_than_has_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes, "RESULTS_MAX", 20)
    core = Core()
    for count in (20, 5):
        first = core.push(*[b"1"] * count)
        core.pop(count)
        core.ack(ids=list(range(first, first + count)), results=[b"2"] * count)
        core.commit()
    assert core.engine.queues["default", "q"].notes[RESULT].about.size == 25


def test_what_was_noted_of_a_message_is_shown_up_to_a_size() -> None:
    core = Core(Limits(read_bytes_max=25))
    message = core.push(b"1")
    for number in range(5):
        core.ask(c.AddNote("default", message, LINE, b"%d" % number * 10), c.Noted)
    (lines,) = core.ask(queries.GetNotes("default", message, (LINE,)), queries.NotesFound).notes
    assert [bytes(payload) for line in lines for payload in line.payloads()] == [b"3" * 10, b"4" * 10]


def test_a_queue_keeps_the_newest_notes_up_to_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes, "NOTES_BYTES_MAX", 250)
    core = Core()
    first = one_by_one(core, 10, 100)
    assert lines_of(core, first, 10) == [8, 9]
    assert note_records(core) == (2, 2)


def test_the_bounds_are_of_each_kind_and_each_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes, "NOTES_MAX", 2)
    core = Core()
    message, other = core.push(b"1"), core.push(b"1", queue="r")
    core.pop()
    for number in range(3):
        add(core, message, b"%d" % number)
        add(core, message, b"%d" % number, PART)
        add(core, other, b"%d" % number)
        core.commit()
    assert noted(core, message, LINE) == noted(core, message, PART) == [b"1", b"2"]
    assert noted(core, other, LINE) == [b"1", b"2"]


def test_notes_are_kept_no_longer_than_so_long_even_if_their_message_is() -> None:
    core = Core()
    message = core.push(b"1")
    add(core, message, b"old")
    core.commit()
    core.wait(NOTES_MS_MAX - SWEEP_MS)
    assert noted(core, message, LINE) == [b"old"]
    add(core, message, b"new")
    core.commit()
    core.wait(2 * SWEEP_MS)
    assert noted(core, message, LINE) == [b"new"]
    core.commit()
    assert note_records(core) == (1, 1)


def test_notes_and_progress_go_with_their_message() -> None:
    core = Core()
    core.configure(completed_retention_ms=1_000, result_retention_ms=0)
    message = core.push(b"1")
    core.pop()
    tell(core, message, 50)
    add(core, message, b"line")
    done(core, [message], [b"result"])
    core.commit()
    for _ in range(3):
        core.wait(SWEEP_MS)
    core.commit()
    with pytest.raises(NotFound):
        noted(core, message)
    assert note_records(core) == (0, 0)
    prefix = core.engine.queues["default", "q"].prefix
    assert not [key for key, _ in core.store.scan(prefix + b"j", prefix + b"k")]


def test_a_queue_in_memory_keeps_notes_too_until_the_process_ends() -> None:
    core = Core()
    core.configure(durability="memory")
    message = core.push(b"1")
    core.pop()
    tell(core, message, 50)
    add(core, message, b"line")
    core.commit()
    done(core, [message], [b"result"])
    core.commit()
    assert noted(core, message) == [b"result"]
    assert noted(core, message, LINE) == [b"line"]
    assert progress(core, message) == Progress(50, "", NOW)
    assert note_records(core) == (0, 0)
    core.restart()
    with pytest.raises(NotFound):
        noted(core, message)


# What can't be.


def test_messages_that_are_not_there_have_no_notes() -> None:
    core = Core()
    message = core.push(b"1")
    core.pop()
    for tenant, id_ in (("default", message + 1), ("default", 1 << 60), ("evil", message)):
        for command in (
            queries.GetNotes(tenant, id_, (RESULT,)),
            c.AddNote(tenant, id_, LINE, b"x"),
            c.AddNote(tenant, id_, PART, b"x"),
            c.TellProgress(tenant, id_, 5),
            queries.Await(tenant, id_, 0),
        ):
            refuse(core, command, NotFound)
    assert noted(core, message, LINE) == []


def test_asking_for_notes_changes_nothing() -> None:
    core = Core()
    message = core.push(b"1")
    core.commit()
    found = core.ask(queries.Await("default", message, 5), queries.NotesFound)
    assert (found.is_over, found.state.state, found.notes) == (False, "waiting", [[]])
    core.ask(queries.GetNotes("default", message, (RESULT, LINE, PART)), queries.NotesFound)
    assert core.engine.seal(core.now) == []


@pytest.mark.parametrize("wait_ms", [-1, Limits().wait_ms_max + 1])
def test_a_wait_has_a_limit(wait_ms: int) -> None:
    core = Core()
    message = core.push(b"1")
    refuse(core, queries.Await("default", message, wait_ms), Invalid)


def test_damaged_notes_are_found_at_load() -> None:
    core = Core()
    message = core.push(b"1")
    add(core, message, b"a")
    add(core, message, b"b")
    core.commit()
    prefix = core.engine.queues["default", "q"].prefix
    ((key, value),) = list(core.store.scan(prefix + b"i", prefix + b"j"))
    core.store._records[key] = codec.pack_notes(codec.unpack_notes(0, value)[0], [(1, 0)])
    core.restart()
    assert ("default", "q") in core.engine.damaged


def test_the_lease_of_another_group_is_none_for_parts_and_progress() -> None:
    core = Core()
    message = core.push(b"1")
    lease = core.pop(group="audit").lease
    core.pop()
    refuse(core, c.AddNote("default", message, PART, b"a", lease), Conflict)
    refuse(core, c.TellProgress("default", message, 5, lease=lease), Conflict)


def test_results_given_in_one_ack_lie_together_whatever_partitions_they_are_of() -> None:
    core = Core()
    ids = [core.push(b"%d" % at, partition=f"p{at % 3}") for at in range(9)]
    core.pop(9)
    done(core, ids[::-1], [b"%d" % at for at in range(9)][::-1])
    core.commit()
    assert note_records(core) == (1, 1)
    core.restart()
    assert [noted(core, each) for each in ids] == [[b"%d" % at] for at in range(9)]
