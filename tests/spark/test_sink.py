"""Rows become messages."""

from typing import Any

import pytest
from pyspark.errors import PySparkException

from tests.spark.talking import Place


def failure(work: Any) -> str:
    with pytest.raises(PySparkException) as caught:
        work()
    return str(caught.value)


def staged(place: Place, queue: str | None = None) -> int:
    """Stages that are left of a queue: what can be staged and dropped, but not seen."""
    reply = place.client.ask({"cmd": "QUEUE", "queue": queue or place.queue})
    count: int = reply["staged"]["stages"]
    return count


def test_a_column_of_json_is_written_as_it_is(place: Place) -> None:
    frame = place.spark.createDataFrame([('{"a": 1}',), ("[2]",), ("null",), (None,)], "value string")
    place.write(frame.coalesce(1))
    assert place.log() == [{"a": 1}, [2], None, None]
    assert staged(place) == 0


def test_a_struct_becomes_json(place: Place) -> None:
    frame = place.spark.sql(
        "SELECT named_struct('id', id, 'name', concat('n', id), 'tags', array('x'), 'm', map('k', 1), "
        "'price', cast(1.50 as decimal(10,2)), 'none', cast(null as string)) AS value FROM range(3)"
    )
    place.write(frame.coalesce(1))
    assert place.log() == [
        {"id": at, "name": f"n{at}", "tags": ["x"], "m": {"k": 1}, "price": 1.5, "none": None}
        for at in range(3)
    ]


def test_without_a_column_value_all_columns_make_up_an_object(place: Place) -> None:
    place.write(place.spark.sql("SELECT id, 'x' AS name, 5 AS priority FROM range(2)").coalesce(1))
    assert place.log() == [{"id": 0, "name": "x"}, {"id": 1, "name": "x"}]
    asked = {"cmd": "POP", "queue": place.queue, "count": 5, "wait_ms": 0, "compact": True}
    (run,) = place.client.ask(asked)["runs"]
    assert run["priority"] == 5


def test_rows_go_where_and_when_their_columns_say(place: Place) -> None:
    rows = [
        ("1", "a", 0, 0, None, ["x"]),
        ("2", "b", 5, 0, {"k": "v"}, None),
        ("3", "a", 5, 0, None, ["x", "y"]),
        ("4", None, 0, 3_600_000, {"k": "w"}, None),
        ("5", "a", 0, 0, {"k": "v"}, ["z"]),
    ]
    kinds = (
        "value string, partition string, priority int, delay_ms long, headers map<string,string>, "
        "tags array<string>"
    )
    place.write(place.spark.createDataFrame(rows, kinds).coalesce(1), partition="rest")
    assert [place.log(partition=name) for name in ("a", "b", "rest")] == [[1, 3, 5], [2], [4]]
    asked = {"cmd": "POP", "queue": place.queue, "count": 9, "wait_ms": 0}
    messages = place.client.ask(asked)["messages"]
    assert {
        (each["payload"], each["priority"], each.get("headers", {}).get("k"), "".join(each.get("tags", [])))
        for each in messages
    } == {
        (1, 0, None, "x"),
        (2, 5, "v", ""),
        (3, 5, None, "xy"),
        (5, 0, "v", "z"),
    }
    counts = place.client.ask({"cmd": "GROUP", "queue": place.queue})["counts"]
    assert (counts["active"], counts["delayed"]) == (4, 1)


def test_a_unique_key_that_is_held_is_not_pushed_again(place: Place) -> None:
    rows = [("1", "k1"), ("2", "k2"), ("3", "k1"), ("4", None)]
    frame = place.spark.createDataFrame(rows, "value string, unique_key string")
    place.write(frame.coalesce(1))
    place.write(frame.coalesce(1))
    assert place.log() == [1, 2, 4, 4]


def test_many_rows_of_many_tasks_are_all_there_in_the_order_of_the_tasks(place: Place) -> None:
    frame = place.spark.range(0, 50_000, 1, 6).selectExpr("""concat('{"n":', id, '}') AS value""")
    place.write(frame)
    assert [each["n"] for each in place.log()] == list(range(50_000))
    assert staged(place) == 0


def test_rows_of_many_partitions_keep_their_order_in_each(place: Place) -> None:
    columns = ("cast(id AS string) AS value", "concat('p', id % 3) AS partition")
    frame = place.spark.range(0, 30_000, 1, 1).selectExpr(*columns)
    place.write(frame)
    for at in range(3):
        assert place.log(partition=f"p{at}") == list(range(at, 30_000, 3))


def test_a_row_larger_than_a_segment_is_written(place: Place) -> None:
    place.write(place.spark.sql("SELECT to_json(struct(repeat('x', 600000) AS text)) AS value"))
    assert len(place.log()[0]["text"]) == 600_000


def test_nothing_is_written_of_a_write_that_fails(place: Place) -> None:
    place.push("before")
    frame = place.spark.range(0, 20_000, 1, 4).selectExpr("if(id = 19999, '{', cast(id AS string)) AS value")
    said = failure(lambda: place.write(frame))
    assert "is not JSON" in said
    assert "struct" in said
    assert place.log() == ["before"]


def test_a_write_under_a_name_is_made_once(place: Place) -> None:
    frame = place.spark.range(5).selectExpr("cast(id AS string) AS value").coalesce(1)
    place.write(frame, query="nightly", batch=1)
    place.write(frame, query="nightly", batch=1)
    assert place.log() == [0, 1, 2, 3, 4]
    place.write(frame, query="nightly", batch=2)
    assert place.log() == [0, 1, 2, 3, 4] * 2
    assert "adopted with 5 messages, and has 4 now" in failure(
        lambda: place.write(frame.limit(4), query="nightly", batch=2)
    )
    assert "so batch 1 is over" in failure(lambda: place.write(frame, query="nightly", batch=1))
    for rows in (4, 0):
        place.write(frame.limit(rows), query="nightly", batch=2, failOnDataLoss=False)
    assert place.log() == [0, 1, 2, 3, 4] * 2
    assert staged(place) == 0


def test_what_an_earlier_run_staged_makes_room_for_the_next(place: Place) -> None:
    left = {"cmd": "STAGE", "queue": place.queue, "query": "nightly", "batch": 1, "run": 1}
    keys = [f"k{number}" for number in range(10_000)]
    for number in range(15):
        reply = place.client.ask(
            {**left, "stage": f"left {number}", "messages": [1] * 10_000, "unique_keys": keys}
        )
        assert reply["ok"], reply
    frame = place.spark.range(60_000).selectExpr(
        "cast(id AS string) AS value", "cast(id AS string) AS unique_key"
    )
    place.write(frame.coalesce(1), query="nightly", batch=1)
    assert len(place.log()) == 60_000
    assert staged(place) == 0


def test_an_empty_frame_writes_nothing(place: Place) -> None:
    place.push("before")
    place.write(place.spark.range(0).selectExpr("cast(id AS string) AS value"))
    assert place.log() == ["before"]


def test_what_can_only_be_added_to_is_not_overwritten(place: Place) -> None:
    frame = place.spark.sql("SELECT '1' AS value")
    assert "append" in failure(lambda: place.write(frame, mode="overwrite"))


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("'1' AS value, 5 AS colour", "drop colour"),
        ("5 AS priority", "column value"),
        ("'1' AS value, 'x' AS priority", "column priority must be"),
        ("'1' AS value, 5 AS partition", "column partition must be string"),
        ("'no json' AS value", "is not JSON; it is 'no json'"),
        ("'1, 2' AS value", "is not JSON"),
        ("'1' AS value, '' AS partition", "partition must be"),
        ("'1' AS value, 2000000000 AS priority", "priority must be"),
    ],
)
def test_rows_that_can_not_be_messages_are_refused(place: Place, columns: str, said: str) -> None:
    place.push("before")
    frame = place.spark.sql(f"SELECT {columns}")
    assert said in failure(lambda: place.write(frame))
    assert place.log() == ["before"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"queue": "a,b"}, 'option "queue"'),
        ({"queue": "a*"}, 'option "queue"'),
        ({"queue": "x 1/2"}, 'option "queue"'),
        ({"query": "q"}, 'option "query"'),
        ({"durability": "memory"}, 'option "durability"'),
        ({"server": "tcp://127.0.0.1:1", "retryMs": 100}, 'correct option "server"'),
        ({"partitions": "x"}, "did you mean partition"),
    ],
    ids=str,
)
def test_an_error_names_the_option(place: Place, options: dict[str, Any], said: str) -> None:
    frame = place.spark.sql("SELECT '1' AS value")
    assert said in failure(lambda: place.write(frame, **options))


def test_a_failed_task_is_tried_again_and_leaves_nothing_behind(place: Place, tmp_path: Any) -> None:
    flag = str(tmp_path / "failed")

    def once(rows: Any) -> Any:
        from pathlib import Path

        yield from rows
        if not Path(flag).exists():
            Path(flag).touch()
            raise RuntimeError("this task fails once, after its rows")

    frame = place.spark.range(0, 3_000, 1, 2).selectExpr("cast(id AS string) AS value")
    place.write(frame.mapInPandas(once, "value string"))
    assert place.log() == list(range(3_000))
    assert staged(place) == 0
