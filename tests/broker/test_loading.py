"""Reading ahead finds what scans one by one find, in fewer questions."""

import random
from collections.abc import Iterator

import pytest

from forebay.broker import load as loading
from forebay.core.records.commit import Record


class Kept:
    """Records, and how often they were asked for."""

    def __init__(self, records: list[Record]) -> None:
        self.records = records
        self.scans = 0

    def scan(self, lower: bytes, upper: bytes) -> Iterator[Record]:
        self.scans += 1
        return (record for record in self.records if lower <= record[0] < upper)


@pytest.mark.parametrize("seed", range(20))
def test_reading_ahead_finds_what_scans_one_by_one_find(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(loading, "AHEAD_RECORDS", rng.choice((1, 2, 7, 1_000)))
    keys = sorted({bytes([rng.randrange(200), rng.randrange(3)]) for _ in range(rng.choice((0, 1, 150)))})
    kept = Kept([(key, b"%d" % at) for at, key in enumerate(keys)])
    ahead = loading.reading_ahead(kept.scan)
    for _ in range(100):
        lower, upper = (bytes([rng.randrange(256)]) for _ in range(2))
        assert list(ahead(lower, upper)) == list(Kept(kept.records).scan(lower, upper))


def test_scans_that_follow_each_other_are_a_few_large_ones() -> None:
    records = [(number.to_bytes(8, "big"), b"") for number in range(12_000)]
    kept = Kept(records)
    ahead = loading.reading_ahead(kept.scan)
    found: list[Record] = []
    for number in range(0, 12_000, 3):
        found += ahead(number.to_bytes(8, "big"), (number + 3).to_bytes(8, "big"))
    assert found == records
    assert kept.scans <= 4
