"""A node with many queues and nothing to do: it sleeps."""

import pytest

from forebay.core.api.commands import Ack, Nack
from forebay.core.engine import Engine
from forebay.core.words import DEFAULT
from tests.broker.conftest import Start
from tests.broker.loop import Rig, pop, push

QUEUES = 2_000
SETTLED_MS = 30_000
"""Time after which the sweeps that every start plans are done."""
IDLE_MS = 3_000_000
"""Less than the hour after which what was acked goes."""


def fill(rig: Rig) -> None:
    """Make queues with something acked, something that failed for good, and something that waits."""
    for number in range(QUEUES):
        queue = f"q{number}"
        rig.get(push("1", "2", "3", queue=queue))
        rig.get(Ack(DEFAULT, _leased(rig, queue)))
        rig.get(Nack(DEFAULT, _leased(rig, queue), final=True))


def _leased(rig: Rig, queue: str) -> str:
    lease = rig.lease(pop(queue=queue)).lease
    assert lease is not None
    return lease


def test_queues_that_nobody_uses_are_not_looked_at(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    before = start()
    fill(before)
    ticks: list[int] = []
    tick = Engine.tick

    def counted(engine: Engine, now: int) -> None:
        ticks.append(now)
        tick(engine, now)

    before.close()
    again = start(before.store)
    monkeypatch.setattr(Engine, "tick", counted)
    again.loop.advance(SETTLED_MS)
    assert ticks, "a start plans a sweep of every queue"
    ticks.clear()
    commits = len(again.store.groups)
    again.loop.advance(IDLE_MS)
    assert len(ticks) <= 5
    assert len(again.store.groups) == commits
