"""A queue is not made by looking at it; who mistyped its name is told which one may be meant."""

import pytest
from msgspec.structs import replace

from forebay.core.api import commands as c, queries
from forebay.core.bounds import Limits
from forebay.core.errors import Busy, NotFound
from forebay.core.shard.nearest import COMPARED_MAX, LENGTH_MAX, nearest
from tests.core.harness import Core

MANY = {f"queue-{number:05}" for number in range(10_000)} | {"emails", "Orders", "fan_out", "audit.log"}

ABOUT_A_QUEUE: dict[str, c.Command] = {
    "pop": c.Pop("default", "emials", create=False),
    "pause": c.Pause("default", "emials"),
    "resume": c.Resume("default", "emials"),
    "describe": queries.Describe("default", "emials"),
    "offsets": queries.Offsets("default", "emials"),
    "read": queries.Read("default", "emials", 0),
}


@pytest.mark.parametrize("name", ABOUT_A_QUEUE)
def test_a_missing_queue_is_told_with_the_nearest_name_and_not_made(name: str) -> None:
    core = Core()
    core.push(b"1", queue="emails")
    core.push(b"1", queue="orders")
    with pytest.raises(NotFound) as raised:
        core.engine.apply(ABOUT_A_QUEUE[name], core.now)
    assert raised.value.message == "there is no queue emials; is emails meant?"
    assert {queue for _, queue in core.engine.queues} == {"emails", "orders"}


def test_names_of_another_tenant_are_never_told() -> None:
    core = Core()
    core.engine.apply(c.Push("another", "emails", [b"1"]), core.now)
    with pytest.raises(NotFound) as raised:
        core.engine.apply(c.Pop("default", "emials", create=False), core.now)
    assert raised.value.message == "there is no queue emials"


@pytest.mark.parametrize("limit", [True, False])
@pytest.mark.parametrize("create", [True, False, None])
def test_a_pop_says_whether_it_creates_its_queue_and_else_the_setting_does(
    create: bool | None, limit: bool
) -> None:
    core = Core()
    for shard in core.engine.shards.values():
        shard.limits = replace(shard.limits, pop_creates_queues=limit)
    command = c.Pop("default", "emails", create=create)
    if limit if create is None else create:
        assert core.engine.apply(command, core.now).queue.name == "emails"  # type: ignore[union-attr]
    else:
        with pytest.raises(NotFound):
            core.engine.apply(command, core.now)
        assert not core.engine.queues


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("email", "emails"),
        ("emaills", "emails"),
        ("emials", "emails"),
        ("emaiks", "emails"),
        ("orders", "Orders"),
        ("fan-out", "fan_out"),
        ("audit_log", "audit.log"),
        ("nothing-like-it", None),
        ("emails" + "s" * LENGTH_MAX, None),
    ],
)
@pytest.mark.parametrize("names", [MANY, MANY & {"emails", "Orders", "fan_out", "audit.log"}])
def test_one_typing_error_is_found_among_few_names_and_among_many(
    asked: str, meant: str | None, names: set[str]
) -> None:
    assert nearest(asked, names) == ([] if meant is None else [meant])


def test_no_more_than_three_names_are_told() -> None:
    assert len(MANY) > COMPARED_MAX
    assert nearest("queue-0001", MANY) == ["queue-00001", "queue-00010", "queue-00011"]


def test_a_missing_queue_is_missing_also_where_there_can_be_no_more() -> None:
    core = Core(Limits(queues_max=1))
    core.push(queue="emails")
    with pytest.raises(NotFound, match="is emails meant"):
        core.engine.apply(c.Pop("default", "emials", create=False), core.now)
    with pytest.raises(Busy):
        core.engine.apply(c.Pop("default", "emials", create=True), core.now)


def test_a_queue_that_is_being_deleted_is_not_meant() -> None:
    core = Core()
    core.push(queue="emails")
    core.pop(queue="emails")
    core.ask(c.Delete("default", "emails"), c.Closed)
    with pytest.raises(NotFound) as raised:
        core.engine.apply(queries.Describe("default", "emials"), core.now)
    assert raised.value.message == "there is no queue emials"
