"""The contract of every store."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from msgspec import Struct

from forebay.core.errors import Damaged
from forebay.core.records.commit import Commit, Record

SHARDS_EMBEDDED = 16
"""Shards of a new store that one process has to itself, unless its operator wants another number."""
SHARDS_SHARED = 64
"""Shards of a new store that several processes can reach."""


class StoreError(Exception):
    """The store could not do it, and why. A commit that was not confirmed may be lost."""


class Fenced(StoreError):
    """Another process has claimed the shard since; nothing was written."""


class Full(StoreError):
    """The disk has no room for a commit: nothing of it was stored. A smaller one may fit."""


class Unknown(StoreError):
    """Whether a commit was stored is unknown; claiming its shards again decides it."""


class Lost(StoreError):
    """An fsync failed: this process must never write to the store again."""


class CantOpen(StoreError):
    """The store can't be opened: why, and what to do about it."""


class Broken(CantOpen):
    """The store can't be opened because it is damaged."""


class Claim(Struct, frozen=True):
    """Ownership of a shard, until the next claim."""

    epoch: int
    """Higher than every epoch before it."""
    committed_at: int
    """Time of the shard's last commit in ms; 0 if it has none."""
    restored: int = 0
    """Names to skip if the shard has not committed since it was restored from a backup."""
    now: int = 0
    """The store's own clock in ms; 0 if it has none."""


class Room(Struct, frozen=True):
    """Room on the disk of a store."""

    free_bytes: int
    """What can still be written, without what is kept back for the case that the disk is full."""


class Arrival(NamedTuple):
    """A message written to the store by another way than a command (SQL), and not pushed yet."""

    number: int
    tenant: str
    queue: str
    payload: str
    """JSON."""
    options: str | None
    """A JSON object, if any."""


@runtime_checkable
class TakesPushes(Protocol):
    """A store that also takes messages by another way than commands."""

    def inbox(self) -> "Arrivals":
        """Return the inbox, for use on the caller's event loop."""

    def left_behind(self) -> tuple[int, int]:
        """Return how many arrivals wait and how many were refused: no copy of the store includes them."""


class Arrivals(Protocol):
    """An inbox of messages that came by another way than a command."""

    async def look(self, most: int, without: Collection[str]) -> list[Arrival]:
        """Return waiting arrivals, oldest first, except those of some queues, each given as TENANT/QUEUE."""

    async def wait(self) -> None:
        """Wait until there may be arrivals. The last ``look`` found none."""

    async def refuse(self, refused: Sequence[tuple[int, str, str]]) -> None:
        """Set aside arrivals that can't be pushed: number, error code and message of each."""

    async def close(self) -> None: ...


class Store(Protocol):
    """Stores records and returns them, without knowing what they mean.

    The contract, which tests/store/conformance.py checks for every store:

    *atomic*    a group of commits is stored completely or not at all
    *durable*   after ``commit(…, sync=True)`` or ``sync`` returns, it survives what ``durability`` says;
                without it, a crash of the process (if the store survives one at all)
    *ordered*   groups apply in call order, and a power loss takes only the last of them
    *fenced*    a commit under an old epoch raises ``Fenced`` and changes nothing

    Damage is never silent: a scan or a get that meets it raises ``Damaged``, and ``bodies`` returns it in
    place of the damaged body.
    """

    name: str
    """The store's name on the command line, such as ``memory:``."""
    durability: str
    """What a synced commit survives: ``memory`` nothing, ``os`` a crash, ``fsync`` power loss."""
    blocking: bool
    """Whether ``commit`` waits for a disk or a network, and so needs a thread."""
    far: bool
    """Whether every call is a network round trip, so that a few large ones beat many small ones."""
    shards_default: int
    """Shards of a new store, unless its operator wants another number."""

    def shards(self, wanted: int) -> int:
        """Return the number of shards: ``wanted`` if the store is new, and fixed from then on."""

    def claim(self, shard: int) -> Claim:
        """Claim a shard: commits under earlier epochs are refused from now on.

        Made durable by the next ``commit`` or ``sync``, and before anything that follows it.
        """

    def commit(self, group: Sequence[Commit], *, sync: bool = True) -> None:
        """Store a group of commits of different shards.

        Within a commit, clears come first, and puts before deletes.
        """

    def sync(self) -> None:
        """Make everything so far survive what ``durability`` says."""

    def room(self, now: float) -> Room | None:
        """Return the room on the disk, None if that can't be told. May tidy up if there is little.

        ``now``: seconds of any clock that never goes back, which tell how long ago it last tidied up.
        """

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of some keys, None for one that is missing. Not for bodies."""

    def scan(self, lower: bytes, upper: bytes) -> Iterable[Record]:
        """Return the records with lower <= key < upper in key order. Not for bodies."""

    def bodies(self, keys: Sequence[bytes]) -> list[bytes | Damaged | None]:
        """Return the bodies of some keys, None for one that was deleted."""

    def backup(self, directory: str) -> None:
        """Copy a snapshot of the store into a directory that does not exist yet."""

    def body_keys(self) -> Iterable[bytes]:
        """Return the keys of all bodies, in order. Ends at a damaged one."""

    def claims(self) -> dict[int, Claim]:
        """Return the last claim of each shard, without claiming anything."""

    def be_copy(self, shards: int, claims: Mapping[int, Claim]) -> None:
        """Become the copy of a store with so many shards and these last claims.

        For a store that has got all records and bodies: from here on it issues no name that the original did.
        """

    def close(self) -> None:
        """Close the store. No call may follow."""
