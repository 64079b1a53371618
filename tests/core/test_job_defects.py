"""Defects that jobs once had, each with the shortest way to meet it."""

from typing import Any

import pytest
from msgspec.structs import replace

from forebay.core.api import commands as c, jobs as job_commands, queries
from forebay.core.bounds import Limits
from forebay.core.delivery import pop
from forebay.core.errors import Busy, Damaged, Invalid
from forebay.core.ids import spans_of
from forebay.core.jobs import dependencies
from forebay.core.jobs.calendar import last_slot, next_slot
from forebay.core.keyvalue.keys import pack
from forebay.core.records import codec, commit as records_commit, keyspace
from forebay.core.state import PLAIN, Attributes, Identity, NamedLimit, Rate
from tests.core.harness import AT_ONCE, Core
from tests.sim.inside import crons_of, home, notifying


def after(core: Core, *ids: int, on_failed: str = "fail") -> int:
    return core.push(b"then", depends_on=spans_of(list(ids)), on_failed=on_failed)


def jobs(core: Core, *payloads: bytes, queue: str = "q", **own: object) -> job_commands.PushedJobs:
    partition = str(own.pop("partition", "default"))
    particulars = Identity(**own)  # type: ignore[arg-type]
    listed = [job_commands.Job(payload, partition, PLAIN, particulars) for payload in payloads or (b"1",)]
    return core.ask(job_commands.PushJobs("default", queue, listed), job_commands.PushedJobs)


@pytest.fixture
def core() -> Core:
    return Core()


@pytest.mark.parametrize("which", [0, 1, 2])
def test_an_update_of_one_of_several_dependencies_fails_nobody(core: Core, which: int) -> None:
    ids = [core.push(queue="first") for _ in range(3)]
    waiting = after(core, *ids)
    core.ask(c.Update("default", ids[which], b"new"), c.Pushed)
    assert core.state(waiting) == "parked"
    core.restart()
    core.pop(9, queue="first")
    core.ack(ids=ids)
    assert core.popped() == [b"then"]


def test_a_transaction_that_fails_and_acks_in_strict_order_is_refused_whole(core: Core) -> None:
    core.configure(ordering="partition")
    first = core.push(b"1", b"2", b"3")
    core.pop(3)
    core.commit()
    ops: list[job_commands.PushJobs | job_commands.PushFlow | c.Ack | c.Nack | job_commands.KvWrite] = [
        c.Nack("default", None, [first]),
        c.Ack("default", None, [first + 1]),
    ]
    with pytest.raises(Invalid, match="ids"):
        core.engine.apply(c.Transact("default", ops), core.now)
    assert core.engine.seal(core.now) == []


def test_a_cron_with_a_unique_key_whose_message_a_sweep_drops_goes_on(core: Core) -> None:
    core.configure(retention_ms=1_000)
    job = job_commands.Job(b"1", "default", PLAIN, Identity(unique_key="k"))
    core.ask(job_commands.CronPut("default", "n", "q", job, schedule="*/10 * * * * *"), queries.CronsFound)
    for _ in range(60):
        core.wait(1_000)
        core.commit()
    (cron,) = core.ask(queries.CronList("default"), queries.CronsFound).crons
    assert cron.fired > 1


def test_a_flow_with_a_child_that_was_pushed_and_dropped_long_ago_is_released(core: Core) -> None:
    core.configure(partition_retention_ms=1, completed_retention_ms=0)
    throttled = Identity(unique_key="k", dedup="throttle", window_ms=10_000_000)
    job = job_commands.Job(b"1", "p", PLAIN, throttled)
    core.ask(job_commands.PushJobs("default", "q", [job]), job_commands.PushedJobs)
    core.ack(core.pop().lease)
    for _ in range(5):
        core.commit()
        core.wait(30_000)
    flow = job_commands.FlowJob("q2", job_commands.Job(b"parent"), [job_commands.FlowJob("q", job)])
    core.ask(job_commands.PushFlow("default", flow), job_commands.FlowPushed)
    assert core.popped(queue="q2") == [b"parent"]


def same_after_restart(core: Core) -> queries.Counts:
    before = core.counts()
    core.restart()
    assert core.counts() == before
    return before


def test_dependents_that_fail_in_several_parts_are_counted_once(core: Core) -> None:
    target = core.push(queue="first")
    waiting = core.push(b"1", b"2", b"3", b"4", b"5", depends_on=spans_of([target]))
    core.cancel(waiting + 2)
    core.cancel(target)
    found = same_after_restart(core)
    assert (found.waiting, found.dead, found.cancelled, found.completed) == (0, 4, 1, 0)


def test_a_dependent_that_ignores_beside_one_that_fails_is_counted_once(core: Core) -> None:
    target = core.push(queue="first")
    after(core, target, on_failed="ignore")
    after(core, target)
    core.cancel(target)
    found = same_after_restart(core)
    assert (found.waiting, found.dead, found.completed) == (1, 1, 0)
    assert core.popped(9) == [b"then"]


def test_a_queues_own_limit_is_not_the_shared_one(core: Core) -> None:
    core.ask(job_commands.LimitPut("default", "x", NamedLimit(Rate(10))), queries.LimitsFound)
    core.configure(limits=("x",))
    core.push(*[b"1"] * 20)
    core.pop()
    core.configure(rate_limit=Rate(10))
    own, shared = core.engine.queues["default", "q"].groups["default"].limits
    assert own.bucket is not shared.bucket


@pytest.mark.parametrize("how", ["obliterate", "configure"])
def test_a_queue_that_leaves_a_shared_limit_wakes_those_it_held_back(core: Core, how: str) -> None:
    core.ask(job_commands.LimitPut("default", "x", NamedLimit(None, None, 1)), queries.LimitsFound)
    for queue in ("a", "b"):
        core.configure(queue, limits=("x",))
        core.push(queue=queue)
    core.pop(queue="a")
    assert core.popped(queue="b") == []
    core.engine.take_woken()
    if how == "obliterate":
        core.ask(c.Obliterate("default", "a"), c.Cleaned)
    else:
        core.configure("a", limits=())
    assert "b" in [queue.name for queue, _, _ in core.engine.take_woken()]
    assert core.popped(queue="b") == [b"1"]


def test_what_dies_because_it_can_not_be_read_has_its_consequences_at_once(core: Core) -> None:
    core.configure("first", max_attempts=1, backoff=AT_ONCE)
    target = core.push(queue="first")
    waiting = after(core, target)
    core.restart()
    core.engine.put_off(core.ask(c.Pop("default", "first"), c.Popped))
    core.restart()
    assert (core.state(target), core.state(waiting)) == ("dead", "dead")


def test_a_transaction_keeps_to_the_limits_as_a_whole() -> None:
    core = Core(Limits(queues_max=2, partitions_max=3))
    core.configure(max_size=10)
    core.push(b"1", b"2", b"3")
    several = [job_commands.PushJobs("default", "q", [job_commands.Job(b"1")] * 4)] * 2
    with pytest.raises(Busy, match="full"):
        core.engine.apply(c.Transact("default", list(several)), core.now)
    queues = [job_commands.PushJobs("default", f"q{at}", [job_commands.Job(b"1")]) for at in range(3)]
    with pytest.raises(Busy, match="queues"):
        core.engine.apply(c.Transact("default", list(queues)), core.now)
    lanes = [job_commands.PushJobs("default", "q", [job_commands.Job(b"1", f"p{at}")]) for at in range(4)]
    with pytest.raises(Busy, match="partitions"):
        core.engine.apply(c.Transact("default", list(lanes)), core.now)
    flow = job_commands.FlowJob(
        "q", job_commands.Job(b"1"), [job_commands.FlowJob("q", job_commands.Job(b"1"))] * 7
    )
    with pytest.raises(Busy, match="full"):
        core.engine.apply(job_commands.PushFlow("default", flow), core.now)
    assert core.counts().waiting == 3


def test_a_transaction_id_is_known_for_its_window_even_if_its_message_is_dropped(core: Core) -> None:
    core.configure(completed_retention_ms=0)
    first = jobs(core, transaction_id="t").ids
    core.ack(core.pop().lease)
    for _ in range(3):
        core.commit()
        core.wait(10_000)
    core.restart()
    assert jobs(core, transaction_id="t").ids == first


def test_the_last_of_millions_of_missed_slots_is_found_in_few_steps() -> None:
    year = (1_704_067_200_000, 1_735_516_800_000)
    slot = last_slot("* * * 1 1 *", "UTC", 0, 0, *year)
    assert slot == 1_704_153_599_000  # the last second of 1 January 2024
    assert next_slot("* * * 1 1 *", "UTC", 0, 0, slot) > year[1]


def test_what_is_known_already_is_answered_by_a_full_queue_too(core: Core) -> None:
    core.configure(max_size=2)
    request = job_commands.PushJobs(
        "default", "q", [job_commands.Job(b"1"), job_commands.Job(b"2")], request=("", "r")
    )
    first = core.ask(request, job_commands.PushedJobs)
    again = core.ask(request, job_commands.PushedJobs)
    assert (again.ids, again.duplicates) == (first.ids, [0, 1])


def test_a_pop_that_wants_several_waits_while_a_limit_of_a_partition_holds_them_back(core: Core) -> None:
    core.configure(partition_concurrency=1)
    core.push(b"1", b"2", b"3")
    assert core.popped(3, min_count=3) == []
    assert core.popped(3) == [b"1"]


def test_a_parked_message_among_others_does_not_keep_them_from_moving(core: Core) -> None:
    target = core.push(queue="first")
    one = core.push(b"1", delay_ms=100_000)
    parked = after(core, target)
    two = core.push(b"2", delay_ms=100_000)
    moved = core.ask(c.Move("default", [one, parked, two], delay_ms=0), c.Settled)
    assert (moved.count, list(moved.refused)) == (2, [parked])
    assert sorted(core.popped(9)) == [b"1", b"2"]


@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_transaction_id_of_a_job_that_replaces_is_kept_where_it_belongs(
    core: Core, elsewhere: bool
) -> None:
    jobs(core, unique_key="k")
    listed = [job_commands.Job(b"0", "p")] if elsewhere else []
    listed.append(job_commands.Job(b"2", own=Identity(unique_key="k", dedup="replace", transaction_id="t")))
    *_, first = core.ask(job_commands.PushJobs("default", "q", listed), job_commands.PushedJobs).ids
    core.restart()
    assert jobs(core, transaction_id="t").ids == [first]
    assert jobs(core, transaction_id="t", partition="p").duplicates == []


def test_the_time_to_live_of_a_dependency_that_the_log_left_behind_is_watched(core: Core) -> None:
    core.configure("first", completed_retention_ms=0)
    core.push(b"x", queue="first")
    target = core.push(b"1", queue="first", delay_ms=10_000_000, ttl_ms=20_000_000)
    core.push(b"x", queue="first")
    core.commit()
    core.ack(core.pop(5, queue="first").lease)
    for payload in (b"y", b"z"):
        core.commit()
        core.wait(20_000)
        core.push(payload, queue="first")
    waiting = after(core, target)
    core.wait(20_000_000)
    assert (core.state(target), core.state(waiting)) == ("expired", "dead")


@pytest.mark.parametrize("first", ["dependent", "death"])
def test_a_dead_letter_does_not_expire_for_those_who_wait_for_it(core: Core, first: str) -> None:
    core.configure("first", max_attempts=1, backoff=AT_ONCE)
    target = core.push(queue="first", ttl_ms=1_000)
    waiting = after(core, target, on_failed="wait") if first == "dependent" else 0
    core.nack(core.pop(queue="first").lease)
    waiting = waiting or after(core, target, on_failed="wait")
    core.wait(2_000)
    assert core.state(waiting) == "parked"
    core.ask(c.Requeue("default", "first"), c.Buried)
    core.wait(2)
    assert core.state(waiting) == "dead"


def test_a_message_in_line_that_died_before_its_group_was_planned_changes_no_count(core: Core) -> None:
    first = core.push(b"1")
    core.push(b"2", priority=-1)
    core.ask(c.Discard("default", [first]), c.Settled)
    found = same_after_restart(core)
    assert (found.waiting, found.dead) == (1, 1)
    core.ask(c.Requeue("default", "q"), c.Buried)
    assert same_after_restart(core).waiting == 2
    assert core.popped(9) == [b"1", b"2"]


@pytest.mark.parametrize("data", [b"1e400", b"9" * 5_000, b"[" * 3_000 + b"]" * 3_000])
def test_a_value_that_can_not_be_reckoned_with_is_refused(core: Core, data: bytes) -> None:
    key = pack(["k"])
    core.ask(
        job_commands.KvWrite("default", [job_commands.KvChange("set", key, data)]), job_commands.KvWritten
    )
    core.commit()
    for change in (
        job_commands.KvChange("sum", key, b"1"),
        job_commands.KvChange("append", pack(["l"]), data),
    ):
        with pytest.raises(Invalid, match="value"):
            core.engine.apply(job_commands.KvWrite("default", [change]), core.now)
    assert core.engine.seal(core.now) == []


def test_keys_if_undelivered_are_few_and_all_count(core: Core) -> None:
    many = tuple(pack([f"k{at}"]) for at in range(11))
    with pytest.raises(Invalid, match="keys_if_undelivered"):
        jobs(core, keys=many)
    jobs(core, b"12345", keys=many[:10])
    assert core.engine.queues["default", "q"].tied_bytes == 50
    core.restart()
    assert core.engine.queues["default", "q"].tied_bytes == 50
    core.ack(core.pop().lease)
    assert core.engine.queues["default", "q"].tied_bytes == 0


def test_a_cron_can_push_into_a_lane(core: Core) -> None:
    job = job_commands.Job(b"1", "lane", lane=True)
    core.ask(job_commands.CronPut("default", "n", "q", job, every_ms=1_000), queries.CronsFound)
    core.restart()
    core.wait(1_000)
    core.wait(1_000)
    assert core.popped(9) == [b"1"]


def test_a_log_of_jobs_without_attributes_stays_plain(core: Core) -> None:
    core.ask(
        job_commands.PushJobs("default", "q", [job_commands.Job(b"1", attributes=Attributes())]),
        job_commands.PushedJobs,
    )
    core.commit()
    assert core.engine.queues["default", "q"].partitions["default"].log.mixed == 0


FIELDS = (
    {"schedule": "* * *"},
    {"zone": "Nowhere/Now"},
    {"every_ms": 5},
    {"queue": "other"},
    {"missed": "few"},
)


@pytest.mark.parametrize("change", FIELDS, ids=str)
def test_a_cron_that_is_damaged_costs_its_queue_only(core: Core, change: dict[str, Any]) -> None:
    core.push(queue="fine")
    core.ask(
        job_commands.CronPut("default", "n", "q", job_commands.Job(b"1"), schedule="* * * * *"),
        queries.CronsFound,
    )
    core.commit()
    cron = crons_of(core.engine)["default"]["n"]
    queue = core.engine.queues["default", "q"]
    broken = codec.pack_cron(replace(cron, **change))
    commit = records_commit.Commit(
        queue.shard, core.engine.shards[queue.shard].numbering.epoch, core.now, [], [], []
    )
    commit.puts.append((keyspace.cron_key(queue.prefix, "n"), broken))
    core.store.commit([commit])
    core.restart()
    assert list(core.engine.damaged) == [("default", "q")]
    assert core.popped(queue="fine") == [b"1"]
    with pytest.raises(Damaged):
        core.push()


def test_damaged_values_of_a_tenant_cost_nobody_else_anything(core: Core) -> None:
    core.push(tenant="other")
    core.ask(
        job_commands.KvWrite("other", [job_commands.KvChange("set", pack(["k"]))]), job_commands.KvWritten
    )
    core.ask(
        job_commands.KvWrite("default", [job_commands.KvChange("set", pack(["k"]))]), job_commands.KvWritten
    )
    core.commit()
    shard = home(core.engine, "other")
    own = shard.names.own_prefix("other")
    commit = records_commit.Commit(shard.number, shard.numbering.epoch, core.now, [], [], [])
    commit.puts.append((keyspace.value_key(own, pack(["k"])), b"\xc1"))
    core.store.commit([commit])
    core.restart()
    with pytest.raises(Damaged):
        core.engine.apply(queries.KvGet("other", [pack(["k"])]), core.now)
    assert core.popped(tenant="other") == [b"1"]
    assert core.ask(queries.KvGet("default", [pack(["k"])]), queries.KvFound).values != [None]


@pytest.mark.parametrize("options", [{"rate_limit": Rate(5)}, {"partition_rate_limit": Rate(5)}], ids=str)
def test_after_a_restart_no_limit_has_tokens(core: Core, options: dict[str, Any]) -> None:
    core.configure(**options)
    core.push(*[b"1"] * 20)
    assert len(core.popped(20)) == 5
    core.restart()
    assert core.popped(20) == []
    core.wait(400)
    assert len(core.popped(20)) == 2


def test_what_the_telling_of_many_ends_is_seen_to_at_once(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dependencies, "STEP", 1)
    target = core.push(queue="first")
    middle = [after(core, target) for _ in range(5)]
    last = [after(core, each) for each in middle]
    core.cancel(target)
    for _ in range(20):
        core.restart()
        core.wait(0)
    assert {core.state(each) for each in (*middle, *last)} == {"dead"}


def test_acks_beside_a_message_that_many_wait_for_do_not_look_at_them(core: Core) -> None:
    first = core.push(b"1", b"2", queue="first")
    for _ in range(50):
        after(core, first)
    core.pop(2, queue="first")
    partition = core.engine.queues["default", "first"].partitions["default"]
    assert partition.waiting_over(first + 1 & 0xFFFFFFFF, (first + 1 & 0xFFFFFFFF) + 1) == []
    assert len(partition.waiting_over(0, 1)) == 50


def test_acks_in_any_order_of_what_is_waited_for_leave_few_rows(core: Core) -> None:
    first = core.push(*[b"1"] * 3_000, queue="first")
    waiting = core.push(b"then", depends_on=((first, 3_000),))
    core.pop(3_000, queue="first")
    partition = core.engine.queues["default", "first"].partitions["default"]
    core.ack(ids=list(range(first, first + 3_000, 2)))
    assert partition.dependents.size == 3
    core.restart()
    assert core.state(waiting) == "parked"
    core.ack(ids=list(range(first + 1, first + 3_000, 2)))
    while notifying(core.engine):
        core.wait(0)
    assert core.state(waiting) == "waiting"


def test_transaction_ids_go_with_a_partition_that_is_removed(core: Core) -> None:
    core.configure(partition_retention_ms=1, completed_retention_ms=0)
    jobs(core, transaction_id="t", partition="p")
    core.ack(core.pop().lease)
    for _ in range(5):
        core.commit()
        core.wait(20_000)
    assert "p" not in core.engine.queues["default", "q"].partitions
    core.restart()
    assert core.engine.damaged == {}
    assert jobs(core, transaction_id="t", partition="p").duplicates == []


def test_what_is_released_across_the_end_of_a_plan_comes_once(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = core.push(queue="first")
    for _ in range(6):
        after(core, target)
        core.commit()
    monkeypatch.setattr(pop, "PLANS_MAX", 3)
    core.pop(group="late")
    track = next(iter(core.engine.queues["default", "q"].groups["late"].tracks.values()))
    assert 0 < track.planned < 6
    core.pop(queue="first")
    core.ack(ids=[target])
    found: list[bytes] = []
    for _ in range(6):
        core.commit()
        found += core.popped(9, group="late")
    assert found == [b"then"] * 6
    assert core.counts(group="late").active == 6


@pytest.mark.parametrize("together", [False, True])
def test_a_flow_whose_parent_is_known_and_gone_is_answered(core: Core, together: bool) -> None:
    core.configure(completed_retention_ms=0)
    parent = job_commands.Job(b"p", own=Identity(transaction_id="t"))
    flow = job_commands.PushFlow(
        "default", job_commands.FlowJob("q", parent, [job_commands.FlowJob("child", job_commands.Job(b"1"))])
    )
    first = core.ask(flow, job_commands.FlowPushed)
    core.ack(core.pop(queue="child").lease)
    core.ack(core.pop().lease)
    for _ in range(3):
        core.commit()
        core.wait(20_000)
    if together:
        (again,) = core.ask(c.Transact("default", [flow]), c.Transacted).replies
    else:
        again = core.ask(flow, job_commands.FlowPushed)
    assert again == job_commands.FlowPushed(first.parent, [], first.durability, known=True)
