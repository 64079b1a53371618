"""Long random lives: 100,000 steps in all, each seed a life of its own."""

import pytest

from tests.sim.drive import Driver


@pytest.mark.parametrize("seed", range(10))
def test_a_long_random_life_agrees_with_the_model(seed: int) -> None:
    Driver(seed).run(10_000)


def test_a_seed_replays_the_same_life() -> None:
    first, second = Driver(7), Driver(7)
    first.run(500)
    second.run(500)
    assert list(first.world.model.leases) == list(second.world.model.leases)
    assert first.world.now == second.world.now
