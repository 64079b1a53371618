"""The end of a queue in two phases: closed while something of it is leased, then gone."""

import pytest

from forebay.core.api import commands as c, jobs as job_commands, queries
from forebay.core.errors import Conflict, ForebayError, NotFound
from forebay.core.queues import named_limits
from forebay.core.state import NamedLimit, Queue
from tests.core.harness import NOW, Core
from tests.sim.inside import closing

LEASE_MS = 5_000


def delete(core: Core, queue: str = "q") -> c.Closed:
    return core.ask(c.Delete("default", queue), c.Closed)


def refuse(core: Core, command: c.Command, kind: type[ForebayError]) -> None:
    core.commit()
    with pytest.raises(kind):
        core.engine.apply(command, core.now)
    assert core.engine.seal(core.now) == []


def is_gone(core: Core) -> bool:
    try:
        core.engine.apply(queries.Describe("default", "q"), core.now)
    except NotFound:
        return True
    except Conflict:
        return False
    raise AssertionError("the queue is neither gone nor closed")


def closed(core: Core) -> tuple[str, int]:
    """A queue that is closed: the lease it waits for, and the id of the first message it holds."""
    first = core.push(b"0", b"1", b"2")
    lease = core.pop(2, lease_ms=LEASE_MS).lease
    assert lease is not None
    assert delete(core) == c.Closed("q", 2, NOW + LEASE_MS)
    return lease, first


def test_what_is_not_leased_goes_at_once() -> None:
    core = Core()
    first = core.push(b"0")
    core.push(b"1", delay_ms=10)
    core.commit()
    assert delete(core) == c.Closed("q", 0, NOW)
    for restarted in (False, True):
        if restarted:
            core.restart()
        assert is_gone(core)
        refuse(core, queries.State("default", first), NotFound)
    refuse(core, c.Delete("default", "q"), NotFound)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_closed_queue_takes_and_gives_nothing(restarted: bool) -> None:
    core = Core()
    closed(core)
    if restarted:
        core.restart()
    for command in (
        c.Push("default", "q", [b"1"]),
        job_commands.PushJobs("default", "q", [job_commands.Job(b"1")]),
        c.Pop("default", "q"),
        c.Configure("default", "q", lease_ms=1),
        queries.Describe("default", "q"),
        c.Pause("default", "q"),
        queries.Browse("default", "q"),
        c.GroupPut("default", "q", "audit"),
        c.Seek("default", "q", "default", "all"),
    ):
        refuse(core, command, Conflict)
    assert core.ask(queries.ListQueues("default"), queries.QueuesFound).queues == []
    assert not is_gone(core)


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("how", ["ack", "nack", "ids"])
def test_a_closed_queue_goes_with_its_last_lease(restarted: bool, how: str) -> None:
    core = Core()
    lease, first = closed(core)
    if restarted:
        core.restart()
    if how == "ids":
        core.ack(ids=[first])
        assert not is_gone(core)
        core.ack(ids=[first + 1])
    elif how == "ack":
        core.ack(lease)
    else:
        core.nack(lease)
    assert is_gone(core)
    core.restart()
    assert is_gone(core)
    assert core.push(b"new") not in range(first, first + 3)
    assert core.popped(9) == [b"new"]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_closed_queue_goes_when_its_leases_would_have_ended(restarted: bool) -> None:
    core = Core()
    closed(core)
    if restarted:
        core.restart()
    assert core.engine.next_due_at() <= NOW + LEASE_MS
    core.wait(LEASE_MS - 1)
    assert not is_gone(core)
    core.wait(1)
    assert is_gone(core)


def test_it_goes_with_the_last_of_several_leases_of_several_groups() -> None:
    core = Core()
    core.push(b"0", b"1")
    one = core.pop(lease_ms=LEASE_MS).lease
    two = core.pop(lease_ms=2 * LEASE_MS).lease
    three = core.pop(group="audit", lease_ms=3 * LEASE_MS).lease
    assert delete(core) == c.Closed("q", 3, NOW + 3 * LEASE_MS)
    core.ack(two)
    core.ack(three)
    assert not is_gone(core)
    assert delete(core).active == 1
    core.ack(one)
    assert is_gone(core)


@pytest.mark.parametrize("restarted", [False, True])
def test_who_extends_a_lease_can_settle_it_as_long_as_it_was_told(restarted: bool) -> None:
    core = Core()
    lease, _ = closed(core)
    core.ask(c.Extend("default", lease, lease_ms=100 * LEASE_MS), c.Extended)
    if restarted:
        core.restart()
    core.wait(100 * LEASE_MS - 1)
    assert not is_gone(core)
    assert delete(core).until == core.now + 1
    core.ack(lease)
    assert is_gone(core)


def test_many_closed_queues_are_not_looked_at_with_every_command(monkeypatch: pytest.MonkeyPatch) -> None:
    core = Core()
    leases = []
    for number in range(20):
        core.push(b"0", queue=f"q{number}")
        leases.append(core.pop(queue=f"q{number}").lease)
        delete(core, f"q{number}")
    looked_at: list[str] = []
    real = named_limits.leased

    def leased(queue: Queue) -> int:
        looked_at.append(queue.name)
        return real(queue)

    monkeypatch.setattr(named_limits, "leased", leased)
    core.push(b"1", queue="other")
    core.pop(queue="other")
    assert looked_at == []
    core.ack(leases[7])
    assert looked_at == ["q7", "q7"]
    assert len(closing(core.engine)) == 19


def test_a_lease_that_is_given_back_lets_a_closed_queue_go() -> None:
    core = Core()
    core.push(b"0")
    popped = core.pop()
    delete(core)
    core.engine.give_back(popped, core.now)
    assert closing(core.engine) == {}


def test_a_limit_that_is_set_while_a_queue_is_closed_counts_what_that_has_leased() -> None:
    core = Core()
    core.ask(job_commands.LimitPut("default", "two", NamedLimit(concurrency=2)), queries.LimitsFound)
    for queue in ("q", "other"):
        core.ask(c.Configure("default", queue, limits=("two",)), queries.QueueFound)
        core.push(b"0", b"1", b"2", queue=queue)
    lease = core.pop(2).lease
    delete(core)
    core.ask(job_commands.LimitPut("default", "two", NamedLimit(concurrency=2)), queries.LimitsFound)
    assert core.popped(queue="other") == []
    core.ack(lease)
    assert core.popped(9, queue="other") == [b"0", b"1"]


@pytest.mark.parametrize("restarted", [False, True])
def test_it_goes_at_once_by_force(restarted: bool) -> None:
    core = Core()
    lease, _ = closed(core)
    if restarted:
        core.restart()
    assert core.ask(c.Obliterate("default", "q"), c.Cleaned).count == 3
    assert is_gone(core)
    refuse(core, c.Ack("default", lease), Conflict)
    core.restart()
    assert is_gone(core)


def test_other_queues_and_other_tenants_are_not_touched() -> None:
    core = Core()
    core.push(b"other", queue="other")
    core.push(b"theirs", tenant="acme")
    closed(core)
    assert core.popped(queue="other") == [b"other"]
    assert core.popped(tenant="acme") == [b"theirs"]
    refuse(core, c.Delete("evil", "q"), NotFound)


def test_crons_end_with_the_queue_that_is_closed() -> None:
    core = Core()
    core.ask(
        job_commands.CronPut("default", "n", "q", job_commands.Job(b"1"), None, 1_000), queries.CronsFound
    )
    closed(core)
    assert core.ask(queries.CronList("default"), queries.CronsFound).crons == []
    core.restart()
    core.wait(2_000)
    assert core.ask(queries.CronList("default"), queries.CronsFound).crons == []


def test_those_who_wait_for_its_messages_are_told() -> None:
    core = Core()
    _, first = closed(core)
    core.commit()
    waits = core.push(b"waits", queue="other", depends_on=((first, 1),), on_failed="ignore")
    assert core.state(waits) == "parked"
    core.ask(c.Obliterate("default", "q"), c.Cleaned)
    for _ in range(10):
        core.commit()
        core.wait(1)
    assert core.state(waits) == "waiting"
