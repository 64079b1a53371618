"""The shared store: PostgreSQL 14 or later, in the schema ``forebay`` of your database.

    records, bodies   the data, by key; no row of them is ever updated
    commits           the fence: a commit inserts (shard, number), and a claim is itself a commit

A commit is one statement, so one round trip and one transaction: a function of the database gets all of it as
arrays. Only large bodies are sent ahead of it by COPY, in a transaction of six round trips.

**The fence.** The numbers of a shard have no gaps, and each is inserted once: the primary key sees to that.
A claim takes the next number, so the previous owner can't take it, at any isolation level, however long it
was paused. If the number before is missing, the database has lost confirmed commits: the commit is refused.

**A connection lost during a commit** leaves the outcome unknown. The commit is retried under the same number:
either the number is free, and it is committed now; or it is taken by the same epoch, so the first try was
committed. If the first try is still running, the insert waits for it.

A key that is put often, such as a cursor, gets a new row each time under a higher version. The keeper caches
the last versions, so that the replaced row is found by its exact primary key.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from forebay.core.errors import Damaged
from forebay.core.records.commit import Commit, Record
from forebay.store.base import SHARDS_SHARED, CantOpen, Claim, StoreError
from forebay.store.postgres.commits import PATIENCE_S, WAIT_S, Keeper, T, patiently
from forebay.store.postgres.inbox import Inbox
from forebay.store.postgres.migrate import SERVE, migrate, missing
from forebay.store.postgres.session import (
    MAY_NOT,
    PLANS,
    Blocking,
    DatabaseError,
    Gone,
    Refused,
    Session,
    shown,
)
from forebay.store.postgres.sql import Migration
from forebay.store.rocksdb.format import FORMAT, Format, other_format

logger = logging.getLogger("forebay.store")
PAGE = 5_000
"""Records read in one round trip."""


@asynccontextmanager
async def _opening(name: str) -> AsyncIterator[None]:
    """Turn database errors into CantOpen, with what to do about them."""
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
    """Apply the missing migrations and return them; with ``only_look``, just return them."""
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
    """Records and bodies in a database that only this process serves."""

    blocking = True
    far = True
    shards_default = SHARDS_SHARED

    def __init__(self, url: str, *, node: str = "", alone: bool = True, only_look: bool = False) -> None:
        """Open the database and migrate its schema. Raise CantOpen with the reason.

        ``alone``: no other server may have it open. ``only_look``: the schema is not migrated.
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
        """Return whether we got the server lock. A killed server may hold it for a moment longer."""
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
        version, shards, restored, skip = row
        if version != FORMAT:
            raise other_format(self.name, version)
        self._format = Format(shards, restored, skip)
        self._keeper.restored = restored

    async def _opened(self) -> None:
        """After a reconnect: take the server lock again, or give the connection up."""
        if self._alone and not await self._writer.value("try_lock", SERVE):
            if self._backend is not None:
                # Our own old connection may still hold the lock: the database has not noticed that it is
                # gone.
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
        if self._format is None:
            self._take_format(self._ask(lambda: self._writer.row("set_format", FORMAT, wanted, 0, 0)))
        assert self._format is not None
        return self._format.shards

    def made_with(self) -> int:
        """Return the number of shards of a store that a server has opened before."""
        if self._format is None:
            raise CantOpen(f"{self.name} has no data: no server was ever started on it")
        return self._format.shards

    def claim(self, shard: int) -> Claim:
        return self._blocking.run(self._keeper.claim(shard))

    # Committing.

    def commit(self, group: Sequence[Commit], *, sync: bool = True) -> None:
        self._blocking.run(self._keeper.commit(group, sync))

    def room(self, now: float) -> None:
        """Nothing: the disk is elsewhere, and the size of a database does not shrink by deletes."""

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
        """Return how many messages pushed from SQL wait, and how many were refused."""
        ((waiting, refused),) = self._read("left_behind")
        return waiting, refused

    def inbox(self) -> Inbox:
        """Return the inbox of messages pushed from SQL, for use on the caller's event loop."""
        return Inbox(self._url)

    def close(self) -> None:
        for blocking, session in ((self._blocking, self._writer), (self._reading, self._reader)):
            blocking.run(session.close())
            blocking.close()
