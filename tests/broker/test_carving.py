"""Carving beside the commits: islands shrink to what is wanted, and nobody who pops notices."""

import random

import pytest

from forebay.broker import committer
from forebay.core.api.commands import Ack, Configure, Discard, Obliterate, Push, Pushed
from forebay.core.errors import Damaged
from forebay.core.records import keyspace
from forebay.core.retention import carve
from forebay.core.shard.timers import SWEEP_MS
from forebay.core.state import Attributes
from forebay.core.words import DEFAULT
from tests.broker.conftest import Start
from tests.broker.loop import BlockingStore, DurableStore, ObedientStore, Rig, SlowStore, payloads, pop, push
from tests.broker.test_merger import Hands, rest

STORES = pytest.mark.parametrize("kind", [ObedientStore, BlockingStore, DurableStore])
DAY_MS = 86_400_000
LATE_MS = 1_200_000
SIZE = 200


def padded(name: object) -> str:
    return str(name).ljust(SIZE, ".")


def prepared(rig: Rig) -> int:
    """A segment of twenty messages of which all but one are done, which is delayed; the id of that."""
    rig.get(Configure(DEFAULT, "q", completed_retention_ms=0))
    rig.ask(push(*[padded(number) for number in range(10)]))
    far = rig.ask(Push(DEFAULT, "q", [padded("far").encode()], attributes=Attributes(delay_ms=DAY_MS)))
    rig.get(push(*[padded(number) for number in range(10, 19)]))
    rig.get(Ack(DEFAULT, rig.lease(pop(99)).lease))
    reply = rig.reply(far)
    assert isinstance(reply, Pushed)
    return reply.first


def swept(rig: Rig, times: int = 2) -> None:
    for _ in range(times):
        rig.loop.advance(SWEEP_MS)
        rest(rig)
        rig.queues()  # whatever is planned then goes on
        rest(rig)


def bodies(rig: Rig) -> list[int]:
    """The lengths of the bodies that the store has."""
    return [len(body) for body in rig.store._bodies.values()]


@STORES
def test_an_island_is_carved_down_to_what_is_wanted(start: Start, kind: type[ObedientStore]) -> None:
    rig = start(kind())
    far = prepared(rig)
    swept(rig)
    log = rig.log()
    assert ([each.count for each in log.segments], log.islands) == ([1], 1)
    assert len(bodies(rig)) == 1
    assert max(bodies(rig)) < 2 * SIZE
    assert rig.state(far).state == "delayed"
    rig.loop.advance(DAY_MS)
    assert payloads(rig.get(pop(9))) == [padded("far")]


@STORES
def test_what_was_carved_out_is_found_after_a_restart(start: Start, kind: type[ObedientStore]) -> None:
    store = kind()
    rig = start(store)
    far = prepared(rig)
    swept(rig)
    rig.close()
    again = start(store, at_ms=DAY_MS + 10 * SWEEP_MS)
    assert again.state(far).state == "waiting"
    reply = again.lease(pop(9))
    assert payloads(reply) == [padded("far")]
    again.get(Ack(DEFAULT, reply.lease))
    swept(again)
    assert bodies(again) == []


def test_an_island_that_is_not_in_memory_is_carved_too(start: Start) -> None:
    store = BlockingStore()
    rig = start(store)
    far = prepared(rig)
    rig.close()
    again = start(store, at_ms=SWEEP_MS)
    swept(again)
    assert [each.count for each in again.log().segments] == [1]
    assert again.state(far).state == "delayed"


def test_a_damaged_island_is_left_as_it_is(start: Start) -> None:
    store = BlockingStore()
    rig = start(store)
    far = prepared(rig)
    rig.close()
    for key in store._bodies:
        store.damage[key] = Damaged("Corruption")
    again = start(store, at_ms=SWEEP_MS)
    swept(again, 4)
    assert [each.count for each in again.log().segments] == [20]
    assert again.state(far).state == "delayed"
    assert payloads(again.get(pop(queue="other"))) == []


def test_a_carving_under_way_when_a_commit_fails_is_forgotten(start: Start) -> None:
    store = BlockingStore()
    rig = start(store)
    far = prepared(rig)
    rig.loop.advance(SWEEP_MS)
    store.commit_error = OSError("disk full")
    rig.get(push("lost", queue="other"))
    rest(rig)
    swept(rig, 3)
    assert rig.state(far).state == "delayed"
    assert [each.count for each in rig.log().segments] == [1]
    assert len(bodies(rig)) == 1


def test_a_queue_that_goes_while_it_is_carved_stays_gone(start: Start) -> None:
    store = SlowStore()
    store.let_go(100)
    rig = start(store)
    prepared(rig)
    prefix = rig.node._engine.queues[DEFAULT, "q"].prefix
    rig.loop.advance(SWEEP_MS)
    ticket = rig.ask(Obliterate(DEFAULT, "q"))
    rig.loop.run_ready()
    while rig.waits(ticket):
        rig.loop.await_thread()
    rest(rig)
    rig.get(push("1", queue="other"))
    rest(rig)
    assert not [key for key in store._bodies if key.startswith(prefix)]
    assert not list(store.scan(*keyspace.queue_bounds(prefix)))


@pytest.mark.parametrize("memory_bytes_max", [1, 2_000, 1 << 20])
@pytest.mark.parametrize("seed", range(8))
def test_carvings_and_pops_in_any_order_lose_nothing(
    start: Start, seed: int, memory_bytes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pick = random.Random(seed)
    hands = Hands(pick)
    monkeypatch.setattr(committer, "ThreadPoolExecutor", hands)
    monkeypatch.setattr(carve, "PART_BYTES", 20)
    rig = start(BlockingStore(), memory_bytes_max=memory_bytes_max)

    def work() -> bool:
        if hands.work():
            rig.loop.await_thread()
            return True
        return False

    def idle() -> None:
        rig.loop.run_ready()
        while work():
            rig.loop.run_ready()

    rig.ask(Configure(DEFAULT, "q", completed_retention_ms=0))
    late: set[str] = set()
    tickets: list[int] = []
    got: list[str] = []

    def settle() -> None:
        """Ack what came, and take note of it."""
        for ticket in [each for each in tickets if not rig.waits(each)]:
            tickets.remove(ticket)
            reply = rig.reply(ticket)
            got.extend(payloads(reply))
            lease = getattr(reply, "lease", None)
            if lease is not None:
                rig.ask(Ack(DEFAULT, lease))

    count = 0
    for _ in range(150):
        chosen = pick.random()
        if chosen < 0.3:
            names = [padded(count + at) for at in range(pick.randint(1, 9))]
            count += len(names)
            delay_ms = pick.choice([0, 0, LATE_MS])
            late |= set(names) if delay_ms else set()
            encoded = [name.encode() for name in names]
            rig.ask(Push(DEFAULT, "q", encoded, attributes=Attributes(delay_ms=delay_ms)))
        elif chosen < 0.5:
            tickets.append(rig.ask(pop(pick.randint(1, 30), lease_ms=LATE_MS)))
        elif chosen < 0.6:
            rig.loop.advance(SWEEP_MS)
        else:
            work()
        rig.loop.run_ready()
        settle()
    for _ in range(4):
        tickets.append(rig.ask(pop(1_000)))
        idle()
        settle()
        idle()
        rig.loop.advance(SWEEP_MS)
        idle()
    assert sorted(got) == sorted({padded(number) for number in range(count)} - late)
    rig.loop.advance(LATE_MS)
    idle()
    tickets.append(rig.ask(pop(1_000)))
    idle()
    settle()
    assert sorted(got) == sorted(padded(number) for number in range(count))


def test_a_dead_letter_on_an_island_is_shown_with_its_payload(start: Start) -> None:
    rig = start(BlockingStore(), memory_bytes_max=1)
    far = prepared(rig)
    rig.get(Discard(DEFAULT, [far]))
    swept(rig)
    assert [each.count for each in rig.log().segments] == [1]
    assert rig.state(far).state == "dead"
