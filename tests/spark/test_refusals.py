"""What is wrong with a row is told with its column and its beginning."""

from typing import Any

import pyarrow as pa
import pytest

from forebay.client.errors import Refused
from forebay.spark.bad_rows import SHOWN_MAX, explained
from forebay.spark.link import Link, StageWriter
from forebay.spark.schemas import BadRows
from forebay.spark.sink import Gathering
from tests.serving import Server

TAGS, HEADERS = pa.list_(pa.string()), pa.map_(pa.string(), pa.string())


def batch(**columns: Any) -> pa.RecordBatch:
    arrays = [each if isinstance(each, pa.Array) else pa.array(each) for each in columns.values()]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def staged(server: Server, stage: str, rows: pa.RecordBatch) -> None:
    """Stage rows as a task does."""
    with Link(server.tcp, 1_000) as link:
        gathering = Gathering(StageWriter(link, queue="refusals", stage=stage), "default")
        try:
            gathering.add(rows)
            gathering.finish()
        except Refused as error:
            raise explained(error, 3, gathering.sent) from None


GOOD = ["1"] * 30
LONG = "not JSON " * 50
WHERE = "of a row of task 3"


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"value": [*GOOD, "no json", "{"]}, f"column value {WHERE} is not JSON; it is 'no json'"),
        ({"value": [*GOOD, "1, 2"]}, "is not JSON; it is '1, 2'"),
        ({"value": ["", *GOOD]}, "is not JSON; it is ''"),
        ({"value": [LONG]}, f"it is {LONG[:SHOWN_MAX]!r}… (449 in all)"),
        (
            {"value": ["1", "[" * 200 + "]" * 200]},
            f"column value {WHERE} can't be written: payload must be nested",
        ),
        ({"value": ["1", '"' + "x" * 1_100_000 + '"']}, "one has 1100002; it is '\"xxx"),
        ({"value": ["1", "2"], "partition": ["a", "b" * 300]}, f"column partition {WHERE} can't be written"),
        ({"value": ["1", "2"], "partition": ["a", "b" * 300]}, f"it is {'b' * 80!r}… (300 in all)"),
        ({"value": ["1", "2"], "unique_key": ["a", ""]}, f"column unique_key {WHERE} can't be written"),
        ({"value": ["1", "2"], "priority": [5, 2 * 10**9]}, f"column priority {WHERE} can't be written"),
        ({"value": ["1", "2"], "priority": [5, 2 * 10**9]}, "it is '2000000000'"),
        ({"value": ["1"], "delay_ms": [-1]}, f"column delay_ms {WHERE} can't be written: delay_ms must be"),
        (
            {"value": ["1"], "tags": pa.array([["a", "b" * 300]], TAGS)},
            f"column tags {WHERE} can't be written",
        ),
        (
            {"value": ["1", "2"], "headers": pa.array([None, [("k", "v" * 9_000)]], HEADERS)},
            f"column headers {WHERE} can't be written: headers must be at most 8192 bytes",
        ),
    ],
    ids=lambda each: each[:60] if isinstance(each, str) else "",
)
def test_what_the_server_refuses_is_shown_with_its_column(
    server: Server, columns: dict[str, Any], said: str
) -> None:
    with pytest.raises(BadRows) as caught:
        staged(server, "shown", batch(**columns))
    assert said in str(caught.value)


def test_the_row_is_found_among_many_bodies_under_way(server: Server) -> None:
    texts = [f'"{"x" * 2_000}{at}"' for at in range(3_000)]
    texts[1_500] = "the one that is wrong"
    with pytest.raises(BadRows, match="it is 'the one that is wrong'"):
        staged(server, "many", batch(value=texts))


def test_what_is_not_about_a_row_stays_as_it_is() -> None:
    refused = Refused("stage must be a name", "invalid", {"field": "stage"})
    assert explained(refused, 0, []) is refused


BEYOND = 400_000_000_000_000_000
"""Microseconds up to a day in the year 14645."""
TIME = pa.array([0, None, BEYOND], pa.timestamp("us", "UTC"))
BAD = pa.array([b"good", None, b"\xff"], pa.binary()).view(pa.string())


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (
            {"value": TIME},
            "value has a time beyond the years 1 to 9999: write it as text, cast(value AS string)",
        ),
        ({"id": [1, 2, 3], "at": TIME}, "at has a time beyond"),
        ({"value": pa.StructArray.from_arrays([TIME], ["at"])}, "value.at has a time beyond"),
        ({"value": pa.ListArray.from_arrays([0, 3], TIME)}, "value[] has a time beyond"),
        ({"value": pa.MapArray.from_arrays([0, 1], ["k"], TIME[2:])}, "value[] has a time beyond"),
        ({"value": pa.array([3_000_000], pa.date32())}, "value has a time beyond"),
        ({"value": pa.array([b"1", b"\xff"])}, "value has bytes that are no UTF-8, b'\\xff'"),
        ({"value": pa.StructArray.from_arrays([BAD], ["text"])}, "value.text has bytes that are no UTF-8"),
        ({"value": ["1", "2", "3"], "partition": BAD}, "partition has bytes that are no UTF-8"),
        ({"value": ["1", "2", "3"], "unique_key": BAD}, "unique_key has bytes that are no UTF-8"),
    ],
    ids=lambda each: each[:60] if isinstance(each, str) else "",
)
def test_what_json_can_not_say_is_named(server: Server, columns: dict[str, Any], said: str) -> None:
    with pytest.raises(BadRows) as caught:
        staged(server, "misfit", batch(**columns))
    assert said in str(caught.value)


def test_text_that_is_no_utf8_is_refused_by_the_server(server: Server) -> None:
    with pytest.raises(BadRows, match="column value of a row of task 3 is not JSON"):
        staged(server, "text", batch(value=BAD))


def test_headers_without_a_value_and_tags_that_repeat_are_left_out(server: Server) -> None:
    headers = pa.array([[("a", "1"), ("b", None)], None, [("c", None)]], HEADERS)
    tags = pa.array([["x", "x", None], [], None], TAGS)
    with Link(server.tcp, 1_000) as link:
        gathering = Gathering(StageWriter(link, queue="labels", stage="s", query="q", batch=0), "default")
        gathering.add(batch(value=["1", "2", "3"], headers=headers, tags=tags))
        gathering.finish()
        link.ask("ADOPT", queue="labels", query="q", batch=0, stages=["s"])
        messages = link.ask("POP", queue="labels", count=3, wait_ms=0)["messages"]
    assert [(each["payload"], each.get("headers"), each.get("tags")) for each in messages] == [
        (1, {"a": "1"}, ["x"]),
        (2, None, None),
        (3, None, None),
    ]
