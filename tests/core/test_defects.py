"""Defects of the systems this one learned from, each shown not to be here.

The numbers are those of the list of such defects that was made before the first line was written. Those
without a test here have theirs where the feature is tested.
"""

from typing import Any

import pytest

from forebay.core.api import commands as c, queries
from forebay.core.delivery import notes
from forebay.core.errors import Busy
from forebay.core.shard.timers import SWEEP_MS
from forebay.core.state import PLAIN
from forebay.core.words import LINE, PART, RESULT
from tests.core.harness import Core


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


@pytest.mark.parametrize("ends", ["time", "nack", "death", "cancel", "discard", "give back"])
def test_4_whatever_ends_a_delivery_frees_all_that_it_held(ends: str) -> None:
    """flashQ's time-out frees a slot but neither group nor key; a fail that is the last keeps the key."""
    core = Core()
    core.configure(ordering="partition", max_size=2, max_attempts=1 if ends == "death" else 0)
    first = core.push(*numbers(2))
    reply = core.pop(lease_ms=1_000)
    assert core.popped() == []
    if ends == "time":
        core.wait(1_000)
    elif ends in ("nack", "death"):
        core.nack(reply.lease, delay_ms=0)
    elif ends == "cancel":
        core.cancel(first)
    elif ends == "discard":
        core.ask(c.Discard("default", [first]), c.Settled)
    else:
        core.engine.give_back(reply, core.now)
    over = ends in ("death", "cancel", "discard")
    assert core.engine.shards[core.engine.queues["default", "q"].shard].leases == {}
    core.wait(2_000)
    core.restart()
    assert core.popped() == [b"1" if over else b"0"]
    if over:
        core.push(b"new")
    else:
        with pytest.raises(Busy):
            core.push(b"new")


def test_6_of_what_is_completed_the_oldest_goes_first_and_never_any_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """flashQ trims an unordered set: which half of the completed jobs goes is chance."""
    monkeypatch.setattr(notes, "RESULTS_MAX", 4)
    core = Core()
    core.configure(completed_retention_bytes=60)
    ids = []
    for number in range(20):
        ids.append(core.push(b"%010d" % number, partition=f"p{number % 3}"))
        core.commit()
        core.wait(1)
    core.pop(20)
    for each in reversed(ids):
        core.ack(ids=[each], results=[b"1"])
        core.commit()
    core.wait(SWEEP_MS)
    kept = [number for number, each in enumerate(ids) if is_kept(core, each)]
    assert kept == list(range(20))[-len(kept) :]
    assert len(kept) == 6
    with_results = [number for number in kept if has_result(core, ids[number])]
    assert with_results == [], "results of the newest acks are those of the oldest messages, which are gone"


def is_kept(core: Core, message: int) -> bool:
    found = core.ask(queries.Show("default", [message]), queries.ShownAll)
    return bool(found.deliveries)


def has_result(core: Core, message: int) -> bool:
    (results,) = core.ask(queries.GetNotes("default", message, (RESULT,)), queries.NotesFound).notes
    return bool(results)


def test_7_a_batch_of_acks_is_as_good_as_single_ones() -> None:
    """flashQ's ACKB keeps no result, and nobody who waits for the job hears of its end."""
    seen: list[Any] = []
    for batch in (False, True):
        core = Core()
        first = core.push(*numbers(3))
        core.pop(3)
        watched = [core.engine.watch("default", first + at) for at in range(3)]
        ids, results = [first, first + 1, first + 2], [b"a", b"b", b"c"]
        if batch:
            core.ack(None, ids, results=results, partial=True)
        else:
            for each, result in zip(ids, results, strict=True):
                core.ack(None, [each], results=[result])
        told = sorted(core.engine.take_changed())
        assert told == sorted(watched)
        found = [core.ask(queries.GetNotes("default", each, (RESULT,)), queries.NotesFound) for each in ids]
        answers = [[bytes(p) for note in each.notes[0] for p in note.payloads()] for each in found]
        seen.append(([each.is_over for each in found], answers, core.counts()))
    assert seen[0] == seen[1]
    assert seen[0][1] == [[b"a"], [b"b"], [b"c"]]


def test_11_the_size_of_a_queue_is_enforced_by_every_way_to_push() -> None:
    """Queen documents maxSize and ignores it."""
    core = Core()
    core.configure(max_size=3)
    core.push(*numbers(3))
    for command in (
        c.Push("default", "q", [b"x"]),
        c.Push("default", "q", [b"x"], "another"),
        c.PushMany("default", "q", [("default", [b"x"], PLAIN)]),
        c.PushMany("default", "q", [("a", [b"x"], PLAIN), ("b", [b"x"], PLAIN)]),
    ):
        with pytest.raises(Busy):
            core.engine.apply(command, core.now)
    assert core.counts() == queries.Counts(waiting=3)
    core.ack(core.pop(1).lease)
    core.push(b"x")
    with pytest.raises(Busy):
        core.push(b"y")


@pytest.mark.parametrize(
    ("configured", "asked", "confirmed", "synced"),
    [
        ("fsync", None, "fsync", True),
        ("fsync", "os", "os", True),
        ("os", None, "os", True),
        ("os", "fsync", "fsync", True),
    ],
)
def test_15_what_is_confirmed_as_safe_was_synced_first(
    configured: str, asked: str | None, confirmed: str, synced: bool
) -> None:
    """Queen's failover buffer answers 201 before anything would survive a crash of the machine."""
    core = Core()
    core.configure(durability=configured)
    core.commit()
    for _ in range(2):
        reply = core.ask(c.Push("default", "q", [b"1"], durability=asked), c.Pushed)
        assert reply.durability == confirmed
        core.engine.seal(core.now)
        assert core.engine.must_sync is synced
        synced = confirmed == "fsync"
        # The first push to a partition is synced, too: its number must not be given out again.


def test_15_every_change_of_a_queue_that_promises_it_is_synced() -> None:
    core = Core()
    first = core.push(*numbers(9), max_attempts=1)
    core.commit()
    lease = core.pop(5).lease
    for command in (
        c.Pop("default", "q"),
        c.Ack("default", ids=[first], results=[b"1"]),
        c.Nack("default", ids=[first + 1]),
        c.Extend("default", lease, lease_ms=60_000),
        c.Requeue("default", "q"),
        c.Cancel("default", [first + 2]),
        c.Discard("default", [first + 6]),
        c.Update("default", first + 7, b"new"),
        c.Clean("default", "q", ("waiting",)),
        c.Seek("default", "q", "default", "all"),
        c.Configure("default", "q", lease_ms=5),
        c.Pause("default", "q"),
        c.Obliterate("default", "q"),
    ):
        core.commit()
        core.engine.apply(command, core.now)
        assert core.engine.seal(core.now), command
        assert core.engine.must_sync, command


@pytest.mark.parametrize("kind", ["line", "part", "progress"])
def test_15_what_is_noted_of_a_queue_that_promises_it_is_synced(kind: str) -> None:
    core = Core()
    message = core.push(b"1")
    core.pop()
    core.commit()
    if kind == "progress":
        core.engine.apply(c.TellProgress("default", message, 50), core.now)
    else:
        core.engine.apply(c.AddNote("default", message, LINE if kind == "line" else PART, b"1"), core.now)
    assert core.engine.seal(core.now)
    assert core.engine.must_sync
