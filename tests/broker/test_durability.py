"""Which answers wait for a sync, and what a node says when the store is lost."""

import pytest

from forebay.broker.node import SYNC_S
from forebay.core.api.commands import Ack, Configure, Pop, Popped, Pushed, Settled
from forebay.core.api.queries import Offsets, Read
from forebay.core.errors import Busy
from forebay.core.ids import OFFSET_BITS
from forebay.core.words import DEFAULT
from forebay.store.base import Lost, StoreError
from tests.broker.conftest import Start
from tests.broker.loop import BlockingStore, DurableStore, ObedientStore, Rig, payloads, pop, push

SYNC_MS = round(SYNC_S * 1000)


@pytest.fixture
def store() -> DurableStore:
    return DurableStore()


@pytest.fixture
def rig(start: Start, store: DurableStore) -> Rig:
    """A node with a queue, pushed to as ``os`` once."""
    rig = start(store)
    rig.pushed(push("first", durability="os"))
    rig.loop.advance(SYNC_MS)
    store.synced.clear()
    return rig


def test_a_push_is_synced_before_its_answer_unless_it_says_otherwise(rig: Rig, store: DurableStore) -> None:
    store.hold()
    ticket = rig.ask(push("a"))
    rig.loop.run_ready()
    assert rig.waits(ticket)
    store.open_gate()
    rig.loop.await_thread()
    reply = rig.reply(ticket)
    assert isinstance(reply, Pushed)
    assert reply.durability == "fsync"
    assert store.synced == [True]


def test_the_first_os_push_of_a_partition_is_synced_because_of_its_mark(start: Start) -> None:
    store = DurableStore()
    rig = start(store)
    rig.pushed(push("a"))
    store.hold()
    ticket = rig.ask(push("b", durability="os"))
    rig.loop.run_ready()
    assert rig.waits(ticket)
    store.open_gate()
    rig.loop.await_thread()
    reply = rig.reply(ticket)
    assert isinstance(reply, Pushed)
    assert reply.durability == "os"


def test_later_os_pushes_are_answered_before_they_are_synced(rig: Rig, store: DurableStore) -> None:
    store.hold()
    for payload in "abc":
        assert rig.pushed(push(payload, durability="os")).durability == "os"
    assert store.synced == [False] * 3
    store.open_gate()


def test_a_queue_that_is_os_is_popped_and_acked_without_a_sync(start: Start) -> None:
    store = DurableStore()
    rig = start(store)
    rig.get(Configure(DEFAULT, "q", durability="os"))
    rig.pushed(push("a"))
    rig.get(pop(lease_ms=60_000))
    store.hold()
    assert rig.pushed(push("b")).durability == "os"
    lease = rig.lease(pop()).lease
    assert isinstance(rig.get(Ack(DEFAULT, lease)), Settled)
    assert store.synced[-3:] == [False] * 3
    store.open_gate()


def test_a_group_with_one_answer_that_needs_it_is_synced_whole(rig: Rig, store: DurableStore) -> None:
    tickets = [rig.ask(push("a", durability="os")), rig.ask(push("b"))]
    rig.loop.run_ready()
    rig.loop.await_thread()
    assert not any(map(rig.waits, tickets))
    assert store.synced == [True]


def test_what_is_unsynced_is_synced_in_a_while(rig: Rig, store: DurableStore) -> None:
    rig.pushed(push("a", durability="os"))
    rig.loop.advance(SYNC_MS - 1)
    assert store.synced == [False]
    rig.loop.advance(1)
    rig.loop.await_thread()
    assert store.synced == [False, True]
    rig.loop.advance(60 * SYNC_MS)
    assert store.synced == [False, True]


def test_what_something_else_synced_meanwhile_is_not_synced_again(rig: Rig, store: DurableStore) -> None:
    rig.pushed(push("a", durability="os"))
    rig.pushed(push("b"))
    rig.loop.advance(60 * SYNC_MS)
    assert store.synced == [False, True]


@pytest.mark.parametrize("question", [Read(DEFAULT, "q", 0), Offsets(DEFAULT, "q")])
def test_offsets_that_are_told_survive_power_loss(
    rig: Rig, store: DurableStore, question: Read | Offsets
) -> None:
    rig.pushed(push("a", durability="os"))
    store.hold()
    ticket = rig.ask(question)
    rig.loop.run_ready()
    assert rig.waits(ticket)
    store.open_gate()
    rig.loop.await_thread()
    assert not rig.waits(ticket)
    assert store.synced == [False, True]
    rig.get(question)
    assert store.synced == [False, True], "nothing is unsynced any more"


def test_a_store_that_survives_nothing_says_so(start: Start) -> None:
    rig = start(ObedientStore())
    assert rig.pushed(push("a")).durability == "memory"
    assert rig.pushed(push("a", durability="os")).durability == "memory"


# Numbers after a stop.


def number(pushed: Pushed) -> int:
    return pushed.first >> OFFSET_BITS


def test_after_a_clean_stop_ids_go_on_where_they_were(start: Start) -> None:
    store = DurableStore()
    rig = start(store)
    first = rig.pushed(push("a", "b", durability="os"))
    rig.close()
    again = Rig(store)
    assert again.pushed(push("c")).first == first.first + 2
    again.close()


def test_after_a_crash_a_partition_confirmed_as_os_goes_on_under_a_fresh_number(start: Start) -> None:
    store = DurableStore()
    rig = start(store)
    plain = rig.pushed(push("a", partition="plain"))
    marked = rig.pushed(push("a", durability="os"))
    again = start(store)
    assert again.pushed(push("b", partition="plain")).first == plain.first + 1
    fresh = again.pushed(push("b"))
    assert number(fresh) not in (number(plain), number(marked))
    assert fresh.first & (1 << OFFSET_BITS) - 1 == 0
    reply = again.get(pop(10, partition=DEFAULT))
    assert payloads(reply) == ["a", "b"]
    assert isinstance(reply, Popped)
    assert [each.first for each in reply.deliveries] == [marked.first, fresh.first]


def test_after_a_commit_that_failed_an_os_partition_goes_on_under_a_fresh_number(
    rig: Rig, store: DurableStore
) -> None:
    before = rig.pushed(push("a", durability="os"))
    store.commit_error = OSError("disk full")
    assert isinstance(rig.get(push("lost", durability="os")), Busy)
    assert number(rig.pushed(push("b", durability="os"))) > number(before)
    assert payloads(rig.get(pop(10))) == ["first", "a", "b"]


# A store that is lost.


def test_when_the_store_is_lost_that_is_told_once_and_everyone_gets_busy(start: Start) -> None:
    store = DurableStore()
    rig = start(store)
    rig.pushed(push("a"))
    waiting = rig.wait(pop(queue="empty", wait_ms=60_000))
    rig.loop.await_thread()
    store.commit_error = Lost("the disk failed to sync")
    store.claim_error = Lost("the disk failed to sync")
    assert isinstance(rig.get(push("b")), Busy)
    assert rig.lost == ["the disk failed to sync"]
    for _ in range(5):
        assert isinstance(rig.get(push("c")), Busy)
        assert isinstance(rig.get(pop()), Busy)
        rig.loop.advance(1_000)
    assert rig.lost == ["the disk failed to sync"]
    rig.loop.run(rig.node.drain())
    assert isinstance(rig.reply(waiting), Busy)


def test_when_the_store_is_lost_in_a_sync_alone_that_is_told_too(rig: Rig, store: DurableStore) -> None:
    rig.pushed(push("a", durability="os"))
    store.sync_error = store.claim_error = Lost("the disk failed to sync")
    rig.loop.advance(SYNC_MS)
    rig.loop.await_thread()
    assert rig.lost == ["the disk failed to sync"]
    assert isinstance(rig.get(push("b")), Busy)


def test_when_the_store_is_lost_while_it_is_loaded_again_that_is_told_too(
    rig: Rig, store: DurableStore
) -> None:
    store.commit_error = StoreError("disk full")
    store.sync_error = Lost("the disk failed to sync")
    store.hold()
    ticket = rig.ask(push("b"))
    rig.loop.run_ready()
    store.open_gate()
    rig.loop.await_thread()
    assert isinstance(rig.reply(ticket), Busy)
    rig.await_reload()
    assert rig.lost == ["the disk failed to sync"]


def test_a_store_that_is_lost_is_let_go_of_without_another_commit(start: Start) -> None:
    store = DurableStore()
    rig = start(store)
    rig.pushed(push("a"))
    store.commit_error = store.claim_error = Lost("gone")
    rig.get(push("b"))
    groups = len(store.groups)
    rig.close()
    assert len(store.groups) == groups


def test_closing_keeps_what_was_applied_and_not_committed(start: Start) -> None:
    store = BlockingStore()
    rig = start(store)
    rig.get(push("a"))
    rig.node.ask(rig.asker, "late", Pop(DEFAULT, "q", lease_ms=60_000))
    rig.close()
    again = start(store)
    assert payloads(again.get(pop())) == []


def test_what_is_unsynced_is_synced_even_if_its_time_comes_during_another_commit(
    rig: Rig, store: DurableStore
) -> None:
    rig.pushed(push("a", durability="os"))
    rig.ask(push("b", durability="os"))
    rig.loop.run_ready()  # its commit is under way
    rig.loop.advance(SYNC_MS)
    rig.loop.await_thread()
    rig.loop.await_thread()
    assert store.synced[-1] is True
