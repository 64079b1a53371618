"""The driver of a test on a cluster: reads a queue as a table and as a stream, and tells what came of it."""

import sys
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import SparkSession

import forebay.spark
from tests.spark.cluster import MEMORY
from tests.spark.driving import JAVA

EXECUTORS_S = 60


class Task(msgspec.Struct):
    """What the driver is told."""

    master: str
    executors: int
    server: str
    home: str


class Outcome(msgspec.Struct):
    """What it says."""

    counts: dict[str, int]
    """Rows of the table, by partition."""
    read: dict[str, int]
    """Tasks of each executor that took part in that."""
    streamed: dict[str, int]
    """Tasks of each executor that took part in the stream."""
    batches: int


def main(task: Task) -> Outcome:
    spark = forebay.spark.session(
        "cluster",
        task.master,
        **{
            "spark.cores.max": task.executors,
            "spark.executor.cores": 1,
            "spark.executor.memory": MEMORY,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": JAVA,
            "spark.executor.extraJavaOptions": JAVA,
            "spark.sql.shuffle.partitions": 2,
            # No task starts before all of them are there.
            "spark.scheduler.minRegisteredResourcesRatio": 1.0,
            "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{EXECUTORS_S}s",
        },
    )
    options = {"server": task.server, "queue": "in", "minPartitions": "8"}
    table = spark.read.format("forebay").options(**options).load()
    counts = {row["partition"]: row["count"] for row in table.groupBy("partition").count().collect()}
    read = _tasks(spark)
    stream = spark.readStream.format("forebay").options(**options, maxRowsPerTrigger="10000").load()
    sink = stream.select("value", "partition").writeStream.format("forebay")
    query = (
        sink.options(server=task.server, queue="out", checkpointLocation=str(Path(task.home) / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    batches = sum(each.numInputRows > 0 for each in query.recentProgress)
    streamed = {name: count - read.get(name, 0) for name, count in _tasks(spark).items()}
    spark.stop()
    return Outcome(counts, read, streamed, batches)


def _tasks(spark: SparkSession) -> dict[str, int]:
    """How many tasks each executor has completed."""
    context: Any = spark.sparkContext._jsc.sc()
    found = context.statusStore().executorList(True)
    listed = [found.apply(at) for at in range(found.size())]
    return {each.id(): each.completedTasks() for each in listed if each.id() != "driver"}


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(main(msgspec.json.decode(sys.argv[1], type=Task))) + b"\n")
