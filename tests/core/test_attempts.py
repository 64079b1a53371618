"""Each failed delivery of a message is kept, in each group, until the message goes."""

import msgspec
import pytest

from forebay.core.api import commands as c, queries
from forebay.core.bounds import (
    ATTEMPTS_MAX,
    ATTEMPTS_SHOWN_MAX,
    ERROR_CHARS_MAX,
    ERROR_TYPE_CHARS_MAX,
    TRACEBACK_CHARS_MAX,
    WORKER_CHARS_MAX,
)
from forebay.core.delivery.attempts import kind_of
from forebay.core.delivery.give_back import OUT_OF_TIME
from forebay.core.delivery.notes import SPAN_MAX
from forebay.core.errors import Invalid, NotFound
from forebay.core.records import keyspace
from forebay.core.state import Attempt
from tests.core.harness import Core

DAY = 86_400_000


def attempts(core: Core, message: int, group: str = "default") -> list[Attempt]:
    found = core.ask(queries.GetAttempts("default", message, group), queries.NotesFound)
    (kept,) = found.notes
    for each in kept:
        if not each.segment.present:
            key = keyspace.body_key(found.queue.prefix, each.segment.body_name)
            (body,) = core.store.bodies([key])
            assert isinstance(body, bytes)
            each.segment.body = body
    return [msgspec.json.decode(payload, type=Attempt) for each in kept for payload in each.payloads()]


def swept(core: Core) -> None:
    for _ in range(3):
        core.commit()
        core.wait(60_000)


def errors(core: Core, message: int, group: str = "default") -> list[str]:
    return [each.error for each in attempts(core, message, group)]


def test_each_failed_delivery_of_a_dead_letter_is_kept_with_all_that_was_told() -> None:
    core = Core()
    core.forgive()
    core.configure(max_attempts=3)
    message = core.push()
    lease = core.pop(worker="mailer-1").lease
    core.nack(lease, error="no user", error_type="ValueError", traceback="line 7")
    core.pop(lease_ms=1_000, worker="mailer-2")
    core.wait(1_000)
    core.nack(core.pop().lease, error="no mailbox")
    assert core.state(message) == "dead"
    assert attempts(core, message) == [
        Attempt(1, "no user", "ValueError", "line 7", "mailer-1"),
        Attempt(2, OUT_OF_TIME, worker="mailer-2"),
        Attempt(3, "no mailbox"),
    ]


@pytest.mark.parametrize("commits", [1, 3])
def test_attempts_and_the_name_of_who_holds_a_message_survive_a_restart(commits: int) -> None:
    core = Core()
    core.forgive()
    message = core.push()
    for number in range(commits):
        core.nack(core.pop().lease, error=f"{number}", traceback="x" * number)
        core.commit()
    core.pop(worker="mailer", lease_ms=1_000)
    core.restart()
    assert core.find(message).worker == "mailer"
    core.wait(10_000)
    core.restart()
    assert errors(core, message) == [*map(str, range(commits)), OUT_OF_TIME]
    assert attempts(core, message)[-1].worker == "mailer"


@pytest.mark.parametrize("count", [1, 2, SPAN_MAX, SPAN_MAX + 1, 3 * SPAN_MAX])
def test_messages_that_fail_together_share_few_attempts_and_each_has_its_own(count: int) -> None:
    core = Core()
    core.forgive()
    first = core.push(*[b"1"] * count)
    core.nack(core.pop(count).lease, error="together")
    core.nack(core.pop(1).lease, error="alone")
    assert errors(core, first) == ["together", "alone"]
    for message in {first + 1, first + count // 2, first + count - 1} - {first, first + count}:
        assert errors(core, message) == ["together"]
    queue = core.engine.queues["default", "q"]
    notes = queue.notes[kind_of(queue.groups["default"])]
    assert notes.log.end == -(-count // SPAN_MAX) + 1


def test_a_group_knows_its_own_attempts_only() -> None:
    core = Core()
    core.forgive()
    message = core.push()
    for group in ("default", "audit"):
        core.nack(core.pop(group=group).lease, error=f"in {group}")
    assert errors(core, message) == ["in default"]
    assert errors(core, message, "audit") == ["in audit"]
    assert errors(core, message, "missing") == []
    core.ask(c.GroupDelete("default", "q", "audit"), queries.QueueFound)
    swept(core)
    assert len(core.engine.queues["default", "q"].notes) == 1
    core.nack(core.pop(group="audit").lease, error="anew")
    assert errors(core, message, "audit") == ["anew"]
    core.restart()
    assert errors(core, message, "audit") == ["anew"]


def test_attempts_stay_through_a_requeue_and_go_with_their_message() -> None:
    core = Core()
    core.configure(max_attempts=1, completed_retention_ms=1_000)
    message = core.push()
    core.nack(core.pop().lease, error="first")
    core.wait(DAY)
    core.ask(c.Requeue("default", "q"), c.Buried)
    core.nack(core.pop().lease, error="second")
    assert errors(core, message) == ["first", "second"]
    swept(core)
    assert errors(core, message) == ["first", "second"]
    core.ask(c.Purge("default", "q"), c.Buried)
    swept(core)
    with pytest.raises(NotFound):
        attempts(core, message)
    (notes,) = core.engine.queues["default", "q"].notes.values()
    assert not notes.log.segments
    assert not notes.by_message


def test_what_is_told_of_an_attempt_is_bounded() -> None:
    core = Core()
    core.forgive()
    message = core.push()
    trace = "".join(chr(97 + at % 26) for at in range(TRACEBACK_CHARS_MAX + 9))
    core.nack(
        core.pop(worker="w" * WORKER_CHARS_MAX).lease,
        error="e" * (ERROR_CHARS_MAX + 1),
        error_type="t" * (ERROR_TYPE_CHARS_MAX + 1),
        traceback=trace,
    )
    (kept,) = attempts(core, message)
    assert (len(kept.error), len(kept.type)) == (ERROR_CHARS_MAX, ERROR_TYPE_CHARS_MAX)
    assert kept.traceback == trace[9:]
    assert kept.worker == "w" * WORKER_CHARS_MAX
    with pytest.raises(Invalid, match="worker"):
        core.pop(worker="w" * (WORKER_CHARS_MAX + 1))


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[31m", "a\u202eb", "\ud800"])
def test_the_name_of_a_consumer_is_printable(name: str) -> None:
    core = Core()
    core.push()
    with pytest.raises(Invalid, match="worker"):
        core.pop(worker=name)


def test_the_newest_attempts_of_a_message_are_shown() -> None:
    core = Core()
    core.forgive()
    message = core.push()
    for number in range(ATTEMPTS_SHOWN_MAX + 1):
        core.nack(core.pop().lease, error=f"{number}")
    assert errors(core, message) == [f"{number}" for number in range(1, ATTEMPTS_SHOWN_MAX + 1)]


def test_a_group_keeps_a_bounded_number_of_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.core.delivery.notes.ATTEMPTS_MAX", 10)
    assert ATTEMPTS_MAX > 10
    core = Core()
    core.forgive()
    message = core.push()
    for number in range(15):
        core.nack(core.pop().lease, error=f"{number}")
        core.commit()
    assert errors(core, message) == [f"{number}" for number in range(5, 15)]


def test_neither_a_release_nor_a_deferral_is_an_attempt_but_a_death_of_it_is() -> None:
    core = Core()
    message = core.push()
    core.nack(core.pop().lease, undelivered=True)
    core.nack(core.pop().lease, undelivered=True, error="no task", defer_ms=1_000)
    assert errors(core, message) == []
    core.wait(1_000)
    core.nack(core.pop(worker="old").lease, undelivered=True, error="no task", defer_ms=1_000)
    assert core.state(message) == "dead"
    (kept,) = attempts(core, message)
    assert kept.error.endswith(": no task")
    assert kept.worker == "old"


def test_another_tenant_is_told_that_there_is_no_such_message() -> None:
    core = Core()
    message = core.push()
    core.nack(core.pop().lease, error="secret")
    for asked in (message, message + 1):
        with pytest.raises(NotFound) as raised:
            core.engine.apply(queries.GetAttempts("evil", asked), core.now)
        assert raised.value.message == "there is no such message, or it is no longer kept"


def test_attempts_of_a_message_are_there_after_it_was_updated() -> None:
    core = Core()
    core.forgive()
    message = core.push()
    core.nack(core.pop().lease, error="before", delay_ms=5_000)
    core.ask(c.Update("default", message, b"2"), c.Pushed)
    assert errors(core, message) == ["before"]
    core.wait(5_000)
    core.nack(core.pop().lease, error="since")
    core.restart()
    assert errors(core, message) == ["before", "since"]


def test_a_traceback_is_kept_with_so_many_stretches_of_a_command_only() -> None:
    core = Core()
    core.forgive()
    first = core.push(*[b"1"] * 500)
    lease = core.pop(500).lease
    core.nack(lease, ids=list(range(first, first + 500, 2)), error="down", traceback="x" * 8_000)
    queue = core.engine.queues["default", "q"]
    notes = queue.notes[kind_of(queue.groups["default"])]
    assert notes.log.end == 250
    assert notes.log.size < 100 * 8_200 + 150 * 100
    assert [each.traceback[:1] for each in attempts(core, first)] == ["x"]
    assert [(each.error, each.traceback) for each in attempts(core, first + 498)] == [("down", "")]
