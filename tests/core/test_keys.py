"""Packed keys: they sort as their parts do, come back as they were, and a prefix is a range."""

import random

import pytest
from hypothesis import given, settings, strategies as st

from forebay.core.errors import Invalid
from forebay.core.keyvalue.keys import AFTER, KEY_BYTES_MAX, PARTS_MAX, Part, pack, unpack
from forebay.core.state import Keys, values

EXACT = 1 << 53
fixed = settings(derandomize=True, database=None, deadline=None, max_examples=150)
# Few letters, among them those that are escaped, so that parts begin alike.
texts = st.text(st.sampled_from("\0\x01aé\xff\U0001f600"), max_size=4) | st.text(max_size=20)
raw = st.binary(max_size=4) | st.lists(st.sampled_from(b"\0\xff\x01"), max_size=4).map(bytes)
floats = st.floats(allow_nan=False, allow_infinity=False)
whole = st.integers(-EXACT - 9, EXACT + 9) | st.integers(-(1 << 300), 1 << 300)
parts = texts | raw | floats | whole | st.booleans()
keys = st.lists(parts, min_size=1, max_size=4)


def order(part: Part) -> tuple[int, object]:
    """Where a part stands among others: by its kind, then among its like."""
    match part:
        case bool():
            return (3, part)
        case bytes():
            return (0, part)
        case str():
            return (1, part.encode())
    return (2, part)


def orders(key: list[Part]) -> list[tuple[int, object]]:
    return [order(part) for part in key]


@fixed
@given(keys)
def test_a_key_comes_back_as_it_was(key: list[Part]) -> None:
    found = unpack(pack(key))
    assert list(found) == key
    assert [isinstance(part, bool) for part in found] == [isinstance(part, bool) for part in key]
    assert [type(part) for part in found if not isinstance(part, int | float)] == [
        type(part) for part in key if not isinstance(part, int | float)
    ]


@fixed
@given(keys, keys)
def test_packed_keys_sort_part_by_part(one: list[Part], two: list[Part]) -> None:
    first, second = orders(one), orders(two)
    assert (pack(one) < pack(two)) == (first < second)
    assert (pack(one) == pack(two)) == (first == second)


@fixed
@given(keys, keys)
def test_a_prefix_is_a_range_of_what_is_below_it(prefix: list[Part], other: list[Part]) -> None:
    low = pack(prefix)
    below = orders(other)[: len(prefix)] == orders(prefix)
    assert (low <= pack(other) < low + AFTER) == below
    assert low <= pack([*prefix, *other][:PARTS_MAX]) < low + AFTER


def test_numbers_sort_as_numbers_do() -> None:
    small = [-1e6, -2, -1.5, -5e-324, 0, 5e-324, 0.5, 1, 1.5, 2, 10]
    big = [(1 << 53) - 1, 1 << 53, (1 << 53) + 1, 1 << 56, (1 << 56) + 1, 1e20, 10**20 + 1, 1 << 80]
    huge = [(1 << 80) + 1, 1e300, int(1e300) + 1, 1 << 1_015]
    numbers = [*(-number for number in reversed(big + huge)), *small, *big, *huge]
    assert sorted(numbers, key=lambda number: pack([number])) == numbers
    assert list(unpack(pack(big))) == big


def test_equal_numbers_are_one_key_however_large() -> None:
    assert pack([1e20]) == pack([10**20])
    assert pack([1e300]) == pack([int(1e300)])
    assert pack([1 << 60]) != pack([(1 << 60) + 1])
    (shown,) = unpack(pack([1 << 60]))
    assert isinstance(shown, int)


def test_what_is_below_a_large_number_is_not_below_the_next() -> None:
    low, after = pack([1 << 60]), pack([1 << 60]) + AFTER
    assert low <= pack([1 << 60, "x"]) < after <= pack([(1 << 60) + 1]) < pack([(1 << 60) + 1, "x"])


def test_one_and_one_point_zero_and_both_zeros_are_one_key() -> None:
    assert pack([1]) == pack([1.0])
    assert pack([0]) == pack([0.0]) == pack([-0.0])
    assert pack([1]) != pack([True]) != pack(["1"]) != pack([b"1"])


@pytest.mark.parametrize(
    "key",
    [
        [],
        ["x"] * (PARTS_MAX + 1),
        ["x" * (KEY_BYTES_MAX - 1)],
        [b"\0" * (KEY_BYTES_MAX // 2)],
        ["\ud800"],
        [float("nan")],
        [float("inf")],
        [-float("inf")],
        [1 << 1_016],
        [-(1 << 1_016)],
        [None],
        [["a"]],
    ],
    ids=lambda key: repr(key)[:20],
)
def test_a_bad_key_is_refused(key: list[Part]) -> None:
    with pytest.raises(Invalid) as refused:
        pack(key)
    assert refused.value.field == "key"


@pytest.mark.parametrize(
    "key", [["x"] * PARTS_MAX, ["x" * (KEY_BYTES_MAX - 2)], [(1 << 1_016) - 1], [1 - (1 << 1_016)], [""]]
)
def test_a_key_at_the_limit_is_taken(key: list[Part]) -> None:
    assert list(unpack(pack(key))) == key


# Keys in order.


@pytest.mark.parametrize("seed", range(10))
def test_keys_are_in_order_whatever_comes_and_goes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "CHUNK", 3)
    rng = random.Random(seed)
    there = sorted({b"%03d" % rng.randrange(300) for _ in range(40)})
    found = Keys(there)
    for _ in range(400):
        key = b"%03d" % rng.randrange(300)
        if key in there:
            there.remove(key)
            found.remove(key)
        elif rng.random() < (0.2 if len(there) > 60 else 0.8):
            there.append(key)
            there.sort()
            found.add(key)
        low, high = (b"%03d" % rng.randrange(300) for _ in range(2))
        expected = [each for each in there if low <= each < high]
        assert list(found.between(low, high)) == expected
        assert list(found.back(low, high)) == expected[::-1]
    for key in there:
        found.remove(key)
    assert list(found.between(b"", AFTER)) == list(found.back(b"", AFTER)) == []
