"""What rows become on their way into a queue, as docs/SPARK.md tells it."""

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from forebay.core.log.bodies import body_slices
from forebay.spark.sink import Rows


def written(column: Any, name: str = "value") -> list[str]:
    values = column if isinstance(column, pa.Array) else pa.array(column)
    rows = Rows.of(pa.RecordBatch.from_arrays([values], [name]))
    return [each.decode() for each in body_slices(rows.body(), rows.count, 0, rows.count)]


NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("column", "texts"),
    [
        (['{"a": 1}', " [2]\n", None, "null"], ['{"a": 1}', "[2]", "null", "null"]),
        ([b"1", None], ["1", "null"]),
        (pa.array([1, None]), ["1", "null"]),
        ([1.5, NAN, INFINITY, -INFINITY, None], ["1.5", "null", "null", "null", "null"]),
        ([{"a": NAN, "b": [INFINITY, 1.0], "c": None}, None], ['{"a":null,"b":[null,1.0],"c":null}', "null"]),
        ([{"at": NOON}], ['{"at":"2026-01-31T12:00:00Z"}']),
        (pa.array([NOON], pa.timestamp("us", "Europe/Rome")), ['"2026-01-31T13:00:00+01:00"']),
        ([NOON.replace(tzinfo=None)], ['"2026-01-31T12:00:00"']),
        ([date(2026, 1, 31)], ['"2026-01-31"']),
        ([time(12, 0, 1)], ['"12:00:01"']),
        ([timedelta(days=1)], ['"P1D"']),
        ([{"b": b"\xff"}], ['{"b":"/w=="}']),
        ([Decimal("1.50")], ["1.50"]),
        (pa.array([[(1, "a")]], pa.map_(pa.int32(), pa.string())), ['{"1":"a"}']),
        (pa.array([[(1.5, "a")]], pa.map_(pa.float64(), pa.string())), ['{"1.5":"a"}']),
        (pa.array([[(date(2026, 1, 31), 1)]], pa.map_(pa.date32(), pa.int32())), ['{"2026-01-31":1}']),
    ],
    ids=str,
)
def test_values_are_json(column: Any, texts: list[str]) -> None:
    assert written(column) == texts


def test_without_a_value_the_columns_are_an_object() -> None:
    assert written([NAN, 1.0], "price") == ['{"price":null}', '{"price":1.0}']


def test_what_says_nothing_of_how_a_row_is_delivered_is_left_out() -> None:
    kinds = {
        "priority": pa.int32(),
        "delay_ms": pa.int64(),
        "headers": pa.map_(pa.string(), pa.string()),
        "tags": pa.list_(pa.string()),
    }
    columns = [pa.array([None], kind) for kind in kinds.values()]
    rows = Rows.of(pa.RecordBatch.from_arrays([pa.array(["1"]), *columns], ["value", *kinds]))
    assert rows.about() == {}
