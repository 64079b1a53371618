"""Messages that are dropped after their end, as they ask for themselves or as many are kept; and stalls."""

from typing import Any

import pytest

from forebay.core.api import commands as c, jobs, queries
from forebay.core.bounds import DELAY_MS_MAX
from forebay.core.errors import NotFound
from forebay.core.links import cleanup, expiry
from forebay.core.retention import sweep
from forebay.core.shard.timers import SOON_MS, SWEEP_MS
from forebay.core.state import Attributes, Backoff, Cleanup, Identity
from forebay.core.words import RESULT
from tests.core.harness import Core

REMOVED = Cleanup(on_complete=True)
REMOVED_DEAD = Cleanup(on_fail=True)


def is_shown(core: Core, message: int) -> bool:
    """Whether a message is shown, by every question that could."""
    asked = queries.Show("default", [message])
    by_id = [each.state.id for each in core.ask(asked, queries.ShownAll).deliveries]
    every = core.ask(queries.Browse("default", "q", None, "default", 1_000), queries.ShownAll)
    in_all = [each.state.id for each in every.deliveries if each.state.id == message]
    assert every.total == len(every.deliveries)
    try:
        state = core.state(message)
    except NotFound:
        assert (by_id, in_all) == ([], [])
        return False
    assert by_id == in_all == [message]
    listed = core.ask(queries.Browse("default", "q", state, "default", 1_000), queries.ShownAll)
    assert message in [each.state.id for each in listed.deliveries]
    return True


def complete(core: Core, *ids: int, **fields: Any) -> None:
    core.pop(1_000)
    core.ack(ids=list(ids), **fields)


def shown(core: Core, first: int, count: int) -> list[bool]:
    return [is_shown(core, first + at) for at in range(count)]


@pytest.mark.parametrize("restarts", [False, True])
def test_what_is_removed_on_completion_is_gone_and_its_neighbours_are_not(restarts: bool) -> None:
    core = Core()
    kept = core.push(b"0")
    first = core.push(b"1", b"2", cleanup=REMOVED)
    core.push(b"3")
    if restarts:
        core.restart()
    complete(core, kept, first, first + 1)
    if restarts:
        core.restart()
    assert shown(core, kept, 4) == [True, False, False, True]
    assert core.counts() == queries.Counts(completed=1, active=1)
    with pytest.raises(NotFound, match="no longer kept"):
        core.state(first)


def test_what_is_removed_on_completion_comes_again_as_long_as_it_fails() -> None:
    core = Core()
    core.forgive()
    message = core.push(b"1", cleanup=Cleanup(True, True))
    core.nack(core.pop().lease)
    assert core.state(message) == "waiting"
    core.ack(core.pop().lease)
    assert not is_shown(core, message)


def test_its_result_can_be_asked_for_by_its_id() -> None:
    core = Core()
    message = core.push(b"1", cleanup=REMOVED)
    complete(core, message, results=[b'"done"'])
    found = core.ask(queries.GetNotes("default", message, (RESULT,)), queries.NotesFound)
    assert found.state.state == "completed"
    assert [each.count for each in found.notes[0]] == [1]


@pytest.mark.parametrize("fails", [True, False])
def test_what_was_dropped_is_shown_if_that_is_asked_for(fails: bool) -> None:
    core = Core()
    core.configure(max_attempts=1)
    message = core.push(b"1", cleanup=Cleanup(True, True))
    lease = core.pop().lease
    if fails:
        core.nack(lease)
    else:
        core.ack(lease)
    core.restart()
    (found,) = core.ask(queries.Show("default", [message], dropped=True), queries.ShownAll).deliveries
    assert (found.state.id, found.state.state) == (message, "dead" if fails else "completed")
    assert not core.ask(queries.Show("default", [message]), queries.ShownAll).deliveries


@pytest.mark.parametrize("keeps", [True, False])
def test_what_is_removed_on_failure_is_no_dead_letter(keeps: bool) -> None:
    core = Core()
    core.configure(dead_letters=keeps, max_attempts=1)
    message = core.push(b"1", cleanup=REMOVED_DEAD)
    other = core.push(b"2")
    core.nack(core.pop(2).lease, error="broken")
    core.restart()
    assert not is_shown(core, message)
    assert core.state(other) == "dead"
    assert core.counts() == (queries.Counts(dead=1) if keeps else queries.Counts(discarded=1))
    found = core.ask(queries.GetNotes("default", message, (RESULT,)), queries.NotesFound)
    assert found.state.state == "dead", "who waits for it learns that it failed"


def test_what_is_removed_on_failure_stays_when_it_is_completed() -> None:
    core = Core()
    message = core.push(b"1", cleanup=REMOVED_DEAD)
    complete(core, message)
    assert is_shown(core, message)


def test_what_waits_for_a_requeue_of_what_was_removed_fails() -> None:
    core = Core()
    core.configure(max_attempts=1)
    message = core.push(b"1", cleanup=REMOVED_DEAD)
    waiting = core.push(b"2", depends_on=((message, 1),), on_failed="wait")
    core.nack(core.pop().lease)
    assert core.find(waiting).error == f"it depends on {message}, which did not complete"


def test_what_depends_on_a_removed_message_is_delivered() -> None:
    core = Core()
    message = core.push(b"1", cleanup=REMOVED)
    before = core.push(b"2", depends_on=((message, 1),))
    complete(core, message)
    after = core.push(b"3", depends_on=((message, 1),))
    assert [core.state(before), core.state(after)] == ["waiting", "waiting"]


def test_a_requeued_message_is_removed_when_it_is_completed_then() -> None:
    core = Core()
    core.configure(max_attempts=1)
    message = core.push(b"1", cleanup=REMOVED)
    core.nack(core.pop().lease)
    assert core.state(message) == "dead"
    core.restart()
    core.ask(c.Requeue("default", "q"), c.Buried)
    core.ack(core.pop().lease)
    assert not is_shown(core, message)


def test_the_custom_id_of_a_removed_message_is_free() -> None:
    core = Core()

    def push() -> tuple[int, bool]:
        job = jobs.Job(b"1", own=Identity(job_id="mine"), attributes=Attributes(cleanup=REMOVED))
        pushed = core.ask(jobs.PushJobs("default", "q", [job]), jobs.PushedJobs)
        return pushed.ids[0], bool(pushed.duplicates)

    first, _ = push()
    assert push() == (first, True)
    complete(core, first)
    second, is_known = push()
    assert second != first
    assert not is_known
    core.restart()
    assert push() == (second, True)


def test_a_unique_key_is_freed_as_ever_and_a_replacement_is_removed_too() -> None:
    core = Core()

    def push(payload: bytes) -> jobs.PushedJobs:
        job = jobs.Job(payload, own=Identity("key", "replace"), attributes=Attributes(cleanup=REMOVED))
        return core.ask(jobs.PushJobs("default", "q", [job]), jobs.PushedJobs)

    (message,) = push(b"1").ids
    assert push(b"2").replaced == [0]
    core.restart()
    assert core.popped() == [b"2"]
    core.ack(ids=[message])
    with pytest.raises(NotFound):
        core.state(message)
    assert push(b"3").replaced == []


# Kept for a while.


@pytest.mark.parametrize("restarts", [False, True])
def test_what_is_kept_by_age_goes_when_it_is_over(restarts: bool) -> None:
    core = Core()
    message = core.push(b"1", cleanup=Cleanup(keep_ms=1_000))
    other = core.push(b"2")
    core.wait(5_000)
    complete(core, message, other)
    core.wait(999)
    if restarts:
        core.restart()
    assert is_shown(core, message)
    core.wait(1)
    assert shown(core, message, 2) == [False, True]


def test_the_age_counts_from_completion_not_from_a_return_in_another_group() -> None:
    core = Core()
    message = core.push(b"1", cleanup=Cleanup(keep_ms=60_000))
    core.ack(core.pop().lease)
    core.nack(core.pop(group="audit").lease, group="audit")
    core.wait(30_000)
    assert is_shown(core, message)


@pytest.mark.parametrize("restarts", [False, True])
def test_what_is_kept_by_count_goes_when_as_many_came_after_it(restarts: bool) -> None:
    core = Core()
    first = core.push(*[b"%d" % number for number in range(6)], cleanup=Cleanup(keep_count=2))
    other = core.push(b"other")
    core.pop(9)
    for at in (3, 0, 1, 5):
        core.now += 1
        core.ack(ids=[first + at])
        if restarts:
            core.restart()
    assert shown(core, first, 6) == [False, True, True, False, True, True]
    core.ack(ids=[first + 2, first + 4, other])
    assert [at for at, is_kept in enumerate(shown(core, first, 6)) if is_kept] == [2, 4]
    assert is_shown(core, other), "it is not counted"


def test_what_a_seek_reads_again_starts_over() -> None:
    core = Core()
    message = core.push(b"1", cleanup=Cleanup(keep_ms=1_000, keep_count=1))
    removed = core.push(b"2", cleanup=REMOVED)
    complete(core, message, removed)
    core.wait(900)
    core.ask(c.Seek("default", "q", "default", "all"), c.Sought)
    core.wait(500)
    assert [core.state(message), core.state(removed)] == ["waiting", "waiting"]
    core.restart()
    complete(core, message)
    core.wait(999)
    assert is_shown(core, message)
    core.wait(1)
    assert not is_shown(core, message)


def test_nothing_is_left_when_everything_is_gone() -> None:
    core = Core()
    core.configure(completed_retention_ms=0)
    for each in (REMOVED, Cleanup(keep_ms=5), Cleanup(keep_count=1), Cleanup(keep_ms=DELAY_MS_MAX)):
        core.push(b"1", cleanup=each)
    core.commit()
    core.ack(core.pop(9).lease)
    core.wait(SWEEP_MS)
    core.wait(SWEEP_MS)
    queue = core.engine.queues["default", "q"]
    (partition,) = queue.partitions.values()
    assert (partition.ties, partition.links_count, dict(queue.kept)) == ({}, 0, {})
    core.restart()
    assert core.counts() == queries.Counts()


def test_what_ends_and_is_too_old_in_one_step_leaves_nothing() -> None:
    core = Core()
    core.configure(retention_ms=1_000, max_attempts=1)
    core.push(b"1", cleanup=REMOVED_DEAD)
    core.commit()
    core.pop(lease_ms=SWEEP_MS)
    core.wait(2 * SWEEP_MS)
    assert core.counts() == queries.Counts()


def test_very_many_that_are_kept_equally_long_go_in_several_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "DROPS_MAX", 3)
    core = Core()
    core.push(*[b"%d" % number for number in range(7)], cleanup=Cleanup(keep_ms=10))
    core.ack(core.pop(9).lease)
    kept = []
    for ms in (10, 0, 0):
        core.wait(ms)
        kept.append(core.counts().completed)
    assert kept == [4, 1, 0]


def test_very_many_that_are_surplus_go_with_several_completions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleanup, "DROPS_MAX", 3)
    core = Core()
    core.push(*[b"%d" % number for number in range(6)], cleanup=Cleanup(keep_count=9))
    first = core.push(b"6", b"7", b"8", cleanup=Cleanup(keep_count=1))
    core.ack(core.pop(6).lease)
    core.pop(3)
    kept = []
    for at in range(3):
        core.ack(ids=[first + at])
        core.commit()
        kept.append(core.counts().completed)
    assert kept == [4, 2, 1]


def test_very_many_that_are_surplus_go_with_several_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleanup, "DROPS_MAX", 3)
    core = Core()
    core.push(*[b"%d" % number for number in range(20)], cleanup=Cleanup(keep_count=99))
    core.ack(core.pop(20).lease)
    core.push(b"20", b"21", b"22", cleanup=Cleanup(keep_count=1))
    core.ack(core.pop(9).lease)
    assert core.counts().completed == 20, "three were completed, and three dropped"


def test_a_queue_that_goes_with_its_last_ack_drops_nothing_of_it() -> None:
    core = Core()
    kept = Cleanup(keep_count=1, keep_ms=1_000)
    first, second = core.push(b"1", cleanup=kept), core.push(b"2", cleanup=kept)
    core.push(b"x", queue="other", depends_on=((second, 1),))
    core.pop(2)
    core.ack(ids=[first])
    core.ask(c.Delete("default", "q"), c.Closed)
    core.ack(ids=[second])
    assert core.counts("other") == queries.Counts(waiting=1)
    core.wait(2_000)
    core.restart()
    assert ("default", "q") not in core.engine.queues


# A bound of the whole queue.


def test_above_its_bound_a_queue_drops_the_older_half_of_it() -> None:
    core = Core()
    core.configure(completed_retention_count=10)
    ids = []
    for number in range(12):
        ids.append(core.push(b"%d" % number, partition=f"p{number % 3}"))
        core.commit()
        core.wait(1)
    core.pop(20)
    core.ack(ids=ids[:10])
    core.wait(SWEEP_MS)
    assert core.counts().completed == 10, "no more than it may keep"
    core.ack(ids=[ids[11]])
    core.wait(SWEEP_MS)
    assert [each for each in ids if is_shown(core, each)] == ids[6:]
    assert core.counts() == queries.Counts(completed=5, active=1)
    core.restart()
    assert core.counts() == queries.Counts(completed=5, active=1)


def test_a_bound_holds_for_completed_messages_between_dead_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "DROPPED_RUNS_MAX", 3)
    core = Core()
    core.configure(completed_retention_count=4, max_attempts=1)
    first = core.push(*[b"%d" % number for number in range(40)])
    core.pop(40)
    core.ack(ids=list(range(first, first + 40, 2)))
    core.nack(ids=list(range(first + 1, first + 40, 2)))
    core.commit()
    core.wait(SWEEP_MS)
    core.wait(SWEEP_MS // 2)
    for _ in range(10):
        core.wait(SOON_MS)
    assert core.counts() == queries.Counts(completed=2, dead=20)
    assert [at for at in range(0, 40, 2) if is_shown(core, first + at)] == [36, 38]


def test_a_bound_is_set_for_a_queue_that_a_command_creates_and_for_no_other() -> None:
    core = Core()
    core.push(queue="before")
    made: dict[str, c.Command] = {
        "push": c.Push("default", "push", [b"1"], completed_count=7),
        "jobs": jobs.PushJobs("default", "jobs", [jobs.Job(b"1")], completed_count=7),
        "flow": jobs.PushFlow("default", jobs.FlowJob("flow", jobs.Job(b"1")), completed_count=7),
        "pop": c.Pop("default", "pop", completed_count=7),
        "pause": c.Pause("default", "pause", completed_count=7, create=True),
        "cron": jobs.CronPut("default", "n", "cron", jobs.Job(b"1"), every_ms=9_000, completed_count=7),
        "configure": c.Configure("default", "configure", completed_count=7, concurrency=3),
        "before": c.Push("default", "before", [b"1"], completed_count=7),
    }
    for command in made.values():
        core.engine.apply(command, core.now)
    core.restart()
    bounds = {name: core.engine.queues["default", name].options.completed_retention_count for name in made}
    assert bounds == dict.fromkeys(made, 7) | {"before": 0}


# Stalls.


def test_a_delivery_that_is_not_heard_of_has_stalled_which_is_no_failure() -> None:
    core = Core()
    message = core.push(b"1", stall_ms=5_000, max_attempts=1)
    core.pop()
    core.wait(4_999)
    assert core.state(message) == "active"
    core.restart()
    core.wait(1)
    found = core.find(message)
    assert (found.state, found.deliveries, found.failures) == ("waiting", 1, 0)
    assert found.error.startswith("stalled")


def test_a_message_is_dead_when_it_has_stalled_three_times() -> None:
    core = Core()
    message = core.push(b"1", stall_ms=5_000, max_attempts=0)
    for _ in range(3):
        assert core.state(message) == "waiting"
        core.pop()
        core.wait(5_000)
    found = core.find(message)
    assert (found.state, found.deliveries, found.failures) == ("dead", 3, 0)


def test_failures_and_returns_are_no_stalls() -> None:
    core = Core()
    core.forgive()
    message = core.push(b"1", stall_ms=5_000)
    for _ in range(4):
        core.nack(core.pop().lease)
        core.nack(core.pop().lease, undelivered=True)
    core.pop()
    core.wait(5_000)
    found = core.find(message)
    assert (found.state, found.deliveries, found.failures) == ("waiting", 5, 4)


def test_in_strict_order_only_the_one_that_stalled_has_stalled() -> None:
    core = Core()
    core.configure(ordering="partition", backoff=Backoff(kind="none"), max_attempts=0)
    first = core.push(b"1", b"2", b"3", stall_ms=5_000)
    for _ in range(2):
        core.nack(core.pop(3).lease)
    core.pop(3)
    core.ack(ids=[first])
    core.wait(5_000)
    found = [core.find(first + at) for at in (1, 2)]
    assert [(each.state, each.deliveries, each.failures) for each in found] == [
        ("waiting", 1, 0),
        ("waiting", 0, 0),
    ]


def test_of_a_batch_each_has_its_own_time_when_it_is_extended() -> None:
    core = Core()
    plain, stalls = core.push(b"1"), core.push(b"2", stall_ms=5_000)
    slow = core.push(b"3", timeout_ms=90_000)
    lease = core.pop(3).lease
    core.wait(3_000)
    core.ask(c.Extend("default", ids=[slow]), c.Extended)
    core.wait(5_000)
    assert [core.state(each) for each in (plain, stalls, slow)] == ["active", "waiting", "active"]
    core.wait(25_000)
    assert [core.state(each) for each in (plain, slow)] == ["delayed", "active"]
    assert core.ask(c.Extend("default", lease), c.Extended).expires_at == core.now + 90_000


def test_an_outage_is_not_taken_off_the_timeout() -> None:
    core = Core()
    message = core.push(b"1", stall_ms=5_000, timeout_ms=12_000)
    lease = core.pop().lease
    core.wait(1_000)
    core.restart(down_ms=20_000)
    for _ in range(3):
        core.wait(3_000)
        core.ask(c.Extend("default", lease), c.Extended)
    assert core.state(message) == "active"
    core.wait(2_000)
    assert core.find(message).failures == 1


def test_who_extends_has_not_stalled() -> None:
    core = Core()
    message = core.push(b"1", stall_ms=5_000)
    lease = core.pop().lease
    for _ in range(5):
        core.wait(4_000)
        assert core.ask(c.Extend("default", lease), c.Extended).expires_at == core.now + 5_000
    core.wait(5_000)
    assert core.state(message) == "waiting"


def test_a_timeout_ends_a_delivery_that_is_extended_and_is_a_failure() -> None:
    core = Core()
    core.forgive()
    message = core.push(b"1", stall_ms=5_000, timeout_ms=7_000)
    lease = core.pop().lease
    core.wait(4_000)
    assert core.ask(c.Extend("default", lease), c.Extended).expires_at == core.now + 3_000
    core.wait(3_000)
    found = core.find(message)
    assert (found.state, found.failures, found.error) == ("waiting", 1, "lease expired")


def test_dependents_that_are_released_together_keep_their_own_times() -> None:
    core = Core()
    awaited = core.push(b"0")
    stalls = core.push(b"1", stall_ms=5_000, depends_on=((awaited, 1),))
    slow = core.push(b"2", timeout_ms=60_000, depends_on=((awaited, 1),))
    core.ack(core.pop().lease)
    core.pop(5)
    core.wait(5_000)
    assert [core.state(stalls), core.state(slow)] == ["waiting", "active"]


def test_a_timeout_that_is_shorter_is_no_stall() -> None:
    core = Core()
    core.forgive()
    message = core.push(b"1", stall_ms=5_000, timeout_ms=2_000)
    core.pop()
    core.wait(2_000)
    assert core.find(message).failures == 1


def test_a_pop_that_says_how_long_it_takes_has_that_time() -> None:
    core = Core()
    message = core.push(b"1", stall_ms=5_000)
    core.pop(lease_ms=60_000)
    core.wait(59_999)
    assert core.state(message) == "active"
    core.wait(1)
    assert core.find(message).failures == 0


def test_a_dead_letter_says_when_its_last_delivery_began() -> None:
    core = Core()
    core.configure(max_attempts=1)
    message = core.push(b"1")
    core.wait(10)
    core.pop()
    began_at = core.now
    core.wait(10)
    core.nack(ids=[message])
    core.restart()
    (letter,) = core.ask(queries.ListDead("default", "q"), queries.DeadFound).deliveries
    assert (letter.leased_at, letter.dead_at) == (began_at, began_at + 10)
    assert core.find(message).leased_at == began_at
