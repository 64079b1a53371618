"""A Spark session with the right settings: Java, the workers' Python, loopback, state, filters."""

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from forebay.spark.environment import spark_home, write_java_home

SOCKET_HOME_MAX = 60
"""Longest directory, in bytes, for a Unix socket with the name that Spark gives it."""


def session(app: str, master: str = "local[*,4]", **conf: Any) -> SparkSession:
    """Create or return a session; an existing one keeps its settings, except those given.

    ``local[*,4]`` is all cores, and four attempts per task.

    Settings may be given as they are (``**{"spark.sql.shuffle.partitions": 8}``) or with underscores for the
    dots (``spark_sql_shuffle_partitions=8``). They take precedence over those set here.
    """
    home = prepare(master)
    builder = SparkSession.builder.appName(app).master(master)
    settings = {} if SparkSession.getActiveSession() is not None else defaults(master, home)
    settings |= {_dotted(name): value for name, value in conf.items()}
    for name, value in settings.items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel(settings.get("spark.log.level", "ERROR"))
    return made


def _dotted(name: str) -> str:
    return name if "." in name else name.replace("_", ".")


def defaults(master: str, home: Path) -> dict[str, Any]:
    """Return the default settings of a session."""
    found: dict[str, Any] = {
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.warehouse.dir": str(home / "warehouse"),
        "spark.pyspark.python": sys.executable,
    }
    if master.startswith("local"):
        found |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.local.dir": str(home / "local"),
        }
        if len(str(home)) <= SOCKET_HOME_MAX:
            # Unix sockets instead of TCP to the workers: rows pass at least a sixth faster.
            found["spark.python.unix.domain.socket.enabled"] = "true"
            found["spark.python.unix.domain.socket.dir"] = str(home)
    return found


_home: Path | None = None


def prepare(master: str = "local") -> Path:
    """Prepare the environment of Spark, once a process; return a temporary directory of this process."""
    global _home
    if _home is None:
        _home = Path(tempfile.mkdtemp(prefix="forebay-spark-"))
        atexit.register(shutil.rmtree, _home, ignore_errors=True)
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        if master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.setdefault("SPARK_HOME", str(_spark_home(_home)))
        if not os.environ.get("JAVA_HOME") and shutil.which("java") is None:
            os.environ["JAVA_HOME"] = str(write_java_home(_home / "java"))
    return _home


def _spark_home(home: Path) -> Path:
    """Link to the installed Spark without its zipped copy of itself: workers start in half the time."""
    made = home / "home"
    made.mkdir()
    for name in ("bin", "jars", "sbin"):
        (made / name).symlink_to(spark_home() / name)
    return made
