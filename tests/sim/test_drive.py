"""Long random lives: 100,000 steps in memory, 6,000 on a disk, each seed a life of its own."""

from operator import itemgetter
from pathlib import Path

import pytest

from forebay.core.delivery import pop
from forebay.core.loading import shard as loading
from forebay.core.retention import carve, merge as merges
from tests.sim.drive import Driver
from tests.sim.worlds import PostgresWorlds, RocksWorlds

TIERS = (150, 500)
"""So small that both tiers of merging have something to do; headers count."""
WORTH = 1
"""So little that islands of a few messages are carved."""
PLANS = 2
"""So few that a group which is made behind messages that are not in line sees them over several pops."""


@pytest.mark.parametrize("seed", range(10))
def test_a_long_random_life_agrees_with_the_model(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carve, "PART_BYTES", WORTH)
    if seed % 2:
        monkeypatch.setattr(merges, "TIERS", TIERS)
    if seed % 3 == 0:
        monkeypatch.setattr(pop, "PLANS_MAX", PLANS)
    driver = Driver(seed)
    driver.run(10_000)
    assert driver.merges + driver.world.merges > 10
    assert driver.carvings + driver.world.carvings > 10


@pytest.mark.parametrize("seed", [3, 6])
def test_queues_may_be_loaded_in_another_order(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest first, where they are loaded by number: another life, from the first restart on."""

    def newest_first(queues: dict[str, int]) -> list[tuple[str, int]]:
        return sorted(queues.items(), key=itemgetter(1), reverse=True)

    monkeypatch.setattr(loading, "in_order", newest_first)
    monkeypatch.setattr(carve, "PART_BYTES", WORTH)
    monkeypatch.setattr(merges, "TIERS", TIERS)
    monkeypatch.setattr(pop, "PLANS_MAX", PLANS)
    Driver(seed).run(10_000)


@pytest.mark.parametrize("seed", range(100, 102))
def test_a_long_random_life_on_a_disk_agrees_with_the_model(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merges, "TIERS", TIERS)
    monkeypatch.setattr(carve, "PART_BYTES", WORTH)
    worlds = RocksWorlds(tmp_path)
    driver = Driver(seed, worlds.begin)
    driver.run(3_000)
    assert driver.merges + driver.world.merges > 5
    worlds.close()


def test_a_seed_replays_the_same_life() -> None:
    first, second = Driver(7), Driver(7)
    first.run(500)
    second.run(500)
    assert list(first.world.model.leases) == list(second.world.model.leases)
    assert first.world.now == second.world.now


def test_a_long_random_life_in_a_database_agrees_with_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merges, "TIERS", TIERS)
    monkeypatch.setattr(carve, "PART_BYTES", WORTH)
    worlds = PostgresWorlds()
    driver = Driver(200, worlds.begin)
    driver.run(3_000)
    assert driver.merges + driver.world.merges > 5
    worlds.close()
