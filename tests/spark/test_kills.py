"""Each row arrives once, whatever is killed. ``make crash`` kills more."""

from tests.spark import kills

SEED = 1
AMID = ("worker staging", "worker anytime", "server adopted", "server anytime")
"""Kills that the queries survive."""
ENDS = ("driver adopted", "driver written")
"""Kills that end the driver: when a batch is in the queue, or in Parquet, and Spark has not noted it."""


def test_each_row_arrives_once_in_a_queue_and_in_parquet_whatever_is_killed() -> None:
    # One after the other, because a driver takes long to start.
    figures = kills.run(("queue", "parquet"), (*AMID, *ENDS), SEED)
    assert figures.kills.total() == len(AMID) + len(ENDS)
    assert figures.rows["out"] == figures.rows["parquet"] == figures.pushed
    assert figures.failed_tasks >= 1
    assert figures.repeated >= 2
    assert figures.between >= 1
    assert figures.started_again == 0
