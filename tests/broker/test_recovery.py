"""When the store is gone for a while: nothing spins, nobody is forgotten."""

from functools import partial

from forebay.broker.node import RELOAD_RETRY_S, Node
from forebay.core.api.commands import Ack, Nack, Pop, Popped, Pushed, Settled
from forebay.core.bounds import Limits
from forebay.core.errors import Busy
from forebay.core.words import DEFAULT
from tests.broker.loop import FakeLoop, ObedientStore, Recorder, Rig, pop, push

SECOND = 1_000


def test_nothing_spins_while_the_store_is_gone_and_a_lease_falls_due() -> None:
    rig = Rig(ObedientStore())
    rig.get(push("a"))
    rig.lease(pop(lease_ms=1_500))
    rig.store.commit_error = rig.store.claim_error = OSError("gone")
    assert isinstance(rig.get(push("x")), Busy)
    rig.loop.advance(5 * SECOND)


def test_commits_that_keep_failing_are_tried_again_in_a_while_not_at_once() -> None:
    rig = Rig(ObedientStore())
    rig.get(push("a"))
    rig.lease(pop(lease_ms=60_000))
    rig.store.commit_error = OSError("disk full")
    rig.wait(pop(queue="never-kept", wait_ms=60_000))
    before = rig.node.failures
    rig.loop.advance(10 * SECOND)
    assert rig.node.failures - before <= 10 * SECOND / (RELOAD_RETRY_S * 1_000) + 1


def test_questions_do_not_make_a_reload_more_frequent() -> None:
    rig = Rig(ObedientStore())
    rig.store.commit_error = rig.store.claim_error = OSError("gone")
    rig.get(push("x"))
    for _ in range(50):
        assert isinstance(rig.get(push("x")), Busy)
        rig.loop.advance(1)
    assert rig.loop.timers() <= 2


def test_a_lease_that_ends_just_before_its_timer_rings_still_wakes_who_waits() -> None:
    loop, asker, behind = FakeLoop(), Recorder(), [1]
    node = Node(
        ObedientStore(),
        loop.as_loop,
        lambda: loop.now() - behind[0],
        Limits(pop_creates_queues=True),
        shards=4,
    )
    for name, command in (
        ("push", push("a", "b")),
        ("short", pop(queue="other", wait_ms=10)),
        ("lease", pop(2, lease_ms=11)),
        ("long", pop(wait_ms=60_000)),
    ):
        node.ask(asker, name, command)
        loop.run_ready()
    behind[0] = 0
    loop.advance(10)
    loop.advance(5 * SECOND)
    assert "long" in asker.answers


def test_time_that_passes_while_the_woken_are_served_wakes_others() -> None:
    loop, asker, times = FakeLoop(), Recorder(), list[int]()
    node = Node(
        ObedientStore(),
        loop.as_loop,
        lambda: times.pop(0) if times else loop.now(),
        Limits(pop_creates_queues=True),
        shards=4,
    )
    for name, command in (
        ("push", push("a")),
        ("lease", pop(lease_ms=11)),
        ("waits here", pop(wait_ms=60_000)),
        ("waits there", pop(queue="r", wait_ms=60_000)),
    ):
        node.ask(asker, name, command)
        loop.run_ready()
    loop.advance(10)
    times += [loop.now(), loop.now(), loop.now() + 1, loop.now() + 1]
    node.ask(asker, "push there", push("b", queue="r"))
    loop.run_ready()
    loop.advance(5 * SECOND)
    assert {"waits here", "waits there"} <= asker.answers.keys()


def test_what_falls_due_goes_to_who_waits_not_to_a_newcomer() -> None:
    rig = Rig(ObedientStore())
    rig.forgive()
    rig.get(push("a"))
    rig.lease(pop(lease_ms=100))
    waiting = rig.wait(pop(wait_ms=10_000))
    rig.loop.advance(99)
    rig.loop._ms += 1  # the instant is there, its timer has not rung yet
    rig.ask(pop())
    rig.loop.run_ready()
    assert rig.reply(waiting) is not None


def test_a_failed_commit_gives_no_lease_more_time_because_nothing_was_down() -> None:
    rig = Rig(ObedientStore())
    rig.forgive()
    rig.get(push("a"))
    rig.lease(pop(lease_ms=1_000))
    rig.loop.advance(600)
    rig.store.commit_error = OSError("once")
    rig.get(push("x"))
    rig.store.commit_error = None
    rig.loop.advance(400)
    assert rig.lease(pop())


def test_a_store_that_was_away_is_no_failure_of_who_holds_a_lease() -> None:
    rig = Rig(ObedientStore())
    rig.get(push("a"))
    lease = rig.lease(pop(lease_ms=2_000)).lease
    rig.store.commit_error = rig.store.claim_error = OSError("gone")
    assert isinstance(rig.get(push("x")), Busy)
    rig.loop.advance(5 * SECOND)
    rig.store.commit_error = rig.store.claim_error = None
    rig.loop.advance(2 * SECOND)
    assert rig.get(Ack(DEFAULT, lease)) == Settled(1)


def test_a_reload_forgets_no_owner() -> None:
    rig = Rig(ObedientStore())
    pushed = rig.get(push("a"))
    assert isinstance(pushed, Pushed)
    rig.get(Pop(DEFAULT, "q", "audit", owner=1))
    rig.get(Pop(DEFAULT, "q", owner=2))
    rig.store.commit_error = OSError("once")
    rig.get(push("x"))
    rig.store.commit_error = None
    assert rig.get(Ack(DEFAULT, ids=[pushed.first], owner=1)) == Settled(1, [])
    assert rig.state(pushed.first).state == "active"


def _behind(loop: FakeLoop, ms: int) -> int:
    return loop.now() - ms


def test_a_clock_that_went_back_over_a_restart_goes_on_from_the_last_commit() -> None:
    store, loop = ObedientStore(), FakeLoop()
    for behind in (0, 5 * SECOND):
        asker = Recorder()
        node = Node(
            store, loop.as_loop, partial(_behind, loop, behind), Limits(pop_creates_queues=True), shards=4
        )
        node.ask(asker, "push", push("a"))
        node.ask(asker, "pop", pop())
        loop.run_ready()
        popped = asker.answers["pop"]
        assert isinstance(popped, Popped)
        assert popped.deliveries
        node.ask(asker, "nack", Nack(DEFAULT, popped.lease))
        loop.run_ready()
