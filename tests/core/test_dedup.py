"""Unique keys, custom ids, transaction ids and idempotency keys: what is known is not pushed twice."""

from typing import Any

import pytest

from forebay.core.api import commands as c, jobs as job_commands
from forebay.core.errors import Invalid
from forebay.core.state import PLAIN, Attributes, Identity
from tests.core.harness import AT_ONCE, Core

ENDS = ("ack", "ack by id", "die", "expire", "cancel", "discard", "evict", "drop")


def push(core: Core, *payloads: bytes, queue: str = "q", **fields: Any) -> job_commands.PushedJobs:
    """Push jobs that share what they have for themselves."""
    attributes = fields.pop("attributes", PLAIN)
    partition = fields.pop("partition", "default")
    request = fields.pop("request", None)
    own = Identity(**fields)
    jobs = [job_commands.Job(payload, partition, attributes, own) for payload in payloads or (b"1",)]
    return core.ask(job_commands.PushJobs("default", queue, jobs, request=request), job_commands.PushedJobs)


@pytest.fixture
def core() -> Core:
    return Core()


def test_a_key_that_is_held_is_not_pushed_again(core: Core) -> None:
    first = push(core, b"1", unique_key="k")
    again = push(core, b"2", unique_key="k")
    assert (again.ids, again.duplicates) == (first.ids, [0])
    assert core.popped(9) == [b"1"]


def test_keys_of_other_queues_are_other_keys(core: Core) -> None:
    push(core, unique_key="k")
    assert push(core, queue="other", unique_key="k").duplicates == []


def test_of_equal_keys_in_one_batch_the_first_counts(core: Core) -> None:
    pushed = push(core, b"1", b"2", b"3", unique_key="k")
    assert pushed.duplicates == [1, 2]
    assert len(set(pushed.ids)) == 1
    assert core.popped(9) == [b"1"]


@pytest.mark.parametrize("reload", [False, True])
@pytest.mark.parametrize("end", ENDS)
def test_a_key_is_free_again_once_its_message_ended(core: Core, end: str, reload: bool) -> None:
    attributes = Attributes(ttl_ms=1_000) if end == "expire" else PLAIN
    core.configure(max_attempts=1, backoff=AT_ONCE)
    if end == "evict":
        core.configure(max_wait_ms=1_000)
        core.pop()
    if end == "drop":
        core.configure(retention_ms=1_000)
    (message,) = push(core, b"1", unique_key="k", attributes=attributes).ids
    core.commit()
    if reload:
        core.restart()
    assert push(core, b"no", unique_key="k").duplicates == [0]
    match end:
        case "ack":
            core.ack(core.pop().lease)
        case "ack by id":
            core.pop()
            core.ack(ids=[message])
        case "die":
            core.nack(core.pop().lease)
            assert core.state(message) == "dead"
        case "expire" | "evict":
            core.wait(1_001)
        case "cancel":
            core.cancel(message)
        case "discard":
            core.ask(c.Discard("default", [message]), c.Settled)
        case "drop":
            core.restart()  # only what is sealed can be dropped
            core.wait(30_000)
    if reload:
        core.restart()
    again = push(core, b"2", unique_key="k")
    assert again.duplicates == []
    assert again.ids != [message]
    assert core.popped(9) == [b"2"]


def test_a_key_stays_held_while_its_message_fails_and_comes_back(core: Core) -> None:
    core.forgive()
    push(core, b"1", unique_key="k")
    for _ in range(5):
        core.nack(core.pop().lease)
        assert push(core, b"2", unique_key="k").duplicates == [0]


def test_a_key_follows_the_work_queue_alone(core: Core) -> None:
    push(core, unique_key="k")
    core.pop(group="other")
    core.ack(core.pop(group="another").lease)
    assert push(core, unique_key="k").duplicates == [0]


def test_a_key_is_free_when_the_work_queue_skips_its_message(core: Core) -> None:
    push(core, unique_key="k")
    core.pop(group="other")
    core.pop(start="new")
    assert push(core, unique_key="k").duplicates == []
    core.ask(c.Seek("default", "q", "default", "new"), c.Sought)
    assert push(core, unique_key="k").duplicates == []


def test_a_requeued_dead_letter_does_not_hold_its_key_again(core: Core) -> None:
    core.configure(max_attempts=1)
    push(core, b"1", unique_key="k")
    core.nack(core.pop().lease)
    core.ask(c.Requeue("default", "q"), c.Buried)
    assert push(core, b"2", unique_key="k").duplicates == []


def test_an_expired_message_that_was_worked_on_frees_its_key_when_it_comes_back(core: Core) -> None:
    core.configure(backoff=AT_ONCE, max_attempts=0)
    push(core, b"1", unique_key="k", attributes=Attributes(ttl_ms=1_000))
    popped = core.pop()
    core.wait(2_000)
    assert push(core, b"2", unique_key="k").duplicates == [0]
    core.nack(popped.lease)
    core.wait(2)
    assert push(core, b"3", unique_key="k").duplicates == []


# Replace and debounce.


def test_replace_puts_the_new_payload_in_the_place_of_the_old(core: Core) -> None:
    first = push(core, b"1", unique_key="k")
    again = push(core, b"2", unique_key="k", dedup="replace")
    assert (again.ids, again.replaced, again.duplicates) == (first.ids, [0], [])
    popped = core.pop(9)
    assert [each.first for each in popped.deliveries] == first.ids
    assert [list(each.payloads()) for each in popped.deliveries] == [[b"2"]]


def test_replace_of_a_message_that_is_worked_on_is_one_of_its_own(core: Core) -> None:
    first = push(core, b"1", unique_key="k")
    popped = core.pop()
    second = push(core, b"2", unique_key="k", dedup="replace")
    assert second.ids != first.ids
    third = push(core, b"3", unique_key="k", dedup="replace")
    assert third.ids == second.ids
    core.ack(popped.lease)
    assert push(core, b"no", unique_key="k").duplicates == [0]
    assert core.popped(9) == [b"3"]


def test_replace_into_another_partition_cancels_the_old(core: Core) -> None:
    (first,) = push(core, b"1", unique_key="k").ids
    (second,) = push(core, b"2", unique_key="k", dedup="replace", partition="p").ids
    assert core.state(first) == "cancelled"
    assert core.state(second) == "waiting"
    assert push(core, b"no", unique_key="k").ids == [second]
    assert core.popped(9) == [b"2"]


def test_debounce_delivers_the_last_when_no_other_came_for_a_while(core: Core) -> None:
    for payload in (b"1", b"2", b"3"):
        push(core, payload, unique_key="k", dedup="debounce", window_ms=1_000)
        core.wait(600)
        assert core.popped(9) == []
    core.wait(399)
    assert core.popped(9) == []
    core.wait(1)
    assert core.popped(9) == [b"3"]


def test_debounce_does_not_put_off_for_ever(core: Core) -> None:
    delivered = []
    for at in range(10):
        push(core, b"%d" % at, unique_key="k", dedup="debounce", window_ms=1_000, max_ms=2_000)
        core.commit()  # messages of one commit have its time
        core.wait(500)
        delivered += core.popped(9)
    assert delivered == [b"3", b"7"]


def test_throttle_takes_one_in_a_while(core: Core) -> None:
    first = push(core, b"1", unique_key="k", dedup="throttle", window_ms=1_000)
    core.ack(core.pop().lease)
    core.wait(999)
    core.restart()
    assert push(core, b"2", unique_key="k", dedup="throttle", window_ms=1_000).ids == first.ids
    core.wait(1)
    assert push(core, b"3", unique_key="k", dedup="throttle", window_ms=1_000).duplicates == []
    assert core.popped(9) == [b"3"]


# Ids.


def test_a_custom_id_is_the_same_message_as_long_as_it_is_kept(core: Core) -> None:
    first = push(core, b"1", job_id="mine")
    core.ack(core.pop().lease)
    core.restart()
    again = push(core, b"2", job_id="mine")
    assert (again.ids, again.duplicates) == (first.ids, [0])
    for ms in (20_000, 3_600_000, 20_000):
        core.wait(ms)
    assert push(core, b"3", job_id="mine").duplicates == []


@pytest.mark.parametrize("reload", [False, True])
@pytest.mark.parametrize(
    ("end", "is_free"),
    [
        ("waits", False),
        ("ack", False),
        ("die", False),
        ("update", False),
        ("purge", True),
        ("cancel", True),
        ("expire", True),
        ("evict", True),
    ],
)
def test_a_custom_id_can_be_taken_from_what_was_withdrawn_alone(
    core: Core, end: str, is_free: bool, reload: bool
) -> None:
    core.configure(max_attempts=1, max_wait_ms=1_000 if end == "evict" else 0)
    core.pop()
    attributes = Attributes(ttl_ms=1_000) if end == "expire" else PLAIN
    (message,) = push(core, b"1", job_id="mine", attributes=attributes).ids
    match end:
        case "ack":
            core.ack(core.pop().lease)
        case "die" | "purge":
            core.nack(core.pop().lease)
        case "update":
            core.ask(c.Update("default", message, b"2"), c.Pushed)
        case "cancel":
            core.cancel(message)
        case "expire" | "evict":
            core.wait(1_001)
    if end == "purge":
        core.ask(c.Purge("default", "q"), c.Buried)
    if reload:
        core.restart()
    assert push(core, b"3", job_id="mine").duplicates == [0], "as long as it is kept, otherwise"
    again = push(core, b"4", b"5", job_id="mine", retakes=True)
    assert again.duplicates == ([1] if is_free else [0, 1])
    assert (again.ids[0] != message) == is_free
    core.restart()
    assert push(core, b"6", job_id="mine").ids == [again.ids[0]]


def test_a_transaction_id_is_known_in_its_partition_for_a_while(core: Core) -> None:
    core.configure(dedup_window_ms=5_000)
    first = push(core, b"1", transaction_id="t")
    assert push(core, b"2", transaction_id="t", partition="p").duplicates == []
    core.wait(4_999)
    core.restart()
    assert push(core, b"3", transaction_id="t").ids == first.ids
    core.wait(1)
    assert push(core, b"4", transaction_id="t").duplicates == []


def test_a_request_is_answered_as_the_first_was(core: Core) -> None:
    first = push(core, b"1", b"2", request=("me", "r1"))
    core.restart()
    again = push(core, b"1", b"2", request=("me", "r1"))
    assert (again.ids, again.duplicates) == (first.ids, [0, 1])
    assert push(core, request=("you", "r1")).duplicates == []
    core.wait(3_600_001)
    assert push(core, request=("me", "r1")).duplicates == []


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"unique_key": ""}, "unique_key"),
        ({"unique_key": "k" * 256}, "unique_key"),
        ({"unique_key": "k\0"}, "unique_key"),
        ({"job_id": ""}, "job_id"),
        ({"transaction_id": "\ud800"}, "transaction_id"),
        ({"dedup": "often", "unique_key": "k"}, "dedup"),
        ({"dedup": "replace"}, "unique_key"),
        ({"dedup": "throttle", "unique_key": "k"}, "dedup_window_ms"),
        ({"window_ms": 5, "unique_key": "k"}, "dedup_window_ms"),
        ({"dedup": "throttle", "unique_key": "k", "window_ms": 5, "max_ms": 9}, "dedup_max_ms"),
        ({"dedup": "debounce", "unique_key": "k", "window_ms": 5, "max_ms": 4}, "dedup_max_ms"),
    ],
)
def test_bad_particulars_change_nothing(core: Core, fields: dict[str, Any], named: str) -> None:
    with pytest.raises(Invalid, match=f"^{named}"):
        push(core, **fields)
    assert not core.engine.seal(core.now)
