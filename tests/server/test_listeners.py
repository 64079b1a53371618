"""The same scenarios through every listener and framing: what a queue does depends on none of them."""

import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.server.wires import WIRES, Flashq, Refused, Wire
from tests.serving import Server

HOUR_MS = 3_600_000
PATIENT_MS = 30_000
"""How long a scenario waits for what must come."""

numbers = count(1)


@pytest.fixture(scope="module")
def listening(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path: Path = tmp_path_factory.mktemp("unix") / "socket"
    with Server("--unix", str(path), "--flashq", "127.0.0.1:0") as running:
        yield running


@pytest.fixture(params=WIRES)
def wire(request: pytest.FixtureRequest, listening: Server) -> Iterator[Wire]:
    spoken = WIRES[request.param]
    with spoken.connect(listening) as connection:
        yield spoken.adapt(connection)


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    """The name of a queue nobody has used, on whatever wire."""
    return re.sub(r"\W", "-", request.node.originalname) + f"-{next(numbers)}"


def payloads(wire: Wire, queue: str, count: int = 100, **fields: Any) -> list[Any]:
    return [each.payload for each in wire.pop(queue, count, **fields)]


def test_what_is_pushed_is_popped_in_order_and_acked_once(wire: Wire, queue: str) -> None:
    ids = wire.push(queue, {"a": [1, None, "\u00e9"]}, 2, "three")
    found = wire.pop(queue, 9)
    assert [each.id for each in found] == ids
    assert [each.payload for each in found] == [{"a": [1, None, "\u00e9"]}, 2, "three"]
    assert wire.pop(queue, 9) == []
    assert [wire.state(queue, each) for each in ids] == ["active"] * 3
    assert wire.ack(ids[0]) == 1
    assert wire.ack(lease=found[0].lease) == 2
    assert [wire.state(queue, each) for each in ids] == ["completed"] * 3
    with pytest.raises(Refused, match="conflict"):
        wire.ack(lease=found[0].lease)
    assert wire.log(queue) == [{"a": [1, None, "\u00e9"]}, 2, "three"]


def test_what_fails_too_often_is_a_dead_letter_until_it_is_requeued(wire: Wire, queue: str) -> None:
    wire.configure(queue, max_attempts=2)
    (message,) = wire.push(queue, "job")
    (first,) = wire.pop(queue)
    assert (first.failures, wire.nack(message, error="one")) == (0, 1)
    (second,) = wire.pop(queue)
    assert (second.failures, wire.nack(message, error="two")) == (1, 1)
    assert wire.pop(queue) == []
    assert (wire.state(queue, message), wire.dead(queue)) == ("dead", [("job", "two")])
    assert wire.requeue(queue) == 1
    (again,) = wire.pop(queue)
    assert (again.id, again.failures) == (message, 0)
    assert (wire.ack(message), wire.dead(queue)) == (1, [])


def test_a_nack_with_a_delay_holds_it_back(wire: Wire, queue: str) -> None:
    (message,) = wire.push(queue, 1)
    wire.pop(queue)
    wire.nack(message, delay_ms=HOUR_MS)
    assert (wire.pop(queue), wire.state(queue, message)) == ([], "delayed")


def test_what_is_delayed_comes_when_it_is_due(wire: Wire, queue: str) -> None:
    (late,) = wire.push(queue, "late", delay_ms=HOUR_MS)
    wire.push(queue, "soon", delay_ms=1)
    assert payloads(wire, queue, wait_ms=PATIENT_MS) == ["soon"]
    assert wire.state(queue, late) == "delayed"


def test_higher_priority_comes_first_and_lifo_before_its_equals(wire: Wire, queue: str) -> None:
    for payload, options in (
        ("plain", {}),
        ("low", {"priority": -1}),
        ("high", {"priority": 9}),
        ("last in", {"lifo": True}),
        ("high too", {"priority": 9}),
    ):
        wire.push(queue, payload, **options)
    assert payloads(wire, queue) == ["high", "high too", "last in", "plain", "low"]


def test_a_unique_key_is_held_until_its_message_ends(wire: Wire, queue: str) -> None:
    first = wire.push(queue, 1, unique_key="k")
    assert wire.push(queue, 2, unique_key="k") == first
    assert wire.push(queue, 3, unique_key="k", dedup="replace") == first
    assert payloads(wire, queue) == [3]
    wire.ack(*first)
    assert wire.push(queue, 4, unique_key="k") != first


def test_every_group_reads_everything_on_its_own(wire: Wire, queue: str) -> None:
    (message,) = wire.push(queue, 1)
    late: dict[str, Any] = {"group": "late", "from": "new"}
    assert payloads(wire, queue, **late) == []
    wire.push(queue, 2)
    assert payloads(wire, queue) == payloads(wire, queue, group="audit") == [1, 2]
    assert payloads(wire, queue, group="late") == [2]
    assert wire.ack(message, group="audit") == 1
    assert wire.state(queue, message, "audit") == "completed"
    assert wire.state(queue, message) == "active"


def test_partitions_and_lanes_are_kept_apart(wire: Wire, queue: str) -> None:
    wire.push(queue, "a", partition="p")
    wire.push(queue, "b", "c", key="lane")
    assert payloads(wire, queue, partition="p") == ["a"]
    (one,) = wire.pop(queue, 9)
    assert one.payload == "b"
    wire.ack(one.id)
    assert payloads(wire, queue) == ["c"]


def test_what_is_cancelled_does_not_come(wire: Wire, queue: str) -> None:
    _, second, _ = wire.push(queue, 1, 2, 3)
    assert wire.cancel(queue, second) == 1
    assert (payloads(wire, queue), wire.state(queue, second)) == ([1, 3], "cancelled")


def test_what_depends_on_others_waits_for_them(wire: Wire, queue: str) -> None:
    (first,) = wire.push(queue, "first")
    (second,) = wire.push(queue, "second", depends_on=[first])
    assert wire.state(queue, second) == "parked"
    assert payloads(wire, queue) == ["first"]
    wire.ack(first)
    assert payloads(wire, queue, wait_ms=PATIENT_MS) == ["second"]


def test_a_paused_queue_gives_nothing(wire: Wire, queue: str) -> None:
    wire.push(queue, 1)
    wire.pause(queue, True)
    assert payloads(wire, queue) == []
    wire.pause(queue, False)
    assert payloads(wire, queue) == [1]


def test_a_lease_lasts_as_long_as_it_is_extended(wire: Wire, queue: str) -> None:
    wire.push(queue, 1)
    (message,) = wire.pop(queue, lease_ms=60_000)
    assert message.lease is not None
    once = wire.extend(message.lease, HOUR_MS)
    assert wire.extend(message.lease, 2 * HOUR_MS) >= once + HOUR_MS - PATIENT_MS
    assert wire.ack(lease=message.lease) == 1


def test_values_are_kept_and_counted(wire: Wire, queue: str) -> None:
    key = [queue, "a"]
    assert wire.get(key) is None
    first = wire.set(key, {"n": 1})
    assert wire.get(key) == {"n": 1}
    assert wire.set(key, 40) > first
    wire.add(key, 2)
    assert wire.get(key) == 42


def test_a_transaction_is_done_whole_or_not_at_all(wire: Wire, queue: str) -> None:
    (message,) = wire.push(queue, "in")
    with pytest.raises(Refused, match="conflict"):
        wire.transact(message, f"{queue}-out", "out")
    assert payloads(wire, f"{queue}-out") == []
    wire.pop(queue)
    wire.transact(message, f"{queue}-out", "out")
    assert (payloads(wire, f"{queue}-out"), wire.state(queue, message)) == (["out"], "completed")


def test_a_cron_pushes_until_it_is_deleted(wire: Wire, queue: str) -> None:
    wire.cron(f"{queue}-once", queue, "tick", every_ms=100, limit=1)
    assert payloads(wire, queue, 1, wait_ms=PATIENT_MS) == ["tick"]
    wire.cron(queue, queue, "never", schedule="@yearly", timezone="Europe/Rome")
    assert queue in wire.crons()
    wire.end_cron(queue)
    assert queue not in wire.crons()
    with pytest.raises(Refused, match="not_found"):
        wire.end_cron(queue)


def test_errors_have_the_same_codes(wire: Wire, queue: str) -> None:
    with pytest.raises(Refused, match="invalid"):
        wire.push("not a name", 1)
    with pytest.raises(Refused, match="invalid"):
        wire.push(queue, 1, priority="high")
    with pytest.raises(Refused, match="invalid"):
        wire.push(queue, 1, surprise=1)
    with pytest.raises(Refused, match="not_found"):
        wire.log(queue)
    wire.configure(queue, max_size=1)
    wire.push(queue, 1)
    with pytest.raises(Refused, match="busy"):
        wire.push(queue, 2)


def test_what_came_through_one_wire_leaves_through_any_other(listening: Server) -> None:
    name = f"crossing-{next(numbers)}"
    spoken = list(WIRES.values())
    for at, (one, other) in enumerate(zip(spoken, spoken[1:] + spoken[:1], strict=True)):
        with one.connect(listening) as here, other.connect(listening) as there:
            (message,) = one.adapt(here).push(name, {"from": at})
            (found,) = other.adapt(there).pop(name)
            assert (found.id, found.payload) == (message, {"from": at})
            settled = one.adapt(here)
            by_id = found.lease is None or isinstance(settled, Flashq)
            assert (settled.ack(message) if by_id else settled.ack(lease=found.lease)) == 1
