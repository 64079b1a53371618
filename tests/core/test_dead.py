"""Dead letters: listed, delivered again, given up, and kept until then."""

from typing import Any

import pytest

from forebay.core.api import commands as c, queries
from forebay.core.bounds import DEAD_SHOWN_MAX
from forebay.core.errors import Invalid, NotFound
from forebay.core.shard.timers import SWEEP_MS
from tests.core.harness import NOW, Core


def kill(core: Core, *payloads: bytes, group: str = "default", error: str = "no", **fields: Any) -> int:
    """Push messages that die at their first failure, and let them; the id of the first."""
    first = core.push(*payloads, max_attempts=1, **fields)
    reply = core.pop(len(payloads), group=group)
    assert sum(each.count for each in reply.deliveries) == len(payloads)
    core.nack(reply.lease, error=error)
    return first


def listed(core: Core, group: str = "default", **fields: int) -> list[bytes]:
    found = core.ask(queries.ListDead("default", "q", group, **fields), queries.DeadFound)
    return [bytes(payload) for each in found.deliveries for payload in each.payloads()]


def requeue(core: Core, ids: list[int] | None = None, group: str = "default") -> c.Buried:
    return core.ask(c.Requeue("default", "q", group, ids), c.Buried)


def purge(core: Core, ids: list[int] | None = None, dry_run: bool = False) -> c.Buried:
    return core.ask(c.Purge("default", "q", ids=ids, dry_run=dry_run), c.Buried)


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


# The list.


def test_dead_letters_are_listed_in_order_with_what_they_died_of() -> None:
    core = Core()
    first = kill(core, b"1", b"2", error="broken")
    core.wait(5)
    second = kill(core, b"3", error="gone", priority=4)
    found = core.ask(queries.ListDead("default", "q"), queries.DeadFound)
    assert found.total == 3
    one, two, other = found.deliveries
    assert (one.first, one.count, one.error, one.dead_at, one.priority) == (first, 1, "broken", NOW, 0)
    assert (two.first, two.error) == (first + 1, "broken")
    assert (other.first, other.count, other.error, other.dead_at, other.priority) == (
        second,
        1,
        "gone",
        NOW + 5,
        4,
    )
    assert (one.deliveries, one.failures) == (1, 1)
    assert listed(core) == [b"1", b"2", b"3"]


def test_dead_letters_can_be_listed_in_pages_across_partitions() -> None:
    core = Core()
    kill(core, *numbers(5), partition="x")
    kill(core, b"a", b"b", partition="y")
    kill(core, b"c", partition="x")
    wanted = [*numbers(5), b"c", b"a", b"b"]
    assert listed(core) == wanted
    for size in (1, 2, 3, 7):
        pages = [listed(core, count=size, skip=skip) for skip in range(0, 8, size)]
        assert [each for page in pages for each in page] == wanted
        assert max(map(len, pages)) == size
    assert listed(core, skip=8) == listed(core, skip=10_000) == []


def test_each_queue_and_group_has_dead_letters_of_its_own() -> None:
    core = Core()
    kill(core, b"1")
    core.nack(core.pop(group="audit").lease)
    core.push(b"other", queue="r")
    assert listed(core) == listed(core, group="audit") == [b"1"]
    assert listed(core, group="nobody") == []
    requeue(core, group="audit")
    assert (listed(core), listed(core, group="audit")) == ([b"1"], [])
    assert core.ask(queries.ListDead("default", "r"), queries.DeadFound).total == 0


# Again.


def test_a_dead_letter_is_delivered_again_as_if_for_the_first_time() -> None:
    core = Core()
    message = kill(core, b"1")
    assert requeue(core, [message]) == c.Buried(1, 0, [])
    found = core.find(message)
    assert (found.state, found.deliveries, found.failures, found.error) == ("waiting", 0, 0, "")
    reply = core.pop()
    assert [(each.first, each.deliveries, each.failures) for each in reply.deliveries] == [(message, 1, 0)]
    core.nack(reply.lease)
    assert core.state(message) == "dead"


def test_all_dead_letters_can_be_delivered_again_at_once() -> None:
    core = Core()
    kill(core, *numbers(5))
    kill(core, b"5", partition="x")
    assert requeue(core) == c.Buried(6, 0, [])
    assert sorted(core.popped(9)) == numbers(6)
    assert requeue(core) == c.Buried(0, 0, [])


def test_some_of_a_run_can_be_delivered_again_and_the_rest_stays_dead() -> None:
    core = Core()
    first = kill(core, *numbers(6))
    reply = requeue(core, [first + 1, first + 4, first + 6])
    assert reply == c.Buried(2, 4, [first + 6])
    assert core.popped(9) == [b"1", b"4"]
    assert listed(core) == [b"0", b"2", b"3", b"5"]
    core.restart()
    assert core_listed(core) == [b"0", b"2", b"3", b"5"]


def core_listed(core: Core) -> list[bytes]:
    """What is listed after a restart, when no body is in memory."""
    core.popped(9, group="reads every body")
    return listed(core)


def test_a_dead_letter_goes_back_to_the_group_that_lost_it_only() -> None:
    core = Core()
    message = kill(core, b"1")
    core.ack(core.pop(group="audit").lease)
    requeue(core, [message])
    assert core.popped(group="audit") == []
    assert core.popped() == [b"1"]


def test_a_dead_letter_keeps_its_priority_when_it_comes_back() -> None:
    core = Core()
    kill(core, b"urgent", priority=5)
    core.push(b"plain")
    requeue(core)
    assert core.popped(9) == [b"urgent", b"plain"]


def test_those_who_wait_are_told_of_what_comes_back() -> None:
    core = Core()
    kill(core, b"1")
    core.commit()
    assert core.engine.take_woken() == []
    requeue(core)
    assert [wake[1:] for wake in core.engine.take_woken()] == [("default", "default")]


# Given up.


def test_dead_letters_can_be_given_up_one_or_all() -> None:
    core = Core()
    first = kill(core, *numbers(4))
    assert purge(core, [first + 2]) == c.Buried(1, 3, [])
    assert purge(core) == c.Buried(3, 0, [])
    assert listed(core) == core.popped(9) == []
    assert core.counts() == queries.Counts(discarded=4)
    with pytest.raises(NotFound):
        requeue(core, [first])


def test_a_dry_run_counts_and_changes_nothing() -> None:
    core = Core()
    first = kill(core, *numbers(4))
    core.commit()
    assert purge(core, dry_run=True) == c.Buried(4, 4, [])
    assert purge(core, [first, first + 9], dry_run=True) == c.Buried(1, 4, [first + 9])
    assert core.engine.seal(core.now) == []
    assert listed(core) == numbers(4)


def test_what_was_given_up_stays_given_up_over_a_restart() -> None:
    core = Core()
    first = kill(core, *numbers(3))
    purge(core, [first + 1])
    core.restart()
    assert core.counts() == queries.Counts(discarded=1, dead=2)
    assert core_listed(core) == [b"0", b"2"]


# Kept.


def test_a_dead_letter_is_kept_however_short_the_retention() -> None:
    core = Core()
    core.configure(completed_retention_ms=0, completed_retention_bytes=0)
    message = kill(core, b"1")
    core.commit()
    done = core.push(b"2")
    core.ack(core.pop().lease)
    core.commit()
    for _ in range(5):
        core.wait(SWEEP_MS)
    assert core.state(message) == "dead"
    with pytest.raises(NotFound):
        core.state(done)
    purge(core)
    core.wait(SWEEP_MS)
    with pytest.raises(NotFound):
        core.state(message)


def test_a_queue_without_dead_letters_discards_what_failed_too_often() -> None:
    core = Core()
    core.configure(dead_letters=False, completed_retention_ms=0)
    message = kill(core, b"1")
    assert core.state(message) == "dead"
    assert listed(core) == []
    assert requeue(core) == c.Buried(0, 0, [])
    assert core.counts() == queries.Counts(discarded=1)
    core.commit()
    core.wait(SWEEP_MS)
    with pytest.raises(NotFound):
        core.state(message)


def test_a_dead_letter_may_be_as_old_as_it_likes() -> None:
    core = Core()
    message = core.push(b"1", max_attempts=1, ttl_ms=1_000)
    core.nack(core.pop().lease)
    core.wait(5_000)
    assert core.state(message) == "dead"
    requeue(core)
    assert core.popped() == []
    assert core.state(message) == "expired"


# What can't be.


def refuse(core: Core, command: c.Command, kind: type[Exception]) -> None:
    core.commit()
    with pytest.raises(kind):
        core.engine.apply(command, core.now)
    assert core.engine.seal(core.now) == []


def test_what_is_no_dead_letter_is_refused_and_nothing_changes() -> None:
    core = Core()
    dead = kill(core, b"1")
    live = core.push(b"2")
    for ids in ([live], [dead + (1 << 40)], [live, live + 5]):
        refuse(core, c.Requeue("default", "q", ids=ids), NotFound)
        refuse(core, c.Purge("default", "q", ids=ids), NotFound)
    refuse(core, c.Requeue("default", "q", "audit", [dead]), NotFound)
    refuse(core, c.Requeue("default", "nope"), NotFound)
    refuse(core, c.Purge("evil", "q"), NotFound)
    refuse(core, c.Requeue("default", "q", ids=[]), Invalid)
    refuse(core, c.Purge("default", "q", group=""), Invalid)
    assert listed(core) == [b"1"]


@pytest.mark.parametrize(("count", "skip"), [(0, 0), (DEAD_SHOWN_MAX + 1, 0), (1, -1)])
def test_a_page_that_can_not_be_is_refused(count: int, skip: int) -> None:
    core = Core()
    kill(core, b"1")
    refuse(core, queries.ListDead("default", "q", count=count, skip=skip), Invalid)


def test_an_id_past_the_end_of_a_number_that_was_left_is_no_dead_letter() -> None:
    core = Core()
    core.configure(max_attempts=1)
    first = core.push(*numbers(10))
    queue = core.engine.queues["default", "q"]
    core.engine.shards[queue.shard].renumber(queue, queue.partitions["default"])
    core.push(*numbers(10))
    core.nack(core.pop(20).lease)
    core.commit()
    for command in (requeue, purge):
        with pytest.raises(NotFound):
            command(core, [first + 15])
    with pytest.raises(NotFound):
        purge(core, [first + 15], dry_run=True)
    assert core.engine.seal(core.now) == []
    assert requeue(core, [first + 9, first + 15]) == c.Buried(1, 19, [first + 15])
