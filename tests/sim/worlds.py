"""Worlds that outlive their process: every restart closes the store and opens it again."""

from pathlib import Path

from forebay.store.base import Store
from forebay.store.postgres.store import PostgresStore
from forebay.store.rocksdb.store import RocksStore
from tests.postgres import cluster
from tests.sim.job_steps import JobWorld
from tests.sim.stage_drive import StageDriver
from tests.sim.world import SHARDS, World


class Worlds:
    """Makes one world after another, each in a store of its own."""

    def __init__(self) -> None:
        self.store: Store | None = None

    def begin(self) -> World:
        """A world in which nothing has happened; the one before it is over."""
        return World(self._make(), self._reopen)

    def begin_jobs(self) -> JobWorld:
        """The same with jobs."""
        return JobWorld(self._make(), self._reopen)

    def begin_stages(self, seed: int) -> StageDriver:
        """A life of stages."""
        return StageDriver(seed, self._make(), self._reopen)

    def _make(self) -> Store:
        self.close()
        self._begin_anew()
        self.store = self._open()
        self.store.shards(SHARDS)
        return self.store

    def _begin_anew(self) -> None:
        """What is opened next is empty."""
        raise NotImplementedError

    def _open(self) -> Store:
        raise NotImplementedError

    def _reopen(self, store: Store) -> Store:
        assert store is self.store
        self.close()
        self.store = self._open()
        return self.store

    def close(self) -> None:
        if self.store is not None:
            self.store.close()
            self.store = None


class RocksWorlds(Worlds):
    """Worlds on a disk."""

    def __init__(self, home: Path) -> None:
        super().__init__()
        self._home = home
        self._made = 0

    def _begin_anew(self) -> None:
        self._made += 1

    def _open(self) -> Store:
        return RocksStore(self._home / str(self._made))


class PostgresWorlds(Worlds):
    """Worlds in a database."""

    url = ""

    def _begin_anew(self) -> None:
        self.url = cluster().database()

    def _open(self) -> Store:
        return PostgresStore(self.url)
