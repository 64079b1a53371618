"""Worlds on a disk: every restart closes the database and opens it again."""

from pathlib import Path

from penstock.store.base import Store
from penstock.store.rocks import RocksStore
from tests.sim.job_steps import JobWorld
from tests.sim.stage_drive import StageDriver
from tests.sim.world import SHARDS, World


class RocksWorlds:
    """Makes one world after another, each in a directory of its own."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._made = 0
        self._store: Store | None = None

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
        self._made += 1
        self._store = RocksStore(self._directory)
        self._store.shards(SHARDS)
        return self._store

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    @property
    def _directory(self) -> Path:
        return self._home / str(self._made)

    def _reopen(self, store: Store) -> Store:
        assert store is self._store
        self.close()
        self._store = RocksStore(self._directory)
        return self._store
