"""One Spark session and one server for all tests here: each takes seconds to start."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from pyspark.sql import SparkSession

import forebay.spark
from tests.serving import Server
from tests.spark.talking import Place

# The same examples on every run, however fast the machine is.
settings.register_profile(
    "spark", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("spark")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = forebay.spark.session("tests", "local[2,4]", spark_sql_shuffle_partitions=2)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.fixture
def place(spark: SparkSession, server: Server, request: pytest.FixtureRequest) -> Iterator[Place]:
    """A queue of the test's own."""
    name = "".join(each if each.isalnum() else "-" for each in request.node.name)[:200]
    with server.connect() as client:
        yield Place(spark, f"tcp://{server.tcp}", client, name)
