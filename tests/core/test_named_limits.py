"""Limits that have names: queues of a tenant share them, whatever becomes of the queues."""

import pytest

from forebay.core.api import commands as c, jobs as job_commands, queries
from forebay.core.api.checks import RATE_MAX
from forebay.core.errors import Busy, Invalid, NotFound
from forebay.core.queues import named_limits
from forebay.core.state import NamedLimit, Rate
from tests.core.harness import Core
from tests.core.limiting import active, fill, got, ids_of, share, woken


@pytest.fixture
def core() -> Core:
    return Core()


def test_queues_share_a_limit_that_has_a_name(core: Core) -> None:
    share(core, rate_limit=Rate(10), concurrency=7)
    for queue in "abcd":
        core.configure(queue, limits=("n",))
        fill(core, queue=queue)
    popped = [core.pop(3, queue) for queue in "abcd"]
    assert [len(ids_of(each)) for each in popped] == [3, 3, 1, 0]
    assert active(core) == 7
    core.engine.take_woken()
    core.ack(popped[0].lease)
    assert ("d", "default") in woken(core)
    assert got(core, queue="d") == 3
    core.ack(popped[1].lease)
    assert got(core, queue="a") == 0  # ten tokens are spent
    core.wait(100)
    assert got(core, queue="b") == 1


def test_a_named_limit_is_one_for_all_groups(core: Core) -> None:
    share(core, concurrency=3)
    core.configure(limits=("n",))
    fill(core)
    assert [got(core, 2, group=group) for group in ("default", "a", "b")] == [2, 1, 0]


def test_a_queue_keeps_to_all_its_limits(core: Core) -> None:
    share(core, "few", concurrency=4)
    share(core, "slow", rate_limit=Rate(6))
    core.configure(limits=("few", "slow"), concurrency=5)
    fill(core)
    popped = core.pop(9)
    assert len(ids_of(popped)) == 4
    core.ack(popped.lease)
    assert got(core) == 2


def test_a_name_that_is_no_limit_yet_limits_nothing_until_it_is_one(core: Core) -> None:
    core.configure(limits=("n",))
    fill(core)
    assert got(core, 5) == 5
    share(core, concurrency=6)
    assert active(core) == 5
    assert got(core) == 1
    core.restart()
    assert active(core) == 6
    assert got(core) == 0


def test_a_limit_that_is_removed_holds_nothing_back(core: Core) -> None:
    share(core, concurrency=1)
    core.configure(limits=("n",))
    fill(core)
    assert (got(core), got(core)) == (1, 0)
    core.engine.take_woken()
    assert core.ask(job_commands.LimitPut("default", "n", None), queries.LimitsFound).limits == []
    assert ("q", None) in woken(core)
    assert got(core, 9) == 9
    core.restart()
    assert got(core) == 90


def test_a_limit_that_is_set_again_keeps_its_tokens_and_counts(core: Core) -> None:
    share(core, rate_limit=Rate(3), concurrency=5)
    core.configure(limits=("n",))
    fill(core)
    assert got(core) == 3
    share(core, rate_limit=Rate(3), concurrency=4)
    assert active(core) == 3
    assert got(core) == 0
    core.wait(1_000)
    assert got(core) == 1


def test_an_obliterated_queue_frees_what_it_had_of_a_limit(core: Core) -> None:
    share(core, concurrency=2)
    for queue in ("a", "b"):
        core.configure(queue, limits=("n",))
        fill(core, queue=queue)
    assert (got(core, queue="a"), got(core, queue="b")) == (2, 0)
    core.engine.take_woken()
    core.ask(c.Obliterate("default", "a"), c.Cleaned)
    assert active(core) == 0
    assert got(core, queue="b") == 2


def test_who_was_held_back_for_an_obliterated_queue_is_woken(core: Core) -> None:
    share(core, concurrency=2)
    for queue in ("a", "b"):
        core.configure(queue, limits=("n",))
        fill(core, queue=queue)
    assert (got(core, queue="a"), got(core, queue="b")) == (2, 0)
    core.engine.take_woken()
    core.ask(c.Obliterate("default", "a"), c.Cleaned)
    assert {("b", None), ("b", "default")} & woken(core)


def test_who_was_held_back_for_a_queue_that_leaves_the_limit_is_woken(core: Core) -> None:
    share(core, concurrency=2)
    for queue in ("a", "b"):
        core.configure(queue, limits=("n",))
        fill(core, queue=queue)
    assert (got(core, queue="a"), got(core, queue="b")) == (2, 0)
    core.engine.take_woken()
    core.configure("a", limits=())
    assert {("b", None), ("b", "default")} & woken(core)


def test_a_limit_of_its_own_does_not_spend_the_tokens_of_a_named_one(core: Core) -> None:
    share(core, rate_limit=Rate(4))
    core.configure(limits=("n",))
    fill(core)
    core.pop()
    core.configure(rate_limit=Rate(4))
    core.wait(10_000)
    assert got(core) == 4
    core.wait(1_000)
    assert got(core) == 4


def test_limits_of_other_tenants_look_as_if_they_were_not_there(core: Core) -> None:
    share(core, concurrency=1)
    assert core.ask(queries.LimitList("acme"), queries.LimitsFound).limits == []
    with pytest.raises(NotFound):
        core.ask(job_commands.LimitPut("acme", "n", None), queries.LimitsFound)
    core.ask(c.Configure("acme", "q", limits=("n",)), queries.QueueFound)
    core.push(*[b"x"] * 5, tenant="acme")
    assert len(core.popped(9, tenant="acme")) == 5
    assert active(core) == 0


# Bad input.


@pytest.mark.parametrize(
    ("limit", "named"),
    [
        (NamedLimit(), "rate_limit"),
        (NamedLimit(Rate(0)), "rate_limit"),
        (NamedLimit(Rate(RATE_MAX + 1)), "rate_limit"),
        (NamedLimit(Rate(1, per_ms=0)), "rate_limit.per_ms"),
        (NamedLimit(Rate(1, burst=-1)), "rate_limit.burst"),
        (NamedLimit(None, Rate(-1)), "byte_limit"),
        (NamedLimit(None, Rate(1, burst=RATE_MAX + 1)), "byte_limit.burst"),
        (NamedLimit(concurrency=-1), "concurrency"),
    ],
)
def test_a_bad_limit_changes_nothing(core: Core, limit: NamedLimit, named: str) -> None:
    share(core, concurrency=1)
    core.commit()
    with pytest.raises(Invalid) as refused:
        core.ask(job_commands.LimitPut("default", "n", limit), queries.LimitsFound)
    assert refused.value.field == named
    assert not core.engine.seal(core.now)
    assert [each.limit for each in core.ask(queries.LimitList("default"), queries.LimitsFound).limits] == [
        NamedLimit(concurrency=1)
    ]


def test_a_limit_needs_a_name_and_to_be_there_to_be_removed(core: Core) -> None:
    for name, error in (("", Invalid), ("n" * 256, Invalid), ("n", NotFound)):
        with pytest.raises(error):
            core.ask(job_commands.LimitPut("default", name, None), queries.LimitsFound)
    assert not core.engine.seal(core.now)


def test_a_tenant_has_only_so_many_limits(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_limits, "NAMED_LIMITS_MAX", 2)
    share(core, "a", concurrency=1)
    share(core, "b", concurrency=1)
    core.commit()
    with pytest.raises(Busy):
        share(core, "c", concurrency=1)
    assert not core.engine.seal(core.now)
    share(core, "b", concurrency=2)
