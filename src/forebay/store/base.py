"""What every store promises."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from msgspec import Struct

from forebay.core.errors import Damaged
from forebay.core.records.commit import Commit, Record


class StoreError(Exception):
    """The store can't do what was asked, and why. What was not confirmed may not be kept."""


class Fenced(StoreError):
    """The shard was claimed by somebody else since; nothing was written."""


class Unknown(StoreError):
    """Nobody can say yet whether a commit was kept; claiming its shards again settles it."""


class Lost(StoreError):
    """The store failed in a way after which this process must never write it again: a sync failed."""


class CantOpen(StoreError):
    """The store can't be opened, why, and what to do about it."""


class Broken(CantOpen):
    """The store can't be opened because it is damaged."""


class Claim(Struct, frozen=True):
    """A shard is ours, until the next claim."""

    epoch: int
    """Above every epoch before it."""
    committed_at: int
    """Time of the shard's last commit in ms; 0 if there was none."""
    restored: int = 0
    """Names to pass over if the shard has not committed since it came back from a backup."""
    now: int = 0
    """What time it is for the store, in ms; 0 if it has no clock of its own."""


class Arrival(NamedTuple):
    """A message that came into the store by another way than a command, and waits to be pushed."""

    number: int
    tenant: str
    queue: str
    payload: str
    """JSON."""
    options: str | None
    """A JSON object, if there are any."""


@runtime_checkable
class TakesPushes(Protocol):
    """A store into which messages come by another way, too."""

    def inbox(self) -> "Arrivals":
        """Where they wait; for the loop that asks."""

    def left_behind(self) -> tuple[int, int]:
        """How many of them wait, and how many were refused: they are no part of what is kept."""


class Arrivals(Protocol):
    """Where messages wait that came by another way."""

    async def look(self, most: int, without: Collection[str]) -> list[Arrival]:
        """What waits, the oldest first, but for some queues, each given as TENANT/QUEUE."""

    async def wait(self) -> None:
        """Wait until there may be something. There was nothing when it was last looked."""

    async def refuse(self, refused: Sequence[tuple[int, str, str]]) -> None:
        """Put aside what can't be pushed: number, code and why of each."""

    async def close(self) -> None: ...


class Store(Protocol):
    """Keeps records and hands them back. Knows nothing of what they mean.

    The contract, which tests/store/conformance.py checks for every store:

    *atomic*    a group of commits is there whole or not at all
    *durable*   after ``commit(…, sync=True)`` or ``sync`` returns, it survives what ``durability`` says;
                without it, a crash of the process (if the store survives one at all)
    *ordered*   groups apply in call order, and what a power loss takes is the end of them
    *fenced*    a commit under an old epoch raises ``Fenced`` and changes nothing

    Damage is never passed over in silence: a scan or a get that meets it raises ``Damaged``, and ``bodies``
    has it in the place of the one body it concerns.
    """

    name: str
    """How the store is named on the command line, such as ``memory:``."""
    durability: str
    """What a synced commit survives: ``memory`` nothing, ``os`` a crash, ``fsync`` power loss."""
    blocking: bool
    """Whether ``commit`` waits for a disk or a network and belongs into a thread."""
    far: bool
    """Whether every question takes a way through a network, so that a few large ones are better than many."""

    def shards(self, wanted: int) -> int:
        """How many shards the store has: ``wanted`` if it is new, for good."""

    def claim(self, shard: int) -> Claim:
        """Take a shard: commits under epochs before the one returned are refused from now on.

        Synced with the next commit or ``sync``, and before anything that follows it.
        """

    def commit(self, group: Sequence[Commit], *, sync: bool = True) -> None:
        """Keep a group of commits of different shards. Within a commit, clears come first, and puts
        before deletes."""

    def sync(self) -> None:
        """Make everything so far survive what ``durability`` says."""

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of some keys, bodies excepted."""

    def scan(self, lower: bytes, upper: bytes) -> Iterable[Record]:
        """The records with lower <= key < upper in key order, bodies excepted."""

    def bodies(self, keys: Sequence[bytes]) -> list[bytes | Damaged | None]:
        """The bodies of some keys; None for one that was deleted."""

    def backup(self, directory: str) -> None:
        """Copy all of it, as it is at one instant, into a directory that does not exist yet."""

    def body_keys(self) -> Iterable[bytes]:
        """The key of every body, in order. It ends at one that is damaged."""

    def claims(self) -> dict[int, Claim]:
        """What every shard was last claimed under; nothing is claimed."""

    def be_copy(self, shards: int, claims: Mapping[int, Claim]) -> None:
        """Be the copy of a store with so many shards, each last claimed and committed like this.

        For a store that has records and bodies alone: from here on it gives out no name that the other did.
        """

    def close(self) -> None:
        """Let go of everything. No call may follow."""
