"""What the Spark source and sink reach, beside the least a source can do and beside Spark's own JSON.

    python -m bench.spark [--rows 5000000]

Each figure is the best of three, taken in turns in one run: machines are shared, ratios are not.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from tests.serving import Raw, Server

import forebay.spark
from bench.spark_toy import Toy, payload
from forebay.client.raw import Wire

PARTITIONS = 4
PUSHED = 10_000
TYPED = "o long, p int, k string, t long, v string"
TURNS = 3
LITTLE = 20
"""Micro-batches of a little data each."""


def to_noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def best(ways: dict[str, Callable[[], None]], turns: int = TURNS) -> dict[str, float]:
    """Seconds of each way at its best, after one turn that does not count."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(turns + 1):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            if turn:
                found[name].append(time.perf_counter() - began)
    return {name: min(each) for name, each in found.items()}


def fill(client: Raw, rows: int) -> None:
    for partition in range(PARTITIONS):
        for first in range(0, rows, PUSHED):
            texts = ",".join(payload(row, partition) for row in range(first, min(first + PUSHED, rows)))
            head = f'"cmd": "PUSH", "queue": "bench", "partition": "p{partition}"'
            client.send_frame(f'{{{head}, "messages": [{texts}]}}'.encode())
            assert client.receive()["ok"]


def little(spark: SparkSession, server: str, address: str) -> list[float]:
    """How long micro-batches take that have ten rows each, queue to queue, in ms."""
    source = spark.readStream.format("forebay").option("server", server).option("queue", "little")
    with Wire(address) as wire, tempfile.TemporaryDirectory() as checkpoint:
        wire.ask("PUSH", queue="little", messages=[1] * 10)
        query = (
            source.load()
            .select("value", "partition")
            .writeStream.format("forebay")
            .option("server", server)
            .option("queue", "little.out")
            .option("checkpointLocation", checkpoint)
            .start()
        )
        query.processAllAvailable()
        for _ in range(LITTLE):
            wire.ask("PUSH", queue="little", messages=[1] * 10)
            query.processAllAvailable()
        query.stop()
        took = [each.durationMs["triggerExecution"] for each in query.recentProgress if each.numInputRows > 0]
    return [float(each) for each in took[3:]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    rows = parser.parse_args().rows
    each = rows // PARTITIONS
    toy = subprocess.Popen(
        [sys.executable, "-m", "bench.spark_toy", str(each), str(PARTITIONS)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        with Server() as server:
            print(f"filling a queue with {rows:,} messages", file=sys.stderr)
            with server.connect() as client:
                fill(client, each)
            assert toy.stdout is not None
            run(server.tcp, toy.stdout.readline().strip(), rows, each)
    finally:
        toy.kill()
        toy.wait()


def run(address: str, toy_port: str, rows: int, each: int) -> None:
    server = f"tcp://{address}"
    spark = forebay.spark.session("bench", "local[2,4]")
    spark.dataSource.register(Toy)

    def source(**options: Any) -> DataFrame:
        reader = spark.read.format("forebay").option("server", server).option("queue", "bench")
        return reader.options(**options).load()

    def toy() -> DataFrame:
        reader = spark.read.format("toy").option("port", toy_port)
        return reader.option("rows", str(each)).option("partitions", str(PARTITIONS)).load()

    def sink() -> None:
        at = "1700000000000 + id"
        text = f"""concat('{{"o":', id, ',"p":1,"k":"k', id % 1000, '","t":', {at}, ',"v":"00000000"}}')"""
        frame = spark.range(0, rows // 2, 1, 4).selectExpr(f"{text} as value")
        out = frame.write.format("forebay").option("server", server).option("queue", "bench.out")
        out.mode("append").save()

    took = best(
        {
            "toy": lambda: to_noop(toy()),
            "raw": lambda: to_noop(source()),
            "lean": lambda: to_noop(source(columns="partition,offset,value")),
            "typed": lambda: to_noop(source(columns="value", parse=TYPED)),
            "from_json": lambda: to_noop(source(columns="value").selectExpr(f"from_json(value, '{TYPED}')")),
            "sink": sink,
        }
    )
    rate = {name: rows / seconds / 1000 for name, seconds in took.items()}
    rate["sink"] /= 2
    waits = sorted(little(spark, server, address))
    spark.stop()
    toy_rate, json_rate = rate["toy"], rate["from_json"]
    lines = [
        ("source, raw, all ten columns", rate["raw"], f"{rate['raw'] / toy_rate:5.2f} of the toy"),
        ("source, raw, three columns as the toy", rate["lean"], f"{rate['lean'] / toy_rate:5.2f} of the toy"),
        ("toy source over a bare TCP server", toy_rate, ""),
        ("source, typed by parse", rate["typed"], f"{rate['typed'] / json_rate:5.2f} of from_json"),
        ("source, raw, then from_json", json_rate, ""),
        ("sink", rate["sink"], ""),
    ]
    for what, krows, beside in lines:
        print(f"{what:42}{krows:8.0f} krows/s   {beside}")
    print(f"{'micro-batch of 10 rows, queue to queue':42}{statistics.median(waits):8.0f} ms median")


if __name__ == "__main__":
    # The workers of Spark look for the toy, too.
    os.environ["PYTHONPATH"] = str(Path(__file__).parent.parent)
    main()
