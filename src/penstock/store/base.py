"""What every store promises."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from msgspec import Struct

from penstock.core.records import Commit, Record


class Fenced(Exception):
    """The shard was claimed by somebody else since; nothing was written."""


class Claim(Struct, frozen=True):
    """A shard is ours, until the next claim."""

    epoch: int
    """Above every epoch before it."""
    committed_at: int
    """Time of the shard's last commit in ms; 0 if there was none."""


class Store(Protocol):
    """Keeps records and hands them back. Knows nothing of what they mean.

    The contract, which tests/store/conformance.py checks for every store:

    *atomic*    a group of commits is there whole or not at all
    *durable*   after ``commit`` returns it survives what ``durability`` says
    *ordered*   groups apply in call order
    *fenced*    a commit under an old epoch raises ``Fenced`` and changes nothing
    """

    name: str
    """How the store is named on the command line, such as ``memory:``."""
    durability: str
    """What a commit survives: ``memory`` nothing, ``os`` a crash of the process, ``fsync`` power loss."""
    blocking: bool
    """Whether ``commit`` waits for a disk or a network and belongs into a thread."""

    def shards(self, wanted: int) -> int:
        """How many shards the store has: ``wanted`` if it is new, for good."""

    def claim(self, shard: int) -> Claim:
        """Take a shard: commits under epochs before the one returned are refused from now on."""

    def commit(self, group: Sequence[Commit]) -> None:
        """Keep a group of commits of different shards."""

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of some keys, bodies excepted."""

    def scan(self, lower: bytes, upper: bytes) -> Iterable[Record]:
        """The records with lower <= key < upper in key order, bodies excepted."""

    def bodies(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The bodies of some keys; None for one that was deleted."""

    def close(self) -> None:
        """Let go of everything. No call may follow."""
