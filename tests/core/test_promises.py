"""What push, pop, ack, nack, extend, groups, tenants and sweeps promise, one sentence each."""

import pytest

from forebay.core.api import commands as c, queries
from forebay.core.bounds import NUMBERS_MAX, Limits
from forebay.core.delivery.take import PIECES_MAX, RUNS_MAX
from forebay.core.errors import Busy, Conflict, ForebayError, Invalid, NotFound
from forebay.core.retention.sweep import MARKS_MAX
from forebay.core.shard.timers import SWEEP_MS
from forebay.core.state import PLAIN
from tests.core.harness import Core, payloads_of
from tests.sim.world import snapshot


def test_messages_are_popped_in_the_order_they_were_pushed() -> None:
    core = Core()
    core.push(b"1", b"2")
    core.push(b"3")
    assert core.popped(2) == [b"1", b"2"]
    assert core.popped(2) == [b"3"]
    assert core.popped(2) == []


def test_a_leased_message_is_nobody_elses_until_its_lease_ends() -> None:
    core = Core()
    core.forgive()
    core.push(b"1")
    core.pop(lease_ms=100)
    core.now += 99
    assert core.popped() == []
    core.now += 1
    again = core.pop()
    assert payloads_of(again) == [b"1"]
    assert (again.deliveries[0].deliveries, again.deliveries[0].failures) == (2, 1)


def test_a_nacked_message_comes_back_before_fresh_ones_and_counts_a_failure() -> None:
    core = Core()
    core.forgive()
    core.push(b"1", b"2", b"3")
    core.nack(core.pop(2).lease, error="no")
    reply = core.pop(5)
    assert payloads_of(reply) == [b"1", b"2", b"3"]
    assert [(each.failures, each.count) for each in reply.deliveries] == [(1, 2), (0, 1)]


def test_a_message_never_dies_of_failures_where_attempts_have_no_limit() -> None:
    core = Core()
    core.forgive()
    core.push(b"1")
    for failures in range(50):
        reply = core.pop()
        assert reply.deliveries[0].failures == failures
        core.nack(reply.lease)
    assert core.popped() == [b"1"]


def test_a_partial_ack_leaves_the_rest_leased() -> None:
    core = Core()
    first = core.push(*[b"%d" % n for n in range(6)])
    lease = core.pop(6).lease
    assert core.ack(lease, [first + 1, first + 4]).count == 2
    assert core.ack(lease, [first + 1], partial=True).refused == [first + 1]
    assert core.ack(lease).count == 4
    with pytest.raises(Conflict):
        core.ack(lease)


def test_what_a_lease_still_holds_comes_back_when_it_runs_out() -> None:
    core = Core()
    core.forgive()
    first = core.push(*[b"%d" % n for n in range(6)])
    lease = core.pop(6, lease_ms=50).lease
    core.ack(lease, [first, first + 3])
    core.now += 50
    assert core.popped(10) == [b"1", b"2", b"4", b"5"]


def test_a_late_ack_with_its_token_is_refused_and_the_new_lease_stays() -> None:
    core = Core()
    core.forgive()
    message = core.push()
    late = core.pop(lease_ms=10).lease
    core.now += 10
    current = core.pop().lease
    for command in (
        c.Ack("default", late),
        c.Ack("default", late, [message]),
        c.Nack("default", late),
        c.Extend("default", late),
    ):
        with pytest.raises(Conflict):
            core.engine.apply(command, core.now)
    assert core.state(message) == "active"
    assert core.ack(current).count == 1


def test_a_lease_that_is_over_is_refused_before_anybody_has_looked_at_it() -> None:
    for command in (c.Ack, c.Nack, c.Extend):
        core = Core()
        core.forgive()
        message = core.push()
        over = core.pop(lease_ms=10).lease
        core.commit()
        core.now += 10
        with pytest.raises(Conflict):
            core.engine.apply(command("default", over), core.now)
        with pytest.raises(Conflict):
            core.engine.apply(command("default", over, [message]), core.now)
        assert core.state(message) == "waiting"


def test_an_ack_by_id_without_a_token_means_the_groups_live_lease() -> None:
    core = Core()
    message = core.push()
    core.pop(owner=1)
    assert core.ack(ids=[message], owner=2).count == 1


def test_an_ack_by_id_means_the_connections_own_delivery_first() -> None:
    core = Core()
    message = core.push()
    core.pop(owner=1)
    core.pop(group="audit", owner=2)
    core.ack(ids=[message], owner=2)
    assert (core.state(message), core.state(message, "audit")) == ("active", "completed")


def test_ids_of_another_group_are_refused_when_the_group_is_named() -> None:
    core = Core()
    message = core.push()
    core.pop(group="audit", owner=1)
    with pytest.raises(Conflict):
        core.ack(ids=[message], group="default", owner=1)


def test_one_ack_may_be_about_messages_of_several_queues_and_shards() -> None:
    core = Core()
    ids = [core.push(queue=name) for name in ("a", "b", "c", "d", "e")]
    for name in ("a", "b", "c"):
        core.pop(queue=name)
    reply = core.ack(ids=ids, partial=True)
    assert (reply.count, sorted(reply.refused)) == (3, sorted(ids[3:]))


def test_extending_by_id_extends_the_whole_lease_and_never_shortens_it() -> None:
    core = Core()
    first = core.push(b"1", b"2")
    core.pop(2, lease_ms=100)
    extended = core.ask(c.Extend("default", ids=[first], lease_ms=500), c.Extended)
    assert (extended.expires_at, extended.count) == (core.now + 500, 1)
    assert core.ask(c.Extend("default", ids=[first], lease_ms=1), c.Extended).expires_at == core.now + 500
    core.now += 499
    assert core.state(first + 1) == "active"


def test_a_lease_that_was_extended_ends_once_and_at_its_last_time_only() -> None:
    core = Core()
    core.forgive()
    message = core.push()
    lease = core.pop(lease_ms=100).lease
    for ms in (500, 900, 900):
        core.ask(c.Extend("default", lease, lease_ms=ms), c.Extended)
    end = core.now + 900
    for restarted in (False, True):
        if restarted:
            core.restart()
        core.wait(440)
        assert (core.state(message), core.engine.next_due_at()) == ("active", end)
    core.wait(20)
    found = core.find(message)
    assert (found.state, found.failures) == ("waiting", 1)
    core.wait(900)
    assert core.find(message).failures == 1


def test_a_lease_without_a_time_of_its_own_lasts_as_long_as_the_queue_says() -> None:
    core = Core()
    core.ask(c.Configure("default", "q", lease_ms=250), queries.QueueFound)
    core.push()
    assert core.pop().deliveries[0].expires_at == core.now + 250


def test_each_group_reads_everything_on_its_own() -> None:
    core = Core()
    core.push(b"1")
    assert core.popped(group="a") == core.popped(group="b") == [b"1"]
    core.push(b"2")
    assert core.popped(group="a") == core.popped(group="b") == [b"2"]


def test_a_new_group_begins_at_all_at_new_or_at_a_time() -> None:
    core = Core()
    core.push(b"1")
    core.commit()
    core.now += 10
    core.push(b"2")
    core.commit()
    assert core.popped(9, group="all", start="all") == [b"1", b"2"]
    assert core.popped(9, group="new", start="new") == []
    assert core.popped(9, group="time", start=core.now - 9) == [b"2"]
    core.push(b"3")
    core.push(b"x", partition="made later")
    assert core.popped(9, group="new", start="all") == [b"3", b"x"]


def test_where_a_group_begins_counts_only_when_it_is_new() -> None:
    core = Core()
    core.push(b"1")
    core.pop(start="new")
    assert core.popped(start="all") == []


def test_partitions_of_a_queue_take_turns() -> None:
    core = Core()
    for name in ("x", "y", "z"):
        core.push(*[name.encode()] * 3, partition=name)
    assert [core.popped() for _ in range(6)] == [[b"x"], [b"y"], [b"z"]] * 2


def test_a_pop_may_name_its_partition() -> None:
    core = Core()
    core.push(b"1", partition="x")
    core.push(b"2", partition="y")
    assert core.popped(9, partition="y") == [b"2"]
    assert core.popped(9, partition="missing") == []


def test_a_pop_that_wants_more_than_there_is_takes_nothing() -> None:
    core = Core()
    core.push(b"1", partition="x")
    core.push(b"2", partition="y")
    assert core.popped(9, min_count=3) == []
    assert core.popped(9, min_count=2) == [b"1", b"2"]


def test_one_pop_is_bounded_in_bytes_but_always_makes_progress() -> None:
    core = Core(Limits(pop_bytes_max=1_000))
    core.push(b"x" * 5_000, b"y")
    core.commit()
    core.push(*[b"z" * 400] * 5)
    assert core.popped(9) == [b"x" * 5_000, b"y"]
    assert core.popped(9) == [b"z" * 400] * 5
    core.commit()
    for _ in range(4):
        core.push(b"w" * 600)
        core.commit()
    assert core.popped(9) == [b"w" * 600] * 2


def test_a_push_to_several_partitions_is_whole_or_not_at_all() -> None:
    core = Core(Limits(payload_bytes_max=10))
    with pytest.raises(Invalid):
        core.engine.apply(
            c.PushMany("default", "q", [("x", [b"1"], PLAIN), ("y", [b"1" * 11], PLAIN)]), core.now
        )
    with pytest.raises(NotFound):
        core.engine.apply(queries.Describe("default", "q"), core.now)


def test_another_tenants_things_look_exactly_like_missing_ones() -> None:
    core = Core()
    message = core.push(tenant="acme")
    lease = core.pop(tenant="acme").lease
    for foreign, missing in (
        (queries.Describe("evil", "q"), queries.Describe("evil", "nope")),
        (queries.Read("evil", "q", 0), queries.Read("evil", "nope", 0)),
        (queries.Offsets("evil", "q"), queries.Offsets("evil", "nope")),
        (queries.State("evil", message), queries.State("evil", message + (1 << 40))),
        (c.Ack("evil", lease), c.Ack("evil", "12345")),
        (c.Ack("evil", ids=[message]), c.Ack("evil", ids=[1])),
        (c.Extend("evil", lease), c.Extend("evil", "12345")),
    ):
        with pytest.raises(ForebayError) as theirs:
            core.engine.apply(foreign, core.now)
        with pytest.raises(ForebayError) as nobodys:
            core.engine.apply(missing, core.now)
        assert theirs.value.code == nobodys.value.code
        assert theirs.value.message.replace("queue q", "queue nope") == nobodys.value.message
    assert core.ask(queries.ListQueues("evil"), queries.QueuesFound).queues == []
    core.push(tenant="evil")
    assert core.popped(9, tenant="evil") == [b"1"]


def test_what_every_group_settled_is_kept_as_long_as_the_queue_says() -> None:
    core = Core()
    core.ask(c.Configure("default", "q", completed_retention_ms=60_000), queries.QueueFound)
    message = core.push()
    core.commit()
    core.push()
    core.ack(core.pop(2).lease)
    settled_by = core.now + SWEEP_MS
    while core.now < settled_by + 60_000 - 1:
        core.now += 1_000
        core.engine.tick(core.now)
        core.commit()
        if core.now < settled_by - SWEEP_MS + 60_000:
            assert core.state(message) == "completed"
    core.now += SWEEP_MS
    core.engine.tick(core.now)
    with pytest.raises(NotFound):
        core.state(message)


def test_what_is_settled_goes_when_it_takes_more_bytes_than_the_queue_says() -> None:
    core = Core()
    core.ask(c.Configure("default", "q", completed_retention_bytes=250), queries.QueueFound)
    for _ in range(5):
        core.push(b"x" * 100)
        core.commit()
    core.ack(core.pop(4).lease)
    core.now += SWEEP_MS
    core.engine.tick(core.now)
    found = core.ask(queries.Offsets("default", "q"), queries.OffsetsFound).partitions[0]
    assert (found.first, found.end) == (2, 5)
    core.restart()
    assert core.ask(queries.Offsets("default", "q"), queries.OffsetsFound).partitions[0].first == 2
    assert len(core.store.bodies([])) == 0
    assert core.popped() == [b"x" * 100]


def test_a_queue_that_nobody_reads_keeps_everything() -> None:
    core = Core()
    settings = c.Configure("default", "q", completed_retention_ms=0, completed_retention_bytes=0)
    core.ask(settings, queries.QueueFound)
    message = core.push()
    core.commit()
    core.now += 10 * SWEEP_MS
    core.engine.tick(core.now)
    assert core.state(message) == "waiting"


def test_what_a_new_group_begins_behind_is_swept_when_nobody_else_wants_it() -> None:
    core = Core()
    core.ask(c.Configure("default", "q", completed_retention_ms=0), queries.QueueFound)
    message = core.push()
    core.commit()
    core.pop(start="new")
    assert core.engine.next_due_at() <= core.now + SWEEP_MS
    core.now += SWEEP_MS
    core.engine.tick(core.now)
    with pytest.raises(NotFound):
        core.state(message)


def test_marks_of_what_was_settled_do_not_pile_up() -> None:
    core = Core()
    core.ask(c.Configure("default", "q", completed_retention_ms=60_000), queries.QueueFound)
    core.push(*[b"1"] * 2_000)
    core.commit()
    for _ in range(1_000):
        core.ack(core.pop().lease)
        core.now += SWEEP_MS
        core.engine.tick(core.now)
    assert len(core.engine.queues["default", "q"].partitions["default"].marks) <= MARKS_MAX + 2


def test_scattered_retries_are_delivered_over_several_pops() -> None:
    core = Core()
    core.forgive()
    first = core.push(*[b"1"] * (4 * RUNS_MAX))
    core.pop(4 * RUNS_MAX)
    core.nack(ids=[first + at for at in range(0, 4 * RUNS_MAX, 2)])
    assert len(core.popped(4 * RUNS_MAX)) == RUNS_MAX
    assert len(core.popped(4 * RUNS_MAX)) == RUNS_MAX
    assert core.popped() == []


def test_messages_pushed_one_by_one_are_delivered_over_several_pops() -> None:
    core = Core()
    for _ in range(PIECES_MAX + 10):
        core.push(b"1")
        core.engine.seal(core.now)
    assert len(core.popped(2 * PIECES_MAX)) == PIECES_MAX
    assert len(core.popped(2 * PIECES_MAX)) == 10


def test_acks_of_scattered_ids_leave_the_rest_leased() -> None:
    core = Core()
    first = core.push(*[b"1"] * 10_000)
    lease = core.pop(10_000).lease
    odd = [first + at for at in range(1, 10_000, 2)]
    assert core.ack(lease, odd).count == 5_000
    assert core.ack(ids=[first + 9_998, first + 9_999], partial=True).refused == [first + 9_999]
    assert core.ack(lease).count == 4_999


def test_counts_say_where_every_message_stands() -> None:
    core = Core()
    core.forgive()
    core.push(*[b"1"] * 10)
    core.ack(core.pop(3).lease)
    core.nack(core.pop(2).lease)
    core.pop(4)
    counts = core.ask(queries.Stats("default"), queries.StatsFound).counts
    assert (counts.waiting, counts.active, counts.completed) == (3, 4, 3)


def test_the_core_says_when_it_wants_to_be_woken() -> None:
    core = Core()
    core.forgive()
    core.push()
    core.pop(lease_ms=123)
    assert core.engine.next_due_at() == core.now + 123
    core.now += 123
    core.engine.tick(core.now)
    assert core.engine.take_woken()[-1][1] == "default"


LIMITS = Limits(
    payload_bytes_max=20,
    batch_max=5,
    lease_ms_max=1_000,
    wait_ms_max=500,
    queues_max=2,
    partitions_max=2,
    groups_max=2,
    read_bytes_max=100,
)


def apply(core: Core, command: c.Command) -> None:
    core.engine.apply(command, core.now)


AT_AND_PAST: dict[str, tuple[c.Command, c.Command]] = {
    "payload bytes": (c.Push("default", "q", [b"x" * 20]), c.Push("default", "q", [b"x" * 21])),
    "batch of a push": (c.Push("default", "q", [b"1"] * 5), c.Push("default", "q", [b"1"] * 6)),
    "empty push": (c.Push("default", "q", [b"1"]), c.Push("default", "q", [])),
    "batch of pushes": (
        c.PushMany("default", "q", [("default", [b"1"] * 5, PLAIN)]),
        c.PushMany("default", "q", [("default", [b"1"] * 3, PLAIN), ("x", [b"1"] * 3, PLAIN)]),
    ),
    "queue name": (c.Push("default", "q" * 256, [b"1"]), c.Push("default", "q" * 257, [b"1"])),
    "queue characters": (c.Push("default", "aZ09_.-", [b"1"]), c.Push("default", "a b", [b"1"])),
    "partition name": (
        c.Push("default", "q", [b"1"], "é" * 127),
        c.Push("default", "q", [b"1"], "é" * 128),
    ),
    "partition NUL": (c.Push("default", "q", [b"1"], "x"), c.Push("default", "q", [b"1"], "\0")),
    "lone surrogate": (c.Push("default", "q", [b"1"], "x"), c.Push("default", "q", [b"1"], "\ud800")),
    "group name": (c.Pop("default", "q", "g" * 255), c.Pop("default", "q", "g" * 256)),
    "empty group name": (c.Pop("default", "q", "g"), c.Pop("default", "q", "")),
    "pop count": (c.Pop("default", "q", count=5), c.Pop("default", "q", count=6)),
    "pop count 0": (c.Pop("default", "q", count=1), c.Pop("default", "q", count=0)),
    "min_count": (c.Pop("default", "q", count=5, min_count=5), c.Pop("default", "q", count=4, min_count=5)),
    "lease_ms": (c.Pop("default", "q", lease_ms=1_000), c.Pop("default", "q", lease_ms=1_001)),
    "lease_ms 0": (c.Pop("default", "q", lease_ms=1), c.Pop("default", "q", lease_ms=0)),
    "wait": (c.Pop("default", "q", wait_ms=500), c.Pop("default", "q", wait_ms=501)),
    "negative wait": (c.Pop("default", "q", wait_ms=0), c.Pop("default", "q", wait_ms=-1)),
    "start": (c.Pop("default", "q", start="new"), c.Pop("default", "q", start="soon")),
    "start in the future": (
        c.Pop("default", "q", start=1_700_000_000_000),
        c.Pop("default", "q", start=1_700_000_000_001),
    ),
    "read count": (
        queries.Read("default", "q", 0, max_count=5),
        queries.Read("default", "q", 0, max_count=6),
    ),
    "read bytes": (
        queries.Read("default", "q", 0, max_bytes=100),
        queries.Read("default", "q", 0, max_bytes=101),
    ),
    "read offset": (queries.Read("default", "q", 1), queries.Read("default", "q", 2)),
    "queue's lease_ms": (
        c.Configure("default", "q", lease_ms=1_000),
        c.Configure("default", "q", lease_ms=1_001),
    ),
    "queue's retention": (
        c.Configure("default", "q", completed_retention_ms=0),
        c.Configure("default", "q", completed_retention_ms=-1),
    ),
}


@pytest.mark.parametrize("name", AT_AND_PAST)
def test_a_limit_is_exact_and_breaking_it_changes_nothing(name: str) -> None:
    at, past = AT_AND_PAST[name]
    core = Core(LIMITS)
    core.push(b"1")
    apply(core, at)
    before = snapshot(core.engine)
    with pytest.raises(Invalid) as caught:
        apply(core, past)
    assert caught.value.field
    assert caught.value.accepted
    assert snapshot(core.engine) == before


@pytest.mark.parametrize(
    "settle",
    [
        c.Ack("default"),
        c.Ack("default", ids=[]),
        c.Ack("default", ids=list(range(6))),
        c.Ack("default", "nonsense"),
        c.Nack("default", "1", group=""),
        c.Extend("default", "1", lease_ms=0),
        c.Extend("default", "1", lease_ms=1_001),
    ],
)
def test_a_malformed_settle_is_invalid_and_changes_nothing(settle: c.Command) -> None:
    core = Core(LIMITS)
    core.push(b"1")
    core.pop()
    before = snapshot(core.engine)
    with pytest.raises(Invalid):
        apply(core, settle)
    assert snapshot(core.engine) == before


@pytest.mark.parametrize(
    ("full", "one_more"),
    [
        ([c.Push("default", name, [b"1"]) for name in "ab"], c.Push("default", "c", [b"1"])),
        ([c.Push("default", "a", [b"1"], name) for name in "xy"], c.Push("default", "a", [b"1"], "z")),
        ([c.Pop("default", "a", name) for name in "gh"], c.Pop("default", "a", "i")),
    ],
)
def test_queues_partitions_and_groups_are_limited(full: list[c.Command], one_more: c.Command) -> None:
    core = Core(LIMITS)
    for command in full:
        apply(core, command)
    before = snapshot(core.engine)
    with pytest.raises(Busy):
        apply(core, one_more)
    assert snapshot(core.engine) == before
    for command in full:
        apply(core, command)


@pytest.mark.parametrize(
    "command",
    [
        c.Push("default", "new", [b"1"]),
        c.Push("default", "q", [b"1"], "new"),
        c.PushMany("default", "q", [("default", [b"1"], PLAIN), ("new", [b"1"], PLAIN)]),
    ],
)
def test_a_shard_without_partition_numbers_is_busy_and_nothing_changes(command: c.Command) -> None:
    core = Core()
    core.push(b"1")
    for shard in core.engine.shards.values():
        shard.numbering.made = NUMBERS_MAX // shard.numbering.stride - 1
    before = snapshot(core.engine)
    with pytest.raises(Busy):
        apply(core, command)
    assert snapshot(core.engine) == before
    core.push(b"2")
