"""A store in memory, lost when the process ends."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

from forebay.core.errors import Damaged
from forebay.core.records.commit import Commit, Record
from forebay.store.base import SHARDS_EMBEDDED, Claim, Fenced, StoreError


class MemoryStore:
    """Records in a dict. For tests, caches, and queues that may be lost."""

    name = "memory:"
    durability = "memory"
    blocking = False
    far = False
    shards_default = SHARDS_EMBEDDED

    def __init__(self, first_epoch: int = 0) -> None:
        """``first_epoch`` differs between processes, so that no lease of an earlier one is valid."""
        self._first_epoch = first_epoch
        self._records: dict[bytes, bytes] = {}
        self._bodies: dict[bytes, bytes] = {}
        self._epochs: dict[int, int] = {}
        self._committed_at: dict[int, int] = {}
        self._shards = 0
        self._sorted: list[bytes] | None = None
        """The keys of the records in order; None after a change."""

    def shards(self, wanted: int) -> int:
        self._shards = self._shards or wanted
        return self._shards

    def room(self, now: float) -> None:
        return None

    def claim(self, shard: int) -> Claim:
        self._epochs[shard] = epoch = self._epochs.get(shard, self._first_epoch) + 1
        return Claim(epoch, self._committed_at.get(shard, 0))

    def commit(self, group: Sequence[Commit], *, sync: bool = True) -> None:
        for commit in group:
            if self._epochs.get(commit.shard) != commit.epoch:
                raise Fenced(f"shard {commit.shard} was claimed again")
        self._sorted = None
        for commit in group:
            for lower, upper in commit.clears:
                for key in [key for key in self._records if lower <= key < upper]:
                    del self._records[key]
            self._records.update(commit.puts)
            self._bodies.update(commit.bodies)
            for key in commit.deletes:
                # A key belongs either to a record or to a body; deleting a missing one is no error.
                self._records.pop(key, None)
                self._bodies.pop(key, None)
            for lower, upper in commit.ranges:
                for key in [key for key in self._records if lower <= key < upper]:
                    del self._records[key]
            for lower, upper in commit.body_ranges:
                for key in [key for key in self._bodies if lower <= key < upper]:
                    del self._bodies[key]
            self._committed_at[commit.shard] = commit.at

    def sync(self) -> None:
        pass

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self._records.get(key) for key in keys]

    def scan(self, lower: bytes, upper: bytes) -> Iterable[Record]:
        if self._sorted is None:
            self._sorted = sorted(self._records)
        keys = self._sorted[bisect_left(self._sorted, lower) : bisect_left(self._sorted, upper)]
        return [(key, self._records[key]) for key in keys]

    def bodies(self, keys: Sequence[bytes]) -> list[bytes | Damaged | None]:
        return [self._bodies.get(key) for key in keys]

    def backup(self, directory: str) -> None:
        raise StoreError("a store in memory has nothing to back up")

    def body_keys(self) -> Iterable[bytes]:
        return sorted(self._bodies)

    def claims(self) -> dict[int, Claim]:
        return {
            shard: Claim(epoch, self._committed_at.get(shard, 0)) for shard, epoch in self._epochs.items()
        }

    def be_copy(self, shards: int, claims: Mapping[int, Claim]) -> None:
        self._shards = shards
        self._epochs = {shard: claim.epoch for shard, claim in claims.items()}
        self._committed_at = {shard: claim.committed_at for shard, claim in claims.items()}

    def close(self) -> None:
        self._records.clear()
        self._bodies.clear()
