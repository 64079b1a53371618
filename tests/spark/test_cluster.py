"""The source and the sink on executors that are processes of their own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.serving import Server, push
from tests.spark import processes
from tests.spark.cluster import Cluster
from tests.spark.driving import ROOT, environment
from tests.spark.talking import log_of

ROWS = {"a": 30_000, "b": 5_000, "c": 1}
PATIENCE_S = 240


def test_executors_on_a_cluster_read_a_queue_and_write_to_another_once(tmp_path: Path) -> None:
    with Server() as server, server.connect() as client, Cluster(tmp_path, workers=2) as cluster:
        for partition, rows in ROWS.items():
            push(client, "in", *range(rows), partition=partition)
        task = {
            "master": cluster.master,
            "executors": 2,
            "server": f"tcp://{server.tcp}",
            "home": str(tmp_path),
        }
        outcome = _driven(task, tmp_path, cluster)
        assert outcome["counts"] == ROWS
        assert outcome["batches"] == 4
        for took_part in (outcome["read"], outcome["streamed"]):
            assert len(took_part) == 2
            assert min(took_part.values()) > 0
        for partition, rows in ROWS.items():
            assert log_of(client, "out", partition) == list(range(rows))


def _driven(task: dict[str, Any], home: Path, cluster: Cluster) -> dict[str, Any]:
    """What the driver says; it is a process, because a session of this one may be at work elsewhere."""
    with (home / "driver-log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.clustered", json.dumps(task)],
            cwd=ROOT,
            env=environment(home),
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    try:
        said, _ = process.communicate(timeout=PATIENCE_S)
    finally:
        for each in processes.of_session(process.pid):
            processes.kill(each.pid)
        process.communicate()
    told = (home / "driver-log").read_text(errors="replace")
    assert process.returncode == 0, f"{told[-4_000:]}\n{cluster.log()[-4_000:]}"
    outcome: dict[str, Any] = json.loads(said)
    return outcome
