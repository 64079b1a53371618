"""What jobs may not do together, and what they may take: names, room, answers of a bounded size."""

from typing import Any

import pytest

from forebay.core.api import commands as c, jobs as job_commands, queries
from forebay.core.bounds import Limits
from forebay.core.errors import Busy, Conflict, Invalid
from forebay.core.jobs import cron
from forebay.core.keyvalue.keys import pack
from forebay.core.state import Identity, Rate
from tests.core.harness import Core
from tests.core.limiting import woken

T = "default"
Op = job_commands.PushJobs | job_commands.PushFlow | c.Ack | c.Nack | job_commands.KvWrite


@pytest.fixture
def core() -> Core:
    return Core()


def job(
    payload: bytes = b"1", partition: str = "default", *, lane: bool = False, **own: Any
) -> job_commands.Job:
    return job_commands.Job(payload, partition, own=Identity(**own) if own else None, lane=lane)


def push(core: Core, *jobs: job_commands.Job, queue: str = "q", **fields: Any) -> job_commands.PushedJobs:
    return core.ask(job_commands.PushJobs(T, queue, list(jobs), **fields), job_commands.PushedJobs)


def flow(*children: job_commands.FlowJob, queue: str = "q", **own: Any) -> job_commands.FlowJob:
    return job_commands.FlowJob(queue, job(b"node", **own), list(children))


def send(core: Core, root: job_commands.FlowJob) -> job_commands.FlowPushed:
    return core.ask(job_commands.PushFlow(T, root), job_commands.FlowPushed)


def refuse(core: Core, command: c.Command, error: type[Exception], match: str) -> None:
    """A command is refused, and changes nothing."""
    core.commit()
    with pytest.raises(error, match=match):
        core.engine.apply(command, core.now)
    assert core.engine.seal(core.now) == []


# Names.

Own = dict[str, Any]
SAME: list[Own] = [
    {"job_id": "x"},
    {"unique_key": "x"},
    {"transaction_id": "x"},
    {"unique_key": "x", "dedup": "replace"},
]
SOON: Own = {"unique_key": "k", "dedup": "throttle", "window_ms": 1_000}


@pytest.mark.parametrize("own", SAME, ids=str)
def test_no_two_jobs_of_a_flow_go_by_the_same_name(core: Core, own: Own) -> None:
    name = next(iter(own))
    for root in (
        flow(flow(**own), **own),
        flow(flow(flow(**own)), **own),
        flow(flow(**own), flow(**own)),
        flow(flow(flow(**own)), flow(**own)),
    ):
        refuse(core, job_commands.PushFlow(T, root), Invalid, name)
    send(core, flow(flow(queue="other", **own), **own))


def test_a_message_that_waits_for_a_batch_goes_by_a_name_of_its_own(core: Core) -> None:
    for own in SAME[:2]:
        command = job_commands.PushJobs(T, "q", [job(), job(**own)], then=("q", job(b"then", **own)))
        refuse(core, command, Invalid, "on_complete")
    push(core, job(job_id="x"), then=("other", job(b"then", job_id="x")))


def test_what_waits_for_others_is_not_put_off_as_well(core: Core) -> None:
    late: Own = {"unique_key": "k", "dedup": "debounce", "window_ms": 100}
    refuse(core, job_commands.PushFlow(T, flow(flow(), **late)), Invalid, "dedup")
    refuse(core, job_commands.PushJobs(T, "q", [job()], then=("q", job(**late))), Invalid, "dedup")
    send(core, flow(flow(**late)))


# Room.


def test_a_flow_that_is_sent_again_is_answered_by_a_queue_that_is_full(core: Core) -> None:
    core.configure(max_size=2)
    root = flow(flow(), job_id="p")
    first = send(core, root)
    again = send(core, root)
    assert (again.parent, again.children, again.known) == (first.parent, first.children, True)
    refuse(core, job_commands.PushFlow(T, flow(flow(), job_id="other")), Busy, "full")


def transact(core: Core, *ops: Op) -> c.Transacted:
    return core.ask(c.Transact(T, list(ops)), c.Transacted)


@pytest.mark.parametrize("groups", [1, 2])
def test_a_key_that_a_transaction_frees_takes_room_again(core: Core, groups: int) -> None:
    core.configure(max_size=2)
    held = push(core, job(unique_key="k")).ids
    push(core, job(unique_key="l"))
    core.pop()
    if groups == 2:
        core.pop(group="other")
    settled = c.Ack(T, None, held)
    again, more = (
        job_commands.PushJobs(T, "q", [job(unique_key="k")]),
        job_commands.PushJobs(T, "q", [job(unique_key="m")]),
    )
    refuse(core, c.Transact(T, [settled, again, more]), Busy, "full")
    if groups == 2:
        refuse(core, c.Transact(T, [settled, again]), Busy, "full")
    else:
        transact(core, settled, again)
        assert core.counts().waiting == 2


def test_a_flow_whose_key_a_transaction_frees_takes_room_again(core: Core) -> None:
    core.configure(max_size=2)
    root = flow(flow(), unique_key="k")
    first = send(core, root)
    work = core.pop()
    core.ack(work.lease)
    assert core.pop().deliveries[0].first == first.parent
    push(core, job())
    refuse(
        core, c.Transact(T, [c.Ack(T, None, [first.parent]), job_commands.PushFlow(T, root)]), Busy, "full"
    )


def test_a_key_whose_message_waited_too_long_takes_room_again(core: Core) -> None:
    core.configure(max_size=2, max_wait_ms=50)
    core.pop()
    push(core, job(unique_key="k"), job(unique_key="l"))
    core.commit()
    core.wait(100)
    refuse(core, job_commands.PushJobs(T, "q", [job(unique_key="k")]), Busy, "full")
    assert core.popped(9) == []
    push(core, job(unique_key="k"), job(unique_key="l"))
    assert core.counts().waiting == 2


def test_what_repeats_another_of_the_same_push_takes_no_room(core: Core) -> None:
    core.configure(max_size=1)
    pushed = push(core, job(unique_key="k"), job(unique_key="k"), job(job_id="x", unique_key="k"))
    assert pushed.duplicates == [1, 2]
    refuse(core, job_commands.PushJobs(T, "q", [job(unique_key="l")]), Busy, "full")


def test_a_repeat_makes_no_partition_and_no_lane(core: Core) -> None:
    for own in (SOON, SAME[0]):
        first = push(core, job(**own))
        core.commit()
        for partition, lane in (("p", False), ("lane", True), ("default", True)):
            assert push(core, job(b"1", partition, lane=lane, **own)).ids == first.ids
        assert core.engine.seal(core.now) == []
    queue = core.engine.queues[T, "q"]
    assert list(queue.partitions) == ["default"]
    assert not queue.partitions["default"].lane


def test_only_what_came_too_soon_is_told_so(core: Core) -> None:
    assert push(core, job(**SOON), request=("", "r")).throttled == []
    assert push(core, job(**SOON), job(), job(**SOON)).throttled == [0, 2]
    for _ in range(2):
        late = push(core, job(**SOON), request=("", "s"))
        assert (late.duplicates, late.throttled) == ([0], [0]), "it is answered as the first was"
        core.restart()
    repeated = push(core, job(**SOON), request=("", "r"))
    assert (repeated.duplicates, repeated.throttled) == ([0], [])
    core.wait(2_000)
    push(core, job(job_id="j", **SOON))
    known = push(core, job(job_id="j", **SOON))
    assert (known.duplicates, known.throttled) == ([0], [])


# Limits.


def test_a_pop_that_waits_for_several_is_woken_when_its_partition_may_let_them_go(core: Core) -> None:
    core.configure(partition_rate_limit=Rate(1, 100, 2))
    core.push(*[b"x"] * 10)
    core.wait(1_000)
    assert len(core.popped(10)) == 2
    core.commit()
    assert core.pop(2, min_count=2).lease is None
    for _ in range(2):
        assert core.engine.next_due_at() == core.now + 100
        woken(core)
        core.wait(100)
        assert ("q", "default") in woken(core)
        found = core.pop(2, min_count=2)
    assert found.lease is not None


@pytest.mark.parametrize("partition_limit", [0, 100])
def test_a_pop_ends_where_its_bytes_do_whatever_limits_partitions_have(
    core: Core, partition_limit: int
) -> None:
    core.configure(byte_limit=Rate(100, 1_000), partition_concurrency=partition_limit)
    for partition in ("a", "b"):
        core.push(b"x" * 40, b"x" * 70, partition=partition)
    core.pop()
    core.wait(1_000)
    assert [len(each) for each in core.popped(9)] == [40]


# Answers.


def test_values_asked_for_together_fit_into_one_answer() -> None:
    core = Core(Limits(read_bytes_max=100))
    one, two = pack(["one"]), pack(["two"])
    for key in (one, two):
        core.ask(
            job_commands.KvWrite(T, [job_commands.KvChange("set", key, b"1" * 60)]), job_commands.KvWritten
        )
    assert len(core.ask(queries.KvGet(T, [one]), queries.KvFound).values) == 1
    refuse(core, queries.KvGet(T, [one, two]), Invalid, "keys")
    refuse(core, queries.KvGet(T, [one, one]), Invalid, "keys")


def test_crons_are_listed_as_far_as_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    core = Core(Limits(read_bytes_max=100))
    monkeypatch.setattr(cron, "LISTED_MAX", 3)
    for name, size in (("a", 150), ("b", 60), ("c", 60), ("d", 1), ("e", 1), ("f", 1), ("g", 1)):
        core.ask(
            job_commands.CronPut(T, name, "q", job_commands.Job(b"1" * size), "@daily"), queries.CronsFound
        )
    pages: list[str] = []
    after = None
    while True:
        found = core.ask(queries.CronList(T, after), queries.CronsFound)
        pages.append("".join(each.name for each in found.crons))
        if not found.more:
            break
        after = found.crons[-1].name
    assert pages == ["a", "b", "cde", "fg"]


def test_crons_of_a_tenant_have_so_many_bytes(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cron, "CRON_BYTES_MAX", 100)

    def put(name: str, size: int) -> job_commands.CronPut:
        return job_commands.CronPut(T, name, "q", job_commands.Job(b"1" * size), "@daily")

    core.ask(put("a", 60), queries.CronsFound)
    refuse(core, put("b", 41), Busy, "100 bytes")
    core.ask(put("a", 90), queries.CronsFound)
    core.restart()
    refuse(core, put("b", 11), Busy, "100 bytes")
    core.ask(put("b", 10), queries.CronsFound)
    core.ask(job_commands.CronDelete(T, "a"), job_commands.CronDeleted)
    core.ask(put("c", 90), queries.CronsFound)


@pytest.mark.parametrize("kind", ["set", "expire", "sum"])
def test_nobody_knows_the_version_of_what_a_transaction_writes(core: Core, kind: str) -> None:
    key = pack(["k"])
    written = core.ask(
        job_commands.KvWrite(T, [job_commands.KvChange("set", key, b"1")]), job_commands.KvWritten
    )
    write = job_commands.KvWrite(T, [job_commands.KvChange(kind, key, b"1", 1_000)])
    for version in (written.version, 0):
        command = c.Transact(
            T, [write, job_commands.KvWrite(T, [job_commands.KvChange("set", key, b"2")], [(key, version)])]
        )
        refuse(core, command, Conflict, "changed")
