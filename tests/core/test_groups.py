"""Groups that are made before anybody pops for them, and those that are given up."""

from typing import Any

import pytest

from forebay.core.api import commands as c, queries
from forebay.core.bounds import Limits
from forebay.core.errors import Busy, Conflict, ForebayError, Invalid, NotFound
from forebay.core.shard.timers import SWEEP_MS
from tests.core.harness import NOW, Core

HOUR_MS = 3_600_000


def put(core: Core, group: str = "audit", start: Any = "all") -> list[str]:
    found = core.ask(c.GroupPut("default", "q", group, start), queries.QueueFound)
    return [each.name for each in found.groups]


def delete(core: Core, group: str = "audit") -> list[str]:
    found = core.ask(c.GroupDelete("default", "q", group), queries.QueueFound)
    return [each.name for each in found.groups]


def groups(core: Core) -> list[str]:
    return [each.name for each in core.ask(queries.Describe("default", "q"), queries.QueueFound).groups]


def refuse(core: Core, command: c.Command, kind: type[ForebayError]) -> None:
    core.commit()
    with pytest.raises(kind):
        core.engine.apply(command, core.now)
    assert core.engine.seal(core.now) == []


def read_all(core: Core, group: str = "audit") -> list[bytes]:
    return core.popped(100, group=group)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_group_begins_where_it_is_told_to(restarted: bool) -> None:
    core = Core()
    core.push(b"old")
    core.commit()
    core.wait(10)
    core.push(b"mid")
    assert put(core, "all") == ["all"]
    assert put(core, "new", "new") == ["all", "new"]
    assert put(core, "time", NOW + 5) == ["all", "new", "time"]
    core.push(b"young")
    if restarted:
        core.restart()
    assert read_all(core, "all") == [b"old", b"mid", b"young"]
    assert read_all(core, "new") == [b"young"]
    assert read_all(core, "time") == [b"mid", b"young"]


def test_a_group_that_is_there_stays_as_it_is() -> None:
    core = Core()
    core.push(b"0", b"1")
    core.ack(core.pop(group="audit").lease)
    assert put(core, start="all") == put(core, start="new") == ["audit"]
    assert read_all(core) == [b"1"]


def test_a_group_of_a_queue_that_is_missing_is_not_made() -> None:
    core = Core()
    refuse(core, c.GroupPut("default", "q", "audit"), NotFound)
    refuse(core, c.GroupDelete("default", "q", "audit"), NotFound)
    core.push(b"1")
    refuse(core, c.GroupDelete("default", "q", "audit"), NotFound)
    refuse(core, c.GroupPut("evil", "q", "audit"), NotFound)
    refuse(core, c.GroupPut("default", "q", ""), Invalid)
    refuse(core, c.GroupPut("default", "q", "audit", "sometime"), Invalid)
    refuse(core, c.GroupPut("default", "q", "audit", core.now + 1), Invalid)
    refuse(core, c.GroupDelete("default", "q", ""), Invalid)


def test_there_are_so_many_groups_and_room_again_when_one_goes() -> None:
    core = Core(Limits(groups_max=2))
    core.push(b"1")
    put(core, "a")
    put(core, "b")
    refuse(core, c.GroupPut("default", "q", "c"), Busy)
    put(core, "a")
    delete(core, "a")
    assert put(core, "c") == ["b", "c"]


def busy_group(core: Core) -> tuple[str, int]:
    """A group that has leased, delayed, failed, cancelled and buried something; a lease of it, and an id."""
    core.configure(max_attempts=1)
    first = core.push(*[b"%d" % at for at in range(8)])
    core.push(b"later", delay_ms=HOUR_MS)
    core.push(b"urgent", priority=5)
    lease = core.pop(4, group="audit").lease
    assert lease is not None
    core.ack(ids=[first], group="audit")
    core.nack(ids=[first + 1], group="audit")
    core.cancel(first + 6, group="audit")
    core.ask(c.Move("default", [first + 5], "audit", delay_ms=HOUR_MS), c.Settled)
    return lease, first


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("committed", [False, True])
def test_nothing_is_left_of_a_group_that_is_deleted(restarted: bool, committed: bool) -> None:
    core = Core()
    lease, first = busy_group(core)
    core.pop(2)
    if committed:
        core.commit()
    assert delete(core) == ["default"]
    if restarted:
        core.restart()
    assert groups(core) == ["default"]
    for command in (c.Ack("default", lease), c.Extend("default", lease), c.Nack("default", lease)):
        refuse(core, command, Conflict)
    assert core.counts(group="audit").dead == core.counts(group="audit").active == 0
    assert core.ask(queries.ListDead("default", "q", "audit"), queries.DeadFound).total == 0
    assert sorted(read_all(core)) == sorted([b"urgent", *[b"%d" % at for at in range(8)]])
    assert core.find(first + 1, "audit").deliveries == 1
    core.wait(HOUR_MS)
    assert b"later" in read_all(core)


@pytest.mark.parametrize("restarted", [False, True])
def test_others_read_on_when_a_group_is_deleted(restarted: bool) -> None:
    core = Core()
    busy_group(core)
    mine = core.pop(3).lease
    before = core.counts()
    delete(core)
    if restarted:
        core.restart()
    assert core.counts() == before
    assert core.ack(mine).count == 3


@pytest.mark.parametrize("restarted", [False, True])
def test_a_group_that_is_made_again_starts_where_it_is_told_to(restarted: bool) -> None:
    core = Core()
    core.push(b"0", b"1")
    core.ack(core.pop(2, group="audit").lease)
    delete(core)
    if restarted:
        core.restart()
    put(core, start="new")
    core.push(b"2")
    if restarted:
        core.restart()
    assert read_all(core) == [b"2"]
    delete(core)
    assert read_all(core) == [b"0", b"1", b"2"]


def test_the_group_default_can_not_go() -> None:
    core = Core()
    core.push(b"1")
    core.pop()
    refuse(core, c.GroupDelete("default", "q", "default"), Conflict)
    assert groups(core) == ["default"]


def test_a_deleted_group_holds_nothing_back() -> None:
    core = Core()
    core.configure(completed_retention_ms=0)
    put_at = core.push(b"0", b"1")
    core.pop(group="audit")
    core.ack(core.pop(2).lease)
    core.commit()
    core.wait(2 * SWEEP_MS)
    assert core.state(put_at) == "completed"
    delete(core)
    core.commit()
    core.wait(2 * SWEEP_MS)
    found = core.ask(queries.Describe("default", "q"), queries.QueueFound)
    assert [(each.first, each.end) for each in found.partitions] == [(2, 2)]


def test_a_group_that_is_deleted_in_the_commit_it_is_made_in_was_never_there() -> None:
    core = Core()
    core.push(b"1")
    core.commit()
    put(core)
    core.pop(group="audit")
    delete(core)
    core.restart()
    assert groups(core) == []
    assert read_all(core) == [b"1"]


def test_room_in_a_full_queue_is_made_by_a_group_that_goes() -> None:
    core = Core()
    core.configure(max_size=2)
    core.push(b"0", b"1")
    put(core)
    core.ack(core.pop(2).lease)
    refuse(core, c.Push("default", "q", [b"2"]), Busy)
    delete(core)
    core.push(b"2")
    assert core.popped(9) == [b"2"]
