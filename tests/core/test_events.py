"""Lifecycle events: in the commit they tell of, one for each kind, queue and group, and bounded."""

import json
from collections import Counter
from typing import Any

import pytest

from forebay.core import event_log
from forebay.core.api import commands as c, queries
from forebay.core.bounds import Limits
from forebay.core.errors import Invalid, NotFound
from forebay.core.loading.verify import verify
from forebay.core.records import keyspace
from forebay.core.shard.timers import SWEEP_MS
from forebay.core.state import events as state_events
from forebay.core.words import EVENT_KINDS, EVENTS, PUSHED, SETTLED, is_own, system_of
from tests.core.harness import Core
from tests.sim.checks import SHARDS
from tests.sim.inside import event_logs, tallies
from tests.sim.world import load

HOUR_MS = 3_600_000
ON = Limits(events_bytes_max=1 << 20)


@pytest.fixture
def core() -> Core:
    return Core(ON)


def log(core: Core) -> list[dict[str, Any]]:
    """Every event that is kept, by shard and offset."""
    core.commit()
    found: list[dict[str, Any]] = []
    for (tenant, name), queue in sorted(core.engine.queues.items()):
        if tenant == system_of(queue.shard) and name == EVENTS:
            at = queue.partitions["default"].log.first
            while at < queue.partitions["default"].log.end:
                reply = core.ask(queries.Read(tenant, name, at), queries.LogSlice)
                for run in reply.runs:
                    body_of(core, reply, run)
                    found += [json.loads(payload) for payload in run.payloads()]
                at = reply.next
    return found


def body_of(core: Core, reply: queries.LogSlice, run: queries.ReadRun) -> None:
    if not run.segment.present:
        (body,) = core.store.bodies([keyspace.body_key(reply.queue.prefix, run.segment.body_name)])
        assert isinstance(body, bytes)
        run.segment.body = body


def kinds(core: Core) -> list[tuple[str, int]]:
    return [(each["kind"], each.get("count", 0)) for each in log(core)]


def test_a_life_is_told_from_push_to_ack(core: Core) -> None:
    first = core.push(b"1", b"2", b"3")
    core.commit()
    lease = core.pop(3).lease
    core.commit()
    core.now += 250
    core.ack(lease)
    assert log(core) == [
        {"kind": "created", "tenant": "default", "queue": "q", "at": core.now - 250},
        {
            "kind": "pushed",
            "tenant": "default",
            "queue": "q",
            "at": core.now - 250,
            "count": 3,
            "runs": [["default", 0, 3, first]],
        },
        {
            "kind": "popped",
            "tenant": "default",
            "queue": "q",
            "at": core.now - 250,
            "count": 3,
            "group": "default",
            "runs": [["default", 0, 3, first]],
        },
        {
            "kind": "settled",
            "tenant": "default",
            "queue": "q",
            "at": core.now,
            "count": 3,
            "group": "default",
            "runs": [["default", 0, 3, first]],
            "duration_ms": 250,
        },
    ]


def test_pushes_of_one_commit_are_one_event(core: Core) -> None:
    for _ in range(5):
        core.push(b"1")
    core.push(b"1", partition="other")
    core.push(b"1", queue="second")
    found = [(each["queue"], each["runs"]) for each in log(core) if each["kind"] == "pushed"]
    assert [(queue, [run[:3] for run in runs]) for queue, runs in found] == [
        ("q", [["default", 0, 5], ["other", 0, 1]]),
        ("second", [["default", 0, 1]]),
    ]


def test_every_way_to_end_has_its_kind(core: Core) -> None:
    core.configure(max_attempts=1)
    core.push(b"dies")
    core.nack(core.pop().lease)
    core.push(b"again")
    core.ask(c.Requeue("default", "q"), c.Buried)
    core.ask(c.Pop("default", "q", count=2), c.Popped)
    core.push(b"expires", ttl_ms=10)
    core.push(b"cancelled")
    core.cancel(core.push(b"also"))
    core.wait(20)
    core.nack(core.pop(9).lease)
    core.configure(max_wait_ms=5)
    core.push(b"evicted")
    core.wait(20_000)
    core.ask(c.Purge("default", "q"), c.Buried)
    core.ask(c.Obliterate("default", "q"), c.Cleaned)
    told = {kind for kind, _ in kinds(core)}
    assert told == set(EVENT_KINDS) - {
        "settled",
        "retried",
        "returned",
        "retired",
        "outdated",
        "removed",
        "progressed",
        "deferred",
    }


def test_progress_is_told_with_its_percentage_the_last_of_a_commit(core: Core) -> None:
    first = core.push(b"0", b"1", b"2")
    other = core.push(b"3", partition="other")
    core.pop(4)
    core.commit()
    for message, percent in ((first + 2, 7), (other, 9), (first, 5), (first, 50), (first + 1, 100)):
        core.ask(c.TellProgress("default", message, percent, "so far"), c.Noted)
    (told,) = [each for each in log(core) if each["kind"] == "progressed"]
    assert (told["count"], told["progress"]) == (4, [50, 100, 7, 9])
    assert told["runs"] == [["default", 0, 3, first], ["other", 0, 1, other]]
    assert "group" not in told


def test_the_progress_of_an_updated_message_is_told_under_its_id(core: Core) -> None:
    message = core.push(b"0")
    core.ask(c.Update("default", message, b"1"), c.Pushed)
    core.pop()
    core.ask(c.TellProgress("default", message, 30, ""), c.Noted)
    (told,) = [each for each in log(core) if each["kind"] == "progressed"]
    assert (told["progress"], told["runs"]) == ([30], [["default", 1, 1, message]])


def test_what_is_no_longer_kept_is_told_with_the_reason(core: Core) -> None:
    core.configure(completed_retention_ms=10_000, retention_ms=60_000, partition_retention_ms=1)
    for number in range(3):
        core.push(b"%d" % number)
    core.push(b"old", partition="side")
    core.commit()
    core.ack(core.ask(c.Pop("default", "q", count=3, partition="default"), c.Popped).lease)
    core.wait(30_000)
    core.wait(60_000)
    core.wait(60_000)
    found = {each["kind"]: each for each in log(core)}
    assert found["retired"]["count"] == 3
    assert found["retired"]["runs"][0][:3] == ["default", 0, 3]
    assert found["outdated"]["runs"][0][:3] == ["side", 0, 1]
    assert found["removed"]["runs"][0][:3] == ["side", 1, 0]


def test_a_sweep_that_takes_nothing_tells_nothing(core: Core) -> None:
    core.configure(completed_retention_ms=HOUR_MS, retention_ms=HOUR_MS, partition_retention_ms=HOUR_MS)
    core.push(b"done")
    core.ack(core.pop().lease)
    core.push(b"waits", partition="side")
    core.commit()
    told = kinds(core)
    for _ in range(10):
        core.wait(SWEEP_MS)
        core.commit()
    assert kinds(core) == told


def test_a_retry_is_told(core: Core) -> None:
    core.push(b"1", b"2")
    core.nack(core.pop(2).lease, error="no")
    core.wait(60_000)
    core.pop(2)
    core.wait(30_001)
    counted: Counter[str] = Counter()
    for kind, count in kinds(core):
        counted[kind] += count
    assert (counted["popped"], counted["retried"]) == (4, 4)


def test_what_was_never_delivered_is_told_as_returned(core: Core) -> None:
    core.push(b"1", b"2")
    core.engine.give_back(core.pop(2), core.now)
    assert kinds(core)[-2:] == [("popped", 2), ("returned", 2)]


def test_what_is_given_back_is_told_when_that_was(core: Core) -> None:
    core.push(b"1")
    popped = core.pop()
    core.commit()
    core.now += 7_000
    core.engine.give_back(popped, core.now)
    core.engine.seal(core.engine.now)
    assert core.engine.now == core.now


def test_nobody_hears_of_what_the_server_does_for_itself(core: Core) -> None:
    core.push(tenant="_own")
    core.push(tenant="default")
    core.restart()
    core.push(tenant=system_of(2), queue="other")
    core.restart()
    assert {each["tenant"] for each in log(core)} == {"default"}


def test_what_is_not_kept_is_not_told(core: Core) -> None:
    core.push(b"1")
    core.commit()
    core.push(b"2")
    core.engine = load(core.store, core.limits, core.now)
    assert [each["count"] for each in log(core) if each["kind"] == "pushed"] == [1]


@pytest.mark.parametrize("commits", [1, 7, 40])
def test_what_is_told_is_the_same_after_a_restart(
    core: Core, commits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "SEAL_COUNT", 10)
    for at in range(commits):
        core.push(b"1" * (at + 1))
        core.commit()
    before = log(core)
    for _ in range(3):
        core.restart()
        assert log(core) == before
    core.push(b"1")
    assert len(log(core)) == len(before) + 1


def test_events_become_segments_and_leave_no_other_records(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "SEAL_COUNT", 10)
    for _ in range(35):
        core.push(b"1")
        core.commit()
    ((number, kept),) = event_logs(core.engine).items()
    assert len(kept.partition.log.segments) == 4
    assert len(kept.tail) == len(event_logs(core.engine)[number].tail) <= 10
    headers = [key for key, _ in core.store.scan(kept.queue.prefix + b"h", kept.queue.prefix + b"i")]
    assert len(headers) == 3 + len(kept.tail)


def test_events_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "SEAL_COUNT", 10)
    core = Core(Limits(events_bytes_max=5_000))
    for _ in range(300):
        core.push(b"1")
        core.commit()
    (kept,) = event_logs(core.engine).values()
    assert kept.partition.log.size < 5_000 + 10 * 200
    assert kept.partition.log.first > 200
    core.restart()
    assert log(core)[-1]["kind"] == "pushed"


def test_events_are_bounded_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "SEAL_COUNT", 10)
    core = Core(Limits(events_bytes_max=1 << 20, events_retention_ms=60_000))
    for _ in range(100):
        core.push(b"1")
        core.commit()
        core.wait(5_000)
    (kept,) = event_logs(core.engine).values()
    assert kept.partition.log.first >= 60
    assert kept.partition.log.end > 100
    core.restart()
    assert log(core)


def test_a_scattered_ack_is_told_in_parts(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "RUNS_MAX", 4)
    first = core.push(*[b"1"] * 20)
    core.pop(20)
    core.ack(ids=[first + at for at in range(0, 20, 2)])
    told = [each for each in log(core) if each["kind"] == "settled"]
    assert [each["count"] for each in told] == [4, 4, 2]


def test_without_events_nothing_is_kept_but_all_is_counted() -> None:
    core = Core()
    core.push(b"1", b"2")
    core.ack(core.pop().lease)
    core.commit()
    assert not event_logs(core.engine)
    (tally,) = tallies(core.engine).values()
    counted = {kind: count for kind, count in zip(EVENT_KINDS, tally.counts, strict=True) if count}
    assert counted == {"pushed": 2, "popped": 1, "settled": 1}
    assert sum(tally.times) == 1


def test_a_tenant_does_not_see_the_queues_of_events(core: Core) -> None:
    core.push()
    core.commit()
    assert [each.name for each in core.ask(queries.ListQueues("default"), queries.QueuesFound).queues] == [
        "q"
    ]
    (name,) = (name for tenant, name in core.engine.queues if is_own(tenant))
    with pytest.raises(NotFound):
        core.engine.apply(queries.Describe("default", name), core.now)


def test_an_event_is_kept_for_as_long_as_it_says_whatever_came_before_it() -> None:
    core = Core(Limits(events_bytes_max=1 << 20, events_retention_ms=HOUR_MS))
    for _ in range(30):
        core.push(b"1")
        core.commit()
        core.wait(HOUR_MS // 12)
    core.restart()
    core.wait(1)
    kept = [each["at"] for each in log(core)]
    assert min(kept) < core.now - HOUR_MS * 8 // 10
    assert min(kept) > core.now - HOUR_MS * 12 // 10
    assert len(kept) >= 10


def test_what_nobody_reads_is_told_as_cancelled_all_the_same(core: Core) -> None:
    first = core.push(b"1", b"2", b"3")
    core.cancel(first, first + 2)
    parked = core.push(b"4", depends_on=((first + 1, 1),))
    core.cancel(parked)
    told = [each for each in log(core) if each["kind"] == "cancelled"]
    assert [(each["count"], each.get("group")) for each in told] == [(3, None)]
    assert [run[1:3] for run in told[0]["runs"]] == [[0, 1], [2, 2]]


def test_an_updated_message_is_told_of_under_its_id_and_not_as_cancelled(core: Core) -> None:
    first = core.push(b"1", b"2", b"3")
    core.ask(c.Update("default", first + 1, b"two"), c.Pushed)
    core.ack(core.pop(3).lease)
    events = log(core)
    assert not [each for each in events if each["kind"] == "cancelled"]
    for kind in ("popped", "settled"):
        (event,) = (each for each in events if each["kind"] == kind)
        ids = [message + at for _, _, count, message in event["runs"] for at in range(count)]
        assert ids == [first, first + 2, first + 1]
        assert event["count"] == 3


def test_runs_are_cut_where_ids_are_not_consecutive(core: Core) -> None:
    core.configure(durability="os")
    core.push(b"1", b"2", b"3")
    core.commit()
    core.engine = load(core.store, core.limits, core.now)  # as after a crash: it takes a fresh number
    core.push(b"4", b"5")
    popped = core.pop(5)
    (event,) = (each for each in log(core) if each["kind"] == "popped")
    told = [message + at for _, _, count, message in event["runs"] for at in range(count)]
    assert told == [each.first + at for each in popped.deliveries for at in range(each.count)]
    assert len(event["runs"]) == 2


def test_events_of_a_queue_in_memory_are_told_and_not_kept(core: Core) -> None:
    core.engine.listen(True)
    core.configure(durability="memory")
    core.push(b"1")
    core.commit()
    assert [(each.offset, each.kind) for each in core.engine.take_emitted()] == [
        (state_events.NOT_KEPT, EVENT_KINDS.index(kind)) for kind in ("created", "configured", "pushed")
    ]
    assert not event_logs(core.engine)


def test_what_retention_drops_undelivered_is_told_as_expired(core: Core) -> None:
    core.configure(retention_ms=HOUR_MS)
    core.push(b"1", b"2", b"3", b"4")
    core.push(b"late", delay_ms=24 * HOUR_MS)
    core.ack(core.pop().lease)
    core.commit()
    core.wait(HOUR_MS + SWEEP_MS)
    core.push(b"5")
    core.wait(SWEEP_MS)
    expired = [each for each in log(core) if each["kind"] == "expired"]
    assert sum(each["count"] for each in expired) == 4
    assert {each["group"] for each in expired} == {"default"}


def test_what_is_cancelled_or_updated_does_not_expire_where_nobody_reads(core: Core) -> None:
    core.configure(retention_ms=HOUR_MS)
    first = core.push(b"1", b"2", b"3")
    core.cancel(first)
    core.ask(c.Update("default", first + 1, b"two"), c.Pushed)
    core.commit()
    core.wait(HOUR_MS + SWEEP_MS)
    core.push(b"5")
    core.wait(SWEEP_MS)
    assert sum(each["count"] for each in log(core) if each["kind"] == "expired") == 2


def test_a_message_that_is_updated_twice_at_once_is_told_of_under_its_id(core: Core) -> None:
    first = core.push(b"1")
    core.commit()
    for payload in (b"2", b"3"):
        core.ask(c.Update("default", first, payload), c.Pushed)
    (*_, event) = (each for each in log(core) if each["kind"] == "pushed")
    assert [run[3] for run in event["runs"]] == [first, first]


def test_however_often_ids_change_an_event_has_so_many_runs(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "RUNS_MAX", 4)
    first = core.push(*[b"1"] * 10)
    core.commit()
    for at in range(10):
        core.ask(c.Update("default", first + at, b"2"), c.Pushed)
    told = [each for each in log(core) if each["kind"] == "pushed"][1:]
    assert [(each["count"], len(each["runs"])) for each in told] == [(4, 4), (4, 4), (2, 2)]


def test_messages_settled_in_any_order_are_told_as_one_run(core: Core) -> None:
    first = core.push(*[b"1"] * 10)
    core.pop(10)
    for at in (5, 3, 4, 9, 1, 0, 2, 8, 7, 6):
        core.ack(ids=[first + at])
    (event,) = (each for each in log(core) if each["kind"] == "settled")
    assert event["runs"] == [["default", 0, 10, first]]


def test_verify_counts_events_that_are_not_sealed_yet(core: Core) -> None:
    core.push(b"1")
    kept = len(log(core))
    reports = verify(SHARDS, core.store.scan, core.store.bodies, set())
    (found,) = [report for report in reports if report.queue == EVENTS]
    assert (found.messages, found.damage) == (kept, [])
    assert found.payload_bytes > 0


def of_tasks(core: Core) -> list[tuple[str, str, int]]:
    return [(each["kind"], each.get("task", ""), each["count"]) for each in log(core) if "count" in each]


@pytest.mark.parametrize("restarts", [False, True])
def test_events_and_counters_tell_tasks_apart_from_push_to_end(core: Core, restarts: bool) -> None:
    core.configure(max_attempts=1)
    for task, count in (("send", 2), ("bill", 1), ("", 1), ("send", 1)):
        core.push(*[b"1"] * count, task=task)
    core.commit()
    pushed = [("pushed", "send", 3), ("pushed", "bill", 1), ("pushed", "", 1)]
    assert of_tasks(core) == pushed
    if restarts:
        core.restart()
    lease = core.pop(5, lease_ms=1_000).lease
    core.commit()
    popped = [("popped", *each[1:]) for each in pushed]
    assert of_tasks(core) == [*pushed, *popped]
    core.now += 20
    core.nack(lease)
    died = [("dead", *each[1:]) for each in pushed]
    assert of_tasks(core) == [*pushed, *popped, *died]
    core.ask(c.Requeue("default", "q"), c.Buried)
    core.ack(core.pop(5).lease)
    settled = Counter({each[1]: each[2] for each in of_tasks(core) if each[0] == "settled"})
    assert settled == {"send": 3, "bill": 1, "": 1}
    (tally,) = tallies(core.engine).values()
    found = {name: each.counts[SETTLED] for name, each in tally.tasks.items()}
    assert (found, tally.counts[SETTLED]) == ({"send": 3, "bill": 1}, 5)


def test_so_many_tasks_of_a_queue_are_counted_one_by_one(core: Core) -> None:
    for number in range(state_events.TASKS_MAX + 3):
        core.push(task=f"t{number}")
    core.commit()
    (tally,) = tallies(core.engine).values()
    assert len(tally.tasks) == state_events.TASKS_MAX
    assert tally.counts[PUSHED] == state_events.TASKS_MAX + 3


@pytest.mark.parametrize("name", ["t" * 256, "a\0b", "\ud800"])
def test_what_can_not_name_a_task_is_refused(core: Core, name: str) -> None:
    with pytest.raises(Invalid, match="task"):
        core.push(task=name)
