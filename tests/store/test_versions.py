"""The same on every PostgreSQL there is here: the schema, a random life, and what its views say of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres import Cluster, all_binaries, ask_sql, run_sql
from tests.sim.job_drive import JobDriver
from tests.sim.worlds import PostgresWorlds
from tests.store.test_views import compare


@pytest.fixture(params=all_binaries()[1:], ids=lambda path: path.parts[-2], scope="module")
def database(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A server of another version than the one that all other tests use."""
    assert isinstance(request.param, Path)
    made = Cluster(request.param, fsync="off")
    yield made
    made.close()


class Worlds(PostgresWorlds):
    def __init__(self, database: Cluster) -> None:
        super().__init__()
        self._database = database

    def _begin_anew(self) -> None:
        self.url = self._database.database()


def test_a_random_life_and_the_views_of_it_agree_on_other_versions(database: Cluster) -> None:
    worlds = Worlds(database)
    driver, rows = JobDriver(320, worlds.begin_jobs), 0
    for _ in range(3):
        driver.run(150)
        rows += compare(driver.world, worlds.url)
    assert rows > 20
    names = [
        row["viewname"]
        for row in ask_sql(worlds.url, "select viewname from pg_views where schemaname = 'forebay'")
    ]
    for name in names:
        run_sql(worlds.url, f"select * from forebay.{name}")
    run_sql(worlds.url, "select forebay.push('q', '1', '{\"priority\": 1}')")
    assert len(ask_sql(worlds.url, "select * from forebay.inbox")) == 1
    worlds.close()
