"""Merging beside the commits: fewer segments, and nobody who pops or reads notices."""

import random
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest

from forebay.broker import committer
from forebay.broker.disk import Disk
from forebay.core.api.commands import Ack, Popped
from forebay.core.engine import Engine
from forebay.core.errors import Damaged
from forebay.core.loading import build
from forebay.core.records import keyspace
from forebay.core.shard import changes
from forebay.core.words import DEFAULT
from tests.broker.conftest import Start
from tests.broker.loop import BlockingStore, ObedientStore, Rig, SlowStore, payloads, pop, push

STORES = pytest.mark.parametrize("kind", [ObedientStore, BlockingStore])


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merges that begin with a few segments."""
    monkeypatch.setattr(changes, "MERGE_AT", 4)
    monkeypatch.setattr(build, "MERGE_AT", 4)
    monkeypatch.setattr(Engine.plan_merge, "__defaults__", (2,))


def filled(store: ObedientStore, count: int) -> list[str]:
    """Messages of a segment each, kept by a node that never merges; what they say."""
    rig = Rig(store)
    wanted = [str(number) for number in range(count)]
    for payload in wanted:
        rig.get(push(payload))
    rig.close()
    return wanted


def headers(rig: Rig) -> int:
    queue = rig.node._engine.queues[DEFAULT, "q"]
    return sum(key[8:9] == b"h" for key, _ in rig.store.scan(*keyspace.queue_bounds(queue.prefix)))


def rest(rig: Rig) -> None:
    """Go on until no merge is under way."""
    rig.loop.run_ready()
    while rig.node._committer.busy or rig.node._merger._state != "idle":
        if rig.node._committer.busy or rig.node._merger._state == "joining":
            rig.loop.await_thread()
        else:
            rig.queues()  # a merge that came to nothing goes on with the next question


@STORES
def test_small_segments_become_few_and_every_message_stays(
    start: Start, kind: type[ObedientStore], eager: None
) -> None:
    rig = start(kind())
    wanted = [str(number) for number in range(40)]
    for payload in wanted:
        rig.get(push(payload))
    rest(rig)
    assert len(rig.log().segments) == headers(rig) < 25
    assert len(rig.store._bodies) == headers(rig)
    assert payloads(rig.get(pop(100))) == wanted


@STORES
def test_segments_that_are_not_in_memory_are_merged_too(
    start: Start, kind: type[ObedientStore], eager: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = kind()
    with monkeypatch.context() as patched:
        patched.setattr(changes, "MERGE_AT", 1 << 30)
        wanted = filled(store, 30)
    rig = start(store)
    assert isinstance(rig.get(pop(queue="other")), Popped)
    rest(rig)
    assert headers(rig) < 10
    assert payloads(rig.get(pop(100))) == wanted
    again = start(store)
    assert payloads(again.get(pop(100, group="again"))) == wanted


def test_a_pop_between_a_merge_and_its_commit_gets_every_message(
    start: Start, eager: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SlowStore()
    store.let_go(100)
    with monkeypatch.context() as patched:
        patched.setattr(changes, "MERGE_AT", 1 << 30)
        wanted = filled(store, 10)
    store.shut()
    rig = start(store)
    rig.ask(push("x", queue="other"))
    rig.loop.run_ready()
    rig.loop.await_thread()  # the bodies are joined while the commit waits
    assert len(rig.log().segments) < 10
    popped = rig.ask(pop(100))
    store.open_gate()
    while rig.waits(popped):
        rig.loop.await_thread()
    assert rig.got(popped) == wanted


class Hands:
    """In the place of threads: what they are given is done when the test says so, in the order it says."""

    def __init__(self, pick: random.Random) -> None:
        self._pick = pick
        self._given: dict[str, list[tuple[Future[Any], Callable[[], Any]]]] = {}

    def __call__(self, workers: int, name: str) -> "Hand":
        assert workers == 1
        self._given[name] = []
        return Hand(self._given[name])

    def work(self) -> bool:
        """Do the next thing one of them has to do; whether there was any."""
        busy = [each for each in self._given.values() if each]
        if busy:
            future, call = self._pick.choice(busy).pop(0)
            future.set_result(call())
        return bool(busy)


class Hand:
    """As much of an executor with one thread as the committer needs."""

    def __init__(self, given: list[tuple[Future[Any], Callable[[], Any]]]) -> None:
        self._given = given

    def submit(self, call: Callable[..., Any], *arguments: object) -> Future[Any]:
        future = Future[Any]()
        self._given.append((future, partial(call, *arguments)))
        return future

    def shutdown(self) -> None:
        while self._given:
            future, call = self._given.pop(0)
            future.set_result(call())


@pytest.mark.parametrize("memory_bytes_max", [1, 200, 1 << 20])
@pytest.mark.parametrize("seed", range(20))
def test_merges_and_pops_in_any_order_lose_nothing_and_repeat_nothing(
    start: Start, eager: None, seed: int, memory_bytes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pick = random.Random(seed)
    hands = Hands(pick)
    monkeypatch.setattr(committer, "ThreadPoolExecutor", hands)
    rig = start(BlockingStore(), memory_bytes_max=memory_bytes_max)

    def work() -> bool:
        if hands.work():
            rig.loop.await_thread()
            return True
        return False

    pushed: list[str] = []
    tickets: dict[str, list[int]] = {"default": [], "slow": []}
    for _ in range(400):
        chosen = pick.random()
        if chosen < 0.4:
            pushed.append(str(len(pushed)))
            rig.ask(push(pushed[-1]))
        elif chosen < 0.5:
            group = pick.choice(["default", "default", "slow"])
            tickets[group].append(rig.ask(pop(pick.randint(1, 8), group=group)))
        else:
            work()
        rig.loop.run_ready()
    for group, theirs in tickets.items():
        theirs.append(rig.ask(pop(1_000, group=group)))
    new = rig.ask(pop(1_000, group="new"))
    rig.loop.run_ready()
    while work():
        pass
    assert rig.got(new) == pushed
    for theirs in tickets.values():
        assert [payload for ticket in theirs for payload in rig.got(ticket)] == pushed
    assert len(rig.log().segments) < len(pushed)


@pytest.mark.parametrize("wrong", [Damaged("Corruption"), b"", b"x" * 9, b"\0\0\0\0\1\0\0\0ab"], ids=repr)
def test_a_damaged_body_is_not_merged_and_harms_no_other(
    start: Start, eager: None, monkeypatch: pytest.MonkeyPatch, wrong: bytes | Damaged
) -> None:
    store = BlockingStore()
    with monkeypatch.context() as patched:
        patched.setattr(changes, "MERGE_AT", 1 << 30)
        wanted = filled(store, 10)
    names = sorted(store._bodies)
    store.damage[names[3]] = wrong
    rig = start(store)
    rig.get(push("x", queue="other"))
    rest(rig)
    assert payloads(rig.get(pop(100))) == [each for each in wanted if each != "3"]


def test_a_merge_under_way_when_a_commit_fails_is_forgotten(start: Start, eager: None) -> None:
    store = SlowStore()
    rig = start(store)
    wanted = [str(number) for number in range(4)]
    store.let_go(4)
    for payload in wanted:
        rig.get(push(payload))
    store.commit_error = OSError("disk full")
    lost = rig.ask(push("lost"))
    rig.loop.run_ready()
    store.open_gate()
    while rig.waits(lost):
        rig.loop.await_thread()
    rest(rig)
    reply = rig.lease(pop(100))
    assert payloads(reply) == wanted
    rig.get(Ack(DEFAULT, reply.lease))


@STORES
def test_nothing_is_merged_while_the_disk_is_full(
    start: Start, kind: type[ObedientStore], eager: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_grow = [False]  # a disk that is full refuses the pushes, too
    monkeypatch.setattr(Disk, "may_grow", lambda _: may_grow[0])
    rig = start(kind())
    for number in range(40):
        rig.get(push(str(number)))
    rig.queues()
    assert headers(rig) == 40
    may_grow[0] = True
    rig.get(push("one more"))
    rest(rig)
    assert headers(rig) < 25
