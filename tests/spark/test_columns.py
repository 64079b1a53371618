"""From segments to Arrow."""

import json
import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from forebay.spark.columns import Batches, Parser
from forebay.spark.link import Run
from tests.spark.talking import packed_body

SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),
        ("id", pa.int64()),
        ("created_at", pa.timestamp("us", "UTC")),
        ("value", pa.string()),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("tags", pa.list_(pa.string())),
        ("priority", pa.int32()),
        ("partition", pa.string()),
    ]
)


def run(offset: int, *payloads: bytes, **fields: Any) -> Run:
    body = memoryview(packed_body(*payloads))
    return Run(1_000 + offset, offset, 50, len(payloads), body, **fields)


def numbers(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def rows(*runs: Run) -> list[dict[str, Any]]:
    batch = Batches(SCHEMA, "q", "p", None).batch(runs)
    batch.validate(full=True)
    found: list[dict[str, Any]] = batch.to_pylist()
    return found


def test_runs_become_rows() -> None:
    found = rows(run(5, b"1", b'"\xc3\xa4"'), run(7, b"[]"))
    assert [(row["offset"], row["id"], row["value"]) for row in found] == [
        (5, 1_005, "1"),
        (6, 1_006, '"ä"'),
        (7, 1_007, "[]"),
    ]
    assert {row["created_at"].timestamp() for row in found} == {0.05}
    assert {(row["headers"], row["tags"], row["priority"], row["partition"]) for row in found} == {
        (None, None, 0, "p")
    }


def test_a_segment_of_several_runs_has_their_times_and_attributes() -> None:
    mixed = run(
        0,
        *[b"1"] * 5,
        ends=numbers(2, 3, 5),
        times=numbers(0, 10, 30),
        which=numbers(1, 0, 1),
        attributes=[{"priority": 0, "headers": {"k": "v"}}, {"priority": 9, "tags": ["t"]}],
    )
    found = rows(mixed, run(5, b"2"))
    assert [round(row["created_at"].timestamp() * 1000) for row in found] == [50, 50, 60, 80, 80, 50]
    assert [row["priority"] for row in found] == [9, 9, 0, 9, 9, 0]
    assert [row["headers"] for row in found] == [None, None, [("k", "v")], None, None, None]
    assert [row["tags"] for row in found] == [["t"], ["t"], None, ["t"], ["t"], None]


@pytest.mark.parametrize(
    "body",
    [
        struct.pack("<3i", 0, 5, 2) + b"ab",
        struct.pack("<3i", 0, 1, 9) + b"ab",
        struct.pack("<3i", 0, -1, 2) + b"ab",
        struct.pack("<3i", 0, 1, 2) + b"\xff\xfe",
    ],
    ids=["falling", "past the end", "negative", "no UTF-8"],
)
def test_a_body_that_lies_is_refused(body: bytes) -> None:
    with pytest.raises(pa.ArrowInvalid):
        Batches(SCHEMA, "q", "p", None).batch([Run(0, 0, 0, 2, memoryview(body))])


KIND = pa.struct([("id", pa.int64()), ("name", pa.string()), ("day", pa.date32())])
anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
fitting = st.fixed_dictionaries(
    {},
    optional={
        "id": st.none() | st.integers(-(2**63), 2**63 - 1),
        "name": st.none() | st.text(max_size=5).filter(lambda text: text.isprintable()),
        "day": st.none() | st.dates().map(str),
        "other": anything,
    },
)


@given(st.lists(fitting | anything, min_size=1, max_size=40))
def test_payloads_that_fit_are_read_and_others_are_handed_back(payloads: list[Any]) -> None:
    texts = [json.dumps(each, indent=1 if at % 3 == 0 else None) for at, each in enumerate(payloads)]
    values, corrupt = Parser(KIND).parse(pa.array(texts, pa.string()))
    assert values.type == KIND
    read = zip(texts, payloads, values.to_pylist(), corrupt.to_pylist(), strict=True)
    for text, payload, value, bad in read:
        if bad is None:
            assert isinstance(payload, dict)
            assert value["id"] == payload.get("id")
            assert value["name"] == payload.get("name")
            assert value["day"] is None if payload.get("day") is None else str(value["day"]) == payload["day"]
        else:
            assert value is None
            assert bad == text
            good = isinstance(payload, dict) and (
                type(payload.get("id")) in (int, type(None))
                and -(2**63) <= (payload.get("id") or 0) < 2**63
                and isinstance(payload.get("name"), str | None)
                and "day" not in payload
            )
            assert not good, text


def test_decimals_that_do_not_fit_are_misfits() -> None:
    kind = pa.struct([("d", pa.decimal128(38, 2))])
    texts = ['{"d":1.25}', '{"d":"7"}', '{"d":%s}' % ("1" * 38), '{"d":1.255}']
    values, corrupt = Parser(kind).parse(pa.array(texts, pa.string()))
    read = [None if each is None else str(each["d"]) for each in values.to_pylist()]
    assert read == ["1.25", "7.00", None, None]
    assert corrupt.to_pylist() == [None, None, *texts[2:]]
    short = Parser(pa.struct([("d", pa.decimal128(5, 2))]))
    assert short.parse(pa.array(['{"d":1234.5}']))[1].to_pylist() == ['{"d":1234.5}']


TEXTS = [
    *(
        "0",
        "-0",
        "1.0",
        "1e3",
        "1.5",
        "1e999",
        "200",
        "99999999999",
        "9223372036854775808",
        "1" * 400,
        "true",
        "null",
    ),
    *(
        '""',
        '"x"',
        '"1"',
        '"\\ud800"',
        '"2024-01-02"',
        '"2024-01-02T03:04:05Z"',
        '"2024-13-02"',
        '"20240102"',
    ),
    *("[]", "[1]", "[null]", '["x"]', "{}", '{"b":1}', '{"b":"x"}', '{"b":null,"c":1}'),
]
READ = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.bool_(), pa.string()),
    *(pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.date32(), pa.decimal128(10, 2)),
    *(pa.list_(pa.int64()), pa.struct([("b", pa.int64())]), pa.list_(pa.struct([("b", pa.string())]))),
]


@pytest.mark.parametrize("kind", READ, ids=str)
def test_what_is_read_does_not_depend_on_what_is_beside_it(kind: pa.DataType) -> None:
    """Alone, nothing but the reader decides; beside misfits, they are looked for before."""
    parser = Parser(pa.struct([("a", kind)]))
    texts = [f'{{"a":{text}}}' for text in TEXTS]
    alone = [parser._read(pa.array([text])) for text in texts]
    values, corrupt = parser.parse(pa.array(texts))
    assert corrupt.to_pylist() == [
        text if found is None else None for text, found in zip(texts, alone, strict=True)
    ]
    assert values.to_pylist() == [None if found is None else found[0].as_py() for found in alone]


def test_many_misfits_do_not_need_many_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    parser = Parser(KIND)
    reads = 0
    read = Parser._read

    def counted(self: Parser, values: pa.Array) -> pa.Array | None:
        nonlocal reads
        reads += 1
        return read(self, values)

    monkeypatch.setattr(Parser, "_read", counted)
    bad = [
        '{"id":"1"}',
        '{"name":1}',
        '{"day":"soon"}',
        '{"day":"2020-13-45"}',
        '{"day":"2020-01-02T03:04"}',
        "7",
    ]
    values, corrupt = parser.parse(pa.array(['{"id":1}', *bad] * 200))
    assert values.null_count == 1_200
    assert corrupt.null_count == 200
    assert reads <= 3


@pytest.mark.parametrize("name", ["a b", "a.b", 'a"b', "a\\b", "a\nb", "ä", "", "a'b", "A"])
def test_a_column_may_have_any_name(name: str) -> None:
    parser = Parser(pa.struct([(name, pa.int64()), ("a", pa.int64())]))
    texts = [json.dumps({name: value, "a": 1}) for value in (1, "x")]
    values, corrupt = parser.parse(pa.array(texts))
    assert values.to_pylist() == [{name: 1, "a": 1}, None]
    assert corrupt.to_pylist() == [None, texts[1]]
