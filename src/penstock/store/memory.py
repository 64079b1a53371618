"""A store that keeps everything in memory and nothing after the process ends."""

from collections.abc import Iterable, Sequence

from penstock.core.records import Commit, Record
from penstock.store.base import Claim, Fenced


class MemoryStore:
    """Records in a dict. For tests, caches, and queues that may be lost."""

    name = "memory:"
    durability = "memory"
    blocking = False

    def __init__(self) -> None:
        self._records: dict[bytes, bytes] = {}
        self._bodies: dict[bytes, bytes] = {}
        self._claims: dict[int, Claim] = {}
        self._shards = 0

    def shards(self, wanted: int) -> int:
        self._shards = self._shards or wanted
        return self._shards

    def claim(self, shard: int) -> Claim:
        last = self._claims.get(shard, Claim(0, 0))
        claim = self._claims[shard] = Claim(last.epoch + 1, last.committed_at)
        return claim

    def commit(self, group: Sequence[Commit]) -> None:
        claims = self._claims
        for commit in group:
            if claims[commit.shard].epoch != commit.epoch:
                raise Fenced(f"shard {commit.shard} was claimed again")
        for commit in group:
            self._records.update(commit.puts)
            self._bodies.update(commit.bodies)
            for key in commit.deletes:
                # A key is either a record's or a body's; deleting what is not there is no error.
                self._records.pop(key, None)
                self._bodies.pop(key, None)
            claims[commit.shard] = Claim(commit.epoch, commit.at)

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self._records.get(key) for key in keys]

    def scan(self, lower: bytes, upper: bytes) -> Iterable[Record]:
        records = self._records
        return [(key, records[key]) for key in sorted(records) if lower <= key < upper]

    def bodies(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self._bodies.get(key) for key in keys]

    def close(self) -> None:
        self._records.clear()
        self._bodies.clear()
