"""A part of ``make fuzz`` on every run."""

from tests.server import fuzz

CASES = 50_000


def test_whatever_comes_in_is_answered_well_or_refused_and_changes_nothing_then() -> None:
    fuzz.run(CASES, seed=11)
