"""The shared store: PostgreSQL 14 or later, in the schema ``forebay`` of a database of yours.

    records, bodies   what is kept, by key; no row of them is ever updated
    commits           the fence: a commit inserts (shard, number), and a claim is itself a commit

A commit is one statement, and so one round trip and one transaction: a function of the database gets all of
it as arrays. Only large bodies go ahead of it as a stream, in a transaction of six round trips.

**The fence.** Numbers of a shard follow each other without a gap, and each is inserted once, ever: that is a
primary key. Whoever claims a shard takes the next number, so the owner before can't take it, at any isolation
level, however long it was paused. If a number that should be there is missing, the database has lost what it
had confirmed, and nothing is built on top of that.

**A connection that breaks amid a commit** leaves its fate open. The same commit is tried again, under the
same number: either nobody has that number, and it is kept now; or it is found to be its own, and was kept
before. The insert waits for the first try if that is still under way.

A key that is put again and again, such as a cursor, gets a new row each time under a higher version. The
store remembers the versions it put last, so that the row before is found by its exact name.
"""

import asyncio
import logging
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from forebay.core.errors import Damaged
from forebay.core.records.commit import Commit, Record
from forebay.core.records.keyspace import arrival_of, is_body
from forebay.store.base import CantOpen, Claim, Fenced, StoreError, Unknown
from forebay.store.format import FORMAT, OLDEST, Format
from forebay.store.inbox import Inbox
from forebay.store.migrate import SERVE, migrate, missing
from forebay.store.pg import (
    MAY_NOT,
    PLANS,
    Again,
    Blocking,
    DatabaseError,
    Gone,
    Refused,
    Session,
    Unreachable,
    shown,
)
from forebay.store.sql import Migration

logger = logging.getLogger("forebay.store")

T = TypeVar("T")

PATIENCE_S = 3.0
"""How long a commit or a read waits for a database that is away before it gives up."""
WAIT_S = (0.01, 0.25)
"""How long to wait before the next try: at first, and at most."""
STREAM_BYTES = 1024 * 1024
"""Bytes of bodies above which they go ahead of their commit as a stream."""
PAGE = 5_000
"""Records read in one round trip."""
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


@asynccontextmanager
async def _opening(name: str) -> AsyncIterator[None]:
    """What is wrong with a database that can't be opened, and what to do about it."""
    try:
        yield
    except Refused as error:
        may_not = error.state == MAY_NOT
        hint = "; have a role that may do so run: forebay migrate" if may_not else ""
        raise CantOpen(f"{name} can't be opened: {error}{hint}") from None
    except DatabaseError as error:
        raise CantOpen(
            f"{name} can't be reached: {error}; is it running, and is the address right?"
        ) from None


def migrate_at(url: str, *, only_look: bool = False) -> list[Migration]:
    """Bring the schema of a database up to date; the steps that were missing."""
    blocking, session = Blocking(), Session(url, name="forebay migrate")

    async def work() -> list[Migration]:
        try:
            async with _opening(shown(url)):
                return await (missing(session) if only_look else migrate(session))
        finally:
            await session.close()

    try:
        return blocking.run(work())
    finally:
        blocking.close()


class PostgresStore:
    """Records and bodies in a database, which this process alone serves."""

    blocking = True
    far = True

    def __init__(self, url: str, *, node: str = "", alone: bool = True, only_look: bool = False) -> None:
        """Open the database, and bring its schema up to date; ``CantOpen`` says why that can't be.

        ``alone``: nobody else may serve it meanwhile. ``only_look``: the schema is left as it is.
        """
        self.name = shown(url)
        self.durability = "fsync"
        self._url = url
        self._blocking, self._reading = Blocking(), Blocking()
        self._alone = alone
        self._backend: tuple[int, object] | None = None
        self._writer = Session(url, name="forebay", settings=PLANS)
        self._reader = Session(url, name="forebay reader", settings=PLANS)
        self._keeper = Keeper(self._writer, node)
        self._format: Format | None = None
        try:
            self._blocking.run(self._open(only_look))
        except BaseException:
            self.close()
            raise

    async def _open(self, only_look: bool) -> None:
        async with _opening(self.name):
            if not only_look:
                await migrate(self._writer)
            elif await missing(self._writer):
                raise CantOpen(f"{self.name} has no data, or of an older version: forebay migrate")
            if self._alone and not await self._lock():
                raise CantOpen(
                    f"{self.name} is in use by another server; stop that one, or use another database"
                )
            await self._note_backend()
            self._writer.opened = self._opened
            await self._check_settings()
            row = await self._writer.row("format")
            if row is None and await self._writer.value("has_records"):
                raise CantOpen(
                    f"{self.name} has a copy that was not finished: copy again, after"
                    " drop schema forebay cascade"
                )
        self._take_format(row)

    async def _lock(self) -> bool:
        """Whether nobody else serves the database. A server that was just killed may take a moment to go."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_S
        while not await self._writer.value("try_lock", SERVE):
            if loop.time() > deadline:
                return False
            await asyncio.sleep(WAIT_S[1] / 5)
        return True

    async def _check_settings(self) -> None:
        about = await self._writer.row("about")
        assert about is not None
        _, fsync, synchronous, read_only = about
        if read_only == "on":
            raise CantOpen(f"{self.name} can only be read: is it a standby? A server needs the primary")
        if fsync == "off" or synchronous == "off":
            self.durability = "os"
            which = "fsync" if fsync == "off" else "synchronous_commit"
            logger.warning("%s is off in %s: what is confirmed does not survive power loss", which, self.name)

    def _take_format(self, row: Sequence[Any] | None) -> None:
        if row is None:
            return
        format, shards, restored, skip = row
        if not OLDEST <= format <= FORMAT:
            raise CantOpen(
                f"{self.name} is in format {format}, and this version reads formats {OLDEST} to {FORMAT}: "
                f"run the version of Forebay that wrote it, or a newer one"
            )
        self._format = Format(shards, restored, skip, format)
        self._keeper.restored = restored

    async def _opened(self) -> None:
        """A new connection, after one was lost: the database is still ours alone, or there is none."""
        if self._alone and not await self._writer.value("try_lock", SERVE):
            if self._backend is not None:
                # The database has not noticed yet that the old connection is gone.
                await self._writer.fetch("end_backend", *self._backend)
            raise Gone("another server has it open")
        await self._note_backend()
        logger.warning("connected again to %s", self.name)

    async def _note_backend(self) -> None:
        row = await self._writer.row("backend")
        assert row is not None
        self._backend = (row[0], row[1])

    # Claims.

    def shards(self, wanted: int) -> int:
        if self._format is None or self._format.format < FORMAT:
            self._take_format(self._ask(lambda: self._writer.row("set_format", FORMAT, wanted, 0, 0)))
        assert self._format is not None
        return self._format.shards

    def made_with(self) -> int:
        """The number of shards of a store that was opened before."""
        if self._format is None:
            raise CantOpen(f"{self.name} has no data: no server was ever started on it")
        return self._format.shards

    def claim(self, shard: int) -> Claim:
        return self._blocking.run(self._keeper.claim(shard))

    # Committing.

    def commit(self, group: Sequence[Commit], *, sync: bool = True) -> None:
        self._blocking.run(self._keeper.commit(group, sync))

    def sync(self) -> None:
        self._ask(lambda: self._writer.value("flush"))

    def _ask(self, attempt: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return self._blocking.run(patiently(attempt))

    # Reading.

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found = dict(self._read("get", list(keys))) if keys else {}
        return [found.get(key) for key in keys]

    def scan(self, lower: bytes, upper: bytes) -> Iterator[Record]:
        while lower < upper:
            page = self._read("scan", lower, upper, PAGE)
            for row in page:
                yield (row[0], row[1])
            if len(page) < PAGE:
                return
            lower = page[-1][0] + b"\0"

    def bodies(self, keys: Sequence[bytes]) -> list[bytes | Damaged | None]:
        found: dict[bytes, bytes] = dict(self._read("bodies", list(keys))) if keys else {}
        return [found.get(key) for key in keys]

    def body_keys(self) -> Iterator[bytes]:
        last = b""
        while page := self._read("body_keys", last, PAGE):
            yield from (row[0] for row in page)
            last = page[-1][0]

    def _read(self, query: str, *arguments: object) -> list[Any]:
        return self._reading.run(patiently(lambda: self._reader.fetch(query, *arguments)))

    # Copies.

    def backup(self, directory: str) -> None:
        raise StoreError("back up the database itself, with pg_dump or pg_basebackup")

    def be_copy(self, shards: int, claims: Mapping[int, Claim]) -> None:
        self._blocking.run(self._be_copy(shards, claims))

    async def _be_copy(self, shards: int, claims: Mapping[int, Claim]) -> None:
        known = list(claims.values())
        seen = [0 if each.restored else 1 for each in known]
        columns = (list(claims), [each.epoch for each in known], [each.committed_at for each in known], seen)
        skip = max((each.restored for each in known), default=0)
        try:
            async with self._writer.transaction():
                await self._writer.value("forget_commits")
                await self._writer.value("be_copy", *columns, *self._keeper.last())
                self._take_format(await self._writer.row("copy_format", FORMAT, shards, 1, skip))
        except DatabaseError as error:
            raise StoreError(str(error)) from None

    def claims(self) -> dict[int, Claim]:
        rows = self._read("claims")
        return {shard: Claim(epoch, at, passed) for shard, epoch, at, passed in rows}

    def left_behind(self) -> tuple[int, int]:
        """How many messages that were pushed from SQL wait, and how many were refused."""
        ((waiting, refused),) = self._read("left_behind")
        return waiting, refused

    def inbox(self) -> Inbox:
        """What was pushed from SQL; for the loop that asks."""
        return Inbox(self._url)

    def close(self) -> None:
        for blocking, session in ((self._blocking, self._writer), (self._reading, self._reader)):
            blocking.run(session.close())
            blocking.close()
