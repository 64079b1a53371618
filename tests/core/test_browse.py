"""Browsing: the messages of a queue by where they stand in a group, page by page."""

from typing import Any

import pytest

from forebay.core.api import commands as c, queries
from forebay.core.bounds import SHOWN_MAX, Limits
from forebay.core.delivery import pop as pops
from forebay.core.errors import ForebayError, Invalid, NotFound
from forebay.core.records import keyspace
from forebay.core.shard.timers import SWEEP_MS
from forebay.core.words import STATES
from tests.core.harness import AT_ONCE, NOW, Core

HOUR_MS = 3_600_000


def browse(core: Core, state: str | None = None, **fields: Any) -> list[bytes]:
    """The payloads of what is found, wherever its bodies are."""
    return [payload for payload, _ in shown(core, state, **fields)]


def shown(core: Core, state: str | None = None, **fields: Any) -> list[tuple[bytes, queries.StateFound]]:
    reply = core.ask(queries.Browse("default", "q", state, **fields), queries.ShownAll)
    for each in reply.deliveries:
        if not each.segment.present:
            key = keyspace.body_key(each.queue.prefix, each.segment.body_name)
            (body,) = core.store.bodies([key])
            assert isinstance(body, bytes)
            each.segment.body = body
    return [(bytes(payload), each.state) for each in reply.deliveries for payload in each.payloads()]


def total(core: Core, state: str | None = None, **fields: Any) -> int:
    return core.ask(queries.Browse("default", "q", state, **fields), queries.ShownAll).total


def refuse(core: Core, command: c.Command, kind: type[ForebayError]) -> None:
    core.commit()
    with pytest.raises(kind):
        core.engine.apply(command, core.now)
    assert core.engine.seal(core.now) == []


def one_of_each(core: Core) -> dict[str, list[bytes]]:
    """A queue with messages in every state; what is in each."""
    core.configure(max_wait_ms=HOUR_MS, max_attempts=1, backoff=AT_ONCE)
    core.push(b"evicted")
    core.pop(partition="none")
    core.commit()
    core.wait(HOUR_MS + SWEEP_MS)
    core.push(b"expired", ttl_ms=1)
    core.push(b"c0", b"c1", b"dead", b"discarded", b"a0", b"a1", b"c2")
    core.wait(1)
    reply = core.pop(7)
    first = reply.deliveries[0].first
    core.ack(ids=[first, first + 1, first + 6])
    core.nack(ids=[first + 2, first + 3], error="no")
    core.ask(c.Purge("default", "q", ids=[first + 3]), c.Buried)
    core.push(b"late", delay_ms=2 * HOUR_MS)
    core.push(b"soon", delay_ms=HOUR_MS)
    cancelled = core.push(b"cancelled", delay_ms=5)
    core.cancel(cancelled)
    core.push(b"w0", b"w1")
    core.push(b"w2", priority=4)
    core.push(b"parked", depends_on=((core.push(b"w3"), 1),))
    return {
        "waiting": [b"w0", b"w1", b"w2", b"w3"],
        "parked": [b"parked"],
        "delayed": [b"late", b"soon"],
        "active": [b"a0", b"a1"],
        "completed": [b"c0", b"c1", b"c2"],
        "dead": [b"dead"],
        "expired": [b"expired"],
        "cancelled": [b"cancelled"],
        "evicted": [b"evicted"],
        "discarded": [b"discarded"],
    }


def test_messages_are_found_in_every_state_by_offset() -> None:
    core = Core()
    wanted = one_of_each(core)
    assert set(wanted) == set(STATES)
    for restarted in (False, True):
        if restarted:
            core.restart()
        for state, payloads in wanted.items():
            assert browse(core, state) == payloads, state
            assert total(core, state) == len(payloads)


def test_each_message_says_where_it_stands() -> None:
    core = Core()
    wanted = one_of_each(core)
    stands = {payload: state for state, payloads in wanted.items() for payload in payloads}
    stands[b"discarded"] = "dead"
    for payload, state in shown(core):
        assert state.state == stands[payload]
        assert core.find(state.id).state == state.state
    (letter,) = [state for payload, state in shown(core, "dead")]
    assert (letter.error, letter.failures, letter.deliveries) == ("no", 1, 1)


def test_without_a_state_everything_comes_in_the_order_it_was_pushed() -> None:
    core = Core()
    one_of_each(core)
    everything = browse(core)
    assert everything[:3] == [b"evicted", b"expired", b"c0"]
    assert everything[-3:] == [b"w2", b"w3", b"parked"]
    assert total(core) == len(everything) == 17


@pytest.mark.parametrize("size", [1, 2, 4, 100])
def test_pages_are_the_whole_without_gaps_or_repeats(size: int) -> None:
    core = Core()
    one_of_each(core)
    core.push(*[b"x%d" % at for at in range(5)], partition="x")
    for state in (None, *STATES):
        whole = browse(core, state)
        pages = [browse(core, state, count=size, skip=skip) for skip in range(0, len(whole) + size, size)]
        assert [each for page in pages for each in page] == whole
        assert max(map(len, pages)) <= size
        assert total(core, state, skip=3, count=1) == len(whole)
    assert browse(core, skip=1_000) == []


def test_a_group_of_its_own_stands_elsewhere() -> None:
    core = Core()
    core.push(b"0", b"1", b"2")
    core.pop(2)
    core.ack(core.pop(group="audit").lease)
    assert browse(core, "waiting", group="audit") == [b"1", b"2"]
    assert browse(core, "completed", group="audit") == [b"0"]
    assert (browse(core, "active"), browse(core, "waiting")) == ([b"0", b"1"], [b"2"])


def test_for_a_group_that_does_not_exist_all_waits_is_delayed_or_was_cancelled() -> None:
    core = Core()
    first = core.push(b"0", b"1", b"2")
    core.push(b"later", delay_ms=HOUR_MS)
    gone = core.push(b"gone", delay_ms=HOUR_MS)
    core.push(b"urgent", priority=1)
    core.cancel(first + 1, gone)
    found = {state: browse(core, state) for state in STATES}
    assert {state: payloads for state, payloads in found.items() if payloads} == {
        "waiting": [b"0", b"2", b"urgent"],
        "delayed": [b"later"],
        "cancelled": [b"1", b"gone"],
    }
    assert [total(core, state) for state in ("waiting", "delayed", "cancelled")] == [3, 1, 2]
    assert core.ask(queries.Describe("default", "q"), queries.QueueFound).groups == []


def test_a_group_that_is_still_being_made_has_what_it_will_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pops, "PLANS_MAX", 1)
    core = Core()
    core.push(b"0")
    for number in range(1, 4):
        core.push(b"%d" % number, priority=number)
        core.commit()
    core.pop(partition="none")
    assert sorted(browse(core, "waiting")) == [b"0", b"1", b"2", b"3"]
    assert (total(core, "waiting"), browse(core, "completed")) == (4, [])


def test_what_is_settled_within_a_lease_is_no_longer_active() -> None:
    core = Core()
    first = core.push(*[b"%d" % at for at in range(6)])
    core.pop(6)
    core.ack(ids=[first, first + 2, first + 3])
    assert browse(core, "active") == [b"1", b"4", b"5"]
    assert browse(core, "completed") == [b"0", b"2", b"3"]
    core.pop()
    core.restart()
    assert browse(core, "active") == [b"1", b"4", b"5"]


def test_a_page_is_as_large_as_one_answer_may_be_but_one_message_always_comes() -> None:
    core = Core(Limits(read_bytes_max=250))
    core.push(*[b"%d" % at * 100 for at in range(4)])
    assert len(browse(core)) == 3
    assert len(browse(core, skip=3)) == 1
    core.push(b"x" * 1_000, partition="large")
    assert browse(core, skip=4) == [b"x" * 1_000]


def test_what_a_page_may_be_has_limits() -> None:
    core = Core()
    core.push(b"1")
    for fields in ({"count": 0}, {"count": SHOWN_MAX + 1}, {"skip": -1}, {"group": ""}, {"state": "nope"}):
        refuse(core, queries.Browse("default", "q", **fields), Invalid)
    refuse(core, queries.Browse("default", "nope"), NotFound)
    refuse(core, queries.Browse("evil", "q"), NotFound)
    assert browse(core, count=SHOWN_MAX) == [b"1"]


def test_browsing_changes_nothing() -> None:
    core = Core()
    one_of_each(core)
    core.commit()
    for state in (None, *STATES):
        browse(core, state)
    assert core.engine.seal(core.now) == []


# Filters, and going on where a browse stopped.


def labelled(core: Core) -> None:
    """Messages that differ in partition, tags and time; some are leased, some are done."""
    for at in range(6):
        core.push(b"%d" % at, b"%d+" % at, tags=("even", "all") if at % 2 == 0 else ("all",))
        core.push(b"p%d" % at, partition="p", tags=("even",) if at % 2 == 0 else ())
        core.commit()
        core.wait(10)
    core.ack(core.pop(2, partition="default").lease)
    core.pop(3, partition="default")


FILTERS: list[tuple[dict[str, Any], list[bytes]]] = [
    ({"partition": "p"}, [b"p0", b"p1", b"p2", b"p3", b"p4", b"p5"]),
    ({"tag": "even", "partition": "p"}, [b"p0", b"p2", b"p4"]),
    ({"tag": "all", "partition": "p"}, []),
    ({"tag": "even", "partition": "default"}, [b"0", b"0+", b"2", b"2+", b"4", b"4+"]),
    ({"since": NOW + 40, "partition": "default"}, [b"4", b"4+", b"5", b"5+"]),
    ({"before": NOW + 10, "partition": "p"}, [b"p0"]),
    ({"since": NOW + 10, "before": NOW + 20, "partition": "default"}, [b"1", b"1+"]),
    ({"since": NOW + 11, "before": NOW + 20}, []),
    ({"state": "active", "tag": "even"}, [b"2"]),
    ({"state": "completed", "tag": "even"}, [b"0", b"0+"]),
    ({"state": "completed", "tag": "even", "since": NOW + 1}, []),
    ({"state": "waiting", "tag": "even", "since": NOW + 21}, [b"4", b"4+", b"p4"]),
    ({"state": "waiting", "tag": "even", "group": "audit", "before": NOW + 10}, [b"0", b"0+", b"p0"]),
]


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize(("filters", "wanted"), FILTERS)
def test_filters_leave_what_matches(filters: dict[str, Any], wanted: list[bytes], restarted: bool) -> None:
    core = Core()
    labelled(core)
    if restarted:
        core.restart()
    assert sorted(browse(core, **filters)) == sorted(wanted)
    if "partition" in filters:
        assert browse(core, **filters) == wanted


def paged(core: Core, size: int, **filters: Any) -> list[bytes]:
    """Everything, page by page; each page goes on where the one before stopped."""
    found: list[bytes] = []
    after = None
    while True:
        page = core.ask(queries.Browse("default", "q", count=size, after=after, **filters), queries.ShownAll)
        found += [payload for payload, _ in shown(core, count=size, after=after, **filters)]
        assert len(page.deliveries) <= size
        after = page.next
        if after is None:
            return found


@pytest.mark.parametrize("size", [1, 2, 5, 100])
@pytest.mark.parametrize("filters", [{}, {"state": "waiting"}, {"tag": "even"}, {"since": NOW + 20}])
def test_a_browse_goes_on_where_it_stopped(size: int, filters: dict[str, Any]) -> None:
    core = Core()
    labelled(core)
    whole = browse(core, count=1_000, **filters)
    assert paged(core, size, **filters) == whole
    core.restart()
    assert paged(core, size, **filters) == whole


def test_a_browse_that_goes_on_misses_nothing_that_was_there_all_the_while() -> None:
    core = Core()
    core.push(*[b"%d" % at for at in range(10)])
    page = core.ask(queries.Browse("default", "q", "waiting", count=3), queries.ShownAll)
    core.pop(5)
    core.push(b"more")
    assert browse(core, "waiting", after=page.next) == [b"5", b"6", b"7", b"8", b"9", b"more"]


def test_a_browse_looks_at_so_many_runs_and_says_where_to_go_on() -> None:
    core = Core()
    labelled(core)
    whole = browse(core, tag="even")
    first = core.ask(queries.Browse("default", "q", tag="even", effort=2), queries.ShownAll)
    assert first.next is not None
    assert len(first.deliveries) < len(whole)
    assert paged(core, 100, tag="even", effort=2) == whole


@pytest.mark.parametrize("effort", [1, 2, 3, 100])
@pytest.mark.parametrize("size", [1, 3, 100])
def test_however_far_a_browse_looks_at_a_time_it_finds_everything_once(size: int, effort: int) -> None:
    core = Core()
    expected = one_of_each(core)
    for state in STATES:
        found = paged(core, size, state=state, effort=effort)
        assert sorted(found) == sorted(expected.get(state, []))


@pytest.mark.parametrize("sought", [False, True])
def test_what_no_pop_has_sorted_yet_is_delayed_until_it_is_due(sought: bool) -> None:
    core = Core()
    for number in range(4):
        core.push(b"waits%d" % number)
        core.push(b"late%d" % number, delay_ms=HOUR_MS)
        core.push(b"first%d" % number, priority=1)
    core.commit()
    core.engine.apply(c.GroupPut("default", "q", "default"), core.now)
    if sought:
        core.engine.apply(c.Seek("default", "q", "default", "all"), core.now)
    late = [b"late%d" % number for number in range(4)]
    assert browse(core, "delayed") == late
    assert sorted(browse(core, "waiting")) == sorted(
        b"%s%d" % (kind, number) for kind in (b"waits", b"first") for number in range(4)
    )
    counts = core.ask(queries.GroupCounts("default", "q"), queries.Counts)
    assert (counts.waiting, counts.delayed) == (8, 4)
    core.wait(HOUR_MS)
    assert (browse(core, "delayed"), total(core, "waiting")) == ([], 12)


def test_a_partition_that_is_not_there_is_told() -> None:
    core = Core()
    core.push(b"1")
    refuse(core, queries.Browse("default", "q", partition="none"), NotFound)


def test_an_empty_queue_has_nothing_in_any_state() -> None:
    core = Core()
    core.configure()
    for state in (None, *STATES):
        assert (browse(core, state), total(core, state)) == ([], 0)
