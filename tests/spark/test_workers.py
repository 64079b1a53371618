"""What a Python worker of Spark need not do."""

import subprocess
import sys

import pytest

from forebay.spark.worker_path import leave_out_spark_core

SPARK_CORE = "/spark/jars/spark-core_2.13-4.3.0.jar"


def test_the_jar_of_spark_is_taken_off_the_path_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    others = ["/lib", "/spark/jars/graphframes.jar", "/spark/jars/spark-core_2.13-4.3.0.jar.d"]
    path = [others[0], SPARK_CORE, *others[1:]]
    monkeypatch.setattr(sys, "path", path)
    cache = dict.fromkeys([*path, f"{SPARK_CORE}/org"])
    monkeypatch.setattr(sys, "path_importer_cache", cache)
    leave_out_spark_core()
    assert sys.path is path, "others hold it, too"
    assert path == others
    assert list(cache) == others


READ = """
import sys
import pyarrow as pa
from forebay.spark.columns import Batches, Parser
from forebay.spark.link import Run
kind = pa.struct([("a", pa.int64())])
text = pa.string()
names = {"tenant": text, "partition": text, "offset": pa.int64(), "value": kind, "_corrupt": text}
body = memoryview(bytes([0, 0, 0, 0, 7, 0, 0, 0]) + b'{"a":1}')
batch = Batches(pa.schema(names), "q", "p", Parser(kind)).batch([Run(0, 0, 0, 1, body)])
assert batch.to_pylist()[0]["value"] == {"a": 1}
sys.exit("pandas" in sys.modules)
"""


def test_pandas_is_not_imported_to_read() -> None:
    """It takes a worker longer to import than everything else."""
    subprocess.run([sys.executable, "-c", READ], check=True, timeout=60)
