"""Long random lives of jobs: keys, ids, and messages that wait for others."""

from pathlib import Path

import pytest

from forebay.core.delivery import pop
from forebay.core.jobs import dependencies
from forebay.core.retention import carve, merge as merges
from tests.sim.job_drive import JobDriver
from tests.sim.test_drive import PLANS, TIERS, WORTH
from tests.sim.worlds import PostgresWorlds, RocksWorlds

STEP = 2
"""So few that those who wait are told over several ticks."""


@pytest.mark.parametrize("seed", range(4))
def test_a_long_random_life_of_jobs_agrees_with_the_model(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carve, "PART_BYTES", WORTH)
    if seed % 2:
        monkeypatch.setattr(merges, "TIERS", TIERS)
    if seed % 3 == 0:
        monkeypatch.setattr(pop, "PLANS_MAX", PLANS)
    if seed % 4 == 0:
        monkeypatch.setattr(dependencies, "STEP", STEP)
    JobDriver(seed).run(3_000)


def test_a_long_random_life_of_jobs_on_a_disk_agrees_with_the_model(tmp_path: Path) -> None:
    worlds = RocksWorlds(tmp_path)
    JobDriver(100, worlds.begin_jobs).run(1_000)
    worlds.close()


def test_a_long_random_life_of_jobs_in_a_database_agrees_with_the_model() -> None:
    worlds = PostgresWorlds()
    JobDriver(200, worlds.begin_jobs).run(1_000)
    worlds.close()
