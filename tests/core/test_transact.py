"""Transactions: everything or nothing, whatever fails wherever."""

from collections.abc import Callable
from typing import Any

import pytest

from forebay.core.api import commands as c, jobs as job_commands, queries
from forebay.core.bounds import OPERATIONS_MAX, Limits
from forebay.core.errors import Busy, Conflict, ForebayError, Invalid, NotFound
from forebay.core.keyvalue.keys import pack
from forebay.core.state import Attributes, Identity
from forebay.core.words import RESULT
from tests.core.harness import AT_ONCE, Core
from tests.sim.world import load

T = "default"
KEY, OTHER, LIST = pack(("n",)), pack(("other",)), pack(("list",))
Op = job_commands.PushJobs | job_commands.PushFlow | c.Ack | c.Nack | job_commands.KvWrite


class Scene(Core):
    """Some leases, values and limits, all of them committed."""

    def __init__(self, limits: Limits | None = None) -> None:
        super().__init__(limits)
        self.configure("work", max_attempts=1, backoff=AT_ONCE)
        self.first = self.push(*[b"%d" % at for at in range(8)], queue="work")
        self.leases = [self.pop(2, "work").lease for _ in range(3)]
        self.configure("far", require_lease=True)
        self.far = self.push(queue="far")
        self.far_lease = self.pop(queue="far").lease
        self.push(tenant="acme")
        self.theirs = self.pop(tenant="acme").lease
        self.configure("full", max_size=1)
        self.push(queue="full")
        self.audit = self.pop(1, "work", group="audit")
        self.version = self.write(
            job_commands.KvChange("set", KEY, b"1"), job_commands.KvChange("set", LIST, b"[]")
        ).version
        self.commit()

    def write(self, *changes: job_commands.KvChange) -> job_commands.KvWritten:
        return self.ask(job_commands.KvWrite(T, list(changes)), job_commands.KvWritten)

    def transact(self, *ops: Op) -> list[Any]:
        return list(self.ask(c.Transact(T, list(ops)), c.Transacted).replies)

    def value(self, key: bytes = KEY) -> bytes | None:
        (found,) = self.ask(queries.KvGet(T, [key]), queries.KvFound).values
        return found.data if found is not None else None

    def good(self) -> list[Op]:
        """One of each kind."""
        return [
            job_commands.PushJobs(T, "new", [job_commands.Job(b"a"), job_commands.Job(b"b")]),
            job_commands.PushFlow(
                T,
                job_commands.FlowJob(
                    "new",
                    job_commands.Job(b"parent"),
                    [job_commands.FlowJob("newer", job_commands.Job(b"child"))],
                ),
            ),
            c.Ack(T, self.leases[0]),
            c.Nack(T, None, [self.first + 2]),
            job_commands.KvWrite(T, [job_commands.KvChange("sum", KEY, b"5")], [(KEY, self.version)]),
        ]


@pytest.fixture
def core() -> Scene:
    return Scene()


def jobs(*payloads: bytes, queue: str = "new", **fields: Any) -> job_commands.PushJobs:
    return job_commands.PushJobs(
        T, queue, [job_commands.Job(payload, **fields) for payload in payloads or (b"1",)]
    )


def flow(queue: str = "new", *children: job_commands.FlowJob) -> job_commands.FlowJob:
    return job_commands.FlowJob(queue, job_commands.Job(b"1"), list(children))


# All of it.


def test_every_command_is_answered_in_its_place(core: Scene) -> None:
    pushed, flowed, acked, nacked, written = core.transact(*core.good())
    assert isinstance(pushed, job_commands.PushedJobs)
    assert isinstance(flowed, job_commands.FlowPushed)
    assert [core.state(each) for each in (*pushed.ids, *flowed.children, flowed.parent)] == [
        "waiting",
        "waiting",
        "waiting",
        "parked",
    ]
    assert (acked, nacked) == (c.Settled(2), c.Settled(1, []))
    states = [core.state(core.first + at) for at in range(4)]
    assert states == ["completed", "completed", "dead", "active"]
    assert isinstance(written, job_commands.KvWritten)
    assert [value and value.data for value in written.values] == [b"6"]
    assert written.version > core.version


def test_all_of_it_is_kept_with_its_commit(core: Scene) -> None:
    core.transact(*core.good())
    core.restart()
    states = [core.state(core.first + at) for at in range(4)]
    assert (core.value(), states) == (b"6", ["completed", "completed", "dead", "active"])
    assert core.popped(9, "new") == [b"a", b"b"]


def test_nothing_of_it_is_there_after_a_crash_before_its_commit(core: Scene) -> None:
    core.transact(*core.good())
    core.engine = load(core.store, core.limits, core.now)
    states = {core.state(core.first + at) for at in range(4)}
    assert (core.value(), states) == (b"1", {"active"})
    assert (T, "new") not in core.engine.queues


def test_messages_of_several_queues_are_settled_together(core: Scene) -> None:
    queues = [f"q{at}" for at in range(6)]
    ids = [core.push(queue=queue) for queue in queues]
    leases = [core.pop(queue=queue).lease for queue in queues]
    replies = core.transact(*(c.Ack(T, lease) for lease in leases))
    assert [reply.count for reply in replies] == [1] * 6
    assert {core.state(each) for each in ids} == {"completed"}


def test_results_are_kept(core: Scene) -> None:
    core.transact(c.Ack(T, None, [core.first, core.first + 1], results=[b"7", b"8"]))
    found = core.ask(queries.GetNotes(T, core.first + 1, (RESULT,)), queries.NotesFound)
    assert [bytes(payload) for note in found.notes[0] for payload in note.payloads()] == [b"8"]


def test_what_waits_for_messages_is_told_of_all_that_ended(core: Scene) -> None:
    waiting = [
        core.push(queue="then", depends_on=((core.first, 2),)),
        core.push(queue="then", depends_on=((core.first + 2, 1),), on_failed="ignore"),
    ]
    assert [core.state(each) for each in waiting] == ["parked", "parked"]
    core.transact(*core.good())
    assert [core.state(each) for each in waiting] == ["waiting", "waiting"]


def test_an_unknown_push_is_repeated_once(core: Scene) -> None:
    """A unique key that an earlier command takes is held for the later ones."""
    own = Identity(unique_key="k")
    first, second = core.transact(jobs(b"1", own=own), jobs(b"2", own=own))
    assert (second.ids, second.duplicates) == (first.ids, [0])
    assert core.popped(9, "new") == [b"1"]


# Or nothing.

Bad = Callable[[Scene], Op]
BAD: dict[str, tuple[Bad, type[ForebayError]]] = {
    "push to no queue": (lambda _: jobs(queue="no queue"), Invalid),
    "push of nothing": (lambda _: job_commands.PushJobs(T, "new", []), Invalid),
    "push of too much": (lambda _: jobs(b"x" * 1_048_577), Invalid),
    "push to no partition": (lambda _: jobs(partition=""), Invalid),
    "push that waits for nothing": (
        lambda _: jobs(attributes=Attributes(depends_on=((12_345, 1),))),
        NotFound,
    ),
    "push with a bad key": (lambda _: jobs(own=Identity(unique_key="")), Invalid),
    "push to a full queue": (lambda _: jobs(queue="full"), Busy),
    "push of unknown durability": (
        lambda _: job_commands.PushJobs(T, "new", [job_commands.Job(b"1")], "often"),
        Invalid,
    ),
    "push with a bad then": (
        lambda _: job_commands.PushJobs(
            T, "new", [job_commands.Job(b"1")], then=("no queue", job_commands.Job(b"2"))
        ),
        Invalid,
    ),
    "flow to no queue": (lambda _: job_commands.PushFlow(T, flow("new", flow("no queue"))), Invalid),
    "flow to a full queue": (lambda _: job_commands.PushFlow(T, flow("new", flow(), flow("full"))), Busy),
    "ack of no lease": (lambda _: c.Ack(T, "lease"), Invalid),
    "ack of a lease that ended": (lambda _: c.Ack(T, "123456"), Conflict),
    "ack of nothing": (lambda _: c.Ack(T), Invalid),
    "ack of no ids": (lambda _: c.Ack(T, None, []), Invalid),
    "ack of what waits": (lambda core: c.Ack(T, None, [core.first + 4, core.first + 7]), Conflict),
    "ack of what is unknown": (lambda _: c.Ack(T, None, [1 << 50]), Conflict),
    "ack of another tenant's lease": (lambda core: c.Ack(T, core.theirs), Conflict),
    "ack for another group": (lambda core: c.Ack(T, core.leases[2], group="audit"), Conflict),
    "ack with too few results": (
        lambda core: c.Ack(T, None, [core.first + 4, core.first + 5], results=[b"1"]),
        Invalid,
    ),
    "ack with results of another group": (
        lambda core: c.Ack(T, core.audit.lease, [core.first], results=[b"1"]),
        Invalid,
    ),
    "ack without a lease": (lambda core: c.Ack(T, None, [core.far]), Invalid),
    "nack of what waits": (lambda core: c.Nack(T, None, [core.first + 7]), Conflict),
    "nack of another tenant's lease": (lambda core: c.Nack(T, core.theirs), Conflict),
    "nack with a bad delay": (lambda core: c.Nack(T, core.leases[2], delay_ms=-1), Invalid),
    "write on another version": (
        lambda _: job_commands.KvWrite(T, [job_commands.KvChange("set", KEY)], [(KEY, 1)]),
        Conflict,
    ),
    "write if not there": (lambda _: job_commands.KvWrite(T, [], [(KEY, None)]), Conflict),
    "write of nothing": (lambda _: job_commands.KvWrite(T, []), Invalid),
    "write of a sum to a list": (
        lambda _: job_commands.KvWrite(T, [job_commands.KvChange("sum", LIST, b"1")]),
        Conflict,
    ),
    "write of an unknown kind": (
        lambda _: job_commands.KvWrite(T, [job_commands.KvChange("twist", KEY)]),
        Invalid,
    ),
    "write of a bad time to live": (
        lambda _: job_commands.KvWrite(T, [job_commands.KvChange("set", KEY, b"1", -1)]),
        Invalid,
    ),
}


@pytest.mark.parametrize("at", range(6))
@pytest.mark.parametrize("what", BAD)
def test_one_command_that_fails_undoes_all_wherever_it_stands(core: Scene, what: str, at: int) -> None:
    bad, error = BAD[what]
    ops = core.good()
    ops.insert(at, bad(core))
    with pytest.raises(error):
        core.transact(*ops)
    assert not core.engine.seal(core.now)
    assert core.value() == b"1"
    assert (T, "new") not in core.engine.queues
    assert len(core.transact(*core.good())) == 5


@pytest.mark.parametrize("count", [0, OPERATIONS_MAX + 1])
def test_a_transaction_has_some_commands_and_not_too_many(core: Scene, count: int) -> None:
    with pytest.raises(Invalid, match=r"^ops"):
        core.transact(*[jobs()] * count)
    assert not core.engine.seal(core.now)


def test_a_transaction_may_have_as_many_commands_as_there_may_be(core: Scene) -> None:
    assert len(core.transact(*[jobs()] * OPERATIONS_MAX)) == OPERATIONS_MAX


# Each message once.

Twice = Callable[[Scene], list[Op]]
TWICE: dict[str, Twice] = {
    "a lease twice": lambda core: [c.Ack(T, core.leases[0]), c.Ack(T, core.leases[0])],
    "a lease acked and nacked": lambda core: [c.Ack(T, core.leases[0]), c.Nack(T, core.leases[0])],
    "an id twice": lambda core: [c.Ack(T, None, [core.first]), c.Nack(T, None, [core.first])],
    "a lease and an id of it": lambda core: [c.Nack(T, core.leases[0]), c.Ack(T, None, [core.first + 1])],
    "an id and its lease": lambda core: [c.Ack(T, None, [core.first + 1]), c.Ack(T, core.leases[0])],
    "an id with its lease and without": lambda core: [
        c.Ack(T, core.leases[0], [core.first]),
        jobs(),
        c.Ack(T, None, [core.first]),
    ],
    "ranges that meet": lambda core: [
        c.Ack(T, None, [core.first, core.first + 1, core.first + 2]),
        c.Nack(T, None, [core.first + 2, core.first + 3]),
    ],
}


@pytest.mark.parametrize("what", TWICE)
def test_no_message_is_settled_twice(core: Scene, what: str) -> None:
    with pytest.raises(Invalid, match=r"^ops"):
        core.transact(*TWICE[what](core))
    assert not core.engine.seal(core.now)
    assert {core.state(core.first + at) for at in range(4)} == {"active"}


def test_an_id_that_is_named_twice_in_one_command_is_one(core: Scene) -> None:
    (reply,) = core.transact(c.Ack(T, None, [core.first, core.first]))
    assert reply.count == 1


def test_parts_of_a_lease_are_settled_by_several_commands(core: Scene) -> None:
    replies = core.transact(
        c.Ack(T, None, [core.first]),
        c.Nack(T, core.leases[0], [core.first + 1]),
        c.Ack(T, None, [core.first + 2]),
        c.Ack(T, None, [core.first + 3]),
    )
    assert [reply.count for reply in replies] == [1] * 4
    assert [core.state(core.first + at) for at in range(4)] == ["completed", "dead", "completed", "completed"]


def test_a_message_is_settled_for_several_groups(core: Scene) -> None:
    core.transact(c.Ack(T, None, [core.first]), c.Nack(T, None, [core.first], "audit"))
    assert (core.state(core.first), core.state(core.first, "audit")) == ("completed", "dead")


def test_a_message_that_was_updated_is_known_by_its_old_id(core: Scene) -> None:
    message = core.push(queue="work")
    core.ask(c.Update(T, message, b"2"), c.Pushed)
    core.pop(9, "work")
    with pytest.raises(Invalid, match=r"^ops"):
        core.transact(c.Ack(T, None, [message]), c.Ack(T, None, [message]))
    core.transact(c.Ack(T, None, [message]))
    assert core.state(message) == "completed"


# Values between the commands.


def test_a_write_sees_what_the_writes_before_it_leave(core: Scene) -> None:
    core.transact(
        job_commands.KvWrite(T, [job_commands.KvChange("sum", KEY, b"2")]),
        job_commands.KvWrite(
            T, [job_commands.KvChange("sum", KEY, b"3"), job_commands.KvChange("append", LIST, b'"a"')]
        ),
        jobs(),
        job_commands.KvWrite(
            T, [job_commands.KvChange("max", KEY, b"5"), job_commands.KvChange("append", LIST, b'"b"')]
        ),
    )
    assert (core.value(), core.value(LIST)) == (b"6", b'["a","b"]')
    core.restart()
    assert (core.value(), core.value(LIST)) == (b"6", b'["a","b"]')


def test_a_check_sees_what_the_writes_before_it_leave(core: Scene) -> None:
    delete, make = (
        job_commands.KvWrite(T, [job_commands.KvChange("delete", KEY)]),
        job_commands.KvWrite(T, [job_commands.KvChange("set", OTHER)]),
    )
    core.transact(delete, job_commands.KvWrite(T, [job_commands.KvChange("set", OTHER, b"2")], [(KEY, None)]))
    assert (core.value(), core.value(OTHER)) == (None, b"2")
    core.commit()
    for bad in (
        [make, job_commands.KvWrite(T, [], [(OTHER, None)])],
        [
            job_commands.KvWrite(T, [job_commands.KvChange("set", KEY)]),
            job_commands.KvWrite(T, [], [(KEY, None)]),
        ],
    ):
        with pytest.raises(Conflict):
            core.transact(*bad)
        assert not core.engine.seal(core.now)


def test_writes_have_versions_that_rise_in_their_order(core: Scene) -> None:
    replies = core.transact(
        job_commands.KvWrite(T, [job_commands.KvChange("sum", KEY, b"1")]),
        job_commands.KvWrite(T, [job_commands.KvChange("sum", KEY, b"1")]),
    )
    assert core.version < replies[0].version < replies[1].version
    (found,) = core.ask(queries.KvGet(T, [KEY]), queries.KvFound).values
    assert found is not None
    assert found.version == replies[1].version


# Limits over several commands.


def test_all_pushes_together_must_fit_the_queue(core: Scene) -> None:
    core.configure("few", max_size=4)
    core.push(queue="few")
    core.commit()
    with pytest.raises(Busy):
        core.transact(jobs(b"1", b"2", queue="few"), jobs(b"3", b"4", queue="few"))
    assert not core.engine.seal(core.now)


def test_all_pushes_together_make_no_more_queues_than_there_may_be() -> None:
    core = Core(Limits(queues_max=2))
    core.push()
    core.commit()
    with pytest.raises(Busy):
        core.ask(c.Transact(T, [jobs(queue="a"), jobs(queue="b")]), c.Transacted)
    assert not core.engine.seal(core.now)


def test_all_pushes_together_make_no_more_partitions_than_there_may_be() -> None:
    core = Core(Limits(partitions_max=2))
    core.push()
    core.commit()
    ops: list[Op] = [jobs(queue="q", partition="a"), jobs(queue="q", partition="b")]
    with pytest.raises(Busy):
        core.ask(c.Transact(T, ops), c.Transacted)
    assert not core.engine.seal(core.now)


def test_an_ack_makes_room_for_the_push_behind_it(core: Scene) -> None:
    lease = core.pop(queue="full").lease
    core.transact(c.Ack(T, lease), jobs(b"next", queue="full"))
    assert core.popped(9, "full") == [b"next"]


def test_in_strict_order_a_nack_takes_back_what_a_later_command_settles(core: Scene) -> None:
    """It has to be refused, or else carried out: an assertion reloads the node."""
    core.configure("line", ordering="partition")
    first = core.push(b"1", b"2", b"3", queue="line")
    core.pop(3, "line")
    core.commit()
    with pytest.raises((Conflict, Invalid)):
        core.transact(c.Nack(T, None, [first]), c.Ack(T, None, [first + 1]))
    assert not core.engine.seal(core.now)


def test_in_strict_order_what_comes_before_may_be_acked_after_a_nack(core: Scene) -> None:
    core.configure("line", ordering="partition")
    first = core.push(b"1", b"2", b"3", queue="line")
    core.pop(3, "line")
    core.transact(c.Nack(T, None, [first + 1], delay_ms=0), c.Ack(T, None, [first]))
    assert core.popped(9, "line") == [b"2", b"3"]
