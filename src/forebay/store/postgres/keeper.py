"""Claims and commits in PostgreSQL: the fence, versions of keys, retries of a broken connection."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice
from typing import NamedTuple, TypeVar

from forebay.core.records.commit import Commit
from forebay.core.records.keyspace import arrival_of, is_body
from forebay.store.base import Claim, Fenced, StoreError, Unknown
from forebay.store.postgres.session import Again, Gone, Refused, Session, Unreachable

T = TypeVar("T")
PATIENCE_S = 3.0
"""How long a commit or a read waits for a database that is away before it gives up."""
WAIT_S = (0.01, 0.25)
"""How long to wait before the next try: at first, and at most."""
STREAM_BYTES = 1024 * 1024
"""Bytes of bodies above which they go ahead of their commit as a stream."""
KNOWN_MAX = 50_000
"""Keys whose last version is remembered."""
SKIP = 4096
"""Names to pass over when the database has lost some that were given out."""
FENCE = "commits_pkey"
"""What is in the way of a number that is taken."""
CLAIMED, LOST = "PS001", "PS002"
"""States in which our functions refuse a commit."""


class Changes(NamedTuple):
    """A group of commits as the columns that go to the database."""

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
"""Shards, their epochs, numbers and times; version, restored, node and whether to sync."""


class Keeper:
    """Claims shards and keeps commits, over one session."""

    def __init__(self, session: Session, node: str) -> None:
        """``node`` names this process to people who look at the database."""
        self.session = session
        self._node = node
        self._epochs: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        """The last commit number of each shard that was claimed."""
        self._version = 0
        self._known: dict[bytes, int] = {}
        """The version of keys that were put lately."""
        self._robbed: set[int] = set()
        """Shards of which the database has lost commits since they were claimed."""
        self.restored = 0
        """How often the store was restored."""

    async def claim(self, shard: int) -> Claim:
        least = self._epochs.get(shard, 0)
        row = await patiently(lambda: self.session.row("claim", shard, least, self._node))
        assert row is not None
        epoch, number, version, at, passed, now = row
        if number <= self._numbers.get(shard, 0):
            self._robbed.add(shard)
        self._epochs[shard], self._numbers[shard] = epoch, number
        self._version = max(self._version, version)
        self._known.clear()  # who owned the shard meanwhile may have put any of them
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
        group = sorted(group, key=lambda each: each.shard)
        shards, epochs = [each.shard for each in group], [each.epoch for each in group]
        numbers, version = [self._numbers[shard] + 1 for shard in shards], self._version + 1
        ats = [each.at for each in group]
        fence: Fence = (shards, epochs, numbers, ats, version, self.restored, self._node, sync)
        changes, arrivals = self._changes(group)
        is_large = sum(map(len, changes.bodies)) > STREAM_BYTES

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
        """The highest version and number there are, and the name of this process."""
        return self._version, max(self._numbers.values(), default=1), self._node

    async def _recall(self, shard: int) -> None:
        """Who claimed a shard that this process has not claimed itself."""
        row = await patiently(lambda: self.session.row("last", shard))
        if row is not None:
            self._epochs[shard], self._numbers[shard] = row[0], row[1]
            self._version = max(self._version, row[2])

    async def _keep_in_steps(
        self, fence: Fence, version: int, changes: Changes, arrivals: list[int], is_large: bool
    ) -> None:
        async with self.session.transaction():
            await self.session.value("fence", *fence)
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
        """Whether a commit that was refused was kept by an earlier try; raise what it means if not."""
        if error.constraint == FENCE:
            if await self.session.value("kept", shards, epochs, numbers) == len(shards):
                return
            raise Fenced("a shard was claimed again") from None
        if error.state == CLAIMED:
            raise Fenced(str(error)) from None
        if error.state == LOST:
            self._robbed |= self._epochs.keys()
        raise error

    def _changes(self, group: Iterable[Commit]) -> tuple[Changes, list[int]]:
        """What the commits change of what is kept here, and which arrivals they take."""
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
        # Those put longest ago go first: what is put all the time stays.
        for key in list(islice(known, max(len(known) - KNOWN_MAX, 0))):
            del known[key]


def _columns(bounds: list[tuple[bytes, bytes]]) -> tuple[list[bytes], list[bytes]]:
    return [low for low, _ in bounds], [high for _, high in bounds]


async def patiently(attempt: Callable[[], Awaitable[T]], *, is_commit: bool = False) -> T:
    """Try until it is done, as long as the database is only away for a moment."""
    loop = asyncio.get_running_loop()
    deadline, wait = loop.time() + PATIENCE_S, WAIT_S[0]
    is_open = False
    """Whether some try may have been carried out after all."""
    while True:
        try:
            return await attempt()
        except Refused as error:
            raise (Unknown if is_open else StoreError)(str(error)) from None
        except (Gone, Again) as error:
            is_open = is_open or (
                is_commit and isinstance(error, Gone) and not isinstance(error, Unreachable)
            )
            if loop.time() > deadline:
                kind = Unknown if is_open else StoreError
                raise kind(f"the database can't be reached: {error}") from None
        await asyncio.sleep(wait)
        wait = min(2 * wait, WAIT_S[1])
