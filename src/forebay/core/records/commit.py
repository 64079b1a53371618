"""A commit: what one shard wants stored, all of it or nothing."""

from collections.abc import Callable, Iterable

from msgspec import Struct

Record = tuple[bytes, bytes]


class Commit(Struct, gc=False):
    """What one shard wants stored, all or nothing."""

    shard: int
    epoch: int
    """The epoch the shard was claimed under; the store refuses an older one."""
    at: int
    """The time of the commit, in ms."""
    puts: list[Record]
    deletes: list[bytes]
    bodies: list[Record]
    """Segment bodies, apart because they are large and only ever read by name."""
    ranges: list[tuple[bytes, bytes]] = []
    """Key ranges to delete, upper bound excluded; bodies are not among them."""
    body_ranges: list[tuple[bytes, bytes]] = []
    """Ranges of bodies to delete, upper bound excluded."""
    clears: list[tuple[bytes, bytes]] = []
    """Like ``ranges``, but applied before anything else of the commit."""

    @property
    def is_empty(self) -> bool:
        return not (
            self.puts or self.deletes or self.bodies or self.ranges or self.body_ranges or self.clears
        )


Scan = Callable[[bytes, bytes], Iterable[Record]]
"""Reads records between two keys, upper bound excluded, in key order."""
