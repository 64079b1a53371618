"""Results outlive their messages: they are asked for by id as long as they are kept themselves."""

from itertools import count

import pytest
from hypothesis import given, strategies as st

from forebay.core.api import commands as c, queries
from forebay.core.delivery import notes
from forebay.core.errors import NotFound
from forebay.core.records import keyspace
from forebay.core.shard.timers import SWEEP_MS
from forebay.core.structures.table import Table
from tests.core.harness import Core

HOUR = 3_600_000
DAY = 24 * HOUR


def completed(core: Core, result: bytes | None = b'"done"') -> int:
    """Push and complete a message; its id."""
    message = core.push()
    core.pop()
    results = None if result is None else [result]
    core.ask(c.Ack("default", None, [message], results=results), c.Settled)
    return message


def let_pass(core: Core, ms: int) -> None:
    """Let time pass, and the sweeps that are due then come."""
    for wait_ms in (SWEEP_MS, ms // 2, ms // 2, SWEEP_MS, SWEEP_MS):
        core.commit()
        core.wait(wait_ms)


def result_of(core: Core, message: int, group: str = "default") -> tuple[str, list[bytes]]:
    core.commit()
    found = core.ask(queries.Await("default", message, 0, group), queries.NotesFound)
    (kept,) = found.notes
    for each in kept:
        if not each.segment.present:
            (body,) = core.store.bodies([keyspace.body_key(found.queue.prefix, each.segment.body_name)])
            assert isinstance(body, bytes)
            each.segment.body = body
    return found.state.state, [bytes(payload) for each in kept for payload in each.payloads()]


def state_of(core: Core, message: int, group: str = "default", tenant: str = "default") -> str:
    return core.ask(queries.State(tenant, message, group, by_result=True), queries.StateFound).state


def is_kept(core: Core, message: int) -> bool:
    return bool(core.ask(queries.Show("default", [message]), queries.ShownAll).deliveries)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_result_outlives_its_message_by_a_day(restarts: bool) -> None:
    core = Core()
    message = completed(core)
    let_pass(core, 2 * HOUR)
    assert not is_kept(core, message)
    if restarts:
        core.restart()
    assert result_of(core, message) == ("completed", [b'"done"'])
    assert state_of(core, message) == "completed"
    let_pass(core, DAY)
    with pytest.raises(NotFound):
        result_of(core, message)
    with pytest.raises(NotFound):
        state_of(core, message)


def test_how_long_results_are_kept_is_an_option_of_the_queue() -> None:
    core = Core()
    core.configure(result_retention_ms=0)
    message = completed(core)
    let_pass(core, HOUR // 2)
    assert result_of(core, message)[0] == "completed"
    let_pass(core, 2 * HOUR)
    with pytest.raises(NotFound):
        result_of(core, message)


def test_a_message_without_a_result_is_gone_with_its_segment() -> None:
    core = Core()
    message = completed(core, None)
    let_pass(core, 2 * HOUR)
    with pytest.raises(NotFound):
        state_of(core, message)


def test_results_of_messages_that_are_gone_are_of_their_tenant_and_the_group_default() -> None:
    core = Core()
    message = completed(core)
    let_pass(core, 2 * HOUR)
    with pytest.raises(NotFound):
        state_of(core, message, group="other")
    with pytest.raises(NotFound):
        state_of(core, message, tenant="another")


def test_an_updated_message_has_its_result_under_its_first_id() -> None:
    core = Core()
    message = core.push(b"1")
    core.ask(c.Update("default", message, b"2"), c.Pushed)
    core.pop()
    core.ask(c.Ack("default", None, [message], results=[b"3"]), c.Settled)
    let_pass(core, 2 * HOUR)
    assert result_of(core, message) == ("completed", [b"3"])


def test_nothing_is_swept_while_only_results_are_left() -> None:
    core = Core()
    completed(core)
    let_pass(core, 2 * HOUR)
    assert core.engine.next_due_at() > core.now + 12 * HOUR


def test_a_completed_message_that_was_dropped_is_known_by_its_result() -> None:
    core = Core()
    message = completed(core)
    core.commit()
    core.ask(c.Clean("default", "q", ("completed",)), c.Cleaned)
    assert (state_of(core, message), result_of(core, message)[0]) == ("completed", "completed")
    with pytest.raises(NotFound):
        core.find(message)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_partition_stays_until_its_results_are_gone(restarts: bool) -> None:
    core = Core()
    core.configure(partition_retention_ms=HOUR)
    message = core.push(partition="lane")
    core.pop()
    core.ask(c.Ack("default", None, [message], results=[b'"done"']), c.Settled)
    let_pass(core, 3 * HOUR)
    if restarts:
        core.restart()
    assert result_of(core, message) == ("completed", [b'"done"'])
    let_pass(core, DAY)
    let_pass(core, HOUR)
    assert "lane" not in core.engine.queues["default", "q"].partitions


# Results that others waited for.


def complete_others(core: Core, count: int = 10) -> None:
    """Complete messages one by one, with results: each in a segment of its own, so that old ones can go."""
    for _ in range(count):
        completed(core)
        core.commit()


def waiting_for(core: Core, *ids: int, count: int = 1) -> int:
    """Push a message to another queue that depends on each of some stretches of messages; its id."""
    return core.push(b"parent", queue="parents", depends_on=tuple((each, count) for each in ids))


@pytest.mark.parametrize("restarts", [False, True])
def test_results_that_others_waited_for_are_not_pushed_out_by_newer_ones(
    restarts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notes, "RESULTS_MAX", 4)
    core = Core()
    first = core.push(b"1", b"2", b"3")
    waiting_for(core, first, count=2)
    core.pop(3)
    core.ack(ids=[first, first + 1, first + 2], results=[b"1", b"2", b"3"])
    complete_others(core)
    if restarts:
        core.restart()
    complete_others(core)
    assert [result_of(core, first + at)[1] for at in range(3)] == [[b"1"], [b"2"], []]


@pytest.mark.parametrize(("durability", "kept"), [("fsync", True), ("memory", False)])
def test_results_in_memory_that_others_waited_for_take_no_more_of_it_than_others(
    durability: str, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notes, "NOTES_BYTES_MAX", 1_000)
    core = Core()
    core.configure(durability=durability)
    first = core.push(*[b"1"] * 20)
    waiting_for(core, first, count=20)
    for at in range(20):
        core.pop()
        core.ack(ids=[first + at], results=[b"%0100d" % at])
        core.commit()
    assert (result_of(core, first)[1] != []) == kept
    assert result_of(core, first + 19)[1] == [b"%0100d" % 19]


def test_results_that_others_waited_for_are_kept_for_a_week() -> None:
    core = Core()
    core.configure(result_retention_ms=0)
    message = core.push(partition="lane")
    core.configure(partition_retention_ms=HOUR)
    waiting_for(core, message)
    core.pop()
    core.ack(ids=[message], results=[b"1"])
    let_pass(core, 6 * DAY)
    assert result_of(core, message) == ("completed", [b"1"])
    let_pass(core, 2 * DAY)
    with pytest.raises(NotFound):
        result_of(core, message)


def test_the_results_of_one_message_stay_in_their_order_when_it_is_waited_for_no_more() -> None:
    core = Core()
    message = core.push()
    for at in range(4):
        if at == 1:
            waiting_for(core, message)
        core.pop()
        core.ack(ids=[message], results=[b"%d" % at])
        core.ask(c.Seek("default", "q", "default", start="all"), c.Sought)
    assert result_of(core, message)[1] == [b"0", b"1", b"2", b"3"]


def test_the_result_of_an_updated_message_that_is_waited_for_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notes, "RESULTS_MAX", 4)
    core = Core()
    message = core.push(b"1")
    waiting_for(core, message)
    core.ask(c.Update("default", message, b"2"), c.Pushed)
    core.pop()
    core.ack(ids=[message], results=[b"3"])
    complete_others(core)
    assert result_of(core, message)[1] == [b"3"]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12)), max_size=12), st.data())
def test_who_is_waited_for_is_found_whatever_the_rows(
    rows: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Also of rows that are gone since, and after a restart."""
    core = Core()
    first = core.push(*[b"1"] * 50)
    parents = [waiting_for(core, first + low, count=count) for low, count in rows]
    gone = data.draw(st.sets(st.integers(0, len(rows) - 1))) if rows else set()
    if data.draw(st.booleans()):
        core.restart()
    queue = core.engine.queues["default", "q"]
    partition = queue.partitions["default"]
    lost = {parents[each] for each in gone}
    for row in [row for row in partition.dependents if row[1] in lost]:
        core.engine.shards[queue.shard].remove_wait(queue, partition, row)
    left = [row for at, row in enumerate(rows) if at not in gone]
    waited = {each for low, count in left for each in range(low, low + count)}
    low = data.draw(st.integers(0, 49))
    high = data.draw(st.integers(low + 1, 50))
    assert partition.waited_for(low, high) == {each for each in waited if low <= each < high}
    assert partition.is_waited_for(low, high) == bool(partition.waited_for(low, high))


def test_however_many_wait_for_the_same_messages_they_are_found_in_few_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core = Core()
    first = core.push(*[b"1"] * 8)
    for _ in range(300):
        waiting_for(core, first, count=3)
        waiting_for(core, first + 2, count=1)
    partition = core.engine.queues["default", "q"].partitions["default"]
    steps = count()
    for name in ("above", "below", "since"):
        step = getattr(Table, name)
        monkeypatch.setattr(Table, name, lambda *about, step=step: (next(steps), step(*about))[1])
    assert partition.waited_for(0, 8) == {0, 1, 2}
    assert next(steps) < 12
