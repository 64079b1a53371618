"""Principals for some queues: the core looks at what every command is about."""

import pytest

from forebay.core.api import commands as c, queries
from forebay.core.api.jobs import CronDelete, CronPut, FlowJob, Job, KvChange, KvWrite, PushFlow, PushJobs
from forebay.core.api.principals import (
    ADMIN,
    ANY,
    INCLUDES,
    OWNER,
    POP,
    PUSH,
    READ,
    ROLES,
    WRITE,
    Principal,
    check_grant,
    matches,
)
from forebay.core.errors import Denied, NotFound
from forebay.core.state import Attributes, Identity
from tests.core.harness import NOW, Core

MINE = ("orders*", "mail")


@pytest.fixture
def core() -> Core:
    return Core()


def refused(core: Core, command: c.Command, patterns: tuple[str, ...] = MINE) -> bool:
    try:
        core.engine.check_queues(command, patterns)
    except Denied:
        return True
    return False


@pytest.mark.parametrize("spread", [False, True])
def test_commands_that_name_a_queue(core: Core, spread: bool) -> None:
    core.ask(c.TenantPut("acme", spread=spread), c.TenantFound)
    for queue, is_refused in (("orders.eu", False), ("mail", False), ("mails", True), ("bills", True)):
        for command in (
            c.Push("acme", queue, [b"1"]),
            c.Pop("acme", queue),
            PushJobs("acme", queue, [Job(b"1")]),
            c.Configure("acme", queue),
            queries.Browse("acme", queue),
            queries.FindJob("acme", "job", queue),
            CronPut("acme", f"{queue}/nightly", queue, Job(b"1"), every_ms=1_000),
            PushFlow("acme", FlowJob("orders", Job(b"1"), [FlowJob(queue, Job(b"2"))]))
            if not spread
            else None,
            c.Transact("acme", [PushJobs("acme", queue, [Job(b"1")])]),
        ):
            if command is not None:
                assert refused(core, command) == is_refused, command


@pytest.mark.parametrize("spread", [False, True])
def test_commands_that_lead_to_a_queue(core: Core, spread: bool) -> None:
    core.ask(c.TenantPut("acme", spread=spread), c.TenantFound)
    for queue, is_refused in (("orders", False), ("bills", True)):
        first = core.push(b"1", b"2", queue=queue, tenant="acme")
        popped = core.pop(queue=queue, tenant="acme")
        for command in (
            c.Ack("acme", popped.lease),
            c.Nack("acme", ids=[first]),
            c.Cancel("acme", [first + 1]),
            c.Update("acme", first + 1, b"3"),
            queries.State("acme", first),
            queries.Show("acme", [first]),
            queries.Await("acme", first, 0),
            c.TellProgress("acme", first, 5),
            c.Transact("acme", [c.Ack("acme", ids=[first])]),
        ):
            assert refused(core, command) == is_refused, command
    orders = c.Push("acme", "orders", [b"1"], attributes=Attributes(depends_on=((first, 1),)))
    assert refused(core, orders)
    missing = c.Cancel("acme", [77 << 32])
    assert not refused(core, missing)
    with pytest.raises(NotFound):
        core.engine.apply(missing, NOW)


def test_what_belongs_to_the_whole_tenant_is_refused(core: Core) -> None:
    dead = Identity(keys=(b"k",))
    for command in (
        queries.KvGet("default", [b"k"]),
        KvWrite("default", [KvChange("set", b"k", b"1")]),
        queries.LimitList("default"),
        c.TenantPut("acme"),
        queries.Measure(),
        PushJobs("default", "orders", [Job(b"1", own=dead)]),
    ):
        assert refused(core, command), command


def test_lists_show_the_queues_that_match(core: Core) -> None:
    for queue in ("orders", "bills", "mail"):
        core.push(queue=queue)
        core.ask(CronPut("default", queue, queue, Job(b"1"), every_ms=1_000), queries.CronsFound)
    found = core.ask(queries.ListQueues("default", MINE), queries.QueuesFound)
    assert [each.name for each in found.queues] == ["mail", "orders"]
    assert core.ask(queries.Stats("default", MINE), queries.StatsFound).queues == 2
    crons = core.ask(queries.CronList("default", within=MINE), queries.CronsFound)
    assert [each.name for each in crons.crons] == ["mail", "orders"]
    with pytest.raises(NotFound):
        core.engine.apply(queries.CronList("default", name="bills", within=MINE), NOW)
    for query in (queries.ListQueues, queries.Stats, queries.CronList):
        assert refused(core, query("default"))
        assert not refused(core, query("default", within=MINE))
    core.engine.apply(PushJobs("default", "bills", [Job(b"1", own=Identity(job_id="j"))]), NOW)
    assert core.engine.apply(queries.FindJob("default", "j"), NOW)
    with pytest.raises(NotFound):
        core.engine.apply(queries.FindJob("default", "j", within=MINE), NOW)


def test_a_cron_of_another_queue_is_neither_replaced_nor_deleted(core: Core) -> None:
    core.ask(CronPut("default", "nightly", "bills", Job(b"1"), every_ms=1_000), queries.CronsFound)
    assert refused(core, CronPut("default", "nightly", "orders", Job(b"1"), every_ms=1_000))
    assert refused(core, CronDelete("default", "nightly"))
    assert not refused(core, CronDelete("default", "weekly"))


def test_roles_include_others() -> None:
    for role in ROLES:
        assert {role, ANY} <= INCLUDES[role]
        assert INCLUDES[role] <= INCLUDES[ADMIN]
    for role, other in ((READ, PUSH), (PUSH, READ), (POP, READ), (WRITE, OWNER), (OWNER, ADMIN)):
        assert other not in INCLUDES[role]


def test_nobody_gives_away_more_than_he_has() -> None:
    owner = Principal("acme", OWNER)
    check_grant(owner, OWNER)
    check_grant(owner, POP)
    with pytest.raises(Denied):
        check_grant(owner, ADMIN)
    with pytest.raises(Denied):
        check_grant(Principal("acme", POP), PUSH)
    assert not Principal(role=ADMIN, queues=("a",)).is_admin


def test_a_pattern_of_many_stars_takes_no_time() -> None:
    assert not matches("*a" * 120, "a" * 100 + "b")
    assert matches("*" * 200, "anything")
    assert matches("*a*" * 50, "a" * 200)
