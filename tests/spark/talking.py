"""Short words for what tests of the source and the sink say often."""

import json
import struct
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.serving import Raw, push


class Place:
    """A queue, a client that fills it, and Spark that looks at it."""

    def __init__(self, spark: SparkSession, server: str, client: Raw, queue: str) -> None:
        self.spark = spark
        self.server = server
        self.client = client
        self.queue = queue

    def push(self, *payloads: Any, partition: str = "default", **fields: Any) -> None:
        push(self.client, self.queue, *payloads, partition=partition, **fields)

    def options(self, given: dict[str, Any]) -> dict[str, str]:
        return {
            "server": self.server,
            "queue": self.queue,
            **{name: str(each) for name, each in given.items()},
        }

    def table(self, **options: Any) -> DataFrame:
        return self.spark.read.format("forebay").options(**self.options(options)).load()

    def stream(self, **options: Any) -> DataFrame:
        return self.spark.readStream.format("forebay").options(**self.options(options)).load()

    def write(self, frame: DataFrame, mode: str = "append", **options: Any) -> None:
        frame.write.format("forebay").options(**self.options(options)).mode(mode).save()

    def start(self, frame: DataFrame, checkpoint: Path, **options: Any) -> StreamingQuery:
        """A query that writes what there is to the queue ``out`` of this one, and ends."""
        given = self.options({"queue": f"{self.queue}.out", **options})
        writer = frame.writeStream.format("forebay").options(**given)
        return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()

    def run(self, frame: DataFrame, checkpoint: Path, **options: Any) -> StreamingQuery:
        query = self.start(frame, checkpoint, **options)
        query.awaitTermination(120)
        assert query.exception() is None, query.exception()
        return query

    def log(self, queue: str | None = None, partition: str = "default") -> list[Any]:
        """Every message of a partition, in the order of the log."""
        return log_of(self.client, queue or self.queue, partition)


def log_of(client: Raw, queue: str, partition: str = "default") -> list[Any]:
    """Every message of a partition, in the order of the log."""
    found: list[Any] = []
    at = 0
    while True:
        asked = {"cmd": "READ", "queue": queue, "partition": partition, "offset": at, "max_count": 100_000}
        reply = client.ask(asked)
        assert reply["ok"], reply
        for run in reply["runs"]:
            found += run["payloads"]
        at = reply["next"]
        if at >= reply["end"]:
            return found


def values(frame: DataFrame) -> list[Any]:
    """The payloads of a table, by partition and offset."""
    return [json.loads(row["value"]) for row in frame.orderBy("queue", "partition", "offset").collect()]


def packed_body(*payloads: bytes) -> bytes:
    """Payloads as a body."""
    ends = [0]
    for payload in payloads:
        ends.append(ends[-1] + len(payload))
    return struct.pack(f"<{len(ends)}i", *ends) + b"".join(payloads)
