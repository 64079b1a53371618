"""A queue as a stream, and a stream into a queue."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from forebay.spark.options import source_options
from forebay.spark.source import StreamReader
from tests.serving import push
from tests.spark.talking import Place


def batches(query: StreamingQuery) -> list[int]:
    """Rows of each micro-batch that had any."""
    return [each.numInputRows for each in query.recentProgress if each.numInputRows]


def test_a_stream_carries_what_is_there_and_what_comes_later(place: Place, tmp_path: Path) -> None:
    place.push(*range(10))
    place.push(*range(100, 105), partition="eu")
    frame = place.stream().select("value", "partition")
    place.run(frame, tmp_path)
    assert place.log(f"{place.queue}.out") == list(range(10))
    place.push(*range(10, 20))
    place.push("new", partition="late")
    place.run(place.stream().select("value", "partition"), tmp_path)
    assert place.log(f"{place.queue}.out") == list(range(20))
    assert place.log(f"{place.queue}.out", "eu") == list(range(100, 105))
    assert place.log(f"{place.queue}.out", "late") == ["new"]


def test_queue_transform_queue(place: Place, tmp_path: Path) -> None:
    place.push(*({"id": at, "price": at * 1.5} for at in range(10)))
    typed = place.stream(parse="id long, price double")
    dear = typed.where("value.price > 6").selectExpr("struct(value.id, value.price * 2 AS double) AS value")
    place.run(dear, tmp_path)
    assert place.log(f"{place.queue}.out") == [{"id": at, "double": at * 3.0} for at in range(5, 10)]


def test_a_micro_batch_has_no_more_rows_than_it_may(place: Place, tmp_path: Path) -> None:
    place.push(*range(100))
    place.push(*range(50), partition="eu")
    query = place.run(place.stream(maxRowsPerTrigger=40).select("value", "partition"), tmp_path)
    assert batches(query) == [40, 40, 40, 30]
    assert place.log(f"{place.queue}.out") == list(range(100))


def test_a_micro_batch_has_no_more_bytes_than_it_may(place: Place, tmp_path: Path) -> None:
    place.push(*("x" * 98 for _ in range(100)))
    query = place.run(place.stream(maxBytesPerTrigger=2_500).select("value"), tmp_path)
    assert batches(query) == [25, 25, 25, 25]


def test_progress_says_how_far_behind_the_query_is(place: Place, tmp_path: Path) -> None:
    place.push(*range(100))
    query = place.run(place.stream(maxRowsPerTrigger=60).select("value"), tmp_path)
    behind = [json.loads(each.sources[0].latestOffset)["#behind"] for each in query.recentProgress]
    assert [each["rows"] for each in behind[:2]] == [40, 0]
    assert behind[0]["age_ms"] > 0
    assert behind[1]["age_ms"] == 0


def test_a_stream_that_begins_at_the_end_has_what_comes_after(place: Place, tmp_path: Path) -> None:
    place.push(1, 2)
    frame = place.stream(startingOffsets="latest").select("value")
    place.run(frame, tmp_path)
    place.push(3)
    place.run(place.stream(startingOffsets="latest").select("value"), tmp_path)
    assert place.log(f"{place.queue}.out") == [3]


def test_a_pattern_takes_in_queues_that_are_made_later(place: Place, tmp_path: Path) -> None:
    push(place.client, f"{place.queue}.in.a", 1)
    frame = place.stream(queue=f"{place.queue}.in.*").select("value", "queue").selectExpr("value")
    place.run(frame, tmp_path)
    push(place.client, f"{place.queue}.in.b", 2)
    place.run(frame, tmp_path)
    assert place.log(f"{place.queue}.out") == [1, 2]


def test_a_batch_that_is_run_again_is_written_once(place: Place, tmp_path: Path) -> None:
    place.push(*range(30))
    checkpoint, frame = tmp_path / "checkpoint", place.stream(maxRowsPerTrigger=10).select("value")
    place.run(frame, checkpoint)
    place.push("more")
    # As if the driver had died after the sink's commit and before its own.
    lose(checkpoint, 2, "commits")
    query = place.run(place.stream(maxRowsPerTrigger=10).select("value"), checkpoint)
    assert batches(query) == [10, 1]
    assert place.log(f"{place.queue}.out") == [*range(30), "more"]


def lose(checkpoint: Path, batch: int, *kinds: str) -> None:
    """Take what a checkpoint knows of a batch out of it."""
    for kind in kinds:
        (checkpoint / kind / str(batch)).unlink()
        for leftover in (checkpoint / kind).glob(f".{batch}.*"):
            leftover.unlink()


@pytest.mark.parametrize("lost", [[2], [1, 2]], ids=str)
def test_a_checkpoint_that_lost_batches_is_found_out(place: Place, tmp_path: Path, lost: list[int]) -> None:
    place.push(*range(25))
    place.run(place.stream(maxRowsPerTrigger=10).select("value"), tmp_path)
    for batch in lost:
        lose(tmp_path, batch, "offsets", "commits")
    place.push(*range(25, 30))  # so the last batch, planned again, has more rows
    query = place.start(place.stream(maxRowsPerTrigger=10).select("value"), tmp_path)
    said = (
        "was adopted with 5 messages, and has 10 now" if lost == [2] else "is at batch 2, so batch 1 is over"
    )
    with pytest.raises(StreamingQueryException, match=said):
        query.awaitTermination(120)
    assert place.log(f"{place.queue}.out") == list(range(25))
    if lost == [2]:
        frame = place.stream(maxRowsPerTrigger=10).select("value")
        place.run(frame, tmp_path, failOnDataLoss="false")
        assert place.log(f"{place.queue}.out") == list(range(25))


def test_an_old_checkpoint_is_found_out(place: Place, tmp_path: Path) -> None:
    place.push(*range(5))
    checkpoint, old = tmp_path / "checkpoint", tmp_path / "old"
    place.run(place.stream().select("value"), checkpoint)
    shutil.copytree(checkpoint, old)
    identity = json.loads((old / "metadata").read_text())["id"]
    adopt = {"cmd": "ADOPT", "queue": f"{place.queue}.out", "query": identity, "stages": []}
    assert place.client.ask({**adopt, "batch": 1})["ok"]
    lose(old, 0, "commits")
    query = place.start(place.stream().select("value"), old)
    with pytest.raises(StreamingQueryException, match="is over"):
        query.awaitTermination(120)
    assert place.log(f"{place.queue}.out") == list(range(5))


def test_a_late_task_finds_its_batch_over(place: Place, tmp_path: Path) -> None:
    place.push(*range(5))
    query = place.run(place.stream().select("value"), tmp_path)
    late = {"cmd": "STAGE", "queue": f"{place.queue}.out", "query": str(query.id), "batch": 0}
    reply = place.client.ask({**late, "stage": "late", "messages": [1]})
    assert (reply["ok"], reply["error"]["code"]) == (False, "conflict")
    assert place.log(f"{place.queue}.out") == list(range(5))


def test_rows_that_were_dropped_stop_the_query_or_are_passed_over(place: Place, tmp_path: Path) -> None:
    place.push(*range(10))
    place.run(place.stream().select("value"), tmp_path)
    place.push(*range(10, 20))
    place.client.ask({"cmd": "QUEUE", "queue": place.queue, "options": {"completed_retention_ms": 0}})
    asked = {"cmd": "POP", "queue": place.queue, "count": 20, "wait_ms": 0, "compact": True}
    place.client.ask({"cmd": "ACK", "lease": place.client.ask(asked)["lease"]})
    place.client.ask({"cmd": "PURGE", "queue": place.queue, "states": ["completed"]})
    place.push(20)
    query = place.start(place.stream().select("value"), tmp_path)
    with pytest.raises(StreamingQueryException, match="offsets 10 up to 20"):
        query.awaitTermination(120)
    place.run(place.stream(failOnDataLoss="false").select("value"), tmp_path)
    assert place.log(f"{place.queue}.out") == [*range(10), 20]


def test_a_queue_that_was_made_anew_stops_the_query_or_is_read_from_its_beginning(
    place: Place, tmp_path: Path
) -> None:
    place.push(*range(10))
    place.run(place.stream().select("value"), tmp_path)
    place.client.ask({"cmd": "QUEUEDELETE", "force": True, "queue": place.queue})
    place.push(*range(100, 115))
    query = place.start(place.stream().select("value"), tmp_path)
    with pytest.raises(StreamingQueryException, match="was deleted and made again"):
        query.awaitTermination(120)
    place.run(place.stream(failOnDataLoss="false").select("value"), tmp_path)
    assert place.log(f"{place.queue}.out") == [*range(10), *range(100, 115)]


def test_a_stream_of_a_missing_queue_says_so(place: Place, tmp_path: Path) -> None:
    with pytest.raises((StreamingQueryException, PySparkException), match="'there-is-none' is not"):
        place.start(place.stream(queue="there-is-none").select("value"), tmp_path).awaitTermination(120)


@pytest.mark.parametrize(
    ("options", "said"),
    [({"endingOffsets": "latest"}, "endingOffsets"), ({"maxRowsPerTrigger": "0"}, "maxRowsPerTrigger")],
    ids=str,
)
def test_an_option_that_a_stream_can_not_have_is_named(
    place: Place, tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    place.push(1)
    with pytest.raises((StreamingQueryException, PySparkException), match=said):
        place.start(place.stream(**options).select("value"), tmp_path).awaitTermination(120)


def test_the_reader_takes_both_ways_of_asking_for_the_latest_offset(place: Place) -> None:
    place.push(*range(10))
    options = source_options(place.options({"maxRowsPerTrigger": 4}), streaming=True)
    reader = StreamReader(options, place.stream().schema)
    start = reader.initialOffset()
    assert start[place.queue] == {"default": 0}
    assert reader.latestOffset(start, reader.getDefaultReadLimit())[place.queue] == {"default": 4}
    assert reader.latestOffset()[place.queue] == {"default": 8}, "the old way goes on where it was"
    reader.stop()


def test_foreach_batch_writes_once_under_a_name(place: Place, tmp_path: Path) -> None:
    place.push(*range(6))

    def write(frame: Any, batch: int) -> None:
        for _ in range(2):
            place.write(frame.select("value"), queue=f"{place.queue}.out", query="each", batch=batch)

    stream = place.stream(maxRowsPerTrigger=3)
    query = stream.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path))
    query.trigger(availableNow=True).start().awaitTermination(120)
    assert place.log(f"{place.queue}.out") == list(range(6))


@pytest.mark.parametrize(
    ("mode", "said"), [("complete", 'use outputMode("append")'), ("update", "does not support Update mode")]
)
def test_a_stream_only_adds_to_a_queue(place: Place, tmp_path: Path, mode: str, said: str) -> None:
    place.push(1)
    counted = place.stream().groupBy("partition").count()
    given = place.options({"queue": f"{place.queue}.out"})
    writer = counted.writeStream.format("forebay").options(**given).outputMode(mode)
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination(120)
    assert said in str(caught.value)


def test_a_checkpoint_of_another_queue_is_told_from_rows_that_are_gone(place: Place, tmp_path: Path) -> None:
    place.push(1)
    place.run(place.stream().select("value"), tmp_path)
    push(place.client, f"{place.queue}.b", 2)
    query = place.start(place.stream(queue=f"{place.queue}.b").select("value"), tmp_path)
    with pytest.raises(
        StreamingQueryException, match=f"of queue '{place.queue}', which the options leave out"
    ):
        query.awaitTermination(120)
