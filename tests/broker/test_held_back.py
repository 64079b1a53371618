"""Pops that wait because a limit holds their queue back: they go on when a token comes or a place is free."""

from collections.abc import Callable
from typing import Any

import pytest

from forebay.core.api.commands import Ack, Cancel, Configure, Discard, Nack, Obliterate, Popped, Seek
from forebay.core.api.jobs import Job, LimitPut, PushJobs
from forebay.core.state import Backoff, NamedLimit, Rate
from forebay.core.words import DEFAULT
from tests.broker.conftest import Start
from tests.broker.loop import Rig, pop, push

HOUR_MS = 3_600_000


@pytest.fixture
def rig(start: Start) -> Rig:
    return start()


def configure(rig: Rig, queue: str = "q", **options: Any) -> None:
    rig.get(Configure(DEFAULT, queue, **options))


def share(rig: Rig, limit: NamedLimit | None) -> None:
    rig.get(LimitPut(DEFAULT, "n", limit))


def ids_of(popped: Popped) -> list[int]:
    return [each.first + at for each in popped.deliveries for at in range(each.count)]


# Tokens.


@pytest.mark.parametrize(
    "options",
    [
        {"rate_limit": Rate(2, burst=1)},
        {"partition_rate_limit": Rate(2, burst=1)},
        {"limits": ("n",)},
        {"byte_limit": Rate(2, burst=1)},
    ],
    ids=lambda options: next(iter(options)),
)
def test_a_pop_that_waits_gets_its_message_with_the_next_token(rig: Rig, options: dict[str, Any]) -> None:
    share(rig, NamedLimit(Rate(2, burst=1)))
    configure(rig, **options)
    for payload in "ab":
        rig.get(push(payload))
    rig.lease(pop())
    ticket = rig.wait(pop(wait_ms=HOUR_MS))
    rig.loop.advance(499)
    assert rig.waits(ticket)
    rig.loop.advance(1)
    assert rig.got(ticket) == ["b"]


def test_pops_that_wait_get_the_tokens_in_the_order_they_came(rig: Rig) -> None:
    configure(rig, rate_limit=Rate(1, burst=1))
    rig.get(push(*"abcd"))
    rig.lease(pop())
    tickets = [rig.wait(pop(9, wait_ms=HOUR_MS)) for _ in range(3)]
    for at, payload in enumerate("bcd"):
        rig.loop.advance(1_000)
        assert [rig.waits(ticket) for ticket in tickets] == [False] * (at + 1) + [True] * (2 - at)
        assert rig.got(tickets[at]) == [payload]


def test_a_pop_that_wants_several_waits_for_as_many_tokens(rig: Rig) -> None:
    configure(rig, rate_limit=Rate(10))
    rig.get(push(*"abcdefghijklmnop"))
    rig.lease(pop(10))
    ticket = rig.wait(pop(5, min_count=3, wait_ms=HOUR_MS))
    rig.loop.advance(299)
    assert rig.waits(ticket)
    rig.loop.advance(1)
    assert rig.got(ticket) == ["k", "l", "m"]


def test_a_pop_that_waits_gets_nothing_when_its_time_is_over_before_the_token_comes(rig: Rig) -> None:
    configure(rig, rate_limit=Rate(1, burst=1))
    rig.get(push(*"ab"))
    rig.lease(pop())
    ticket = rig.wait(pop(wait_ms=900))
    rig.loop.advance(900)
    assert rig.got(ticket) == []
    rig.loop.advance(100)
    assert rig.lease(pop()).deliveries


def test_a_push_serves_who_waits_only_if_there_is_a_token(rig: Rig) -> None:
    configure(rig, rate_limit=Rate(1, burst=1))
    rig.get(push("a"))
    rig.lease(pop())
    ticket = rig.wait(pop(wait_ms=HOUR_MS))
    rig.get(push("b"))
    assert rig.waits(ticket)
    rig.loop.advance(1_000)
    assert rig.got(ticket) == ["b"]


def test_after_a_restart_who_waits_gets_its_message_with_the_first_token(start: Start) -> None:
    first = start()
    configure(first, rate_limit=Rate(2))
    first.get(push(*"ab"))
    first.lease(pop())
    first.close()
    rig = start(first.store)
    ticket = rig.wait(pop(wait_ms=HOUR_MS))
    rig.loop.advance(499)
    assert rig.waits(ticket)
    rig.loop.advance(1)
    assert rig.got(ticket) == ["b"]


def test_nobody_wakes_the_loop_for_tokens_that_nobody_waits_for(rig: Rig) -> None:
    configure(rig, rate_limit=Rate(10), completed_retention_ms=HOUR_MS)
    rig.get(push(*"ab"))
    rig.get(Ack(DEFAULT, rig.lease(pop(2)).lease))
    ticket = rig.wait(pop(wait_ms=HOUR_MS))
    commits = len(rig.store.groups)
    rig.loop.advance(5_000)
    assert rig.waits(ticket)
    assert len(rig.store.groups) == commits


# Places.

Free = Callable[[Rig, Popped], object]
FREEING: dict[str, Free] = {
    "ack": lambda rig, popped: rig.get(Ack(DEFAULT, popped.lease)),
    "ack by id": lambda rig, popped: rig.get(Ack(DEFAULT, None, ids_of(popped))),
    "nack": lambda rig, popped: rig.get(Nack(DEFAULT, popped.lease, delay_ms=HOUR_MS)),
    "cancel": lambda rig, popped: rig.get(Cancel(DEFAULT, ids_of(popped))),
    "discard": lambda rig, popped: rig.get(Discard(DEFAULT, ids_of(popped))),
    "lease runs out": lambda rig, _: rig.loop.advance(30_000),
    "seek": lambda rig, _: rig.get(Seek(DEFAULT, "q", DEFAULT, "all")),
}
PLACES: dict[str, dict[str, Any]] = {
    "concurrency": {"concurrency": 1},
    "partition": {"partition_concurrency": 1},
    "named": {"limits": ("n",)},
}


@pytest.mark.parametrize("limit", PLACES)
@pytest.mark.parametrize("how", FREEING)
def test_a_pop_that_waits_gets_a_message_when_a_place_is_free(rig: Rig, how: str, limit: str) -> None:
    share(rig, NamedLimit(concurrency=1))
    configure(rig, backoff=Backoff(kind="fixed", base_ms=HOUR_MS), **PLACES[limit])
    rig.get(push(*"ab"))
    popped = rig.lease(pop(9))
    assert len(ids_of(popped)) == 1
    ticket = rig.wait(pop(wait_ms=HOUR_MS))
    rig.loop.advance(10_000)
    assert rig.waits(ticket)
    FREEING[how](rig, popped)
    rig.loop.run_ready()
    assert rig.got(ticket) == ["a" if how == "seek" else "b"]


def test_one_place_serves_one_who_waits(rig: Rig) -> None:
    configure(rig, concurrency=2)
    rig.get(push(*"abcdef"))
    ids = ids_of(rig.lease(pop(9)))
    tickets = [rig.wait(pop(wait_ms=HOUR_MS)) for _ in range(3)]
    rig.get(Ack(DEFAULT, None, ids[:1]))
    assert [rig.waits(ticket) for ticket in tickets] == [False, True, True]
    rig.get(Ack(DEFAULT, None, ids[1:]))
    assert [rig.waits(ticket) for ticket in tickets] == [False, False, True]
    assert [rig.got(ticket) for ticket in tickets[:2]] == [["c"], ["d"]]


def test_a_place_that_one_queue_frees_serves_one_who_waits_in_another(rig: Rig) -> None:
    share(rig, NamedLimit(concurrency=1))
    for queue in "abcd":
        configure(rig, queue, limits=("n",))
        rig.get(push(queue, queue=queue))
    popped = rig.lease(pop(queue="a"))
    waiting = {rig.wait(pop(queue=queue, wait_ms=HOUR_MS)): queue for queue in "bcd"}
    while waiting:
        rig.get(Ack(DEFAULT, popped.lease))
        (served,) = [ticket for ticket in waiting if not rig.waits(ticket)]
        assert rig.got(served) == [waiting.pop(served)]
        reply = rig.reply(served)
        assert isinstance(reply, Popped)
        popped = reply


@pytest.mark.parametrize("how", ["obliterate", "leave", "remove", "raise"])
def test_who_waits_under_a_shared_limit_goes_on_when_that_holds_it_back_no_more(rig: Rig, how: str) -> None:
    share(rig, NamedLimit(concurrency=1))
    for queue in ("a", "b"):
        configure(rig, queue, limits=("n",))
        rig.get(push(queue, queue=queue))
    rig.lease(pop(queue="a", lease_ms=HOUR_MS))
    ticket = rig.wait(pop(queue="b", wait_ms=HOUR_MS))
    match how:
        case "obliterate":
            rig.get(Obliterate(DEFAULT, "a"))
        case "leave":
            configure(rig, "a", limits=())
        case "remove":
            share(rig, None)
        case "raise":
            share(rig, NamedLimit(concurrency=2))
    assert rig.got(ticket) == ["b"]


@pytest.mark.parametrize("options", [{"concurrency": 2}, {"concurrency": 0}], ids=str)
def test_who_waits_goes_on_when_the_limit_of_its_queue_is_raised_or_gone(
    rig: Rig, options: dict[str, Any]
) -> None:
    configure(rig, concurrency=1)
    rig.get(push(*"ab"))
    rig.lease(pop())
    ticket = rig.wait(pop(wait_ms=HOUR_MS))
    configure(rig, **options)
    assert rig.got(ticket) == ["b"]


def test_a_lane_serves_who_waits_one_message_at_a_time(rig: Rig) -> None:
    rig.get(PushJobs(DEFAULT, "q", [Job(payload, "lane", lane=True) for payload in (b"1", b"2", b"3")]))
    popped = rig.lease(pop(9))
    first, second = (rig.wait(pop(9, wait_ms=HOUR_MS)) for _ in range(2))
    rig.get(Ack(DEFAULT, popped.lease))
    assert rig.got(first) == ["2"]
    assert rig.waits(second)
    reply = rig.reply(first)
    assert isinstance(reply, Popped)
    rig.get(Ack(DEFAULT, reply.lease))
    assert rig.got(second) == ["3"]


def test_a_full_partition_does_not_keep_who_waits_from_another(rig: Rig) -> None:
    configure(rig, partition_concurrency=1)
    rig.get(push(*"ab", partition="busy"))
    rig.lease(pop(9))
    ticket = rig.wait(pop(wait_ms=HOUR_MS))
    rig.get(push("x", partition="idle"))
    assert rig.got(ticket) == ["x"]


def test_an_asker_that_could_not_be_told_frees_the_place(rig: Rig) -> None:
    configure(rig, concurrency=1)
    rig.get(push("a"))
    popped = rig.lease(pop())
    ticket = rig.wait(pop(wait_ms=HOUR_MS))
    rig.node.give_back(popped)
    rig.loop.run_ready()
    assert rig.got(ticket) == ["a"]


def test_a_failed_commit_loses_neither_places_nor_who_waits_for_them(rig: Rig) -> None:
    configure(rig, concurrency=1)
    rig.get(push(*"ab"))
    popped = rig.lease(pop(lease_ms=HOUR_MS))
    ticket = rig.wait(pop(wait_ms=HOUR_MS))
    rig.store.commit_error = OSError("disk full")
    rig.get(push("c"))
    rig.loop.advance(10_000)
    assert rig.waits(ticket)
    rig.get(Ack(DEFAULT, popped.lease))
    assert rig.got(ticket) == ["b"]
