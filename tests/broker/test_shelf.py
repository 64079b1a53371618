"""Bodies in memory: no more than allowed, and never missed by who pops or reads."""

import random
from collections.abc import Sequence

import pytest

from forebay.core.api.commands import Ack, Popped, Settled
from forebay.core.api.queries import LogSlice, Read
from forebay.core.errors import Damaged, ForebayError
from forebay.core.log.bodies import pack_body
from forebay.core.records import keyspace
from forebay.core.words import DEFAULT
from tests.broker.conftest import Start
from tests.broker.loop import BlockingStore, ObedientStore, Rig, SlowStore, payloads, pop, push

SMALL = 4_096
"""Bytes in memory, where a test wants them to be few."""


def texts(count: int, size: int = 500) -> list[str]:
    return [f"{number:06d}".ljust(size, ".") for number in range(count)]


def read(reply: object) -> list[str]:
    assert isinstance(reply, LogSlice), reply
    return [bytes(payload).decode() for run in reply.runs for payload in run.payloads()]


def in_memory(rig: Rig) -> int:
    """Bytes of the bodies that the log has in memory."""
    return sum(len(segment.body or b"") for segment in rig.log().segments)


def body_key(rig: Rig, at: int) -> bytes:
    """The key of the body of the at-th segment."""
    prefix = rig.node._engine.queues[DEFAULT, "q"].prefix
    return keyspace.body_key(prefix, rig.log().segments[at].body_name)


def test_bodies_in_memory_are_bounded(start: Start) -> None:
    rig = start(BlockingStore(), memory_bytes_max=SMALL)
    for text in texts(50):
        rig.get(push(text))
        assert in_memory(rig) <= SMALL
    assert in_memory(rig) > SMALL // 4
    assert [segment.present for segment in rig.log().segments] == sorted(
        segment.present for segment in rig.log().segments
    )


def test_a_store_in_memory_holds_the_bodies_anyway(start: Start) -> None:
    rig = start(ObedientStore(), memory_bytes_max=SMALL)
    for text in texts(50):
        rig.get(push(text))
    assert all(segment.present for segment in rig.log().segments)


@pytest.mark.parametrize("count", [1, 3, 100])
def test_a_backlog_larger_than_memory_is_popped_in_order(start: Start, count: int) -> None:
    rig = start(BlockingStore(), memory_bytes_max=SMALL)
    wanted = texts(120)
    for at in range(0, len(wanted), 2):
        rig.get(push(*wanted[at : at + 2]))
    got: list[str] = []
    while len(got) < len(wanted):
        reply = rig.lease(pop(count))
        got += payloads(reply)
        rig.get(Ack(DEFAULT, reply.lease))
        assert in_memory(rig) <= SMALL
    assert got == wanted


def test_all_that_a_pop_lacks_is_read_at_once(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    store = BlockingStore()
    rig = start(store, memory_bytes_max=SMALL)
    wanted = texts(60)
    for text in wanted:
        rig.get(push(text))
    asked: list[int] = []
    bodies = store.bodies

    def counted(keys: Sequence[bytes]) -> list[bytes | Damaged | None]:
        asked.append(len(keys))
        return bodies(keys)

    monkeypatch.setattr(store, "bodies", counted)
    assert payloads(rig.get(pop(40))) == wanted[:40]
    assert asked[0] == 40


def test_a_backlog_larger_than_memory_is_read_in_order(start: Start) -> None:
    rig = start(BlockingStore(), memory_bytes_max=SMALL)
    wanted = texts(100)
    for text in wanted:
        rig.get(push(text))
    got: list[str] = []
    while len(got) < len(wanted):
        got += read(rig.get(Read(DEFAULT, "q", len(got), max_count=7)))
    assert got == wanted


def test_several_groups_far_apart_each_get_everything_in_order(start: Start) -> None:
    rig = start(BlockingStore(), memory_bytes_max=SMALL)
    wanted = texts(60)
    for text in wanted:
        rig.get(push(text))
    got: dict[str, list[str]] = {"a": [], "b": [], "c": []}
    pick = random.Random(5)
    while any(len(theirs) < len(wanted) for theirs in got.values()):
        group = pick.choice(sorted(got))
        got[group] += payloads(rig.get(pop(pick.randint(1, 9), group=group)))
    assert set(map(tuple, got.values())) == {tuple(wanted)}


def test_a_body_that_leaves_memory_before_its_answer_does_is_still_in_it(start: Start) -> None:
    store = SlowStore()
    rig = start(store, memory_bytes_max=SMALL)
    ticket = rig.ask(push("a"))
    rig.loop.run_ready()
    store.let_go()
    rig.loop.await_thread()
    assert not rig.waits(ticket)
    popped = rig.ask(pop())
    for text in texts(20):
        rig.ask(push(text))
    rig.loop.run_ready()
    for text in texts(20):
        rig.ask(push(text))
    rig.loop.run_ready()
    store.let_go(2)
    rig.loop.await_thread()
    assert not rig.log().segments[0].present
    assert rig.got(popped) == ["a"]


def test_what_is_pushed_and_popped_at_once_needs_no_memory(start: Start) -> None:
    rig = start(BlockingStore(), memory_bytes_max=1)
    wanted = texts(10)
    pushed, popped = rig.ask(push(*wanted)), rig.ask(pop(10))
    rig.loop.run_ready()
    rig.loop.await_thread()
    assert not rig.waits(pushed)
    assert rig.got(popped) == wanted
    assert in_memory(rig) == 0


def test_what_comes_next_is_read_ahead(start: Start) -> None:
    store = BlockingStore()
    wanted = texts(20)
    first = start(store)
    for text in wanted:
        first.get(push(text))
    rig = start(store)
    assert payloads(rig.get(pop())) == wanted[:1]
    rig.loop.await_thread()
    assert all(segment.present for segment in rig.log().segments)
    store.bodies_error = OSError("nothing has to be read any more")
    assert payloads(rig.get(pop(100))) == wanted[1:]


def test_reading_ahead_that_fails_harms_nobody(start: Start) -> None:
    store = BlockingStore()
    wanted = texts(20)
    first = start(store)
    for text in wanted:
        first.get(push(text))
    rig = start(store)
    reply = rig.ask(pop())
    rig.loop.run_ready()
    rig.loop.await_thread()
    assert rig.got(reply) == wanted[:1]
    store.damage = {body_key(rig, at): Damaged("Corruption: block checksum") for at in range(5, 8)}
    assert payloads(rig.get(pop(4))) == wanted[1:5]


# Damage.


@pytest.fixture
def after_restart(start: Start) -> Rig:
    """A node that has five messages of a segment each, none in memory."""
    store = BlockingStore()
    rig = start(store)
    for payload in "abcde":
        rig.get(push(payload))
    return start(store)


WRONG: list[bytes | Damaged] = [
    Damaged("Corruption: block checksum mismatch"),
    b"",
    b"short",
    pack_body([b"ab"], [2]),
    pack_body([b"", b"a"], [0, 1]),
    b"\1\0\0\0\1\0\0\0a",
]


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_a_pop_with_a_damaged_body_answers_the_others(after_restart: Rig, wrong: bytes | Damaged) -> None:
    rig = after_restart
    rig.store.damage[body_key(rig, 1)] = wrong
    assert payloads(rig.get(pop(10))) == ["a", "c", "d", "e"]


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_a_pop_of_nothing_but_a_damaged_body_says_so_and_the_next_goes_on(
    after_restart: Rig, wrong: bytes | Damaged
) -> None:
    rig = after_restart
    rig.store.damage[body_key(rig, 1)] = wrong
    assert payloads(rig.get(pop())) == ["a"]
    reply = rig.get(pop())
    assert isinstance(reply, Damaged)
    assert "offset 1 up to 2" in reply.message
    assert payloads(rig.get(pop(10))) == ["c", "d", "e"]


def test_a_damaged_message_comes_again_when_its_lease_runs_out(after_restart: Rig) -> None:
    rig = after_restart
    rig.store.damage[body_key(rig, 0)] = Damaged("Corruption")
    assert isinstance(rig.get(pop(lease_ms=100)), Damaged)
    rig.store.damage.clear()
    rig.loop.advance(100)
    assert payloads(rig.get(pop())) == ["a"]


def test_a_read_stops_before_a_damaged_body_and_says_so_when_it_begins_there(after_restart: Rig) -> None:
    rig = after_restart
    rig.store.damage[body_key(rig, 2)] = Damaged("Corruption")
    reply = rig.get(Read(DEFAULT, "q", 0))
    assert read(reply) == ["a", "b"]
    assert isinstance(reply, LogSlice)
    assert reply.next == 2
    assert isinstance(rig.get(Read(DEFAULT, "q", 2)), Damaged)
    assert read(rig.get(Read(DEFAULT, "q", 3))) == ["d", "e"]


def test_a_queue_whose_records_are_damaged_is_refused_and_the_others_are_served(start: Start) -> None:
    store = BlockingStore()
    rig = start(store)
    rig.get(push("a", queue="good"))
    for payload in "abc":
        rig.get(push(payload, queue="bad"))
    queue = rig.node._engine.queues[DEFAULT, "bad"]
    gone = keyspace.header_key(queue.prefix, queue.partitions[DEFAULT].key, 1)
    del store._records[gone]
    store._sorted = None
    again = start(store)
    for command in (push("d", queue="bad"), pop(queue="bad"), Read(DEFAULT, "bad", 0)):
        reply = again.get(command)
        assert isinstance(reply, ForebayError)
        assert reply.code == "damaged"
    reply = again.get(pop(queue="good"))
    assert isinstance(reply, Popped)
    assert payloads(reply) == ["a"]


def test_who_acks_a_lease_does_not_settle_what_it_never_got(after_restart: Rig) -> None:
    rig = after_restart
    rig.store.damage[body_key(rig, 1)] = Damaged("Corruption")
    reply = rig.get(pop(10, lease_ms=100))
    assert payloads(reply) == ["a", "c", "d", "e"]
    assert isinstance(reply, Popped)
    settled = rig.get(Ack(DEFAULT, reply.lease))
    assert isinstance(settled, Settled)
    assert settled.count == 4
    rig.store.damage.clear()
    rig.loop.advance(100)
    again = rig.get(pop(10))
    assert payloads(again) == ["b"]
    assert isinstance(again, Popped)
    assert again.deliveries[0].failures == 1
