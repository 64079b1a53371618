"""Spread tenants: each queue lives in its own shard, and what would join two of them is refused by name."""

from collections.abc import Callable
from typing import Any

import pytest

from forebay.core.api import commands as c, jobs, queries
from forebay.core.api.jobs import FlowJob, Job
from forebay.core.api.stages import StageWrite
from forebay.core.bounds import Limits
from forebay.core.errors import Conflict, ForebayError, Invalid, NotFound
from forebay.core.ids import OFFSET_BITS, address, lease_token
from forebay.core.keyvalue.keys import pack
from forebay.core.routing.placement import home_of
from forebay.core.state import Attributes, Identity, NamedLimit, Rate
from tests.core.harness import Core
from tests.sim.checks import SHARDS
from tests.sim.inside import queues_in, tenants_in

T = "wide"
KEY = pack(["k"])
WRITE = jobs.KvWrite(T, [jobs.KvChange("set", KEY)])


class Wide(Core):
    """A spread tenant with two queues in one shard, one in another, and messages that wait or are leased."""

    def __init__(self) -> None:
        super().__init__()
        self.ask(c.TenantPut(T, True), c.TenantFound)
        self.near, self.beside = queues_in(self.engine, T, 1, 2)
        (self.far,) = queues_in(self.engine, T, 2)
        self.ids = {queue: self.push(b"1", b"2", queue=queue, tenant=T) for queue in self.queues}
        popped = {queue: self.pop(queue=queue, tenant=T) for queue in self.queues}
        self.leases = {queue: each.lease for queue, each in popped.items()}
        self.commit()

    @property
    def queues(self) -> tuple[str, str, str]:
        return self.near, self.beside, self.far


@pytest.fixture
def core() -> Wide:
    return Wide()


def test_each_queue_is_in_the_shard_of_its_name(core: Wide) -> None:
    places = [core.engine.queues[T, queue].shard for queue in core.queues]
    assert places == [1, 1, 2]
    core.restart()
    assert [core.engine.queues[T, queue].shard for queue in core.queues] == [1, 1, 2]
    for queue, message in core.ids.items():
        assert (message >> OFFSET_BITS) % SHARDS == core.engine.queues[T, queue].shard
        assert core.state(message, tenant=T) == "active"
        assert core.ask(c.Ack(T, core.leases[queue]), c.Settled).count == 1
        assert core.state(message, tenant=T) == "completed"


JOINING: dict[str, tuple[str, Callable[[Wide, str, str], c.Command]]] = {
    "a transaction over queues": (
        "ops",
        lambda core, one, other: c.Transact(
            T, [c.Ack(T, core.leases[one]), jobs.PushJobs(T, other, [Job(b"1")])]
        ),
    ),
    "a transaction with ids of two queues": (
        "ops",
        lambda core, one, other: c.Transact(
            T, [c.Ack(T, ids=[core.ids[one]]), c.Ack(T, ids=[core.ids[other]])]
        ),
    ),
    "dependencies between queues": (
        "depends_on",
        lambda core, one, other: c.Push(
            T, one, [b"1"], attributes=Attributes(depends_on=((core.ids[other], 1),))
        ),
    ),
    "jobs with dependencies between queues": (
        "depends_on",
        lambda core, one, other: jobs.PushJobs(
            T, one, [Job(b"1", attributes=Attributes(depends_on=((core.ids[other], 1),)))]
        ),
    ),
    "staged dependencies between queues": (
        "depends_on",
        lambda core, one, other: StageWrite(
            T, one, "s", payloads=[b"1"], runs=[(1, Attributes(depends_on=((core.ids[other], 1),)))]
        ),
    ),
    "a flow between queues": (
        "children",
        lambda core, one, other: jobs.PushFlow(T, FlowJob(one, Job(b"1"), [FlowJob(other, Job(b"2"))])),
    ),
    "a batch whose callback is in another queue": (
        "then",
        lambda core, one, other: jobs.PushJobs(T, one, [Job(b"1")], then=(other, Job(b"2"))),
    ),
    "an ack of ids of two queues": (
        "ids",
        lambda core, one, other: c.Ack(T, ids=[core.ids[one], core.ids[other]]),
    ),
    "a lease and ids of another queue": (
        "ids",
        lambda core, one, other: c.Ack(T, core.leases[one], ids=[core.ids[other]]),
    ),
    "a cancel over queues": (
        "ids",
        lambda core, one, other: c.Cancel(T, [core.ids[one] + 1, core.ids[other] + 1]),
    ),
    "a move over queues": (
        "ids",
        lambda core, one, other: c.Move(T, [core.ids[one] + 1, core.ids[other] + 1], priority=5),
    ),
    "named limits": ("limit", lambda core, one, other: jobs.LimitPut(T, "n", NamedLimit(Rate(5)))),
    "a queue under named limits": ("limits", lambda core, one, other: c.Configure(T, one, limits=("n",))),
    "keys_if_undelivered": (
        "keys_if_undelivered",
        lambda core, one, other: jobs.PushJobs(T, one, [Job(b"1", own=Identity(keys=(KEY,)))]),
    ),
    "values in a transaction with queues": (
        "ops",
        lambda core, one, other: c.Transact(T, [WRITE, jobs.PushJobs(T, one, [Job(b"1")])]),
    ),
    "a cron that is not named after its queue": (
        "name",
        lambda core, one, other: jobs.CronPut(T, f"{other}/n", one, Job(b"1"), every_ms=1_000),
    ),
}


@pytest.mark.parametrize("beside", [False, True], ids=["in another shard", "in the same shard"])
@pytest.mark.parametrize("what", JOINING)
def test_what_would_join_two_queues_is_refused_by_name_and_changes_nothing(
    core: Wide, what: str, beside: bool
) -> None:
    field, command = JOINING[what]
    with pytest.raises(Invalid, match="spread over shards") as refused:
        core.engine.apply(command(core, core.near, core.beside if beside else core.far), core.now)
    assert refused.value.field == field
    assert core.engine.seal(core.now) == []


def test_within_one_queue_everything_is_there(core: Wide) -> None:
    queue = core.near
    waiting = Attributes(depends_on=((core.ids[queue], 1),))
    pushed = core.ask(jobs.PushJobs(T, queue, [Job(b"3", attributes=waiting)]), jobs.PushedJobs)
    flow = FlowJob(queue, Job(b"4"), [FlowJob(queue, Job(b"5"))])
    parent = core.ask(jobs.PushFlow(T, flow), jobs.FlowPushed)
    assert core.ask(queries.Children(T, parent.parent), queries.ChildrenFound).total == 1
    assert core.state(pushed.ids[0], tenant=T) == "parked"
    ops: list[Any] = [c.Ack(T, core.leases[queue]), jobs.PushJobs(T, queue, [Job(b"6")])]
    core.ask(c.Transact(T, ops), c.Transacted)
    assert core.state(pushed.ids[0], tenant=T) == "waiting"
    core.ask(c.Cancel(T, [core.ids[queue] + 1, pushed.ids[0]]), c.Settled)
    (commit,) = core.engine.seal(core.now)
    assert commit.shard == 1


def test_values_live_in_the_shard_of_the_tenant(core: Wide) -> None:
    core.ask(WRITE, jobs.KvWritten)
    core.ask(c.Transact(T, [WRITE]), c.Transacted)
    assert [commit.shard for commit in core.engine.seal(core.now)] == [home_of(T, SHARDS)]
    assert core.ask(queries.KvGet(T, [KEY]), queries.KvFound).values != [None]
    assert core.ask(queries.LimitList(T), queries.LimitsFound).limits == []


def test_listing_stats_and_messages_are_gathered(core: Wide) -> None:
    names = [each.name for each in core.ask(queries.ListQueues(T), queries.QueuesFound).queues]
    assert names == sorted(core.queues)
    found = core.ask(queries.Stats(T), queries.StatsFound)
    assert (found.queues, found.counts.waiting, found.counts.active) == (3, 3, 3)
    wanted = [core.ids[core.far], address(4_000, 7), core.ids[core.near] + 1, core.ids[core.beside]]
    shown = core.ask(queries.Show(T, wanted), queries.ShownAll)
    assert [each.state.id for each in shown.deliveries] == [wanted[0], *wanted[2:]]
    assert core.ask(queries.Show(T, [address(4_000, 7)]), queries.ShownAll).deliveries == []


def test_messages_of_several_shards_are_bounded_as_one_reply() -> None:
    core = Wide()
    core.limits = Limits(read_bytes_max=4)
    core.restart()
    for queue in core.queues:
        core.push(b"123", queue=queue, tenant=T)
    ids = [core.ids[queue] + 2 for queue in (core.near, core.far)]
    for each in ids:
        core.ask(queries.Show(T, [each]), queries.ShownAll)
    with pytest.raises(Invalid, match="fewer"):
        core.engine.apply(queries.Show(T, ids), core.now)


def test_custom_ids_are_found_in_all_shards_the_newest_first(core: Wide) -> None:
    for queue in (core.far, core.near):
        core.wait(1_000)
        job = Job(b"1", own=Identity(job_id="mine"))
        core.ask(jobs.PushJobs(T, queue, [job]), jobs.PushedJobs)
        (shown,) = core.ask(queries.FindJob(T, "mine"), queries.ShownAll).deliveries
        assert shown.queue.name == queue
    (shown,) = core.ask(queries.FindJob(T, "mine", core.far), queries.ShownAll).deliveries
    assert shown.queue.name == core.far
    with pytest.raises(NotFound):
        core.engine.apply(queries.FindJob(T, "other"), core.now)


def test_crons_belong_to_their_queues(core: Wide) -> None:
    names = [f"{queue}/n" for queue in core.queues]
    for queue, name in zip(core.queues, names, strict=True):
        core.ask(jobs.CronPut(T, name, queue, Job(b"cron"), every_ms=1_000), queries.CronsFound)
    assert [each.name for each in core.ask(queries.CronList(T), queries.CronsFound).crons] == sorted(names)
    (one,) = core.ask(queries.CronList(T, name=names[2]), queries.CronsFound).crons
    assert one.queue == core.far
    core.wait(1_000)
    for queue in core.queues:
        assert core.popped(9, queue=queue, tenant=T) == [b"2", b"cron"]
    core.restart()
    core.ask(jobs.CronDelete(T, names[0]), jobs.CronDeleted)
    assert [each.name for each in core.ask(queries.CronList(T), queries.CronsFound).crons] == sorted(
        names[1:]
    )
    for name in (names[0], "none", f"{core.far}/none"):
        with pytest.raises(NotFound):
            core.engine.apply(jobs.CronDelete(T, name), core.now)
        with pytest.raises(NotFound):
            core.engine.apply(queries.CronList(T, name=name), core.now)


def test_crons_of_many_shards_are_listed_in_pages() -> None:
    core = Wide()
    core.limits = Limits(read_bytes_max=8)
    core.restart()
    for queue in core.queues:
        for at in range(4):
            core.ask(
                jobs.CronPut(T, f"{queue}/{at}", queue, Job(b"1234"), every_ms=1_000), queries.CronsFound
            )
    found: list[str] = []
    more = True
    while more:
        page = core.ask(queries.CronList(T, found[-1] if found else None), queries.CronsFound)
        found += [each.name for each in page.crons]
        more = page.more
    assert found == sorted(f"{queue}/{at}" for queue in core.queues for at in range(4))


def test_an_id_of_a_shard_where_the_tenant_has_nothing_is_missing(core: Wide) -> None:
    (other,) = tenants_in(core.engine, 3)
    theirs = core.push(tenant=other)
    popped = core.pop(tenant=other)
    commands: list[tuple[c.Command, type[ForebayError]]] = [
        (queries.State(T, theirs), NotFound),
        (c.Cancel(T, [theirs]), NotFound),
        (c.Ack(T, popped.lease), Conflict),
        (c.Ack(T, ids=[theirs]), Conflict),
        (c.Ack(T, lease_token(4_000, 1)), Conflict),
        (c.Extend(T, lease_token(0, 1)), Conflict),
        (queries.Await(T, theirs, 0), NotFound),
        (c.Push(T, core.near, [b"1"], attributes=Attributes(depends_on=((theirs, 1),))), NotFound),
    ]
    core.commit()
    for command, error in commands:
        with pytest.raises(error):
            core.engine.apply(command, core.now)
    assert core.engine.seal(core.now) == []
    mine = core.ids[core.near] + 1
    assert core.ask(c.Cancel(T, [mine, theirs]), c.Settled) == c.Settled(1, [theirs])
    assert core.state(theirs, tenant=other) == "active"


def test_a_whole_tenant_never_asks_another_shard(core: Wide) -> None:
    """An id or a lease of another shard is missing, whatever is there."""
    (mine,) = tenants_in(core.engine, 3)
    core.push(tenant=mine)
    theirs = core.ids[core.near]
    with pytest.raises(NotFound):
        core.state(theirs, tenant=mine)
    with pytest.raises(Conflict):
        core.engine.apply(c.Ack(mine, core.leases[core.near]), core.now)
    assert core.ask(queries.Show(mine, [theirs]), queries.ShownAll).deliveries == []


@pytest.mark.parametrize("shard", range(SHARDS))
def test_an_id_of_another_tenant_is_missing_wherever_it_lies(core: Wide, shard: int) -> None:
    """What a command does must not depend on a hash."""
    (other,) = tenants_in(core.engine, shard)
    theirs = core.push(tenant=other)
    mine = core.ids[core.near] + 1
    assert core.ask(c.Cancel(T, [mine, theirs]), c.Settled) == c.Settled(1, [theirs])
    for command in (c.Cancel(T, [theirs]), queries.State(T, theirs)):
        with pytest.raises(NotFound):
            core.engine.apply(command, core.now)
    with pytest.raises(NotFound):
        core.engine.apply(c.Requeue(T, core.near, ids=[theirs]), core.now)
    with pytest.raises(Invalid) as refused:
        core.engine.apply(c.Requeue(T, core.near, ids=[core.ids[core.far]]), core.now)
    assert refused.value.field == "ids"
    with pytest.raises(NotFound):
        core.engine.apply(jobs.LimitPut(T, "n", None), core.now)
