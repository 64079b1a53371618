"""The PostgreSQL store keeps every store's promises, and those of its own."""

from hypothesis import settings

from penstock.store.base import Store
from penstock.store.postgres import PostgresStore
from tests.postgres import cluster
from tests.store.conformance import StoreConformance, StoreMachine


class Databases:
    """Stores in databases of their own, opened again where they were."""

    def make(self) -> Store:
        self.url = cluster().database()
        return PostgresStore(self.url)

    def reopen(self, store: Store) -> Store:
        store.shards(64)  # what has no number of shards yet is not whole
        store.close()
        return PostgresStore(self.url)


class TestPostgres(Databases, StoreConformance):
    pass


class PostgresMachine(Databases, StoreMachine):
    pass


TestPostgresMachine = PostgresMachine.TestCase
# Every example makes a database, and every restart connects again.
TestPostgresMachine.settings = settings(max_examples=20, stateful_step_count=30, deadline=None)
