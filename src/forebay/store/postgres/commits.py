"""Claims and commits in PostgreSQL: the fence, versions of keys, retries after a lost connection."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice
from typing import NamedTuple, TypeVar

from forebay.core.records.commit import Commit
from forebay.core.records.keyspace import arrival_of, is_body
from forebay.store.base import Claim, Fenced, Full, StoreError, Unknown
from forebay.store.postgres.session import DISK_FULL, Again, Gone, Refused, Session, Unreachable

T = TypeVar("T")
PATIENCE_S = 3.0
"""How long a commit or a read is retried while the database is unreachable."""
WAIT_S = (0.01, 0.25)
"""Backoff between two tries: first and longest."""
STREAM_BYTES = 1024 * 1024
"""Bytes of bodies above which they are sent ahead of their commit by COPY."""
KNOWN_MAX = 50_000
"""Keys whose last version is cached."""
SKIP = 4096
"""Names to skip when the database has lost commits, and with them names that were issued."""
FENCE = "commits_pkey"
"""The constraint that refuses a commit number that is taken."""
CLAIMED, LOST = "PS001", "PS002"
"""SQLSTATEs with which our functions refuse a commit."""


class Changes(NamedTuple):
    """A group of commits as the array arguments of ``forebay.commit``."""

    keys: list[bytes]
    lows: list[int]
    values: list[bytes]
    deletes: list[bytes]
    body_keys: list[bytes]
    bodies: list[bytes]
    body_deletes: list[bytes]
    clear_lows: list[bytes]
    clear_highs: list[bytes]
    range_lows: list[bytes]
    range_highs: list[bytes]
    body_range_lows: list[bytes]
    body_range_highs: list[bytes]


Fence = tuple[list[int], list[int], list[int], list[int], int, int, str, bool]
"""Shards, their epochs, numbers and times; version, restored, node and whether to fsync."""


class Keeper:
    """Claims shards and commits, over one session."""

    def __init__(self, session: Session, node: str) -> None:
        """``node`` names this process to people who look at the database."""
        self.session = session
        self._node = node
        self._epochs: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        """Last commit number of each claimed shard."""
        self._version = 0
        self._known: dict[bytes, int] = {}
        """Versions of the keys that were put last."""
        self._robbed: set[int] = set()
        """Shards of which the database has lost commits since they were claimed."""
        self.restored = 0
        """How often the store was restored."""

    async def claim(self, shard: int) -> Claim:
        least = self._epochs.get(shard, 0)
        row = await patiently(lambda: self.session.row("claim", shard, least, self._node))
        assert row is not None
        epoch, number, version, at, passed, now = row
        # A claim takes the next number. One at or below our own last means that the database came back
        # without commits it had confirmed (a failover to a lagging replica): their names must not be issued
        # again.
        if number <= self._numbers.get(shard, 0):
            self._robbed.add(shard)
        self._epochs[shard], self._numbers[shard] = epoch, number
        self._version = max(self._version, version)
        self._known.clear()  # another owner may have put any of these keys in between
        if shard in self._robbed:
            passed = max(passed, SKIP)
        return Claim(epoch, at, passed, now)

    async def commit(self, group: Sequence[Commit], sync: bool) -> None:
        for commit in group:
            if commit.shard not in self._epochs:
                await self._recall(commit.shard)
            if self._epochs.get(commit.shard) != commit.epoch:
                raise Fenced(f"shard {commit.shard} was claimed again")
        if not group:
            return
        # In the order of shards: two writers that fence the same shards can't deadlock.
        group = sorted(group, key=lambda each: each.shard)
        shards, epochs = [each.shard for each in group], [each.epoch for each in group]
        numbers, version = [self._numbers[shard] + 1 for shard in shards], self._version + 1
        ats = [each.at for each in group]
        fence: Fence = (shards, epochs, numbers, ats, version, self.restored, self._node, sync)
        changes, arrivals = self._changes(group)
        is_large = sum(map(len, changes.bodies)) > STREAM_BYTES

        # Idempotent: every try has the same numbers, so at most one of them gets through the fence.
        async def attempt() -> None:
            try:
                if is_large or arrivals:
                    await self._keep_in_steps(fence, version, changes, arrivals, is_large)
                else:
                    await self.session.value("commit", *fence, *changes)
            except Refused as error:
                await self._look_up(error, shards, epochs, numbers)

        await patiently(attempt, is_commit=True)
        self._version = version
        self._numbers.update(zip(shards, numbers, strict=True))
        self._robbed.difference_update(shards)
        self._remember(changes, version)

    def last(self) -> tuple[int, int, str]:
        """Return the highest version and number, and the name of this process."""
        return self._version, max(self._numbers.values(), default=1), self._node

    async def _recall(self, shard: int) -> None:
        """Load the last claim of a shard that this process has not claimed itself."""
        row = await patiently(lambda: self.session.row("last", shard))
        if row is not None:
            self._epochs[shard], self._numbers[shard] = row[0], row[1]
            self._version = max(self._version, row[2])

    async def _keep_in_steps(
        self, fence: Fence, version: int, changes: Changes, arrivals: list[int], is_large: bool
    ) -> None:
        async with self.session.transaction():
            await self.session.value("fence", *fence)
            # The arrivals are deleted in the commit that appends their messages: exactly once, or not at all.
            if arrivals and await self.session.value("take", arrivals) != len(arrivals):
                raise Fenced("what arrived was taken by somebody else")
            if is_large:
                await self.session.value("delete_bodies", changes.body_keys)
                rows = list(zip(changes.body_keys, changes.bodies, strict=True))
                await self.session.copy("bodies", ("key", "body"), rows)
                changes = changes._replace(body_keys=[], bodies=[])
            await self.session.value("apply", version, *changes)

    async def _look_up(
        self, error: Refused, shards: list[int], epochs: list[int], numbers: list[int]
    ) -> None:
        """Return if an earlier try of a refused commit was stored after all, else raise the reason."""
        if error.constraint == FENCE:
            # The number is taken: by this very epoch if the first try was committed and only its reply was
            # lost.
            if await self.session.value("kept", shards, epochs, numbers) == len(shards):
                return
            raise Fenced("a shard was claimed again") from None
        if error.state == CLAIMED:
            raise Fenced(str(error)) from None
        if error.state == LOST:
            self._robbed |= self._epochs.keys()
        raise error

    def _changes(self, group: Iterable[Commit]) -> tuple[Changes, list[int]]:
        """Return what the commits change, as columns, and the numbers of the arrivals that they take."""
        puts: dict[bytes, bytes] = {}
        bodies: dict[bytes, bytes] = {}
        deletes: list[bytes] = []
        body_deletes: list[bytes] = []
        arrivals: list[int] = []
        clears, ranges, body_ranges = [], [], []
        for commit in group:
            puts.update(commit.puts)
            bodies.update(commit.bodies)
            for key in commit.deletes:
                if is_body(key):
                    body_deletes.append(key)
                elif (number := arrival_of(key)) is not None:
                    arrivals.append(number)
                else:
                    deletes.append(key)
            clears += commit.clears
            ranges += commit.ranges
            body_ranges += commit.body_ranges
        # The version of the row that a put replaces, 0 if unknown. With it, the row is found by its exact
        # primary key instead of among thousands of dead rows that a long transaction keeps alive.
        known = self._known.get
        changes = Changes(
            list(puts),
            [known(key, 0) for key in puts],
            list(puts.values()),
            deletes,
            list(bodies),
            list(bodies.values()),
            body_deletes,
            *_columns(clears),
            *_columns(ranges),
            *_columns(body_ranges),
        )
        return changes, arrivals

    def _remember(self, changes: Changes, version: int) -> None:
        known = self._known
        for key in (*changes.keys, *changes.deletes):
            known.pop(key, None)
        known.update(dict.fromkeys(changes.keys, version))
        # Evict the keys put longest ago: those put all the time stay.
        for key in list(islice(known, max(len(known) - KNOWN_MAX, 0))):
            del known[key]


def _columns(bounds: list[tuple[bytes, bytes]]) -> tuple[list[bytes], list[bytes]]:
    return [low for low, _ in bounds], [high for _, high in bounds]


async def patiently(attempt: Callable[[], Awaitable[T]], *, is_commit: bool = False) -> T:
    """Retry ``attempt`` with backoff while the database is unreachable, for at most PATIENCE_S."""
    loop = asyncio.get_running_loop()
    deadline, wait = loop.time() + PATIENCE_S, WAIT_S[0]
    is_open = False
    """Whether a try may have been committed: its connection was lost before the reply."""
    while True:
        try:
            return await attempt()
        except Refused as error:
            refused = Full if error.state == DISK_FULL else StoreError
            raise (Unknown if is_open else refused)(str(error)) from None
        except (Gone, Again) as error:
            is_open = is_open or (
                is_commit and isinstance(error, Gone) and not isinstance(error, Unreachable)
            )
            if loop.time() > deadline:
                kind = Unknown if is_open else StoreError
                raise kind(f"the database can't be reached: {error}") from None
        await asyncio.sleep(wait)
        wait = min(2 * wait, WAIT_S[1])
