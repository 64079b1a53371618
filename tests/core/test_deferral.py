"""Messages that a consumer can't handle yet go back, uncounted, until somebody can or their time is over."""

import pytest

from forebay.core.api import commands as c
from forebay.core.errors import Invalid
from tests.core.harness import NOW, Core

HOUR = 3_600_000


def defer(core: Core, why: str = "no task send", defer_ms: int = HOUR) -> None:
    core.nack(core.pop().lease, error=why, undelivered=True, defer_ms=defer_ms)


def test_what_is_deferred_counts_nothing_and_comes_again_after_a_growing_delay() -> None:
    core = Core()
    core.configure(max_attempts=1, max_deliveries=1)
    message = core.push()
    waits = []
    for _ in range(8):
        defer(core)
        found = core.find(message)
        assert (found.state, found.deliveries, found.failures) == ("delayed", 0, 0)
        assert found.due_at is not None
        waits.append(found.due_at - core.now)
        core.wait(waits[-1])
    assert waits == [1_000, 1_000, 2_000, 4_000, 5_000, 5_000, 5_000, 5_000]


def test_the_time_counts_from_the_first_deferral_and_not_from_the_push() -> None:
    core = Core()
    message = core.push()
    core.wait(5 * HOUR)
    begun = core.now
    for _ in range(1_000):
        defer(core, "no task send")
        found = core.find(message)
        if found.state == "dead":
            break
        assert found.due_at is not None
        core.wait(found.due_at - core.now)
    assert (found.state, core.now - begun, found.failures) == ("dead", HOUR, 0)
    assert found.error == "deferred since 2023-11-15T03:13:20.000Z: no task send"


def test_it_counts_through_restarts_and_other_releases() -> None:
    core = Core()
    message = core.push()
    defer(core)
    told = core.find(message).error
    core.restart(down_ms=2_000)
    core.nack(core.pop().lease, undelivered=True)
    core.restart()
    assert core.counts().deferred == 1
    core.wait(HOUR)
    defer(core)
    found = core.find(message)
    assert (found.state, found.error) == ("dead", told)


def test_a_failure_in_between_begins_the_time_anew() -> None:
    core = Core()
    message = core.push()
    defer(core)
    core.wait(1_000)
    core.nack(core.pop().lease, error="broken", delay_ms=HOUR)
    assert core.counts().deferred == 0
    core.wait(HOUR)
    defer(core)
    found = core.find(message)
    assert (found.state, found.failures) == ("delayed", 1)
    assert found.error == "deferred since 2023-11-14T23:13:21.000Z: no task send"


def test_deferred_messages_are_counted_as_long_as_they_wait() -> None:
    core = Core()
    core.push(b"1", b"2", b"3", b"4")
    core.nack(core.pop(3).lease, error="new", undelivered=True, defer_ms=HOUR)
    found = core.counts()
    assert (found.deferred, found.delayed, found.waiting) == (3, 3, 1)
    core.wait(1_000)
    found = core.counts()
    assert (found.deferred, found.delayed, found.waiting) == (3, 0, 4)
    core.ack(core.pop(4).lease)
    assert (core.counts().deferred, core.counts().completed) == (0, 4)


def test_in_strict_order_the_first_is_deferred_and_the_others_wait_behind_it() -> None:
    core = Core()
    core.configure(ordering="partition")
    first = core.push(b"1", b"2")
    core.nack(core.pop(2).lease, error="new", undelivered=True, defer_ms=HOUR)
    assert [core.find(first + at).deliveries for at in range(2)] == [0, 0]
    assert core.counts().deferred == 1
    assert core.popped(2) == []
    core.wait(1_000)
    assert core.popped(2) == [b"1", b"2"]


def test_no_time_at_all_is_over_at_once() -> None:
    core = Core()
    message = core.push()
    defer(core, defer_ms=0)
    assert core.state(message) == "dead"


def test_an_error_that_only_looks_like_a_deferral_begins_the_time() -> None:
    core = Core()
    message = core.push()
    core.nack(core.pop().lease, error="deferred since 2023-99-99T99:99:99.000Z: mine", delay_ms=0)
    defer(core)
    assert core.find(message).error == "deferred since 2023-11-14T22:13:20.000Z: no task send"
    assert core.now == NOW


def test_a_time_out_of_bounds_is_refused() -> None:
    core = Core()
    core.push()
    lease = core.pop().lease
    for wrong in (-1, 10**13):
        with pytest.raises(Invalid, match="defer_ms"):
            core.ask(c.Nack("default", lease, undelivered=True, defer_ms=wrong), c.Settled)


def test_the_time_begins_anew_after_a_consumer_had_it_for_a_whole_lease() -> None:
    core = Core()
    core.configure(on_lease_expiry="requeue")
    message = core.push()
    defer(core)
    core.wait(1_000)
    core.pop(lease_ms=2 * HOUR)
    core.wait(2 * HOUR)
    assert core.counts().deferred == 0
    defer(core)
    assert core.state(message) == "delayed"


def test_an_error_that_looks_like_a_deferral_is_a_failure_like_any_other() -> None:
    core = Core()
    message = core.push()
    core.nack(core.pop().lease, error="deferred since 2000-01-01T00:00:00.000Z: mine", delay_ms=0)
    assert core.counts().deferred == 0
    assert core.find(message).error == "failed: deferred since 2000-01-01T00:00:00.000Z: mine"
    defer(core)
    assert core.state(message) == "delayed"
