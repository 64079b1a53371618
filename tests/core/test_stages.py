"""Stages: written bit by bit, seen by nobody, and there all at once."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from forebay.core.api import commands as c, queries, stages as stage_commands
from forebay.core.api.stages import STAGED_MS
from forebay.core.bounds import ADOPTIONS_MAX
from forebay.core.errors import Busy, Conflict, Invalid, NotFound
from forebay.core.ids import OFFSET_BITS
from forebay.core.stages import write as stage_write
from forebay.core.state import stages as state_stages
from tests.core.harness import Core
from tests.core.staging import (
    HOUR_MS,
    QUERY,
    adopt,
    adopt_of,
    crash,
    logged,
    names,
    queue_of,
    restart,
    run,
    stage,
    stage_body,
    stage_records,
    staged,
    unstage,
    write_of,
)

Again = Callable[[Core], None]


def nothing(core: Core) -> None:
    """Neither a commit nor a restart."""


again = pytest.mark.parametrize("then", [nothing, Core.commit, restart])
"""In one commit, in two, and with a restart between."""


# Until it is adopted.


@again
def test_what_is_staged_is_seen_by_nobody(then: Again) -> None:
    core = Core()
    stage(core, "s", b"1", b"2")
    then(core)
    found = core.ask(queries.Describe("default", "q"), queries.QueueFound)
    assert (found.partitions, found.groups) == ([], [])
    assert core.popped(10) == []
    assert core.ask(queries.Offsets("default", "q"), queries.OffsetsFound).partitions == []
    assert core.ask(queries.Browse("default", "q"), queries.ShownAll).total == 0
    with pytest.raises(NotFound):
        logged(core)
    assert core.counts() == queries.Counts()


@again
def test_a_write_says_what_the_stage_has_so_far_and_when_it_expires(then: Again) -> None:
    core = Core()
    assert stage(core, "s", b"1", b"22") == stage_commands.Staged("s", 0, 2, 3, core.now + STAGED_MS)
    then(core)
    core.now += 10
    assert stage_body(core, "s", b"333") == stage_commands.Staged("s", 1, 3, 6, core.now + STAGED_MS)
    then(core)
    assert stage(core, "other", expire_ms=5_000) == stage_commands.Staged("other", 0, 1, 1, core.now + 5_000)
    assert queue_of(core).staged.bytes == 7


@again
def test_stages_are_adopted_in_the_order_they_are_named_and_each_in_the_order_it_was_written(
    then: Again,
) -> None:
    core = Core()
    stage(core, "a", b"a1")
    stage(core, "b", b"b1", b"b2")
    then(core)
    stage(core, "a", b"a2")
    stage_body(core, "b", b"b3")
    then(core)
    reply = adopt(core, 0, "b", "a")
    first = queue_of(core).partitions["default"].numbers[0][0] << OFFSET_BITS
    assert reply == state_stages.Adopted(core.now, 5, (("default", first, 0, 5),), "fsync")
    then(core)
    assert logged(core) == core.popped(10) == [b"b1", b"b2", b"b3", b"a1", b"a2"]
    assert names(core) == []
    assert queue_of(core).staged.bytes == 0


@again
def test_each_part_goes_to_its_partition_and_the_answer_has_the_range_of_each(then: Again) -> None:
    core = Core()
    core.push(b"before", partition="y")
    stage(core, "s", b"1", partition="x")
    stage(core, "s", b"2", b"3", partition="y")
    stage(core, "t", b"4", partition="x")
    then(core)
    reply = adopt(core, 0, "s", "t")
    parts = queue_of(core).partitions
    x, y = (parts[name].numbers[0][0] << OFFSET_BITS for name in "xy")
    assert reply.ranges == (("x", x, 0, 2), ("y", y + 1, 1, 2))
    then(core)
    assert (logged(core, "x"), logged(core, "y")) == ([b"1", b"4"], [b"before", b"2", b"3"])
    assert core.state(x + 1) == core.state(y + 2) == "waiting"


def test_an_adoption_moves_no_payload() -> None:
    core = Core()
    stage(core, "s", b"x" * 10_000, b"y" * 10_000)
    stage_body(core, "t", b"z" * 10_000)
    core.commit()
    before = dict(core.store._bodies)
    adopt(core, 0, "s", "t")
    commits = core.engine.seal(core.now)
    assert not any(commit.bodies for commit in commits)
    assert sum(len(value) for commit in commits for _, value in commit.puts) < 1_000
    core.store.commit(commits)
    assert core.store._bodies == before
    assert logged(core) == [b"x" * 10_000, b"y" * 10_000, b"z" * 10_000]


def test_who_waits_for_messages_is_told_of_those_that_are_adopted() -> None:
    core = Core()
    core.pop(group="g")
    stage(core, "s", b"1", partition="p")
    core.commit()
    core.engine.take_woken()
    adopt(core, 0, "s")
    assert core.engine.take_woken() == [(queue_of(core), None, "p")]


def test_a_message_has_the_time_of_its_adoption() -> None:
    core = Core()
    stage(core, "s", b"1")
    core.now += 777
    adopt(core, 0, "s")
    (delivery,) = core.pop().deliveries
    assert delivery.created_at == core.now
    core.now -= 1_000
    stage(core, "t", b"2", batch=1)
    adopt(core, 1, "t")
    (delivery,) = core.pop().deliveries
    assert delivery.created_at == core.now + 1_000, "times never decrease, even if the clock does"


def test_what_is_in_line_goes_to_groups_that_are_there_and_to_later_ones() -> None:
    core = Core()
    core.pop(group="there")
    stage(core, "s", b"1", b"2")
    adopt(core, 0, "s")
    assert core.popped(10, group="there") == [b"1", b"2"]
    restart(core)
    assert core.popped(10, group="later") == [b"1", b"2"]
    assert core.popped(10, group="there") == []


# Runs.


@again
def test_messages_with_attributes_are_scheduled_for_the_groups_that_are_there_and_for_later_ones(
    then: Again,
) -> None:
    core = Core()
    core.pop(group="there")
    runs = [run(1), run(2, priority=5), run(1, delay_ms=500), run(1)]
    stage(core, "s", b"plain", b"urgent", b"urgent too", b"late", b"last", runs=runs)
    then(core)
    adopt(core, 0, "s")
    then(core)
    for group in ("there", "later"):
        assert core.popped(10, group=group) == [b"urgent", b"urgent too", b"plain", b"last"]
    assert core.counts(group="there").delayed == core.counts(group="later").delayed == 1
    assert core.counts(group="unknown").delayed == 1
    then(core)
    core.wait(499)
    assert core.popped(10, group="there") == []
    core.wait(1)
    for group in ("there", "later", "much later"):
        assert b"late" in core.popped(10, group=group)
    assert logged(core) == [b"plain", b"urgent", b"urgent too", b"late", b"last"]


def test_delays_and_times_to_live_begin_with_the_adoption() -> None:
    core = Core()
    stage(core, "s", b"late", b"brief", runs=[run(1, delay_ms=100), run(1, ttl_ms=200)])
    core.now += 1_000
    first = adopt(core, 0, "s").ranges[0][1]
    assert (core.state(first), core.state(first + 1)) == ("delayed", "waiting")
    core.wait(199)
    assert (core.state(first), core.state(first + 1)) == ("waiting", "waiting")
    core.wait(1)
    assert (core.state(first), core.state(first + 1)) == ("waiting", "expired")
    assert core.popped(10) == [b"late"]


@again
def test_a_limit_of_attempts_and_the_last_in_first_out_are_kept(then: Again) -> None:
    core = Core()
    stage(core, "s", b"1", b"2", b"3", runs=[run(1), run(2, lifo=True, max_attempts=1)])
    then(core)
    adopt(core, 0, "s")
    then(core)
    popped = core.pop(3)
    assert [bytes(each) for part in popped.deliveries for each in part.payloads()] == [b"3", b"2", b"1"]
    core.nack(popped.lease, error="no")
    assert core.counts().dead == 2


def test_runs_are_cut_where_a_write_is_cut_into_segments() -> None:
    core = Core()
    payloads = [b"%05d" % at + b"x" * 995 for at in range(600)]
    stage(core, "s", *payloads, runs=[run(250), run(10, priority=7), run(340, delay_ms=60_000)])
    restart(core)
    assert len(stage_records(core)) == 3
    adopt(core, 0, "s")
    restart(core)
    assert logged(core) == payloads
    assert core.popped(1_000) == payloads[250:260] + payloads[:250]
    assert core.counts().delayed == 340


# A part that comes again, an adoption that comes again.


@again
def test_a_part_that_comes_again_changes_nothing(then: Again) -> None:
    core = Core()
    first = stage(core, "s", b"1", part=0)
    then(core)
    core.now += 5
    assert stage(core, "s", b"1", part=0) == first
    stage(core, "s", b"2", part=1)
    then(core)
    before = staged(core)
    assert stage(core, "s", b"1", part=0).part == 0
    assert stage(core, "s", b"2", part=1).count == 2
    assert staged(core) == before
    core.commit()
    assert core.engine.seal(core.now) == []
    adopt(core, 0, "s", count=2)
    assert logged(core) == [b"1", b"2"]


@again
def test_a_part_that_leaves_a_gap_is_a_conflict(then: Again) -> None:
    core = Core()
    with pytest.raises(Conflict):
        stage(core, "s", part=1)
    assert ("default", "q") not in core.engine.queues
    stage(core, "s", part=0)
    then(core)
    with pytest.raises(Conflict):
        stage(core, "s", part=2)
    assert stage(core, "s", part=1).part == 1


@again
def test_a_part_that_was_cut_into_segments_is_one_part(then: Again) -> None:
    core = Core()
    large = [b"x" * 200_000] * 4
    stage(core, "s", *large, part=0)
    then(core)
    assert stage(core, "s", *large, part=0).count == 4
    assert stage(core, "s", b"next", part=1).count == 5
    then(core)
    assert stage(core, "s", b"next", part=1).count == 5
    adopt(core, 0, "s", count=5)
    assert logged(core) == [*large, b"next"]


@again
def test_an_adoption_that_comes_again_is_answered_as_the_first_was(then: Again) -> None:
    core = Core()
    stage(core, "s", b"1", b"2")
    first = adopt(core, 0, "s", durability="os", keep_ms=HOUR_MS)
    then(core)
    core.now += 1_000
    second = adopt(core, 0, "s")
    assert (second.repeated, first.repeated) == (True, False)
    assert replace(second, repeated=False) == first
    assert adopt(core, 0, "other", "names", count=2) == second, "whatever it names"
    assert logged(core) == [b"1", b"2"]
    core.commit()
    assert core.engine.seal(core.now) == []


@again
def test_an_empty_batch_is_adopted_and_known_too(then: Again) -> None:
    core = Core()
    reply = adopt(core, 0)
    assert (reply.count, reply.ranges) == (0, ())
    then(core)
    assert adopt(core, 0).repeated
    with pytest.raises(Conflict):
        stage(core, "late", batch=0)


@again
def test_earlier_batches_are_answered_as_long_as_they_are_known_and_then_they_conflict(then: Again) -> None:
    core = Core()
    first = adopt(core, 3)
    for batch in range(5, 5 + ADOPTIONS_MAX - 1):
        adopt(core, batch)
    then(core)
    assert adopt(core, 3).at == first.at
    assert adopt(core, 3).repeated
    with pytest.raises(Conflict):
        adopt(core, 4)
    adopt(core, 1_000)
    then(core)
    with pytest.raises(Conflict):
        adopt(core, 3)
    assert adopt(core, 5).repeated
    prefix = queue_of(core).prefix
    core.commit()
    kept = [key for key, _ in core.store.scan(prefix + b"z", prefix + b"{")]
    assert len(kept) == ADOPTIONS_MAX


@again
def test_queries_have_batches_of_their_own(then: Again) -> None:
    core = Core()
    stage(core, "s", b"1", query="one", batch=7)
    stage(core, "t", b"2", query="two", batch=7)
    adopt(core, 7, "s", query="one")
    then(core)
    assert not adopt(core, 7, "t", query="two").repeated
    assert adopt(core, 7, "s", query="one").repeated
    assert logged(core) == [b"1", b"2"]


@again
def test_an_adoption_is_known_for_as_long_as_it_said(then: Again) -> None:
    core = Core()
    stage(core, "s", b"1")
    adopt(core, 0, "s", keep_ms=5_000)
    then(core)
    core.wait(4_999)
    assert adopt(core, 0, "s").repeated
    core.wait(1)
    assert queue_of(core).adopted == {}
    core.commit()
    prefix = queue_of(core).prefix
    assert core.store.scan(prefix + b"z", prefix + b"{") == []
    with pytest.raises(NotFound):
        adopt(core, 0, "s")
    assert logged(core) == [b"1"]


@again
def test_the_newest_adoption_of_a_query_says_how_long_all_are_known(then: Again) -> None:
    core = Core()
    adopt(core, 0, keep_ms=5_000)
    then(core)
    adopt(core, 1, keep_ms=9_000)
    then(core)
    core.wait(8_999)
    assert adopt(core, 0).repeated
    adopt(core, 2)
    then(core)
    core.wait(HOUR_MS)
    assert adopt(core, 0).repeated


# What is refused.


def refused(core: Core, command: c.Command, kind: type[Exception]) -> None:
    """A command is refused and changes nothing."""
    core.commit()
    before = staged(core)
    with pytest.raises(kind):
        core.engine.apply(command, core.now)
    assert staged(core) == before
    assert core.engine.seal(core.now) == []


@again
def test_if_a_stage_is_missing_nothing_is_adopted(then: Again) -> None:
    core = Core()
    refused(core, adopt_of(0, "s"), NotFound)
    assert ("default", "q") not in core.engine.queues
    stage(core, "s")
    then(core)
    refused(core, adopt_of(0, "s", "t"), NotFound)
    refused(core, adopt_of(0, "t", "s"), NotFound)
    assert adopt(core, 0, "s").count == 1


@again
def test_if_a_stage_has_more_or_fewer_messages_than_expected_nothing_is_adopted(then: Again) -> None:
    core = Core()
    stage(core, "s", b"1")
    stage(core, "t", b"1", b"2")
    then(core)
    refused(core, adopt_of(0, "s", "t", count=2), Conflict)
    refused(core, adopt_of(0, "s", "t", count=4), Conflict)
    refused(core, adopt_of(0, count=3), Conflict)
    refused(core, adopt_of(0, "s", "t", count=-1), Invalid)
    refused(core, adopt_of(0, "s", "s", count=2), Invalid)
    assert adopt(core, 0, "s", "t", count=3).count == 3


@again
def test_a_batch_that_comes_again_with_another_number_of_messages_is_another_batch(then: Again) -> None:
    core = Core()
    stage(core, "r", b"0", keys=["k"], query="other")
    adopt(core, 0, "r", query="other")
    stage(core, "s", b"1", b"2", b"3", keys=["k", None, None])
    assert adopt(core, 0, "s", count=3).duplicates == 1
    then(core)
    for count in (0, 2, 4):
        refused(core, adopt_of(0, count=count), Conflict)
        refused(core, adopt_of(0, "s", count=count), Conflict)
    assert adopt(core, 0, count=3).repeated
    assert adopt(core, 0).repeated


@again
def test_only_the_newest_batch_may_come_again_by_way_of_its_writers(then: Again) -> None:
    core = Core()
    adopt(core, 3)
    adopt(core, 4)
    then(core)
    for batch, place in ((4, "batch"), (3, "query"), (2, "query")):
        with pytest.raises(Conflict) as caught:
            stage(core, "s", batch=batch)
        assert caught.value.place == place


@again
def test_a_later_run_of_a_query_takes_the_place_of_those_before(then: Again) -> None:
    core = Core()
    stage(core, "s", b"1", b"2", run=1)
    stage(core, "t", b"3", run=1)
    stage(core, "of another", b"4", query="other")
    then(core)
    stage(core, "u", b"5", run=2)
    then(core)
    assert list(queue_of(core).stages) == ["of another", "u"]
    refused(core, write_of("v", b"6", run=1), Conflict)
    refused(core, write_of("s", b"6", run=1, part=1), Conflict)
    refused(core, write_of("u", b"6", run=3), Conflict)
    refused(core, write_of("v", b"6", run=-1), Invalid)
    refused(core, adopt_of(0, "s", "t"), NotFound)
    stage(core, "w", b"6", run=2)
    assert adopt(core, 0, "u", "w", count=2).count == 2
    assert logged(core) == [b"5", b"6"]
    restart(core)
    assert names(core) == ["of another"]


def test_the_room_that_an_earlier_run_took_is_there_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_write, "KEYED_MAX", 3)
    monkeypatch.setattr(stage_write, "STAGES_MAX", 2)
    core = Core()
    stage(core, "s", b"1", keys=["a"], run=1)
    stage(core, "t", b"1", b"2", keys=["b", "c"], run=1)
    refused(core, write_of("u", b"3", keys=["d"], run=1), Invalid)
    stage(core, "u", b"1", b"2", b"3", keys=["a", "b", "c"], run=2)
    assert queue_of(core).staged.keyed == 3
    refused(core, write_of("v", b"4", keys=["d"], query="other"), Busy)
    stage(core, "v", b"4", query="other")
    refused(core, write_of("w", b"4", query="a third"), Busy)


def test_what_was_staged_for_a_query_can_be_dropped_without_names() -> None:
    core = Core()
    for batch in (0, 1, 2):
        stage(core, f"s{batch}", b"1", batch=batch)
    stage(core, "other", b"1", query="other")
    told = core.ask(stage_commands.Unstage("default", "q", ["s0", "gone"], QUERY, 1), stage_commands.Unstaged)
    assert (told.stages, told.count) == (2, 2)
    assert list(queue_of(core).stages) == ["s2", "other"]
    refused(core, stage_commands.Unstage("default", "q", []), Invalid)
    refused(core, stage_commands.Unstage("default", "q", [], QUERY, -1), Invalid)
    assert core.ask(stage_commands.Unstage("default", "q", [], QUERY, 1), stage_commands.Unstaged).stages == 0


@again
def test_a_stage_is_for_one_query_and_batch(then: Again) -> None:
    core = Core()
    stage(core, "s", query="one", batch=1)
    stage(core, "any", query=None)
    then(core)
    for query, batch in (("one", 2), ("two", 1), (None, 0)):
        refused(core, write_of("s", query=query, batch=batch), Conflict)
    refused(core, write_of("any", query="one", batch=1), Conflict)
    refused(core, adopt_of(1, "s", query="two"), Conflict)
    refused(core, adopt_of(2, "s", query="one"), Conflict)
    assert adopt(core, 1, "s", "any", query="one").count == 2


@again
def test_a_late_writer_of_an_adopted_batch_is_refused(then: Again) -> None:
    core = Core()
    stage(core, "s", b"1", batch=4, part=0)
    adopt(core, 4, "s")
    then(core)
    for name, batch, part in (("s", 4, None), ("s", 4, 0), ("s", 4, 1), ("zombie", 4, None), ("old", 3, 0)):
        refused(core, write_of(name, batch=batch, part=part), Conflict)
    assert stage(core, "s", batch=5, part=0).part == 0
    assert stage(core, "other", query="other", batch=4).part == 0
    assert logged(core) == [b"1"]


@again
def test_what_late_writers_had_staged_goes_with_the_adoption(then: Again) -> None:
    core = Core()
    for name, batch in (("s", 2), ("speculative", 2), ("failed", 1), ("next", 3)):
        stage(core, name, batch=batch)
    stage(core, "unnamed", query=None)
    stage(core, "other", query="other", batch=1)
    then(core)
    adopt(core, 2, "s")
    then(core)
    assert sorted(names(core)) == ["next", "other", "unnamed"]
    restart(core)
    assert len(stage_records(core)) == 3


@again
def test_a_repeated_adoption_drops_the_stages_it_names_that_are_for_any_query(then: Again) -> None:
    core = Core()
    stage(core, "s", query=None)
    adopt(core, 0, "s")
    then(core)
    stage(core, "s", query=None)
    stage(core, "t", query=None)
    then(core)
    assert adopt(core, 0, "s").repeated
    assert names(core) == ["t"]
    restart(core)
    assert logged(core) == [b"1"]


# The end of what nobody adopts.


@again
def test_a_stage_that_nobody_adopts_expires_with_everything_in_it(then: Again) -> None:
    core = Core()
    stage(core, "s", expire_ms=5_000)
    stage(core, "t", expire_ms=9_000)
    core.now += 1_000
    stage(core, "s", expire_ms=5_000)
    then(core)
    core.wait(4_999)
    assert names(core) == ["s", "t"]
    core.wait(1)
    assert names(core) == ["t"]
    refused(core, adopt_of(0, "s"), NotFound)
    restart(core)
    core.wait(3_000)
    assert names(core) == []
    assert queue_of(core).staged.bytes == 0
    restart(core)
    assert core.store._bodies == {}
    assert stage_records(core) == []


def test_a_later_write_never_makes_a_stage_expire_sooner() -> None:
    core = Core()
    until = stage(core, "s", expire_ms=HOUR_MS).expires_at
    assert stage(core, "s", expire_ms=1_000).expires_at == until
    restart(core)
    core.wait(HOUR_MS - 1)
    assert names(core) == ["s"]
    core.wait(1)
    assert names(core) == []


def test_a_stage_that_expired_while_the_server_was_down_is_gone_when_it_is_back() -> None:
    core = Core()
    stage(core, "s", expire_ms=1_000)
    core.restart(down_ms=2_000)
    core.wait(0)
    assert names(core) == []


def test_the_core_says_when_the_next_stage_or_answer_is_over() -> None:
    core = Core()
    core.wait(0)
    until = stage(core, "s", expire_ms=7_000).expires_at
    assert core.engine.next_due_at() <= until
    core.wait(10)
    assert core.engine.next_due_at() == until
    adopt(core, 0, "s", keep_ms=3_000)
    core.wait(0)
    assert core.engine.next_due_at() == core.now + 3_000
    restart(core)
    core.wait(0)
    assert core.engine.next_due_at() == core.now + 3_000


@again
def test_a_stage_can_be_dropped_and_made_anew(then: Again) -> None:
    core = Core()
    stage(core, "s", b"1", b"2", part=0)
    stage(core, "s", b"3", part=1)
    stage(core, "t")
    then(core)
    assert unstage(core, "s", "unknown", "s") == (1, 3)
    assert unstage(core, "s") == (0, 0)
    then(core)
    assert names(core) == ["t"]
    assert stage(core, "s", b"new", part=0).count == 1
    adopt(core, 0, "s")
    restart(core)
    assert logged(core) == [b"new"]


def test_what_is_staged_and_dropped_in_one_commit_leaves_nothing_behind() -> None:
    core = Core()
    stage(core, "s")
    stage(core, "k", keys=["k"])
    unstage(core, "s", "k")
    restart(core)
    assert core.store._bodies == {}
    assert stage_records(core) == []


def test_drop_knows_its_limits() -> None:
    core = Core()
    with pytest.raises(NotFound):
        unstage(core, "s")
    stage(core, "s")
    with pytest.raises(Invalid):
        unstage(core)
    assert names(core) == ["s"]


@again
def test_a_queue_goes_with_its_stages_and_what_was_adopted_into_it(then: Again) -> None:
    core = Core()
    stage(core, "s", b"1")
    stage(core, "k", keys=["k"])
    stage(core, "left", batch=9, expire_ms=5_000)
    adopt(core, 0, "s", "k", keep_ms=5_000)
    then(core)
    core.engine.apply(c.Obliterate("default", "q"), core.now)
    core.wait(10_000)
    restart(core)
    assert core.store._bodies == {}
    assert ("default", "q") not in core.engine.queues
    stage(core, "left", b"2")
    assert not adopt(core, 0, "left").repeated
    assert logged(core) == [b"2"]
    core.wait(HOUR_MS)
    restart(core)


# A process that ends.


def test_what_was_not_committed_never_happened() -> None:
    core = Core()
    stage(core, "s", b"1", part=0)
    core.commit()
    stage(core, "s", b"2", part=1)
    stage(core, "t")
    crash(core)
    assert names(core) == ["s"]
    assert stage(core, "s", b"two", part=1).count == 2
    core.commit()
    adopt(core, 0, "s")
    crash(core)
    assert names(core) == ["s"]
    reply = adopt(core, 0, "s", count=2)
    assert not reply.repeated
    core.commit()
    crash(core)
    assert adopt(core, 0, "s").repeated
    assert logged(core) == [b"1", b"two"]
