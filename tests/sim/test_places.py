"""Is the table of moves true? Random lives make no move that is not in it, be it by a command or by time."""

from collections import Counter
from collections.abc import Callable

import pytest

from forebay.core.api.commands import Command, Reply
from forebay.core.engine import Engine
from forebay.core.tracks.places import MOVES, PLACES, SOURCES, spans_in
from tests.sim.drive import Driver
from tests.sim.job_drive import JobDriver

Key = tuple[bytes, int, int, int]
"""Queue, group, partition and offset."""

DRAWN = 4
"""The places before and after every so many commands are compared: a comparison costs several commands."""


def places(engine: Engine) -> dict[Key, str]:
    """The place of every message in every group; there is exactly one."""
    found: dict[Key, str] = {}
    for shard in engine.shards.values():
        for queue in shard.queues.values():
            for group in queue.groups.values():
                for track in group.tracks.values():
                    log, known = track.partition.log, len(found)
                    for place in PLACES:
                        for low, high in spans_in(shard, track, place, log.first, log.end):
                            for offset in range(low, high):
                                key = (queue.prefix, group.number, track.partition.key, offset)
                                assert key not in found, f"{key} is {found[key]} and {place}"
                                found[key] = place
                    assert len(found) - known == log.end - log.first, "every message has a place"
    return found


@pytest.mark.parametrize(("driver", "seed"), [(Driver, 5), (JobDriver, 6), (JobDriver, 7)])
def test_a_message_is_in_one_place_and_moves_as_the_table_says(
    driver: Callable[[int], Driver], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: Counter[tuple[str, str]] = Counter()
    apply = Engine.apply
    commands = 0

    def watched(self: Engine, command: Command, now: int) -> Reply:
        nonlocal commands
        commands += 1
        if commands % DRAWN:
            return apply(self, command, now)
        before = places(self)
        self.tick(now)
        before = compare("time", before, places(self))
        try:
            return apply(self, command, now)
        finally:
            compare(repr(command), before, places(self))

    def compare(what: str, before: dict[Key, str], after: dict[Key, str]) -> dict[Key, str]:
        for key, place in before.items():
            if key in after and after[key] != place:
                move = (place, after[key])
                assert move in MOVES, f"{what} moved a message from {place} to {after[key]}"
                seen[move] += 1
        return after

    monkeypatch.setattr(Engine, "apply", watched)
    driver(seed).run(2_500)
    assert len(seen) > 8


def test_every_place_is_reached_and_left() -> None:
    assert {target for _, target in MOVES} == set(PLACES)
    assert {source for source, _ in MOVES} == {"new", *PLACES}


def test_a_verb_takes_from_the_places_that_the_table_names() -> None:
    assert SOURCES["cancel"] == {"fresh", "scheduled", "leased", "parked"}
    assert SOURCES["expire"] == {"fresh", "scheduled", "parked"}
    assert SOURCES["promote"] == {"scheduled"}
    assert SOURCES["requeue"] == {"dead"}
