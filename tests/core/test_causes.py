"""Dead letters are selected by what they died of, counted by cause, and moved in one commit."""

from typing import Any

import pytest

from forebay.core.api import commands as c, jobs, queries
from forebay.core.api.causes import Cause, CausesFound, GetCauses, join
from forebay.core.errors import Conflict, Invalid, NotFound
from forebay.core.queries.causes import pattern_of
from tests.core.harness import Core

SEND = "KeyError: 'user-%d'"


@pytest.fixture
def core() -> Core:
    """Five dead letters of two causes, a second between them."""
    core = Core()
    core.configure(max_attempts=1)
    for number in range(3):
        die(core, SEND % number, "KeyError", task="send")
    die(core, "timed out after 3.5 s\nin line 7", "TimeoutError", task="bill", tags=("late",))
    die(core, "timed out after 20 s", "TimeoutError", task="bill")
    return core


def die(core: Core, error: str, type: str = "", **fields: Any) -> int:
    message = core.push(error.encode()[:3], **fields)
    core.nack(core.pop().lease, error=error, error_type=type)
    core.now += 1_000
    return message


def found(core: Core, **fields: object) -> list[bytes]:
    of = {name: fields.pop(name) for name in ("error", "type", "since", "before") if name in fields}
    dead = queries.OfDead(**of) if of else None  # type: ignore[arg-type]
    asked = queries.Browse("default", "q", "dead", dead=dead, **fields)  # type: ignore[arg-type]
    reply = core.ask(asked, queries.ShownAll)
    return [each.state.error.encode() for each in reply.deliveries]


@pytest.mark.parametrize("restarts", [False, True])
def test_dead_letters_are_found_by_what_they_died_of(core: Core, restarts: bool) -> None:
    if restarts:
        core.restart()
    assert len(found(core)) == 5
    assert found(core, error="user-1") == [b"KeyError: 'user-1'"]
    assert len(found(core, error="Key*user-*'")) == 3
    assert len(found(core, type="TimeoutError")) == 2
    assert found(core, type="TimeoutError", error="20 s") == [b"timed out after 20 s"]
    assert found(core, type="Timeout") == []
    assert len(found(core, task="send")) == 3
    assert len(found(core, task="bill", tag="late")) == 1
    died = [each.dead_at for each in core.ask(queries.ListDead("default", "q"), queries.DeadFound).deliveries]
    assert len(found(core, since=died[1], before=died[3])) == 2


def test_what_only_dead_letters_have_goes_with_no_other_state(core: Core) -> None:
    with pytest.raises(Invalid, match="state"):
        core.engine.apply(queries.Browse("default", "q", "waiting", dead=queries.OfDead("x")), core.now)


def count(core: Core, effort: int) -> tuple[dict[tuple[str, str, str], Cause], int]:
    """Count all causes; return them, and how many times the engine was asked."""
    counted: dict[tuple[str, str, str], Cause] = {}
    after, asked = None, 0
    while True:
        reply = core.ask(GetCauses("default", "q", after=after, effort=effort), CausesFound)
        asked += 1
        for each in reply.causes:
            known = counted.setdefault((each.task, each.type, each.pattern), each)
            if known is not each:
                join(known, each)
        if (after := reply.next) is None:
            return counted, asked


@pytest.mark.parametrize("effort", [1, 2, 100])
def test_dead_letters_are_counted_by_cause_however_many_are_looked_at_at_a_time(
    core: Core, effort: int
) -> None:
    counted, _ = count(core, effort)
    shown = {key: (each.count, each.last_at - each.first_at) for key, each in counted.items()}
    assert shown == {
        ("send", "KeyError", "KeyError: 'user-*'"): (3, 2_000),
        ("bill", "TimeoutError", "timed out after *.* s"): (1, 0),
        ("bill", "TimeoutError", "timed out after * s"): (1, 0),
    }


def test_messages_of_several_tasks_that_died_together_are_counted_apart() -> None:
    core = Core()
    core.configure(max_attempts=1)
    for task in ("a", "b", "b"):
        core.push(task=task)
    core.nack(core.pop(3).lease, error="down")
    reply = core.ask(GetCauses("default", "q"), CausesFound)
    assert {each.task: each.count for each in reply.causes} == {"a": 1, "b": 2}


def test_long_errors_take_more_of_the_effort_than_short_ones() -> None:
    def times(error: str) -> int:
        core = Core()
        core.configure(max_attempts=1)
        for number in range(20):
            die(core, f"{number} {error}")
        counted, asked = count(core, effort=10)
        assert sum(each.count for each in counted.values()) == 20
        return asked

    assert (times("short"), times("x" * 2_000)) == (2, 10)


def move(core: Core, *ids: int, queue: str = "q", unless_bound: bool = False) -> c.Transacted:
    push = jobs.PushJobs("default", "other", [jobs.Job(b"moved") for _ in ids])
    purge = c.Purge("default", queue, ids=list(ids), unless_bound=unless_bound)
    command = c.Transact("default", [push, purge])
    return core.ask(command, c.Transacted)


def test_a_transaction_purges_dead_letters_and_pushes_others_or_does_neither(core: Core) -> None:
    letters = core.ask(queries.ListDead("default", "q"), queries.DeadFound).deliveries
    first, second = letters[0].first, letters[1].first
    _, purged = move(core, first, second).replies
    assert isinstance(purged, c.Buried)
    assert (purged.count, purged.left) == (2, 3)
    with pytest.raises(Conflict, match="is no dead letter"):
        move(core, letters[2].first, first)
    assert len(found(core)) == 3
    assert core.popped(9, queue="other") == [b"moved", b"moved"]
    with pytest.raises(NotFound):
        core.engine.apply(c.Transact("default", [c.Purge("default", "missing", ids=[first])]), core.now)


def test_a_copy_does_not_stand_for_what_others_depend_on_or_died_of_a_dependency(core: Core) -> None:
    child, free = core.push(queue="c"), core.push(queue="c")
    parent = core.push(queue="p", depends_on=((child, 1),))
    core.configure("c", max_attempts=1)
    core.nack(core.pop(2, queue="c").lease, error="ill")
    assert [core.state(each) for each in (child, free, parent)] == ["dead"] * 3
    assert [core.find(each).bound for each in (child, free, parent)] == [True, False, True]
    for queue, ids in (("c", (free, child)), ("p", (parent,))):
        with pytest.raises(Conflict, match="depend"):
            move(core, *ids, queue=queue, unless_bound=True)
    core.restart()
    with pytest.raises(NotFound):
        core.counts("other")
    move(core, free, queue="c", unless_bound=True)
    assert core.popped(9, queue="other") == [b"moved"]
    core.ask(c.Requeue("default", "c", ids=[child]), c.Buried)
    core.ack(core.pop(queue="c").lease)
    assert core.state(parent) == "waiting"


@pytest.mark.parametrize("pattern", ["", "*", "***", "x" * 2_001])
def test_a_pattern_that_selects_nothing_in_particular_or_is_too_long_is_refused(
    core: Core, pattern: str
) -> None:
    with pytest.raises(Invalid, match="error"):
        found(core, error=pattern)


def test_ids_of_all_kinds_are_one_cause() -> None:
    ids = [
        "17",
        "5d41402abc4b2a76b9719d911017c592",
        "usr_ab12cd",
        "0x7f3a",
        "3f2b8a10-1c2d-4e5f-8a9b-0c1d2e3f4a5b",
    ]
    patterns = {pattern_of(f"no user {each} here").replace("usr_", "") for each in ids}
    assert patterns == {"no user * here"}
    assert pattern_of("ab12cd34-0000-0000-0000-0123456789abxy7z a1-b2c") == "* *-*"
    assert pattern_of("é" * 300) == "é" * 200 + "*"
