"""Crons: once at each slot, over restarts and downtime, in a queue that may be full, gone or another."""

from typing import Any

import pytest

from forebay.core.api import commands as c, jobs as job_commands, queries
from forebay.core.errors import Busy, ForebayError, Invalid, NotFound
from forebay.core.jobs import cron as crons
from forebay.core.state import Attributes, Cron, Identity
from tests.core.harness import NOW, Core
from tests.sim.world import load

EVERY_MS = 60_000
NEXT_HOUR = 1_700_002_800_000
"""2023-11-14T23:00Z, the first full hour after NOW, which is 22:13:20."""
HOUR_MS = 3_600_000
UNIQUE = Identity(unique_key="k")


@pytest.fixture
def core() -> Core:
    return Core()


def put(core: Core, name: str = "n", queue: str = "q", payload: bytes = b"1", **fields: Any) -> Cron:
    """A cron that comes every minute, unless told otherwise."""
    job = job_commands.Job(
        payload, **{each: fields.pop(each) for each in ("partition", "attributes", "own") if each in fields}
    )
    tenant = fields.pop("tenant", "default")
    if "schedule" not in fields:
        fields.setdefault("every_ms", EVERY_MS)
    (found,) = core.ask(job_commands.CronPut(tenant, name, queue, job, **fields), queries.CronsFound).crons
    return found


def listed(core: Core, tenant: str = "default") -> list[Cron]:
    return core.ask(queries.CronList(tenant), queries.CronsFound).crons


def only(core: Core) -> Cron:
    (found,) = listed(core)
    return found


def taken(core: Core, queue: str = "q") -> list[bytes]:
    """What came, acked."""
    popped = core.pop(100_000, queue)
    if popped.lease is not None:
        core.ack(popped.lease)
    return [bytes(payload) for each in popped.deliveries for payload in each.payloads()]


def seen(core: Core) -> tuple[int, int, int]:
    cron = only(core)
    return cron.fired, cron.last_slot, cron.next_at


# Slots.


def test_a_cron_comes_at_its_slot_and_not_before(core: Core) -> None:
    assert put(core).next_at == NOW + EVERY_MS
    core.wait(EVERY_MS - 1)
    assert taken(core) == []
    core.wait(1)
    assert taken(core) == [b"1"]
    core.wait(EVERY_MS - 1)
    assert taken(core) == []
    core.wait(1)
    assert taken(core) == [b"1"]
    assert seen(core) == (2, NOW + 2 * EVERY_MS, NOW + 3 * EVERY_MS)


def test_a_cron_with_a_calendar_comes_at_its_times(core: Core) -> None:
    assert put(core, schedule="0 * * * *").next_at == NEXT_HOUR
    core.wait(NEXT_HOUR - NOW - 1)
    assert taken(core) == []
    core.wait(1)
    assert taken(core) == [b"1"]
    assert seen(core) == (1, NEXT_HOUR, NEXT_HOUR + HOUR_MS)


def test_the_zone_of_a_cron_says_what_its_calendar_means(core: Core) -> None:
    assert put(core, "rome", schedule="0 9 * * *", zone="Europe/Rome").next_at == NEXT_HOUR + 9 * HOUR_MS
    assert put(core, "utc", schedule="0 9 * * *").next_at == NEXT_HOUR + 10 * HOUR_MS


def test_a_cron_that_wakes_late_keeps_its_slots(core: Core) -> None:
    put(core)
    core.wait(EVERY_MS + 777)
    assert seen(core) == (1, NOW + EVERY_MS, NOW + 2 * EVERY_MS)


def test_the_core_says_when_a_cron_is_due(core: Core) -> None:
    put(core, every_ms=5_000)
    assert core.engine.next_due_at() <= NOW + 5_000
    core.wait(5_000)
    assert core.now < core.engine.next_due_at() <= NOW + 10_000


def test_who_waits_for_messages_is_woken_by_a_cron(core: Core) -> None:
    put(core)
    core.pop()
    core.commit()
    core.wait(EVERY_MS)
    assert ("q", "default") in [(queue.name, partition) for queue, _, partition in core.engine.take_woken()]


def test_a_cron_comes_once_a_slot_whenever_the_server_restarts(core: Core) -> None:
    """A restart before the slot, with it, and after it."""
    put(core)
    came = []
    for _ in range(5):
        for ms in (EVERY_MS - 1, 1, 0):
            core.restart()
            core.wait(ms)
            core.restart()
            came += taken(core)
            core.restart()
    assert came == [b"1"] * 5
    assert seen(core) == (5, NOW + 5 * EVERY_MS, NOW + 6 * EVERY_MS)


def test_a_slot_that_was_not_committed_comes_again_with_its_message(core: Core) -> None:
    put(core)
    core.commit()
    core.wait(EVERY_MS)
    assert only(core).fired == 1
    core.engine = load(core.store, core.limits, core.now)  # a crash: nothing of the slot was kept
    assert taken(core) == [b"1"]
    assert seen(core) == (1, NOW + EVERY_MS, NOW + 2 * EVERY_MS)


def test_a_cron_keeps_all_it_was_told_over_a_restart(core: Core) -> None:
    attributes = Attributes(priority=5, max_attempts=7)
    cron = put(
        core,
        "n",
        schedule="*/5 * * * *",
        zone="Asia/Kolkata",
        limit=99,
        missed="all",
        partition="p",
        attributes=attributes,
        own=UNIQUE,
    )
    core.wait(HOUR_MS)
    before = {field: getattr(cron, field) for field in Cron.__struct_fields__}
    core.restart()
    after = only(core)
    assert {field: getattr(after, field) for field in Cron.__struct_fields__} == before
    assert (after.fired, after.attributes, after.own) == (12, attributes, UNIQUE)


def times(core: Core) -> list[int]:
    """When each message of the log was pushed."""
    runs = core.ask(queries.Read("default", "q", 0), queries.LogSlice).runs
    return [run.created_at for run in runs for _ in range(run.count)]


def test_a_message_of_a_cron_is_never_older_than_its_slot(core: Core) -> None:
    """What is pushed before the slot, with it and after it meets in one commit."""
    slot = put(core, payload=b"cron").next_at
    core.wait(EVERY_MS - 1)
    core.push(b"before")
    assert core.popped() == [b"before"]
    core.wait(3)
    core.push(b"after")
    wanted = [slot - 1, slot + 2, slot + 2]
    assert times(core) == wanted
    core.restart()
    assert times(core) == wanted
    assert core.popped(9) == [b"cron", b"after"]


def test_slots_that_meet_in_a_commit_have_messages_as_old_as_they_are(core: Core) -> None:
    put(core, missed="all")
    core.wait(EVERY_MS)
    core.wait(EVERY_MS)
    core.wait(3 * EVERY_MS + 7)
    late = NOW + 5 * EVERY_MS + 7
    assert times(core) == [NOW + EVERY_MS, NOW + 2 * EVERY_MS, late, late, late]


def test_a_message_of_a_cron_joins_what_was_pushed_since_its_slot(core: Core) -> None:
    core.push(b"1")
    core.commit()
    put(core, payload=b"cron")
    put(core, "also", payload=b"also")
    core.wait(EVERY_MS + 5)
    core.push(b"after")
    assert len(core.engine.queues["default", "q"].partitions["default"].log.segments) == 2


def test_what_a_cron_pushes_has_what_the_cron_has(core: Core) -> None:
    put(core, partition="p", attributes=Attributes(priority=5, delay_ms=10))
    core.wait(EVERY_MS)
    assert core.popped() == []
    core.commit()
    core.wait(10)
    (delivery,) = core.pop().deliveries
    assert (delivery.partition, delivery.priority) == ("p", 5)


# How often.


def test_a_cron_goes_after_it_came_as_often_as_it_may(core: Core) -> None:
    put(core, limit=3)
    for came in range(1, 6):
        core.wait(EVERY_MS)
        core.restart()
        assert [cron.fired for cron in listed(core)] == ([came] if came < 3 else [])
    assert taken(core) == [b"1"] * 3


# What was missed.


@pytest.mark.parametrize(("missed", "came"), [("none", 0), ("last", 1), ("all", 10)])
def test_what_was_missed_while_no_server_ran_is_made_up_for_as_it_was_asked(
    core: Core, missed: str, came: int
) -> None:
    put(core, missed=missed)
    core.restart(down_ms=10 * EVERY_MS + 20_000)
    assert len(taken(core)) == came
    assert seen(core) == (came, NOW + 10 * EVERY_MS, NOW + 11 * EVERY_MS)
    core.wait(40_000)
    assert taken(core) == [b"1"]


@pytest.mark.parametrize(("late_ms", "came"), [(crons.LATE_MS, 1), (crons.LATE_MS + 1, 0)])
def test_a_slot_is_missed_only_if_nobody_saw_to_it_for_a_while(core: Core, late_ms: int, came: int) -> None:
    put(core, missed="none")
    core.restart(down_ms=EVERY_MS + late_ms)
    assert len(taken(core)) == came


def test_of_all_that_was_missed_no_more_comes_than_the_limit(core: Core) -> None:
    put(core, missed="all", limit=4)
    core.restart(down_ms=10 * EVERY_MS)
    assert len(taken(core)) == 4
    assert listed(core) == []


def test_missed_slots_of_a_calendar_are_made_up_for(core: Core) -> None:
    put(core, "all", payload=b"all", schedule="0 * * * *", missed="all")
    put(core, "last", payload=b"last", schedule="0 * * * *", missed="last")
    core.restart(down_ms=24 * HOUR_MS)
    assert sorted(taken(core)) == [b"all"] * 24 + [b"last"]
    last = NEXT_HOUR + 23 * HOUR_MS
    assert {(cron.last_slot, cron.next_at) for cron in listed(core)} == {(last, last + HOUR_MS)}


# Put again.


def test_a_cron_that_is_put_again_goes_on_counting_if_it_comes_as_often(core: Core) -> None:
    put(core)
    core.wait(EVERY_MS)
    core.wait(EVERY_MS - 1)
    cron = put(core, payload=b"2", limit=5)
    assert (cron.fired, cron.began_at, cron.next_at) == (1, NOW, NOW + 2 * EVERY_MS)
    core.restart()
    core.wait(1)
    assert taken(core) == [b"1", b"2"]
    assert seen(core)[0] == 2


@pytest.mark.parametrize(
    "fields", [{"every_ms": 2 * EVERY_MS}, {"schedule": "* * * * *"}, {"queue": "other"}], ids=str
)
def test_a_cron_that_comes_at_other_times_or_elsewhere_counts_anew(
    core: Core, fields: dict[str, Any]
) -> None:
    put(core)
    core.wait(EVERY_MS + 1)
    cron = put(core, **fields)
    assert (cron.fired, cron.last_slot, cron.began_at) == (0, 0, core.now)
    assert cron.next_at > core.now
    assert len(listed(core)) == 1


def test_a_calendar_in_another_zone_is_another_calendar(core: Core) -> None:
    put(core, schedule="0 * * * *")
    core.wait(HOUR_MS)
    assert put(core, schedule="0 * * * *", zone="Asia/Kolkata").fired == 0


def test_a_cron_that_was_put_again_right_at_its_slot_does_not_come_twice(core: Core) -> None:
    put(core, schedule="0 * * * *")
    core.wait(NEXT_HOUR - NOW)
    assert put(core, schedule="0 * * * *").next_at == NEXT_HOUR + HOUR_MS
    core.wait(HOUR_MS - 1)
    assert taken(core) == [b"1"]


@pytest.mark.parametrize("restart", [False, True])
def test_a_cron_that_moves_to_another_queue_comes_there_alone(core: Core, restart: bool) -> None:
    for at, queue in enumerate(("q", "a", "b", "c")):
        put(core, queue=queue, payload=b"%d" % at)
        if restart:
            core.restart()
    core.wait(EVERY_MS)
    core.restart()
    assert [taken(core, queue) for queue in ("q", "a", "b", "c")] == [[], [], [], [b"3"]]
    assert len(listed(core)) == 1


def test_a_limit_that_a_cron_has_reached_is_refused(core: Core) -> None:
    put(core)
    for _ in range(5):
        core.wait(EVERY_MS)
    with pytest.raises(Invalid, match="limit must be more than 5"):
        put(core, limit=3)
    put(core, limit=6)
    for _ in range(3):
        core.wait(EVERY_MS)
    assert len(taken(core)) == 6


def test_a_deleted_cron_comes_no_more(core: Core) -> None:
    put(core)
    core.commit()
    assert core.ask(job_commands.CronDelete("default", "n"), job_commands.CronDeleted).name == "n"
    core.restart()
    assert listed(core) == []
    core.wait(10 * EVERY_MS)
    assert taken(core) == []
    with pytest.raises(NotFound):
        core.ask(job_commands.CronDelete("default", "n"), job_commands.CronDeleted)


def test_a_cron_can_be_made_again_under_a_name_that_was_deleted(core: Core) -> None:
    put(core)
    core.wait(EVERY_MS)
    core.ask(job_commands.CronDelete("default", "n"), job_commands.CronDeleted)
    assert put(core).fired == 0
    core.restart()
    assert only(core).next_at == core.now + EVERY_MS


def test_crons_are_listed_by_name(core: Core) -> None:
    for name in ("b", "a", "ä", "c"):
        put(core, name)
    assert [cron.name for cron in listed(core)] == ["a", "b", "c", "ä"]
    core.restart()
    assert [cron.name for cron in listed(core)] == ["a", "b", "c", "ä"]


# Its queue.


def test_runs_of_a_cron_with_a_unique_key_do_not_overlap(core: Core) -> None:
    put(core, own=UNIQUE)
    core.wait(EVERY_MS)
    popped = core.pop(9, lease_ms=HOUR_MS)
    for _ in range(3):
        core.wait(EVERY_MS)
        assert core.popped(9) == []
    core.ack(popped.lease)
    core.wait(EVERY_MS)
    assert taken(core) == [b"1"]


def test_a_full_queue_skips_a_slot_and_says_why(core: Core) -> None:
    core.configure(max_size=1)
    put(core)
    core.wait(EVERY_MS)
    core.wait(EVERY_MS)
    core.restart()
    cron = only(core)
    assert (cron.fired, cron.skipped) == (1, 1)
    assert cron.error.startswith("queue q is full")
    assert cron.next_at == NOW + 3 * EVERY_MS
    assert taken(core) == [b"1"]
    core.wait(EVERY_MS)
    assert taken(core) == [b"1"]
    assert (only(core).fired, only(core).skipped) == (2, 1)


def test_skipped_slots_are_none_of_the_limit(core: Core) -> None:
    core.configure(max_size=1)
    put(core, limit=2)
    for _ in range(4):
        core.wait(EVERY_MS)
    assert (only(core).fired, only(core).skipped) == (1, 3)
    assert taken(core) == [b"1"]
    core.wait(EVERY_MS)
    assert listed(core) == []


def test_a_cron_can_be_made_while_its_queue_is_full(core: Core) -> None:
    core.configure(max_size=1)
    core.push()
    put(core)


def test_a_paused_queue_takes_what_a_cron_pushes(core: Core) -> None:
    put(core)
    core.ask(c.Pause("default", "q"), queries.Paused)
    core.wait(EVERY_MS)
    assert taken(core) == []
    core.ask(c.Resume("default", "q"), queries.Paused)
    assert taken(core) == [b"1"]


@pytest.mark.parametrize("committed", [False, True])
def test_an_obliterated_queue_takes_its_crons_along_and_no_others(core: Core, committed: bool) -> None:
    put(core, "gone")
    put(core, "also")
    put(core, "stays", queue="other")
    if committed:
        core.commit()
    core.ask(c.Obliterate("default", "q"), c.Cleaned)
    assert [cron.name for cron in listed(core)] == ["stays"]
    core.configure()
    core.restart()
    assert [cron.name for cron in listed(core)] == ["stays"]
    core.wait(EVERY_MS)
    assert (taken(core), taken(core, "other")) == ([], [b"1"])


def test_a_cron_makes_its_queue(core: Core) -> None:
    put(core, queue="new")
    core.restart()
    assert ("default", "new") in core.engine.queues


# Many.


def test_many_crons_that_are_due_at_once_come_in_slices_and_all_come(core: Core) -> None:
    count = 3 * crons.FIRED_AT_ONCE + 1
    for at in range(count):
        put(core, f"n{at}", queue=f"q{at % 7}", payload=b"%d" % at)
    core.wait(EVERY_MS)
    slices = [_came(core)]
    while core.engine.next_due_at() <= core.now:
        core.engine.tick(core.now)
        slices.append(_came(core))
    assert slices == [crons.FIRED_AT_ONCE, 2 * crons.FIRED_AT_ONCE, 3 * crons.FIRED_AT_ONCE, count]
    came = [payload for at in range(7) for payload in taken(core, f"q{at}")]
    assert sorted(map(int, came)) == list(range(count))


def _came(core: Core) -> int:
    return sum(cron.fired for cron in listed(core))


def test_slots_missed_of_one_cron_come_in_slices_too(core: Core) -> None:
    put(core, missed="all", every_ms=1_000)
    core.restart(down_ms=250_000)
    assert only(core).fired == crons.FIRED_AT_ONCE
    while core.engine.next_due_at() <= core.now:
        core.engine.tick(core.now)
    assert only(core).fired == 250
    assert len(taken(core)) == 250


# Tenants.


def test_crons_of_other_tenants_look_as_if_they_were_not_there(core: Core) -> None:
    put(core, tenant="acme", payload=b"acme")
    assert listed(core) == []
    with pytest.raises(NotFound):
        core.ask(job_commands.CronDelete("default", "n"), job_commands.CronDeleted)
    put(core, payload=b"mine")
    core.restart()
    core.wait(EVERY_MS)
    assert taken(core) == [b"mine"]
    assert core.popped(9, tenant="acme") == [b"acme"]
    core.ask(job_commands.CronDelete("default", "n"), job_commands.CronDeleted)
    assert [cron.payload for cron in listed(core, "acme")] == [b"acme"]


# Bad input.

BAD: list[tuple[dict[str, Any], str]] = [
    ({"name": ""}, "name"),
    ({"name": "x" * 256}, "name"),
    ({"name": "a\0b"}, "name"),
    ({"tenant": ""}, "tenant"),
    ({"queue": "no spaces"}, "queue"),
    ({"every_ms": None}, "schedule"),
    ({"schedule": "* * * * *", "every_ms": 1_000}, "schedule"),
    ({"schedule": "never"}, "schedule"),
    ({"schedule": ""}, "schedule"),
    ({"every_ms": 0}, "every_ms"),
    ({"every_ms": 99}, "every_ms"),
    ({"every_ms": -1}, "every_ms"),
    ({"every_ms": 10 * 365 * 86_400_000 + 1}, "every_ms"),
    ({"zone": "Europe/Atlantis"}, "timezone"),
    ({"limit": -1}, "limit"),
    ({"limit": crons.COUNT_MAX + 1}, "limit"),
    ({"missed": "some"}, "missed"),
    ({"payload": b"x" * 1_048_577}, "payload"),
    ({"partition": ""}, "partition"),
    ({"attributes": Attributes(depends_on=((1, 1),))}, "depends_on"),
    ({"attributes": Attributes(priority=1 << 40)}, "priority"),
    ({"own": Identity(unique_key="")}, "unique_key"),
]


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize(("fields", "named"), BAD)
def test_a_bad_cron_changes_nothing(core: Core, fields: dict[str, Any], named: str, there: bool) -> None:
    if there:
        put(core)
        core.commit()
    before = [cron.next_at for cron in listed(core)]
    with pytest.raises(Invalid) as refused:
        put(core, **fields)
    assert refused.value.field == named
    assert not core.engine.seal(core.now)
    assert [cron.next_at for cron in listed(core)] == before


def test_a_tenant_has_only_so_many_crons(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crons, "CRONS_MAX", 2)
    put(core, "a")
    put(core, "b")
    core.commit()
    with pytest.raises(Busy):
        put(core, "c")
    assert not core.engine.seal(core.now)
    put(core, "b", payload=b"2")
    put(core, "c", tenant="acme")


def test_deleting_what_is_not_there_changes_nothing(core: Core) -> None:
    for name in ("n", ""):
        with pytest.raises(ForebayError):
            core.ask(job_commands.CronDelete("default", name), job_commands.CronDeleted)
    assert not core.engine.seal(core.now)
