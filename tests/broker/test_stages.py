"""Stages in a node: bodies on their way into the store, commits that fail, answers that wait for them."""

from typing import Any

from forebay.core.api.queries import Read
from forebay.core.api.stages import Adopt, Staged, StageWrite
from forebay.core.errors import Busy, NotFound
from forebay.core.state import Adopted
from forebay.core.words import DEFAULT
from tests.broker.conftest import Start
from tests.broker.loop import (
    BlockingStore,
    DurableStore,
    ObedientStore,
    Rig,
    SlowStore,
    payloads,
    pop,
    push,
)


def write(name: str, *texts: str, **fields: Any) -> StageWrite:
    given: dict[str, Any] = {"query": "x", "batch": 0} | fields
    return StageWrite(DEFAULT, "q", name, payloads=[text.encode() for text in texts], **given)


def adopt(*names: str, batch: int = 0, durability: str | None = None) -> Adopt:
    return Adopt(DEFAULT, "q", "x", batch, list(names), durability=durability)


def in_store(rig: Rig) -> None:
    """Have commits in which the bodies of stages leave memory."""
    for _ in range(2):
        rig.get(push("other", partition="other"))


def test_what_was_staged_is_popped_and_read_though_it_is_only_in_the_store(start: Start) -> None:
    rig = start(BlockingStore())
    rig.get(write("s", "1", "2"))
    in_store(rig)
    tickets = [
        rig.ask(command)
        for command in (
            adopt("s"),
            pop(1, partition=DEFAULT),
            pop(1, partition=DEFAULT),
            Read(DEFAULT, "q", 0),
        )
    ]
    rig.loop.run_ready()
    while any(map(rig.waits, tickets)):
        rig.loop.await_thread()
    assert isinstance(rig.reply(tickets[0]), Adopted)
    assert [rig.got(each) for each in tickets[1:3]] == [["1"], ["2"]]
    assert rig.log().segments[0].body is not None, "who has read it once has it in memory"


def test_who_waited_gets_what_is_only_in_the_store(start: Start) -> None:
    rig = start(BlockingStore())
    rig.get(write("s", "1", "2"))
    in_store(rig)
    waiting = rig.wait(pop(5, min_count=2, partition=DEFAULT, wait_ms=60_000))
    rig.get(adopt("s"))
    while rig.waits(waiting):
        rig.loop.await_thread()
    assert rig.got(waiting) == ["1", "2"]


def test_what_is_adopted_while_its_stage_is_on_its_way_into_the_store_is_there(start: Start) -> None:
    store = SlowStore()
    rig = start(store)
    staged = rig.ask(write("s", "1"))
    rig.loop.run_ready()
    adopted, popped = rig.ask(adopt("s")), rig.ask(pop(1, partition=DEFAULT))
    again = rig.ask(adopt("s"))
    rig.loop.run_ready()
    assert all(map(rig.waits, (staged, adopted, popped, again)))
    store.let_go()
    rig.loop.await_thread()
    assert isinstance(rig.reply(staged), Staged)
    assert all(map(rig.waits, (adopted, popped, again))), "the answer waits for its own commit"
    store.open_gate()
    while rig.waits(again):
        rig.loop.await_thread()
    assert rig.got(popped) == ["1"]
    first, second = rig.reply(adopted), rig.reply(again)
    assert isinstance(first, Adopted)
    assert isinstance(second, Adopted)
    assert (first.repeated, second.repeated, first.ranges) == (False, True, second.ranges)


def test_a_write_that_was_not_kept_is_busy_and_can_be_made_again(start: Start) -> None:
    rig = start()
    rig.get(write("s", "1", part=0))
    rig.store.commit_error = OSError("once")
    assert isinstance(rig.get(write("s", "2", part=1)), Busy)
    reply = rig.get(write("s", "2", part=1))
    assert isinstance(reply, Staged)
    assert (reply.part, reply.count) == (1, 2)
    rig.get(adopt("s"))
    assert payloads(rig.get(pop(10))) == ["1", "2"]


def test_an_adoption_that_was_not_kept_is_busy_and_can_be_made_again(start: Start) -> None:
    rig = start()
    rig.get(write("s", "1"))
    rig.store.commit_error = OSError("once")
    assert isinstance(rig.get(adopt("s")), Busy)
    reply = rig.get(adopt("s"))
    assert isinstance(reply, Adopted)
    assert not reply.repeated
    assert payloads(rig.get(pop(10))) == ["1"]
    assert payloads(rig.get(pop(10))) == []


def test_a_repeated_adoption_is_not_confirmed_by_a_commit_that_fails(start: Start) -> None:
    rig = start()
    rig.get(write("s", "1"))
    rig.store.commit_error = OSError("once")
    first, again = rig.ask(adopt("s")), rig.ask(adopt("s"))
    rig.loop.run_ready()
    assert isinstance(rig.reply(first), Busy)
    assert isinstance(rig.reply(again), Busy)
    reply = rig.get(adopt("s"))
    assert isinstance(reply, Adopted)
    assert not reply.repeated


def test_an_adoption_is_answered_when_it_is_synced_and_a_write_before(start: Start) -> None:
    store = DurableStore()
    rig = start(store)
    rig.get(push("first"))
    store.hold()
    assert isinstance(rig.get(write("s", "1")), Staged)
    ticket = rig.ask(adopt("s"))
    rig.loop.run_ready()
    assert rig.waits(ticket)
    store.open_gate()
    rig.loop.await_thread()
    reply = rig.reply(ticket)
    assert isinstance(reply, Adopted)
    assert reply.durability == "fsync"


def test_stages_expire_by_themselves(start: Start) -> None:
    rig = start()
    rig.get(write("s", "1", expire_ms=5_000))
    rig.loop.advance(4_999)
    assert list(rig.node._engine.queues[DEFAULT, "q"].stages) == ["s"]
    rig.loop.advance(1)
    assert rig.node._engine.queues[DEFAULT, "q"].stages == {}
    rig.loop.run_ready()
    assert rig.store._bodies == {}
    assert isinstance(rig.get(adopt("s")), NotFound)


def test_a_node_that_starts_again_goes_on_with_what_was_staged(start: Start) -> None:
    store = ObedientStore()
    rig = start(store)
    rig.get(write("s", "1", part=0))
    second = start(store)
    reply = second.get(write("s", "2", part=1))
    assert isinstance(reply, Staged)
    assert reply.count == 2
    second.get(adopt("s"))
    third = start(store)
    repeated = third.get(adopt("s"))
    assert isinstance(repeated, Adopted)
    assert repeated.repeated
    assert payloads(third.get(pop(10))) == ["1", "2"]


def test_bodies_of_stages_leave_memory_however_many_there_are(start: Start) -> None:
    """But for those of the last commit."""
    rig = start(BlockingStore(), memory_bytes_max=100_000)
    for part in range(20):
        rig.get(write("s", "x" * 10_000, part=part))
    parts = rig.node._engine.queues[DEFAULT, "q"].stages["s"].parts
    assert [each.body is not None for each in parts] == [False] * 19 + [True]
    rig.get(adopt("s"))
    rig.get(push("behind"))
    assert rig.node._body_cache.bytes <= 100_000
    assert payloads(rig.get(pop(30))) == ["x" * 10_000] * 20 + ["behind"]
