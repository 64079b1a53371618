"""Which rows a micro-batch and its tasks read."""

from hypothesis import given, strategies as st

from forebay.spark.ranges import Extent, Place, Range, ends_of, keys_of, limited, new_of, offsets_of, tasks

PLACES = [("q", "a"), ("q", "b"), ("r", "a")]
rows = st.dictionaries(st.sampled_from(PLACES), st.integers(0, 1_000))
parts = st.lists(st.tuples(st.sampled_from(PLACES), st.integers(0, 500)))
means = st.dictionaries(st.sampled_from(PLACES), st.floats(1, 500))


@given(rows, rows, means, st.integers(1, 100_000))
def test_a_limit_takes_as_much_as_it_may_and_never_nothing(
    starts: dict[Place, int], more: dict[Place, int], weights: dict[Place, float], most: int
) -> None:
    wanted = {place: starts.get(place, 0) + count for place, count in more.items()}
    ends = dict(wanted)
    limited(starts, ends, weights, most)
    taken = {place: ends[place] - starts.get(place, 0) for place in ends}
    assert all(0 <= taken[place] <= more[place] for place in taken)
    weight = sum(count * weights.get(place, 1.0) for place, count in taken.items())
    assert weight <= most * 1.000001 or sum(taken.values()) == 1
    assert sum(taken.values()) > 0 or not sum(more.values())
    left = {place: more[place] - taken[place] for place in taken if more[place] > taken[place]}
    # What is left over is less than a row of each place.
    lost = sum(weights.get(place, 1.0) for place in PLACES)
    assert not left or (weight + lost >= min(most, 1) and weight + 2 * lost >= most)


@given(parts, means, st.floats(1, 5_000), st.integers(1, 9))
def test_tasks_read_every_row_once_and_in_order(
    wanted: list[tuple[Place, int]], weights: dict[Place, float], size: float, least: int
) -> None:
    starts: dict[Place, int] = {}
    ranges = []
    for place, count in wanted:
        start = starts.get(place, 0)
        ranges.append(Range(*place, start, start + count))
        starts[place] = start + count
    found = tasks(ranges, weights, size, least)
    read = [
        (each.queue, each.partition, offset)
        for task in found
        for each in task
        for offset in range(each.start, each.end)
    ]
    expected = [(each.queue, each.partition, at) for each in ranges for at in range(each.start, each.end)]
    assert read == expected
    assert all(task for task in found)
    assert len(found) >= min(least, len(expected))
    heaviest = max([weights.get(place, 1.0) for place in PLACES])
    for task in found:
        weight = sum(each.rows * weights.get((each.queue, each.partition), 1.0) for each in task)
        assert weight <= size * 1.001 + heaviest


@given(
    st.lists(st.tuples(st.integers(0, 40), st.floats(1, 1e6)), max_size=6),
    st.floats(1, 1e9),
    st.integers(1, 300),
)
def test_there_are_as_many_tasks_as_were_asked_for_however_the_weight_is_spread(
    partitions: list[tuple[int, float]], size: float, least: int
) -> None:
    ranges = [Range("q", str(at), 0, count) for at, (count, _) in enumerate(partitions)]
    weights = {("q", str(at)): mean for at, (_, mean) in enumerate(partitions)}
    found = tasks(ranges, weights, size, least)
    assert len(found) >= min(least, sum(each.rows for each in ranges))
    read = [(part.partition, at) for task in found for part in task for at in range(part.start, part.end)]
    assert read == [(each.partition, at) for each in ranges for at in range(each.end)]


def test_a_heavy_row_does_not_take_the_tasks_of_the_light_ones() -> None:
    ranges = [Range("q", "heavy", 0, 1), Range("q", "light", 0, 8)]
    found = tasks(ranges, {("q", "heavy"): 500.0}, 1_000, 4)
    assert [[(each.partition, each.rows) for each in task] for task in found] == [
        [("heavy", 1)],
        [("light", 3)],
        [("light", 3)],
        [("light", 2)],
    ]


def test_offsets_go_there_and_back() -> None:
    extents = {("q", "a"): Extent(64, 0, 5, 10), ("r", "x"): Extent(65, 1, 2, 3)}
    ends = {("q", "a"): 5, ("r", "x"): 2, ("q", "gone"): 7}
    keys = {place: extent.key for place, extent in extents.items()}
    offsets = offsets_of(ends, keys, {("r", "x"): 1})
    identity = {"q": {"a": 64}, "r": {"x": 65}}
    assert offsets == {"q": {"a": 5, "gone": 7}, "r": {"x": 2}, "#": identity, "#new": {"r": {"x": 1}}}
    assert new_of(offsets) == {("r", "x"): 1}
    assert ends_of(offsets) == ends
    assert keys_of(offsets) == {("q", "a"): 64, ("r", "x"): 65}
