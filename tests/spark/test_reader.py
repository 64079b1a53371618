"""What a stream does when its partitions change under it: the driver's side, without a query."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.types import StructType

from forebay.spark.options import source_options
from forebay.spark.source import BatchReader, DataLoss, StreamReader, Task
from tests.serving import Raw, Server, push

SCHEMA = StructType.fromJson(
    {"type": "struct", "fields": [{"name": "value", "type": "string", "nullable": True, "metadata": {}}]}
)


READERS: list[StreamReader] = []
"""Those of the test that runs."""


class Stream:
    """A reader of a queue, and Spark's part: it keeps the offsets."""

    def __init__(self, server: Server, queue: str, **options: Any) -> None:
        given = {"server": f"tcp://{server.tcp}", "queue": queue, "columns": "value", "retryMs": "1000"}
        self.options = source_options(given | {name: str(value) for name, value in options.items()})
        self.reader = StreamReader(self.options, SCHEMA)
        READERS.append(self.reader)
        self.start = self.reader.initialOffset()

    def plan(self) -> tuple[dict[str, Any], list[Task]]:
        end = self.reader.latestOffset(self.start, self.reader.getDefaultReadLimit())
        return end, self.reader.partitions(self.start, end)

    def rows(self, tasks: list[Task]) -> list[str]:
        return [
            row for task in tasks for batch in self.reader.read(task) for row in batch.column(0).to_pylist()
        ]

    def step(self) -> list[str]:
        """One micro-batch."""
        end, tasks = self.plan()
        found = self.rows(tasks)
        self.start = end
        return found

    def restarted(self) -> "Stream":
        """The same query in another process: only its checkpoint is left."""
        again = object.__new__(Stream)
        again.options, again.start = self.options, self.start
        again.reader = StreamReader(self.options, SCHEMA)
        READERS.append(again.reader)
        return again


@pytest.fixture
def client(server: Server) -> Iterator[Raw]:
    with server.connect() as connection:
        yield connection
    while READERS:
        READERS.pop().stop()


def remade(client: Raw, queue: str, *payloads: Any) -> None:
    assert client.ask({"cmd": "QUEUEDELETE", "force": True, "queue": queue})["ok"]
    push(client, queue, *payloads)


def emptied(client: Raw, queue: str, count: int) -> None:
    """Drop so many messages from the beginning of a queue."""
    client.ask({"cmd": "QUEUE", "queue": queue, "options": {"completed_retention_ms": 0}})
    popped = client.ask({"cmd": "POP", "queue": queue, "count": count, "wait_ms": 0, "compact": True})
    client.ask({"cmd": "ACK", "lease": popped["lease"]})
    client.ask({"cmd": "PURGE", "queue": queue, "states": ["completed"]})


def test_a_partition_that_was_read_to_its_end_may_go_and_come_back(server: Server, client: Raw) -> None:
    push(client, "back-a", 1, 2)
    push(client, "back-b", 10)
    stream = Stream(server, "back-*")
    assert stream.step() == ["1", "2", "10"]
    client.ask({"cmd": "QUEUEDELETE", "force": True, "queue": "back-a"})
    push(client, "back-b", 11)
    assert stream.step() == ["11"]
    push(client, "back-a", 3, 4, 5)
    assert stream.step() == ["3", "4", "5"], "all of the new one"
    remade(client, "back-a", 6)
    assert stream.step() == ["6"], "also if it went and came between two looks"


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_partition_that_goes_unread_is_data_loss(server: Server, client: Raw, comes_back: bool) -> None:
    queue = f"unread-{comes_back}"
    push(client, queue, *range(10))
    stream = Stream(server, f"{queue}*", maxRowsPerTrigger=5)
    assert len(stream.step()) == 5
    if comes_back:
        remade(client, queue, "new")
    else:
        client.ask({"cmd": "QUEUEDELETE", "force": True, "queue": queue})
    with pytest.raises(DataLoss, match=f"queue '{queue}'"):
        stream.step()
    going_on = Stream(server, f"{queue}*", failOnDataLoss="false")
    going_on.start = stream.start
    assert going_on.step() == (['"new"'] if comes_back else [])


def test_nobody_knows_what_was_read_of_a_partition_that_went_while_the_query_was_down(
    server: Server, client: Raw
) -> None:
    push(client, "down", 1)
    stream = Stream(server, "down*")
    assert stream.step() == ["1"]
    client.ask({"cmd": "QUEUEDELETE", "force": True, "queue": "down"})
    with pytest.raises(DataLoss, match="was removed"):
        stream.restarted().step()


def test_a_log_that_ends_before_what_was_reached_is_data_loss(server: Server, client: Raw) -> None:
    push(client, "shorter", *range(10))
    stream = Stream(server, "shorter")
    stream.step()
    stream.start["shorter"]["default"] = 1_000
    with pytest.raises(DataLoss, match="ends at 10"):
        stream.step()


def test_a_batch_run_again_misses_what_was_dropped_of_a_new_partition(server: Server, client: Raw) -> None:
    push(client, "new-a", 1)
    stream = Stream(server, "new-*")
    stream.step()
    push(client, "new-b", *range(10))
    end, tasks = stream.plan()
    assert stream.rows(tasks) == [str(each) for each in range(10)]
    emptied(client, "new-b", 10)
    with pytest.raises(DataLoss, match="offsets 0 up to 10"):
        stream.restarted().reader.partitions(stream.start, end)


def test_a_partition_trimmed_before_it_was_seen_begins_where_it_does(server: Server, client: Raw) -> None:
    push(client, "trimmed-a", 1)
    stream = Stream(server, "trimmed-*")
    stream.step()
    push(client, "trimmed-b", *range(10))
    emptied(client, "trimmed-b", 10)
    push(client, "trimmed-b", "left")
    assert stream.step() == ['"left"']


def test_a_query_that_ends_with_what_is_there_minds_no_partitions_that_come_later(
    server: Server, client: Raw
) -> None:
    push(client, "ends", 1)
    stream = Stream(server, "ends")
    stream.reader.prepareForTriggerAvailableNow()
    assert stream.step() == ["1"]
    before = stream.start
    for at in range(3):
        push(client, "ends", at, partition=f"later-{at}")
        assert stream.step() == []
    assert {**stream.start, "#new": None} == {**before, "#new": None}


def test_a_task_reads_no_rows_of_a_partition_that_was_made_again(server: Server, client: Raw) -> None:
    push(client, "anew", *range(5))
    for options in ({}, {"failOnDataLoss": "false"}):
        stream = Stream(server, "anew", **options)
        end, tasks = stream.plan()
        assert end["anew"] == {"default": 5}
        remade(client, "anew", *range(100, 105))
        if options:
            assert stream.rows(tasks) == []
        else:
            with pytest.raises(DataLoss, match="offsets 0 up to 5"):
                stream.rows(tasks)


def test_a_server_that_allows_small_batches_only_is_read_in_those() -> None:
    with Server("--batch-max", "100") as server, server.connect() as client:
        for at in range(0, 500, 100):
            push(client, "small", *range(at, at + 100))
        stream = Stream(server, "small")
        assert stream.step() == [str(each) for each in range(500)]
        stream.reader.stop()


def test_an_offset_from_the_progress_is_one_to_start_from(server: Server, client: Raw) -> None:
    push(client, "progress", *range(5))
    stream = Stream(server, "progress", maxRowsPerTrigger=3)
    stream.step()
    for offsets in (stream.start, {**stream.start, "#behind": {"rows": 1, "age_ms": 2}}):
        given = {"server": f"tcp://{server.tcp}", "queue": "progress", "columns": "value"}
        options = source_options({**given, "startingOffsets": json.dumps(offsets)}, streaming=False)
        reader = BatchReader(options, SCHEMA)
        (task,) = reader.partitions()
        assert [row for batch in reader.read(task) for row in batch.column(0).to_pylist()] == ["3", "4"]


def test_a_stream_may_begin_at_what_the_progress_of_another_shows(server: Server, client: Raw) -> None:
    push(client, "progress-shown", 1, 2)
    stream = Stream(server, "progress-shown")
    stream.step()
    push(client, "progress-shown", 3)
    shown = stream.reader.reportLatestOffset()
    assert shown["#behind"]["rows"] == 1
    push(client, "progress-shown", 4)
    assert Stream(server, "progress-shown", startingOffsets=json.dumps(shown)).step() == ["4"]
