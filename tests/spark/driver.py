"""The driver of streaming queries that are killed: a program of its own, which tells how far it is.

It reads the queue ``in`` and writes to the queue ``out``, to Parquet, or to both. It prints a line of JSON
when it has started, for each micro-batch and at its end. A line on its standard input has it stop its queries
and read what is left; the end of its standard input ends it.
"""

import os
import select
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession, functions as F
from pyspark.sql.streaming.query import StreamingQuery

import forebay.spark
from tests.spark.driving import JAVA, Given, Line, Rows

POLL_S = 0.05
SPARKS_RACE = "IllegalStateException: Illegal size"
"""Spark copies the settings of a session into a task while another of its queries changes them: its own race,
seen when two queries start beside a busy machine. Nothing of ours has run by then."""
TRIES = 3
"""How often a query is started again that fails without a single micro-batch in between."""
AT_THE_END = 1_000_000
"""Rows of a micro-batch of a query that reads what is left."""


class Driver:
    def __init__(self, given: Given) -> None:
        self._given = given
        self._home = Path(given.home)
        self._spark = session()
        self._queries: dict[str, StreamingQuery] = {}
        self._told: dict[str, int] = {}
        self._tries: dict[str, int] = {}
        self._failed: dict[int, int] = {}
        """Failed tasks of each of Spark's stages."""

    def run(self) -> None:
        for name in self._given.into:
            self._start(name)
        say(Line(is_started=True))
        while self._queries:
            for name in list(self._queries):
                self._look_at(name)
            ready, _, _ = select.select([sys.stdin], [], [], POLL_S)
            if ready:
                if not sys.stdin.readline():
                    os._exit(1)
                self._end()
        found = _parquet(self._spark, self._home) if "parquet" in self._given.into else []
        say(Line(is_over=True, failed_tasks=self._failed_tasks(), found=found))
        self._spark.stop()

    def _start(self, name: str) -> None:
        self._queries[name] = start(self._spark, self._given, name)

    def _look_at(self, name: str) -> None:
        """Tell how far a query is; one that ended is forgotten, or started again if it failed."""
        query = self._queries[name]
        is_active = query.isActive
        progress = query.lastProgress
        if progress is not None and progress.batchId > self._told.get(name, -1):
            self._told[name] = progress.batchId
            self._tries[name] = 0
            say(Line(query=name, batch=progress.batchId, failed_tasks=self._failed_tasks()))
        if is_active:
            return
        error = query.exception()
        if error is None:
            del self._queries[name]
            return
        self._fail(name, error)

    def _fail(self, name: str, error: StreamingQueryException) -> None:
        tries = self._tries[name] = self._tries.get(name, 0) + 1
        starts_again = self._given.starts_again or SPARKS_RACE in str(error)
        is_over = not starts_again or tries > TRIES
        say(Line(query=name, failure=str(error), is_over=is_over, failed_tasks=self._failed_tasks()))
        if is_over:
            os._exit(1)
        self._start(name)

    def _end(self) -> None:
        """Stop wherever the queries are, and have what is left read in large micro-batches."""
        self._given.is_last = True
        for name, query in self._queries.items():
            query.stop()
            self._queries[name] = start(self._spark, self._given, name)

    def _failed_tasks(self) -> int:
        tracker = self._spark.sparkContext.statusTracker()
        stage = max(max(self._failed, default=0) - len(self._given.into), 0)
        while (info := tracker.getStageInfo(stage)) is not None:
            self._failed[stage] = info.numFailedTasks
            stage += 1
        return sum(self._failed.values())


def session() -> SparkSession:
    settings = {
        "spark.sql.shuffle.partitions": 2,
        "spark.driver.extraJavaOptions": f"{JAVA} -Djava.io.tmpdir={tempfile.gettempdir()}",
    }
    return forebay.spark.session("kills", "local[2,4]", **settings)


def start(spark: SparkSession, given: Given, name: str) -> StreamingQuery:
    """A query from the queue ``in``, on its checkpoint."""
    source = spark.readStream.format("forebay").options(
        server=given.source,
        queue="in",
        columns="partition,offset,value",
        minPartitions="3",
        maxRowsPerTrigger=str(AT_THE_END if given.is_last else given.rows),
    )
    home = Path(given.home)
    if name == "queue":
        rows = source.load().select("value", "partition")
        sink = rows.writeStream.format("forebay").options(server=given.sink, queue="out")
    else:
        sink = source.load().writeStream.format("parquet").option("path", str(home / "parquet"))
    sink = sink.option("checkpointLocation", str(home / f"checkpoint-{name}")).queryName(name)
    return (sink.trigger(availableNow=True) if given.is_last else sink).start()


def _parquet(spark: SparkSession, home: Path) -> list[Rows]:
    number = F.get_json_object("value", "$.n").cast("long")
    place = F.get_json_object("value", "$.p")
    is_right = (number == F.col("offset")) & (place == F.col("partition"))
    by_partition = spark.read.parquet(str(home / "parquet")).groupBy("partition")
    found = by_partition.agg(
        F.count("*").alias("rows"),
        F.countDistinct("offset").alias("distinct"),
        F.max("offset").alias("last"),
        F.count_if(is_right).alias("right"),
    )
    return [Rows(**row.asDict()) for row in found.collect()]


def say(line: Any) -> None:
    sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    Driver(msgspec.json.decode(sys.argv[1], type=Given)).run()
