"""Flows: a message and those it waits for, pushed together; what came of them; batches with an end."""

from typing import Any

import pytest

from forebay.core import bounds
from forebay.core.api import commands as c, jobs as job_commands, queries
from forebay.core.bounds import FLOW_MAX, Limits
from forebay.core.errors import Busy, Conflict, ForebayError, Invalid, NotFound
from forebay.core.state import Attributes, Cleanup, Identity
from tests.core.harness import AT_ONCE, Core
from tests.sim.inside import home

T = "default"


@pytest.fixture
def core() -> Core:
    core = Core()
    for queue in ("q", "child"):
        core.configure(queue, max_attempts=1, backoff=AT_ONCE)
    core.commit()
    return core


def node(
    payload: bytes, *children: job_commands.FlowJob, queue: str = "child", **fields: Any
) -> job_commands.FlowJob:
    own = fields.pop("own", None)
    return job_commands.FlowJob(
        queue, job_commands.Job(payload, attributes=Attributes(**fields), own=own), list(children)
    )


def push(core: Core, root: job_commands.FlowJob, **fields: Any) -> job_commands.FlowPushed:
    return core.ask(job_commands.PushFlow(T, root, **fields), job_commands.FlowPushed)


def parent(*children: job_commands.FlowJob, **fields: Any) -> job_commands.FlowJob:
    return node(b"parent", *children, queue="q", **fields)


def work(core: Core, *, queue: str = "child", ok: bool = True, count: int = 1) -> list[bytes]:
    """Take some messages and settle them."""
    popped = core.pop(count, queue)
    if popped.lease is not None:
        (core.ack if ok else core.nack)(popped.lease)
    return [bytes(payload) for each in popped.deliveries for payload in each.payloads()]


def children(core: Core, message: int) -> queries.ChildrenFound:
    return core.ask(queries.Children(T, message), queries.ChildrenFound)


def find(core: Core, job_id: str, queue: str | None = None) -> queries.Shown:
    (shown,) = core.ask(queries.FindJob(T, job_id, queue), queries.ShownAll).deliveries
    return shown


# A parent and its children.


@pytest.mark.parametrize("reload", [False, True])
def test_a_parent_is_delivered_after_all_its_children(core: Core, reload: bool) -> None:
    pushed = push(core, parent(node(b"1"), node(b"2"), node(b"3")))
    for at in range(3):
        if reload:
            core.restart()
        assert core.state(pushed.parent) == "parked"
        assert core.popped(9) == []
        assert work(core) == [b"%d" % (at + 1)]
    if reload:
        core.restart()
    assert core.popped(9) == [b"parent"]


def test_the_answer_names_the_children_of_the_parent_in_their_order(core: Core) -> None:
    pushed = push(core, parent(node(b"1", node(b"1a"), node(b"1b")), node(b"2", queue="q")))
    assert len(pushed.children) == 2
    states = [core.state(each) for each in pushed.children]
    assert states == ["parked", "waiting"]
    assert (core.counts("child").parked, core.counts("child").waiting) == (1, 2)


def test_a_parent_names_its_children_in_their_order_whatever_queues_they_are_in(core: Core) -> None:
    nodes = [node(b"%d" % at, queue="ba"[at % 2]) for at in range(6)]
    pushed = push(core, parent(*nodes))
    found = children(core, pushed.parent)
    assert [each.state.id for each in found.shown.deliveries] == pushed.children
    assert sorted(pushed.children) != pushed.children


def test_children_of_children_come_first(core: Core) -> None:
    push(core, parent(node(b"2", node(b"1", node(b"0"))), node(b"x")))
    assert sorted(work(core, count=9)) == [b"0", b"x"]
    assert work(core, count=9) == [b"1"]
    assert core.popped(9) == []
    assert work(core, count=9) == [b"2"]
    assert core.popped(9) == [b"parent"]


def test_a_flow_without_children_is_a_message(core: Core) -> None:
    pushed = push(core, parent())
    assert (pushed.children, core.popped(9)) == ([], [b"parent"])


def test_a_flow_over_many_queues_is_one_commit(core: Core) -> None:
    push(core, parent(*(node(b"%d" % at, queue=f"new{at}") for at in range(8))))
    shards = [commit.shard for commit in core.engine.seal(core.now)]
    assert shards == [home(core.engine).number]


def test_a_parent_waits_for_what_it_depends_on_besides(core: Core) -> None:
    before = core.push(b"before", queue="other")
    pushed = push(core, parent(node(b"1"), depends_on=((before, 1),)))
    work(core)
    assert core.state(pushed.parent) == "parked"
    work(core, queue="other")
    assert core.popped(9) == [b"parent"]


def test_a_parent_keeps_its_delay_and_priority(core: Core) -> None:
    push(core, parent(node(b"1"), delay_ms=5_000, priority=9))
    work(core)
    core.wait(4_999)
    assert core.popped(9) == []
    core.wait(1)
    (delivery,) = core.pop(9).deliveries
    assert delivery.priority == 9


def test_a_child_that_is_known_already_is_waited_for(core: Core) -> None:
    own = Identity(unique_key="k")
    first = core.ask(
        job_commands.PushJobs(T, "child", [job_commands.Job(b"1", own=own)]), job_commands.PushedJobs
    )
    pushed = push(core, parent(node(b"again", own=own)))
    assert pushed.children == first.ids
    assert work(core, count=9) == [b"1"]
    assert core.popped(9) == [b"parent"]


# Children that fail.


@pytest.mark.parametrize("reload", [False, True])
@pytest.mark.parametrize(("policy", "state"), [("fail", "dead"), ("ignore", "waiting"), ("wait", "parked")])
def test_what_becomes_of_a_parent_follows_its_policy(
    core: Core, policy: str, state: str, reload: bool
) -> None:
    pushed = push(core, parent(node(b"1"), node(b"2"), on_failed=policy))
    work(core, ok=False)
    work(core)
    if reload:
        core.restart()
    assert core.state(pushed.parent) == state
    if policy == "wait":
        core.ask(c.Requeue(T, "child"), c.Buried)
        assert work(core) == [b"1"]
        assert core.popped(9) == [b"parent"]


def test_a_failure_goes_up_to_the_root(core: Core) -> None:
    pushed = push(core, parent(node(b"2", node(b"1", node(b"0")))))
    work(core, ok=False)
    assert core.state(pushed.parent) == "dead"
    assert core.find(pushed.parent).error == f"it depends on {pushed.children[0]}, which did not complete"
    assert core.counts("child").dead == 3


def test_a_policy_stops_a_failure_on_its_way_up(core: Core) -> None:
    pushed = push(core, parent(node(b"2", node(b"1", node(b"0")), on_failed="ignore")))
    work(core, ok=False)
    assert core.state(pushed.parent) == "parked"
    assert work(core) == [b"2"]
    assert core.popped(9) == [b"parent"]


def test_a_cancelled_child_fails_its_parent(core: Core) -> None:
    pushed = push(core, parent(node(b"1"), node(b"2")))
    core.cancel(pushed.children[1])
    assert core.state(pushed.parent) == "dead"


def test_a_cancelled_parent_leaves_its_children_alone(core: Core) -> None:
    pushed = push(core, parent(node(b"1")))
    core.cancel(pushed.parent)
    assert work(core) == [b"1"]
    assert core.state(pushed.parent) == "cancelled"


# What can't be pushed.

DEEP = node(b"x")
for _ in range(bounds.FLOW_DEPTH_MAX - 1):
    DEEP = node(b"x", DEEP)
BAD: dict[str, tuple[job_commands.PushFlow, type[ForebayError]]] = {
    "root to no queue": (job_commands.PushFlow(T, node(b"1", node(b"2"), queue="no queue")), Invalid),
    "child to no queue": (
        job_commands.PushFlow(T, parent(node(b"1"), node(b"2", queue="no queue"))),
        Invalid,
    ),
    "grandchild too large": (job_commands.PushFlow(T, parent(node(b"1", node(b"x" * 1_048_577)))), Invalid),
    "child with a bad delay": (job_commands.PushFlow(T, parent(node(b"1", delay_ms=-1))), Invalid),
    "child with a bad key": (
        job_commands.PushFlow(T, parent(node(b"1", own=Identity(unique_key="")))),
        Invalid,
    ),
    "child of nothing": (job_commands.PushFlow(T, parent(node(b"1", depends_on=((12_345, 1),)))), NotFound),
    "child to a full queue": (job_commands.PushFlow(T, parent(node(b"1"), node(b"2", queue="full"))), Busy),
    "too deep": (job_commands.PushFlow(T, parent(DEEP)), Invalid),
    "too many": (job_commands.PushFlow(T, parent(*[node(b"1")] * FLOW_MAX)), Invalid),
    "unknown durability": (job_commands.PushFlow(T, parent(node(b"1")), "often"), Invalid),
    "parent in strict order": (job_commands.PushFlow(T, node(b"1", node(b"2"), queue="line")), ForebayError),
}


@pytest.mark.parametrize("what", BAD)
def test_a_flow_is_pushed_whole_or_not_at_all(core: Core, what: str) -> None:
    core.configure("full", max_size=1)
    core.push(queue="full")
    core.configure("line", ordering="partition")
    core.commit()
    command, error = BAD[what]
    with pytest.raises(error):
        core.ask(command, job_commands.FlowPushed)
    assert not core.engine.seal(core.now)
    assert core.popped(9, "child") == core.popped(9) == []


@pytest.mark.parametrize("then", [False, True])
def test_a_policy_that_there_is_not_is_refused(core: Core, then: bool) -> None:
    job = job_commands.Job(b"1", attributes=Attributes(on_failed="shrug"))
    command: c.Command = job_commands.PushFlow(T, job_commands.FlowJob("q", job, [node(b"2")]))
    if then:
        command = job_commands.PushJobs(T, "child", [job_commands.Job(b"2")], then=("q", job))
    with pytest.raises(Invalid, match=r"^on_failed"):
        core.engine.apply(command, core.now)
    assert not core.engine.seal(core.now)


def test_a_flow_may_be_as_deep_and_as_large_as_there_may_be(core: Core) -> None:
    push(core, DEEP)
    assert core.counts("child").parked == bounds.FLOW_DEPTH_MAX - 1
    push(core, parent(*[node(b"1")] * (FLOW_MAX - 1)))
    assert core.counts().parked == 1


def test_all_messages_of_a_flow_must_fit_the_queue(core: Core) -> None:
    core.configure("few", max_size=2)
    core.commit()
    with pytest.raises(ForebayError):
        push(core, parent(*(node(b"1", queue="few") for _ in range(4))))
    assert not core.engine.seal(core.now)


def test_a_flow_makes_no_more_queues_than_there_may_be() -> None:
    core = Core(Limits(queues_max=2))
    with pytest.raises(Busy):
        push(core, parent(node(b"1", queue="a"), node(b"2", queue="b")))
    assert not core.engine.seal(core.now)


# What came of the children.


def results(found: queries.ChildrenFound) -> list[list[bytes]]:
    return [
        [bytes(payload) for notes in each.notes for note in notes for payload in note.payloads()]
        for each in found.results
    ]


def test_children_that_were_dropped_are_shown_as_they_ended() -> None:
    core = Core()
    core.configure("child", max_attempts=1, backoff=AT_ONCE)
    removed = Cleanup(on_complete=True, on_fail=True)
    nodes = [node(each, cleanup=removed, on_failed="wait") for each in (b"1", b"2")]
    pushed = push(core, parent(*nodes, on_failed="ignore"))
    core.pop(2, "child")
    first, second = pushed.children
    core.ask(c.Ack("default", ids=[first], results=[b"7"]), c.Settled)
    core.nack(ids=[second])
    found = children(core, pushed.parent)
    assert [each.state.state for each in found.shown.deliveries] == ["completed", "dead"]
    assert (found.completed, found.total) == (1, 2)
    assert results(found) == [[b"7"], []]


@pytest.mark.parametrize(("size", "shown"), [(1, 3), (40, 2), (200, 1)])
def test_of_large_children_as_many_are_shown_as_fit_and_all_are_counted(size: int, shown: int) -> None:
    core = Core(Limits(read_bytes_max=100))
    pushed = push(core, parent(*[node(b"x" * size) for _ in range(3)]))
    core.pop(3, "child")
    core.ack(ids=pushed.children[1:])
    found = children(core, pushed.parent)
    assert [each.state.id for each in found.shown.deliveries] == pushed.children[:shown]
    assert (found.completed, found.total) == (2, 3)
    assert len(found.results) == shown


def test_children_are_shown_with_their_states_and_results(core: Core) -> None:
    pushed = push(core, parent(node(b"1"), node(b"2"), node(b"3"), on_failed="ignore"))
    core.pop(2, "child")
    core.ack(ids=[pushed.children[0]], results=[b'{"sum":3}'])
    core.nack(ids=[pushed.children[1]], error="no")
    found = children(core, pushed.parent)
    assert (found.id, found.total) == (pushed.parent, 3)
    assert [each.state.id for each in found.shown.deliveries] == pushed.children
    assert [each.state.state for each in found.shown.deliveries] == ["completed", "dead", "waiting"]
    assert [each.state.error for each in found.shown.deliveries] == ["", "no", ""]
    assert results(found) == [[b'{"sum":3}'], [], []]


def test_children_are_shown_to_a_parent_that_is_worked_on(core: Core) -> None:
    pushed = push(core, parent(node(b"1"), node(b"2")))
    core.pop(2, "child")
    core.ack(ids=pushed.children, results=[b"1", b"2"])
    core.pop()
    assert results(children(core, pushed.parent)) == [[b"1"], [b"2"]]


def test_a_message_that_waits_for_nothing_has_no_children(core: Core) -> None:
    found = children(core, core.push())
    assert (found.total, found.shown.deliveries, found.results) == (0, [], [])


def test_children_that_are_gone_are_counted_but_not_shown(core: Core) -> None:
    pushed = push(core, parent(node(b"1", queue="gone"), node(b"2"), on_failed="ignore"))
    core.ask(c.Obliterate(T, "gone"), c.Cleaned)
    found = children(core, pushed.parent)
    assert found.total == 2
    assert [each.state.id for each in found.shown.deliveries] == pushed.children[1:]


def test_only_so_many_children_are_shown(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "SHOWN_MAX", 5)
    pushed = push(core, parent(*(node(b"%d" % at) for at in range(9))))
    found = children(core, pushed.parent)
    assert (found.total, len(found.shown.deliveries), len(found.results)) == (9, 5, 5)


def test_an_updated_child_is_shown_as_it_is_now(core: Core) -> None:
    pushed = push(core, parent(node(b"1"), node(b"2")))
    core.ask(c.Update(T, pushed.children[0], b"new"), c.Pushed)
    core.pop(9, "child")
    core.ack(ids=pushed.children, results=[b"7", b"8"])
    found = children(core, pushed.parent)
    assert [each.state.id for each in found.shown.deliveries] == pushed.children
    assert results(found) == [[b"7"], [b"8"]]


def test_children_of_another_tenant_are_not_found(core: Core) -> None:
    pushed = push(core, parent(node(b"1")))
    for tenant, message in (("acme", pushed.parent), (T, pushed.parent + 1)):
        with pytest.raises(NotFound):
            core.ask(queries.Children(tenant, message), queries.ChildrenFound)


# Custom ids.


def named(core: Core, job_id: str, payload: bytes = b"1", queue: str = "q", tenant: str = T) -> int:
    job = job_commands.Job(payload, own=Identity(job_id=job_id))
    return core.ask(job_commands.PushJobs(tenant, queue, [job]), job_commands.PushedJobs).ids[0]


@pytest.mark.parametrize("reload", [False, True])
def test_a_message_is_found_by_its_custom_id(core: Core, reload: bool) -> None:
    message = named(core, "mine")
    named(core, "other")
    if reload:
        core.restart()
    for queue in (None, "q"):
        shown = find(core, "mine", queue)
        assert (shown.state.id, shown.state.job_id, shown.queue.name) == (message, "mine", "q")


def test_a_message_is_found_in_the_queue_that_is_named(core: Core) -> None:
    ids = {queue: named(core, "mine", queue=queue) for queue in ("a", "b", "c")}
    assert {queue: find(core, "mine", queue).state.id for queue in ids} == ids


def test_of_several_queues_the_newest_is_found(core: Core) -> None:
    for queue in ("b", "c", "a"):
        message = named(core, "mine", queue=queue)
        core.commit()
        core.wait(10)
        assert find(core, "mine").state.id == message


def test_what_else_comes_to_a_queue_makes_its_messages_no_newer(core: Core) -> None:
    named(core, "mine", queue="a")
    core.commit()
    core.wait(10)
    newest = named(core, "mine", queue="b")
    core.commit()
    core.wait(10)
    core.push(queue="a")
    assert find(core, "mine").state.id == newest


def test_an_updated_message_is_found_by_its_custom_id(core: Core) -> None:
    message = named(core, "mine")
    core.ask(c.Update(T, message, b"new"), c.Pushed)
    core.restart()
    shown = find(core, "mine")
    assert (shown.state.id, shown.state.state) == (message, "waiting")


def test_a_custom_id_that_nobody_has_is_not_found(core: Core) -> None:
    named(core, "mine", tenant="acme")
    core.push()
    for queue in (None, "q", "nowhere"):
        with pytest.raises(NotFound):
            find(core, "mine", queue)
    with pytest.raises(Invalid, match=r"^job_id"):
        find(core, "")


# A batch and what comes after it.


def batch(core: Core, *payloads: bytes, key: str | None = None, **fields: Any) -> job_commands.PushedJobs:
    """Push messages, and one that waits for all of them."""
    own = fields.pop("own", None)
    jobs = [job_commands.Job(payload, own=own) for payload in payloads]
    then = ("then", job_commands.Job(b"then", attributes=Attributes(**fields)))
    request = ("me", key) if key is not None else None
    return core.ask(
        job_commands.PushJobs(T, "child", jobs, request=request, then=then), job_commands.PushedJobs
    )


@pytest.mark.parametrize("reload", [False, True])
def test_what_comes_after_a_batch_comes_when_all_of_it_is_done(core: Core, reload: bool) -> None:
    pushed = batch(core, b"1", b"2", b"3")
    assert pushed.then is not None
    for _ in range(3):
        assert core.state(pushed.then) == "parked"
        assert work(core)
        if reload:
            core.restart()
    assert core.popped(9, "then") == [b"then"]


def test_a_batch_that_fails_fails_what_comes_after_it(core: Core) -> None:
    pushed = batch(core, b"1", b"2")
    work(core, ok=False)
    assert pushed.then is not None
    assert core.state(pushed.then) == "dead"
    ignoring = batch(core, b"3", on_failed="ignore")
    assert ignoring.then is not None
    work(core, count=9, ok=False)
    assert core.state(ignoring.then) == "waiting"


@pytest.mark.parametrize("done", [False, True])
def test_a_batch_that_is_sent_again_is_answered_as_the_first_time(core: Core, done: bool) -> None:
    first = batch(core, b"1", b"2", key="k")
    if done:
        work(core, count=9)
        work(core, queue="then")
    core.restart()
    again = batch(core, b"1", b"2", key="k")
    assert (again.ids, again.then, again.duplicates) == (first.ids, first.then, [0, 1])
    assert len(work(core, count=9)) == (0 if done else 2)
    assert len(work(core, queue="then", count=9)) == (0 if done else 1)


def test_what_comes_after_waits_for_messages_that_were_known_already(core: Core) -> None:
    own = Identity(unique_key="k")
    first = batch(core, b"1", own=own)
    again = batch(core, b"2", b"3", own=own)
    assert (again.ids, again.duplicates) == (first.ids * 2, [0, 1])
    assert work(core, count=9) == [b"1"]
    assert core.popped(9, "then") == [b"then", b"then"]


@pytest.mark.parametrize(
    ("queue", "job", "error"),
    [
        ("no queue", job_commands.Job(b"1"), Invalid),
        ("then", job_commands.Job(b"x" * 1_048_577), Invalid),
        ("then", job_commands.Job(b"1", ""), Invalid),
        ("full", job_commands.Job(b"1"), Busy),
        ("line", job_commands.Job(b"1"), (Invalid, Conflict)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_can_not_come_after_a_batch_refuses_the_batch(
    core: Core, queue: str, job: job_commands.Job, error: type[ForebayError]
) -> None:
    core.configure("full", max_size=1)
    core.push(queue="full")
    core.configure("line", ordering="partition")
    core.commit()
    with pytest.raises(error):
        core.ask(
            job_commands.PushJobs(T, "child", [job_commands.Job(b"1")], then=(queue, job)),
            job_commands.PushedJobs,
        )
    assert not core.engine.seal(core.now)


def test_a_batch_that_is_sent_again_without_its_end_has_as_many_ids_as_jobs(core: Core) -> None:
    first = batch(core, b"1", key="k")
    again = core.ask(
        job_commands.PushJobs(T, "child", [job_commands.Job(b"1")], request=("me", "k")),
        job_commands.PushedJobs,
    )
    assert again.ids == first.ids


def test_a_large_batch_over_several_partitions_waits_in_few_spans(core: Core) -> None:
    batch = [job_commands.Job(b"1", "ab"[at % 2]) for at in range(2_000)]
    then = ("q", job_commands.Job(b"done"))
    pushed = core.ask(job_commands.PushJobs(T, "child", batch, then=then), job_commands.PushedJobs)
    assert pushed.then is not None
    assert len(core.find(pushed.then).depends_on) == 2
